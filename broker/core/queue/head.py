# mypyc compiles this module.
"""Delivery from the head of a queue, to consumers that want every message."""

from typing_extensions import override

from orthia.broker.core.api import Consumer
from orthia.broker.core.queue.delivery import DeliveringQueue, Delivery
from orthia.broker.core.queue.pace import AT_ONCE
from orthia.broker.core.queue.subscriptions import QueueSubscription
from orthia.broker.core.queue.turns import InTurn
from orthia.broker.core.selectors import Selector


class HeadDelivery(Delivery):
    """Gives the oldest message to the consumer whose turn it is."""

    __slots__ = (
        "_consumers", "_gate", "_pace", "_queue", "_ready", "_retries", "_returned",
        "_turns", "_unsettled",
    )  # fmt: skip

    def __init__(self, queue: DeliveringQueue) -> None:
        self._queue = queue
        self._unsettled = queue.unsettled
        self._consumers = queue.takers
        self._pace = queue.pace
        self._gate = queue.services.gate
        self._ready = queue.log.ready
        self._returned = queue.unsettled.returned
        self._retries = queue.unsettled.retries
        self._turns: InTurn = queue.takers.make_turns()

    @property
    def is_wanted(self) -> bool:
        """Whether any consumer wants a message."""
        return self._turns.is_wanted

    def begin(self) -> None:
        """Deliver to all consumers: none of them is with another delivery any more."""
        self._turns = self._consumers.make_turns()
        for subscription in self._consumers.subscriptions:
            subscription.view = None
            subscription.has_turn = False
            self._turns.join(subscription)

    def end(self) -> None:
        """Deliver to nobody: another delivery does."""
        self._turns = InTurn()

    @override
    def attach(
        self,
        consumer: Consumer,
        prefetch: int,
        max_bytes: int,
        selector: Selector | None,
    ) -> QueueSubscription:
        subscription = self._consumers.add(consumer, prefetch, max_bytes)
        self._turns.join(subscription)
        return subscription

    @override
    def detach(self, subscription: QueueSubscription) -> None:
        self._turns.leave(subscription)

    @override
    def join(self, subscription: QueueSubscription) -> None:
        self._turns.join(subscription)

    @override
    def resume(self) -> None:
        """Do nothing: consumers that have credit are among the turns."""

    @override
    def dispatch(self) -> bool:
        pace = self._pace
        if pace.is_delivering or pace.held or (pace.is_going_on and pace.is_put_off()):
            return False
        if pace.waits_for_journal and pace.has_no_room(self._queue):
            return False
        pace.is_delivering = True
        most = AT_ONCE
        queue, ready, returned = self._queue, self._ready, self._returned
        gate, unsettled = self._gate, self._unsettled
        try:
            while (ready or returned) and gate.may_deliver(queue):
                if not most:
                    if not pace.has_no_room(queue):
                        pace.go_on_later(queue.dispatch)
                    return False
                most -= 1
                subscription = self._turns.next()
                if subscription is None:
                    break
                if returned and (not ready or returned[0][0] < ready[0].seq):
                    reference = unsettled.pop_oldest()
                else:
                    reference = ready.popleft()
                if reference.record.expires_ms or self._retries:
                    handed = queue.hand_out(reference)
                    if handed is None:
                        continue
                else:
                    unsettled.delivered += 1
                subscription.deliver(reference)
        finally:
            pace.is_delivering = False
        return True
