"""Contents of the tables, for people and tools: read-only, without a lease, from any machine.

Exact at the moment each chunk is read; on a busy broker the chunks are of slightly different
moments.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime

from sqlalchemy import Connection, MetaData, Table, func, select

from orthia.config.store_settings import DatabaseStoreSettings
from orthia.database import Database, translate_errors
from orthia.journal.model.codec import (
    PreparedTransaction,
    QueueBinding,
    decode_prepared_transaction,
    decode_queue_binding,
)
from orthia.journal.model.records import UserRecordType
from orthia.journal.sql.tables import bindings_table, messages_table, outbox_table
from orthia.journal.sql.walk import LAST_SEQ, QueueWalk

CHUNK_ROWS = 50_000
"""Rows that one statement reads, so that it stays far below the query time-out."""

MOST_COUNTED = 10_000


@dataclass(frozen=True)
class QueueTotals:
    """The totals of one queue."""

    queue_id: int
    binding: QueueBinding | None
    """None for messages of a queue that is not in BINDINGS."""
    messages: int
    payload_bytes: int
    """Size of the messages; one of several queues counts in each of them."""
    oldest_written_at: datetime | None
    """When the oldest message was stored, by the database's clock; None if there is none."""


def list_queues(database: Database, s: DatabaseStoreSettings) -> list[QueueTotals]:
    """Return every queue that is bound or has messages, by name; raises StoreError, CorruptRecord.

    Takes a walk over the messages' rows, chunk by chunk.
    """
    metadata = MetaData()
    messages = messages_table(metadata, s.message_table_name, database.dialect)
    bindings = bindings_table(metadata, s.bindings_table_name, database.dialect)
    walk = QueueWalk(messages, database.dialect)
    with translate_errors("list the queues"), database.engine.connect() as connection:
        walk.prepare(connection)
        bound = {queue.queue_id: queue for queue in _bound_queues(connection, bindings)}
        in_use = set(_queue_ids_in_use(connection, messages)) - _id_caches(connection, bindings)
        queue_ids = bound.keys() | in_use
        totals = [
            _totals(connection, walk, queue_id, bound.get(queue_id)) for queue_id in queue_ids
        ]
    whole = _with_priorities(totals)
    return sorted(whole, key=lambda t: ("" if t.binding is None else t.binding.name, t.queue_id))


def list_transactions(database: Database, s: DatabaseStoreSettings) -> list[PreparedTransaction]:
    """Return the transactions in doubt, the oldest first; raises StoreError, CorruptRecord."""
    bindings = bindings_table(MetaData(), s.bindings_table_name, database.dialect)
    prepared = bindings.c.user_record_type == int(UserRecordType.PREPARED_TRANSACTION)
    rows = select(bindings.c.seq, bindings.c.record).where(prepared).order_by(bindings.c.seq)
    with translate_errors("list the transactions"), database.engine.connect() as connection:
        return [
            decode_prepared_transaction(bytes(record), seq)
            for seq, record in connection.execute(rows)
        ]


def outbox_rows(database: Database, s: DatabaseStoreSettings) -> tuple[int, datetime | None]:
    """Count rows of the outbox, ``MOST_COUNTED`` at most; raises StoreError.

    Returns also when the first was inserted, None if there is none, or if it does not say.
    """
    outbox = outbox_table(MetaData(), s.outbox_table_name, database.dialect)
    some = select(outbox.c.id).limit(MOST_COUNTED).subquery()
    first = select(outbox.c.created_at).order_by(outbox.c.id).limit(1)
    with translate_errors("count the outbox"), database.engine.connect() as connection:
        count = connection.execute(select(func.count()).select_from(some)).scalar_one()
        try:
            return count, connection.execute(first).scalar()
        except (ValueError, OverflowError):  # an application has set what is no time
            return count, None


def _bound_queues(connection: Connection, bindings: Table) -> Iterator[QueueBinding]:
    is_queue = bindings.c.user_record_type == int(UserRecordType.QUEUE_BINDING)
    for seq, record in connection.execute(
        select(bindings.c.seq, bindings.c.record).where(is_queue)
    ):
        yield decode_queue_binding(bytes(record), seq)


def _id_caches(connection: Connection, bindings: Table) -> set[int]:
    """Return the queue ids whose rows of MESSAGES are duplicate ids, not messages."""
    is_cache = bindings.c.user_record_type == int(UserRecordType.ID_CACHE)
    return set(connection.execute(select(bindings.c.seq).where(is_cache)).scalars())


def _queue_ids_in_use(connection: Connection, messages: Table) -> Iterator[int]:
    """Yield the present queue ids, with one step in the index for each."""
    following = select(func.min(messages.c.queue_id))
    queue_id = connection.execute(following).scalar_one()
    while queue_id is not None:
        yield queue_id
        step = following.where(messages.c.queue_id > queue_id)
        queue_id = connection.execute(step).scalar_one()


def _totals(
    connection: Connection, walk: QueueWalk, queue_id: int, binding: QueueBinding | None
) -> QueueTotals:
    count = size = after = 0
    oldest: datetime | None = None
    while True:
        rows, row_bytes, first, last = _chunk(connection, walk, queue_id, after)
        count += rows
        size += row_bytes
        oldest = oldest or first
        if rows < CHUNK_ROWS:
            return QueueTotals(queue_id, binding, count, size, oldest)
        after = last


def _with_priorities(totals: list[QueueTotals]) -> list[QueueTotals]:
    """Return the totals of each queue, with those of its priority levels added."""
    found: list[QueueTotals] = []
    parts: list[tuple[str, QueueTotals]] = []
    for one in totals:
        if one.binding is not None and one.binding.priority is not None:
            parts.append((one.binding.name, one))
        else:
            found.append(one)
    places = {one.binding.name: at for at, one in enumerate(found) if one.binding is not None}
    for name, part in parts:
        if name not in places:
            found.append(part)
            continue
        queue = found[places[name]]
        oldest = [t for t in (queue.oldest_written_at, part.oldest_written_at) if t is not None]
        found[places[name]] = replace(
            queue,
            messages=queue.messages + part.messages,
            payload_bytes=queue.payload_bytes + part.payload_bytes,
            oldest_written_at=min(oldest, default=None),
        )
    return found


def _chunk(
    connection: Connection, walk: QueueWalk, queue_id: int, after: int
) -> tuple[int, int, datetime | None, int]:
    messages = walk.messages.c
    rows_of_chunk = select(messages.seq, messages.written_at, walk.payload_size().label("size"))
    chunk = walk.stretch(rows_of_chunk, queue_id, after, LAST_SEQ).limit(CHUNK_ROWS).subquery()
    columns = chunk.c
    totals = select(
        func.count(), func.sum(columns.size), func.min(columns.written_at), func.max(columns.seq)
    )
    rows, row_bytes, first, last = connection.execute(totals).one()
    return rows, int(row_bytes or 0), first, last or after
