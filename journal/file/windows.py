"""Windows and counts of queues: planned in the index, read from the files.

A planned record may be deleted or compacted, or its file reused, before it is read. So a record
that is not as planned is looked up again, and is corrupt only if the index still has it there.
"""

import os
import time
from collections.abc import Collection, Sequence
from contextlib import ExitStack
from itertools import islice

from orthia.journal.engine.abc import Windows
from orthia.journal.errors import CorruptRecord
from orthia.journal.file.disk import io_errors
from orthia.journal.file.format import RECORD_BYTES, Mark, Scanned, parse
from orthia.journal.file.index import Position
from orthia.journal.file.instance import JournalFiles
from orthia.journal.file.message_index import MessageIndex, QueuedMessage
from orthia.journal.model.message import large_body_size
from orthia.journal.model.moments import MomentKind, MomentPlace
from orthia.journal.model.windows import (
    QueueCounts,
    QueuePlace,
    Reached,
    StoredMessage,
    TimedMessage,
    Window,
    fitting,
    stored_message,
)

MAX_SEQ = 2**63 - 1
_REFERENCE_BYTES = 256
"""More than a reference's record and payload take."""
_ATTEMPTS = 5
"""How often a record is looked up anew; a compaction in between costs one."""


class FileWindows(Windows):
    """Reads windows; any thread but the loop's."""

    def __init__(self, files: JournalFiles, index: MessageIndex) -> None:
        self._files = files
        self._index = index

    def window(
        self, queue_id: int, after_seq: int, up_to_seq: int, max_messages: int, max_bytes: int
    ) -> Window:
        """Read a window; raises JournalIOError."""
        with ExitStack() as closing:
            reading = _Reading(self._files, self._index, closing)
            with self._files.lock:
                # One more than wanted tells whether anything is left.
                found = self._index.stretch(queue_id, after_seq, up_to_seq, max_messages + 1)
                sizes = [message.size for message in found]
                taken = fitting(sizes, max_messages, max_bytes)
                plan = [(message, self._index.find(message.body)) for message in found[:taken]]
                known = [self._index.attempts_of(message.seq) for message, _ in plan]
                reading.open({message.file_id for message, _ in plan})
                reading.open({body.file_id for _, body in plan if body is not None})
            exhausted = taken == len(found)
            next_after_seq = max(after_seq, up_to_seq) if exhausted else found[taken - 1].seq
            window = Window([], [], next_after_seq, exhausted)
            for (message, body), (attempts, retry_ms) in zip(plan, known, strict=True):
                try:
                    stored = reading.message(message, body)
                except CorruptRecord as error:
                    window.corrupt.append(error)
                else:
                    if stored is not None:
                        if attempts:
                            stored = stored._replace(attempts=attempts, retry_ms=retry_ms)
                        window.messages.append(stored)
        return window

    def duplicate_ids(self, cache_id: int) -> list[tuple[int, bytes]]:
        """Return the seqs and payloads of an id cache's records; raises JournalIOError."""
        with ExitStack() as closing:
            reading = _Reading(self._files, self._index, closing)
            with self._files.lock:
                found = self._index.stretch(cache_id, 0, MAX_SEQ, MAX_SEQ)
                places = [Position(one.seq, one.file_id, one.offset, one.size) for one in found]
                reading.open({one.file_id for one in places})
            payloads = [(one.seq, reading.payload(one)) for one in places]
        # One that cannot be read becomes empty, which decoding says is no id.
        return [(seq, payload or b"") for seq, payload in payloads]

    def reached(
        self, kind: MomentKind, after: MomentPlace, up_to_ms: int, limit: int, max_bytes: int
    ) -> Reached:
        """Read messages whose moment has come; the clock is this host's."""
        now_ms = time.time_ns() // 1_000_000
        reached = Reached([], [], [], None, None, now_ms)
        latest = MomentPlace(min(up_to_ms, now_ms), MAX_SEQ)
        with ExitStack() as closing:
            reading = _Reading(self._files, self._index, closing)
            with self._files.lock:
                # One more than wanted tells whether anything is left, and when.
                found = list(islice(self._index.moments(kind, after), limit + 1))
                come = [one for one in found if one[0] <= latest]
                sizes = [message.size for _, _, message in come]
                taken = fitting(sizes, limit, max_bytes)
                plan = reading.open_timed(come[:taken])
            reading.timed(plan, reached)
        if taken < len(come):
            return reached._replace(next_after=come[taken - 1][0])
        later = [place.at_ms for place, *_ in found[taken:]]
        return reached._replace(next_at_ms=later[0] if later else None)

    def timed(
        self,
        kind: MomentKind,
        after: MomentPlace,
        queue_ids: Collection[int] | None,
        limit: int,
        max_bytes: int,
    ) -> Reached:
        """Read messages that have a moment."""
        timed = Reached([], [], [], None, None, time.time_ns() // 1_000_000)
        with ExitStack() as closing:
            reading = _Reading(self._files, self._index, closing)
            with self._files.lock:
                found = list(islice(self._index.moments(kind, after), limit + 1))
                ours = [one for one in found[:limit] if queue_ids is None or one[1] in queue_ids]
                taken = fitting([message.size for _, _, message in ours], limit, max_bytes)
                plan = reading.open_timed(ours[:taken])
            reading.timed(plan, timed)
        if taken < len(ours):
            return timed._replace(next_after=ours[taken - 1][0])
        return timed._replace(next_after=found[limit - 1][0] if len(found) > limit else None)

    def queue_of(self, seq: int) -> int | None:
        """Find the queue of a message."""
        with self._files.lock:
            return self._index.queue_of(seq)

    def count(self, after: QueuePlace, up_to_seq: int, limit: int) -> QueueCounts:
        """Count a stretch of all queues, at most ``limit`` messages."""
        counted: dict[int, int] = {}
        payload_bytes: dict[int, int] = {}
        last: QueuePlace | None = None
        left = limit
        large: list[tuple[int, Position]] = []
        with ExitStack() as closing:
            reading = _Reading(self._files, self._index, closing)
            with self._files.lock:
                for queue_id in self._index.queues_from(after.queue_id):
                    begin = after.seq if queue_id == after.queue_id else 0
                    found = self._index.stretch(queue_id, begin, up_to_seq, left)
                    if not found:
                        continue
                    counted[queue_id] = len(found)
                    payload_bytes[queue_id] = sum([one.size for one in found])
                    large += [(queue_id, one) for one in self._index.large_among(found)]
                    left -= len(found)
                    if not left:
                        last = QueuePlace(queue_id, found[-1].seq)
                        break
                reading.open({one.file_id for _, one in large})
            for queue_id, one in large:
                payload_bytes[queue_id] += large_body_size(reading.payload(one) or b"")
        return QueueCounts(counted, last, payload_bytes)

    def close(self) -> None:
        """Do nothing: the files are closed with the journal."""


_Timed = tuple[MomentPlace, int, QueuedMessage]


class _Reading:
    """The files of one window."""

    def __init__(self, files: JournalFiles, index: MessageIndex, closing: ExitStack) -> None:
        self._files = files
        self._index = index
        self._closing = closing
        self._open: dict[int, tuple[int, Mark]] = {}

    def open(self, file_ids: set[int]) -> None:
        """Open files; under the lock, while the index names them."""
        for file_id in file_ids - self._open.keys():
            descriptor, mark = self._files.open_for_reading(file_id)
            self._closing.callback(os.close, descriptor)
            self._open[file_id] = descriptor, mark

    def open_timed(self, found: Sequence[_Timed]) -> list[tuple[_Timed, Position | None]]:
        """Open the files of messages that have a moment; return each with where its body is."""
        plan = [(one, self._index.find(one[2].body)) for one in found]
        self.open({message.file_id for (_, _, message), _ in plan})
        self.open({body.file_id for _, body in plan if body is not None})
        return plan

    def timed(self, plan: Sequence[tuple[_Timed, Position | None]], reached: Reached) -> None:
        """Add to ``reached`` the messages of ``open_timed`` that are there, or are corrupt."""
        for (place, queue_id, message), body in plan:
            try:
                stored = self.message(message, body)
            except CorruptRecord as error:
                reached.corrupt.append(error)
            else:
                if stored is not None:
                    reached.messages.append(TimedMessage(queue_id, place.at_ms, stored))

    def payload(self, position: Position) -> bytes | None:
        """Return the payload of a record; None if it was deleted meanwhile or is corrupt."""
        size = RECORD_BYTES + position.size
        try:
            found = self._read(position.seq, position.file_id, position.offset, size)
        except CorruptRecord:
            return None  # its window says so
        return None if found is None else found[1]

    def message(self, queued: QueuedMessage, body: Position | None) -> StoredMessage | None:
        """Return a message; None if it was deleted meanwhile. Raises CorruptRecord."""
        size = _REFERENCE_BYTES if queued.body else RECORD_BYTES + queued.size
        found = self._read(queued.seq, queued.file_id, queued.offset, size)
        if found is None:
            return None
        shared: bytes | None = None
        if body is not None:
            whole = self._read(body.seq, body.file_id, body.offset, RECORD_BYTES + body.size)
            if whole is None:
                return None
            shared = whole[1]
        record, payload = found
        return stored_message(
            record.seq, record.id, record.user_record_type, record.epoch, payload, shared
        )

    def _read(self, seq: int, file_id: int, offset: int, size: int) -> tuple[Scanned, bytes] | None:
        for _ in range(_ATTEMPTS):
            descriptor, mark = self._open[file_id]
            with io_errors(f"read the record with seq {seq}"):
                data = os.pread(descriptor, size, offset)
            record = parse(data, offset, mark, offset)
            if record is not None and record.seq == seq:
                payload = record.payload(data, offset)
                if record.is_intact(payload):
                    return record, payload
            with self._files.lock:
                now = self._index.find(seq)
                if now is None:
                    return None
                if (now.file_id, now.offset) == (file_id, offset):
                    break
                file_id, offset = now.file_id, now.offset
                self.open({file_id})
        name = self._files.kind.file_name(file_id)
        raise CorruptRecord(seq, f"its checksum at byte {offset} of {name} does not match")
