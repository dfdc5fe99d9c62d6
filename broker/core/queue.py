"""A queue: a bounded window in memory on messages that may all be in the table, and its consumers.

The order of a queue is the order of ``seq``. Three places hold its messages:

- ``_ready``: in memory, not delivered; in order;
- the consumers: delivered, not acknowledged; given back, they go to ``_returned``, a heap whose
  head is always before ``_ready``'s messages of a higher seq;
- the table only: everything with ``_read_seq < seq <= _tail_seq``. While there is such a stretch
  the queue is *paged*: what comes new only moves ``_tail_seq``, and the window reads on from
  ``_read_seq``. Since it never reads beyond ``_tail_seq``, nothing is met twice.

A queue of an earlier epoch starts with everything unread up to the recovery horizon, so that
taking over costs nothing for its backlog. How much that is, ``orthia.broker.core.backlog`` counts
later.
"""

import heapq
import logging
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from orthia.broker.core.api import Consumer, LimitExceeded, MessageReference
from orthia.broker.core.consumers import QueueSubscription, Turns
from orthia.broker.core.memory import (
    MESSAGE_OVERHEAD,
    MemoryBudget,
    Refused,
    size_in_memory,
    size_in_store,
)
from orthia.broker.core.quota import AddressUse
from orthia.broker.core.slices import GO_ON, Slices, Steps
from orthia.broker.quoting import quoted
from orthia.config.addresses import ResolvedAddressSettings
from orthia.config.errors import OrthiaError
from orthia.config.settings import RoutingType
from orthia.journal.abc import MessageJournal
from orthia.journal.errors import JournalClosed
from orthia.journal.message import RECORD_OVERHEAD
from orthia.journal.windows import StoredMessage, Window

LOGGER = logging.getLogger("orthia.broker")
WINDOW_MESSAGES = 1_000
"""Messages one read of the table brings at most."""
MIN_WINDOW_BYTES = 65_536
"""What a queue may always read, however full the memory is: it must be able to go on."""
MAX_WINDOW_BYTES = 4 * 1024 * 1024
BACK_OFF_MS = 10_000
"""How long a message waits that was delivered too often and has nowhere else to go."""
_AT_ONCE = 128
"""How many messages are delivered or taken back before others have a turn."""
RETRY_MS = 1_000
"""When a window that could not be read is asked for again."""


@dataclass(slots=True)
class QueueCounters:
    """What happened to a queue's messages on this node since it became live."""

    added: int = 0
    acknowledged: int = 0
    expired: int = 0
    dead_lettered: int = 0
    redelivered: int = 0

    def add(self, other: "QueueCounters") -> None:
        """Count what ``other`` counted too."""
        self.added += other.added
        self.acknowledged += other.acknowledged
        self.expired += other.expired
        self.dead_lettered += other.dead_lettered
        self.redelivered += other.redelivered


class Disposal(Protocol):
    """What becomes of a message its queue cannot deliver."""

    def expire(self, queue: "Queue", reference: MessageReference) -> None:
        """Move it to the expiry address, or drop it."""

    def dead_letter(self, queue: "Queue", reference: MessageReference) -> bool:
        """Move it to the dead-letter address, or drop it; False if it has to stay."""


class Timers(Protocol):
    """The loop's clock and timers."""

    @property
    def time_ms(self) -> Callable[[], int]:
        """Milliseconds since 1970 UTC, for ``expires`` headers only."""

    def call_later(self, delay_ms: int, callback: Callable[[], None]) -> None:
        """Call back on the loop."""


class Queue:
    """One queue; all calls on the loop's thread."""

    # With more than 30 attributes CPython finds each one slower, unless they are slots.
    __slots__ = (
        "_budget", "_counted_to", "_delayed", "_delivered", "_dispatching", "_disposal",
        "_has_more", "_held", "_is_forgotten", "_is_going_on", "_is_holder", "_journal",
        "_journal_full", "_may_deliver", "_old_tail", "_read_seq", "_reading", "_ready",
        "_returned", "_slices", "_subscriptions", "_tail_seq", "_timers", "_turns", "_unread",
        "_window_bytes", "_withheld", "address", "bytes_in_memory", "counters", "durable", "id",
        "is_leaving", "max_consumers", "name", "routing_type", "settings", "use", "user",
    )  # fmt: skip

    def __init__(
        self,
        queue_id: int,
        name: str,
        address: str,
        routing_type: RoutingType,
        *,
        durable: bool,
        settings: ResolvedAddressSettings,
        use: AddressUse,
        journal: MessageJournal,
        budget: MemoryBudget,
        disposal: Disposal,
        timers: Timers,
        may_deliver: Callable[["Queue"], bool],
        slices: Slices,
        journal_full: Refused["Queue"],
        unread_up_to: int = 0,
        withheld: Collection[int] = (),
        max_consumers: int = -1,
    ) -> None:
        """Open a queue; its messages up to the seq ``unread_up_to`` are in the table only.

        It notes itself in ``journal_full`` when it reads no more because the journal is full.
        Those with the seqs ``withheld`` stay there: a transaction in doubt has acknowledged them.
        """
        self.id = queue_id
        self.name = name
        self.address = address
        self.routing_type = routing_type
        self.durable = durable
        self.settings = settings
        self.max_consumers = max_consumers
        """Consumers there may be at a time; -1 for any number."""
        self.use = use
        """What its address holds, this queue's messages among them."""
        self.user: str | None = None
        """Who had it created; None if that was no client, or nobody known."""
        self.is_leaving = False
        self._is_forgotten = False
        """Whether it is being deleted: nobody may use it any more."""
        self.counters = QueueCounters()
        self.bytes_in_memory = 0
        self._window_bytes = min(MAX_WINDOW_BYTES, max(MIN_WINDOW_BYTES, settings.page_size_bytes))
        self._journal = journal
        self._budget = budget
        self._disposal = disposal
        self._timers = timers
        self._may_deliver = may_deliver
        self._slices = slices
        self._journal_full = journal_full
        self._ready: deque[MessageReference] = deque()
        self._returned: list[tuple[int, MessageReference]] = []
        self._delivered = 0
        self._delayed: set[MessageReference] = set()
        self._subscriptions: set[QueueSubscription] = set()
        self._turns = Turns()
        self._read_seq = 0
        self._tail_seq = unread_up_to
        self._counted_to = 0
        self._unread = 0
        self._old_tail = unread_up_to
        self._withheld = withheld
        self._reading = False
        self._dispatching = False
        self._is_going_on = False
        self._has_more = False
        self._held = 0
        """How often many messages are on their way back: until all are, none is delivered, since
        those that come back first may not be the oldest."""
        self._is_holder = False

    # --- what others see

    @property
    def consumers(self) -> int:
        """How many consumers are attached."""
        return len(self._subscriptions)

    @property
    def takes_consumers(self) -> bool:
        """Whether another consumer may be attached."""
        return not 0 <= self.max_consumers <= len(self._subscriptions)

    @property
    def in_memory(self) -> int:
        """How many messages are in memory, delivered ones included."""
        return len(self._ready) + len(self._returned) + self._delivered + len(self._delayed)

    @property
    def depth(self) -> int:
        """How many messages the queue has, as far as they are counted yet."""
        return self.in_memory + self._unread

    @property
    def is_paged(self) -> bool:
        """Whether some of its messages are in the table only."""
        return self._read_seq < self._tail_seq

    def takes_in_memory(self, size: int) -> bool:
        """Return whether a new message of ``size`` bytes would be kept in memory."""
        return not self.is_paged and self._has_room(size)

    def _has_room(self, size: int) -> bool:
        limits = self.settings
        return (
            (limits.max_size_bytes < 0 or self.bytes_in_memory + size <= limits.max_size_bytes)
            and (limits.max_size_messages < 0 or self.in_memory < limits.max_size_messages)
            and self._budget.has_room(size)
        )

    # --- coming in

    def add(self, reference: MessageReference) -> None:
        """Take a message that is stored, or that is in memory only; in the order of seq."""
        self.place(reference)
        if self._subscriptions:
            self.dispatch()

    def place(self, reference: MessageReference) -> None:
        """Take a message as ``add`` does, of several of which none is to be delivered yet."""
        self.counters.added += 1
        if reference.location is not None and not self.takes_in_memory(reference.size):
            if not self.is_paged:
                # Whatever lies before is in memory: only from here on is there something to read.
                self._read_seq = max(self._read_seq, reference.seq - 1)
            self._tail_seq = reference.seq
            self._unread += 1
            return
        self._keep(reference)
        self._ready.append(reference)

    def _keep(self, reference: MessageReference) -> None:
        self.bytes_in_memory += reference.size
        self._budget.used += reference.size
        if not self._is_holder:
            self._is_holder = True
            self._budget.register(self)

    def _let_go(self, reference: MessageReference) -> None:
        self.bytes_in_memory -= reference.size
        self._budget.used -= reference.size

    def shed(self, size: int) -> bool:
        """Leave the newest messages, up to ``size`` bytes, to the table: nobody consumes here.

        Whatever was ever delivered is before them, so that reading on meets none of it again.
        """
        ready = self._ready
        if self._subscriptions or self._reading:
            size = 0
        while size > 0 and ready and ready[-1].location is not None:
            reference = ready.pop()
            self._let_go(reference)
            self._unread += 1
            self._tail_seq = max(self._tail_seq, reference.seq)
            self._read_seq = reference.seq - 1
            size -= reference.size
        self._is_holder = self.in_memory > 0
        return self._is_holder

    # --- reading on from the table

    def _refill(self) -> None:
        if self._reading or not self.is_paged or not self._subscriptions:
            return
        if len(self._ready) > WINDOW_MESSAGES // 4:
            return
        if self._journal.is_full:
            self._journal_full.note(self)  # what leaves the queue is work for the journal
            return
        if not self._ready:
            self._budget.make_room(self._window_bytes)
        limit, room = self.settings.max_size_bytes, self._budget.room
        if limit >= 0:
            room = min(room, limit - self.bytes_in_memory)
        if room < MIN_WINDOW_BYTES and (self._ready or not self._turns.is_wanted):
            return  # reading on can wait until what is here is gone, and somebody takes more
        self._reading = True
        try:
            self._journal.read_window(
                self.id,
                self._read_seq,
                min(self._tail_seq, self._journal.last_committed_seq),
                WINDOW_MESSAGES,
                min(self._window_bytes, max(MIN_WINDOW_BYTES, room)),
                self._window_read,
            )
        except JournalClosed:
            self._reading = False  # this node is ending: the table is left to the next

    def _window_read(self, window: Window | OrthiaError) -> None:
        self._reading = False
        if self.is_leaving:
            return
        if isinstance(window, OrthiaError):
            LOGGER.error("queue %s cannot be read on: %s; it is tried again", self.name, window)
            self._timers.call_later(RETRY_MS, self.resume)
            return
        for corrupt in window.corrupt:
            LOGGER.error("queue %s: %s; its row stays in the table", self.name, corrupt)
        for message in window.messages:
            if message.seq not in self._withheld:
                self._ready.append(self._loaded(message))
        self._read_seq = max(self._read_seq, window.next_after_seq)
        if self._counted_to < self._read_seq:
            self._counted_to = self._read_seq
        self.dispatch()

    def _loaded(self, message: StoredMessage) -> MessageReference:
        old = message.seq <= self._old_tail
        record = message.record
        size = size_in_memory(record)
        if not old or message.seq <= self._counted_to:
            self._unread -= 1
        else:
            self.use.add(size_in_store(record))
        reference = MessageReference(message.seq, record, message.location, size, redelivered=old)
        self._keep(reference)
        return reference

    # --- counting what earlier epochs left

    @property
    def uncounted_after(self) -> int | None:
        """The seq behind which messages of earlier epochs are not counted; None if all are."""
        after = max(self._counted_to, self._read_seq)
        return after if after < self._old_tail and not self.is_leaving else None

    def counted(self, after: int, up_to: int, messages: int, payload_bytes: int) -> None:
        """Take note of how many messages the store has with ``after < seq <= up_to``.

        And of how many bytes, as the journal counts them, which is not as ``use`` does.
        If a window was read since that was asked for, some of them are in memory or gone by now,
        and nobody can say how many: then nothing is noted, and ``uncounted_after`` has moved.
        """
        if self.uncounted_after != after:
            return
        self._unread += messages
        outside = RECORD_OVERHEAD + len(self.address.encode())
        self.use.add(payload_bytes + messages * (MESSAGE_OVERHEAD - outside), messages)
        self._counted_to = min(up_to, self._old_tail)
        if not self._unread and self._counted_to == self._old_tail:
            self._read_seq = max(self._read_seq, self._tail_seq)  # there is nothing to read

    def hold_windows(self) -> bool:
        """Read no window until ``release_windows``; return False if one is on its way."""
        if self._reading:
            return False
        self._reading = True
        return True

    def release_windows(self) -> None:
        """Read on."""
        self._reading = False
        self._refill()

    # --- going out

    def attach(self, consumer: Consumer, prefetch: int, max_bytes: int) -> QueueSubscription:
        """Add a consumer; deliveries begin with its ``resume``. Raises LimitExceeded."""
        if not self.takes_consumers:
            raise LimitExceeded(
                f"queue {quoted(self.name)} has max-consumers {self.max_consumers} already"
            )
        subscription = QueueSubscription(
            self, self._turns, self._budget, consumer, prefetch, max_bytes
        )
        self._subscriptions.add(subscription)
        self._turns.join(subscription)
        return subscription

    def detach(self, subscription: QueueSubscription) -> None:
        """Remove a consumer that was closed."""
        self._subscriptions.remove(subscription)
        self._turns.leave(subscription)

    def dispatch(self) -> None:
        """Deliver while there is a message, a consumer that takes it, and a valid lease.

        What that leaves to do is done in later turns of the loop.
        """
        if self._dispatching or self._held:
            return
        self._dispatching = True
        most = _AT_ONCE
        try:
            while (self._ready or self._returned) and self._may_deliver(self):
                if not most:
                    self._go_on_later()
                    return
                most -= 1
                subscription = self._turns.next()
                if subscription is None:
                    break
                reference = self._pop()
                expires = reference.record.expires_ms
                if expires and expires <= self._timers.time_ms():
                    self.counters.expired += 1
                    self._let_go(reference)
                    self.use.release(size_in_store(reference.record))
                    self._disposal.expire(self, reference)
                    continue
                self._delivered += 1
                self._budget.claim(reference.size)
                subscription.deliver(reference)
        finally:
            self._dispatching = False
        if self.is_paged:
            self._refill()

    def _go_on_later(self) -> None:
        self._has_more = True
        if not self._is_going_on:
            self._is_going_on = True
            self._slices.later(self._going_on())

    def _going_on(self) -> Steps:
        try:
            while self._has_more:
                self._has_more = False
                self.dispatch()
                yield GO_ON
        finally:
            self._is_going_on = False

    def _pop(self) -> MessageReference:
        ready, returned = self._ready, self._returned
        if returned and (not ready or returned[0][0] < ready[0].seq):
            reference = heapq.heappop(returned)[1]
            self._budget.unclaim(reference.size)
            return reference
        return ready.popleft()

    # --- coming back

    def acknowledged(self, references: Sequence[MessageReference]) -> None:
        """Forget delivered messages; their rows are deleted by the caller."""
        self._delivered -= len(references)
        self.counters.acknowledged += len(references)
        size = large = 0
        for reference in references:
            size += reference.size
            body = reference.record.large
            if body is not None:
                large += body.size
        self.bytes_in_memory -= size
        self._budget.used -= size
        self._budget.unclaim(size)
        if references:
            self.use.release(size + large, len(references))

    def restore(self, references: Sequence[MessageReference]) -> None:
        """Take back that these were ``acknowledged``: their rows stay. They are delivered again."""
        self._delivered += len(references)
        self.counters.acknowledged -= len(references)
        size = sum([reference.size for reference in references])
        self.bytes_in_memory += size
        self._budget.used += size
        self._budget.claim(size)
        stored = sum([size_in_store(reference.record) for reference in references])
        self.use.add(stored, len(references))

    def give_back(
        self, references: Sequence[MessageReference], *, attempted: Sequence[MessageReference] = ()
    ) -> None:
        """Take delivered messages back in their place, and deliver them again.

        The ``attempted`` were delivered in vain. Of many the rest comes in later turns of the loop.
        """
        in_vain = set(attempted)
        if len(references) <= _AT_ONCE:
            self._give_some_back(references, in_vain)
            self.dispatch()
        else:
            self._slices.run(self._giving_back(references, in_vain))

    def _giving_back(
        self, references: Sequence[MessageReference], in_vain: set[MessageReference]
    ) -> Steps:
        self._held += 1
        try:
            for first in range(0, len(references), _AT_ONCE):
                self._give_some_back(references[first : first + _AT_ONCE], in_vain)
                yield GO_ON
        except Exception:
            self._timers.call_later(0, self.dispatch)  # the others are not held for what failed
            raise
        finally:
            self._held -= 1
        self.dispatch()

    def _give_some_back(
        self, references: Sequence[MessageReference], in_vain: set[MessageReference]
    ) -> None:
        self._delivered -= len(references)
        if self._is_forgotten:
            self._budget.unclaim(sum([one.size for one in references]))
            for lost in [one for one in references if one.location is None]:
                self.use.release(size_in_store(lost.record))
            return
        if self.is_leaving:
            in_vain = set()  # what is moved from here on would be deleted here, too
        later: dict[int, list[MessageReference]] = {}
        for reference in references:
            reference.redelivered = True
            delay_ms = self._after_attempt(reference) if reference in in_vain else 0
            if delay_ms is None:
                continue
            self.counters.redelivered += 1
            if delay_ms:
                later.setdefault(delay_ms, []).append(reference)
            else:
                heapq.heappush(self._returned, (reference.seq, reference))
        for delay_ms, delayed in later.items():
            self._delayed.update(delayed)
            self._timers.call_later(delay_ms, partial(self._after_delay, delayed))

    def _after_attempt(self, reference: MessageReference) -> int | None:
        """Count an attempt; return when to try again, or None if the message is a dead letter."""
        reference.attempts += 1
        delay_ms = self.settings.redelivery_delay
        if not 0 < self.settings.max_delivery_attempts <= reference.attempts:
            return delay_ms
        if not self._disposal.dead_letter(self, reference):
            return max(delay_ms, BACK_OFF_MS)
        self.counters.dead_lettered += 1
        self._let_go(reference)
        self.use.release(size_in_store(reference.record))
        self._budget.unclaim(reference.size)
        return None

    def take_back(self, reference: MessageReference) -> None:
        """Have a message again that was let go to be moved, and could not be: after a while."""
        self._keep(reference)
        self.use.add(size_in_store(reference.record))
        self._budget.claim(reference.size)
        self._delayed.add(reference)
        self._timers.call_later(BACK_OFF_MS, partial(self._after_delay, [reference]))

    def _after_delay(self, references: list[MessageReference]) -> None:
        back = [one for one in references if one in self._delayed]  # or it was forgotten
        self._delayed.difference_update(back)
        for reference in back:
            heapq.heappush(self._returned, (reference.seq, reference))
        self.dispatch()

    # --- being deleted

    def leave(self, reason: str) -> None:
        """End every consumer for a ``reason``, and deliver nothing any more."""
        self.is_leaving = True
        for subscription in list(self._subscriptions):
            subscription.fail(reason)

    def forget_memory(self) -> int:
        """Forget what is in memory; return how many messages were nowhere else."""
        self._is_forgotten = True  # what clients that are ended still have is given back later
        claimed = [*(one for _, one in self._returned), *self._delayed]
        references = [*self._ready, *claimed]
        self._ready.clear()
        self._returned.clear()
        self._delayed.clear()
        self._budget.used -= self.bytes_in_memory
        self.bytes_in_memory = self._unread = 0
        self._budget.unclaim(sum([one.size for one in claimed]))
        lost = [one for one in references if one.location is None]
        for one in lost:
            self.use.release(size_in_store(one.record))
        return len(lost)

    def release_deleted(self, seq: int, size: int) -> None:
        """Have a message of ``size`` bytes count no more that was read to be deleted."""
        if seq > self._old_tail or seq <= self._counted_to:
            self.use.release(size)

    def resume(self) -> None:
        """Go on reading and delivering."""
        self._refill()
        self.dispatch()
