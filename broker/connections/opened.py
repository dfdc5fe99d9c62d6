"""An acceptor that is open, as its connections see it."""

from dataclasses import dataclass

from orthia.broker.protocols.abc import ServedProtocol
from orthia.broker.protocols.registry import served_by
from orthia.config.settings import AcceptorSettings, ClientLimits


@dataclass(eq=False)
class OpenAcceptor:
    """One for all connections that come by it."""

    settings: AcceptorSettings
    protocols: tuple[ServedProtocol, ...]
    """Those it serves, at least one."""
    connections: int = 0
    """How many there are."""

    @classmethod
    def of(cls, settings: AcceptorSettings, limits: ClientLimits) -> "OpenAcceptor":
        """Return an acceptor without connections; ``limits`` hold where it sets none of its own."""
        return cls(settings, served_by(settings, limits))

    @property
    def usual(self) -> ServedProtocol:
        """The protocol of a client that has no greeting: the first such, or else the first."""
        return next((one for one in self.protocols if not one.greeting), self.protocols[0])

    @property
    def versions(self) -> str:
        """What it serves, for errors."""
        return ", or ".join(one.versions for one in self.protocols)

    @property
    def subprotocols(self) -> tuple[str, ...]:
        """The sub-protocols of its WebSockets, the most wanted last."""
        return tuple(name for one in reversed(self.protocols) for name in one.subprotocols)

    def of_subprotocol(self, name: str) -> ServedProtocol:
        """Return the protocol that one of ``subprotocols`` is of."""
        return next(one for one in self.protocols if name in one.subprotocols)
