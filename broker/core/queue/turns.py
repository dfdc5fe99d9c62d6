# mypyc compiles this module.
"""Whose turn it is: the consumers of a queue that may take its next message."""

from abc import ABC, abstractmethod
from collections import deque
from typing import Any

from typing_extensions import override

from orthia.broker.core.queue.subscriptions import Subscription


class Turns(ABC):
    """The consumers that are asked.

    One that turns out to have no credit, or a full connection, is left out until it says that this
    has changed: finding the next costs the same however many wait for their clients.
    """

    __slots__ = ()

    @abstractmethod
    def join(self, subscription: Subscription[Any]) -> None:
        """Ask a subscription again, as the last."""

    @abstractmethod
    def leave(self, subscription: Subscription[Any]) -> None:
        """Remove a closed subscription."""

    @abstractmethod
    def next(self) -> Subscription[Any] | None:
        """Return the subscription that is to have the next message, if any wants one."""


class InTurn(Turns):
    """Any number of consumers, each after the other."""

    __slots__ = ("_closed", "_ring")

    def __init__(self) -> None:
        self._ring: deque[Subscription[Any]] = deque()
        self._closed = 0
        """How many of the ring are closed: very many may be at once, and each costs the same."""

    @override
    def join(self, subscription: Subscription[Any]) -> None:
        if not subscription.has_turn and not subscription.is_closed:
            subscription.has_turn = True
            self._ring.append(subscription)

    @override
    def leave(self, subscription: Subscription[Any]) -> None:
        if subscription.has_turn:
            self._closed += 1
            if 2 * self._closed > len(self._ring):
                self._ring = deque(one for one in self._ring if not one.is_closed)
                self._closed = 0

    @property
    def is_wanted(self) -> bool:
        """Whether any subscription wants a message."""
        ring = self._ring
        while ring and not ring[0].wants_more():
            self._pass_over(ring.popleft())
        return bool(ring)

    @override
    def next(self) -> Subscription[Any] | None:
        ring = self._ring
        while ring:
            candidate = ring[0]
            if candidate.wants_more():
                ring.rotate(-1)
                return candidate
            self._pass_over(ring.popleft())
        return None

    def _pass_over(self, subscription: Subscription[Any]) -> None:
        subscription.has_turn = False
        if subscription.is_closed:
            self._closed -= 1


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


class Alone(Turns):
    """The one consumer of a queue that is its own: it costs less than a ring."""

    __slots__ = ("candidate",)

    def __init__(self) -> None:
        self.candidate: Subscription[Any] | None = None
        """The consumer, while it is asked."""

    @override
    def join(self, subscription: Subscription[Any]) -> None:
        if not subscription.is_closed:
            subscription.has_turn = True
            self.candidate = subscription

    @override
    def leave(self, subscription: Subscription[Any]) -> None:
        subscription.has_turn = False
        self.candidate = None

    @override
    def next(self) -> Subscription[Any] | None:
        candidate = self.candidate
        if candidate is not None and not candidate.wants_more():
            candidate.has_turn = False
            self.candidate = candidate = None
        return candidate
