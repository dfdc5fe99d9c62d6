"""A witness in the database: triggers that note every row of MESSAGES as it is inserted."""

from collections.abc import Iterator

from sqlalchemy import text

from database import Database
from tests.chaos.checker import Row

_TABLE = {
    "postgresql": "CREATE TABLE CHAOS_WITNESS (N BIGSERIAL PRIMARY KEY, SEQ BIGINT, EPOCH BIGINT)",
    "mysql": "CREATE TABLE CHAOS_WITNESS"
    " (N BIGINT AUTO_INCREMENT PRIMARY KEY, SEQ BIGINT, EPOCH BIGINT)",
    "sqlite": "CREATE TABLE CHAOS_WITNESS"
    " (N INTEGER PRIMARY KEY AUTOINCREMENT, SEQ BIGINT, EPOCH BIGINT)",
}
_NOTE = "INSERT INTO CHAOS_WITNESS (SEQ, EPOCH) VALUES (NEW.SEQ, NEW.EPOCH)"
_TRIGGER = {
    "postgresql": [
        "CREATE FUNCTION CHAOS_NOTE() RETURNS TRIGGER LANGUAGE plpgsql AS"
        f" $$ BEGIN {_NOTE}; RETURN NULL; END $$",
        "CREATE TRIGGER CHAOS_NOTES AFTER INSERT ON {table}"
        " FOR EACH ROW EXECUTE FUNCTION CHAOS_NOTE()",
    ],
    "mysql": [f"CREATE TRIGGER CHAOS_NOTES AFTER INSERT ON {{table}} FOR EACH ROW {_NOTE}"],
    "sqlite": [f"CREATE TRIGGER CHAOS_NOTES AFTER INSERT ON {{table}} BEGIN {_NOTE}; END"],
}


def install(database: Database, messages_table: str) -> None:
    """Have the database note each row from now on.

    The row's number is given while its transaction holds the fence's share lock, so by number all
    rows of one token come before the first row of the next, or there were two writers.
    """
    dialect = database.engine.dialect.name
    family = "mysql" if dialect == "mariadb" else dialect
    with database.engine.begin() as connection:
        connection.exec_driver_sql(_TABLE[family])
        for statement in _TRIGGER[family]:
            connection.exec_driver_sql(statement.format(table=messages_table))


def rows(database: Database) -> Iterator[Row]:
    """Give the rows in the order of their insertion."""
    last = 0
    page = text("SELECT N, SEQ, EPOCH FROM CHAOS_WITNESS WHERE N > :last ORDER BY N LIMIT 10000")
    with database.engine.connect() as connection:
        while found := connection.execute(page, {"last": last}).all():
            for number, seq, epoch in found:
                yield Row(number, seq, epoch)
                last = number


def waiting(database: Database, messages_table: str) -> int:
    """Return how many rows MESSAGES has at the moment."""
    with database.engine.connect() as connection:
        count = connection.exec_driver_sql(f"SELECT COUNT(*) FROM {messages_table}").scalar_one()
    return int(count)
