# mypyc compiles this module.
"""Last value queues: of the messages of one value the newest counts, and replaces the others.

What a message's value is, its header ``last-value-key`` says, ``_AMQ_LVQ_NAME`` unless another
is set; messages without it are kept like any others. The older message is deleted in the
transaction that stores the newer one, wherever it is: in memory, or in the table only. The newer
one has a place of its own, at the end. What a consumer has stays with it; given back it is dropped,
if there was a newer one meanwhile.

Which the newest of each value is, is in memory, of a million of all queues at most. The next live
node reads it from the queue once, in the background: until it has, the queue takes messages and
delivers none, so that nobody gets one that was replaced. What it finds to be replaced it deletes:
one of two in a transaction whose node ended, and what came while the queue was another kind.
"""

from collections.abc import Sequence

from typing_extensions import override

from orthia.broker.core.api import MessageReference
from orthia.broker.core.errors import LimitExceeded
from orthia.broker.core.limits.memory import MESSAGE_OVERHEAD, size_in_store
from orthia.broker.core.queue.newest import Held, Latest, Value, ValueCount, digest_of
from orthia.broker.core.queue.policy import ReplacementPolicy
from orthia.broker.core.queue.queue import Queue
from orthia.broker.core.queue.reader import Span
from orthia.broker.core.queue.refill import MAX_WINDOW_BYTES, WINDOW_MESSAGES
from orthia.broker.core.queue.removal import remove, remove_delayed
from orthia.broker.core.queue.services import QueueServices
from orthia.broker.core.selectors import MessageProperties
from orthia.broker.quoting import quoted
from orthia.journal.model.changes import MessageLocation
from orthia.journal.model.message import RECORD_OVERHEAD, Message
from orthia.journal.model.windows import Window


class LastValues(ReplacementPolicy):
    """Keeps the newest message of each key of a queue; on the loop's thread."""

    __slots__ = ("_count", "_is_known", "_journal", "_key", "_latest", "_out", "_queue")

    def __init__(self, queue: Queue, key: str, count: ValueCount, services: QueueServices) -> None:
        """Values are those of the header ``key``, and counted with those of all queues."""
        count.is_used = True
        self._queue = queue
        self._journal = services.journal
        self._key = key
        self._count = count
        self._latest = Latest()
        queue.unsettled.being_replaced = self._latest.being_replaced
        self._out = Held()
        """How many messages of a key consumers have: as long as there are any it is known which
        is the newest."""
        self._is_known = not queue.log.cursor.is_paged

    @property
    @override
    def is_ready(self) -> bool:
        return self._is_known

    def key_of(self, record: Message) -> bytes | None:
        """Return by what a message is known whose value it is; None for a message without."""
        return digest_of(MessageProperties(record).get(self._key))

    # --- what is sent

    @override
    def replaced_by(self, record: Message) -> tuple[bytes | None, MessageLocation | None]:
        key = self.key_of(record)
        if key is None:
            return None, None
        latest = self._latest.get(key)
        if latest is None:
            if self._count.now >= self._count.most:
                raise LimitExceeded(
                    f"the last value queues of this node have {self._count.most} values already:"
                    f" queue {quoted(self._queue.name)} takes no message with another value of"
                    f" {self._key}"
                )
            return key, None
        return key, None if latest.is_out or latest.is_gone else latest.location

    @override
    def sent(
        self,
        key: bytes,
        record: Message,
        location: MessageLocation,
        replaces: MessageLocation | None,
    ) -> None:
        latest = self._latest.get(key)
        if latest is None:
            self._count.now += 1
        value = Value(location, size_in_store(record), latest)
        value.replaces = replaces
        self._latest.sent(key, value)

    @override
    def not_sent(self, key: bytes, location: MessageLocation) -> None:
        value = self._latest.find(key, location.seq)
        self._latest.answered(location.seq)
        if value is None:
            return
        value.is_gone = True
        if self._latest.get(key) is value:
            before = value.before
            while before is not None and before.is_gone and not before.is_stored:
                before = before.before
            if before is None:
                self._forget(key)
            else:
                self._latest[key] = before
                self._settle(key)

    @override
    def placed(self, reference: MessageReference) -> None:
        key = self.key_of(reference.record)
        value = None if key is None else self._latest.find(key, reference.seq)
        if key is None or value is None:
            return
        self._latest.answered(reference.seq)
        value.is_stored = True
        before, value.before = value.before, None
        while before is not None and not before.is_stored:
            before = before.before  # which was refused
        if before is not None and not before.is_out and not before.is_gone:
            self._remove(before, is_deleted=before.location == value.replaces)

    def _forget(self, key: bytes) -> None:
        if self._latest.pop(key, None) is not None:
            self._count.now -= 1

    def _settle(self, key: bytes) -> None:
        """Forget a key of which there is nothing any more."""
        value = self._latest.get(key)
        if value is not None and value.is_gone and not self._out.get(key):
            self._forget(key)

    # --- what is replaced

    @override
    def is_current(self, queue_id: int, reference: MessageReference) -> bool:
        # What it has of other priorities came while it was another kind, and is no value yet.
        key = self.key_of(reference.record) if queue_id == self._queue.id else None
        return key is None or self._latest.find(key, reference.seq) is not None

    def _remove(self, value: Value, *, is_deleted: bool) -> None:
        """Remove an undelivered message; its row may be deleted already."""
        value.is_gone = True
        if not is_deleted:
            if self._queue.is_leaving:
                return  # its row goes with the others
            self._queue.delete_rows([value.location])
        remove(self._queue, value.seq, value.size)

    # --- what consumers have

    @override
    def going_out(self, reference: MessageReference) -> None:
        key = self.key_of(reference.record)
        if key is not None:
            self._goes_out(key, reference)

    @override
    def put_off(self, reference: MessageReference) -> None:
        key = self.key_of(reference.record)
        if key is not None:
            self._comes_back(key, reference)

    def _goes_out(self, key: bytes, reference: MessageReference) -> None:
        value = self._latest.find(key, reference.seq)
        if value is None and reference.location is not None:
            self._count.now += key not in self._latest
            size = size_in_store(reference.record)
            value, older = self._latest.again(key, Value(reference.location, size, None))
            if older is not None and not older.is_out and not older.is_gone:
                self._remove(older, is_deleted=False)
        if value is not None:
            value.is_out = True
        self._out.more(key)

    def _comes_back(self, key: bytes, reference: MessageReference) -> bool:
        """Note that a message is with nobody any more; return whether it still counts."""
        self._out.less(key)
        value = self._latest.find(key, reference.seq)
        if value is None:
            self._settle(key)
            return False
        value.is_out = False
        return True

    def _left(self, reference: MessageReference) -> None:
        """Note that a message is gone for good that was out."""
        key = self.key_of(reference.record)
        if key is None:
            return
        self._out.less(key)
        value = self._latest.find(key, reference.seq)
        if value is not None:
            value.is_out, value.is_gone = False, True
        self._settle(key)

    @override
    def gone(self, references: Sequence[MessageReference]) -> None:
        for reference in references:
            self._left(reference)

    @override
    def restored(self, references: Sequence[MessageReference]) -> None:
        for reference in references:
            self._again(reference)

    @override
    def taken_back(self, reference: MessageReference) -> None:
        self._again(reference)
        key = self.key_of(reference.record)
        if key is not None and not self._comes_back(key, reference):
            remove_delayed(self._queue, reference)

    def _again(self, reference: MessageReference) -> None:
        """Reinstate a value whose removal failed: its message is out again."""
        key = self.key_of(reference.record)
        if key is None or self._queue.is_forgotten:
            return
        value = self._latest.find(key, reference.seq)
        if value is not None:
            value.is_gone = False
        self._goes_out(key, reference)

    @override
    def expiring(self, reference: MessageReference) -> None:
        key = self.key_of(reference.record)
        value = None if key is None else self._latest.find(key, reference.seq)
        if key is not None and (value is None or not value.is_out):
            self._goes_out(key, reference)  # found where it was, and not in turn

    @override
    def returning(self, references: Sequence[MessageReference]) -> Sequence[MessageReference]:
        queue = self._queue
        kept, replaced = list[MessageReference](), list[MessageReference]()
        for reference in references:
            key = self.key_of(reference.record)
            is_kept = key is None or self._latest.find(key, reference.seq) is not None
            (kept if is_kept else replaced).append(reference)
        if replaced:
            queue.acknowledged(replaced)
            queue.counters.acknowledged -= len(replaced)
            queue.delete_rows([one.location for one in replaced if one.location is not None])
        return kept

    @override
    def returned(self, references: Sequence[MessageReference]) -> None:
        if self._queue.is_leaving:
            return
        for reference in references:
            key = self.key_of(reference.record)
            value = None if key is None else self._latest.find(key, reference.seq)
            if key is not None and value is not None and value.is_out:
                if reference.location is not None:
                    value.location = reference.location  # its attempts may be stored by now
                self._comes_back(key, reference)

    @override
    def forgotten(self) -> None:
        self._count.now -= self._latest.forget_all()
        self._out.clear()

    # --- what an earlier node left

    @override
    def opened(self) -> None:
        if not self._is_known:
            self._read_on(0)

    def _read_on(self, after: int) -> None:
        if self._queue.is_leaving:
            return
        self._queue.reader.read(
            Span(self._queue.id, after, self._journal.recovery_horizon),
            WINDOW_MESSAGES,
            MAX_WINDOW_BYTES,
            self._known_of,
            lambda: self._read_on(after),
        )

    def _known_of(self, window: Window | None) -> None:
        if window is None or self._queue.is_leaving:
            return
        up_to = self._journal.recovery_horizon if window.exhausted else window.next_after_seq
        cursor = self._queue.log.cursor
        kept: dict[int, int] = {}
        replaced: list[MessageLocation] = []
        for message in window.messages:
            size = kept[message.seq] = size_in_store(message.record)
            key = self.key_of(message.record)
            if key is None or cursor.is_withheld(message.seq):
                continue
            newer, older = self._latest.around(key, message.seq)
            if newer is not None and newer.is_stored:
                replaced.append(message.location)
                del kept[message.seq]
                continue
            value = Value(message.location, size, None)
            value.is_stored = True
            if older is not None and kept.pop(older.seq, None) is not None:
                replaced.append(older.location)
            elif older is not None:
                self._remove(older, is_deleted=False)
            if newer is not None:
                newer.before = value  # which replaces it, if it is stored
                continue
            if older is None:
                self._count.now += 1
            self._latest[key] = value
        self._queue.reader.report_corrupt(window)
        if replaced:
            self._queue.delete_rows(replaced)
            selecting = self._queue.deliver_selectively()
            for location in replaced:
                selecting.pass_over(location.seq)  # a window may show it that is read before
        if self._queue.uncounted_after is not None:
            outside = RECORD_OVERHEAD + len(self._queue.address.encode())
            messages = len(kept) + len(window.corrupt)
            payload = sum(kept.values()) - messages * (MESSAGE_OVERHEAD - outside)
            self._queue.counted(self._queue.uncounted_after, up_to, messages, payload)
        if window.exhausted:
            self._is_known = True
            self._queue.resume()
        else:
            self._read_on(up_to)
