"""The recipes of docs/outbox.md, as they are printed there, and what frameworks do with them."""

import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import Connection, Engine, text
from sqlalchemy.orm import Session

from orthia.broker.client.outbox_testing import SentMessage, assert_sent, sent
from orthia.config.store_settings import DatabaseStoreSettings
from orthia.database import Database, Dialect
from orthia.migrations import TableNames
from tests.support.servers import SERVER_NAMES

pytestmark = pytest.mark.parametrize("server", SERVER_NAMES, indirect=True)
DOCUMENT = Path(__file__).parents[2] / "docs" / "outbox.md"
STORED = 5
"""The id of a message in a queue."""


@pytest.fixture
def engine(database: Database, migrated_store: DatabaseStoreSettings) -> Iterator[Engine]:
    """Give the engine of an application with a table of orders, and a message in a queue."""
    engine = database.engine
    names = TableNames.from_settings(migrated_store)
    quoted = engine.dialect.identifier_preparer.quote(names.messages)
    with engine.begin() as connection:
        connection.execute(
            text("CREATE TABLE shop_orders (id INTEGER PRIMARY KEY, done INTEGER DEFAULT 0)")
        )
        connection.execute(
            text(
                f"INSERT INTO {quoted} (seq, id, record_type, user_record_type, queue_id, epoch,"
                f" record) VALUES ({STORED}, {STORED}, 11, 31, 1, 1, '')"
            )
        )
    yield engine
    with engine.begin() as connection:
        connection.execute(text("DROP TABLE shop_orders"))


@pytest.fixture
def recipes(database: Database) -> Any:
    """Give the functions of the document's Python."""
    (section,) = re.findall(
        r"^## Recipes$(.*?)^## ", DOCUMENT.read_text("utf-8"), re.MULTILINE | re.DOTALL
    )
    names = {"call": "SELECT" if database.dialect is Dialect.POSTGRESQL else "CALL"}
    for block in re.findall(r"^```python\n(.*?)^```", section, re.MULTILINE | re.DOTALL):
        exec(block, names)  # noqa: S102 - of this checkout
    return SimpleNamespace(**names)


def left(engine: Engine) -> list[SentMessage]:
    """Return what is committed in the outbox."""
    with engine.connect() as connection:
        return sent(cursor_of(connection))


def cursor_of(connection: Connection) -> Any:
    """Return the driver's cursor of a session."""
    return connection.connection.cursor()


def done(engine: Engine) -> int:
    """Return how often order 4711 was processed."""
    with engine.connect() as connection:
        return int(connection.execute(text("SELECT done FROM shop_orders")).scalar_one())


def test_the_recipe_of_the_dbapi(engine: Engine, recipes: Any) -> None:
    """An order and its message are one transaction; processing it twice fails."""
    with engine.connect() as connection:
        recipes.place_order(connection.connection, 4711)
        recipes.process(connection.connection, str(STORED), 4711)
        driver = connection.connection
        error = engine.dialect.loaded_dbapi.IntegrityError
        with pytest.raises(error, match="acknowledged before"):
            recipes.process(driver, str(STORED), 4711)
        driver.rollback()
    assert left(engine) == [SentMessage("/queue/orders", b"4711", {"priority": 7})]
    assert done(engine) == 1


def test_the_recipe_of_sqlalchemy(engine: Engine, recipes: Any) -> None:
    """The same in a session, whose second processing is told from the first."""
    with Session(engine) as session:
        recipes.place_order_in_session(session, 4711)
        assert recipes.process_in_session(session, str(STORED), 4711)
        assert not recipes.process_in_session(session, str(STORED), 4711)
        with pytest.raises(sa.exc.IntegrityError):
            recipes.place_order_in_session(session, 4711)
    assert left(engine) == [SentMessage("/queue/orders", b"4711", {})]
    assert done(engine) == 1


def test_a_savepoint_that_is_rolled_back_sends_nothing(engine: Engine, recipes: Any) -> None:
    """What an inner ``atomic()`` of Django does, and Spring's NESTED propagation."""
    send = text(f"{recipes.call} orthia_send('/queue/orders', :body, NULL)")
    with engine.begin() as connection:
        connection.execute(send, {"body": "kept"})
        connection.execute(text("SAVEPOINT inner_atomic"))
        connection.execute(send, {"body": "taken back"})
        connection.execute(text("ROLLBACK TO SAVEPOINT inner_atomic"))
        connection.execute(send, {"body": "kept, too"})
    assert [one.body for one in left(engine)] == [b"kept", b"kept, too"]


def test_the_helper_says_what_is_sent_and_what_was_expected(engine: Engine, recipes: Any) -> None:
    """Before the commit, in order; headers count where they are said."""
    with engine.connect() as connection:
        for order, headers in ((4711, '{"priority": 7}'), (4712, None)):
            connection.execute(
                text(f"{recipes.call} orthia_send('/queue/orders', :body, :headers)"),
                {"body": str(order), "headers": headers},
            )
        cursor = cursor_of(connection)
        recipes.check_what_is_sent(cursor)
        for wrong in ((), (("/queue/orders", b"4712"), ("/queue/orders", b"4711"))):
            with pytest.raises(AssertionError, match=r"but sent is:\n  \('/queue/orders', b'4711'"):
                assert_sent(cursor, *wrong)
        connection.rollback()
        assert_sent(cursor_of(connection))
