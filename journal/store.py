"""How a batch reaches a database: the interface of the three hot paths, and the tables' names."""

# ruff: noqa: S608  (the only text put into SQL is table names, which are validated)

from abc import ABC, abstractmethod
from dataclasses import dataclass

from sqlalchemy import Engine

from orthia.config.dialects import Dialect
from orthia.config.settings import DatabaseStoreSettings
from orthia.database import Database, NoRoom, fold_table_name
from orthia.database.sessions import fenced_mark
from orthia.journal.batch import Batch, JournalTable, Marker, probe
from orthia.journal.records import ID_COUNTER_SEQ

ROOM_BYTES = 262_144
"""What a store that had no room must take before it is said to have some: less would be refused
again with the next message."""


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


def fenced_engine(database: Database, s: DatabaseStoreSettings, purpose: str, token: int) -> Engine:
    """Return an engine of one connection, whose session cannot hold the fence for long.

    A frozen node may have a transaction open; its successor's fence waits for it. An idle one is
    ended by the server: a quarter of the lease leaves the successor most of the time in which the
    frozen node is known to be gone. Any other the successor ends; ``purpose`` is one of
    ``orthia.database.sessions.FENCED_PURPOSES``, by which it is found.
    """
    table = fold_table_name(database.dialect, s.node_manager_store_table_name)
    return database.dedicated_engine(
        purpose,
        query_timeout_ms=s.jdbc_network_timeout,
        idle_in_transaction_ms=max(1, s.jdbc_lock_expiration // 4),
        mark=fenced_mark(table, purpose, token),
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


class BatchStore(ABC):
    """The writer's own connection to one DBMS; used by one thread at a time.

    Every method raises ``database.StoreError``; after one the connection is used again only if
    the error was a ``TransientStoreError``.
    """

    max_record_bytes: int
    """The largest record one row takes; known once connected."""

    keep_alive_seconds: float | None = None
    """How often ``keep_alive`` is due while nothing is stored; None is never. Known once connected.
    """

    @abstractmethod
    def connect(self) -> None:
        """Open the connection, or a new one in place of the one there was.

        The session there was is ended in the database first: what it had under way is then
        either committed or undone, and what ``is_stored`` says stays true.
        """

    @abstractmethod
    def store(self, batch: Batch) -> None:
        """Store ``batch`` in one transaction that proves the fence; returns after the commit.

        Raises Fenced if the token is not the newest.
        """

    @abstractmethod
    def is_stored(self, marker: Marker) -> bool:
        """Say whether the row is there, written under this store's token."""

    @abstractmethod
    def confirm(self) -> None:
        """Commit a change of the journal's counter, under the fence; returns after the commit.

        A row that is there is committed, but perhaps not as durably as a commit that was answered:
        a session that is ended while its commit waits for a standby leaves the row visible and the
        standby without it. What is committed after it waits for the standby to have both. A server
        that takes no writes confirms nothing. Raises Fenced.
        """

    def has_room(self) -> bool:
        """Say whether there is room again for messages, after ``NoRoom``; raises Fenced."""
        self.connect()
        try:
            self.store(probe(ROOM_BYTES))
        except NoRoom:
            return False
        return True

    def keep_alive(self) -> None:  # noqa: B027 - a default: most servers end no silent session
        """Ask something, so that the server does not end the session for its silence."""

    @abstractmethod
    def close(self) -> None:
        """Close the connection; never raises."""
