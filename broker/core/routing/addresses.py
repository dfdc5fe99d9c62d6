# mypyc compiles this module.
"""The addresses and queues of a live node by name, and the routing type of a destination.

An address may be ANYCAST, with queues of which each message goes to one, and MULTICAST, where each
queue and each subscriber gets a copy; or both, each with its own messages. Its types follow from
the configuration and from the queues that are stored, never from who used it first: so they are the
same for every client, and after a takeover.

| the address       | ``/queue/X`` or ``/topic/X``            | ``X``                            |
|-------------------|-----------------------------------------|----------------------------------|
| is configured     | if it or a queue of it has the type     | its type; if both, the default   |
| has stored queues | as asked for                            | their type; if both, the default |
| is neither        | as asked for                            | the default                      |

The default is ``default-address-routing-type``. A type that an address neither is configured with
nor has queues of is created for it: ``auto-create-addresses`` and the permission ``createAddress``
must allow that for each client. A message for subscribers alone needs no such permission.
"""

import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Protocol

from orthia.broker.core.destinations import Destination, is_schedule, parse
from orthia.broker.core.errors import DestinationRefused
from orthia.broker.core.failures import by_itself
from orthia.broker.core.identity import Principal
from orthia.broker.core.limits.creations import QueueCreations
from orthia.broker.core.limits.filter_memory import FilterMemory
from orthia.broker.core.limits.memory import at_most
from orthia.broker.core.limits.quota import AddressUse, StoreUse
from orthia.broker.core.queue.counters import QueueCounters
from orthia.broker.core.queue.queue import Queue
from orthia.broker.core.routing.address import Address
from orthia.broker.core.routing.address_expiry import as_moved
from orthia.broker.core.routing.address_rules import AddressRules
from orthia.broker.core.routing.diverts import Divert
from orthia.broker.core.routing.patterns import Patterns
from orthia.broker.core.routing.router import Routed, gate_of, origin_of
from orthia.broker.core.slices import GO_ON, Finding, Steps
from orthia.broker.quoting import quoted
from orthia.config.address_settings import RoutingType
from orthia.config.addresses import ResolvedAddressSettings, options_of
from orthia.config.queues import QueueOptions
from orthia.config.settings import Settings
from orthia.journal.model.codec import DurableSubscription, QueueBinding
from orthia.journal.model.message import Message

LOGGER = logging.getLogger("orthia.broker")
MIN_SWEEP = 1_000
"""The least number of addresses at which unused ones are forgotten."""


class _Factory(Protocol):
    """Makes the queues of a node."""

    def queue(self, binding: QueueBinding, address: Address, unread_up_to: int) -> Queue:
        """Return the queue of a binding; messages up to the seq are in the table only."""

    def change(self, queue: Queue, options: QueueOptions) -> None:
        """Apply changed options to a queue at once."""


class AddressBook:
    """Addresses and queues by name."""

    def __init__(
        self,
        settings: Settings,
        creations: QueueCreations,
        store_use: StoreUse,
        time_ms: Callable[[], int],
    ) -> None:
        """Begin empty; ``factory`` and ``bind`` are set before the first queue is opened.

        ``creations`` counts the queues that are opened, until they are gone.
        """
        self.factory: _Factory
        """Makes queues. It needs where undeliverable messages go, which is in the book."""
        self.bind: Callable[[QueueBinding], QueueBinding]
        """Stores the binding of a new queue, before any message for it; returns it with its id."""
        self.queues: dict[str, Queue] = {}
        self.version = 0
        """Another number once there are other queues."""
        self.bindings: dict[str, QueueBinding] = {}
        """The stored binding of each queue, by its name."""
        self.known: dict[str, Address] = {}
        """The addresses that are in use, and some that are not any more, by name."""
        self.temporary: dict[str, Principal] = {}
        """Temporary addresses, and whose they are."""
        self.filters = FilterMemory(settings.stomp_limits.max_selector_bytes)
        """What the filters take that clients gave queues."""
        self.left_over: list[Queue] = []
        """Queues of earlier nodes that are not durable; they are to be deleted."""
        self.wildcards = settings.wildcard_addresses
        self.patterns = Patterns(self.wildcards, self.temporary)
        self.rules = AddressRules(settings)
        """What ``broker.xml`` says of addresses; ``refreshing`` applies new rules to an address."""
        self._creations = creations
        self._store_use = store_use
        self._time_ms = time_ms
        self._sweep_at = MIN_SWEEP

    # --- what an address is

    def address(self, name: str) -> Address:
        """Return an address; a new one is forgotten again once nobody uses it."""
        address = self.known.get(name)
        if address is None:
            self._sweep()
            settings = self.rules.settings_of(name)
            use = AddressUse(name, settings, self._store_use)
            address = self.known[name] = Address(
                settings, use, self._forward, self.patterns.hearing
            )
            if name in self.temporary:
                return address
            diverts = self.rules.diverts_of(name)
            if diverts:
                address.route_by(diverts)
        return address

    def refreshing(self, name: str) -> Steps:
        """Apply changed rules to an address, if it is known."""
        address = self.known.get(name)
        if address is None:
            return
        diverts = () if name in self.temporary else self.rules.diverts_of(name)
        if diverts != address.diverts:
            address.route_by(diverts=diverts)
        settings = self.rules.settings_of(name)
        if settings == address.settings:
            return
        address.configure(settings)
        for queue in (*address.anycast_queues, *address.multicast_queues, *address.schedules):
            with by_itself(
                "applying the changed broker.xml to queue %s failed", quoted(queue.name)
            ):
                queue.configure(settings)
                if not queue.is_leaving:
                    queue.resume()  # there may be room for more
            yield GO_ON

    def change_queue(self, name: str, options: QueueOptions, max_consumers: int) -> None:
        """Apply changed options to a queue at once."""
        queue, binding = self.queues[name], self.bindings[name]
        binding = replace(binding, options=options, max_consumers=max_consumers)
        self.bindings[name] = binding
        queue.max_consumers = at_most(max_consumers)
        self.factory.change(queue, options)
        self.address(queue.address).set_gate(queue, gate_of(binding, queue), origin_of(binding))
        self._count_filter(binding)

    def refilter(self, name: str, options: QueueOptions) -> None:
        """Apply the ``filter`` and ``enabled`` of options to a queue."""
        queue = self.queues[name]
        binding = self.bindings[name]
        options = replace(binding.options, filter=options.filter, enabled=options.enabled)
        binding = self.bindings[name] = replace(binding, options=options)
        self.address(queue.address).set_gate(queue, gate_of(binding, queue), origin_of(binding))
        self._count_filter(binding)

    def _count_filter(self, binding: QueueBinding) -> None:
        """Count the filter of a queue if a client asked for it, and if it is parsed at all."""
        is_counted = binding.auto_created and origin_of(binding) is None
        self.filters.hold(
            binding.name, binding.user, binding.options.filter if is_counted else None
        )

    def _sweep(self) -> None:
        """Forget addresses that nobody uses: clients can create any number."""
        if len(self.known) < self._sweep_at:
            return
        unused = {name: one for name, one in self.known.items() if not one.is_used}
        for name in unused:
            del self.known[name]
        self.patterns.left(unused.items())
        self._sweep_at = max(MIN_SWEEP, 2 * len(self.known))

    def types_of(self, name: str) -> frozenset[RoutingType]:
        """Return the routing types of an address; none if it is not known."""
        address = self.known.get(name)
        return frozenset() if address is None else address.types

    def settings_of(self, name: str) -> ResolvedAddressSettings:
        """Return the settings of an address."""
        return self.address(name).settings

    def use_of(self, destination: str) -> AddressUse:
        """Return the limits of the address that a destination names."""
        return self.address(parse(destination).address).use

    def routing_type(self, where: Destination) -> RoutingType:
        """Return the routing type of a destination: its own, or that of its address."""
        if where.routing_type is not None:
            return where.routing_type
        address = self.known.get(where.address)
        if (address is None or not address.types) and where.address in self.queues:
            return RoutingType.ANYCAST  # the name of a queue of another address
        return self.address(where.address).type_of_plain_name

    def is_wildcard(self, name: str) -> bool:
        """Return whether an address of that name matches others by wildcards."""
        return self.wildcards.routing_enabled and self.wildcards.is_pattern(name)

    def is_there(self, temporary: Destination) -> bool:
        """Return whether a temporary destination still exists."""
        name = temporary.address
        is_topic = temporary.routing_type is RoutingType.MULTICAST
        return name in self.temporary and (is_topic or name in self.queues)

    def has_queues(self, address: str) -> bool:
        """Return whether an address has any queue."""
        known = self.known.get(address)
        return known is not None and bool(known.anycast_queues or known.multicast_queues)

    def is_needed(self, address: str) -> bool:
        """Return whether an address has a queue or scheduled messages, or is configured."""
        is_used = self.has_queues(address) or self.has_schedules(address)
        known = self.known.get(address)
        return is_used or (known is not None and bool(known.configured or known.created))

    def is_last(self, queue: Queue) -> bool:
        """Return whether an address has no queue beside this one."""
        known = self.known.get(queue.address)
        return known is None or all(
            one is queue for one in (*known.anycast_queues, *known.multicast_queues)
        )

    def has_schedules(self, name: str) -> bool:
        """Return whether an address, or a queue of it, has scheduled messages."""
        address = self.known.get(name)
        waiting = () if address is None else address.schedules
        return any(one.depth or not one.is_counted for one in waiting)

    # --- its queues

    def depths(self) -> dict[str, int]:
        """Return how many messages each queue has, as far as counted; on any thread."""
        # A list, made at once: the loop may change the dictionary meanwhile.
        return {name: queue.depth for name, queue in list(self.queues.items())}

    def consumable_queues(self) -> list[Queue]:
        """Return the queues that clients can consume from: all but schedules."""
        return [one for one in self.queues.values() if not is_schedule(one.name)]

    def counters(self) -> QueueCounters:
        """Return what happened to the messages of all queues together; on any thread."""
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
        """Create a queue, without asking any permission; raises DestinationRefused, NotLive.

        What is left out is as the settings of its address say.
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
        return self.open_queue(self.bind(binding), unread_up_to=0)

    def open_queue(self, binding: QueueBinding, *, unread_up_to: int) -> Queue:
        """Open a queue that has a binding; messages up to ``unread_up_to`` are only stored."""
        address = self.address(binding.address)
        configured = self.rules.queues.get(binding.name)
        if configured is not None:
            # The file counts, not what was stored when the queue was created.
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
        self.version += 1
        self.bindings[binding.name] = binding
        self._creations.opened(binding.user)
        self._count_filter(binding)
        return queue

    def leave_over(self, binding: QueueBinding, *, unread_up_to: int) -> None:
        """Open a queue of an earlier node that is not durable, to be deleted; its name is free."""
        address = self.address(binding.address)
        self.left_over.append(self.factory.queue(binding, address, unread_up_to))

    def open_level(self, binding: QueueBinding, unread_up_to: int) -> None:
        """Open the messages of another priority of a queue that is open already."""
        queue = self.queues.get(binding.name)
        if queue is None:
            LOGGER.error(
                "binding %d is for messages of queue %s with priority %d, and there is no such"
                " queue: these messages are not delivered",
                binding.queue_id,
                quoted(binding.name),
                binding.priority,
            )
            return
        queue.open_level(binding, unread_up_to)

    def trimming(self) -> Steps:
        """Trim queues with a size limit of their own to it: earlier nodes may have left more."""
        for queue in [*self.queues.values()]:
            queue.open_trimmed()
            yield GO_ON

    def withdraw(self, queue: Queue) -> None:
        """Stop routing to a queue; its name is not free yet."""
        self.address(queue.address).remove_queue(queue)

    def forget(self, queue: Queue) -> None:
        """Free the name of a queue whose binding is deleted."""
        if self.queues.get(queue.name) is not queue:
            return  # another queue has its name already
        del self.queues[queue.name]
        self.version += 1
        del self.bindings[queue.name]
        self._creations.deleted(queue.user, len(queue.log.ids))
        self._creations.gone(queue.name)
        self.filters.release(queue.name)

    # --- what the broker itself sends

    def ensure_queues(self, name: str, record: Message | None = None) -> Sequence[Queue]:
        """Return the queues for what the broker itself sends to address ``name``: never none.

        Each queue of a MULTICAST address gets it, if it takes the ``record``. An address without a
        queue gets one: what a client sends there would be lost.
        """
        queue = self.queues.get(name)
        if queue is not None:
            if queue.address != name and self.bindings[name].auto_created:
                # A client created it, perhaps to get what is not for it.
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
                    kind = RoutingType.ANYCAST  # its queues are for dead letters of other addresses
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
        """Route a diverted message; see ``orthia.broker.core.routing.router.Forward``."""
        name, copy = divert.address, divert.diverted(record)
        address = self.address(name)
        if self.rules.changes_messages:
            copy = as_moved(copy, address.settings, self._time_ms())
        types = address.types or {address.settings.default_address_routing_type}
        found: list[Routed] = []
        for one in divert.kinds(kind, types):
            queues: Sequence[Queue] = address.multicast_queues
            topics = () if address.topic is None else (address.topic,)
            router = address.router_of_topic(self.patterns.newest)
            if one is not RoutingType.MULTICAST:
                # As for a dead letter: without a queue one is created, so nothing is lost.
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
