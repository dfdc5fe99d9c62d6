"""The tables' names, and the statements that every DBMS understands."""

# ruff: noqa: S608  (the only text put into SQL is table names, which are validated)

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from orthia.config.dialects import Dialect
from orthia.config.store_settings import DatabaseStoreSettings
from orthia.database import fold_table_name
from orthia.journal.engine.batch import JournalTable
from orthia.journal.model.records import FENCE_ROW_ID, ID_COUNTER_SEQ


@dataclass(frozen=True)
class TableNames:
    """The tables the journal uses, quoted for the DBMS."""

    messages: str
    bindings: str
    node_manager_store: str
    large_messages: str
    times: str
    outbox: str
    acks: str
    history: str | None
    """None without retention."""

    @classmethod
    def from_settings(cls, s: DatabaseStoreSettings, dialect: Dialect) -> "TableNames":
        """Return the configured names; validated names hold no quotes of their own."""
        quote = "`" if dialect is Dialect.MYSQL else '"'

        def quoted(name: str) -> str:
            return f"{quote}{fold_table_name(dialect, name)}{quote}"

        return cls(
            quoted(s.message_table_name),
            quoted(s.bindings_table_name),
            quoted(s.node_manager_store_table_name),
            quoted(s.large_message_table_name),
            quoted(s.message_times_table_name),
            quoted(s.outbox_table_name),
            quoted(s.acks_table_name),
            None if s.journal_retention is None else quoted(s.message_history_table_name),
        )

    def of(self, table: JournalTable) -> str:
        """Return the quoted name of ``table``."""
        return self.messages if table is JournalTable.MESSAGES else self.bindings


ROW_COLUMNS: Final = "(seq, id, record_type, user_record_type, queue_id, epoch, record)"
"""Columns written to MESSAGES and BINDINGS; the database adds the time."""
TIME_COLUMNS: Final = "(seq, queue_id, kind, at_ms, attempts, retry_ms)"
"""Columns written to MESSAGE_TIMES: the fields of ``MessageTime``."""
HISTORY_COLUMNS: Final = "seq, id, queue_id, epoch, written_at, record, size, reason, removed_at"
"""Columns written to the history."""


def history_of(names: TableNames, reason: str, removed_at: str, body: str | None = None) -> str:
    """Return the SELECT of history rows from messages ``m`` that are about to be deleted.

    ``removed_at`` is the database's time, or a microsecond after the latest of the history if that
    is later: rows of one transaction are later than those of all before it, whatever the clock did
    in between. So no row appears later below a time up to which the history was read. There is one
    writer, so its transactions are sequential.

    Each row has the payload, for a reference that of its body, or its own record if the body is
    missing; ``body`` is a subquery for the record of the body ``m.id``, if the usual one does not
    do. A WHERE follows.
    """
    # By CASE the body is looked up by its key, and only where there is one: a join could be planned
    # as a hash of the whole table.
    body = body or f"(SELECT b.record FROM {names.messages} AS b WHERE b.seq = m.id)"
    record = f"COALESCE(CASE WHEN m.id <> m.seq THEN {body} END, m.record)"
    return (
        f"SELECT m.seq, m.id, m.queue_id, m.epoch, m.written_at, {record}, LENGTH({record}),"
        f" {reason}, {removed_at} FROM {names.messages} AS m"
    )


@dataclass(frozen=True)
class Statements:
    """Statements that are the same for every DBMS, in the parameter style of its driver."""

    fence: str
    """Finds the fence's row if its token is the writer's; a locking clause follows."""
    find: Mapping[JournalTable, str]
    """Finds a row by its seq and its epoch."""
    duplicate_ids: str
    """Finds the rows of an id cache, in the order of seq."""
    link: str
    """Inserts a reference to a large body: its id, and the seq of the row that needs it."""
    unlink: str
    """Deletes a reference to a large body, unless the history refers to it now. Takes names."""
    reserve: str
    """Raises the id counter if the new value is higher; takes the value twice."""
    confirm: str
    """Increments the id counter, which skips an id: not every DBMS replicates an update without a
    change."""

    @classmethod
    def of(
        cls,
        names: TableNames,
        token: int,
        *,
        mark: str = "%s",
        named: str = "%({})s",
        no_bytes: str = "''",
    ) -> "Statements":
        """Return the statements of a writer; ``mark`` and ``named`` are the forms of parameters."""
        large_id, seq = named.format("large_id"), named.format("seq")
        unlink = f"DELETE FROM {names.large_messages} WHERE id = {large_id} AND position = -{seq}"
        if names.history is not None:
            unlink += f" AND NOT EXISTS (SELECT 1 FROM {names.history} WHERE seq = {seq})"
        counter = (
            f"UPDATE {names.bindings} SET id = {{}}, epoch = {token:d} WHERE seq = {ID_COUNTER_SEQ}"
        )
        return cls(
            fence=f"FROM {names.node_manager_store} WHERE id = {FENCE_ROW_ID}"
            f" AND holder_token = {token:d}",
            find={
                table: f"SELECT 1 FROM {names.of(table)} WHERE seq = {mark} AND epoch = {mark}"
                for table in JournalTable
            },
            duplicate_ids=f"SELECT seq, record FROM {names.messages} WHERE queue_id = {mark}"
            " ORDER BY seq",
            link=f"INSERT INTO {names.large_messages} (id, position, epoch, piece)"
            f" VALUES ({mark}, -{mark}, {token:d}, {no_bytes})",
            unlink=unlink,
            reserve=f"{counter.format(mark)} AND id < {mark}",
            confirm=counter.format("id + 1"),
        )
