# mypyc compiles this module.
"""Showing a queue's messages to somebody who takes nothing out of it.

They are read from the store by windows, a bounded number at a time, from a place that is the
reader's own; the queue is not changed, and no other reader waits. What is acknowledged or given
back gives credit, and that is all.
"""

import heapq
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from typing import Final, Protocol

from typing_extensions import override

from orthia.broker.core.api import Answer, Consumer, Done, MessageReference, Settlement
from orthia.broker.core.limits.memory import size_in_memory
from orthia.broker.core.queue.reader import Span, WindowReader
from orthia.broker.core.queue.services import QueueServices
from orthia.broker.core.queue.settlement import Gone
from orthia.broker.core.queue.subscriptions import Source, Subscription
from orthia.broker.core.selectors import Selector
from orthia.broker.core.slices import GO_ON, Steps
from orthia.config.address_settings import RoutingType
from orthia.journal.model.message import Message
from orthia.journal.model.windows import Window

AT_ONCE: Final = 32
"""Messages that are looked at or shown before others have a turn; with a selector, one: to match
it may take as long as all that."""
_GONE = Gone()
_WINDOW_MESSAGES = 500
_WINDOW_BYTES = 262_144


class Shown(Protocol):
    """The queue."""

    reader: WindowReader

    def type_of_queue(self) -> RoutingType:
        """Return its routing type."""

    def shows(self, record: Message, seq: int) -> bool:
        """Return whether a message is one of the queue: not expired, and nobody's in doubt."""


class Showing(Source[MessageReference]):
    """What one consumer is shown; all calls on the loop's thread."""

    def __init__(
        self,
        queue: Shown,
        consumer: Consumer,
        selector: Selector | None,
        services: QueueServices,
    ) -> None:
        """Begin with nothing: ``_go_on`` says what is read."""
        self._queue = queue
        self._consumer = consumer
        self._selector = selector
        self._large = services.journal.large
        self._budget = services.budget
        self._gate = services.gate
        self._slices = services.slices
        self._at_once = AT_ONCE if selector is None else 1
        self._reads = services.read_turns
        self._subscription: Subscription[MessageReference] | None = None
        self._ready: list[tuple[int, int, int, MessageReference]] = []
        """What is to be shown: a heap, by the rank of its level and by seq, which is followed by
        what it is stored under."""
        self._is_showing = False
        self._is_reading = False
        self._withheld_for = 0
        """Which read of messages it is for which bodies are withheld from removal."""
        self._queue_id = 0
        """Under which id messages are stored that are read at this moment."""
        self._rank = 0
        """Of all levels the one of the lowest rank is shown first."""
        self._read_to = 0
        self._up_to = 0

    def attach(self, prefetch: int, max_bytes: int) -> Subscription[MessageReference]:
        """Return the subscription; messages are shown from its ``resume`` on."""
        self._subscription = Subscription(self, self._budget, self._consumer, prefetch, max_bytes)
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
            looked_at = 0
            while (
                self._ready
                and self._is_next_known()
                and self._wants_more()
                and self._gate.may_deliver(self)
            ):
                _, _, queue_id, reference = heapq.heappop(self._ready)
                self._consumer.holds(-reference.size)  # it counts as delivered from here on
                if self._subscription is None or not self._is_there(queue_id, reference):
                    self._release((reference,))
                else:
                    self._subscription.deliver(reference)
                looked_at += 1
                if not looked_at % self._at_once:
                    yield GO_ON
        finally:
            self._is_showing = False
        if self._subscription is None or self._is_reading:
            return
        if not self._ready or not self._is_next_known():
            self._go_on()

    def _wants_more(self) -> bool:
        return self._subscription is not None and self._subscription.wants_more()

    def _is_there(self, queue_id: int, reference: MessageReference) -> bool:
        """Return whether a message is to be shown that was read, or came, a while ago."""
        del queue_id, reference
        return True

    def _is_next_known(self) -> bool:
        """Return whether what is the first in ``_ready`` is to be shown next."""
        return True

    @abstractmethod
    def _go_on(self) -> None:
        """Read more, if there is more: what was read is shown, or is not the next."""

    def _read_on(self) -> None:
        self._is_reading = True
        self._reads.ask(self._consumer.connection, self._read)

    def _read(self) -> bool:
        if self._subscription is None:
            return False
        if self._large is not None:
            # Others take messages while they are read, and their bodies go.
            self._withheld_for = self._large.withhold()
        span = Span(self._queue_id, self._read_to, self._up_to)
        self._queue.reader.read(
            span, _WINDOW_MESSAGES, _WINDOW_BYTES, self._window_read, self._read_again
        )
        return True

    def _window_read(self, window: Window | None) -> None:
        self._reads.answered()
        if window is None:
            self._let_go()
            return
        self._slices.run(self._take(window))

    def _read_again(self) -> None:
        self._is_reading = False
        self.resume()

    def _take(self, window: Window) -> Steps:
        self._queue.reader.report_corrupt(window)
        last = self._up_to if window.exhausted else window.next_after_seq
        try:
            for index, message in enumerate(window.messages, 1):
                self._come_to(message.seq)
                self._add(message.seq, message.record)
                if not index % self._at_once:
                    yield GO_ON
        finally:
            self._let_go()
        self._come_to(None if window.exhausted else last)
        self._read_to = last
        self._has_read()
        self._is_reading = False
        self.resume()

    def _let_go(self) -> None:
        if self._large is not None:
            self._large.let_go(self._withheld_for)

    def _has_read(self) -> None:
        """Note that all of a window was taken."""

    def _come_to(self, seq: int | None) -> None:
        """Add what is before a seq and in no window; all of it if there is none."""

    def _add(self, seq: int, record: Message) -> None:
        if self._subscription is None or not self._queue.shows(record, seq):
            return
        if self._selector is None or self._selector.matches(record):
            self._keep(self._rank, self._queue_id, seq, record)

    def _keep(self, rank: int, queue_id: int, seq: int, record: Message) -> None:
        size = size_in_memory(record)
        self._budget.used += size
        self._consumer.holds(size)
        if record.large is not None and self._large is not None:
            self._large.pin(record.large.id)
        # Without a location: nothing that is done with it reaches the store.
        reference = MessageReference(seq, record, None, size, redelivered=False)
        heapq.heappush(self._ready, (rank, seq, queue_id, reference))

    def _release(self, references: Iterable[MessageReference]) -> None:
        for reference in references:
            self._budget.used -= reference.size
            if reference.record.large is not None and self._large is not None:
                self._large.unpin(reference.record.large.id)

    def _answered(self, references: Sequence[MessageReference]) -> None:
        self._release(references)
        self._budget.unclaim(sum([one.size for one in references]))

    # --- what the subscription says

    @override
    def join(self, subscription: Subscription[MessageReference]) -> None:
        """Do nothing: it is asked each time."""

    @override
    def detach(self, subscription: Subscription[MessageReference]) -> None:
        self._subscription = None
        references = [one[-1] for one in self._ready]
        self._ready.clear()
        self._release(references)
        self._consumer.holds(-sum(one.size for one in references))

    @override
    def is_looking_for(self, subscription: Subscription[MessageReference]) -> bool:
        return self._is_showing or self._is_reading

    @override
    def acknowledge(self, taken: Sequence[MessageReference], done: Done | None) -> None:
        self._answered(taken)
        if done is not None:
            done()
        self.resume()

    @override
    def give_back(
        self,
        references: Sequence[MessageReference],
        *,
        attempted: Sequence[MessageReference] = (),
        is_last: bool = False,
        done: Done | None = None,
    ) -> None:
        self._answered(references)
        if done is not None:
            done()
        self.resume()

    @override
    def settle(self, taken: Sequence[MessageReference], answer: Answer) -> Settlement:
        self._answered(taken)
        self.resume()
        return _GONE

    @override
    def refuse_returned(self) -> None:
        """Refuse nothing: what was shown is still in its queue."""
