# mypyc compiles this module.
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
must allow that, to whoever asks. A message for subscribers alone needs no such permission.
"""

import logging
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Protocol

from orthia.broker.core.destinations import Destination, is_schedule, parse
from orthia.broker.core.errors import DestinationRefused
from orthia.broker.core.failures import by_itself
from orthia.broker.core.identity import Principal
from orthia.broker.core.limits.creations import QueueCreations
from orthia.broker.core.limits.filter_memory import FilterMemory
from orthia.broker.core.limits.quota import AddressUse, StoreUse
from orthia.broker.core.queue.counters import QueueCounters
from orthia.broker.core.queue.queue import Queue
from orthia.broker.core.routing.address import Address
from orthia.broker.core.routing.address_rules import AddressRules
from orthia.broker.core.routing.diverts import Divert
from orthia.broker.core.routing.patterns import Patterns
from orthia.broker.core.routing.router import Routed, gate_of, origin_of
from orthia.broker.core.slices import GO_ON, Finding, Steps
from orthia.broker.core.upkeep.expiry import AddressExpiry
from orthia.broker.quoting import quoted
from orthia.config.address_settings import RoutingType
from orthia.config.addresses import ResolvedAddressSettings, options_of
from orthia.config.queues import QueueOptions
from orthia.config.settings import Settings
from orthia.journal.model.codec import DurableSubscription, QueueBinding
from orthia.journal.model.message import Message

LOGGER = logging.getLogger("orthia.broker")
MIN_SWEEP = 1_000
"""How many addresses there are at least before the unused ones are forgotten."""


class _Factory(Protocol):
    """Makes the queues of a node."""

    def bind(self, unnumbered: QueueBinding) -> QueueBinding:
        """Store the binding of a new queue, before any message for it; return it with its id."""

    def queue(self, binding: QueueBinding, address: Address, unread_up_to: int) -> Queue:
        """Return the queue of a binding; messages up to the seq are in the table only."""


class AddressBook:
    """Addresses and queues by name."""

    def __init__(
        self,
        settings: Settings,
        creations: QueueCreations,
        store_use: StoreUse,
    ) -> None:
        """Begin empty; ``factory`` is set before the first queue is opened.

        ``creations`` counts the queues that are opened, until they are gone.
        """
        self.factory: _Factory
        """Makes queues. It needs where undeliverable messages go, which is in the book."""
        self.queues: dict[str, Queue] = {}
        self.bindings: dict[str, QueueBinding] = {}
        """What is stored of each queue, by its name."""
        self.known: dict[str, Address] = {}
        """The addresses that somebody uses, and some that nobody uses any more, by name."""
        self.temporary: dict[str, Principal] = {}
        """Addresses that are a connection's own, and whose."""
        self.expiry: AddressExpiry | None = None
        """Has what diverts take expire as its new address says; None where none says so."""
        self.filters = FilterMemory(settings.stomp_limits.max_selector_bytes)
        """What the filters take that clients gave queues."""
        self.left_over: list[Queue] = []
        """Queues of earlier nodes whose messages nobody is to get any more."""
        self.wildcards = settings.wildcard_addresses
        self.patterns = Patterns(self.wildcards, self.temporary)
        self.said = AddressRules(settings)
        """What ``broker.xml`` says of addresses; ``refreshing`` has an address be as others say."""
        self._creations = creations
        self._store_use = store_use
        self._sweep_at = MIN_SWEEP

    # --- what an address is

    def address(self, name: str) -> Address:
        """Return an address; one that is not known is made, and forgotten when nobody uses it."""
        address = self.known.get(name)
        if address is None:
            self._sweep()
            settings = self.said.settings_of(name)
            use = AddressUse(name, settings, self._store_use)
            address = self.known[name] = Address(
                settings, use, self._forward, self.patterns.hearing
            )
            if name in self.temporary:
                return address
            diverts = self.said.diverts_of(name)
            if diverts:
                address.route_by(diverts)
        return address

    def refreshing(self, name: str) -> Steps:
        """Have an address, if it is known, be as the rules say, which are others now."""
        address = self.known.get(name)
        if address is None:
            return
        diverts = () if name in self.temporary else self.said.diverts_of(name)
        if diverts != address.diverts:
            address.route_by(diverts=diverts)
        settings = self.said.settings_of(name)
        if settings == address.settings:
            return
        address.configure(settings)
        for queue in (*address.anycast_queues, *address.multicast_queues, *address.schedules):
            with by_itself("queue %s cannot be as broker.xml says now", quoted(queue.name)):
                queue.configure(settings)
                if not queue.is_leaving:
                    queue.resume()  # there may be room for more
            yield GO_ON

    def refilter(self, name: str, options: QueueOptions) -> None:
        """Apply the ``filter`` and ``enabled`` of options to a queue."""
        queue = self.queues[name]
        binding = self.bindings[name]
        options = replace(binding.options, filter=options.filter, enabled=options.enabled)
        binding = self.bindings[name] = replace(binding, options=options)
        self.address(queue.address).have_gate(queue, gate_of(binding, queue), origin_of(binding))
        self._count_filter(binding)

    def _count_filter(self, binding: QueueBinding) -> None:
        """Count the filter of a queue if a client asked for it, and if it is parsed at all."""
        is_counted = binding.auto_created and origin_of(binding) is None
        self.filters.hold(
            binding.name, binding.user, binding.options.filter if is_counted else None
        )

    def _sweep(self) -> None:
        """Forget addresses that clients made and nobody uses: clients can make any number."""
        if len(self.known) < self._sweep_at:
            return
        unused = {name: one for name, one in self.known.items() if not one.is_used}
        for name in unused:
            del self.known[name]
        self.patterns.left(unused.items())
        self._sweep_at = max(MIN_SWEEP, 2 * len(self.known))

    def types_of(self, name: str) -> frozenset[RoutingType]:
        """Return what an address is, whoever uses it; nothing for one that is not known."""
        address = self.known.get(name)
        return frozenset() if address is None else address.types

    def settings_of(self, name: str) -> ResolvedAddressSettings:
        """Return what is set for an address."""
        return self.address(name).settings

    def use_of(self, destination: str) -> AddressUse:
        """Return what the address that a destination means holds."""
        return self.address(parse(destination).address).use

    def routing_type(self, where: Destination) -> RoutingType:
        """Return what a destination is: as it says, or as its address is."""
        if where.routing_type is not None:
            return where.routing_type
        address = self.known.get(where.address)
        if (address is None or not address.types) and where.address in self.queues:
            return RoutingType.ANYCAST  # the name of a queue, which has another address
        return self.address(where.address).type_of_plain_name

    def hears_many(self, name: str) -> bool:
        """Return whether a subscription to an address of that name hears others."""
        return self.wildcards.routing_enabled and self.wildcards.is_pattern(name)

    def is_there(self, temporary: Destination) -> bool:
        """Return whether a temporary destination is still its connection's."""
        name = temporary.address
        is_topic = temporary.routing_type is RoutingType.MULTICAST
        return name in self.temporary and (is_topic or name in self.queues)

    def has_queues(self, address: str) -> bool:
        """Return whether an address has any queue."""
        known = self.known.get(address)
        return known is not None and bool(known.anycast_queues or known.multicast_queues)

    def is_needed(self, address: str) -> bool:
        """Return whether an address has a queue or is to have messages later, or is configured."""
        is_used = self.has_queues(address) or self.has_schedules(address)
        return is_used or (address in self.known and bool(self.known[address].configured))

    def is_last(self, queue: Queue) -> bool:
        """Return whether an address has no queue beside this one."""
        known = self.known.get(queue.address)
        return known is None or all(
            one is queue for one in (*known.anycast_queues, *known.multicast_queues)
        )

    def has_schedules(self, name: str) -> bool:
        """Return whether messages are to come to an address, or to a queue of it, later."""
        address = self.known.get(name)
        waiting = () if address is None else address.schedules
        return any(one.depth or not one.is_counted for one in waiting)

    # --- its queues

    def depths(self) -> dict[str, int]:
        """Return how many messages each queue has, as far as counted; may be called anywhere."""
        # A list, at once, whatever the loop does meanwhile.
        return {name: queue.depth for name, queue in list(self.queues.items())}

    def counters(self) -> QueueCounters:
        """Return what happened to the messages of all queues together; may be called anywhere."""
        total = QueueCounters()
        for queue in list(self.queues.values()):  # at once, as above
            total.add(queue.counters)
        return total

    def create_queue(
        self,
        name: str,
        address: str,
        routing_type: RoutingType,
        *,
        auto_created: bool,
        max_consumers: int | None = None,
        user: str | None = None,
        subscription: DurableSubscription | None = None,
        options: QueueOptions | None = None,
        durable: bool = True,
    ) -> Queue:
        """Create a queue, whoever it is for; raises DestinationRefused, NotLive.

        What is not said of it is as the settings of its address have it.
        """
        known = self.address(address)
        if max_consumers is None:
            max_consumers = known.settings.default_max_consumers
        binding = QueueBinding(
            0,
            name,
            address,
            routing_type,
            auto_created=auto_created,
            max_consumers=max_consumers,
            user=user,
            subscription=subscription,
            options=known.options_of_new(name) if options is None else options,
            durable=durable,
        )
        return self.open_queue(self.factory.bind(binding), unread_up_to=0)

    def open_queue(self, binding: QueueBinding, *, unread_up_to: int) -> Queue:
        """Open a queue that has a binding; messages up to the seq are in the table only."""
        address = self.address(binding.address)
        configured = self.said.queues.get(binding.name)
        if configured is not None:
            # What the file says counts, and not what was stored when the queue was made.
            options = options_of(address.settings, configured.options)
            binding = replace(binding, options=options)
        queue = self.factory.queue(binding, address, unread_up_to)
        if is_schedule(binding.name):
            address.schedules.add(queue)
        else:
            address.add_queue(queue, gate_of(binding, queue), origin_of(binding))
            if queue.routing_type is RoutingType.MULTICAST:
                self.patterns.listen(binding.address, address)
        self.queues[binding.name] = queue
        self.bindings[binding.name] = binding
        self._creations.opened(binding.user)
        self._count_filter(binding)
        return queue

    def leave_over(self, binding: QueueBinding, *, unread_up_to: int) -> None:
        """Open a queue of before this node that is not durable: under no name, to be deleted.

        Its name is free at once, also for one that is configured.
        """
        address = self.address(binding.address)
        self.left_over.append(self.factory.queue(binding, address, unread_up_to))

    def open_level(self, binding: QueueBinding, unread_up_to: int) -> None:
        """Have what a queue has of another priority than most, which is open already."""
        queue = self.queues.get(binding.name)
        if queue is None:
            LOGGER.error(
                "there is no queue %s, of which binding %d says that it has messages of priority"
                " %d: nobody gets them",
                quoted(binding.name),
                binding.queue_id,
                binding.priority,
            )
            return
        queue.open_level(binding, unread_up_to)

    def trimming(self) -> Steps:
        """Have queues that may keep few messages keep no more of what earlier nodes left."""
        for queue in [*self.queues.values()]:
            queue.open_trimmed()
            yield GO_ON

    def withdraw(self, queue: Queue) -> None:
        """Route nothing to a queue any more; its name is not free yet."""
        self.address(queue.address).remove_queue(queue)

    def forget(self, queue: Queue) -> None:
        """Have a queue's name free again: it is stored no more."""
        if self.queues.get(queue.name) is not queue:
            return  # its name was free before
        del self.queues[queue.name]
        del self.bindings[queue.name]
        self._creations.deleted(queue.user, len(queue.ids))
        self.filters.release(queue.name)

    # --- what the broker itself sends

    def ensure_queues(self, name: str, record: Message | None = None) -> Sequence[Queue]:
        """Return the queues for what the broker itself sends to ``name``: never none.

        As of what clients send, each queue of a MULTICAST address gets it, if it takes the
        ``record``. One that has none gets a queue, of its own type, where that of a client would be
        lost.
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
            refuse_if_leaving(queue)
            return [queue]
        address = self.address(name)
        if address.types == {RoutingType.MULTICAST}:
            existing = list(address.multicast_queues)
            kind = RoutingType.MULTICAST
            if record is not None and address.gates:
                existing = address.takers(record)
                if not address.configured:
                    kind = RoutingType.ANYCAST  # its queues are those of other addresses' letters
        else:
            next_one = address.anycast()
            existing = [] if next_one is None else [next_one]
            kind = RoutingType.ANYCAST
        return existing or [self.create_queue(name, name, kind, auto_created=True)]

    def _forward(
        self,
        divert: Divert,
        record: Message,
        principal: Principal,
        kind: RoutingType,
        through: Collection[Divert],
    ) -> Finding[list[Routed]]:
        """Route what a divert takes; see ``orthia.broker.core.routing.router.Forward``."""
        name, copy = divert.address, divert.diverted(record)
        if self.expiry is not None:
            copy = self.expiry.forwarded(copy)
        address = self.address(name)
        types = address.types or {address.settings.default_address_routing_type}
        found: list[Routed] = []
        for one in divert.kinds(kind, types):
            queues: Sequence[Queue] = address.multicast_queues
            topics = () if address.topic is None else (address.topic,)
            router = address.router_of_topic(self.patterns.newest)
            if one is not RoutingType.MULTICAST:
                # As of a dead letter: where there is no queue one is made, and nothing is lost.
                first = address.anycast() or self.ensure_queues(name)[0]
                router = address.router
                queues = [first] if router is None else list(address.anycast_queues)
                topics = ()
            if router is None:
                found.append(Routed(copy, queues, topics))
            else:
                passed = (*through, divert)
                found += yield from router.route(copy, principal, queues, topics, passed)
        return found


def refuse_if_leaving(queue: Queue) -> None:
    """Raise DestinationRefused if a queue is being deleted."""
    if queue.is_leaving:
        raise DestinationRefused(f"queue {quoted(queue.name)} is being deleted; try again")
