# mypyc compiles this module.
"""The consumers of a queue: how many there may be, whose turn it is, and when delivery begins.

- round robin, or ``exclusive``: who came first gets all, and the next one when it leaves;
- ``max-consumers``: how many there may be at a time;
- ``consumers-before-dispatch``, ``delay-before-dispatch``: the first message goes out when there
  are so many consumers, or so long after the first; and anew after the last has left.
"""

from collections.abc import Callable
from functools import partial

from orthia.broker.core.api import Consumer, MessageReference
from orthia.broker.core.limits.memory import MemoryBudget
from orthia.broker.core.queue.subscriptions import QueueSubscription, Source, Subscription
from orthia.broker.core.queue.turns import InTurn, OneConsumer
from orthia.broker.core.timers import Timers
from orthia.config.queues import QueueOptions


class Consumers:
    """Those that take messages out of one queue; all calls on the loop's thread."""

    __slots__ = (
        "_before_dispatch", "_budget", "_delay_ms", "_has_started", "_one", "_paused_by", "_source",
        "_starts", "_timers", "is_started", "most", "stream", "subscriptions",
    )  # fmt: skip

    def __init__(
        self,
        source: Source[MessageReference],
        options: QueueOptions,
        most: int | None,
        budget: MemoryBudget,
        timers: Timers,
    ) -> None:
        """Begin without a consumer of ``source``, the queue; ``most`` is None for any number."""
        self._source = source
        self._budget = budget
        self._timers = timers
        self.most = most
        self.stream: str | None = None
        """The id of the stream that reads the queue in place of consumers."""
        self.subscriptions: dict[QueueSubscription, None] = {}
        """In the order in which they came."""
        self._before_dispatch = options.consumers_before_dispatch
        self._delay_ms = options.delay_before_dispatch
        self._one = OneConsumer() if options.exclusive else None
        self._has_started = self._before_dispatch <= 0
        """Whether there are consumers enough."""
        self._paused_by: frozenset[str] = frozenset()
        """Whether it is paused by itself, or with its address, or both."""
        self.is_started = self._has_started
        """Whether messages are delivered, as far as it depends on consumers and operators."""
        self._starts = 0
        """Counts how often delivery waited for consumers: a delay that ends is that of one wait."""

    def make_turns(self) -> InTurn:
        """Return whose turn it is among consumers of the same messages, with none of them yet."""
        if self._one is None:
            return InTurn()
        # All consumers want every message: the same consumer goes on.
        self._one.anew()
        return self._one

    def add(self, consumer: Consumer, prefetch: int, max_bytes: int) -> QueueSubscription:
        """Add a consumer."""
        subscription = Subscription(self._source, self._budget, consumer, prefetch, max_bytes)
        self.subscriptions[subscription] = None
        return subscription

    # --- the first message

    def came(self, number: int, started: Callable[[], None]) -> bool:
        """Note that there are a ``number`` of consumers, one more; return whether delivery begins.

        If it begins later, ``started`` is called then.
        """
        if self._has_started:
            return False
        if number >= self._before_dispatch:
            self._set(has_started=True)
        elif number == 1 and self._delay_ms >= 0:
            self._timers.call_later(self._delay_ms, partial(self._start, self._starts, started))
        return self._has_started

    def _start(self, of_start: int, started: Callable[[], None]) -> None:
        if of_start == self._starts:
            self._set(has_started=True)
            started()

    def all_left(self) -> None:
        """Note that there is no consumer any more."""
        self._starts += 1
        self._set(has_started=self._before_dispatch <= 0)

    def _set(self, *, has_started: bool) -> None:
        self._has_started = has_started
        self.is_started = has_started and not self._paused_by

    # --- what operators say

    def configure(self, options: QueueOptions, number: int) -> bool:
        """Follow other options, with a ``number`` of consumers; return whether delivery begins.

        It begins at once where there are as many as it now waits for, and does not end where it
        has begun. ``exclusive`` may only change without a consumer.
        """
        self._before_dispatch = options.consumers_before_dispatch
        self._delay_ms = options.delay_before_dispatch
        if options.exclusive != (self._one is not None):
            self._one = OneConsumer() if options.exclusive else None
        had_started = self._has_started
        if not number:
            self._set(has_started=self._before_dispatch <= 0)
        elif number >= self._before_dispatch:
            self._set(has_started=True)
        return self._has_started and not had_started

    @property
    def is_paused(self) -> bool:
        """Whether nothing is delivered, whoever consumes."""
        return bool(self._paused_by)

    def pause(self, by: str, *, is_paused: bool) -> None:
        """Deliver nothing, or deliver again unless it is paused otherwise, too."""
        self._paused_by = self._paused_by | {by} if is_paused else self._paused_by - {by}
        self._set(has_started=self._has_started)
