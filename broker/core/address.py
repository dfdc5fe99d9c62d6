# mypyc compiles this module.
"""One address of a node: its queues, and the subscribers of its topic."""

from collections import deque
from collections.abc import Sequence
from typing import Final

from orthia.broker.core.diverts import Divert
from orthia.broker.core.errors import DestinationRefused
from orthia.broker.core.identity import Principal
from orthia.broker.core.queue import Queue
from orthia.broker.core.quota import AddressUse
from orthia.broker.core.routing import Forward, Gate, Router
from orthia.broker.core.topic import Topic
from orthia.broker.quoting import quoted
from orthia.config.address_settings import RoutingType
from orthia.config.addresses import ResolvedAddressSettings, options_of
from orthia.config.queues import QueueOptions
from orthia.journal.message import Message

BROKER: Final = Principal("", frozenset(), unrestricted=True)
"""Who sends what the broker itself sends."""


class Address:
    """An address of this node: its queues, and the topic subscribers that are there."""

    __slots__ = (
        "anycast_queues",
        "configured",
        "diverts",
        "forward",
        "gates",
        "multicast_queues",
        "patterns",
        "router",
        "schedules",
        "settings",
        "topic",
        "types",
        "use",
    )

    def __init__(
        self, settings: ResolvedAddressSettings, use: AddressUse, forward: Forward
    ) -> None:
        self.settings = settings
        self.use = use
        self.topic: Topic | None = None
        """Those who hear it without a queue, if there was anybody yet."""
        self.configured: frozenset[RoutingType] = frozenset()
        """The types it is configured with; none for an address that is not configured."""
        self.types: frozenset[RoutingType] = frozenset()
        """What it is, whoever uses it: as it is configured, and as its queues are."""
        self.anycast_queues: deque[Queue] = deque()
        self.multicast_queues: list[Queue] = []
        self.gates: dict[Queue, Gate] = {}
        """What those of its queues that do not take every message ask of it."""
        self.patterns: dict[Address, str] = {}
        """The addresses with wildcards that stand for this one and have a queue or a subscriber, or
        had one until lately; and their names."""
        self.diverts: tuple[Divert, ...] = ()
        self.forward = forward
        self.router: Router | None = None
        """None if every message goes to all of its queues, or to the one whose turn it is."""
        self._look_again()
        self.schedules: set[Queue] = set()
        """Of what is sent to the address to be delivered later."""

    def configure(self, settings: ResolvedAddressSettings) -> None:
        """Be as other settings say from now on; its queues are told by the caller."""
        self.settings = settings
        self.use.configure(settings)
        self._look_again()

    def options_of_new(self, name: str) -> QueueOptions:
        """Return what a new queue does of which nothing is said; raises DestinationRefused."""
        options = options_of(self.settings, {})
        if options.conflict is not None:
            raise DestinationRefused(
                f"queue {quoted(name)}, by the settings of its address, {options.conflict}"
            )
        return options

    @property
    def is_used(self) -> bool:
        """Whether anything would be missed if the node forgot the address."""
        return bool(
            self.configured
            or self.anycast_queues
            or self.multicast_queues
            or self.schedules
            or (self.topic is not None and self.topic.is_used)
            or self.use.uploading
        )

    @property
    def type_of_plain_name(self) -> RoutingType:
        """What its name means without a prefix."""
        known = self.configured or self.types
        if len(known) == 1:
            return next(iter(known))
        return self.settings.default_address_routing_type

    @property
    def type_of_new_queue(self) -> RoutingType:
        """What a queue of it is that is created for a client that does not say."""
        if len(self.types) == 1:
            return next(iter(self.types))
        default = self.settings.default_queue_routing_type if self.types else None
        return default or self.settings.default_address_routing_type

    def declare(self, types: frozenset[RoutingType]) -> None:
        """Note what the address is configured as."""
        self.configured = types
        self._find_types()

    def have_gate(self, queue: Queue, gate: Gate | None) -> None:
        """Have a queue of the address take what its ``gate`` lets in; all without one."""
        if gate is not None:
            self.gates[queue] = gate
        elif self.gates.pop(queue, None) is None:
            return
        self._look_again()

    def add_queue(self, queue: Queue, gate: Gate | None = None) -> None:
        """Note a queue of the address, which takes what its ``gate`` lets in."""
        self.have_gate(queue, gate)
        self.types |= {queue.routing_type}
        if queue.routing_type is RoutingType.ANYCAST:
            self.anycast_queues.append(queue)
        else:
            self.multicast_queues.append(queue)

    def route_by(
        self,
        *,
        patterns: dict["Address", str] | None = None,
        diverts: Sequence[Divert] | None = None,
    ) -> None:
        """Have those who hear it by wildcards, or its diverts, be others."""
        if patterns is not None:
            self.patterns = patterns
        if diverts is not None:
            self.diverts = tuple(diverts)
        self._look_again()

    def _look_again(self) -> None:
        needed = self.gates or self.patterns or self.diverts or self.use.asks_first
        router = Router(self.gates, self.patterns, self.diverts, self.forward) if needed else None
        self.router = router

    def remove_queue(self, queue: Queue) -> None:
        """Route nothing to a queue any more."""
        if queue in self.schedules:
            self.schedules.remove(queue)
            return
        self.gates.pop(queue, None)
        self._look_again()
        if queue.routing_type is RoutingType.ANYCAST:
            self.anycast_queues.remove(queue)
        else:
            self.multicast_queues.remove(queue)
        self._find_types()

    def _find_types(self) -> None:
        left = (one.routing_type for one in (*self.anycast_queues, *self.multicast_queues))
        self.types = self.configured | frozenset(left)

    def anycast(self) -> Queue | None:
        """Return the queue whose turn it is."""
        queues = self.anycast_queues
        if len(queues) > 1:
            queues.rotate(-1)
        return queues[0] if queues else None

    def takers(self, record: Message) -> list[Queue]:
        """Return the queues that take what the broker itself sends: one ANYCAST, and others."""
        one = self.anycast()
        return [
            queue
            for queue in (*(() if one is None else (one,)), *self.multicast_queues)
            if not queue.is_leaving
            and (queue not in self.gates or self.gates[queue](record, BROKER))
        ]

    def anycast_to_consume(self) -> Queue | None:
        """Return the next queue that may have another consumer, or any if none may."""
        queue = self.anycast()
        for _ in range(1, len(self.anycast_queues)):
            if queue is None or queue.takes_consumers:
                break
            queue = self.anycast()
        return queue
