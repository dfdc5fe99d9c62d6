# mypyc compiles this module.
"""Queues that do more than keep messages in order: what ``QueueOptions`` say of them.

A queue of its own class, since every other is to cost nothing for it.

- ``exclusive``: the consumer that came first gets all; when it leaves, the next one.
- ``consumers-before-dispatch``, ``delay-before-dispatch``: the first message goes out when there
  are so many consumers, or so long after the first; and anew after the last has left.
- ``ring-size``: when there is one too many, the oldest undelivered one of the lowest priority goes.
- ``purge-on-no-consumers``: what is left when the last consumer leaves is deleted.
"""

import heapq
from collections.abc import Sequence
from functools import partial
from itertools import takewhile
from typing import Any, Final

from typing_extensions import override

from orthia.broker.core.api import Consumer, MessageReference
from orthia.broker.core.errors import DestinationRefused
from orthia.broker.core.limits.memory import size_in_store
from orthia.broker.core.queue.cursor import Cursor
from orthia.broker.core.queue.dispatcher import AT_ONCE
from orthia.broker.core.queue.groups import say_that_a_ring_keeps_none
from orthia.broker.core.queue.left_over import pass_one_over
from orthia.broker.core.queue.non_destructive import ShownQueue
from orthia.broker.core.queue.reader import Span
from orthia.broker.core.queue.subscriptions import Subscription
from orthia.broker.core.queue.turns import InTurn
from orthia.broker.core.queue.window import MAX_WINDOW_BYTES, WINDOW_MESSAGES, QueueSubscription
from orthia.broker.core.selectors import Selector
from orthia.broker.quoting import quoted
from orthia.config.queues import QueueOptions
from orthia.journal.errors import JournalClosed
from orthia.journal.model.records import RemovalReason
from orthia.journal.model.unit import Unit
from orthia.journal.model.windows import StoredMessage, Window

_AGAIN_MS: Final = 100
"""When a ring that could not be trimmed is looked at again: many messages are being given back."""


class OneConsumer(InTurn):
    """The first of the consumers, as long as it is there, and then the next."""

    __slots__ = ("_attached",)

    def __init__(self) -> None:
        super().__init__()
        self._attached: dict[Subscription[Any], None] = {}

    @override
    def join(self, subscription: Subscription[Any]) -> None:
        if not subscription.is_closed:
            self._attached.setdefault(subscription)
            if subscription is next(iter(self._attached)):
                super().join(subscription)

    @override
    def leave(self, subscription: Subscription[Any]) -> None:
        self._attached.pop(subscription, None)
        super().leave(subscription)
        for successor in list(self._attached)[:1]:
            super().join(successor)

    def anew(self) -> None:
        """Ask nobody, until they join again; who came first stays the first."""
        self._ring.clear()
        self._closed = 0


class OptionedQueue(ShownQueue):
    """A queue with options; all calls on the loop's thread."""

    __slots__ = (
        "_is_started", "_is_trim_due", "_is_trimming", "_may_be_too_many", "_one", "_starts",
        "options",
    )  # fmt: skip

    def begin(self, options: QueueOptions) -> None:
        """Called once, first: what the queue does more than a ``Queue``."""
        self.options = options
        self.begin_showing(options)
        self._is_trimming = False
        self._is_trim_due = False
        self._may_be_too_many = False
        """Whether messages came that nobody may have taken."""
        self._is_started = options.consumers_before_dispatch <= 0
        self._starts = 0
        """Counts the times that it waited for consumers: a moment that was waited for is of one."""
        self._one = OneConsumer()
        if options.exclusive:
            self._turns = self._one

    # --- before the first message

    @override
    def attach(
        self,
        consumer: Consumer,
        prefetch: int,
        max_bytes: int,
        *,
        selector: Selector | None = None,
    ) -> QueueSubscription:
        takes = selector is not None and not self.is_non_destructive
        if takes and (self.options.exclusive or self.options.ring_size >= 0):
            kind = "exclusive" if self.options.exclusive else "a ring"
            raise DestinationRefused(
                f"queue {quoted(self.name)} is {kind}, where messages are taken from the front"
                " alone: subscribe without a selector, or give the queue a filter"
            )
        subscription = super().attach(consumer, prefetch, max_bytes, selector=selector)
        if not self._is_started:
            if self.consumers >= self.options.consumers_before_dispatch:
                self._is_started = True
                if self.is_non_destructive:
                    self._timers.call_later(0, self.resume)  # for those that came before it
            elif self.consumers == 1 and self.options.delay_before_dispatch >= 0:
                self._timers.call_later(
                    self.options.delay_before_dispatch, partial(self._start, self._starts)
                )
        return subscription

    def _start(self, of_start: int) -> None:
        if of_start == self._starts and self.consumers:
            self._is_started = True
            self.resume()

    @property
    @override
    def delivers(self) -> bool:
        return self._is_started

    @override
    def dispatch(self) -> bool:
        is_done = self.delivers and super().dispatch()
        if is_done and self._may_be_too_many:
            self._may_be_too_many = False
            self._trim()
        return is_done

    @override
    def detach(self, subscription: QueueSubscription) -> None:
        super().detach(subscription)
        if self.consumers:
            return
        self._starts += 1
        self._is_started = self.options.consumers_before_dispatch <= 0
        if self.options.purge_on_no_consumers:
            # What the consumer had comes back first: it is given back after this.
            self._trim_later(0)

    @override
    def make_turns(self) -> InTurn:
        if not self.options.exclusive:
            return super().make_turns()
        # All consumers want every message, so that they have one view: the same consumer goes on.
        self._one.anew()
        return self._one

    @override
    def expire(self, messages: Sequence[StoredMessage], queue_id: int) -> None:
        if self.options.ring_size < 0 or self.is_non_destructive:
            super().expire(messages, queue_id)
            return
        if self.is_leaving or self._held or self._dispatching:
            return
        # Nothing is taken out of the middle of a table that is trimmed from the front, nor of the
        # middle of memory, of which the newest may be left to the table: a window would show it
        # again. It is found to have expired when it is the oldest, or in turn.
        now_ms = self._timers.time_ms()
        seqs = {one.seq for one in messages if one.record.expires_ms <= now_ms}
        ready = list(takewhile(lambda one: one.seq in seqs, self._ready))
        returned = [one for _, one in self._returned if one.seq in seqs]
        for _ in ready:
            self._ready.popleft()
        for reference in returned:
            self._returned.remove((reference.seq, reference))
            self._budget.unclaim(reference.size)
        heapq.heapify(self._returned)
        for reference in (*ready, *returned):
            self.move_expired(reference)

    @override
    def has_groups(self) -> None:
        # With one consumer all groups are together; a ring is taken from the front alone.
        # And where each gets all, there is nothing to be kept together.
        if self.options.has_groups:
            super().has_groups()
        elif self._may_group:
            self._may_group = False
            if not self.options.exclusive:
                say_that_a_ring_keeps_none(self.name)

    # --- what is too many

    @property
    def _most(self) -> int | None:
        """How many messages may wait that are not delivered; None for any number."""
        if self.options.purge_on_no_consumers and not self.consumers:
            return 0
        return None if self.options.ring_size < 0 else self.options.ring_size

    @override
    def place(self, reference: MessageReference) -> None:
        super().place(reference)
        if self._most is None:
            return
        if self._subscriptions and self.delivers:
            self._may_be_too_many = True  # unless a consumer takes it
        else:
            self._trim()

    @override
    def _give_some_back(
        self, references: Sequence[MessageReference], in_vain: set[MessageReference]
    ) -> None:
        super()._give_some_back(references, in_vain)
        self._may_be_too_many = self._most is not None  # unless a consumer takes them again

    def open_trimmed(self) -> None:
        """Have what an earlier node left be as many as it may be."""
        if self._most is not None:
            self._trim()

    @override
    def counted(self, after: int, up_to: int, messages: int, payload_bytes: int) -> None:
        super().counted(after, up_to, messages, payload_bytes)
        self._trim_what_is_counted()

    @override
    def count_of(self, cursor: Cursor, up_to: int, messages: int, payload_bytes: int) -> None:
        super().count_of(cursor, up_to, messages, payload_bytes)
        if cursor is not self._cursor:
            self._trim_what_is_counted()

    def _trim_what_is_counted(self) -> None:
        if self._most is not None and self.is_counted:
            self._trim()  # only now it is known how many an earlier node left

    def _trim(self) -> None:
        """Delete the oldest messages while there are too many; what is in the table is read."""
        most = self._most
        if most is None or self.is_leaving or self._is_trimming:
            return
        if self._held:
            self._trim_later(_AGAIN_MS)
            return
        gone: list[MessageReference] = []
        while self.depth - self._delivered > most and (oldest := self._oldest()) is not None:
            gone.append(oldest)
            if len(gone) >= AT_ONCE:
                break
        if gone:
            self._delete(gone)
        if len(gone) >= AT_ONCE:
            self._trim_later(0)
            return
        is_paged = any(cursor.is_paged for _, cursor in self.cursors())
        if is_paged and (not most or self.depth - self._delivered > most):
            self._trim_the_table()

    def _trim_later(self, delay_ms: int) -> None:
        """Trim, or go on with it, in a later turn of the loop; once, however often it is said."""
        if not self._is_trim_due:
            self._is_trim_due = True
            self._timers.call_later(delay_ms, self._trim_as_due)

    def _trim_as_due(self) -> None:
        self._is_trim_due = False
        self._trim()

    def _oldest(self) -> MessageReference | None:
        """Have the oldest message that is in memory no more; None if it is in the table only."""
        if self._most:
            delayed = self._delayed.lowest_and_oldest()
        else:
            delayed = next(iter(self._delayed), None)  # all go
        oldest = self._oldest_but(delayed)
        if oldest is None:
            return None
        if oldest is delayed:
            return self._given_up(oldest)
        if self._retries:
            self._retries.pop(oldest.seq, None)
        self._let_go(oldest)
        self.use.release(size_in_store(oldest.record))
        return oldest

    def _oldest_but(self, delayed: MessageReference | None) -> MessageReference | None:
        """Take out the oldest message in memory, unless ``delayed`` is older: then return that."""
        if self._matching is not None:
            return self._matching.take_oldest(delayed)
        ready, returned = self._ready, self._returned
        is_returned = bool(returned) and (not ready or returned[0][0] < ready[0].seq)
        first = returned[0][0] if is_returned else ready[0].seq if ready else None
        if delayed is not None and (first is None or delayed.seq < first):
            return delayed
        if is_returned:
            reference = heapq.heappop(returned)[1]
            self._budget.unclaim(reference.size)
            return reference
        return ready.popleft() if ready else None

    def _given_up(self, delayed: MessageReference) -> MessageReference:
        """Have a message no more that waits for its redelivery; return it."""
        self._delayed.discard(delayed)
        self._drop(delayed)
        self._budget.unclaim(delayed.size)
        self.use.release(size_in_store(delayed.record))
        return delayed

    def _delete(self, references: list[MessageReference]) -> None:
        unit = Unit()
        for reference in references:
            if reference.location is not None:
                unit.delete(reference.location, RemovalReason.DELETED)
        if unit.deleted:
            self._append(unit)

    def _append(self, unit: Unit) -> None:
        try:
            self._journal.append_unit(unit)
        except JournalClosed:
            return  # this node is ending: the next has them, and as many too many

    def _trim_the_table(self) -> None:
        """Delete from the front of what is not in memory."""
        if not self.hold_windows():
            self._trim_later(_AGAIN_MS)
            return
        self._is_trimming = True
        paged = [one for one in self.cursors() if one[1].is_paged]
        queue_id, cursor = paged[-1] if paged else (self.id, self._cursor)
        up_to = min(cursor.tail_seq, self._journal.last_committed_seq)
        self.reader.read(
            Span(queue_id, cursor.read_seq, up_to),
            min(WINDOW_MESSAGES, max(1, self._too_many())),
            MAX_WINDOW_BYTES,
            partial(self._table_read, queue_id, cursor),
            self._end_trimming,
        )

    def _too_many(self) -> int:
        most = self._most
        if most == 0:
            return WINDOW_MESSAGES
        return 0 if most is None else self.depth - self._delivered - most

    def _table_read(self, queue_id: int, cursor: Cursor, window: Window | None) -> None:
        if window is None:
            return
        if not self.is_leaving:
            self._forget_oldest(queue_id, cursor, window)
        self._end_trimming()

    def _forget_oldest(self, queue_id: int, cursor: Cursor, window: Window) -> None:
        """Delete what was read, as far as it is still too much; the rest is read again."""
        unit = Unit()
        passed = window.next_after_seq
        read: dict[int, StoredMessage | None] = {one.seq: one for one in window.messages}
        read.update(dict.fromkeys(corrupt.seq for corrupt in window.corrupt))
        for seq, message in sorted(read.items()):
            if self._too_many() <= 0:
                passed = seq - 1
                break
            size = 0 if message is None else size_in_store(message.record)
            if message is None or cursor.is_withheld(seq):
                pass_one_over(seq, size, cursor, self.use)
            elif self._matching is None or self._matching.drop(queue_id, seq):
                unit.delete(message.location, RemovalReason.DELETED)
                if cursor.is_counted(seq):
                    cursor.unread -= 1
                    self.use.release(size)
        cursor.pass_to(passed)
        if unit.deleted:
            self._append(unit)

    def _end_trimming(self) -> None:
        self._is_trimming = False
        self.release_windows()
        self.dispatch()
        if self._matching is not None:
            self._matching.tidy()  # which is done with every delivery, where there are any
        self._trim()
