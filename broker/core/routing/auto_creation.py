# mypyc compiles this module.
"""Addresses and queues that are created for clients: who may create which, and their options.

A refusal leaves nothing behind: the next client is asked the same.
"""

from dataclasses import replace

from orthia.broker.core.destinations import (
    MANAGEMENT_ADDRESS,
    Destination,
    is_schedule,
)
from orthia.broker.core.errors import DestinationRefused
from orthia.broker.core.identity import Principal
from orthia.broker.core.limits.creations import QueueCreations
from orthia.broker.core.limits.filter_memory import owner_of
from orthia.broker.core.limits.quota import StoreUse
from orthia.broker.core.queue.queue import Queue
from orthia.broker.core.routing.address import Address
from orthia.broker.core.routing.addresses import AddressBook, refuse_if_leaving
from orthia.broker.core.routing.resources import ReservedNames
from orthia.broker.core.routing.virtual_topic_queues import VirtualTopicQueues
from orthia.broker.quoting import quoted
from orthia.broker.security.permissions import Security
from orthia.config.address_settings import RoutingType
from orthia.config.addresses import ResolvedAddressSettings, options_of
from orthia.config.queues import QueueOptions
from orthia.config.settings import Settings
from orthia.journal.model.codec import DurableSubscription


class AutoCreation:
    """Creates addresses and queues for clients; on the loop's thread."""

    def __init__(
        self,
        settings: Settings,
        book: AddressBook,
        security: Security,
        creations: QueueCreations,
        store_use: StoreUse,
    ) -> None:
        self._book = book
        self._security = security
        self._creations = creations
        self._store_use = store_use
        self.virtual_topics = VirtualTopicQueues(settings, security)
        """Whose consumers queues are by their names."""
        self.configure(settings)

    def configure(self, settings: Settings) -> None:
        """Reserve the names that the broker itself uses by these settings."""
        self._brokers_targets = _brokers_targets(settings)
        self._reserved = ReservedNames(settings)

    def create_type(
        self, principal: Principal, name: str, address: Address, routing_type: RoutingType
    ) -> None:
        """Raise DestinationRefused or NotAuthorized if a client must not add a type to an address.

        Nothing is kept: the next client is asked the same.
        """
        if routing_type not in address.types:
            self.refuse_type(name, address, routing_type)
            self._security.check(principal, "createAddress", name)

    def refuse_type(self, name: str, address: Address, routing_type: RoutingType) -> None:
        """Raise DestinationRefused if an address must not get a routing type that it lacks."""
        has = ", ".join(sorted(one.value for one in address.types))
        if address.configured:
            raise DestinationRefused(
                f"address {quoted(name)} is configured as {has}; {routing_type.value} was asked for"
                " (a queue is ANYCAST, a topic MULTICAST)"
            )
        if not address.settings.auto_create_addresses:
            problem = f"is {has}, not {routing_type.value}," if has else "does not exist"
            raise DestinationRefused(
                f"address {quoted(name)} {problem} and auto-create-addresses is false"
            )

    def _refuse_if_temporary(self, address: str, name: str) -> None:
        """Refuse another queue of a temporary address: it would get its owner's messages."""
        if address in self._book.temporary:
            raise DestinationRefused(
                f"queue {quoted(name)} cannot be one of address {quoted(address)}, which is"
                " temporary: nothing is created there beside what its connection subscribes to"
            )

    def refuse_reserved(self, name: str, address: str) -> None:
        """Refuse a client's queue that has the name of one that the broker itself creates.

        Its consumers would get what the broker puts into the queue of that name.
        """
        if is_schedule(name):
            raise DestinationRefused(
                f"queue {quoted(name)} is one of those that hold what is delivered later: nobody"
                " sends to it or consumes from it"
            )
        if name != address and name not in self._book.queues and name in self._brokers_targets:
            raise DestinationRefused(
                f"queue {quoted(name)} cannot be one of address {quoted(address)}: the broker"
                f" itself sends to address {quoted(name)}, whose queue is called so; take another"
                " name"
            )
        if name not in self._book.queues and self._reserved.has(name):
            raise DestinationRefused(
                f"queue {quoted(name)} is called as those that the broker makes for dead letters or"
                " expired messages of one address (auto-create-dead-letter-resources,"
                " auto-create-expiry-resources): it is there once there is such a message"
            )

    def qualified(
        self, principal: Principal, where: Destination, name: str, *, to_consume: bool = False
    ) -> Queue:
        """Return the queue that ``ADDRESS::QUEUE`` names, created if it may be."""
        self.refuse_reserved(name, where.address)
        queue = self._book.queues.get(name)
        if queue is None:
            address = self._book.address(where.address)
            kind = where.routing_type or address.type_of_new_queue
            return self._create_for_client(
                principal, name, where.address, kind, to_consume=to_consume
            )
        if queue.address != where.address:
            raise DestinationRefused(
                f"queue {quoted(name)} belongs to address {quoted(queue.address)}, not to"
                f" {quoted(where.address)}"
            )
        if where.routing_type not in (None, queue.routing_type):
            raise DestinationRefused(
                f"queue {quoted(name)} of address {quoted(queue.address)} is"
                f" {queue.routing_type.value}; {where.routing_type.value} was asked for"
                " (a queue is ANYCAST, a topic MULTICAST)"
            )
        refuse_if_leaving(queue)
        return queue

    def anycast_queue(self, principal: Principal, name: str, *, to_consume: bool = False) -> Queue:
        """Return the new queue of an address that has none; raises BrokerError."""
        self.refuse_reserved(name, name)
        named = self._book.queues.get(name)
        if named is not None and named.address != name:
            raise DestinationRefused(
                f"queue {quoted(name)} belongs to address {quoted(named.address)}: send to that"
            )
        if name == MANAGEMENT_ADDRESS:
            raise DestinationRefused(
                f"address {quoted(name)} takes management requests, and holds no messages"
            )
        if named is not None:
            refuse_if_leaving(named)
            self.create_type(principal, name, self._book.address(name), RoutingType.ANYCAST)
            raise DestinationRefused(
                f"address {quoted(name)} has a queue of its own name that is"
                f" {named.routing_type.value}: send to /topic/{name}"
            )
        return self._create_for_client(
            principal, name, name, RoutingType.ANYCAST, to_consume=to_consume
        )

    def _create_for_client(
        self,
        principal: Principal,
        name: str,
        address_name: str,
        routing_type: RoutingType,
        *,
        to_consume: bool,
    ) -> Queue:
        """Create a queue of an address, if a client may; raises BrokerError."""
        self._refuse_if_temporary(address_name, name)
        address = self._book.address(address_name)
        self.create_type(principal, address_name, address, routing_type)
        if not address.settings.auto_create_queues:
            raise DestinationRefused(
                f"queue {quoted(name)} does not exist and auto-create-queues is false"
            )
        self._security.check_new_queue(principal, address_name, name, "createDurableQueue")
        self.virtual_topics.check(principal, "createDurableQueue", address_name, name)
        options = address.options_of_new(name)
        self._creations.refuse_if_too_many(principal, quoted(name))
        if to_consume:
            # The limits of the address do not apply: a consumer of several queues that was refused
            # one of them could not make room in the others.
            self._store_use.refuse_if_closed()
        else:
            address.use.refuse_if_full(0)
        user = self._creations.user_of(principal)
        queue = self._book.create_queue(
            name,
            address_name,
            routing_type,
            auto_created=True,
            user=user,
            options=options,
        )
        self._creations.created(principal, name)
        return queue

    def create_subscription(
        self,
        principal: Principal,
        address_name: str,
        name: str,
        subscription: DurableSubscription | None,
        options: QueueOptions,
    ) -> Queue:
        """Create the queue of a subscription for a client; raises BrokerError.

        It is durable unless it is None that is kept of the ``subscription``.
        """
        permission = "createDurableQueue" if subscription else "createNonDurableQueue"
        self._refuse_if_temporary(address_name, name)
        address = self._book.address(address_name)
        defaults = options_of(address.settings, {})
        options = replace(
            options,
            last_value_key=defaults.last_value_key,
            non_destructive=defaults.non_destructive,
        )
        self.create_type(principal, address_name, address, RoutingType.MULTICAST)
        self._security.check_new_queue(principal, address_name, name, permission)
        self.virtual_topics.check(principal, permission, address_name, name)
        self._creations.refuse_if_too_many(principal, quoted(name))
        filters, selector = self._book.filters, options.filter
        if selector is not None:
            filters.refuse_if_too_much(principal, selector, quoted(name))
        self._store_use.refuse_if_closed()
        queue = self._book.create_queue(
            name,
            address_name,
            RoutingType.MULTICAST,
            auto_created=True,
            user=self._creations.user_of(principal),
            subscription=subscription,
            options=options,
            durable=subscription is not None,
        )
        self._creations.created(principal, name)
        filters.hold(name, owner_of(principal), selector)
        return queue


def _brokers_targets(settings: Settings) -> set[str]:
    """Return the addresses that the broker itself sends to, as settings name them."""
    default = ResolvedAddressSettings()
    found = {default.dead_letter_address, default.expiry_address}
    for one in settings.address_settings:
        found |= {one.dead_letter_address or "", one.expiry_address or ""}
    found |= {one.forwarding_address for one in settings.diverts}
    return found
