"""A witness in the database: triggers that note every row of the journal's tables as it changes."""

from collections.abc import Iterator

from sqlalchemy import text

from orthia.config.settings import DatabaseStoreSettings
from orthia.database import Database
from tests.chaos.writers import Act, Change

_TABLE = (
    "CREATE TABLE CHAOS_WITNESS (N {number} PRIMARY KEY{auto}, KIND CHAR(1), ACT CHAR(1),"
    " SEQ BIGINT, QUEUE BIGINT, TOKEN BIGINT)"
)
_NUMBER = {
    "postgresql": ("BIGSERIAL", ""),
    "mysql": ("BIGINT AUTO_INCREMENT", ""),
    "sqlite": ("INTEGER", " AUTOINCREMENT"),
}
_INTO = "INSERT INTO CHAOS_WITNESS (KIND, ACT, SEQ, QUEUE, TOKEN)"
_TOKEN = {
    "postgresql": "COALESCE(NULLIF(current_setting('chaos.token', true), ''), '0')::bigint",
    "mysql": "COALESCE(@chaos_token, 0)",
    # SQLite has no sessions that a trigger could tell apart.
    "sqlite": "0",
}
"""What the session that makes a change has inserted last."""
_REMEMBER = {
    "postgresql": "PERFORM set_config('chaos.token', NEW.EPOCH::text, false);",
    "mysql": "SET @chaos_token = NEW.EPOCH;",
    "sqlite": "",
}
_WRAPPED = {
    "postgresql": "CREATE FUNCTION {name}() RETURNS TRIGGER LANGUAGE plpgsql AS"
    " $$ BEGIN {body} RETURN NULL; END $$;"
    "CREATE TRIGGER {name} AFTER {event} ON {table} FOR EACH ROW EXECUTE FUNCTION {name}()",
    "mysql": "CREATE TRIGGER {name} AFTER {event} ON {table} FOR EACH ROW BEGIN {body} END",
    "sqlite": "CREATE TRIGGER {name} AFTER {event} ON {table} BEGIN {body} END",
}
_EVENTS = {Act.INSERT: "INSERT", Act.UPDATE: "UPDATE", Act.DELETE: "DELETE"}
_PAGE = 10_000


def install(database: Database, settings: DatabaseStoreSettings) -> None:
    """Have the database note each change from now on: of messages, bindings and large bodies.

    A change's number is given while its transaction holds the fence's share lock, so by number all
    of one token come before the first of the next, or there were two writers.
    """
    dialect = database.engine.dialect.name
    family = "mysql" if dialect == "mariadb" else dialect
    number, auto = _NUMBER[family]
    tables = {
        "M": (settings.message_table_name, "SEQ", "QUEUE_ID"),
        "B": (settings.bindings_table_name, "SEQ", "QUEUE_ID"),
        "L": (settings.large_message_table_name, "ID", "NULL"),
    }
    with database.engine.begin() as connection:
        connection.exec_driver_sql(_TABLE.format(number=number, auto=auto))
        for kind, (table, key, queue) in tables.items():
            for act, event in _EVENTS.items():
                connection.exec_driver_sql(
                    _WRAPPED[family].format(
                        name=f"CHAOS_{kind}_{act}",
                        event=event,
                        table=table,
                        body=_body(family, kind, act, key, queue),
                    )
                )


def _body(family: str, kind: str, act: Act, key: str, queue: str) -> str:
    row = "OLD" if act is Act.DELETE else "NEW"
    queue = queue if queue == "NULL" else f"{row}.{queue}"
    token = "NEW.EPOCH" if act is Act.INSERT else _TOKEN[family]
    note = f"{_INTO} VALUES ('{kind}', '{act}', {row}.{key}, {queue}, {token});"
    return note + (_REMEMBER[family] if act is Act.INSERT else "")


def changes(database: Database) -> Iterator[Change]:
    """Give the changes in their order."""
    last = 0
    page = text(
        "SELECT N, KIND, ACT, SEQ, TOKEN FROM CHAOS_WITNESS WHERE N > :last ORDER BY N"
        f" LIMIT {_PAGE}"
    )
    with database.engine.connect() as connection:
        while found := connection.execute(page, {"last": last}).all():
            for number, kind, act, seq, token in found:
                yield Change(number, kind, Act(act), seq, token)
                last = number


def unkept(database: Database, settings: DatabaseStoreSettings) -> int:
    """Return how many messages left their queue and are not in the history."""
    history = settings.message_history_table_name
    return _count(
        database,
        "CHAOS_WITNESS w WHERE w.KIND = 'M' AND w.ACT = 'D' AND w.QUEUE IS NOT NULL AND NOT EXISTS"
        f" (SELECT 1 FROM {history} h WHERE h.SEQ = w.SEQ)",
    )


def left(database: Database, source: str) -> int:
    """Return how many rows a table has at the moment, or what is selected of it."""
    return _count(database, source)


def _count(database: Database, source: str) -> int:
    with database.engine.connect() as connection:
        return int(connection.exec_driver_sql(f"SELECT COUNT(*) FROM {source}").scalar_one())
