"""Fills an empty journal with the rows of another one, under one token.

Rows keep their ``seq``, so the order of every queue and all references stay the same. They go
through the writer's own store, batch by batch, each of which proves the fence; the references to
large bodies and the id counter, which a later node needs, are written with them. The caller holds
the live lock meanwhile.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Final, NamedTuple, Self

from sqlalchemy import MetaData, insert

from orthia.config.store_settings import DatabaseStoreSettings
from orthia.database import Database, write_transaction
from orthia.database.sessions import JOURNAL_PURPOSE
from orthia.journal.engine.abc import Piece
from orthia.journal.engine.batch import batch_of
from orthia.journal.model.changes import LargeReference, Row, extended
from orthia.journal.model.codec import PreparedTransaction, decode_prepared_transaction
from orthia.journal.model.message import moment
from orthia.journal.model.moments import MessageTime, Moment
from orthia.journal.model.records import UserRecordType
from orthia.journal.model.unit import Unit, large_references
from orthia.journal.sql.bodies import SqlBodies
from orthia.journal.sql.fence import fenced_engine, prove_fence
from orthia.journal.sql.journal import batch_store
from orthia.journal.sql.recovery import recover
from orthia.journal.sql.tables import history_table

BATCH_ROWS: Final = 1_000
BATCH_BYTES: Final = 4 * 1024 * 1024
"""Bounds of one transaction, unless a single row is larger."""


class StoredRow(NamedTuple):
    """A row of MESSAGES, and what the row itself does not tell."""

    row: Row
    large_id: int | None
    """The large body it needs."""
    of_body: Moment | None = None
    """When the message of a reference is due or expires: only its body tells."""


class HistoryRow(NamedTuple):
    """A row of the history, and the large body it needs."""

    seq: int
    id: int
    queue_id: int
    epoch: int
    written_at: datetime
    removed_at: datetime
    reason: str
    size: int
    record: bytes
    large_id: int | None


def reserve_ids(database: Database, s: DatabaseStoreSettings, token: int, up_to: int) -> None:
    """Record in an empty journal that ids up to this one were given out.

    Raises StoreError, Fenced if ``token`` is not the newest.
    """
    engine = fenced_engine(database, s, JOURNAL_PURPOSE, token)
    try:
        recover(engine, s, database.dialect, token=token, id_block=up_to)
    finally:
        engine.dispose()


class BulkLoad:
    """Writes to the journal of one database; a context manager.

    Every call raises StoreError, Fenced if ``token`` is not the newest, and DuplicateKey for a row
    that exists.
    """

    def __init__(self, database: Database, s: DatabaseStoreSettings, token: int) -> None:
        self._database = database
        self._settings = s
        self._token = token
        self._engine = fenced_engine(database, s, JOURNAL_PURPOSE, token)
        self._store = batch_store(database, s, self._engine, token)
        self._bodies = SqlBodies(database, s, token)
        self._history = fenced_engine(database, s, "history", token)

    def __enter__(self) -> Self:
        self._store.connect()
        return self

    def __exit__(self, *_: object) -> None:
        self._store.close()
        self._bodies.close()
        self._engine.dispose()
        self._history.dispose()

    def messages(self, rows: Iterable[StoredRow]) -> int:
        """Store rows of MESSAGES in one transaction; return their number."""
        unit = Unit(None, 0)
        for row, large_id, of_body in rows:
            unit.add_rows((row,))
            unit.payload_bytes += len(row.record)
            when = of_body if row.user_record_type == UserRecordType.ADD_REF else _moment_of(row)
            if when is not None and row.queue_id is not None:
                unit.add_times((MessageTime(row.seq, row.queue_id, *when),))
            if large_id is not None and row.queue_id is not None:
                unit.add_links((LargeReference(large_id, row.seq),))
        self._store.store(batch_of([unit]))
        return len(unit.rows)

    def bindings(self, rows: Iterable[Row]) -> int:
        """Store rows of BINDINGS in one transaction; return their number. Raises CorruptRecord."""
        unit = Unit(None, 0)
        for row in rows:
            unit.binding_rows = extended(unit.binding_rows, (row,))
            unit.payload_bytes += len(row.record)
            if row.user_record_type == UserRecordType.PREPARED_TRANSACTION:
                prepared: PreparedTransaction = decode_prepared_transaction(row.record, row.seq)
                unit.add_links(large_references(prepared))
        self._store.store(batch_of([unit]))
        return len(unit.binding_rows)

    def history(self, rows: Sequence[HistoryRow]) -> int:
        """Store rows of the history in one transaction; return their number."""
        s, dialect = self._settings, self._database.dialect
        table = history_table(MetaData(), s.message_history_table_name, dialect)
        values = [row._asdict() for row in rows]
        linked = [
            LargeReference(large_id, row.seq)
            for row in rows
            if (large_id := row.large_id) is not None
        ]
        for one in values:
            del one["large_id"]
        with write_transaction(self._history, "fill the history") as connection:
            prove_fence(connection, s, dialect, self._token)
            connection.execute(insert(table), values)
        if linked:
            unit = Unit(None, 0)
            unit.add_links(linked)
            self._store.store(batch_of([unit]))
        return len(values)

    def pieces(self, pieces: Sequence[Piece]) -> int:
        """Store pieces of large bodies in one transaction; return their number."""
        self._bodies.write(pieces)
        return len(pieces)


def _moment_of(row: Row) -> Moment | None:
    """Return when the message of a row is due or expires."""
    try:
        return moment(row.record)
    except ValueError:
        return None  # a damaged row stays unchanged for inspection
