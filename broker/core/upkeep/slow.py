"""Consumers of queues that are too slow: told of, or ended, as ``slow-consumer-policy`` says.

One is slow if it acknowledged fewer messages than ``slow-consumer-threshold`` in a whole
``slow-consumer-check-period``, and had something to do at its beginning and at its end: messages it
had not acknowledged, or a connection that took no more. So nobody is blamed for an empty queue,
which Artemis finds out by the rate at which messages come.
"""

import logging
from collections.abc import Iterable
from functools import partial
from typing import Final

from orthia.broker.core.errors import Refusal
from orthia.broker.core.failures import by_itself
from orthia.broker.core.queue.queue import Queue
from orthia.broker.core.queue.subscriptions import QueueSubscription
from orthia.broker.core.routing.addresses import AddressBook
from orthia.broker.core.slices import GO_ON, Slices, Steps
from orthia.broker.core.timers import Timers
from orthia.broker.quoting import quoted
from orthia.config.address_settings import SlowConsumerPolicy, SlowConsumerUnit
from orthia.config.addresses import ResolvedAddressSettings

LOGGER = logging.getLogger("orthia.broker")
_AT_ONCE: Final = 256
_SECONDS: Final = {
    SlowConsumerUnit.MESSAGES_PER_SECOND: 1,
    SlowConsumerUnit.MESSAGES_PER_MINUTE: 60,
    SlowConsumerUnit.MESSAGES_PER_HOUR: 3_600,
    SlowConsumerUnit.MESSAGES_PER_DAY: 86_400,
}


class SlowConsumers:
    """Looks for them; on the loop's thread."""

    def __init__(self, addresses: AddressBook, timers: Timers, slices: Slices) -> None:
        self._addresses = addresses
        self._timers = timers
        self._slices = slices
        self._busy: dict[int, dict[QueueSubscription, int]] = {}
        """Of each period the consumers that had something to do at the last look, and how many
        messages they had acknowledged by then."""
        self._wanted: frozenset[int] = frozenset()
        self._underway: set[int] = set()

    def start(self, periods: Iterable[int]) -> None:
        """Look from now on in each of the ``periods``, in seconds, and in no other any more."""
        self._wanted = frozenset(periods)
        for period in self._wanted - self._underway:
            self._underway.add(period)
            self._wait(period)

    def _wait(self, period: int) -> None:
        self._timers.call_later(1_000 * period, partial(self._look, period))

    def _look(self, period: int) -> None:
        if period in self._wanted:
            self._slices.run(self._looking(period))
        else:
            self._underway.discard(period)
            self._busy.pop(period, None)

    def _looking(self, period: int) -> Steps:
        with by_itself("looking for slow consumers failed; retrying in the next check period"):
            yield from self._looking_at_all(period)
        self._wait(period)

    def _looking_at_all(self, period: int) -> Steps:
        before = self._busy.get(period, {})
        busy: dict[QueueSubscription, int] = {}
        for number, queue in enumerate(list(self._addresses.queues.values()), 1):
            with by_itself("looking for slow consumers of queue %s failed", quoted(queue.name)):
                self._look_at(queue, period, before, busy)
            if not number % _AT_ONCE:
                yield GO_ON
        self._busy[period] = busy

    def _look_at(
        self,
        queue: Queue,
        period: int,
        before: dict[QueueSubscription, int],
        busy: dict[QueueSubscription, int],
    ) -> None:
        settings = queue.settings
        if settings.slow_consumer_threshold < 0 or settings.slow_consumer_check_period != period:
            return
        for consumer in queue.subscriptions:
            if consumer.is_busy:
                busy[consumer] = consumer.taken
                if consumer in before:
                    taken = consumer.taken - before[consumer]
                    with by_itself("ending a slow consumer of queue %s failed", quoted(queue.name)):
                        self._judge(queue, consumer, settings, taken, period)

    def _judge(
        self,
        queue: Queue,
        consumer: QueueSubscription,
        settings: ResolvedAddressSettings,
        taken: int,
        period: int,
    ) -> None:
        unit = settings.slow_consumer_threshold_measurement_unit
        if taken * _SECONDS[unit] >= settings.slow_consumer_threshold * period:
            return
        reason = (
            f"slow consumer: {taken} messages of queue {quoted(queue.name)} were acknowledged in"
            f" {period} s, and slow-consumer-threshold is {settings.slow_consumer_threshold}"
            f" {unit.value}"
        )
        if settings.slow_consumer_policy is SlowConsumerPolicy.KILL:
            consumer.fail(reason, Refusal.SLOW)
        else:
            LOGGER.warning("%s (%s)", reason, consumer.connection)
