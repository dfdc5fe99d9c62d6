"""Scheduled messages, for people and tools: read-only, without a lease."""

from datetime import UTC, datetime
from typing import NamedTuple

from sqlalchemy import MetaData, select

from orthia.config.store_settings import DatabaseStoreSettings
from orthia.database import Database, translate_errors
from orthia.journal.model.codec import QueueBinding, decode_queue_binding
from orthia.journal.model.moments import MomentKind
from orthia.journal.model.records import UserRecordType
from orthia.journal.sql.tables import bindings_table, times_table


class ScheduledMessage(NamedTuple):
    """A scheduled message."""

    seq: int
    queue: QueueBinding | None
    """The queue in which it waits; None if that is not in BINDINGS."""
    due: datetime


def list_scheduled(
    database: Database, s: DatabaseStoreSettings, queue: str | None, limit: int
) -> list[ScheduledMessage]:
    """Return the first messages that are due, of one queue or of all, the earliest first.

    Raises StoreError, CorruptRecord.
    """
    metadata = MetaData()
    times = times_table(metadata, s.message_times_table_name, database.dialect)
    bindings = bindings_table(metadata, s.bindings_table_name, database.dialect)
    is_queue = bindings.c.user_record_type == int(UserRecordType.QUEUE_BINDING)
    columns = times.c
    rows = select(columns.seq, columns.queue_id, columns.at_ms)
    rows = rows.where(columns.kind == int(MomentKind.DUE))
    with translate_errors("list what is due"), database.engine.connect() as connection:
        bound = {
            seq: decode_queue_binding(bytes(record), seq)
            for seq, record in connection.execute(
                select(bindings.c.seq, bindings.c.record).where(is_queue)
            )
        }
        if queue is not None:
            ids = [one.queue_id for one in bound.values() if one.name == queue]
            rows = rows.where(columns.queue_id.in_(ids))
        ordered = rows.order_by(columns.kind, columns.at_ms, columns.seq).limit(limit)
        return [
            ScheduledMessage(
                row.seq, bound.get(row.queue_id), datetime.fromtimestamp(row.at_ms / 1000, UTC)
            )
            for row in connection.execute(ordered)
        ]
