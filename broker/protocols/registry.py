"""The protocols that are served, and which of them a connection speaks.

That is one of the ``protocols`` of its acceptor. The first bytes may show that the client speaks
something else: ``orthia.broker.protocols.foreign``.
"""

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from orthia.broker.protocols.stomp.connection import StompConnection
from orthia.broker.protocols.stomp.options import StompOptions
from orthia.config.settings import AcceptorSettings, StompLimits


class Served(NamedTuple):
    """A protocol that is served."""

    options: Callable[[AcceptorSettings, StompLimits], StompOptions]
    """Gives what all its connections by one acceptor have in common."""
    connect: type[StompConnection]
    """Begins one of them."""


SERVED: Final[Mapping[str, Served]] = {"STOMP": Served(StompOptions.of, StompConnection)}
"""By the name that ``protocols`` has for it."""


def served_by(acceptor: AcceptorSettings) -> Served:
    """Return the protocol in which an acceptor begins; it was refused at the start if it has none.

    The first that is served counts, in the order in which the acceptor names them.
    """
    return next(SERVED[name] for name in acceptor.protocols if name in SERVED)
