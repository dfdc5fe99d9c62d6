"""What a client's ``destination`` names."""

from functools import lru_cache
from typing import NamedTuple

from orthia.broker.core.errors import DestinationRefused
from orthia.broker.quoting import quoted
from orthia.config import addresses
from orthia.config.address_settings import RoutingType

MAX_NAME_LENGTH = 255
QUALIFIED = "::"
"""Between an address and its queue, as in Artemis."""
REPLAYS = addresses.REPLAYS
"""Whoever may write there decides what the next replay sends."""
MANAGEMENT_ADDRESS = "activemq.management"
"""Takes requests and no messages; Artemis' default of ``management-address``."""

SCHEDULES = "orthia.scheduled."
"""How the queues are called that hold what is delivered later; no client's queue is called so."""


class Destination(NamedTuple):
    """An address, and how it is to be routed; None leaves that to the address."""

    address: str
    routing_type: RoutingType | None
    queue: str | None = None
    """Of ``ADDRESS::QUEUE``: the one queue of the address that is meant."""
    is_temporary: bool = False
    """Whether it is a connection's own."""

    @property
    def name(self) -> str:
        """What is meant of the address: ADDRESS, or ADDRESS::QUEUE."""
        return self.address if self.queue is None else f"{self.address}{QUALIFIED}{self.queue}"


_PREFIXES = {"/queue/": RoutingType.ANYCAST, "/topic/": RoutingType.MULTICAST}
REMOTE_PREFIXES = {
    RoutingType.ANYCAST: "/remote-temp-queue/",
    RoutingType.MULTICAST: "/remote-temp-topic/",
}
"""Of destinations that are another connection's own, as Classic calls them."""


@lru_cache(maxsize=1024)  # asked for every message
def parse(text: str) -> Destination:
    """Read ``/queue/NAME``, ``/topic/NAME`` or a plain name; raises DestinationRefused."""
    for prefix, routing_type in _PREFIXES.items():
        if text.startswith(prefix):
            return _destination(text[len(prefix) :], routing_type, text)
    for routing_type, prefix in REMOTE_PREFIXES.items():
        if text.startswith(prefix):
            name = _checked(text[len(prefix) :], text)
            return Destination(name, routing_type, is_temporary=True)
    return _destination(text, None, text)


def _destination(name: str, routing_type: RoutingType | None, text: str) -> Destination:
    address, qualified, queue = name.partition(QUALIFIED)
    if not qualified:
        return Destination(_checked(name, text), routing_type)
    return Destination(_checked(address, text), routing_type, _checked(queue, text))


def of_type(destination: str, name: str | None) -> str:
    """Return ``destination`` as one of the routing type a client named beside it, if it did.

    Raises DestinationRefused if there is no such type, or the destination is of the other.
    """
    if name is None:
        return destination
    prefixes = {routing_type.value: prefix for prefix, routing_type in _PREFIXES.items()}
    if name not in prefixes:
        expected = " or ".join(prefixes)
        raise DestinationRefused(
            f"routing type {quoted(name[:80])} is unknown; expected {expected}"
        )
    named = parse(destination)
    if named.routing_type is not None and named.routing_type.value != name:
        raise DestinationRefused(
            f"destination {quoted(destination)} is {named.routing_type.value}, and the header"
            f" beside it says {name}"
        )
    if named.is_temporary:
        return destination
    return prefixes[name] + named.name


def is_name(text: str) -> bool:
    """Return whether an address or a queue may be called so."""
    return 0 < len(text) <= MAX_NAME_LENGTH and text.isprintable() and text == text.strip()


def schedule_name(routing_type: RoutingType, where: Destination) -> str:
    """Return what the queue is called of what is sent to a destination to be delivered later."""
    return f"{SCHEDULES}{routing_type.value.lower()}.{where.name}"


def is_schedule(name: str) -> bool:
    """Return whether a queue of this name holds what is delivered later."""
    return name.startswith(SCHEDULES)


def _checked(name: str, text: str) -> str:
    if not is_name(name):
        raise DestinationRefused(
            f"destination {quoted(text[:300])} is not valid; expected /queue/NAME, /topic/NAME or"
            f" NAME, of 1 to {MAX_NAME_LENGTH} printable characters"
        )
    return name
