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
from orthia.broker.core.queue.newest import Held, Latest, Value, ValueCount, deletion_of, digest_of
from orthia.broker.core.queue.optioned import OptionedQueue
from orthia.broker.core.queue.reader import Span
from orthia.broker.core.queue.removal import RemovingMatching
from orthia.broker.core.queue.window import MAX_WINDOW_BYTES, WINDOW_MESSAGES
from orthia.broker.core.selectors import Said
from orthia.broker.quoting import quoted
from orthia.config.queues import QueueOptions
from orthia.journal.model.changes import MessageLocation
from orthia.journal.model.message import RECORD_OVERHEAD, Message
from orthia.journal.model.windows import Window


class LastValueQueue(OptionedQueue):
    """A queue that keeps the newest message of each key; all calls on the loop's thread."""

    __slots__ = ("_count", "_is_known", "_key", "_latest", "_out")

    machine = RemovingMatching
    has_levels = False

    @override
    def begin(self, options: QueueOptions) -> None:
        super().begin(options)
        self._key = options.last_value_key or ""
        self._latest = Latest()
        self.being_replaced = self._latest.being_replaced
        self._out = Held()
        """How many messages of a key consumers have: as long as there are any it is known which
        is the newest."""
        self._count = ValueCount()
        self._is_known = not self._cursor.is_paged
        self.match()

    def count_values(self, count: ValueCount) -> None:
        """Count values with those of all queues."""
        count.is_used = True
        self._count = count

    def key_of(self, record: Message) -> bytes | None:
        """Return by what a message is known whose value it is; None for a message without."""
        return digest_of(Said(record).get(self._key))

    # --- what is sent

    def replaced_by(self, record: Message) -> tuple[bytes | None, MessageLocation | None]:
        """Return the key of a message that is to be stored, and what is deleted for it.

        Raises LimitExceeded.
        """
        key = self.key_of(record)
        if key is None:
            return None, None
        latest = self._latest.get(key)
        if latest is None:
            if self._count.now >= self._count.most:
                raise LimitExceeded(
                    f"the last value queues of this node have {self._count.most} values already:"
                    f" queue {quoted(self.name)} takes no message with another value of"
                    f" {self._key}"
                )
            return key, None
        return key, None if latest.is_out or latest.is_gone else latest.location

    def sent(
        self,
        key: bytes,
        record: Message,
        location: MessageLocation,
        replaces: MessageLocation | None,
    ) -> None:
        """Note where a message will be, once it is stored."""
        latest = self._latest.get(key)
        if latest is None:
            self._count.now += 1
        value = Value(location, size_in_store(record), latest)
        value.replaces = replaces
        self._latest.sent(key, value)

    def not_sent(self, key: bytes, location: MessageLocation) -> None:
        """Note that a message was not stored."""
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
    def place(self, reference: MessageReference) -> None:
        super().place(reference)
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
    def is_there(self, queue_id: int, reference: MessageReference) -> bool:
        # What it has of other priorities came while it was another kind, and is no value yet.
        key = self.key_of(reference.record) if queue_id == self.id else None
        is_newest = key is None or self._latest.find(key, reference.seq) is not None
        return is_newest and super().is_there(queue_id, reference)

    def _remove(self, value: Value, *, is_deleted: bool) -> None:
        """Have a message no more that nobody has; its row may be deleted already."""
        value.is_gone = True
        if not is_deleted:
            if self.is_leaving:
                return  # its row goes with the others
            self._delete_rows([value.location])
        matching = self._removing()
        matching.take_in()
        seq = value.seq
        reference = matching.remove(seq)
        if reference is None and matching.is_taken(seq):
            reference = self._delayed.with_seq(seq)
            if reference is not None:
                self._delayed.discard(reference)
                self._budget.unclaim(reference.size)
        if reference is not None:
            self._retries.pop(seq, None)
            super()._drop(reference)
        elif not matching.pass_over(seq):
            return
        self.use.release(value.size)
        if not self._is_started:
            matching.tidy()  # which is done with every delivery, where there are any

    def _removing(self) -> RemovingMatching:
        matching = self.match()
        if not isinstance(matching, RemovingMatching):
            raise TypeError(f"queue {self.name} is not one of last values: {matching!r}")
        return matching

    def _delete_rows(self, locations: Sequence[MessageLocation]) -> None:
        self._append(deletion_of(locations))

    # --- what consumers have

    @override
    def hand_out(self, reference: MessageReference) -> MessageReference | None:
        key = self.key_of(reference.record)
        if key is not None:
            self._goes_out(key, reference)
        handed = super().hand_out(reference)
        if key is not None and handed is None and reference in self._delayed:
            self._comes_back(key, reference)
        return handed

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
    def _acknowledged(self, references: Sequence[MessageReference]) -> None:
        super()._acknowledged(references)
        for reference in references:
            self._left(reference)

    @override
    def restore(self, references: Sequence[MessageReference]) -> None:
        super().restore(references)
        for reference in references:
            self._again(reference)

    @override
    def take_back(self, reference: MessageReference) -> None:
        super().take_back(reference)
        self._again(reference)
        key = self.key_of(reference.record)
        if key is not None and not self._comes_back(key, reference):
            self._delayed.discard(reference)
            self._budget.unclaim(reference.size)
            super()._drop(reference)
            self.use.release(size_in_store(reference.record))
            self._delete_rows([] if reference.location is None else [reference.location])

    def _again(self, reference: MessageReference) -> None:
        """Note that a message is out again that was thought to be gone."""
        key = self.key_of(reference.record)
        if key is None or self._is_forgotten:
            return
        value = self._latest.find(key, reference.seq)
        if value is not None:
            value.is_gone = False
        self._goes_out(key, reference)

    @override
    def _drop(self, reference: MessageReference) -> None:
        super()._drop(reference)
        self._left(reference)

    @override
    def move_expired(self, reference: MessageReference) -> None:
        key = self.key_of(reference.record)
        value = None if key is None else self._latest.find(key, reference.seq)
        if key is not None and (value is None or not value.is_out):
            self._goes_out(key, reference)  # found where it was, and not in turn
        super().move_expired(reference)

    @override
    def _give_some_back(
        self, references: Sequence[MessageReference], in_vain: set[MessageReference]
    ) -> None:
        if self.is_leaving or self._is_forgotten:
            super()._give_some_back(references, in_vain)
            return
        kept, replaced = list[MessageReference](), list[MessageReference]()
        for reference in references:
            key = self.key_of(reference.record)
            is_kept = key is None or self._latest.find(key, reference.seq) is not None
            (kept if is_kept else replaced).append(reference)
        if replaced:
            self._acknowledged(replaced)
            self.counters.acknowledged -= len(replaced)
            self._delete_rows([one.location for one in replaced if one.location is not None])
        super()._give_some_back(kept, in_vain)
        for reference in kept:
            key = self.key_of(reference.record)
            value = None if key is None else self._latest.find(key, reference.seq)
            if key is not None and value is not None and value.is_out:
                if reference.location is not None:
                    value.location = reference.location  # its attempts may be stored by now
                self._comes_back(key, reference)

    @override
    def forget_memory(self) -> int:
        self._count.now -= self._latest.forget_all()
        self._out.clear()
        return super().forget_memory()

    # --- what an earlier node left

    @override
    def match_no_more(self) -> None:
        if self.is_leaving or self._is_forgotten:
            super().match_no_more()

    @property
    @override
    def delivers(self) -> bool:
        return self._is_known and self._is_started

    @override
    def open_trimmed(self) -> None:
        if not self._is_known:
            self._read_on(0)

    def _read_on(self, after: int) -> None:
        if self.is_leaving:
            return
        self.reader.read(
            Span(self.id, after, self._journal.recovery_horizon),
            WINDOW_MESSAGES,
            MAX_WINDOW_BYTES,
            self._known_of,
            lambda: self._read_on(after),
        )

    def _known_of(self, window: Window | None) -> None:
        if window is None or self.is_leaving:
            return
        up_to = self._journal.recovery_horizon if window.exhausted else window.next_after_seq
        kept: dict[int, int] = {}
        replaced: list[MessageLocation] = []
        for message in window.messages:
            size = kept[message.seq] = size_in_store(message.record)
            key = self.key_of(message.record)
            if key is None or self._cursor.is_withheld(message.seq):
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
        self.reader.report_corrupt(window)
        if replaced:
            self._delete_rows(replaced)
            matching = self._removing()
            for location in replaced:
                matching.pass_over(location.seq)  # a window may show it that is read before
        if self.uncounted_after is not None:
            outside = RECORD_OVERHEAD + len(self.address.encode())
            messages = len(kept) + len(window.corrupt)
            payload = sum(kept.values()) - messages * (MESSAGE_OVERHEAD - outside)
            self.counted(self.uncounted_after, up_to, messages, payload)
        if window.exhausted:
            self._is_known = True
            self.resume()
        else:
            self._read_on(up_to)
