"""Imports an export into an empty database, row by row unchanged.

A row keeps its ``seq``, so order, references and the ids that clients saw stay the same. Only
``epoch`` and ``written_at`` are new: the journal's own writer writes the rows, under a token of
this import, while it holds the live lock. At the end every table is read again and compared with
the files.

Until the end the journal's token is higher than the live lock's: a node that starts on a partial
import finds the store damaged, and does not serve it.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name everybody gives it
from sqlalchemy import MetaData, func, select, update

from orthia import migrations
from orthia.config.dialects import Dialect
from orthia.config.store_settings import DatabaseStoreSettings
from orthia.database import Database, translate_errors, write_transaction
from orthia.journal.engine.abc import Piece
from orthia.journal.model.changes import Row
from orthia.journal.model.moments import Moment, MomentKind
from orthia.journal.model.records import UserRecordType
from orthia.journal.sql.bulk import (
    BATCH_BYTES,
    BATCH_ROWS,
    BulkLoad,
    HistoryRow,
    StoredRow,
    reserve_ids,
)
from orthia.journal.sql.tables import (
    bindings_table,
    history_table,
    large_messages_table,
    messages_table,
)
from orthia.nodemanager.errors import LockLost
from orthia.nodemanager.locks.lease import Lease, Lock
from orthia.nodemanager.locks.maintenance import Maintenance, maintenance, refuse_held
from orthia.nodemanager.locks.status import DatabaseLocks
from orthia.nodemanager.tables import node_manager_store
from orthia.pipeline.errors import ImportFailed, ImportRefused, WrongInput
from orthia.pipeline.jobs import backup
from orthia.pipeline.jobs.contents import Contents
from orthia.pipeline.sources.inputs import ExportInputs, StoreInputs
from orthia.pipeline.sources.store import Endpoint, StoreReference

_MESSAGE_COLUMNS: Final = (*backup.MESSAGES, "large_id", "due_ms", "expires_ms")
_HISTORY_COLUMNS: Final = (*backup.HISTORY, "large_id")
_MOST_TASKS: Final = 4
"""That write at a time: what one database takes."""
_AGAIN: Final = "empty the database and begin again"

Say = Callable[[str], None]


@dataclass(frozen=True)
class RestoredTable:
    """One table, imported and compared."""

    table: str
    rows: int
    left_out: int = 0


def restore(
    spark: SparkSession, export: ExportInputs, target: Endpoint, *, say: Say = lambda _: None
) -> list[RestoredTable]:
    """Fill the empty store ``target`` with an export; return each table with its number of rows.

    Raises WrongInput if the export is not whole, StoreInUse if a node runs on the store,
    ImportRefused if that is not empty, ImportFailed if its rows differ from the export, StoreError.
    """
    contents = export.contents()
    say("comparing the files with their manifest")
    for _, detail in backup.changed_tables(export, contents):
        raise WrongInput(detail)
    rows = _rows_of(export, contents)
    with Database.from_settings(target.settings) as database:
        with suppress(migrations.StoreDamaged):
            migrations.upgrade(database, target.settings)
        with _locked(database, target.settings, rows.newest_token) as lock:
            _fill(rows, target, database, lock.token, say)
            say("comparing the store with the files")
            brought = _compare(spark, contents, rows, target)
            lock.finish()
    return brought


@dataclass(frozen=True)
class _RestoreRows:
    """The rows of each table to import."""

    messages: DataFrame
    bodies: DataFrame
    bindings: DataFrame
    history: DataFrame | None
    left_out: int
    """The number of messages in the export that are left out."""
    highest_id: int
    """The highest id that was given out."""
    newest_token: int
    """The highest token in the export; the new store's tokens are higher."""


def _rows_of(export: ExportInputs, contents: Contents) -> _RestoreRows:
    """Return the rows to import, without messages that lack their queue or their body."""
    bindings = backup.without_counter(export.bindings())
    queues = bindings.where("type = 'queue'").select(F.col("seq").alias("queue_id"))
    messages = export.messages()
    bound = messages.where("queue_id IS NOT NULL").join(
        F.broadcast(queues), "queue_id", "left_semi"
    )
    absent = [*contents.left, *contents.damaged]
    if absent:
        bound = bound.where(~F.col("seq").isin(absent))
    # A body without a reference belongs to a message acknowledged during the export.
    referred = bound.where("kind = 'reference'").select("id").distinct()
    shared = messages.where("queue_id IS NULL").join(referred, "id", "left_semi")
    kept = bound.unionByName(shared)
    history = export.history() if "history" in contents.tables else None
    if history is not None and contents.damaged:
        history = history.where(~F.col("seq").isin(contents.damaged))
    there, *of_messages = _row(kept, F.count("seq"), F.max("seq"), F.max("epoch"))
    of_bindings = _row(export.bindings(), F.max("id"), F.max("epoch"))
    tokens = [of_messages[1], of_bindings[1]]
    tokens += _row(export.node_manager(), F.max("token"), F.max("fence_token"))
    if history is not None:
        tokens += _row(history, F.max("epoch"))
    return _RestoreRows(
        _with_moments(kept).select(*_MESSAGE_COLUMNS),
        export.bodies(),
        bindings,
        history,
        contents.tables["messages"].rows - there,
        highest_id=max(of_messages[0], of_bindings[0]),
        newest_token=max(tokens),
    )


def _with_moments(messages: DataFrame) -> DataFrame:
    """Return messages with when they are due and expire, in milliseconds: a reference, too.

    An export has them in the row of each reference, whose body is in another directory.
    """
    return messages.withColumns(
        {"due_ms": F.unix_millis("delivery_time"), "expires_ms": F.unix_millis("expires")}
    )


def _row(frame: DataFrame, *found: Column) -> list[int]:
    """Return aggregates over all rows, 0 in place of NULL."""
    (row,) = frame.agg(*found).collect()
    return [value or 0 for value in row]


def _fill(rows: _RestoreRows, target: Endpoint, database: Database, token: int, say: Say) -> None:
    reserve_ids(database, target.settings, token, rows.highest_id)
    say("bringing back bodies of large messages")
    tasks = _tasks(rows.messages, target)
    _load(rows.bodies, _Loader(target.reference, token, _load_pieces), tasks=tasks)
    say("bringing back messages")
    _load(rows.messages, _Loader(target.reference, token, _load_messages), tasks=tasks)
    if rows.history is not None:
        say("bringing back the history")
        history = rows.history.select(*_HISTORY_COLUMNS)
        _load(history, _Loader(target.reference, token, _load_history), tasks=tasks)
    # Last: without its queues no message can be delivered.
    bound = rows.bindings.select(*backup.BINDINGS)
    _load(bound, _Loader(target.reference, token, _load_bindings))


def _load(rows: DataFrame, loader: "_Loader", *, tasks: int = 1) -> None:
    """Write ``rows`` by so many tasks at a time; each transaction proves the fence by itself."""
    rows.coalesce(tasks).mapInArrow(loader, "loaded long").agg(F.sum("loaded")).collect()


def _tasks(rows: DataFrame, target: Endpoint) -> int:
    """Return how many tasks may write at a time: SQLite has one writer."""
    if target.settings.jdbc_connection_url.dialect is Dialect.SQLITE:
        return 1
    return min(_MOST_TASKS, rows.sparkSession.sparkContext.defaultParallelism)


_Write = Callable[[BulkLoad, list[dict[str, Any]]], int]


class _Loader:
    """Writes the rows of a task; pickled to a worker, so it has no connection."""

    def __init__(self, target: StoreReference, token: int, write: _Write) -> None:
        self._target = target
        self._token = token
        self._write = write

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        settings = self._target.settings()
        with (
            Database.from_settings(settings) as database,
            BulkLoad(database, settings, self._token) as load,
        ):
            count = sum(self._write(load, rows) for rows in _portions(batches))
        yield pa.RecordBatch.from_pydict({"loaded": pa.array([count], pa.int64())})


def _portions(batches: Iterator[pa.RecordBatch]) -> Iterator[list[dict[str, Any]]]:
    """Yield rows in lists, each of which is one transaction."""
    for batch in batches:
        begin = size = 0
        for at, more in enumerate(_sizes(batch)):
            if at > begin and (at - begin >= BATCH_ROWS or size + more > BATCH_BYTES):
                yield batch.slice(begin, at - begin).to_pylist()
                begin, size = at, 0
            size += more
        if batch.num_rows > begin:
            yield batch.slice(begin).to_pylist()


def _sizes(batch: pa.RecordBatch) -> list[int]:
    """Return the bytes of each row, of its columns of bytes."""
    total = pa.array([0] * batch.num_rows, pa.int64())
    for column in batch.columns:
        if pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type):
            lengths = pc.fill_null(pc.binary_length(column), 0)
            total = pc.add(total, pc.cast(lengths, pa.int64()))
    return list(total.to_pylist())


def _load_messages(load: BulkLoad, rows: list[dict[str, Any]]) -> int:
    return load.messages(
        StoredRow(
            Row(row["seq"], row["id"], row["user_record_type"], row["queue_id"], row["record"]),
            row["large_id"],
            _moment_of_body(row),
        )
        for row in rows
    )


def _moment_of_body(row: dict[str, Any]) -> Moment | None:
    """Return when the message of a reference is due or expires, as its export tells."""
    if row["due_ms"] is not None:
        return Moment(MomentKind.DUE, row["due_ms"])
    expires_ms = row["expires_ms"]
    return None if expires_ms is None else Moment(MomentKind.EXPIRES, expires_ms)


def _load_bindings(load: BulkLoad, rows: list[dict[str, Any]]) -> int:
    return load.bindings(
        Row(
            row["seq"],
            row["id"],
            row["user_record_type"],
            row["seq"] if row["user_record_type"] == UserRecordType.QUEUE_BINDING else None,
            row["record"],
        )
        for row in rows
    )


def _load_history(load: BulkLoad, rows: list[dict[str, Any]]) -> int:
    return load.history([HistoryRow(**row) for row in rows])


def _load_pieces(load: BulkLoad, rows: list[dict[str, Any]]) -> int:
    return load.pieces([Piece(*(row[name] for name in backup.BODIES)) for row in rows])


def _compare(
    spark: SparkSession, contents: Contents, rows: _RestoreRows, target: Endpoint
) -> list[RestoredTable]:
    """Compare each table of the store with the imported rows; raises ImportFailed."""
    store = StoreInputs(spark, target.reference)
    expected = dict(contents.tables)
    if rows.left_out:
        expected["messages"] = backup.counted(rows.messages, backup.MESSAGES)
    if rows.history is not None and contents.damaged:
        expected["history"] = backup.counted(rows.history, backup.HISTORY)
    bindings = backup.without_counter(store.bindings())
    arrived: list[tuple[str, str, DataFrame, Sequence[str]]] = [
        ("MESSAGES", "messages", store.messages(backup.MESSAGES), backup.MESSAGES),
        ("LARGE_MESSAGES", "bodies", store.bodies(), backup.BODIES),
        ("BINDINGS", "bindings", bindings, backup.BINDINGS),
    ]
    if rows.history is not None:
        history = store.history(backup.HISTORY)
        arrived.append(("MESSAGES_HISTORY", "history", history, backup.HISTORY))
    brought = []
    for table, name, frame, columns in arrived:
        found = backup.counted(frame, columns)
        if expected[name] != found:
            raise ImportFailed(
                f"{table} differs: the export has {expected[name].rows} rows, {found.rows} arrived,"
                f" or they are others; {_AGAIN}"
            )
        brought.append(RestoredTable(table, found.rows, rows.left_out if name == "messages" else 0))
    return brought


class _ImportLock:
    """The live lock of the store, and the token of imported rows, which is one above the lock's
    until the import is complete.
    """

    def __init__(self, lock: Maintenance) -> None:
        self._lock = lock
        self.token = lock.lease.token + 1

    def finish(self) -> None:
        """Set the live lock to the journal's token: nodes may start; raises ImportFailed."""
        try:
            self._lock.raise_token(self.token)
        except LockLost as error:
            raise ImportFailed(
                f"the live lock was lost while the store was filled ({error}); {_AGAIN}"
            ) from error


@contextmanager
def _locked(
    database: Database, settings: DatabaseStoreSettings, above: int
) -> Iterator[_ImportLock]:
    """Hold the live lock of an empty store, with a token above ``above``.

    Raises StoreInUse, ImportRefused.
    """
    with DatabaseLocks(database, settings, "orthia-import") as locks:
        _refuse_what_is_not_empty(database, settings, locks)
        with maintenance(locks, store="the new store", above=above, free=tuple(Lock)) as lock:
            held = _ImportLock(lock)
            # While the lock is held nobody else can fill it.
            _refuse_rows(database, settings)
            _raise_backup_token(database, settings, above)
            _advance_fence(database, settings, lock.lease, held.token)
            yield held


def _refuse_what_is_not_empty(
    database: Database, settings: DatabaseStoreSettings, locks: DatabaseLocks
) -> None:
    _refuse_rows(database, settings)
    status = locks.read_status()
    refuse_held(status, store="the new store", free=tuple(Lock))
    if status.node_id is not None:
        raise ImportRefused(
            "the new store is not empty: a node has started on it; give an empty database"
        )


def _refuse_rows(database: Database, settings: DatabaseStoreSettings) -> None:
    declared = {
        "MESSAGES": messages_table(MetaData(), settings.message_table_name, database.dialect),
        "BINDINGS": bindings_table(MetaData(), settings.bindings_table_name, database.dialect),
        "MESSAGES_HISTORY": history_table(
            MetaData(), settings.message_history_table_name, database.dialect
        ),
        "LARGE_MESSAGES": large_messages_table(
            MetaData(), settings.large_message_table_name, database.dialect
        ),
    }
    with translate_errors("look whether the store is empty"), database.engine.connect() as one:
        full = [
            name
            for name, table in declared.items()
            if one.execute(select(func.count()).select_from(table)).scalar_one()
        ]
    if full:
        raise ImportRefused(
            f"the new store is not empty ({', '.join(full)}): give an empty database"
        )


def _raise_backup_token(database: Database, settings: DatabaseStoreSettings, above: int) -> None:
    table = node_manager_store(MetaData(), settings.node_manager_store_table_name, database.dialect)
    backup = (table.c.id == int(Lock.BACKUP)) & (table.c.holder_token < above)
    with write_transaction(database.engine, "raise the backup lock's token") as connection:
        connection.execute(update(table).where(backup).values(holder_token=above))


def _advance_fence(
    database: Database, settings: DatabaseStoreSettings, lease: Lease, token: int
) -> None:
    """Advance the fence to ``token``, which is above the live lock's."""
    table = node_manager_store(MetaData(), settings.node_manager_store_table_name, database.dialect)
    held = select(table.c.id).where(
        table.c.id == int(Lock.LIVE),
        table.c.holder_id == lease.holder_id,
        table.c.holder_token == lease.token,
    )
    with write_transaction(database.engine, "advance the fence") as connection:
        if connection.execute(held).first() is None:
            raise ImportRefused("the live lock of the new store was lost: is a node starting?")
        fence = update(table).where(table.c.id == 4).values(holder_token=token)
        connection.execute(fence)
