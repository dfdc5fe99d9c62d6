"""Who a connection acts for, and who says so."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from orthia.journal.model.unit import Sender


class Origin(NamedTuple):
    """Where a client comes from."""

    address: str = ""
    port: int | None = None
    connection: str = ""
    """The id of its connection: what its CONNECTED says as ``session``."""


NOWHERE: Final = Origin()
"""Of who is no client."""


@dataclass(frozen=True, eq=False)
class Principal:
    """Who a connection acts for; each has one of its own, and equals no other."""

    name: str
    roles: frozenset[str]
    unrestricted: bool = False
    """True when security is off: every permission is granted."""
    client_id: str | None = None
    """What its durable subscriptions are found by, whichever connection it is; as it says."""
    origin: Origin = NOWHERE
    validated_user: str | None = None
    """What its messages say of who sent them; None for nothing."""
    refused_login: str | None = None
    """The user it said to be, with another passcode, before it was let in as a guest."""
    valid_until: float | None = None
    """When its connection ends, in seconds of the connections' clock; None for never."""
    is_connection: bool = True
    """False for whom the broker sends what applications send by SQL: no limit of a connection
    concerns it, for it never ends."""
    sender: Sender = field(default_factory=Sender)
    """By whom the journal keeps the order of what the connection sends."""


class Verification(ABC):
    """What has to be done to know whose a login is, and takes too long for the loop."""

    @abstractmethod
    def run(self) -> None:
        """Find it out; on any thread, once."""

    @abstractmethod
    def principal(self) -> Principal:
        """Return who it is, once it has run; on the loop's thread. Raises AuthenticationFailed."""
