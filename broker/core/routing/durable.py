"""Durable subscriptions: MULTICAST queues that keep a topic's messages while nobody is connected.

The queue is called ``CLIENT-ID.NAME``, or ``NAME:global`` if it is of no client id, as in Artemis.
Its binding has both parts, so that two subscriptions whose names are joined to the same text are
told apart. It is created when its client first subscribes, is stored, and is deleted when that
client ends the subscription by its name. Its topic and selector do not change: the subscription has
to be ended first, with its messages. Artemis ignores a change, and its client gets messages that it
has not asked for.

A client-id is whatever a client says. So a subscription also belongs to the user who created it, as
far as that is stored; in Artemis anybody with the permissions and the client-id has it.
"""

from dataclasses import replace

from orthia.broker.core.api import StoredSubscription, SubscriptionName
from orthia.broker.core.destinations import MAX_NAME_LENGTH, Destination, is_name
from orthia.broker.core.errors import (
    BrokerError,
    DestinationRefused,
    NotAuthorized,
    QueueInUse,
)
from orthia.broker.core.identity import Principal
from orthia.broker.core.queue.queue import Queue
from orthia.broker.core.routing.addresses import AddressBook
from orthia.broker.core.routing.auto_creation import AutoCreation
from orthia.broker.core.routing.sources import Sources
from orthia.broker.quoting import quoted
from orthia.config.address_settings import RoutingType
from orthia.config.queues import PLAIN, QueueOptions
from orthia.journal.model.codec import DurableSubscription, QueueBinding


class NoSuchSubscription(BrokerError):  # noqa: N818 - named for what is the case
    """The client id has no durable subscription of that name."""


class SubscriptionChanged(DestinationRefused):
    """A durable subscription is asked for otherwise than it was created, and nobody consumes it."""


class DurableSubscriptions:
    """Finds and creates durable subscriptions; on the loop's thread."""

    def __init__(self, addresses: AddressBook, sources: Sources, creation: AutoCreation) -> None:
        self._addresses = addresses
        self._sources = sources
        self._creation = creation
        self._alone: set[str] = set()
        """Queues whose consumer, if they have one, was to be the only one."""

    def to_share(
        self,
        principal: Principal,
        where: Destination,
        asked: SubscriptionName,
        *,
        no_local: bool,
        options: QueueOptions,
    ) -> Queue:
        """Return the queue of a subscription that is shared, or has one consumer at a time.

        It is created if there is none. Raises BrokerError; SubscriptionChanged if it may be ended
        and created anew.
        """
        wanted = _wanted(principal, asked, no_local=no_local)
        queue = self._addresses.queues.get(_queue_name(wanted))
        is_used = queue is not None and queue.consumers and not queue.is_leaving
        if (
            queue is not None
            and is_used
            and not (asked.is_shared and queue.name not in self._alone)
        ):
            raise QueueInUse(
                f"durable subscription {quoted(asked.name)} has a consumer already, and is not"
                " shared by both"
            )
        queue = self._to_consume(principal, where, wanted, options)
        self._alone.discard(queue.name)
        if not asked.is_shared:
            self._alone.add(queue.name)
        return queue

    def find(self, principal: Principal, asked: SubscriptionName) -> StoredSubscription:
        """Return what a subscription was asked for; raises BrokerError if there is none."""
        queue = self._find(principal, _wanted(principal, asked))
        stored = self._addresses.bindings[queue.name].subscription
        no_local = stored is not None and stored.no_local
        return StoredSubscription(queue.address, queue.options.filter, no_local)

    def to_consume(
        self,
        principal: Principal,
        where: Destination,
        name: str,
        *,
        no_local: bool,
        options: QueueOptions = PLAIN,
    ) -> Queue:
        """Return the queue of a subscription, created if there is none; raises BrokerError."""
        wanted = DurableSubscription(_client_id(principal), name, no_local)
        return self._to_consume(principal, where, wanted, options)

    def _to_consume(
        self,
        principal: Principal,
        where: Destination,
        wanted: DurableSubscription,
        options: QueueOptions,
    ) -> Queue:
        name, queue_name = wanted.name, _queue_name(wanted)
        if where.routing_type is RoutingType.ANYCAST or (
            where.routing_type is None
            and self._addresses.types_of(where.address) == {RoutingType.ANYCAST}
        ):
            raise DestinationRefused(
                f"durable subscription {quoted(name)} is to {quoted(where.address)}, which is"
                " ANYCAST: a queue keeps its messages without one; subscribe to"
                f" /topic/{where.address}, or leave out durable-subscription-name"
            )
        if where.is_temporary:
            raise DestinationRefused(
                f"durable subscription {quoted(name)} is to {quoted(where.address)}, which is"
                " temporary: it ends with its connection; leave out durable-subscription-name"
            )
        if where.queue is not None:
            raise DestinationRefused(
                f"{where.address}::{where.queue} names a queue, and durable subscription"
                f" {quoted(name)} is one of its own: leave out either"
            )
        queue = self._addresses.queues.get(queue_name)
        if queue is None:
            self._sources.check_subscribe(principal, where.address, queue_name)
            return self._creation.create_subscription(
                principal, where.address, queue_name, wanted, options
            )
        self._sources.check_consume(principal, queue)
        if _is_of(self._addresses.bindings[queue_name], wanted):
            self._refuse_if_anothers(principal, queue, wanted)
        self._refuse_if_changed(queue, where, wanted, options)
        return queue

    def to_delete(self, principal: Principal, name: str) -> Queue:
        """Return the queue of a subscription that a client ends; raises BrokerError."""
        return self._find(principal, DurableSubscription(_client_id(principal), name))

    def to_end(self, principal: Principal, asked: SubscriptionName) -> Queue:
        """Return the queue of a subscription that a client ends; raises BrokerError."""
        return self._find(principal, _wanted(principal, asked))

    def _find(self, principal: Principal, wanted: DurableSubscription) -> Queue:
        queue_name = _queue_name(wanted)
        queue = self._addresses.queues.get(queue_name)
        if queue is None or not _is_of(self._addresses.bindings[queue_name], wanted):
            raise NoSuchSubscription(
                f"client-id {quoted(wanted.client_id)} has no durable subscription"
                f" {quoted(wanted.name)}"
            )
        self._refuse_if_anothers(principal, queue, wanted)
        return queue

    @staticmethod
    def _refuse_if_anothers(
        principal: Principal, queue: Queue, wanted: DurableSubscription
    ) -> None:
        """Raise NotAuthorized if another user made a subscription: a client-id is what one says.

        Where it is not known who made it, as without security, it is the client-id's.
        """
        if principal.unrestricted or queue.user in (None, principal.name):
            return
        raise NotAuthorized(
            f"durable subscription {quoted(wanted.name)} of client-id {quoted(wanted.client_id)}"
            f" was made by another user, and user {quoted(principal.name)} may neither use nor end"
            " it:"
            " take another client-id, or have an operator delete it with `orthia queue delete"
            f" {queue.name}`"
        )

    def _refuse_if_changed(
        self, queue: Queue, where: Destination, wanted: DurableSubscription, options: QueueOptions
    ) -> None:
        binding = self._addresses.bindings[queue.name]
        name = quoted(wanted.name)
        stored = binding.subscription
        if queue.routing_type is not RoutingType.MULTICAST or not (
            stored is None or _is_of(binding, wanted)
        ):
            raise DestinationRefused(
                f"durable subscription {name} needs a queue {quoted(queue.name)}, and the queue of"
                " that name is another's: take another name, or another client-id"
            )
        # For one that the configuration declares only its name says whose it is.
        leaves_out = wanted.no_local if stored is None else stored.no_local
        changes = (
            ("destination", queue.address, where.address),
            ("selector", binding.options.filter or "none", options.filter or "none"),
            ("no-local", str(leaves_out).lower(), str(wanted.no_local).lower()),
        )
        for what, was, asked in changes:
            if was != asked:
                kind = DestinationRefused if queue.consumers else SubscriptionChanged
                raise kind(
                    f"durable subscription {name} of client-id {quoted(wanted.client_id)} was made"
                    f" with the {what} {quoted(was)}, and {quoted(asked)} is asked for: end it"
                    f" first (unsubscribe with durable-subscription-name:{wanted.name}), which"
                    " deletes what it has, or take another name"
                )


def _client_id(principal: Principal) -> str:
    if not principal.client_id:
        raise DestinationRefused(
            "a durable subscription belongs to a client-id, and this client connected without one:"
            " give it one that is the same whenever it connects"
        )
    return principal.client_id


def _wanted(
    principal: Principal, asked: SubscriptionName, *, no_local: bool = False
) -> DurableSubscription:
    if asked.is_global:
        return DurableSubscription("", f"{asked.name}:global", no_local)
    return DurableSubscription(_client_id(principal), asked.name, no_local)


def _queue_name(subscription: DurableSubscription) -> str:
    name = subscription.name
    if subscription.client_id:
        name = f"{subscription.client_id}.{name}"
    if not subscription.name or not is_name(name):
        raise DestinationRefused(
            f"durable subscription {quoted(subscription.name[:300])} of client-id"
            f" {quoted(subscription.client_id[:300])} is not valid; expected printable characters,"
            f" {MAX_NAME_LENGTH - 1} at most of both together"
        )
    return name


def _is_of(binding: QueueBinding, wanted: DurableSubscription) -> bool:
    stored = binding.subscription
    return stored is not None and replace(stored, no_local=False) == replace(wanted, no_local=False)
