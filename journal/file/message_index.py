"""Where each message stands: by seq and by queue, in columns of numbers. No IO.

A message costs about fifty bytes here, whatever its size: a row of numbers in the segment of its
file, and its seq in its queue. Seqs grow from file to file, so that a seq is found by two binary
searches, and a stretch of a queue by one.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from enum import IntEnum
from itertools import groupby
from operator import itemgetter
from typing import Final, NamedTuple

from typing_extensions import override

from orthia.journal.file.format import RECORD_BYTES
from orthia.journal.file.index import Added, Position, RecordIndex
from orthia.journal.file.moment_index import MomentIndex
from orthia.journal.model.changes import LargeReference
from orthia.journal.model.moments import Moment, MomentKind, MomentPlace
from orthia.journal.model.records import UserRecordType
from orthia.journal.model.unit import AppendedMessage

_MESSAGE: Final = int(UserRecordType.ADD_MESSAGE)
_TRIM_AT = 1_024
"""Dead seqs a queue may hold before they are swept away."""


class _Kind(IntEnum):
    """What a record is now."""

    QUEUED = 0
    """A message of a queue, or a reference to one."""
    BODY = 1
    """Of references, or the attempts of a message: it is in no queue."""
    DEAD = 2


_QUEUED: Final = int(_Kind.QUEUED)
_BODY: Final = int(_Kind.BODY)
_DEAD: Final = int(_Kind.DEAD)
"""As numbers: they are asked of every record."""


class _Segment:
    """The records of one file, dead ones included, in columns."""

    __slots__ = ("bodies", "file_id", "kinds", "offsets", "queues", "seqs", "sizes")

    def __init__(self, file_id: int) -> None:
        self.file_id = file_id
        self.seqs = array("q")
        self.kinds = bytearray()
        """A ``_Kind`` each."""
        self.queues = array("q")
        """The ids of queues; 0 for what is in none."""
        self.offsets = array("Q")
        self.sizes = array("Q")
        self.bodies = array("q")
        """The seq of a reference's body; 0 for what is no reference."""

    def append(self, seq: int, kind: int, queue_id: int, offset: int, size: int, body: int) -> None:
        self.seqs.append(seq)
        self.kinds.append(kind)
        self.queues.append(queue_id)
        self.offsets.append(offset)
        self.sizes.append(size)
        self.bodies.append(body)


class _QueueSeqs:
    """The seqs of one queue, in order; some may be dead already."""

    __slots__ = ("dead", "head", "seqs")

    def __init__(self) -> None:
        self.seqs = array("q")
        self.head = 0
        """Everything before it is dead."""
        self.dead = 0
        """How many from ``head`` on are dead."""

    @property
    def live(self) -> int:
        return len(self.seqs) - self.head - self.dead


class QueuedMessage(NamedTuple):
    """A message of a queue, and where to read it."""

    seq: int
    size: int
    """Of the message's payload: for a reference, of its body's."""
    file_id: int
    offset: int
    body: int
    """The seq of the body; 0 for a message of one queue."""


class Attempts(NamedTuple):
    """How often delivery of a message failed."""

    record_seq: int
    """Of the record that says so."""
    attempts: int
    retry_ms: int
    """When it may be delivered again; 0 at once."""


class MessageIndex(RecordIndex):
    """Messages, bodies and references, by seq and by queue."""

    def __init__(self) -> None:
        super().__init__()
        self._segments: list[_Segment] = []
        self._starts: list[int] = []
        self._queues: dict[int, _QueueSeqs] = {}
        self._references: Counter[int] = Counter()
        self._large: dict[int, int] = {}
        """The seqs of large messages, and the ids of their bodies."""
        self._moments = MomentIndex(lambda seq: self._place(seq) is not None)
        self._shared_moments: dict[int, Moment] = {}
        """By the seq of the body that references share."""
        self._attempts: dict[int, Attempts] = {}
        """By the seq of the message whose delivery failed."""
        self._counts: dict[int, int] = {}
        """The seqs of messages, by those of the records of their attempts."""
        self.highest_seq = 0

    @override
    def add(self, file_id: int, added: Added) -> None:
        seq, row_id, user_record_type, queue_id, offset, size, large_id, moment, attempts = added
        if seq <= self.highest_seq:
            raise ValueError(f"seq {seq} comes after seq {self.highest_seq}")
        self.highest_seq = seq
        segments = self._segments
        if segments and segments[-1].file_id == file_id:
            segment = segments[-1]
        else:
            segment = _Segment(file_id)
            segments.append(segment)
            self._starts.append(seq)
        body = 0
        if user_record_type == UserRecordType.ADD_REF:
            body = row_id
            self._references[body] += 1
        elif large_id is not None:
            self._large[seq] = large_id
        if queue_id is None:
            segment.append(seq, _BODY, 0, offset, size, body)
        else:
            segment.append(seq, _QUEUED, queue_id, offset, size, body)
        self._note_added(file_id, size)
        if queue_id is not None:
            queue = self._queues.get(queue_id)
            if queue is None:
                queue = self._queues[queue_id] = _QueueSeqs()
            queue.seqs.append(seq)
        if attempts is not None:
            self._count(file_id, row_id, Attempts(seq, *attempts))
        if body and self._shared_moments:
            moment = self._shared_moments.get(body)
        elif moment is not None and queue_id is None:
            self._shared_moments[seq] = moment
        if moment is not None and queue_id is not None:
            self._moments.add(moment, seq)

    def _count(self, file_id: int, message_seq: int, attempts: Attempts) -> None:
        """Record failed deliveries, replacing those known before."""
        self._counts[attempts.record_seq] = message_seq
        before = self._attempts.get(message_seq)
        if self._place(message_seq) is None:
            self._kill(attempts.record_seq, file_id)
            return
        self._attempts[message_seq] = attempts
        if before is not None:
            self._kill(before.record_seq, file_id)

    def attempts_of(self, seq: int) -> tuple[int, int]:
        """Return how often delivery of a message failed, and when it may be retried."""
        found = self._attempts.get(seq)
        return (0, 0) if found is None else (found.attempts, found.retry_ms)

    def add_messages(
        self,
        file_id: int,
        messages: Sequence[AppendedMessage],
        sizes: Sequence[int],
        offsets: Sequence[int],
    ) -> None:
        """Add messages of one queue each, in the order of their seqs: the hot path."""
        first = messages[0]
        self.add(file_id, Added(first[0], first[0], _MESSAGE, first[1], offsets[0], sizes[0]))
        if len(messages) == 1:
            return
        seqs, queue_ids, *_ = zip(*messages[1:], strict=True)
        segment = self._segments[-1]
        segment.seqs.extend(seqs)
        segment.kinds.extend(bytes(len(seqs)))  # each is _QUEUED, which is 0
        segment.queues.extend(queue_ids)
        segment.offsets.extend(offsets[1:])
        segment.sizes.extend(sizes[1:])
        segment.bodies.frombytes(bytes(8 * len(seqs)))
        self.highest_seq = seqs[-1]
        self._live[file_id] += len(seqs)
        self._live_bytes[file_id] += RECORD_BYTES * len(seqs) + sum(sizes) - sizes[0]
        if queue_ids.count(first[1]) == len(queue_ids):
            self._queues[first[1]].seqs.extend(seqs)
            return
        for queue_id, of_queue in groupby(zip(queue_ids, seqs, strict=True), key=itemgetter(0)):
            queue = self._queues.get(queue_id)
            if queue is None:
                queue = self._queues[queue_id] = _QueueSeqs()
            queue.seqs.extend(map(itemgetter(1), of_queue))

    @override
    def delete(self, file_id: int, seqs: Iterable[int]) -> None:
        """A body goes with its last reference."""
        for seq in seqs:
            body = self._kill(seq, file_id)
            if body:
                self._references[body] -= 1
                if self._references[body] <= 0:
                    del self._references[body]
                    self._kill(body, file_id)

    def _kill(self, seq: int, deleted_in: int) -> int:
        """Mark a record dead; return the seq of its body, 0 if it has none."""
        place = self._place(seq)
        if place is None:
            return 0
        segment, at = place
        kind, segment.kinds[at] = segment.kinds[at], _DEAD
        self._note_dead(segment.file_id, seq, segment.sizes[at], deleted_in=deleted_in)
        if kind == _QUEUED:
            self._leave(segment.queues[at], seq)
        if self._large:
            self._large.pop(seq, None)
        if self._shared_moments:
            self._shared_moments.pop(seq, None)
        if self._counts:
            self._counts.pop(seq, None)
            attempts = self._attempts.pop(seq, None)
            if attempts is not None:
                self._kill(attempts.record_seq, deleted_in)
        return segment.bodies[at]

    def _leave(self, queue_id: int, seq: int) -> None:
        queue = self._queues[queue_id]
        queue.dead += 1
        seqs = queue.seqs
        if seqs[queue.head] == seq:
            while queue.head < len(seqs) and queue.dead and self._place(seqs[queue.head]) is None:
                queue.head += 1
                queue.dead -= 1
        if not queue.live:
            del self._queues[queue_id]
        elif queue.head + queue.dead > max(_TRIM_AT, len(seqs) // 2):
            live = (one for one in seqs[queue.head :] if self._place(one) is not None)
            queue.seqs = array("q", live)
            queue.head = queue.dead = 0

    def _place(self, seq: int) -> tuple[_Segment, int] | None:
        number = bisect_right(self._starts, seq) - 1
        if number < 0:
            return None
        segment = self._segments[number]
        at = bisect_left(segment.seqs, seq)
        if at == len(segment.seqs) or segment.seqs[at] != seq or segment.kinds[at] == _DEAD:
            return None
        return segment, at

    def settle(self) -> None:
        """Drop bodies that no reference needs: their last one was deleted, or never durable."""
        unneeded = [
            (segment.file_id, seq)
            for segment in self._segments
            for seq, kind in zip(segment.seqs, segment.kinds, strict=True)
            if kind == _BODY and seq not in self._references and seq not in self._counts
        ]
        for file_id, seq in unneeded:
            self._kill(seq, file_id)

    @override
    def find(self, seq: int) -> Position | None:
        place = self._place(seq)
        if place is None:
            return None
        segment, at = place
        return Position(seq, segment.file_id, segment.offsets[at], segment.sizes[at])

    def queue_of(self, seq: int) -> int | None:
        """Return the queue of a live message or reference; None if there is none."""
        place = self._place(seq)
        if place is None:
            return None
        segment, at = place
        return segment.queues[at] if segment.kinds[at] == _QUEUED else None

    def rows(self) -> Iterator[tuple[Position, int | None]]:
        """Yield every live message, body and reference with its queue id, None for a body."""
        for position, queue_id in self._all():
            if position.seq not in self._counts:
                yield position, queue_id

    def _all(self) -> Iterator[tuple[Position, int | None]]:
        for segment in self._segments:
            for at, (seq, kind) in enumerate(zip(segment.seqs, segment.kinds, strict=True)):
                if kind != _DEAD:
                    position = Position(
                        seq, segment.file_id, segment.offsets[at], segment.sizes[at]
                    )
                    yield position, segment.queues[at] if kind == _QUEUED else None

    def large_references(self) -> Iterator[LargeReference]:
        """Yield every queue's message whose body is a large one."""
        if not self._large:
            return
        for segment in self._segments:
            columns = zip(segment.seqs, segment.kinds, segment.bodies, strict=True)
            for seq, kind, body in columns:
                large_id = self._large.get(body or seq)
                if large_id is not None and kind == _QUEUED:
                    yield LargeReference(large_id, seq)

    @override
    def positions(self, file_ids: Sequence[int]) -> list[Position]:
        wanted = set(file_ids)
        return [position for position, _ in self._all() if position.file_id in wanted]

    def stretch(
        self, queue_id: int, after_seq: int, up_to_seq: int, limit: int
    ) -> list[QueuedMessage]:
        """Return a queue's first ``limit`` messages with ``after_seq < seq <= up_to_seq``."""
        found: list[QueuedMessage] = []
        queue = self._queues.get(queue_id)
        if queue is None:
            return found
        seqs = queue.seqs
        at = max(queue.head, bisect_right(seqs, after_seq))
        while at < len(seqs) and len(found) < limit and seqs[at] <= up_to_seq:
            place = self._place(seqs[at])
            if place is not None:
                found.append(self._queued(*place))
            at += 1
        return found

    def _queued(self, segment: _Segment, at: int) -> QueuedMessage:
        body, size = segment.bodies[at], segment.sizes[at]
        if body:
            whole = self.find(body)
            size = size if whole is None else whole.size
        return QueuedMessage(segment.seqs[at], size, segment.file_id, segment.offsets[at], body)

    def moments(
        self, kind: MomentKind, after: MomentPlace
    ) -> Iterator[tuple[MomentPlace, int, QueuedMessage]]:
        """Yield messages that have a moment, in the order of these, each with its queue."""
        for found in self._moments.behind(kind, after):
            place = self._place(found.seq)
            if place is not None:
                segment, at = place
                yield found, segment.queues[at], self._queued(segment, at)

    def queues_from(self, queue_id: int) -> list[int]:
        """Return the ids of the queues that have messages, from this one on, in order."""
        return sorted(one for one in self._queues if one >= queue_id)

    def large_among(self, messages: Iterable[QueuedMessage]) -> Iterator[Position]:
        """Yield where the records are, for a reference its body's, of those that are large."""
        for message in messages if self._large else ():
            seq = message.body or message.seq
            position = self.find(seq) if seq in self._large else None
            if position is not None:
                yield position

    def _move(self, moves: Sequence[tuple[int, Sequence[Position]]], old: Sequence[int]) -> None:
        gone = set(old)
        moved: list[_Segment] = []
        for file_id, positions in moves:
            segment = _Segment(file_id)
            for position in positions:
                place = self._place(position.seq)
                # A record deleted meanwhile stays in the new file as a dead one.
                kind, queue_id, body = _DEAD, 0, 0
                if place is not None:
                    before, at = place
                    kind, queue_id, body = before.kinds[at], before.queues[at], before.bodies[at]
                    self._note_added(file_id, position.size)
                segment.append(position.seq, kind, queue_id, position.offset, position.size, body)
            if positions:
                moved.append(segment)
        kept = [segment for segment in self._segments if segment.file_id not in gone]
        self._segments = sorted([*moved, *kept], key=lambda segment: segment.seqs[0])
        self._starts = [segment.seqs[0] for segment in self._segments]

    @override
    def forget_file(self, file_id: int) -> None:
        super().forget_file(file_id)
        self._segments = [one for one in self._segments if one.file_id != file_id]
        self._starts = [segment.seqs[0] for segment in self._segments]
