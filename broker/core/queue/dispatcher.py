# mypyc compiles this module.
"""Delivery: messages go from a queue to its consumers while there are both, and a valid lease.

Queues that are stored and those of topics' subscribers deliver by this one module. What comes
next, and what is counted for it, each knows for itself.
"""

from abc import abstractmethod
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from typing_extensions import override

from orthia.broker.core.queue.subscriptions import Reference, Source, Subscription
from orthia.broker.core.queue.turns import Turns
from orthia.broker.core.slices import GO_ON, Slices, Steps

AT_ONCE = 128
"""How many messages are delivered or taken back before others have a turn."""

_Ready = TypeVar("_Ready")
_Turns = TypeVar("_Turns", bound=Turns)


class Dispatcher(Source[Reference], Generic[Reference, _Ready, _Turns]):
    """A queue as far as it delivers; all calls on the loop's thread."""

    __slots__ = (
        "_dispatching",
        "_has_more",
        "_held",
        "_in_turn",
        "_is_going_on",
        "_may_deliver",
        "_ready",
        "_returned",
        "_slices",
        "_turns",
    )

    def __init__(
        self, turns: _Turns, may_deliver: Callable[[Source[Any]], bool], slices: Slices
    ) -> None:
        self._turns = turns
        self._may_deliver = may_deliver
        self._slices = slices
        self._ready: deque[_Ready] = deque()
        """In memory and never delivered, in order."""
        self._returned: list[tuple[int, Reference]] = []
        """What was given back; a heap, by seq."""
        self._held = 0
        """How often many messages are on their way back: until all are, none is delivered, since
        those that come back first may not be the oldest."""
        self._dispatching = False
        self._is_going_on = False
        """Whether it has more to deliver than at once, and has a task for that."""
        self._in_turn = False
        """Whether that task has its turn."""
        self._has_more = False

    @abstractmethod
    def _next(self) -> Reference | None:
        """Take out the next message and count it as delivered; None if it is not to be."""

    @override
    def join(self, subscription: Subscription[Reference]) -> None:
        self._turns.join(subscription)

    @override
    def resume(self) -> None:
        self.dispatch()

    def dispatch(self) -> bool:
        """Deliver while there is a message, a consumer that takes it, and a valid lease.

        What that leaves to do is done in later turns of the loop. Return whether nothing is left.
        """
        if self._dispatching or self._held or (self._is_going_on and self._has_task()):
            return False
        self._dispatching = True
        most = AT_ONCE
        try:
            while (self._ready or self._returned) and self._may_deliver(self):
                if not most:
                    self._go_on_later()
                    return False
                most -= 1
                subscription = self._turns.next()
                if subscription is None:
                    break
                reference = self._next()
                if reference is not None:
                    subscription.deliver(reference)
        finally:
            self._dispatching = False
        return True

    def suspend(self) -> None:
        """Deliver nothing until ``unsuspend``, as often: what belongs together is on its way."""
        self._held += 1

    def unsuspend(self) -> None:
        """End a ``suspend``; ``dispatch`` delivers then."""
        self._held -= 1

    def _has_task(self) -> bool:
        """Return whether the task that there is delivers, which it does then.

        Else a thousand consumers that are asked again would each have as much delivered as one may
        at once.
        """
        if self._in_turn:
            return False
        self._has_more = True
        return True

    def _go_on_later(self) -> None:
        self._has_more = True
        if not self._is_going_on:
            self._is_going_on = True
            self._slices.later(self._going_on())

    def _going_on(self) -> Steps:
        try:
            while self._has_more:
                self._has_more = False
                self._in_turn = True
                try:
                    self.dispatch()
                finally:
                    self._in_turn = False
                yield GO_ON
        finally:
            self._is_going_on = False
