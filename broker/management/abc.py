"""What the endpoint of probes and metrics knows of a node."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

from prometheus_client import CollectorRegistry


@dataclass(frozen=True)
class Verdict:
    """The answer of a probe."""

    ok: bool
    reason: str
    """Why, in a few words: what a person reads who asks why the probe fails."""


class HealthSource(ABC):
    """What the endpoint asks the node; called on the event loop, so nothing here may block."""

    @property
    @abstractmethod
    def registry(self) -> CollectorRegistry:
        """The node's metrics, which are collected on a thread of the endpoint's own."""

    @abstractmethod
    def liveness(self) -> Verdict:
        """Tell whether the process is in order; one that is not should be restarted."""

    @abstractmethod
    def readiness(self) -> Verdict:
        """Tell whether clients are served."""

    @abstractmethod
    def describe_role(self) -> Mapping[str, object]:
        """Return what ``/role`` shows as JSON: ``name``, ``role``, ``token`` and the like."""
