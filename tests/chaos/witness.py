"""A witness in the database: triggers that note every row of the journal's tables as it changes.

What is to be delivered later leaves the index of moments when it is due: a trigger notes when that
was by the database's clock.
"""

from collections.abc import Iterable, Iterator

from sqlalchemy import text

from orthia.config.store_settings import DatabaseStoreSettings
from orthia.database import Database
from orthia.journal.model.moments import MomentKind
from orthia.journal.model.records import UserRecordType
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
_MOMENTS = (
    "CREATE TABLE CHAOS_MOMENTS (N {number} PRIMARY KEY{auto}, KIND BIGINT, SEQ BIGINT,"
    " AT_MS BIGINT, NOW_MS BIGINT)"
)
_NOW_MS = {
    "postgresql": "(EXTRACT(EPOCH FROM clock_timestamp()) * 1000)::bigint",
    "mysql": "CAST(UNIX_TIMESTAMP(SYSDATE(6)) * 1000 AS SIGNED)",
    "sqlite": "CAST(ROUND((julianday('now') - 2440587.5) * 86400000) AS INTEGER)",
}
_ROUNDING_MS = 2
_STEPPED_MS = 10_000
"""For so long what is moved may have been due before the database's clock was stepped back."""
_EVENTS = {Act.INSERT: "INSERT", Act.UPDATE: "UPDATE", Act.DELETE: "DELETE"}
_PAGE = 10_000


def install(database: Database, settings: DatabaseStoreSettings) -> None:
    """Have the database note each change from now on: of messages, bindings and large bodies.

    A row of MESSAGES that is a duplicate id, and no message, is of a kind of its own.
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
        connection.exec_driver_sql(_MOMENTS.format(number=number, auto=auto))
        connection.exec_driver_sql("CREATE INDEX CHAOS_MOMENTS_SEQ ON CHAOS_MOMENTS (SEQ)")
        connection.exec_driver_sql(
            _WRAPPED[family].format(
                name="CHAOS_MOMENT",
                event="DELETE",
                table=settings.message_times_table_name,
                body="INSERT INTO CHAOS_MOMENTS (KIND, SEQ, AT_MS, NOW_MS)"
                f" VALUES (OLD.KIND, OLD.SEQ, OLD.AT_MS, {_NOW_MS[family]});",
            )
        )
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
    noted = f"'{kind}'"
    if kind == "M":
        is_id = f"{row}.USER_RECORD_TYPE = {UserRecordType.DUPLICATE_ID:d}"
        noted = f"CASE WHEN {is_id} THEN 'D' ELSE 'M' END"
    note = f"{_INTO} VALUES ({noted}, '{act}', {row}.{key}, {queue}, {token});"
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
    """Return how many messages left their queue and are not in the history.

    One that is due leaves the place where it waited, and is kept when it leaves its queue.
    """
    history = settings.message_history_table_name
    return count(
        database,
        "CHAOS_WITNESS w WHERE w.KIND = 'M' AND w.ACT = 'D' AND w.QUEUE IS NOT NULL AND NOT EXISTS"
        f" (SELECT 1 FROM {history} h WHERE h.SEQ = w.SEQ) AND NOT EXISTS (SELECT 1 FROM"
        f" CHAOS_MOMENTS m WHERE m.SEQ = w.SEQ AND m.KIND = {MomentKind.DUE:d})",
    )


def came_due(database: Database) -> int:
    """Return how many messages were due and left the place where they waited."""
    return count(database, f"CHAOS_MOMENTS WHERE KIND = {MomentKind.DUE:d}")


def early(database: Database, stepped: Iterable[float]) -> list[tuple[int, int]]:
    """Return which messages left that place before they were due, and by how many milliseconds.

    ``stepped`` is what the database's clock showed when it had been stepped, in seconds.
    """
    found = text(
        "SELECT SEQ, AT_MS, NOW_MS FROM CHAOS_MOMENTS"
        f" WHERE KIND = {MomentKind.DUE:d} AND NOW_MS + {_ROUNDING_MS} < AT_MS"
    )
    steps_ms = [1000 * seconds for seconds in stepped]
    with database.engine.connect() as connection:
        return [
            (seq, at_ms - now_ms)
            for seq, at_ms, now_ms in connection.execute(found)
            if not any(-_ROUNDING_MS <= now_ms - step_ms <= _STEPPED_MS for step_ms in steps_ms)
        ]


def count(database: Database, source: str) -> int:
    """Return how many rows a table has at the moment, or what is selected of it."""
    with database.engine.connect() as connection:
        return int(connection.exec_driver_sql(f"SELECT COUNT(*) FROM {source}").scalar_one())
