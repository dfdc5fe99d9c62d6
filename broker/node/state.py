"""The state of a node: one immutable value, from which ``step`` makes the next."""

import enum
from dataclasses import dataclass, field, replace
from typing import Final

from orthia.broker.node.exit_codes import ExitCode
from orthia.broker.node.restarts import Life
from orthia.config.settings import CriticalAnalyzerPolicy, HaPolicy, IoErrorPolicy, Settings
from orthia.nodemanager.failback import Failbacks


class Phase(enum.Enum):
    """What a node is now, for probes, metrics and logs."""

    STARTING = "starting"
    WAITING_LIVE = "waiting-live"
    BACKUP = "backup"
    CONNECTORS_STOPPED = "connectors-stopped"
    LIVE = "live"
    STOPPING = "stopping"
    FAILED = "failed"


ON_THE_WAY: Final = frozenset({Phase.WAITING_LIVE, Phase.BACKUP})
"""Phases before a node serves: a live lock that it has by then was of no use yet."""


class Stage(enum.Enum):
    """The stage of a node's life, named by its work; each but the last ones ends with an event."""

    NEW = enum.auto()
    PAUSING = enum.auto()
    """A life after several short ones waits for some time."""
    PREPARING = enum.auto()
    """The store is made usable, the node manager started."""
    TRYING_ACCEPTORS = enum.auto()
    WAITING = enum.auto()
    """For the live lock: as live node, as backup, or to resume as the former life left it."""
    LOADING = enum.auto()
    """The live lock is held and the journal is opened."""
    OPENING = enum.auto()
    """Acceptors are opened."""
    COMPLETING = enum.auto()
    """State L is written, the backup lock released."""
    SERVING = enum.auto()
    ASKING = enum.auto()
    """Clients are served; a node that asked for failback and was put off has to ask again."""
    DRAINING = enum.auto()
    """Acceptors close and what waits is stored, so that the live lock may be released."""
    RELEASING = enum.auto()
    CLOSING = enum.auto()
    """As DRAINING, for a node that ends by an error or before it served."""
    LETTING_GO = enum.auto()
    """As RELEASING, for the same."""
    LEAVING = enum.auto()
    """The backup lock is released."""
    ENDED = enum.auto()
    FAILING = enum.auto()
    """The IO-error shutdown is under way; other work may hang for ever."""
    FAILED = enum.auto()


@dataclass(frozen=True)
class Terms:
    """What a life was begun with, as far as it decides what the node does."""

    ha: HaPolicy = field(default_factory=HaPolicy)
    life: Life = field(default_factory=Life)
    after_io_error: IoErrorPolicy = IoErrorPolicy.SHUTDOWN
    resume_check_ms: int = 0
    analyzer_policy: CriticalAnalyzerPolicy = CriticalAnalyzerPolicy.SHUTDOWN
    analyzer_timeout_ms: int = 0

    @classmethod
    def of(cls, settings: Settings, life: Life) -> "Terms":
        """Return the terms of ``life``, whose settings these are."""
        return cls(
            settings.ha_policy,
            life,
            after_io_error=settings.io_error_policy,
            resume_check_ms=settings.resume_check_sleep_period,
            analyzer_policy=settings.critical_analyzer_policy,
            analyzer_timeout_ms=settings.critical_analyzer_timeout,
        )


@dataclass(frozen=True)
class Term:
    """A node's hold of the live lock."""

    holder_id: str
    token: int


@dataclass(frozen=True)
class NodeState:
    """Everything that decides what a node does next."""

    terms: Terms
    stage: Stage = Stage.NEW
    phase: Phase = Phase.STARTING
    stop_requested: bool = False
    failure: str | None = None
    """Why the node shuts down as after an IO error, once it does."""
    exit_code: int = ExitCode.OK
    exit_reason: str = "stopped"
    term: Term | None = None
    """Under which the live lock was obtained, until it is released."""
    served_as: Term | None = None
    """Under which clients were served; the next life may resume it."""
    journal_is_open: bool = False
    hands_back: bool = False
    """Whether it drains to hand back to a live node, rather than to stop."""
    failbacks: Failbacks = field(default_factory=Failbacks)

    @property
    def resumes(self) -> bool:
        """Whether it waits for the lock that its former life lost contact with."""
        return self.phase is Phase.CONNECTORS_STOPPED

    def next_life(self, now: float) -> Life | None:
        """Return what follows an IO-error shutdown in this process; None: the process ends.

        ``now`` is on the stopwatch. Whoever asks the node to stop meanwhile ends the process.
        """
        if self.stop_requested:
            return None
        served = self.served_as
        return self.terms.life.next(
            self.terms.after_io_error,
            now=now,
            holder_id=served.holder_id if served else None,
            token=served.token if served else None,
        )

    def at(self, stage: Stage, phase: Phase | None = None) -> "NodeState":
        """Return the same in another stage, and phase if that changes."""
        return replace(self, stage=stage, phase=phase or self.phase)
