"""Queries the sessions that lock rows or tables of the journal."""

from collections.abc import Sequence

from orthia.config.dialects import Dialect
from orthia.config.store_settings import DatabaseStoreSettings
from orthia.database import Database, PermanentStoreError, StoreUnavailable, translate_errors
from orthia.database.lock_holders import LockedTable, SessionWithLock, sessions_with_locks
from orthia.journal.engine.locks import RowKey, RowKind
from orthia.journal.sql.statements import TableNames


def who_locks(
    database: Database, s: DatabaseStoreSettings, rows: Sequence[RowKey]
) -> list[SessionWithLock]:
    """Return the sessions that lock these rows; without rows, those that lock a journal table.

    Raises StoreUnavailable if the database does not answer.
    """
    names = TableNames.from_settings(s, database.dialect)
    tables = [LockedTable(names.messages), LockedTable(names.times), LockedTable(names.bindings)]
    if rows:
        by_kind = {kind: [row for row in rows if row.kind is kind] for kind in RowKind}
        tables = [
            LockedTable(table, _condition(kind, by_kind[kind]))
            for kind, table in (
                (RowKind.MESSAGE, names.messages),
                (RowKind.TIME, names.times),
                (RowKind.LARGE_REFERENCE, names.large_messages),
                (RowKind.OUTBOX, names.outbox),
            )
            if by_kind[kind]
        ]
    what = "ask who locks the journal's rows" if rows else "ask who locks the journal's tables"
    try:
        with translate_errors(what), database.engine.connect() as connection:
            return sessions_with_locks(connection, tables)
    except PermanentStoreError as error:
        advice = ""
        if database.dialect is Dialect.MYSQL:
            advice = (
                "; that takes the right PROCESS, and on MySQL SELECT on performance_schema:"
                " `orthia docs databases`"
            )
        raise StoreUnavailable(f"{error}{advice}") from error


def _condition(kind: RowKind, rows: Sequence[RowKey]) -> str:
    if kind is RowKind.LARGE_REFERENCE:
        listed = ", ".join(f"({row.large_id:d}, {-row.seq:d})" for row in rows)
        return f"(id, position) IN ({listed})"
    key = "id" if kind is RowKind.OUTBOX else "seq"
    return f"{key} IN ({', '.join(str(row.seq) for row in rows)})"
