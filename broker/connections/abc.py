"""What the rooms of ``connections`` know of a client."""

from typing import Protocol

from orthia.broker.connections.client_memory import Account, Activity
from orthia.broker.connections.opened import OpenAcceptor
from orthia.broker.core.limits.refusals import Refusal


class Client(Protocol):
    """A connection, as whoever counts and ends connections sees it."""

    address: str
    """The client's address, without its port."""
    port: int | None
    """Its port; None before it is connected."""
    source: str
    """Whose limits it counts against: see ``orthia.broker.security.sources``."""
    held: int
    """Bytes the broker holds for it, as last counted."""
    account: Account
    """With whom it shares a bound of what is held."""
    activity: Activity
    is_admitted: bool
    acceptor: OpenAcceptor
    """Which it came by."""

    def certificate(self) -> bytes | None:
        """Return its certificate, which was verified, as DER; None if it has shown none."""

    def turn_away(self, kind: Refusal, reason: str) -> None:
        """Say why and close at once, without lingering."""

    def abort(self) -> None:
        """Cut the connection off: nothing more leaves."""

    def end(self, reason: str) -> None:
        """Tell the client why, unless it does not read, and free what it holds."""

    def resume_deliveries(self) -> None:
        """Deliver again: there is room."""
