# mypyc compiles this module.
"""A queue's bounded window in memory on messages that may all be in the table.

The order of a queue is the order of ``seq``. Three places hold its messages:

- ``_ready``: in memory, not delivered; in order;
- the consumers: delivered, not acknowledged; given back, they go to ``_returned``, a heap whose
  head is always before ``_ready``'s messages of a higher seq;
- the table only: what is ahead of the cursor.
"""

from abc import abstractmethod
from collections.abc import Collection, Set

from typing_extensions import override

from orthia.broker.core.api import MessageReference
from orthia.broker.core.limits.memory import (
    MemoryBudget,
    Refused,
    at_most,
    size_in_memory,
    size_in_store,
)
from orthia.broker.core.limits.quota import AddressUse
from orthia.broker.core.queue.counters import QueueCounters
from orthia.broker.core.queue.cursor import Cursor
from orthia.broker.core.queue.delayed import Delayed
from orthia.broker.core.queue.dispatcher import Dispatcher
from orthia.broker.core.queue.gate import Deliverer, DeliveryGate
from orthia.broker.core.queue.groups import is_grouped
from orthia.broker.core.queue.left_over import pass_over
from orthia.broker.core.queue.levels import Level, Levels
from orthia.broker.core.queue.matching import Matching
from orthia.broker.core.queue.reader import Span, WindowReader
from orthia.broker.core.queue.subscriptions import Subscription
from orthia.broker.core.queue.turns import InTurn
from orthia.broker.core.slices import Slices
from orthia.broker.core.timers import Timers
from orthia.config.addresses import ResolvedAddressSettings
from orthia.config.queues import PLAIN
from orthia.journal.abc import MessageJournal
from orthia.journal.model.message import Message
from orthia.journal.model.windows import StoredMessage, Window

QueueSubscription = Subscription[MessageReference]
WINDOW_MESSAGES = 1_000
"""Messages one read of the table brings at most."""
MIN_WINDOW_BYTES = 65_536
"""What a queue may always read, however full the memory is: it must be able to go on."""
MAX_WINDOW_BYTES = 4 * 1024 * 1024


class WindowedQueue(Dispatcher[MessageReference, MessageReference, InTurn]):
    """A stored queue as far as its messages come into memory; all calls on the loop's thread."""

    # With more than 30 attributes CPython finds each one slower, unless they are slots.
    __slots__ = (
        "_budget", "_cursor", "_delayed", "_delivered", "_is_forgotten", "_is_holder", "_is_stale",
        "_journal", "_journal_full", "_levels", "_matching", "_max_bytes", "_max_messages",
        "_may_group", "_options", "_reading", "_retries", "_subscriptions", "_timers",
        "_window_bytes", "_withheld", "address", "being_replaced", "bytes_in_memory", "counters",
        "id", "is_leaving", "name", "reader", "settings", "use",
    )  # fmt: skip

    def __init__(
        self,
        queue_id: int,
        name: str,
        address: str,
        *,
        settings: ResolvedAddressSettings,
        use: AddressUse,
        journal: MessageJournal,
        journal_full: Refused[Deliverer],
        budget: MemoryBudget,
        timers: Timers,
        gate: DeliveryGate,
        slices: Slices,
        unread_up_to: int,
        withheld: Collection[int],
    ) -> None:
        """Open it; messages up to the seq ``unread_up_to`` are in the table only.

        It notes itself in ``journal_full`` when it reads no more because the journal is full.
        Those with the seqs ``withheld`` stay there: a transaction in doubt has acknowledged them.
        """
        super().__init__(InTurn(), gate.may_deliver, slices)
        self.id = queue_id
        self.name = name
        self.address = address
        self.configure(settings)
        self.use = use
        """What its address holds, this queue's messages among them."""
        self.is_leaving = False
        """Whether it is being deleted: nobody may use it any more."""
        self.counters = QueueCounters()
        self.bytes_in_memory = 0
        self._journal = journal
        self._journal_full = journal_full
        self._budget = budget
        self._timers = timers
        self.reader = WindowReader(name, journal, timers)
        self._delivered = 0
        self._delayed = Delayed()
        self.being_replaced: Set[int] = frozenset()
        """The seqs of messages that a unit deletes which is on its way, with what replaces them."""
        self._retries: dict[int, int] = {}
        """Before when messages are not delivered that an earlier node delivered in vain, by seq."""
        self._subscriptions: dict[QueueSubscription, None] = {}
        """In the order in which they came."""
        self._cursor = Cursor(unread_up_to, withheld)
        self._withheld = withheld
        self._levels: Levels | None = None
        """What it has of each priority, once there is more than one."""
        self._reading = False
        self._is_stale = False
        """Whether what is being read was asked for before others took from the table."""
        self._is_holder = False
        self._is_forgotten = False
        """Whether it was deleted, and what clients still have comes back to nothing."""
        self._options = PLAIN
        self._may_group = True
        """Whether a message of a group would have groups kept together."""
        self._matching: Matching | None = None
        """What delivers while some consumer does not want every message."""

    def configure(self, settings: ResolvedAddressSettings) -> None:
        """Be as the settings of its address say."""
        self.settings = settings
        self._max_bytes = at_most(settings.max_size_bytes)
        self._max_messages = at_most(settings.max_size_messages)
        self._window_bytes = min(MAX_WINDOW_BYTES, max(MIN_WINDOW_BYTES, settings.page_size_bytes))

    # --- what others see

    @property
    def consumers(self) -> int:
        """How many consumers are attached."""
        return len(self._subscriptions)

    @property
    def subscriptions(self) -> list[QueueSubscription]:
        """The consumers that are attached, in no order."""
        return list(self._subscriptions)

    @property
    def in_memory(self) -> int:
        """How many messages are in memory, delivered ones included."""
        matching = self._matching
        matched = 0 if matching is None else matching.in_memory
        waiting = len(self._ready) + len(self._returned) + matched
        return waiting + self._delivered + len(self._delayed)

    @property
    def depth(self) -> int:
        """How many messages the queue has, as far as they are counted yet."""
        levels = self._levels
        of_others = 0 if levels is None else levels.unread
        return self.in_memory + self._cursor.unread + of_others

    @property
    def is_paged(self) -> bool:
        """Whether some of its messages are in the table only."""
        return self._cursor.is_paged

    def takes_in_memory(self, size: int) -> bool:
        """Return whether a new message of ``size`` bytes would be kept in memory."""
        cursor = self._cursor
        return cursor.read_seq >= cursor.tail_seq and self._has_room(size)

    def _has_room(self, size: int) -> bool:
        most, most_messages = self._max_bytes, self._max_messages
        return (
            (most is None or self.bytes_in_memory + size <= most)
            and (most_messages is None or self.in_memory < most_messages)
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
        record = reference.record
        # As ``may_be_grouped``, which for each message would be a call. Not ``in``: bytes look for
        # a number first, and make an exception of what is none.
        may_be = self._may_group and (record.head.find(b"ID:") >= 0 or record.stated)
        if may_be and is_grouped(record):
            self.has_groups()
        if self._levels is not None:
            level = self._levels.get(record.priority)
            if level is not None and level is not self._levels.own:
                self._place_in(level, reference)
                return
        if reference.location is not None and not self.takes_in_memory(reference.size):
            tail_before = self._cursor.tail_seq
            self._cursor.leave(reference.seq)
            if self._matching is not None:
                self._matching.left(reference, self.id, tail_before)
            return
        self._keep(reference)
        self._ready.append(reference)

    @abstractmethod
    def _place_in(self, level: Level, reference: MessageReference) -> None:
        """Take a message of a level that is not the queue's own."""

    # --- being browsed

    def shows(self, record: Message, seq: int) -> bool:
        """Return whether a message is to be seen: not expired, and in no transaction in doubt."""
        expires = record.expires_ms
        is_expired = bool(expires) and expires <= self._timers.time_ms()
        return not is_expired and not self._cursor.is_withheld(seq)

    # --- in memory

    def _keep(self, reference: MessageReference) -> None:
        self.bytes_in_memory += reference.size
        self._budget.used += reference.size
        if not self._is_holder:
            self.hold()

    def hold(self) -> None:
        """Have this queue asked to shed when another needs room."""
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
        if self._matching is not None:
            return self._shed_matched(self._matching, size)
        ready = self._ready
        if self._subscriptions or self._reading:
            size = 0
        while size > 0 and ready and ready[-1].location is not None:
            reference = ready.pop()
            self._let_go(reference)
            self._cursor.leave_again(reference.seq)
            size -= reference.size
        self._is_holder = self.in_memory > 0
        return self._is_holder

    # --- reading on from the table

    def _refill(self) -> None:
        if self._reading or not self.is_paged or not self._subscriptions:
            return
        if self._matching is not None:
            return  # which reads for itself
        if len(self._ready) > WINDOW_MESSAGES // 4:
            return
        if self._journal.is_full:
            self._journal_full.note(self)  # what leaves the queue is work for the journal
            return
        if not self._ready:
            self._budget.make_room(self._window_bytes)
        room = self._budget.room
        if self._max_bytes is not None:
            room = min(room, self._max_bytes - self.bytes_in_memory)
        if room < MIN_WINDOW_BYTES and (self._ready or not self._turns.is_wanted):
            return  # read on once what is in memory is delivered and a consumer wants more
        up_to = min(self._cursor.tail_seq, self._journal.last_committed_seq)
        self._reading = True
        if not self.reader.read(
            Span(self.id, self._cursor.read_seq, up_to),
            WINDOW_MESSAGES,
            min(self._window_bytes, max(MIN_WINDOW_BYTES, room)),
            self._window_read,
            self.resume,
        ):
            self._reading = False

    def _window_read(self, window: Window | None) -> None:
        self._reading = False
        if self._is_stale:
            self._is_stale = False
            self._plain_window_answered()
            self.dispatch()
            return
        if window is None or self.is_leaving:
            return
        self.reader.report_corrupt(window)
        has_groups = False
        for message in window.messages:
            if not self._cursor.is_withheld(message.seq):
                self._ready.append(self.loaded(message, self._cursor))
                if self._may_group and is_grouped(message.record):
                    has_groups = True
        pass_over(window, self._cursor, self.use)
        self._cursor.pass_to(window.next_after_seq)
        if has_groups:
            self.has_groups()
        self.dispatch()

    def loaded(self, message: StoredMessage, cursor: Cursor) -> MessageReference:
        """Have a message in memory that was in the table only, where ``cursor`` is."""
        seq, record = message.seq, message.record
        size = size_in_memory(record)
        if cursor.is_counted(seq):
            cursor.unread -= 1
        else:
            self.use.add(size_in_store(record))
        old = cursor.is_old(seq)
        reference = MessageReference(seq, record, message.location, size, redelivered=old)
        if message.attempts:
            reference.attempts = message.attempts
            if message.retry_ms:
                self._retries[seq] = message.retry_ms
        self._keep(reference)
        return reference

    def hold_windows(self) -> bool:
        """Read no window until ``release_windows``; return False if one is on its way."""
        if self._reading:
            return False
        self._reading = True
        return True

    def release_windows(self) -> None:
        """Read on."""
        self._reading = False
        self._plain_window_answered()
        self._refill()

    def _plain_window_answered(self) -> None:
        if self._matching is not None:
            self._matching.plain_window_answered()

    @override
    def dispatch(self) -> bool:
        if self._matching is not None:
            return self._dispatch_matched(self._matching)
        is_done = Dispatcher.dispatch(self)  # for each message: ``super`` would cost more
        cursor = self._cursor
        if is_done and cursor.read_seq < cursor.tail_seq:
            self._refill()
        return is_done

    @override
    def join(self, subscription: QueueSubscription) -> None:
        if self._matching is None:
            self._turns.join(subscription)
        else:
            self._matching.join(subscription)

    @override
    def resume(self) -> None:
        if self._matching is not None:
            self._matching.resume()
        self._refill()
        self.dispatch()

    # --- being deleted

    def leave(self, reason: str) -> None:
        """End every consumer for a ``reason``, and deliver nothing any more."""
        self.is_leaving = True
        for subscription in self.subscriptions:
            subscription.fail(reason)

    # --- consumers that do not want every message: see ``orthia.broker.core.queue.selective``

    @abstractmethod
    def has_groups(self) -> None:
        """Keep groups together from here on: a message of one came."""

    @abstractmethod
    def _dispatch_matched(self, matching: Matching) -> bool:
        """Deliver as ``dispatch`` does, by ``matching``, to consumers with selectors."""

    @abstractmethod
    def _shed_matched(self, matching: Matching, size: int) -> bool:
        """Shed as ``shed`` does what that machine holds."""
