"""How a batch reaches a database: the interface of the three hot paths, and the tables' names."""

# ruff: noqa: S608  (the only text put into SQL is table names, which are validated)

from dataclasses import dataclass

from orthia.config.dialects import Dialect
from orthia.config.settings import DatabaseStoreSettings
from orthia.database import fold_table_name
from orthia.journal.engine.batch import JournalTable
from orthia.journal.records import ID_COUNTER_SEQ


@dataclass(frozen=True)
class TableNames:
    """The tables the journal uses, quoted for the DBMS."""

    messages: str
    bindings: str
    node_manager_store: str
    large_messages: str
    history: str | None
    """None without retention: nothing is kept then."""

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
            None if s.journal_retention is None else quoted(s.message_history_table_name),
        )

    def of(self, table: JournalTable) -> str:
        """Return the quoted name of ``table``."""
        return self.messages if table is JournalTable.MESSAGES else self.bindings


HISTORY_COLUMNS = "seq, id, queue_id, epoch, written_at, record, size, reason, removed_at"
"""What is written to the history."""


def history_of(names: TableNames, reason: str, removed_at: str) -> str:
    """Return the SELECT of history rows from messages ``m`` that are about to be deleted.

    ``removed_at`` is the database's time, or a microsecond after the latest of the history where
    that is later: what one transaction keeps is later than all that any before it kept, whatever
    the clock did in between. So whoever reads the history up to some time misses nothing that
    appears below it later. There is one writer, so its transactions come one after the other.

    Each row has the payload, which for a message of several queues is the body's; of one whose body
    is missing what there is. A WHERE follows.
    """
    # By CASE the body is looked up by its key, and only where there is one: a join could be planned
    # as a hash of the whole table.
    body = f"(SELECT b.record FROM {names.messages} AS b WHERE b.seq = m.id)"
    record = f"COALESCE(CASE WHEN m.id <> m.seq THEN {body} END, m.record)"
    return (
        f"SELECT m.seq, m.id, m.queue_id, m.epoch, m.written_at, {record}, LENGTH({record}),"
        f" {reason}, {removed_at} FROM {names.messages} AS m"
    )


def confirm_sql(names: TableNames, token: int) -> str:
    """Return the UPDATE of ``BatchStore.confirm``.

    One id fewer to give out is a change that harms nobody; an UPDATE that changes nothing is not
    replicated by every DBMS.
    """
    return (
        f"UPDATE {names.bindings} SET id = id + 1, epoch = {token:d} WHERE seq = {ID_COUNTER_SEQ}"
    )


def unlink_sql(names: TableNames) -> str:
    """Return what deletes a reference to a large body, unless the history refers to it now.

    For drivers that take ``%(id)s`` and ``%(seq)s``.
    """
    statement = f"DELETE FROM {names.large_messages} WHERE id = %(id)s AND position = -%(seq)s"
    if names.history is None:
        return statement
    return f"{statement} AND NOT EXISTS (SELECT 1 FROM {names.history} WHERE seq = %(seq)s)"
