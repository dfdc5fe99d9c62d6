"""A client, as those see it who count and end connections."""

from typing import Protocol

from orthia.broker.connections.client_memory import Account, Activity
from orthia.broker.connections.opened import OpenAcceptor
from orthia.broker.core.errors import Refusal
from orthia.broker.core.slices import Usage


class Client(Protocol):
    """A connection that can be counted and ended."""

    address: str
    """The client's address, without its port."""
    port: int | None
    """Its port; None before it is connected."""
    source: str
    """Whose limits it counts against; see ``orthia.broker.security.sources``."""
    held: int
    """Bytes the broker holds for it, as last counted."""
    account: Account
    """The account whose bound it shares with others."""
    usage: Usage
    """How much of the loop's time it had lately."""
    read_in: int
    """The latest turn of the loop in which it sent much; see ``TurnReads``."""
    activity: Activity
    is_admitted: bool
    acceptor: OpenAcceptor
    """The acceptor it connected to."""

    def certificate(self) -> bytes | None:
        """Return its verified certificate as DER; None if it has shown none."""

    def turn_away(self, kind: Refusal, reason: str) -> None:
        """Tell the client why and close at once, without lingering."""

    def abort(self) -> None:
        """Cut the connection off: nothing more leaves."""

    def end(self, reason: str) -> None:
        """Tell the client why, unless it does not read, and disconnect it."""

    def hold_reading(self) -> bool:
        """Read nothing until ``update_reading``; return whether it was read from so far."""

    def update_reading(self) -> None:
        """Read from it while it reads from us and its bytes can be handled."""

    def resume_deliveries(self) -> None:
        """Resume deliveries: there is room."""
