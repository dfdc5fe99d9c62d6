"""Browsing a queue: its messages are shown in order, and stay where they are.

A browser reads the store by windows of its own, from the oldest message to the newest that was
stored when it came, those of a higher priority before all others; and shows what is in memory only
in between. What consumers have and did not
acknowledge is shown, too, as in Classic. Nothing of the queue is changed, and no consumer waits.
"""

import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Protocol

from typing_extensions import override

from orthia.broker.core.api import Browser, Done, MessageReference, Settlement
from orthia.broker.core.gate import DeliveryGate
from orthia.broker.core.memory import MemoryBudget, size_in_memory
from orthia.broker.core.selectors import Selector
from orthia.broker.core.settlement import Gone
from orthia.broker.core.slices import GO_ON, Slices, Steps
from orthia.broker.core.subscriptions import Source, Subscription
from orthia.broker.core.timers import Timers
from orthia.config.address_settings import RoutingType
from orthia.config.errors import OrthiaError
from orthia.journal.abc import MessageJournal
from orthia.journal.errors import JournalClosed
from orthia.journal.message import Message
from orthia.journal.windows import Window

LOGGER = logging.getLogger("orthia.broker")
_GONE = Gone()
_WINDOW_MESSAGES = 500
_WINDOW_BYTES = 262_144
_AT_ONCE = 32
"""Messages that are looked at or shown before others have a turn."""
_RETRY_MS = 1_000


class Browsed(Protocol):
    """The queue."""

    name: str

    def type_of_queue(self) -> RoutingType:
        """Return its routing type."""

    def shown_in_memory(self) -> list[tuple[int, list[MessageReference]]]:
        """Return the messages that are not stored, in order, by what others are stored under."""

    def shows(self, record: Message, seq: int) -> bool:
        """Return whether a message is one of the queue: not expired, and nobody's in doubt."""


class BrowserReads:
    """One window at a time for all browsers: those that consumers wait for are not behind many."""

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], bool]] = deque()
        self._is_reading = False

    def ask(self, read: Callable[[], bool]) -> None:
        """Have ``read`` called in its turn; it returns whether it asked for a window."""
        self._waiting.append(read)
        self._next()

    def answered(self) -> None:
        """Note that the window came."""
        self._is_reading = False
        self._next()

    def _next(self) -> None:
        while self._waiting and not self._is_reading:
            self._is_reading = self._waiting.popleft()()


class Browsing(Source[MessageReference]):
    """What one browser is shown; all calls on the loop's thread."""

    def __init__(
        self,
        queue: Browsed,
        browser: Browser,
        selector: Selector | None,
        *,
        journal: MessageJournal,
        budget: MemoryBudget,
        gate: DeliveryGate,
        slices: Slices,
        timers: Timers,
        reads: BrowserReads,
    ) -> None:
        """Begin before the oldest message."""
        self._reads = reads
        self._queue = queue
        self._browser = browser
        self._selector = selector
        self._journal = journal
        self._large = journal.large
        self._budget = budget
        self._gate = gate
        self._slices = slices
        self._timers = timers
        self._subscription: Subscription[MessageReference] | None = None
        self._levels = deque(queue.shown_in_memory())
        self._begin_level()
        self._up_to = journal.last_committed_seq
        self._ready: deque[MessageReference] = deque()
        self._is_reading = False
        self._is_showing = False
        self._is_over = False

    def _begin_level(self) -> None:
        self._queue_id, unstored = self._levels.popleft()
        self._unstored = deque(unstored)
        self._read_to = 0

    def attach(self, prefetch: int, max_bytes: int) -> Subscription[MessageReference]:
        """Return the subscription; messages are shown from its ``resume`` on."""
        self._subscription = Subscription(self, self._budget, self._browser, prefetch, max_bytes)
        return self._subscription

    @override
    def type_of_queue(self) -> RoutingType:
        return self._queue.type_of_queue()

    @override
    def resume(self) -> None:
        if not self._is_showing:
            self._is_showing = True
            self._slices.run(self._show())

    def _show(self) -> Steps:
        try:
            shown = 0
            while self._ready and self._wants_more() and self._gate.may_deliver(self):
                reference = self._ready.popleft()
                self._browser.holds(-reference.size)  # it counts as delivered from here on
                if self._subscription is not None:
                    self._subscription.deliver(reference)
                shown += 1
                if not shown % _AT_ONCE:
                    yield GO_ON
        finally:
            self._is_showing = False
        if self._subscription is None or self._is_over or self._ready or self._is_reading:
            return
        is_read = self._read_to >= self._up_to and not self._unstored
        if is_read and self._levels:
            self._begin_level()
            is_read = False
        if not is_read:
            self._read_on()
        elif self._browser.is_writable:
            self._is_over = True
            self._browser.browsed()

    def _wants_more(self) -> bool:
        return self._subscription is not None and self._subscription.wants_more()

    def _read_on(self) -> None:
        self._is_reading = True
        self._reads.ask(self._read)

    def _read(self) -> bool:
        if self._subscription is None:
            return False
        with suppress(JournalClosed):  # this node is ending, and its clients with it
            self._journal.read_window(
                self._queue_id,
                self._read_to,
                self._up_to,
                _WINDOW_MESSAGES,
                _WINDOW_BYTES,
                self._window_read,
            )
        return True

    def _window_read(self, window: Window | OrthiaError) -> None:
        self._reads.answered()
        if isinstance(window, OrthiaError):
            LOGGER.error(
                "queue %s cannot be browsed on: %s; it is tried again", self._queue.name, window
            )
            self._timers.call_later(_RETRY_MS, self._read_again)
            return
        self._slices.run(self._take(window))

    def _read_again(self) -> None:
        self._is_reading = False
        self.resume()

    def _take(self, window: Window) -> Steps:
        last = self._up_to if window.exhausted else window.next_after_seq
        for index, message in enumerate(window.messages, 1):
            self._take_unstored(message.seq)
            self._add(message.seq, message.record)
            if not index % _AT_ONCE:
                yield GO_ON
        self._take_unstored(None if window.exhausted else last)
        self._read_to = last
        self._is_reading = False
        self.resume()

    def _take_unstored(self, before: int | None) -> None:
        """Take what is in memory only, up to a seq; all of it if there is none."""
        volatile = self._unstored
        while volatile and (before is None or volatile[0].seq < before):
            reference = volatile.popleft()
            self._add(reference.seq, reference.record)

    def _add(self, seq: int, record: Message) -> None:
        if self._subscription is None or not self._queue.shows(record, seq):
            return
        if self._selector is not None and not self._selector.matches(record):
            return
        size = size_in_memory(record)
        self._budget.used += size
        self._browser.holds(size)
        if record.large is not None and self._large is not None:
            self._large.pin(record.large.id)
        # Without a location: nothing that is done with it reaches the store.
        self._ready.append(MessageReference(seq, record, None, size, redelivered=False))

    def _release(self, references: Iterable[MessageReference]) -> None:
        for reference in references:
            self._budget.used -= reference.size
            if reference.record.large is not None and self._large is not None:
                self._large.unpin(reference.record.large.id)

    def _shown(self, references: Sequence[MessageReference]) -> None:
        self._release(references)
        self._budget.unclaim(sum([one.size for one in references]))

    # --- what the subscription says

    @override
    def join(self, subscription: Subscription[MessageReference]) -> None:
        """Do nothing: it is asked each time."""

    @override
    def detach(self, subscription: Subscription[MessageReference]) -> None:
        self._subscription = None
        self._release(self._ready)
        self._browser.holds(-sum(one.size for one in self._ready))
        self._ready.clear()
        self._unstored.clear()

    @override
    def acknowledge(self, taken: Sequence[MessageReference], done: Done | None) -> None:
        self._shown(taken)
        if done is not None:
            done()
        self.resume()

    @override
    def give_back(
        self,
        references: Sequence[MessageReference],
        *,
        attempted: Sequence[MessageReference] = (),
    ) -> None:
        self._shown(references)
        self.resume()

    @override
    def settle(self, taken: Sequence[MessageReference], *, rejected: bool) -> Settlement:
        self._shown(taken)
        self.resume()
        return _GONE

    @override
    def refuse_returned(self) -> None:
        """Refuse nothing: what was shown is still in its queue."""
