# mypyc compiles this module.
"""What the addresses of links name: queues, topics, and what is made for one link.

A capability of the terminus says whether an address is a queue or a topic, a prefix of the acceptor
does, and so do ``/queue/`` and ``/topic/``, which the core knows. Without any the settings of the
address decide.
"""

from typing import Final, NamedTuple

from orthia.broker.core.destinations import of_type
from orthia.broker.protocols.amqp.client import Client
from orthia.broker.protocols.amqp.composites import Symbols
from orthia.broker.protocols.amqp.conditions import (
    INVALID_FIELD,
    NOT_IMPLEMENTED,
    LinkFault,
)
from orthia.broker.protocols.amqp.performatives import Source, Target
from orthia.broker.protocols.amqp.values import Described, Symbol, Value
from orthia.broker.quoting import quoted
from orthia.config.address_settings import RoutingType

QUEUE: Final = Symbol("queue")
TOPIC: Final = Symbol("topic")
TEMPORARY_QUEUE: Final = Symbol("temporary-queue")
TEMPORARY_TOPIC: Final = Symbol("temporary-topic")
SHARED: Final = Symbol("shared")
GLOBAL: Final = Symbol("global")
COPY: Final = Symbol("copy")
MOVE: Final = Symbol("move")
_KINDS: Final = {
    QUEUE: RoutingType.ANYCAST,
    TEMPORARY_QUEUE: RoutingType.ANYCAST,
    TOPIC: RoutingType.MULTICAST,
    TEMPORARY_TOPIC: RoutingType.MULTICAST,
}
_LIFETIME: Final = Symbol("lifetime-policy")
_DELETE_ON_CLOSE: Final = (0x2B, "amqp:delete-on-close:list")
_NODE: Final = "node"
"""The end of the names of nodes that are made for links."""
SELECTOR: Final = (0x0000468C00000004, "apache.org:selector-filter:string")
NO_LOCAL: Final = (0x0000468C00000003, "apache.org:no-local-filter:list")
"""The descriptors of the filters that act, as a number and as a symbol."""


class Filters(NamedTuple):
    """What a source's filters ask for."""

    selector: str | None
    no_local: bool
    accepted: dict[Symbol, Value]
    """Those that act, as they came: the client learns by them which do."""


def kind_of(capabilities: Symbols) -> RoutingType | None:
    """Return what capabilities say an address is; None if they say nothing of it."""
    return next((_KINDS[one] for one in capabilities if one in _KINDS), None)


class Nodes:
    """Finds and makes what the links of one client name; methods raise LinkFault, BrokerError."""

    __slots__ = ("_client", "_made")

    def __init__(self, client: Client) -> None:
        self._client = client
        self._made = 0

    def of_core(self, address: str, kind: RoutingType | None) -> str:
        """Return an address as the core knows it; ``kind`` is what the client says it is."""
        prefixes = self._client.options.prefixes
        if prefixes is not None:
            address = prefixes.of_core(address)
        return of_type(address, None if kind is None else kind.value)

    def make(self, terminus: Source | Target) -> str:
        """Make a node for a link; return its address, by which others may send to it, too."""
        for name, value in terminus.dynamic_node_properties.items():
            if name != _LIFETIME:
                continue
            descriptor = value.descriptor if isinstance(value, Described) else value
            if descriptor not in _DELETE_ON_CLOSE:
                raise LinkFault(
                    NOT_IMPLEMENTED,
                    "a dynamic node is deleted when its link is closed; expected no lifetime-policy"
                    " but delete-on-close",
                )
        client = self._client
        kind = kind_of(terminus.capabilities) or RoutingType.ANYCAST
        made = client.core.create_temporary(client.principal, kind, _NODE)
        self._made += 1
        return made

    def delete(self, address: str) -> None:
        """Delete a node that was made for a link which is closed."""
        self._client.core.end_temporary(self._client.principal, address)
        self._made -= 1

    def end(self) -> None:
        """Delete all that were made: their connection is over."""
        if self._made:
            self._client.core.end_temporaries(self._client.principal)


def filters_of(source: Source) -> Filters:
    """Return what the filters of a source ask for; raises LinkFault for one that is not known."""
    selector: str | None = None
    no_local = False
    for name, value in source.filter.items():
        if value is None:
            continue
        descriptor = value.descriptor if isinstance(value, Described) else name
        if descriptor in SELECTOR:
            text = value.value if isinstance(value, Described) else value
            if not isinstance(text, str):
                raise LinkFault(INVALID_FIELD, "the selector of a filter is no text")
            selector = text or None
        elif descriptor in NO_LOCAL:
            no_local = True
        else:
            raise LinkFault(
                NOT_IMPLEMENTED,
                f"filter {quoted(str(name)[:80])} is not known; expected a selector"
                f" ({SELECTOR[1]}) or no-local ({NO_LOCAL[1]})",
            )
    return Filters(selector, no_local, dict(source.filter))
