"""Reads MESSAGE_TIMES: messages that are due or expired, and counts of failed deliveries."""

from collections.abc import Collection, Sequence
from datetime import datetime

from sqlalchemy import Connection, MetaData, Select, Table, literal_column, select

from orthia.config.store_settings import DatabaseStoreSettings
from orthia.database import Database, db_now
from orthia.journal.errors import CorruptRecord
from orthia.journal.model.moments import MomentKind, MomentPlace
from orthia.journal.model.windows import Reached, StoredMessage, TimedMessage, fitting
from orthia.journal.sql.tables import times_index_name, times_table
from orthia.journal.sql.walk import LAST_SEQ, QueueWalk, read_messages

_SEQS_IN_STATEMENT = 500


class MomentQueries:
    """The SQL of the table; moments are found by its index on kind, moment and seq."""

    def __init__(self, database: Database, s: DatabaseStoreSettings, walk: QueueWalk) -> None:
        self._times: Table = times_table(MetaData(), s.message_times_table_name, database.dialect)
        self._index = times_index_name(s.message_times_table_name, database.dialect)
        self._walk = walk
        self._had_rows: bool | None = None

    def reached(
        self,
        connection: Connection,
        kind: MomentKind,
        after: MomentPlace,
        up_to_ms: int,
        limit: int,
        max_bytes: int,
    ) -> Reached:
        """Read messages that are due or expired."""
        now: datetime = connection.execute(select(db_now())).scalar_one()
        now_ms = int(now.timestamp() * 1000)
        up_to = MomentPlace(min(up_to_ms, now_ms), LAST_SEQ)
        ask = self._stretch(kind, after, up_to).limit(limit + 1)
        found = [(row.seq, row.at_ms, row.queue_id) for row in connection.execute(ask)]
        taken, reached = self._read(connection, found, limit, max_bytes, now_ms)
        if taken < len(found):
            last_seq, last_ms, _ = found[taken - 1]
            return reached._replace(next_after=MomentPlace(last_ms, last_seq))
        end = MomentPlace(LAST_SEQ, LAST_SEQ)
        following = connection.execute(self._stretch(kind, up_to, end).limit(1)).first()
        return reached._replace(next_at_ms=None if following is None else following.at_ms)

    def timed(
        self,
        connection: Connection,
        kind: MomentKind,
        after: MomentPlace,
        queue_ids: Collection[int] | None,
        limit: int,
        max_bytes: int,
    ) -> Reached:
        """Read messages that have a moment; it may be far ahead."""
        now: datetime = connection.execute(select(db_now())).scalar_one()
        end = MomentPlace(LAST_SEQ, LAST_SEQ)
        ask = self._stretch(kind, after, end).limit(limit + 1)
        found = [(row.seq, row.at_ms, row.queue_id) for row in connection.execute(ask)]
        ours = [one for one in found[:limit] if queue_ids is None or one[2] in queue_ids]
        now_ms = int(now.timestamp() * 1000)
        taken, timed = self._read(connection, ours, limit, max_bytes, now_ms)
        if taken < len(ours):
            last_seq, last_ms, _ = ours[taken - 1]
        elif len(found) > limit:
            last_seq, last_ms, _ = found[limit - 1]
        else:
            return timed
        return timed._replace(next_after=MomentPlace(last_ms, last_seq))

    def _read(
        self,
        connection: Connection,
        found: Sequence[tuple[int, int, int]],
        limit: int,
        max_bytes: int,
        now_ms: int,
    ) -> tuple[int, Reached]:
        """Return how many of these fit, and their messages."""
        messages = self._sizes(connection, [seq for seq, *_ in found[:limit]])
        sizes = [messages.get(seq, 0) for seq, *_ in found]
        taken = fitting(sizes, limit, max_bytes)
        read, corrupt = self._messages(connection, [seq for seq, *_ in found[:taken]])
        damaged = {error.seq for error in corrupt}
        reached = Reached([], corrupt, [], None, None, now_ms)
        for seq, at_ms, queue_id in found[:taken]:
            message = read.get(seq)
            if message is not None:
                reached.messages.append(TimedMessage(queue_id, at_ms, message))
            elif seq not in damaged:
                reached.gone.append(seq)
        return taken, reached

    def _stretch(
        self, kind: MomentKind, after: MomentPlace, up_to: MomentPlace
    ) -> Select[tuple[int, int, int]]:
        columns = self._times.c
        statement = select(columns.seq, columns.at_ms, columns.queue_id)
        # A literal: a plan for any kind could scan the table.
        is_kind = columns.kind == literal_column(str(int(kind)))
        behind = (columns.at_ms > after.at_ms) | (
            (columns.at_ms == after.at_ms) & (columns.seq > after.seq)
        )
        statement = statement.where(
            is_kind, columns.at_ms >= after.at_ms, columns.at_ms <= up_to.at_ms, behind
        )
        statement = statement.with_hint(
            self._times, f"FORCE INDEX ({self._index})", "mysql"
        ).with_hint(self._times, f"INDEXED BY {self._index}", "sqlite")
        return statement.order_by(columns.kind, columns.at_ms, columns.seq)

    def _sizes(self, connection: Connection, seqs: Sequence[int]) -> dict[int, int]:
        columns = self._walk.messages.c
        sizes: dict[int, int] = {}
        for some in _lists(seqs):
            ask = select(columns.seq, self._walk.payload_size()).where(columns.seq.in_(some))
            ask = ask.order_by(columns.seq)
            sizes.update((seq, size) for seq, size in connection.execute(ask))
        return sizes

    def _messages(
        self, connection: Connection, seqs: Sequence[int]
    ) -> tuple[dict[int, StoredMessage], list[CorruptRecord]]:
        found: dict[int, StoredMessage] = {}
        corrupt: list[CorruptRecord] = []
        for some in _lists(seqs):
            seq = self._walk.messages.c.seq
            ask = self._walk.whole().where(seq.in_(some)).order_by(seq)
            messages, errors = read_messages(connection, ask)
            found.update((message.seq, message) for message in messages)
            corrupt += errors
        return found, corrupt

    def with_attempts(
        self, connection: Connection, messages: list[StoredMessage]
    ) -> list[StoredMessage]:
        """Return messages with their stored counts of failed deliveries.

        This node has its own failed deliveries in memory: only rows from before it began are
        looked up.
        """
        if self._had_rows is None:
            self._had_rows = (
                connection.execute(select(self._times.c.seq).limit(1)).first() is not None
            )
        if not self._had_rows or not messages:
            return messages
        columns = self._times.c
        known: dict[int, tuple[int, int]] = {}
        for some in _lists([message.seq for message in messages]):
            ask = select(columns.seq, columns.attempts, columns.retry_ms).order_by(columns.seq)
            for seq, attempts, retry_ms in connection.execute(
                ask.where(columns.seq.in_(some), columns.attempts > 0)
            ):
                known[seq] = (attempts, retry_ms)
        return [
            one
            if one.seq not in known
            else one._replace(
                attempts=known[one.seq][0],
                retry_ms=known[one.seq][1],
                location=one.location._replace(is_timed=True),
            )
            for one in messages
        ]


def _lists(seqs: Sequence[int]) -> list[Sequence[int]]:
    return [
        seqs[start : start + _SEQS_IN_STATEMENT]
        for start in range(0, len(seqs), _SEQS_IN_STATEMENT)
    ]
