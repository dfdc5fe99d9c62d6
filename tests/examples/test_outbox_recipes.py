"""The recipes of docs/outbox.md, as they are printed there, and what frameworks do with them."""

import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import django
import pytest
import sqlalchemy as sa
from django.conf import settings as django_settings
from django.db import IntegrityError as DjangoIntegrityError
from django.db import connections as django_connections
from django.db import transaction as django_transaction
from sqlalchemy import Connection, Engine, text
from sqlalchemy.orm import Session

from orthia.broker.client.outbox_testing import SentMessage, assert_sent, sent
from orthia.config.store_settings import DatabaseStoreSettings
from orthia.database import Database, Dialect
from tests.examples.conftest import STORED
from tests.support.servers import SERVER_NAMES

on_servers = pytest.mark.parametrize("server", SERVER_NAMES, indirect=True)
DOCUMENT = Path(__file__).parents[2] / "docs" / "outbox.md"


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


@contextmanager
def django_on(store: DatabaseStoreSettings) -> Iterator[None]:
    """Give Django the database of a store."""
    url, password = store.jdbc_connection_url.sqlalchemy_url, store.jdbc_password
    assert password is not None
    at = {
        "ENGINE": "django.db.backends.postgresql",
        "HOST": url.host,
        "PORT": url.port,
        "NAME": url.database,
        "USER": store.jdbc_user,
        "PASSWORD": password.reveal(),
    }
    django_settings.configure(DATABASES={"default": at}, LOGGING_CONFIG=None)
    django.setup()
    try:
        yield
    finally:
        django_connections.close_all()


def left(shop: Engine) -> list[SentMessage]:
    """Return what is committed in the outbox."""
    with shop.connect() as connection:
        return sent(cursor_of(connection))


def cursor_of(connection: Connection) -> Any:
    """Return the driver's cursor of a session."""
    return connection.connection.cursor()


def done(shop: Engine) -> int:
    """Return how often order 4711 was processed."""
    with shop.connect() as connection:
        return int(connection.execute(text("SELECT done FROM shop_orders")).scalar_one())


@on_servers
def test_the_recipe_of_the_dbapi(shop: Engine, recipes: Any) -> None:
    """An order and its message are one transaction; processing it twice fails."""
    with shop.connect() as connection:
        recipes.place_order(connection.connection, 4711)
        recipes.process(connection.connection, str(STORED), 4711)
        driver = connection.connection
        error = shop.dialect.loaded_dbapi.IntegrityError
        with pytest.raises(error, match="acknowledged before"):
            recipes.process(driver, str(STORED), 4711)
        driver.rollback()
    assert left(shop) == [SentMessage("/queue/orders", b"4711", {"priority": 7})]
    assert done(shop) == 1


@on_servers
def test_the_recipe_of_sqlalchemy(shop: Engine, recipes: Any) -> None:
    """The same in a session, whose second processing is told from the first."""
    with Session(shop) as session:
        recipes.place_order_in_session(session, 4711)
        assert recipes.process_in_session(session, str(STORED), 4711)
        assert not recipes.process_in_session(session, str(STORED), 4711)
        with pytest.raises(sa.exc.IntegrityError):
            recipes.place_order_in_session(session, 4711)
    assert left(shop) == [SentMessage("/queue/orders", b"4711", {})]
    assert done(shop) == 1


@pytest.mark.parametrize("server", ["postgresql"], indirect=True)
def test_the_recipe_of_django(
    shop: Engine, recipes: Any, migrated_store: DatabaseStoreSettings
) -> None:
    """What an inner or the outer ``atomic()`` rolls back is not sent."""
    with django_on(migrated_store):
        recipes.place_order_in_django(4711)
        with django_transaction.atomic():
            recipes.place_order_in_django(4712)
            with pytest.raises(DjangoIntegrityError):
                recipes.place_order_in_django(4711)
        with suppress(ZeroDivisionError), django_transaction.atomic():
            recipes.place_order_in_django(4713)
            raise ZeroDivisionError
    assert left(shop) == [
        SentMessage("/queue/orders", b"4711", {}),
        SentMessage("/queue/orders", b"4712", {}),
    ]


@on_servers
def test_a_savepoint_that_is_rolled_back_sends_nothing(shop: Engine, recipes: Any) -> None:
    """What an inner ``atomic()`` of Django does, and Spring's NESTED propagation."""
    send = text(f"{recipes.call} orthia_send('/queue/orders', :body, NULL)")
    with shop.begin() as connection:
        connection.execute(send, {"body": "kept"})
        connection.execute(text("SAVEPOINT inner_atomic"))
        connection.execute(send, {"body": "taken back"})
        connection.execute(text("ROLLBACK TO SAVEPOINT inner_atomic"))
        connection.execute(send, {"body": "kept, too"})
    assert [one.body for one in left(shop)] == [b"kept", b"kept, too"]


@on_servers
def test_the_helper_says_what_is_sent_and_what_was_expected(shop: Engine, recipes: Any) -> None:
    """Before the commit, in order; headers count where they are said."""
    with shop.connect() as connection:
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
