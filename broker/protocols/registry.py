"""The protocols that are served, and which of them a client speaks.

An acceptor serves those of its ``protocols`` that are here. A client speaks the one whose greeting
its first bytes are; else the first of them that has no greeting.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from orthia.broker.protocols.abc import ServedProtocol
from orthia.broker.protocols.amqp.protocol import Amqp
from orthia.broker.protocols.stomp.protocol import Stomp
from orthia.config.settings import AcceptorSettings, ClientLimits

SERVED: Final[Mapping[str, Callable[[AcceptorSettings, ClientLimits], ServedProtocol]]] = {
    "STOMP": Stomp,
    "AMQP": Amqp,
}
"""By the name that ``protocols`` has for it."""


def served_by(acceptor: AcceptorSettings, limits: ClientLimits) -> tuple[ServedProtocol, ...]:
    """Return the protocols of an acceptor, in its order; the configuration requires one.

    ``limits`` hold where the acceptor sets none of its own.
    """
    return tuple(SERVED[name](acceptor, limits) for name in acceptor.protocols if name in SERVED)


def greeted(protocols: Sequence[ServedProtocol], first: bytes) -> ServedProtocol | None:
    """Return the protocol whose greeting begins the ``first`` bytes; None if there is none yet."""
    for one in protocols:
        if one.greeting and first.startswith(one.greeting):
            return one
    return None


def may_greet(protocols: Sequence[ServedProtocol], first: bytes) -> bool:
    """Return whether the ``first`` bytes may be the beginning of a greeting."""
    return any(one.greeting.startswith(first) for one in protocols if one.greeting)
