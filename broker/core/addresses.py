"""The addresses of a live node: what a destination means, and what is created for it."""

from collections.abc import Callable
from typing import Protocol

from broker.api import DestinationRefused, LimitExceeded, Principal
from broker.core.destinations import Destination, parse
from broker.core.queue import Queue
from broker.core.security import Security
from broker.core.topic import TopicSubscription
from broker.quoting import quoted
from config.addresses import AddressResolver, ResolvedAddressSettings
from config.settings import RoutingType, Settings
from journal.codec import QueueBinding

MIN_SWEEP = 1_000
"""How many addresses there are at least before the unused ones are forgotten."""


class Address:
    """An address of this node: its queues, and the topic subscribers that are there."""

    __slots__ = ("is_configured", "next_anycast", "queues", "settings", "subscribers", "types")

    def __init__(self, settings: ResolvedAddressSettings) -> None:
        self.settings = settings
        self.is_configured = False
        self.queues: list[Queue] = []
        self.subscribers: list[TopicSubscription] = []
        self.types: set[RoutingType] = set()
        self.next_anycast = 0

    @property
    def is_used(self) -> bool:
        """Whether anything would be missed if the node forgot the address."""
        return bool(self.is_configured or self.queues or self.subscribers)

    def anycast(self) -> Queue | None:
        """Return the queue whose turn it is."""
        queues = [one for one in self.queues if one.routing_type is RoutingType.ANYCAST]
        if not queues:
            return None
        self.next_anycast += 1
        return queues[self.next_anycast % len(queues)]

    def multicast(self) -> list[Queue]:
        """Return the queues that each get a copy."""
        return [one for one in self.queues if one.routing_type is RoutingType.MULTICAST]


class BindQueue(Protocol):
    """Stores the binding of a new queue."""

    def __call__(
        self, name: str, address: str, routing_type: RoutingType, *, auto_created: bool
    ) -> QueueBinding:
        """Return the binding, which is stored before any message for the queue can be."""


class AddressBook:
    """Addresses and queues by name."""

    def __init__(
        self,
        settings: Settings,
        security: Security,
        *,
        bind: BindQueue,
        make_queue: Callable[[QueueBinding, ResolvedAddressSettings, int], Queue],
    ) -> None:
        """Begin empty; ``make_queue`` also gets the seq up to which messages are unread."""
        self.queues: dict[str, Queue] = {}
        self._settings = settings
        self._resolver = AddressResolver(settings)
        self._security = security
        self._bind = bind
        self._make_queue = make_queue
        self._addresses: dict[str, Address] = {}
        self._sweep_at = MIN_SWEEP

    def subscribers(self) -> list[TopicSubscription]:
        """Return the subscribers of every topic."""
        return [one for address in self._addresses.values() for one in address.subscribers]

    def route(
        self, principal: Principal, destination: str
    ) -> tuple[str, list[Queue], list[TopicSubscription]]:
        """Return the address a SEND means, the queues that get it and the subscribers that hear it.

        Raises DestinationRefused, NotAuthorized.
        """
        where = parse(destination)
        self._security.check(principal, "send", where.address)
        routing_type = self.routing_type(where)
        address = self.address_for(principal, where, routing_type)
        if routing_type is RoutingType.MULTICAST:
            return where.address, address.multicast(), address.subscribers
        queue = address.anycast() or self._queue_of(principal, where.address, address)
        return where.address, [queue], []

    def routing_type(self, where: Destination) -> RoutingType:
        """Return what a destination is: as it says, as the address is, or as is configured."""
        if where.routing_type is not None:
            return where.routing_type
        address = self._addresses.get(where.address)
        if address is not None and len(address.types) == 1:
            return next(iter(address.types))
        settings = address.settings if address else self._resolver.resolve(where.address)
        return settings.default_address_routing_type

    def address_for(
        self, principal: Principal, where: Destination, routing_type: RoutingType
    ) -> Address:
        """Return the address, created where that is allowed; raises DestinationRefused."""
        address = self._addresses.get(where.address)
        if address is not None and routing_type in address.types:
            return address
        if address is None:
            settings = self._resolver.resolve(where.address)
            if not settings.auto_create_addresses:
                raise DestinationRefused(
                    f"address {quoted(where.address)} does not exist and auto-create-addresses is"
                    " false"
                )
            self._security.check(principal, "createAddress", where.address)
            self._sweep()
            address = self._addresses[where.address] = Address(settings)
        elif address.types:
            has = ", ".join(sorted(one.value for one in address.types))
            raise DestinationRefused(
                f"address {quoted(where.address)} is {has}; {routing_type.value} was asked for"
                " (/queue/ is ANYCAST, /topic/ is MULTICAST)"
            )
        address.types.add(routing_type)
        return address

    def _sweep(self) -> None:
        """Forget addresses that clients made and nobody uses: clients can make any number."""
        if len(self._addresses) < self._sweep_at:
            return
        for name in [name for name, address in self._addresses.items() if not address.is_used]:
            del self._addresses[name]
        self._sweep_at = max(MIN_SWEEP, 2 * len(self._addresses))

    def queue_to_consume(self, principal: Principal, where: Destination) -> Queue:
        """Return the queue of that name, whatever its address, or one of the address' queues."""
        named = self.queues.get(where.address)
        self._security.check(principal, "consume", named.address if named else where.address)
        if named is not None:
            return named
        address = self.address_for(principal, where, RoutingType.ANYCAST)
        return self._queue_of(principal, where.address, address)

    def _queue_of(self, principal: Principal, name: str, address: Address) -> Queue:
        queue = address.anycast()
        if queue is not None:
            return queue
        named = self.queues.get(name)
        if named is not None:
            raise DestinationRefused(
                f"queue {quoted(name)} belongs to address {quoted(named.address)}: send to that"
            )
        if not address.settings.auto_create_queues:
            raise DestinationRefused(
                f"queue {quoted(name)} does not exist and auto-create-queues is false"
            )
        self._security.check(principal, "createDurableQueue", name)
        limit = self._settings.stomp_limits.max_queues
        if len(self.queues) >= limit:
            raise LimitExceeded(
                f"the broker has max-queues {limit} already: {quoted(name)} is one more"
            )
        return self._create_queue(name, name, RoutingType.ANYCAST, auto_created=True)

    def ensure_queue(self, name: str) -> Queue:
        """Return a queue for what the broker itself sends to ``name``."""
        queue = self.queues.get(name)
        if queue is not None:
            return queue
        address = self._addresses.get(name)
        existing = address.anycast() if address is not None else None
        return existing or self._create_queue(name, name, RoutingType.ANYCAST, auto_created=True)

    def create_configured(self) -> None:
        """Create what ``addresses`` names and the journal does not have yet."""
        for configured in self._settings.addresses:
            address = self._addresses.get(configured.name)
            if address is None:
                address = Address(self._resolver.resolve(configured.name))
                self._addresses[configured.name] = address
            address.is_configured = True
            address.types |= configured.routing_types
            for queue in configured.queues:
                if queue.name not in self.queues:
                    self._create_queue(
                        queue.name, configured.name, queue.routing_type, auto_created=False
                    )

    def _create_queue(
        self, name: str, address: str, routing_type: RoutingType, *, auto_created: bool
    ) -> Queue:
        binding = self._bind(name, address, routing_type, auto_created=auto_created)
        return self.open_queue(binding, unread_up_to=0)

    def open_queue(self, binding: QueueBinding, *, unread_up_to: int) -> Queue:
        """Open a queue that has a binding; messages up to the seq are in the table only."""
        address = self._addresses.get(binding.address)
        if address is None:
            address = Address(self._resolver.resolve(binding.address))
            self._addresses[binding.address] = address
        queue = self._make_queue(binding, address.settings, unread_up_to)
        address.types.add(binding.routing_type)
        address.queues.append(queue)
        self.queues[binding.name] = queue
        return queue
