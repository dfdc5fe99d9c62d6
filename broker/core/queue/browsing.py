# mypyc compiles this module.
"""Browsing a queue: its messages are shown in order, and stay where they are.

A browser is shown what is there when it comes: what is stored from the oldest message to the
newest, those of a higher priority before all others; and what is in memory only in between. It
begins when all is stored that was done before it came: what was acknowledged is not shown. What
consumers have and did not acknowledge is shown, too, as in Classic.
"""

from collections import deque
from typing import Protocol

from typing_extensions import override

from orthia.broker.core.api import Browser, MessageReference
from orthia.broker.core.errors import NotLive
from orthia.broker.core.queue.services import QueueServices
from orthia.broker.core.queue.showing import Showing, Shown
from orthia.broker.core.queue.subscriptions import Subscription
from orthia.broker.core.selectors import Selector
from orthia.journal.errors import JournalClosed
from orthia.journal.model.unit import Unit


class _Browsed(Shown, Protocol):
    """The queue."""

    def shown_in_memory(self) -> list[tuple[int, list[MessageReference]]]:
        """Return the messages that are not stored, in order, by what others are stored under."""


class Browsing(Showing):
    """What one browser is shown; all calls on the loop's thread."""

    def __init__(
        self,
        queue: _Browsed,
        browser: Browser,
        selector: Selector | None,
        services: QueueServices,
    ) -> None:
        """Begin before the oldest message."""
        super().__init__(queue, browser, selector, services)
        self._in_memory = queue.shown_in_memory
        self._browser = browser
        self._journal = services.journal
        self._levels: deque[tuple[int, list[MessageReference]]] = deque()
        self._unstored: deque[MessageReference] = deque()
        self._is_reading = True  # nothing else is read before ``_begin``
        self._is_over = False

    @override
    def attach(self, prefetch: int, max_bytes: int) -> Subscription[MessageReference]:
        try:
            self._journal.append_unit(Unit(self._begin))
        except JournalClosed as error:
            raise NotLive(str(error)) from None
        return super().attach(prefetch, max_bytes)

    def _begin(self) -> None:
        if self._subscription is None:
            return
        self._levels.extend(self._in_memory())
        self._begin_level()
        self._up_to = self._journal.last_committed_seq
        self._read_again()

    def _begin_level(self) -> None:
        self._queue_id, unstored = self._levels.popleft()
        self._rank += 1
        self._unstored = deque(unstored)
        self._read_to = 0

    @override
    def _go_on(self) -> None:
        if self._is_over:
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

    @override
    def _come_to(self, seq: int | None) -> None:
        volatile = self._unstored
        while volatile and (seq is None or volatile[0].seq < seq):
            reference = volatile.popleft()
            self._add(reference.seq, reference.record)

    @override
    def detach(self, subscription: Subscription[MessageReference]) -> None:
        super().detach(subscription)
        self._unstored.clear()
