"""The SQL of windows and counts."""

from collections.abc import Collection, Iterator, Sequence

from sqlalchemy import Connection, MetaData, Select, case, func, select
from typing_extensions import override

from orthia.config.store_settings import DatabaseStoreSettings
from orthia.database import Database, translate_errors
from orthia.journal.engine.abc import Windows
from orthia.journal.model.message import large_body_size
from orthia.journal.model.moments import MomentKind, MomentPlace
from orthia.journal.model.windows import (
    QueueCounts,
    QueuedMessage,
    QueuePlace,
    Reached,
    Window,
    fitting,
)
from orthia.journal.sql.moments import MomentQueries
from orthia.journal.sql.tables import acks_table, messages_table
from orthia.journal.sql.walk import WALK_SETTINGS, QueueWalk, read_messages

_SMALL_BYTES = 512
"""The size of a small message. A window of smaller ones has fewer of them than would fit."""

_SEQS_IN_STATEMENT = 500


class WindowQueries(Windows):
    """The SQL of windows and counts; every statement walks the index on (queue_id, seq)."""

    def __init__(self, database: Database, s: DatabaseStoreSettings) -> None:
        metadata = MetaData()
        self._engine = database.reading_engine(
            "reader", query_timeout_ms=s.jdbc_network_timeout, postgresql_settings=WALK_SETTINGS
        )
        self._rows = messages_table(metadata, s.message_table_name, database.dialect)
        self._acks = acks_table(metadata, s.acks_table_name, database.dialect)
        self._walk = QueueWalk(self._rows, database.dialect)
        self._moments = MomentQueries(database, s, self._walk)

    def sizes(self, queue_id: int, after_seq: int, up_to_seq: int, limit: int) -> Select[int, int]:
        """Select seq and payload size of a range, without reading payloads."""
        statement = select(self._rows.c.seq, self._walk.payload_size())
        return self._walk.stretch(statement, queue_id, after_seq, up_to_seq).limit(limit)

    def window(
        self, queue_id: int, after_seq: int, up_to_seq: int, max_messages: int, max_bytes: int
    ) -> Window:
        """Read a window; raises StoreError."""
        with translate_errors("read a queue's window"), self._engine.connect() as connection:
            # A database reads each row for its size: no more rows than a window of so few bytes is
            # likely to take. One row more than requested shows whether any is left.
            most = min(max_messages, max(1, max_bytes // _SMALL_BYTES))
            # Nor more than there can be, so that its limit ends a walk of PostgreSQL's (see below).
            looked_at = min(most + 1, max(1, up_to_seq - after_seq))
            ask = self.sizes(queue_id, after_seq, up_to_seq, looked_at)
            sizes = [(seq, size) for seq, size in connection.execute(ask)]
            if not sizes:
                return Window([], [], max(after_seq, up_to_seq), exhausted=True)
            taken = fitting([size for _, size in sizes], most, max_bytes)
            last_seq = sizes[taken - 1][0]
            # With a limit: PostgreSQL does not end a walk where a comparison of rows ends, and
            # would go on through all of the queue.
            ask_whole = self._walk.stretch(self._walk.whole(), queue_id, after_seq, last_seq)
            read, corrupt = read_messages(connection, ask_whole.limit(taken))
            messages = self._moments.with_attempts(connection, read)
        exhausted = taken == len(sizes)
        next_after_seq = max(after_seq, up_to_seq) if exhausted else last_seq
        return Window(messages, corrupt, next_after_seq, exhausted)

    def count(self, after: QueuePlace, up_to_seq: int, limit: int) -> QueueCounts:
        """Count a range of all queues, at most ``limit`` messages; raises StoreError."""
        columns = self._rows.c
        size = self._walk.payload_size().label("size")
        large = self._walk.large_record().label("large")
        places = select(columns.queue_id, columns.seq, size, large)
        chunk = self._walk.beyond(places, *after).limit(limit).subquery()
        # Newer messages are read but not counted: excluding them before the limit could mean
        # walking through any number of messages for a few.
        old = func.count(case((chunk.c.seq <= up_to_seq, 1)))
        sizes = func.sum(case((chunk.c.seq <= up_to_seq, chunk.c.size), else_=0))
        large_ones = func.count(chunk.c.large)
        ask = select(chunk.c.queue_id, func.count(), old, func.max(chunk.c.seq), sizes, large_ones)
        ask = ask.group_by(chunk.c.queue_id)
        with translate_errors("count the queues"), self._engine.connect() as connection:
            found = sorted(map(tuple, connection.execute(ask)))
            payload_bytes = {queue_id: int(size) for queue_id, _, _, _, size, _ in found}
            if any(large for *_, large in found):
                # Where rows went meanwhile the chunk goes further than it did for the counts.
                end = found[-1][0], found[-1][3]
                ask_large = select(chunk.c.queue_id, chunk.c.seq, chunk.c.large).where(
                    chunk.c.large.is_not(None), chunk.c.seq <= up_to_seq
                )
                for queue_id, seq, record in connection.execute(ask_large):
                    if (queue_id, seq) <= end:
                        payload_bytes[queue_id] += large_body_size(bytes(record))
        exhausted = sum(seen for _, seen, *_ in found) < limit
        last = None if exhausted else QueuePlace(found[-1][0], found[-1][3])
        counted = {queue_id: counted for queue_id, _, counted, *_ in found}
        return QueueCounts(counted, last, payload_bytes)

    def reached(
        self, kind: MomentKind, after: MomentPlace, up_to_ms: int, limit: int, max_bytes: int
    ) -> Reached:
        """Read messages that are due or expired; raises StoreError."""
        with translate_errors("look whose moment has come"), self._engine.connect() as connection:
            return self._moments.reached(connection, kind, after, up_to_ms, limit, max_bytes)

    def timed(
        self,
        kind: MomentKind,
        after: MomentPlace,
        queue_ids: Collection[int] | None,
        limit: int,
        max_bytes: int,
    ) -> Reached:
        """Read messages that are to be delivered or expire later; raises StoreError."""
        with translate_errors("look what has a moment"), self._engine.connect() as connection:
            return self._moments.timed(connection, kind, after, queue_ids, limit, max_bytes)

    def queue_of(self, seq: int) -> int | None:
        """Find the queue of a message; raises StoreError."""
        ask = select(self._rows.c.queue_id).where(self._rows.c.seq == seq)
        with translate_errors("find a message"), self._engine.connect() as connection:
            found: int | None = connection.execute(ask).scalar()
            return found

    @override
    def acknowledged(self, seqs: Collection[int]) -> set[int]:
        ids = self._acks.c.message_id
        with translate_errors("look for acknowledgements"), self._engine.connect() as connection:
            found: set[int] = set()
            for some in _lists(seqs):
                ask = select(ids).where(ids.in_(some)).order_by(ids)
                found.update(connection.execute(ask).scalars())
        return found

    @override
    def stored(self, seqs: Collection[int]) -> list[QueuedMessage]:
        with translate_errors("read messages"), self._engine.connect() as connection:
            return [one for some in _lists(seqs) for one in self._stored(connection, some)]

    def _stored(self, connection: Connection, seqs: Sequence[int]) -> list[QueuedMessage]:
        columns = self._rows.c
        is_of_queue = columns.seq.in_(seqs) & columns.queue_id.is_not(None)
        of = select(columns.seq, columns.queue_id).where(is_of_queue).order_by(columns.seq)
        queues: dict[int, int] = dict(map(tuple, connection.execute(of)))
        whole = self._walk.whole().where(is_of_queue).order_by(columns.seq)
        read, _ = read_messages(connection, whole)
        return [QueuedMessage(queues[one.seq], one) for one in read if one.seq in queues]

    def close(self) -> None:
        """Close the connection."""
        self._engine.dispose()


def _lists(seqs: Collection[int]) -> Iterator[Sequence[int]]:
    """Yield them sorted, in as few lists as statements are to be."""
    ordered = sorted(seqs)
    for first in range(0, len(ordered), _SEQS_IN_STATEMENT):
        yield ordered[first : first + _SEQS_IN_STATEMENT]
