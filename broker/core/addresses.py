"""The addresses of a live node: what a destination means, and what is created for it.

An address may be ANYCAST, with queues of which each message goes to one, and MULTICAST, where each
queue and each subscriber gets a copy; or both, and then what is sent to the one is not seen by the
other. What it is follows from the configuration and from the queues that are stored, and never from
who used it first: so it is the same for every client, and after a takeover.

| the address       | ``/queue/X`` or ``/topic/X``            | ``X``                            |
|-------------------|-----------------------------------------|----------------------------------|
| is configured     | if it or a queue of it has the type     | its type; if both, the default   |
| has stored queues | as asked for                            | their type; if both, the default |
| is neither        | as asked for                            | the default                      |

The default is ``default-address-routing-type``. A type that an address neither is configured with
nor has queues of is created for it: ``auto-create-addresses`` and the permission ``createAddress``
must allow that, to whoever asks. A message for subscribers alone needs no such permission: nothing
is created for it.
"""

import logging
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Final

from orthia.broker.core.address import Address
from orthia.broker.core.api import DestinationRefused, Principal
from orthia.broker.core.creations import QueueCreations
from orthia.broker.core.destinations import (
    MANAGEMENT_ADDRESS,
    QUALIFIED,
    Destination,
    is_name,
    is_schedule,
    parse,
    schedule_name,
)
from orthia.broker.core.diverts import Divert
from orthia.broker.core.memory import at_most
from orthia.broker.core.optioned import OptionedQueue
from orthia.broker.core.patterns import Patterns
from orthia.broker.core.queue import Queue
from orthia.broker.core.quota import AddressUse, StoreUse, use_of
from orthia.broker.core.routing import Routed, Router, gate_of
from orthia.broker.core.topic import Topic
from orthia.broker.quoting import quoted
from orthia.broker.security.permissions import Security
from orthia.config.addresses import AddressResolver, ResolvedAddressSettings, options_of
from orthia.config.queues import PLAIN, QueueOptions
from orthia.config.settings import RoutingType, Settings
from orthia.journal.codec import DurableSubscription, QueueBinding
from orthia.journal.message import Message

LOGGER = logging.getLogger("orthia.broker")
_MULTICAST: Final = RoutingType.MULTICAST
"""Asked for every SEND: an enumeration looks its members up each time."""
_WILDCARDS = frozenset({"*", "#", ">"})
"""Words that stand for others in a subscription: Artemis' and Classic's."""
Route = tuple[str, list[Queue], Topic | None, Router | None]
"""An address, the queues and the topic that a message for it goes to, and what says which of them
take it, where not all do. Of ANYCAST queues one gets it."""
MIN_SWEEP = 1_000
"""How many addresses there are at least before the unused ones are forgotten."""


BindQueue = Callable[[QueueBinding], QueueBinding]
"""Stores the binding of a new queue, before any message for it can be stored; returns it with its
id."""


class AddressBook:
    """Addresses and queues by name."""

    def __init__(
        self,
        settings: Settings,
        security: Security,
        *,
        bind: BindQueue,
        make_queue: Callable[[QueueBinding, Address, int], Queue],
        store_use: StoreUse,
        make_topic: Callable[[], Topic],
    ) -> None:
        """Begin empty; ``make_queue`` also gets the seq up to which messages are unread."""
        self.queues: dict[str, Queue] = {}
        self.bindings: dict[str, QueueBinding] = {}
        """What is stored of each queue, by its name."""
        self._settings = settings
        self._resolver = AddressResolver(settings)
        self._security = security
        self._bind = bind
        self._make_queue = make_queue
        self._store_use = store_use
        self._make_topic = make_topic
        self._addresses: dict[str, Address] = {}
        self.left_over: list[Queue] = []
        """Queues of earlier nodes whose messages nobody is to get any more."""
        self._sweep_at = MIN_SWEEP
        self._wildcards = settings.wildcard_addresses
        self._temporary: dict[str, Principal] = {}
        """Addresses that are a connection's own, and whose."""
        self._patterns = Patterns(self._wildcards, self._addresses)
        self._diverts = [
            (self._wildcards.matcher(one.address), Divert(one)) for one in settings.diverts
        ]
        self._configured_queues = {
            queue.name: queue for configured in settings.addresses for queue in configured.queues
        }
        self._brokers_targets = self._targets()
        self._creations = QueueCreations(settings.stomp_limits, settings.resource_limit_settings)

    def _targets(self) -> set[str]:
        """Return the addresses that the broker itself sends to, as settings name them."""
        default = ResolvedAddressSettings()
        found = {default.dead_letter_address, default.expiry_address}
        for one in self._settings.address_settings:
            found |= {one.dead_letter_address or "", one.expiry_address or ""}
        found |= {one.forwarding_address for one in self._settings.diverts}
        return found

    def route(self, principal: Principal, destination: str) -> Route:
        """Return where a SEND goes: no topic, if nobody hears it, and no router, if all get it.

        Raises DestinationRefused, NotAuthorized.
        """
        where = parse(destination)
        name, kind, only, is_temporary = where
        if not principal.unrestricted:
            self._security.check(principal, "send", name)
        if is_temporary and not self._is_there(where):
            return name, [], None, None
        if only is not None:
            return name, [self._qualified(principal, where, only)], None, None
        if (kind or self.routing_type(where)) is _MULTICAST:
            address = self._address(name)
            if RoutingType.MULTICAST not in address.types:
                self._refuse_type(name, address, RoutingType.MULTICAST)
            topic = address.topic
            heard = topic if topic is not None and topic.subscribers else None
            if address.patterns:
                self._patterns.forget_unused(address.patterns)
            return name, address.multicast_queues, heard, address.router
        known = self._addresses.get(name)
        queue = None if known is None else known.anycast()
        if queue is None:
            queue = self._anycast_queue(principal, name)
            known = self._addresses[name]
        if known is not None and known.router is not None:
            return name, list(known.anycast_queues), None, known.router
        return name, [queue], None, None

    def _forward(
        self,
        divert: Divert,
        record: Message,
        principal: Principal,
        kind: RoutingType,
        through: Collection[Divert],
    ) -> list[Routed]:
        """Route what a divert takes; see ``orthia.broker.core.routing.Forward``."""
        name, copy = divert.address, divert.diverted(record)
        address = self._address(name)
        types = address.types or {address.settings.default_address_routing_type}
        found: list[Routed] = []
        for one in divert.kinds(kind, types):
            queues: Sequence[Queue] = address.multicast_queues
            topics = () if address.topic is None else (address.topic,)
            if one is not _MULTICAST:
                # As of a dead letter: where there is no queue one is made, and nothing is lost.
                first = address.anycast() or self.ensure_queues(name)[0]
                queues = [first] if address.router is None else list(address.anycast_queues)
                topics = ()
            if address.router is None:
                found.append(Routed(copy, queues, topics))
            else:
                passed = (*through, divert)
                found += address.router.route(copy, principal, queues, topics, passed)
        return found

    def types_of(self, name: str) -> frozenset[RoutingType]:
        """Return what an address is, whoever uses it; nothing for one that is not known."""
        address = self._addresses.get(name)
        return frozenset() if address is None else address.types

    def settings_of(self, name: str) -> ResolvedAddressSettings:
        """Return what is set for an address."""
        return self._address(name).settings

    def use_of(self, destination: str) -> AddressUse:
        """Return what the address that a destination means holds."""
        return self._address(parse(destination).address).use

    def routing_type(self, where: Destination) -> RoutingType:
        """Return what a destination is: as it says, or as its address is."""
        if where.routing_type is not None:
            return where.routing_type
        address = self._addresses.get(where.address)
        if (address is None or not address.types) and where.address in self.queues:
            return RoutingType.ANYCAST  # the name of a queue, which has another address
        return self._address(where.address).type_of_plain_name

    def to_consume(self, principal: Principal, where: Destination) -> Queue | Topic:
        """Return what a subscription is to; creates it where that is allowed.

        Raises DestinationRefused, NotAuthorized, LimitExceeded.
        """
        if where.is_temporary and not self._is_there(where):
            raise DestinationRefused(f"{quoted(where.address)} was temporary, and is gone")
        if where.address in self._temporary:
            self._refuse_if_anothers(principal, where.address)
        if where.queue is not None:
            self._check_consume(principal, where.address, where.queue)
            return self._qualified(principal, where, where.queue, to_consume=True)
        if self._type_to_consume(where) is _MULTICAST:
            return self.topic_to_hear(principal, where)
        return self.queue_to_consume(principal, where)

    def to_browse(self, principal: Principal, where: Destination) -> Queue:
        """Return the queue that somebody wants to look through; nothing is created for it.

        Raises DestinationRefused, NotAuthorized.
        """
        queue = self.queues.get(where.queue or where.address)
        if queue is None and where.queue is None:
            known = self._addresses.get(where.address)
            queue = None if known is None else known.anycast()
        address = where.address if queue is None else queue.address
        self._security.check_browse(
            principal, address, where.address if queue is None else queue.name
        )
        is_of_address = where.queue is None or address == where.address
        if (
            queue is None
            or not is_of_address
            or where.routing_type not in (None, queue.routing_type)
        ):
            raise DestinationRefused(
                f"there is no queue {quoted(where.queue or where.address)} to browse: a topic keeps"
                " no messages, and a queue is there once somebody sent to it or consumed from it"
            )
        if where.address in self._temporary:
            self._refuse_if_anothers(principal, where.address)
        _refuse_if_leaving(queue)
        return queue

    # --- temporary ones

    def create_temporary(self, principal: Principal, name: str, kind: RoutingType) -> None:
        """Create an address that is a connection's own, with its queue if it is ANYCAST.

        Raises NotAuthorized, LimitExceeded. No wildcard and no divert finds it.
        """
        self._security.check_temporary_queue(principal, name)
        if not is_name(name):
            raise DestinationRefused(f"the name of a temporary destination is too long: {name}")
        self._creations.refuse_if_too_many(principal, name, len(self.queues))
        self._store_use.refuse_if_closed()
        self._temporary[name] = principal
        self._address(name).configure(frozenset({kind}))
        if kind is RoutingType.ANYCAST:
            user = self._creations.user_of(principal)
            self._create_queue(name, name, kind, auto_created=True, user=user, durable=False)
        self._creations.created(principal)

    def end_temporary(self, name: str) -> list[Queue]:
        """Route nothing to an address any more that was a connection's own; return its queues.

        What is to be delivered there later is in one of them.
        """
        del self._temporary[name]
        address = self._address(name)
        address.configure(frozenset())
        own = (*address.anycast_queues, *address.schedules)
        return [queue for queue in own if not queue.is_leaving]

    def leave_over(self, binding: QueueBinding, *, unread_up_to: int) -> None:
        """Open a queue of before this node that is not durable: under no name, to be deleted.

        Its name is free at once, also for one that is configured.
        """
        address = self._address(binding.address)
        self.left_over.append(self._make_queue(binding, address, unread_up_to))

    def _is_there(self, temporary: Destination) -> bool:
        name = temporary.address
        is_topic = temporary.routing_type is _MULTICAST
        return name in self._temporary and (is_topic or name in self.queues)

    def _refuse_if_anothers(self, principal: Principal, name: str) -> None:
        if self._temporary[name] is not principal:
            raise DestinationRefused(
                f"{quoted(name)} is another connection's own: it alone consumes from it"
            )

    def _type_to_consume(self, where: Destination) -> RoutingType:
        """Return what a subscription is to; of an address of both types what its queues default to.

        So ``default-queue-routing-type`` says it, where it is set.
        """
        known = self._addresses.get(where.address)
        if where.routing_type is None and known is not None and len(known.types) > 1:
            return known.type_of_new_queue
        return self.routing_type(where)

    def _qualified(
        self, principal: Principal, where: Destination, name: str, *, to_consume: bool = False
    ) -> Queue:
        """Return the queue that ``ADDRESS::QUEUE`` names, created if it may be."""
        self._refuse_reserved(name, where.address)
        queue = self.queues.get(name)
        if queue is None:
            address = self._address(where.address)
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
                " (/queue/ is ANYCAST, /topic/ is MULTICAST)"
            )
        _refuse_if_leaving(queue)
        return queue

    def topic_to_hear(self, principal: Principal, where: Destination) -> Topic:
        """Return what a subscriber without a queue is to hear; raises BrokerError."""
        self._check_consume(principal, where.address)
        address = self._address(where.address)
        if RoutingType.MULTICAST not in address.types:
            self._refuse_wildcard(where.address, RoutingType.MULTICAST)
        self._create_type(principal, where.address, address, RoutingType.MULTICAST)
        # A subscription is a queue that ends with its client: Artemis' name for it.
        self._security.check(principal, "createNonDurableQueue", where.address)
        if address.topic is None:
            address.topic = self._make_topic()
        self._patterns.listen(where.address, address)
        return address.topic

    def hears_many(self, name: str) -> bool:
        """Return whether a subscription to an address of that name hears others."""
        return self._wildcards.routing_enabled and self._wildcards.is_pattern(name)

    def _check_consume(self, principal: Principal, name: str, queue: str | None = None) -> None:
        """Raise NotAuthorized if somebody must not hear an address, or one that it stands for.

        By a ``queue`` of it, if there is one.
        """
        self._security.check(principal, "consume", name, queue)
        if self.hears_many(name):
            self._security.check_pattern(principal, "consume", name)

    def topic_without_own(self, principal: Principal, where: Destination) -> Topic:
        """Return what a subscriber is to hear that does not hear itself; raises BrokerError."""
        if where.queue is not None or self.routing_type(where) is not _MULTICAST:
            raise DestinationRefused(
                f"no-local is of topics, and {quoted(where.address)} is not one, or its queue is"
                " named: messages go to one consumer each, whoever sent them; subscribe to /topic/,"
                " or leave it out"
            )
        return self.topic_to_hear(principal, where)

    def _refuse_wildcard(self, name: str, kind: RoutingType) -> None:
        """Refuse what would be taken for a subscription to several addresses, and is none here.

        A subscriber to the one address of that name would wait for messages that never come.
        """
        found = next((word for word in re.split(r"[./]", name) if word in _WILDCARDS), None)
        if self.hears_many(name):
            if kind is RoutingType.MULTICAST:
                return
            why = "only topics are heard by wildcards: a message of a queue has one receiver"
        elif found is None:
            return
        elif not self._wildcards.routing_enabled:
            why = "routing-enabled of wildcard-addresses is false"
        else:
            words = self._wildcards
            why = f"here {words.single_word} is one word, {words.any_words} any number of them"
        raise DestinationRefused(
            f"destination {quoted(name)} has a wildcard, and {why}; subscribe to each by its name"
        )

    def _address(self, name: str) -> Address:
        """Return an address; one that is not known is made, and forgotten when nobody uses it."""
        address = self._addresses.get(name)
        if address is None:
            self._sweep()
            settings = self._resolver.resolve(name)
            use = use_of(name, settings, self._store_use)
            address = self._addresses[name] = Address(settings, use, self._forward)
            if name in self._temporary:
                return address
            diverts = [one for matches, one in self._diverts if matches(name)]
            if diverts:
                address.route_by(diverts=diverts)
            self._patterns.join(name, address)
        return address

    def _create_type(
        self, principal: Principal, name: str, address: Address, routing_type: RoutingType
    ) -> None:
        """Have an address be of a type, if that may be; raises DestinationRefused, NotAuthorized.

        Nothing is kept of it: whoever comes next is asked the same.
        """
        if routing_type not in address.types:
            self._refuse_type(name, address, routing_type)
            self._security.check(principal, "createAddress", name)

    def _refuse_type(self, name: str, address: Address, routing_type: RoutingType) -> None:
        """Raise DestinationRefused if an address must not be of a type that it is not of itself."""
        has = ", ".join(sorted(one.value for one in address.types))
        if address.configured:
            raise DestinationRefused(
                f"address {quoted(name)} is configured as {has}; {routing_type.value} was asked for"
                " (/queue/ is ANYCAST, /topic/ is MULTICAST)"
            )
        if not address.settings.auto_create_addresses:
            problem = f"is {has}, not {routing_type.value}," if has else "does not exist"
            raise DestinationRefused(
                f"address {quoted(name)} {problem} and auto-create-addresses is false"
            )

    def _sweep(self) -> None:
        """Forget addresses that clients made and nobody uses: clients can make any number."""
        if len(self._addresses) < self._sweep_at:
            return
        for name in [name for name, address in self._addresses.items() if not address.is_used]:
            del self._addresses[name]
            self._patterns.left(name)
        self._sweep_at = max(MIN_SWEEP, 2 * len(self._addresses))

    def queue_to_consume(self, principal: Principal, where: Destination) -> Queue:
        """Return the queue of that name, whatever its address, or one of the address' queues."""
        named = self.queues.get(where.address)
        if named is not None:
            self._security.check(principal, "consume", named.address, named.name)
            _refuse_if_leaving(named)
            return named
        queue = self._address(where.address).anycast_to_consume()
        # The queue is the broker's choice, or one of the name of its address.
        name = where.address if queue is None else queue.name
        self._security.check(principal, "consume", where.address, name)
        if queue is None:
            self._refuse_wildcard(where.address, RoutingType.ANYCAST)
            queue = self._anycast_queue(principal, where.address, to_consume=True)
        return queue

    def _anycast_queue(self, principal: Principal, name: str, *, to_consume: bool = False) -> Queue:
        """Return the new queue of an address that has none; raises BrokerError."""
        self._refuse_reserved(name, name)
        named = self.queues.get(name)
        if named is not None and named.address != name:
            raise DestinationRefused(
                f"queue {quoted(name)} belongs to address {quoted(named.address)}: send to that"
            )
        if name == MANAGEMENT_ADDRESS:
            raise DestinationRefused(
                f"address {quoted(name)} takes management requests, and holds no messages"
            )
        if named is not None:
            _refuse_if_leaving(named)
            self._create_type(principal, name, self._address(name), RoutingType.ANYCAST)
            raise DestinationRefused(
                f"address {quoted(name)} has a queue of its own name that is"
                f" {named.routing_type.value}: send to /topic/{name}"
            )
        return self._create_for_client(
            principal, name, name, RoutingType.ANYCAST, to_consume=to_consume
        )

    def _refuse_reserved(self, name: str, address: str) -> None:
        """Refuse a client's queue by whose name the broker finds one of its own.

        What the broker itself puts into a queue of that name would be its owner's.
        """
        if is_schedule(name):
            raise DestinationRefused(
                f"queue {quoted(name)} is one of those that hold what is delivered later: nobody"
                " sends to it or consumes from it"
            )
        if name != address and name not in self.queues and name in self._brokers_targets:
            raise DestinationRefused(
                f"queue {quoted(name)} cannot be one of address {quoted(address)}: the broker"
                f" itself sends to address {quoted(name)}, whose queue is called so; take another"
                " name"
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
        """Return a new queue of an address, if a client may have it; raises BrokerError."""
        address = self._address(address_name)
        self._create_type(principal, address_name, address, routing_type)
        if not address.settings.auto_create_queues:
            raise DestinationRefused(
                f"queue {quoted(name)} does not exist and auto-create-queues is false"
            )
        self._security.check(principal, "createDurableQueue", address_name, name)
        self._creations.refuse_if_too_many(principal, name, len(self.queues))
        if to_consume:
            # Not the limits of what messages take: a consumer of several queues, refused for one
            # that is not there yet, could not make room in the others.
            self._store_use.refuse_if_closed()
        else:
            address.use.refuse_if_full(0)
        user = self._creations.user_of(principal)
        most = address.settings.default_max_consumers
        queue = self._create_queue(
            name,
            address_name,
            routing_type,
            auto_created=True,
            max_consumers=most,
            user=user,
            options=options_of(address.settings, {}),
        )
        self._creations.created(principal)
        return queue

    def check_consume(self, principal: Principal, queue: Queue) -> None:
        """Raise NotAuthorized or DestinationRefused if somebody must not consume from a queue."""
        self._check_consume(principal, queue.address, queue.name)
        _refuse_if_leaving(queue)

    def create_subscription(
        self,
        principal: Principal,
        address_name: str,
        name: str,
        subscription: DurableSubscription,
        options: QueueOptions,
    ) -> Queue:
        """Create the queue of a durable subscription for a client; raises BrokerError."""
        self._refuse_reserved(name, address_name)
        self._check_consume(principal, address_name, name)
        address = self._address(address_name)
        if RoutingType.MULTICAST not in address.types:
            self._refuse_wildcard(address_name, RoutingType.MULTICAST)
        self._create_type(principal, address_name, address, RoutingType.MULTICAST)
        self._security.check(principal, "createDurableQueue", address_name, name)
        self._creations.refuse_if_too_many(principal, name, len(self.queues))
        self._store_use.refuse_if_closed()
        queue = self._create_queue(
            name,
            address_name,
            RoutingType.MULTICAST,
            auto_created=True,
            max_consumers=address.settings.default_max_consumers,
            user=self._creations.user_of(principal),
            subscription=subscription,
            options=options,
        )
        self._creations.created(principal)
        return queue

    def schedule_of(self, principal: Principal, destination: str) -> Queue | None:
        """Return where messages wait that are sent to a destination to be delivered later.

        None for a temporary one that is gone. Raises BrokerError.
        """
        where = parse(destination)
        if where.is_temporary and not self._is_there(where):
            return None
        routing_type = self.routing_type(where)
        name = schedule_name(routing_type, where)
        queue = self.queues.get(name)
        if queue is not None:
            _refuse_if_leaving(queue)
            return queue
        self._creations.refuse_if_too_many(principal, name, len(self.queues))
        self._address(where.address).use.refuse_if_full(0)
        user = self._creations.user_of(principal)
        queue = self._create_queue(
            name,
            where.address,
            routing_type,
            auto_created=False,
            user=user,
            durable=where.address not in self._temporary,
        )
        self._creations.created(principal)
        return queue

    def schedule_named(self, name: str) -> Queue:
        """Return the queue of that name that holds what is delivered later.

        Raises DestinationRefused.
        """
        queue = self.queues.get(name)
        if queue is None or not is_schedule(name):
            raise DestinationRefused(
                f"there is no queue {quoted(name)} of messages that are delivered later; see"
                " `orthia queue scheduled`"
            )
        return queue

    def has_schedules(self, name: str) -> bool:
        """Return whether messages are to come to an address, or to a queue of it, later."""
        address = self._addresses.get(name)
        return address is not None and any(one.depth for one in address.schedules)

    def schedules(self) -> list[Queue]:
        """Return where messages wait that are delivered later."""
        return [queue for queue in self.queues.values() if is_schedule(queue.name)]

    def route_due(self, schedule: Queue, record: Message, client_id: str | None) -> list[Routed]:
        """Return who gets a message of a schedule at this moment, as a SEND would be routed.

        A queue that is gone is created anew: whether that may be was asked when it was sent, by the
        client ``client_id``. Raises BrokerError.
        """
        name = schedule.address
        _, is_qualified, only = schedule.name.partition(QUALIFIED)
        if is_qualified:
            return [Routed(record, [self._still_there(only)], ())]
        address = self._address(name)
        if address.patterns:
            self._patterns.forget_unused(address.patterns)
        queues: Sequence[Queue] = list(address.multicast_queues)
        topics: tuple[Topic, ...] = ()
        if schedule.routing_type is RoutingType.MULTICAST:
            if address.topic is not None and address.topic.subscribers:
                topics = (address.topic,)
        elif address.router is not None:
            queues = list(address.anycast_queues) or self.ensure_queues(name)
        else:
            queue = address.anycast()
            queues = [queue] if queue is not None else self.ensure_queues(name)
        if address.router is None:
            return [Routed(record, queues, topics)]
        sender = Principal("", frozenset(), client_id=client_id)
        return address.router.route(record, sender, queues, topics)

    def _still_there(self, name: str) -> Queue:
        queue = self.queues.get(name)
        if queue is None:
            raise DestinationRefused(f"there is no queue {quoted(name)} any more")
        _refuse_if_leaving(queue)
        return queue

    def ensure_queues(self, name: str) -> Sequence[Queue]:
        """Return the queues for what the broker itself sends to ``name``: never none.

        As of a SEND, each queue of a MULTICAST address gets it. One that has none gets a queue, of
        its own type, where a SEND would be lost.
        """
        queue = self.queues.get(name)
        if queue is not None:
            if queue.address != name and self.bindings[name].auto_created:
                # A client made it, perhaps to get what is not for it.
                raise DestinationRefused(
                    f"queue {quoted(name)} was created by a client for address"
                    f" {quoted(queue.address)}, so address {quoted(name)} has no queue of its name:"
                    " delete it (`orthia queue delete`), or declare one in addresses"
                )
            _refuse_if_leaving(queue)
            return [queue]
        address = self._address(name)
        if address.types == {RoutingType.MULTICAST}:
            existing = list(address.multicast_queues)
            kind = RoutingType.MULTICAST
        else:
            next_one = address.anycast()
            existing = [] if next_one is None else [next_one]
            kind = RoutingType.ANYCAST
        return existing or [self._create_queue(name, name, kind, auto_created=True)]

    def queue_to_delete(self, principal: Principal, name: str) -> Queue:
        """Return the queue that somebody may delete; raises DestinationRefused, NotAuthorized."""
        queue = self.queues.get(name)
        if queue is None:
            raise DestinationRefused(f"there is no queue {quoted(name)}")
        self.check_delete(principal, queue)
        address = self._address(queue.address)
        same = (one for one in (*address.anycast_queues, *address.multicast_queues))
        is_last = sum(one.routing_type is queue.routing_type for one in same) == 1
        if queue in address.schedules:
            return queue
        if is_last and queue.routing_type not in address.configured:
            self._security.check(principal, "deleteAddress", queue.address)
        return queue

    def check_delete(self, principal: Principal, queue: Queue) -> None:
        """Raise NotAuthorized or DestinationRefused if somebody must not delete a queue."""
        if queue.durable:
            self._security.check(principal, "deleteDurableQueue", queue.address, queue.name)
        else:
            self._security.check(principal, "deleteNonDurableQueue", queue.address, queue.name)
        _refuse_if_leaving(queue)
        if queue.name in self._configured_queues:
            raise DestinationRefused(
                f"queue {quoted(queue.name)} is configured, and would be created again at the next"
                " start: remove it from broker.xml of every node, and restart them first"
            )

    def withdraw(self, queue: Queue) -> None:
        """Route nothing to a queue any more; its name is not free yet."""
        self._address(queue.address).remove_queue(queue)

    def has_queues(self, address: str) -> bool:
        """Return whether an address has any queue."""
        known = self._addresses.get(address)
        return known is not None and bool(known.anycast_queues or known.multicast_queues)

    def forget(self, queue: Queue) -> None:
        """Have a queue's name free again: it is stored no more."""
        if self.queues.get(queue.name) is not queue:
            return  # its name was free before
        del self.queues[queue.name]
        del self.bindings[queue.name]
        self._creations.deleted(queue.user)

    def create_configured(self) -> None:
        """Create what ``addresses`` names and the journal does not have yet."""
        for configured in self._settings.addresses:
            self._address(configured.name).configure(configured.routing_types)
            for queue in configured.queues:
                stored = self.queues.get(queue.name)
                if stored is None:
                    self._create_queue(
                        queue.name,
                        configured.name,
                        queue.routing_type,
                        auto_created=False,
                        max_consumers=queue.max_consumers,
                        user=queue.user,
                        options=options_of(self._address(configured.name).settings, queue.options),
                        durable=queue.durable,
                    )
                    continue
                stored.max_consumers = at_most(queue.max_consumers)
                if (stored.address, stored.routing_type) != (configured.name, queue.routing_type):
                    LOGGER.warning(
                        "queue %s is configured as %s of address %s, and stored as %s of address"
                        " %s: it stays as it is stored",
                        quoted(queue.name),
                        queue.routing_type.value,
                        quoted(configured.name),
                        stored.routing_type.value,
                        quoted(stored.address),
                    )

    def _create_queue(
        self,
        name: str,
        address: str,
        routing_type: RoutingType,
        *,
        auto_created: bool,
        max_consumers: int = -1,
        user: str | None = None,
        subscription: DurableSubscription | None = None,
        options: QueueOptions = PLAIN,
        durable: bool = True,
    ) -> Queue:
        binding = QueueBinding(
            0,
            name,
            address,
            routing_type,
            auto_created=auto_created,
            max_consumers=max_consumers,
            user=user,
            subscription=subscription,
            options=options,
            durable=durable,
        )
        return self.open_queue(self._bind(binding), unread_up_to=0)

    def slow_consumer_periods(self) -> set[int]:
        """Return how often slow consumers are looked for, in seconds: each of the settings'."""
        settings = self._settings.address_settings
        if all((one.slow_consumer_threshold or -1) < 0 for one in settings):
            return set()
        default = ResolvedAddressSettings().slow_consumer_check_period
        return {default, *(one.slow_consumer_check_period or default for one in settings)}

    def trim(self) -> None:
        """Have queues that may keep few messages keep no more of what earlier nodes left."""
        for queue in self.queues.values():
            if isinstance(queue, OptionedQueue):
                queue.open_trimmed()

    def open_queue(self, binding: QueueBinding, *, unread_up_to: int) -> Queue:
        """Open a queue that has a binding; messages up to the seq are in the table only."""
        address = self._address(binding.address)
        configured = self._configured_queues.get(binding.name)
        if configured is not None:
            # What the file says counts, and not what was stored when the queue was made.
            options = options_of(address.settings, configured.options)
            binding = replace(binding, options=options)
        queue = self._make_queue(binding, address, unread_up_to)
        if is_schedule(binding.name):
            address.schedules.add(queue)
        else:
            address.add_queue(queue, gate_of(binding, queue))
            if queue.routing_type is RoutingType.MULTICAST:
                self._patterns.listen(binding.address, address)
        self.queues[binding.name] = queue
        self.bindings[binding.name] = binding
        self._creations.opened(binding.user)
        return queue


def _refuse_if_leaving(queue: Queue) -> None:
    if queue.is_leaving:
        raise DestinationRefused(f"queue {quoted(queue.name)} is being deleted; try again")
