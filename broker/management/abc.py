"""The interface between the HTTP server's probes and metrics and a node."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

from prometheus_client import CollectorRegistry


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
