# mypyc compiles this module.
"""Shared subscriptions of a topic that end with their last consumer.

The queue is called ``CLIENT-ID.NAME:shared-volatile`` as in Artemis, or, of no client id,
``NAME:shared-volatile:global``. It is not durable: what a node leaves of it the next one deletes.
"""

from functools import partial

from typing_extensions import override

from orthia.broker.core.api import SubscriptionName
from orthia.broker.core.destinations import MAX_NAME_LENGTH, Destination, is_name
from orthia.broker.core.errors import DestinationRefused
from orthia.broker.core.identity import Principal
from orthia.broker.core.queue.policy import Policy
from orthia.broker.core.queue.queue import Queue
from orthia.broker.core.routing.addresses import AddressBook, refuse_if_leaving
from orthia.broker.core.routing.auto_creation import AutoCreation
from orthia.broker.core.routing.sources import Sources
from orthia.broker.core.timers import Timers
from orthia.broker.core.upkeep.deletion import Deletions
from orthia.broker.quoting import quoted
from orthia.config.address_settings import RoutingType
from orthia.config.queues import QueueOptions


class SharedSubscriptions:
    """Finds and creates shared subscriptions that are not durable; on the loop's thread."""

    def __init__(
        self,
        addresses: AddressBook,
        sources: Sources,
        creation: AutoCreation,
        deletions: Deletions,
        timers: Timers,
    ) -> None:
        self._addresses = addresses
        self._sources = sources
        self._creation = creation
        self._deletions = deletions
        self._timers = timers
        self._queues: dict[str, Queue] = {}

    def to_consume(
        self,
        principal: Principal,
        where: Destination,
        asked: SubscriptionName,
        *,
        options: QueueOptions,
    ) -> Queue:
        """Return the queue of a subscription, created if there is none; raises BrokerError."""
        name = _queue_name(principal, asked)
        if where.routing_type is RoutingType.ANYCAST or where.queue or where.is_temporary:
            raise DestinationRefused(
                f"subscription {quoted(asked.name)} is to {quoted(where.name)}; expected a topic"
            )
        queue = self._queues.get(name)
        if queue is not None and not queue.is_leaving:
            self._sources.check_consume(principal, queue)
            if (queue.address, queue.options.filter) != (where.address, options.filter):
                raise DestinationRefused(
                    f"subscription {quoted(asked.name)} was made with the topic"
                    f" {quoted(queue.address)} and the selector"
                    f" {quoted(queue.options.filter or 'none')}: its consumers have these in common"
                )
            return queue
        there = self._addresses.queues.get(name)
        if there is not None:
            refuse_if_leaving(there)
            raise DestinationRefused(
                f"subscription {quoted(asked.name)} needs a queue {quoted(name)}, and the queue of"
                " that name is another's: take another name"
            )
        self._sources.check_subscribe(principal, where.address, name)
        queue = self._creation.create_subscription(principal, where.address, name, None, options)
        queue.also_follow(_EndsWithConsumers(partial(self._look, queue), self._timers))
        self._queues[name] = queue
        return queue

    def _look(self, queue: Queue) -> None:
        """End a subscription that nobody consumes, or forget one that an operator deletes."""
        if queue.consumers:
            return
        if self._queues.get(queue.name) is queue:
            del self._queues[queue.name]
        if not queue.is_leaving:
            self._deletions.end_temporary(queue)


class _EndsWithConsumers(Policy):
    """Looks at a queue once its last consumer has left, and after what that causes."""

    __slots__ = ("_look", "_timers")

    def __init__(self, look: partial[None], timers: Timers) -> None:
        self._look = look
        self._timers = timers

    @override
    def consumers_gone(self) -> None:
        self._timers.call_later(0, self._look)


def _queue_name(principal: Principal, asked: SubscriptionName) -> str:
    name = f"{asked.name}:shared-volatile"
    if asked.is_global:
        name += ":global"
    elif principal.client_id:
        name = f"{principal.client_id}.{name}"
    if not asked.name or not is_name(name):
        raise DestinationRefused(
            f"subscription {quoted(asked.name[:300])} is not valid; expected printable characters,"
            f" {MAX_NAME_LENGTH} at most with the client id"
        )
    return name
