"""What can happen to a node: the events of its state machine.

A ``WorkEvent`` says how the work ended that the node was at, and comes from whoever did it. The
others come at any time, from any thread.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class NodeEvent:
    """Something happened; an event without fields is the dataclass that it inherits."""


class WorkEvent(NodeEvent):
    """The node's current work has ended."""


# --- how work ends well, in the order of a life


class Begun(WorkEvent):
    """The process is ready for its node."""


class Paused(WorkEvent):
    """The pause after short lives is over."""


class Prepared(WorkEvent):
    """The store is usable, the node manager started."""


class AcceptorsTried(WorkEvent):
    """The acceptors could listen, or will be able to when it matters."""


@dataclass(frozen=True)
class Activated(WorkEvent):
    """The live lock is held and the journal fenced."""

    holder_id: str
    token: int


class Loaded(WorkEvent):
    """The journal is open."""


class Opened(WorkEvent):
    """The acceptors are open."""


@dataclass(frozen=True)
class Completed(WorkEvent):
    """State L is written: this node is live."""

    now_seconds: float


@dataclass(frozen=True)
class FailbackAsked(WorkEvent):
    """A live node wants its place back."""

    now_seconds: float


@dataclass(frozen=True)
class HandoverAsked(WorkEvent):
    """An operator hands over to the backup that waits."""

    now_seconds: float


class ServedEnough(WorkEvent):
    """Something outside ended serving."""


@dataclass(frozen=True)
class WhoWaitsAsked(WorkEvent):
    """A node that was put off has to ask again, if the store could be told."""

    is_written: bool


class Drained(WorkEvent):
    """Acceptors, journal and sockets are closed."""


@dataclass(frozen=True)
class Released(WorkEvent):
    """The live lock is released."""

    now_seconds: float


class BackupStopped(WorkEvent):
    """The backup lock is released."""


# --- how it ends otherwise


class WorkInterrupted(WorkEvent):
    """The wait was interrupted."""


@dataclass(frozen=True)
class StoreGone(WorkEvent):
    """The store or the lock is lost; the node itself is set up correctly."""

    reason: str


@dataclass(frozen=True)
class WorkRefused(WorkEvent):
    """A foreseen condition is wrong, such as the configuration."""

    exit_code: int
    reason: str


@dataclass(frozen=True)
class WorkBroke(WorkEvent):
    """The host or this program failed."""

    exit_code: int
    reason: str


# --- what comes at any time


class StopRequested(NodeEvent):
    """An orderly stop is requested."""


@dataclass(frozen=True)
class LockWasLost(NodeEvent):
    """The live lock is lost, or must be taken for lost."""

    reason: str


@dataclass(frozen=True)
class JournalFailed(NodeEvent):
    """The journal failed and stores nothing further."""

    reason: str
    was_fenced: bool


@dataclass(frozen=True)
class CompletionFailed(NodeEvent):
    """The work after a commit failed half done: queues and journal differ."""

    reason: str


@dataclass(frozen=True)
class LoopWedged(NodeEvent):
    """The event loop has not answered within the time-out."""

    unanswered_seconds: float
    where: str
    """The stack of its thread, innermost last."""


@dataclass(frozen=True)
class PartDied(NodeEvent):
    """A thread, the memory or the loop that every node needs is gone."""

    reason: str


class ShutDownDone(NodeEvent):
    """The IO-error shutdown has closed all that it can."""
