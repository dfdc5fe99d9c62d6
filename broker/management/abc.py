"""The interfaces between what operators use and a node."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from prometheus_client import CollectorRegistry

from orthia.broker.core.identity import Principal
from orthia.broker.management.views import ConnectionView, HandoverView, TransactionView


@dataclass(frozen=True)
class Verdict:
    """The answer of a probe."""

    ok: bool
    reason: str
    """Why, in a few words, for a person who asks why the probe fails."""


class HealthSource(ABC):
    """A node as probes and metrics ask it; called on the thread of HTTP, so no method may block."""

    @property
    @abstractmethod
    def registry(self) -> CollectorRegistry:
        """The node's metrics, which are collected on a thread of their own."""

    @abstractmethod
    def liveness(self) -> Verdict:
        """Return whether the process is in order; one that is not should be restarted."""

    @abstractmethod
    def readiness(self) -> Verdict:
        """Return whether clients are served."""

    @abstractmethod
    def describe_role(self) -> Mapping[str, object]:
        """Return the JSON object of ``/role``: ``name``, ``role``, ``token`` and others."""


class ConnectedClients(ABC):
    """The connections of a live node; on the loop's thread."""

    @property
    @abstractmethod
    def number(self) -> int:
        """How many have logged in."""

    @abstractmethod
    def connections(self) -> Iterable[ConnectionView]:
        """Yield those that have logged in, in no order, with 0 for how many consumers each has.

        Each as it is when its turn comes: the loop may go on in between.
        """

    @abstractmethod
    def transactions(self) -> Iterable[TransactionView]:
        """Yield the open transactions of all of them, in no order."""

    @abstractmethod
    def end(self, connection: str, reason: str) -> bool:
        """Tell a client why, and disconnect it; False if there is no such connection."""

    @property
    @abstractmethod
    def held_bytes(self) -> int:
        """What clients make the broker hold."""

    @property
    @abstractmethod
    def limit_bytes(self) -> int:
        """What they may at most."""


class Caller(NamedTuple):
    """Who asks over HTTP, as far as it is known before a login."""

    address: str
    port: int | None
    login: str | None
    passcode: str | None
    certificate: bytes | None = None
    """That of its TLS, verified, as DER; None if it has shown none."""


class OperatorLogins(ABC):
    """The logins of operators; on the loop's thread."""

    @abstractmethod
    async def log_in(self, caller: Caller) -> Principal:
        """Return who asks, by the users of clients.

        Failed logins delay the next over HTTP as those of clients delay clients. Raises
        AuthenticationFailed, and LimitExceeded if too many logins wait.
        """


class Handover(ABC):
    """How a live node hands over to the backup that waits."""

    @abstractmethod
    async def hand_over(self) -> HandoverView:
        """Do so, and wait until somebody else serves; raises BrokerError if nobody waits."""
