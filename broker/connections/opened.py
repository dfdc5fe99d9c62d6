"""An acceptor that is open, as its connections see it."""

from dataclasses import dataclass

from orthia.broker.protocols.registry import Served, served_by
from orthia.broker.protocols.stomp.options import StompOptions
from orthia.config.settings import AcceptorSettings, StompLimits


@dataclass(eq=False)
class OpenAcceptor:
    """One for all connections that come by it."""

    settings: AcceptorSettings
    protocol: Served
    options: StompOptions
    connections: int = 0
    """How many there are."""

    @classmethod
    def of(cls, settings: AcceptorSettings, limits: StompLimits) -> "OpenAcceptor":
        """Return an acceptor without connections; ``limits`` are for what it leaves open."""
        protocol = served_by(settings)
        return cls(settings, protocol, protocol.options(settings, limits))
