# mypyc compiles this module.
"""One address of a node: its queues, its topic, and what a message must pass to reach them."""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from orthia.broker.core.errors import DestinationRefused
from orthia.broker.core.identity import Principal
from orthia.broker.core.limits.quota import AddressUse
from orthia.broker.core.queue.queue import Queue
from orthia.broker.core.routing.diverts import Divert
from orthia.broker.core.routing.router import Forward, Gate, Router, origin_address
from orthia.broker.core.slices import Finding
from orthia.broker.core.topics.topic import Topic
from orthia.broker.quoting import quoted
from orthia.config.address_settings import RoutingType
from orthia.config.addresses import ResolvedAddressSettings, options_of
from orthia.config.queues import QueueOptions
from orthia.journal.model.message import Message

BROKER: Final = Principal("", frozenset(), unrestricted=True)
"""The sender of what the broker itself sends."""


class Address:
    """An address of this node: its queues, and its topic if anybody subscribed."""

    __slots__ = (
        "anycast_queues",
        "configured",
        "created",
        "diverts",
        "forward",
        "gates",
        "heard_by",
        "heard_up_to",
        "hearing",
        "is_paused",
        "multicast_queues",
        "of_origin",
        "origins",
        "router",
        "schedules",
        "settings",
        "topic",
        "types",
        "use",
    )

    def __init__(
        self,
        settings: ResolvedAddressSettings,
        use: AddressUse,
        forward: Forward,
        hearing: "Callable[[Address], Finding[Iterable[Address]]]",
    ) -> None:
        self.settings = settings
        self.use = use
        self.topic: Topic | None = None
        """Its subscribers without a queue; None until there is one."""
        self.configured: frozenset[RoutingType] = frozenset()
        """The routing types it is configured with; empty if it is not configured."""
        self.created: frozenset[RoutingType] = frozenset()
        """The routing types it was created with by an operator."""
        self.is_paused = False
        """Whether an operator has paused it, and with it its queues."""
        self.types: frozenset[RoutingType] = frozenset()
        """Its routing types: as it is configured, and as its queues are."""
        self.anycast_queues: deque[Queue] = deque()
        self.multicast_queues: list[Queue] = []
        self.gates: dict[Queue, Gate] = {}
        """The gates of those of its queues that do not take every message."""
        self.origins: dict[Queue, str] = {}
        """For each queue that takes only what was undeliverable at one address, that address."""
        self.of_origin: dict[str, dict[Queue, None]] = {}
        """The same queues, by that address."""
        self.hearing = hearing
        """Finds the wildcard addresses that match this one, and notes them in the next two."""
        self.heard_by: tuple[Address, ...] = ()
        """Those that matched when the last message was sent; some may not be used any more."""
        self.heard_up_to = 0
        """The number of the newest wildcard address at that time."""
        self.diverts: tuple[Divert, ...] = ()
        self.forward = forward
        self.router: Router | None = None
        """None if every message goes to all of its queues, or to the next ANYCAST one."""
        self._update_router()
        self.schedules: set[Queue] = set()
        """Queues of messages for the address that are not due yet."""

    def configure(self, settings: ResolvedAddressSettings) -> None:
        """Apply other settings; the caller tells the queues."""
        self.settings = settings
        self.use.configure(settings)
        self._update_router()

    def options_of_new(self, name: str) -> QueueOptions:
        """Return the default options of a new queue; raises DestinationRefused."""
        options = options_of(self.settings, {})
        if options.conflict is not None:
            raise DestinationRefused(
                f"queue {quoted(name)}, by the settings of its address, {options.conflict}"
            )
        return options

    @property
    def is_used(self) -> bool:
        """Whether anything would be lost if the node forgot the address."""
        return bool(
            self.configured
            or self.created
            or self.is_paused
            or self.anycast_queues
            or self.multicast_queues
            or self.schedules
            or (self.topic is not None and self.topic.is_used)
            or self.use.uploading
        )

    @property
    def type_of_plain_name(self) -> RoutingType:
        """The routing type that its name means without a prefix."""
        known = self.configured or self.created or self.types
        if len(known) == 1:
            return next(iter(known))
        return self.settings.default_address_routing_type

    @property
    def type_of_new_queue(self) -> RoutingType:
        """The routing type of a new queue for a client that names none."""
        if len(self.types) == 1:
            return next(iter(self.types))
        default = self.settings.default_queue_routing_type if self.types else None
        return default or self.settings.default_address_routing_type

    def declare(self, types: frozenset[RoutingType]) -> None:
        """Set the routing types that the address is configured with."""
        self.configured = types
        self._find_types()

    def create(self, types: frozenset[RoutingType]) -> None:
        """Set the routing types that an operator created the address with."""
        self.created = types
        self._find_types()

    def set_gate(self, queue: Queue, gate: Gate | None, origin: str | None = None) -> None:
        """Set the gate of a queue; without one the queue takes every message.

        With an ``origin`` the gate takes only what was undeliverable at that address.
        """
        self._forget_origin(queue)
        if origin is not None and queue.routing_type is RoutingType.MULTICAST:
            self.of_origin.setdefault(origin, {})[queue] = None
            self.origins[queue] = origin
        if gate is not None:
            self.gates[queue] = gate
            if self.router is None:
                self._update_router()
        elif self.gates.pop(queue, None) is not None:
            self._update_router()

    def add_queue(self, queue: Queue, gate: Gate | None = None, origin: str | None = None) -> None:
        """Add a queue, with its gate: see ``set_gate``."""
        self.set_gate(queue, gate, origin)
        if self.is_paused:
            queue.pause_with_address(is_paused=True)
        self.types |= {queue.routing_type}
        if queue.routing_type is RoutingType.ANYCAST:
            self.anycast_queues.append(queue)
        else:
            self.multicast_queues.append(queue)

    def hear(self, by: "tuple[Address, ...]", up_to: int) -> None:
        """Set which wildcard addresses match this one, of those with a number ``up_to``."""
        needs_router = bool(by) != bool(self.heard_by)
        self.heard_by = by
        self.heard_up_to = up_to
        if needs_router:
            self._update_router()

    def router_of_topic(self, newest: int) -> Router | None:
        """Return the router of MULTICAST messages; None if each goes to all queues.

        ``newest`` is the number of the newest wildcard address.
        """
        if self.router is None and self.heard_up_to != newest:
            return self._router()
        return self.router

    def route_by(self, diverts: Sequence[Divert]) -> None:
        """Replace the diverts of the address."""
        self.diverts = tuple(diverts)
        self._update_router()

    def _update_router(self) -> None:
        needed = self.gates or self.heard_by or self.diverts or self.use.asks_first
        self.router = self._router() if needed else None

    def _router(self) -> Router:
        return Router(self.gates, self._hearing, self.diverts, self.forward)

    def _hearing(self) -> "Finding[Iterable[Address]]":
        return self.hearing(self)

    def remove_queue(self, queue: Queue) -> None:
        """Stop routing messages to a queue."""
        if queue in self.schedules:
            self.schedules.remove(queue)
            return
        self.gates.pop(queue, None)
        self._update_router()
        self._forget_origin(queue)
        if queue.routing_type is RoutingType.ANYCAST:
            self.anycast_queues.remove(queue)
        else:
            self.multicast_queues.remove(queue)
        self._find_types()

    def _forget_origin(self, queue: Queue) -> None:
        origin = self.origins.pop(queue, None)
        if origin is not None:
            del self.of_origin[origin][queue]
            if not self.of_origin[origin]:
                del self.of_origin[origin]

    def _find_types(self) -> None:
        left = (one.routing_type for one in (*self.anycast_queues, *self.multicast_queues))
        self.types = self.configured | self.created | frozenset(left)

    def anycast(self) -> Queue | None:
        """Return the ANYCAST queue whose turn it is."""
        queues = self.anycast_queues
        if len(queues) > 1:
            queues.rotate(-1)
        return queues[0] if queues else None

    def takers(self, record: Message) -> list[Queue]:
        """Return the queues that take a message of the broker itself: one ANYCAST, all MULTICAST.

        Of the queues for what is undeliverable at one address, perhaps thousands, only those of the
        right address are asked.
        """
        one = self.anycast()
        asked: Iterable[Queue] = self.multicast_queues
        if self.origins:
            of_others = [queue for queue in self.multicast_queues if queue not in self.origins]
            asked = (*of_others, *self.of_origin.get(origin_address(record), ()))
        return [
            queue
            for queue in (*(() if one is None else (one,)), *asked)
            if not queue.is_leaving
            and (queue not in self.gates or self.gates[queue](record, BROKER))
        ]

    def anycast_to_consume(self) -> Queue | None:
        """Return the next queue that takes another consumer; if none does, any queue."""
        queue = self.anycast()
        for _ in range(1, len(self.anycast_queues)):
            if queue is None or queue.takes_consumers:
                break
            queue = self.anycast()
        return queue
