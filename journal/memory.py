"""A journal kept in this process, of a node with ``persistence-enabled`` false and of tests.

It passes the contract tests of the SQL journal and shares its intake, units and codec; only the
rows are in a dictionary. Tests decide when it stores, and when it fails.
"""

import bisect
import time
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from typing_extensions import override

from orthia.config.errors import OrthiaError
from orthia.journal.engine.abc import Recovered, Windows
from orthia.journal.engine.batch import batch_of
from orthia.journal.engine.duplicates import DuplicateIds, without_conflicts
from orthia.journal.engine.intake import Intake
from orthia.journal.engine.senders import in_turn, mark_refused
from orthia.journal.errors import CorruptRecord, Fenced, LeaseExpired
from orthia.journal.journal import MessageJournal
from orthia.journal.limits import JournalLimits
from orthia.journal.model.changes import Body, Row
from orthia.journal.model.codec import decode_binding
from orthia.journal.model.message import large_body_size
from orthia.journal.model.moments import MessageTime, MomentKind, MomentPlace
from orthia.journal.model.records import UserRecordType
from orthia.journal.model.unit import Appended, AppendedMessage
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

_UNBOUNDED = 2**63 - 1
_Answer = TypeVar("_Answer")


@dataclass
class MemoryStore:
    """The two tables and the fence, which outlive the journals opened on them."""

    fence_token: int = 1
    id_limit: int = 0
    messages: dict[int, tuple[Row, int]] = field(default_factory=dict)
    """seq to the row and the epoch it was written under."""
    bindings: dict[int, Row] = field(default_factory=dict)
    times: dict[int, MessageTime] = field(default_factory=dict)
    clock_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000

    def apply(self, item: Appended, epoch: int) -> None:
        """Make one unit's changes."""
        if isinstance(item, AppendedMessage):
            seq = item.last_seq
            row = Row(seq, seq, UserRecordType.ADD_MESSAGE, item.queue_id, item.payload)
            self.messages[seq] = (row, epoch)
            return
        changes = item.stored
        self.messages.update({row.seq: (row, epoch) for row in changes.rows})
        for seq in changes.deletes:
            self.messages.pop(seq, None)
        for body in changes.bodies:
            self._drop_if_unreferenced(body)
        self.times.update({one.seq: one for one in changes.timed})
        for seq in changes.untimed:
            self.times.pop(seq, None)
        self.bindings.update({row.seq: row for row in item.binding_rows})
        for binding_id in item.unbound:
            self.bindings.pop(binding_id, None)
        self.id_limit = max(self.id_limit, item.id_limit)

    def _drop_if_unreferenced(self, body: Body) -> None:
        references = range(body.seq + 1, body.seq + 1 + body.references)
        if not any(seq in self.messages for seq in references):
            self.messages.pop(body.seq, None)

    def duplicate_ids(self, cache_id: int) -> list[tuple[int, bytes]]:
        """Return the rows of an id cache."""
        rows = sorted((seq, row) for seq, (row, _) in self.messages.items())
        return [(seq, row.record) for seq, row in rows if row.queue_id == cache_id]

    def known(self, row: Row, epoch: int) -> StoredMessage:
        """Return a message with what is known of its deliveries; raises CorruptRecord."""
        message = _stored_message(row, epoch, self)
        kept = self.times.get(row.seq)
        if kept is None or not kept.attempts:
            return message
        location = message.location._replace(is_timed=True)
        return message._replace(attempts=kept.attempts, retry_ms=kept.retry_ms, location=location)

    def reached(
        self, kind: MomentKind, after: MomentPlace, up_to_ms: int, limit: int, max_bytes: int
    ) -> Reached:
        """Return messages whose moment has come."""
        now_ms = self.clock_ms()
        of_kind = sorted(
            (MomentPlace(one.at_ms, one.seq), one.queue_id)
            for one in self.times.values()
            if one.kind == kind
        )
        come = [one for one in of_kind if after < one[0] and one[0].at_ms <= min(up_to_ms, now_ms)]
        reached = Reached([], [], [], None, None, now_ms)
        size = 0
        for count, (place, queue_id) in enumerate(come):
            found = self.messages.get(place.seq)
            payload = b"" if found is None else _payload(found[0], self) or b""
            size += len(payload)
            if count and (count == limit or size > max_bytes):
                return reached._replace(next_after=come[count - 1][0])
            if found is None:
                reached.gone.append(place.seq)
                continue
            try:
                message = _stored_message(*found, self)
                reached.messages.append(TimedMessage(queue_id, place.at_ms, message))
            except CorruptRecord as error:
                reached.corrupt.append(error)
        later = (place.at_ms for place, _ in of_kind if place.at_ms > min(up_to_ms, now_ms))
        return reached._replace(next_at_ms=next(later, None))

    def timed(
        self,
        kind: MomentKind,
        after: MomentPlace,
        queue_ids: Collection[int] | None,
        limit: int,
        max_bytes: int,
    ) -> Reached:
        """Return messages that have a moment."""
        behind = sorted(
            (MomentPlace(one.at_ms, one.seq), one.queue_id)
            for one in self.times.values()
            if one.kind == kind and after < (one.at_ms, one.seq)
        )
        found = Reached([], [], [], None, None, self.clock_ms())
        size = 0
        for count, (place, queue_id) in enumerate(behind):
            row = self.messages.get(place.seq)
            payload = b"" if row is None else _payload(row[0], self) or b""
            is_wanted = row is not None and (queue_ids is None or queue_id in queue_ids)
            size += len(payload) if is_wanted else 0
            if count and (count == limit or (size > max_bytes and is_wanted)):
                return found._replace(next_after=behind[count - 1][0])
            if row is None or not is_wanted:
                continue
            try:
                message = _stored_message(*row, self)
                found.messages.append(TimedMessage(queue_id, place.at_ms, message))
            except CorruptRecord as error:
                found.corrupt.append(error)
        return found

    def stretch(self, queue_id: int, after_seq: int, up_to_seq: int) -> list[tuple[Row, int]]:
        """Return a queue's rows with ``after_seq < seq <= up_to_seq``, oldest first."""
        seqs = sorted(self.messages)
        first = bisect.bisect_right(seqs, after_seq)
        last = bisect.bisect_right(seqs, up_to_seq)
        rows = (self.messages[seq] for seq in seqs[first:last])
        return [(row, epoch) for row, epoch in rows if row.queue_id == queue_id]


class MemoryWindows(Windows):
    """Reads a ``MemoryStore``."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store

    @override
    def window(
        self, queue_id: int, after_seq: int, up_to_seq: int, max_messages: int, max_bytes: int
    ) -> Window:
        stretch = self._store.stretch(queue_id, after_seq, up_to_seq)
        sizes = [len(_payload(row, self._store) or b"") for row, _ in stretch]
        taken = stretch[: fitting(sizes, max_messages, max_bytes)]
        exhausted = len(taken) == len(stretch)
        window = Window(
            [], [], max(after_seq, up_to_seq) if exhausted else taken[-1][0].seq, exhausted
        )
        for row, epoch in taken:
            try:
                window.messages.append(self._store.known(row, epoch))
            except CorruptRecord as error:
                window.corrupt.append(error)
        return window

    @override
    def count(self, after: QueuePlace, up_to_seq: int, limit: int) -> QueueCounts:
        messages = self._store.messages
        rows = (row for row, _ in messages.values() if row.queue_id is not None)
        places = sorted(QueuePlace(row.queue_id or 0, row.seq) for row in rows)
        first = bisect.bisect_right(places, after)
        taken = places[first : first + limit]
        counted: dict[int, int] = {}
        sizes: dict[int, int] = {}
        for queue_id, seq in taken:
            counted[queue_id] = counted.get(queue_id, 0) + (seq <= up_to_seq)
            payload = _payload(messages[seq][0], self._store) or b""
            size = len(payload) + large_body_size(payload) if seq <= up_to_seq else 0
            sizes[queue_id] = sizes.get(queue_id, 0) + size
        return QueueCounts(counted, taken[-1] if len(taken) == limit else None, sizes)

    @override
    def reached(
        self, kind: MomentKind, after: MomentPlace, up_to_ms: int, limit: int, max_bytes: int
    ) -> Reached:
        return self._store.reached(kind, after, up_to_ms, limit, max_bytes)

    @override
    def timed(
        self,
        kind: MomentKind,
        after: MomentPlace,
        queue_ids: Collection[int] | None,
        limit: int,
        max_bytes: int,
    ) -> Reached:
        return self._store.timed(kind, after, queue_ids, limit, max_bytes)

    @override
    def queue_of(self, seq: int) -> int | None:
        found = self._store.messages.get(seq)
        return None if found is None else found[0].queue_id

    @override
    def close(self) -> None:
        """Do nothing."""


class MemoryJournal(MessageJournal):
    """A journal on a ``MemoryStore``, and what a test drives of it.

    With ``auto_commit`` every unit is stored as it is appended; without, ``commit`` stores what
    waits. Without ``post`` callbacks wait until ``run_posted`` is called.
    """

    def __init__(
        self,
        store: MemoryStore | None = None,
        *,
        token: int = 1,
        still_valid: Callable[[], bool] = lambda: True,
        post: Callable[[Callable[[], None]], None] | None = None,
        on_failure: Callable[[OrthiaError], None] = lambda _: None,
        limits: JournalLimits | None = None,
        auto_commit: bool = True,
        max_record_bytes: int = _UNBOUNDED,
    ) -> None:
        self.store = store = MemoryStore() if store is None else store
        if store.fence_token != token:
            raise Fenced(token)
        limits = limits or JournalLimits()
        self.windows = MemoryWindows(store)
        self.max_record_bytes = max_record_bytes
        self.auto_commit = auto_commit
        self.failure: OrthiaError | None = None
        self.waiting: deque[Appended] = deque()
        self._posted: deque[Callable[[], None]] = deque()
        self._post = post or self._posted.append
        self._on_failure = on_failure
        self._token = token
        self._still_valid = still_valid
        self._silent = False
        bindings = [
            decode_binding(row.user_record_type, row.record, row.seq)
            for row in store.bindings.values()
        ]
        horizon = max(
            store.id_limit, max(store.messages, default=0), max(store.bindings, default=0)
        )
        store.id_limit = horizon + limits.id_block
        self.recovered = Recovered(bindings, horizon)
        self._duplicates = DuplicateIds(store.duplicate_ids)
        self.intake = Intake(
            first_id=horizon + 1,
            max_record_bytes=max_record_bytes,
            limits=limits,
            submit=self._submit,
            bindings=bindings,
        )

    @override
    def ask(
        self, read: Callable[[], _Answer], done: Callable[[_Answer | OrthiaError], None]
    ) -> None:
        self._tell(partial(done, read()))

    @override
    def register_full_listener(self, callback: Callable[[OrthiaError | None], None]) -> None:
        """Do nothing: it is never full."""

    @override
    def close(self, *, drain: bool) -> bool:
        if self.refusal is None:
            self.refusal = "the journal is closed"
            if drain:
                self.commit()
            self._silent = not drain
        return not self.waiting and self.failure is None

    def run_posted(self) -> int:
        """Run the callbacks that wait, and those they cause; return how many there were."""
        count = 0
        while self._posted:
            self._posted.popleft()()
            count += 1
        return count

    def commit(self, units: int | None = None) -> None:
        """Store the first ``units`` that wait (all by default) as one batch."""
        count = len(self.waiting) if units is None else units
        items = [self.waiting.popleft() for _ in range(count)]
        if self.failure is not None or not items:
            return
        if not self._still_valid():
            self.fail(LeaseExpired("the lease ended before the batch was stored"))
            return
        if self.store.fence_token != self._token:
            self.fail(Fenced(self._token))
            return
        for reason, stretch in in_turn(items):
            if reason is not None:
                for item in stretch:
                    self._tell(partial(self.intake.refuse, item, reason))
                continue
            whole = batch_of(stretch)
            for part in without_conflicts(whole) if whole.guarded else (whole,):
                batch = self._duplicates.screen(part) if part.guarded else part
                for item in batch.items:
                    self.store.apply(item, self._token)
                for seq in batch.forgotten:
                    self.store.messages.pop(seq, None)
                self._duplicates.stored(batch)
                report = batch.report(commit_seconds=0.0, attempts=1)
                self._tell(partial(self.intake.complete, batch.items, report))

    def refuse(self, error: OrthiaError) -> None:
        """Refuse the first unit that waits as a journal on a store does that stores all others."""
        item = self.waiting.popleft()
        mark_refused(item, error)
        self._tell(partial(self.intake.refuse, item, error))

    def fail(self, error: OrthiaError) -> None:
        """Fail as a journal on a store does that lost the store: nothing is completed any more."""
        if self.failure is None:
            self.failure = error
            self._tell(partial(self._failed, error))

    def _submit(self, item: Appended) -> None:
        self.waiting.append(item)
        if self.auto_commit:
            self.commit()

    def _tell(self, callback: Callable[[], None]) -> None:
        self._post(lambda: None if self._silent else callback())

    def _failed(self, error: OrthiaError) -> None:
        self._silent = True
        self.refusal = f"the journal has failed: {error}"
        self._on_failure(error)


def _payload(row: Row, store: MemoryStore) -> bytes | None:
    if row.user_record_type != UserRecordType.ADD_REF:
        return row.record
    body = store.messages.get(row.id)
    return None if body is None else body[0].record


def _stored_message(row: Row, epoch: int, store: MemoryStore) -> StoredMessage:
    return stored_message(
        row.seq, row.id, row.user_record_type, epoch, row.record, _payload(row, store)
    )
