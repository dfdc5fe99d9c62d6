"""A session on which the server refuses to write is given up, and one refused otherwise is not."""

import pytest
from sqlalchemy import Engine, text

from orthia.database import Database, StoreError, write_transaction
from orthia.database.sessions import session_id
from tests.support.servers import MYSQL_FAMILY


def session_after(engine: Engine, statement: str) -> tuple[object, object]:
    """Return which session an engine has before and after a statement that is refused."""
    ask = (
        "SELECT pg_backend_pid()"
        if engine.dialect.name == "postgresql"
        else "SELECT CONNECTION_ID()"
    )
    with engine.connect() as connection:
        before = connection.execute(text(ask)).scalar()
    with pytest.raises(StoreError), write_transaction(engine, "write") as connection:
        connection.exec_driver_sql(statement)
    with engine.connect() as connection:
        return before, connection.execute(text(ask)).scalar()


@pytest.mark.parametrize("server", MYSQL_FAMILY, indirect=True)
@pytest.mark.parametrize(
    ("code", "is_given_up"),
    [
        *((code, True) for code in (1290, 1792, 1836, 1874, 1881)),
        pytest.param(1047, True, id="a Galera node without its primary component"),
        pytest.param(3032, True, id="offline_mode"),
        pytest.param(1205, False, id="lock wait time-out"),
        pytest.param(1213, False, id="deadlock"),
        pytest.param(1062, False, id="duplicate key"),
    ],
)
def test_of_mysql(database: Database, code: int, *, is_given_up: bool) -> None:
    """By the number of the error."""
    engine = database.dedicated_engine("test", query_timeout_ms=20_000)
    refuse = f"SIGNAL SQLSTATE 'HY000' SET MYSQL_ERRNO = {code}, MESSAGE_TEXT = 'refused'"
    before, after = session_after(engine, refuse)
    assert (before != after) is is_given_up


@pytest.mark.parametrize("server", ["postgresql"], indirect=True)
@pytest.mark.parametrize(
    ("code", "is_given_up"), [("25006", True), ("55P03", False), ("40P01", False)]
)
def test_of_postgresql(database: Database, code: str, *, is_given_up: bool) -> None:
    """By the SQLSTATE: only that of a transaction that is read-only."""
    engine = database.dedicated_engine("test", query_timeout_ms=20_000)
    refuse = f"DO $$ BEGIN RAISE EXCEPTION USING ERRCODE = '{code}'; END $$"
    before, after = session_after(engine, refuse)
    assert (before != after) is is_given_up


@pytest.mark.parametrize("server", ["postgresql"], indirect=True)
def test_postgresql_is_asked_before_a_session_is_used_again(database: Database) -> None:
    """By whoever writes: what it would only read there may be of before."""
    engine = database.dedicated_engine("test", query_timeout_ms=20_000)
    with engine.begin() as connection:
        before = session_id(connection)
    with engine.begin() as connection:
        assert session_id(connection) == before
        connection.exec_driver_sql("SET default_transaction_read_only = on")
    with engine.connect() as connection:
        assert session_id(connection) != before
