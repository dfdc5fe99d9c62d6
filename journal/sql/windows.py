"""The SQL of windows and counts."""

from sqlalchemy import Connection, MetaData, Select, case, func, select

from orthia.config.store_settings import DatabaseStoreSettings
from orthia.database import Database, translate_errors
from orthia.journal.engine.abc import Windows
from orthia.journal.engine.reader import within
from orthia.journal.errors import CorruptRecord
from orthia.journal.message import large_body_size
from orthia.journal.moments import MomentKind, MomentPlace, Reached
from orthia.journal.sql.moments import MomentQueries
from orthia.journal.sql.tables import messages_table
from orthia.journal.sql.walk import QueueWalk
from orthia.journal.windows import QueueCounts, QueuePlace, Window, stored_message

_FEW_BYTES = 512
"""What a message takes that is small; one takes a hundred at least, beside its body."""


class WindowQueries(Windows):
    """The SQL of windows and counts; every statement walks the index on (queue_id, seq)."""

    def __init__(self, database: Database, s: DatabaseStoreSettings) -> None:
        metadata = MetaData()
        self._engine = database.engine
        self._rows = messages_table(metadata, s.message_table_name, database.dialect)
        self._walk = QueueWalk(self._rows, database.dialect)
        self._moments = MomentQueries(database, s, self._walk)

    def sizes(self, queue_id: int, after_seq: int, up_to_seq: int, limit: int) -> Select[int, int]:
        """Select seq and payload size of a stretch; no payload is read for it."""
        statement = select(self._rows.c.seq, self._walk.payload_size())
        return self._walk.stretch(statement, queue_id, after_seq, up_to_seq).limit(limit)

    def window(
        self, queue_id: int, after_seq: int, up_to_seq: int, max_messages: int, max_bytes: int
    ) -> Window:
        """Read a window; raises StoreError."""
        with translate_errors("read a queue's window"), self._engine.connect() as connection:
            self._walk.prepare(connection)
            # One more than wanted tells whether anything is left. A database looks into each row
            # for its size: no more than a window of so few bytes is likely to take.
            looked_at = min(max_messages, max(1, max_bytes // _FEW_BYTES)) + 1
            ask = self.sizes(queue_id, after_seq, up_to_seq, looked_at)
            sizes = [(seq, size) for seq, size in connection.execute(ask)]
            taken = within(sizes, looked_at - 1, max_bytes)
            exhausted = taken == len(sizes)
            next_after_seq = max(after_seq, up_to_seq) if exhausted else sizes[taken - 1][0]
            window = Window([], [], next_after_seq, exhausted)
            if sizes:
                last_seq = sizes[taken - 1][0]
                self._fill(connection, window, self._messages(queue_id, after_seq, last_seq, taken))
                known = self._moments.with_attempts(connection, window.messages)
                window = window._replace(messages=known)
        return window

    def count(self, after: QueuePlace, up_to_seq: int, limit: int) -> QueueCounts:
        """Count a stretch of all queues, at most ``limit`` messages; raises StoreError."""
        columns = self._rows.c
        size = self._walk.payload_size().label("size")
        large = self._walk.large_record().label("large")
        places = select(columns.queue_id, columns.seq, size, large)
        chunk = self._walk.beyond(places, *after).limit(limit).subquery()
        # What is newer is looked at and not counted: to leave it out before the limit could mean
        # to walk through any number of messages for a few.
        old = func.count(case((chunk.c.seq <= up_to_seq, 1)))
        sizes = func.sum(case((chunk.c.seq <= up_to_seq, chunk.c.size), else_=0))
        large_ones = func.count(chunk.c.large)
        ask = select(chunk.c.queue_id, func.count(), old, func.max(chunk.c.seq), sizes, large_ones)
        ask = ask.group_by(chunk.c.queue_id)
        with translate_errors("count the queues"), self._engine.connect() as connection:
            self._walk.prepare(connection)
            found = sorted(map(tuple, connection.execute(ask)))
            payload_bytes = {queue_id: int(size) for queue_id, _, _, _, size, _ in found}
            if any(large for *_, large in found):
                ask_large = select(chunk.c.queue_id, chunk.c.large).where(
                    chunk.c.large.is_not(None), chunk.c.seq <= up_to_seq
                )
                for queue_id, record in connection.execute(ask_large):
                    payload_bytes[queue_id] += large_body_size(bytes(record))
        exhausted = sum(seen for _, seen, *_ in found) < limit
        last = None if exhausted else QueuePlace(found[-1][0], found[-1][3])
        counted = {queue_id: counted for queue_id, _, counted, *_ in found}
        return QueueCounts(counted, last, payload_bytes)

    def reached(
        self, kind: MomentKind, after: MomentPlace, up_to_ms: int, limit: int, max_bytes: int
    ) -> Reached:
        """Read messages whose moment has come; raises StoreError."""
        with translate_errors("look whose moment has come"), self._engine.connect() as connection:
            return self._moments.reached(connection, kind, after, up_to_ms, limit, max_bytes)

    def _messages(
        self, queue_id: int, after_seq: int, last_seq: int, count: int
    ) -> Select[int, int, int, int, bytes, bytes]:
        """Select ``count`` messages, the last of which is ``last_seq``, with what they refer to.

        Without a limit PostgreSQL would walk on through all of the queue: it does not end a walk
        where a comparison of rows ends.
        """
        columns = self._rows.c
        statement = select(
            columns.seq,
            columns.id,
            columns.user_record_type,
            columns.epoch,
            columns.record,
            self._walk.of_body(lambda body: body.c.record),
        )
        return self._walk.stretch(statement, queue_id, after_seq, last_seq).limit(count)

    def _fill(
        self,
        connection: Connection,
        window: Window,
        ask: Select[int, int, int, int, bytes, bytes],
    ) -> None:
        for seq, row_id, kind, epoch, record, body in connection.execute(ask):
            try:
                payload = None if body is None else bytes(body)
                window.messages.append(
                    stored_message(seq, row_id, kind, epoch, bytes(record), payload)
                )
            except CorruptRecord as error:
                window.corrupt.append(error)
