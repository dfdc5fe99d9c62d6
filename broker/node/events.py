"""What can happen to a node: the events of its state machine.

A ``WorkEvent`` says how the work ended that the node was at, and comes from whoever did it. The
others come at any time, from any thread.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class NodeEvent:
    """Something happened."""


@dataclass(frozen=True)
class WorkEvent(NodeEvent):
    """The work that the node was at is over."""


# --- how work ends well, in the order of a life


@dataclass(frozen=True)
class Begun(WorkEvent):
    """The process is ready for its node."""


@dataclass(frozen=True)
class Paused(WorkEvent):
    """The pause after short lives is over."""


@dataclass(frozen=True)
class Prepared(WorkEvent):
    """The store is usable, the node manager started."""


@dataclass(frozen=True)
class AcceptorsTried(WorkEvent):
    """The acceptors could listen, or may when that matters."""


@dataclass(frozen=True)
class Activated(WorkEvent):
    """The live lock is held and the journal fenced."""

    holder_id: str
    token: int


@dataclass(frozen=True)
class Loaded(WorkEvent):
    """The journal is open."""


@dataclass(frozen=True)
class Opened(WorkEvent):
    """The acceptors are open."""


@dataclass(frozen=True)
class Completed(WorkEvent):
    """The state says that this node is live."""

    now_seconds: float


@dataclass(frozen=True)
class FailbackAsked(WorkEvent):
    """A live node wants its place back."""

    now_seconds: float


@dataclass(frozen=True)
class ServedEnough(WorkEvent):
    """Serving was ended from outside."""


@dataclass(frozen=True)
class WhoWaitsAsked(WorkEvent):
    """Whoever was put off has to ask again, if the store was there to say so."""

    is_written: bool


@dataclass(frozen=True)
class Drained(WorkEvent):
    """Acceptors, journal and sockets are closed."""


@dataclass(frozen=True)
class Released(WorkEvent):
    """The live lock is given back."""

    now_seconds: float


@dataclass(frozen=True)
class BackupStopped(WorkEvent):
    """The backup lock is given back."""


# --- how it ends otherwise


@dataclass(frozen=True)
class WorkInterrupted(WorkEvent):
    """It was waiting, and is to wait no more."""


@dataclass(frozen=True)
class StoreGone(WorkEvent):
    """The store or the lock is gone; the node itself is not wrongly set up."""

    reason: str


@dataclass(frozen=True)
class WorkRefused(WorkEvent):
    """Something that was to be expected is wrong, such as the configuration."""

    exit_code: int
    reason: str


@dataclass(frozen=True)
class WorkBroke(WorkEvent):
    """Something is wrong with the host, or with this program."""

    exit_code: int
    reason: str


# --- what comes at any time


@dataclass(frozen=True)
class StopRequested(NodeEvent):
    """Somebody wants the node to stop in good order."""


@dataclass(frozen=True)
class LockWasLost(NodeEvent):
    """The live lock is lost, or will be before anybody could know better."""

    reason: str


@dataclass(frozen=True)
class JournalFailed(NodeEvent):
    """The journal stores nothing any more."""

    reason: str
    was_fenced: bool


@dataclass(frozen=True)
class CompletionFailed(NodeEvent):
    """What follows a commit was left half done: the queues are not the journal's."""

    reason: str


@dataclass(frozen=True)
class LoopWedged(NodeEvent):
    """The event loop has not answered for so long."""

    unanswered_seconds: float
    where: str
    """The stack of its thread, innermost last."""


@dataclass(frozen=True)
class PartDied(NodeEvent):
    """A thread, the memory or the loop is gone, without which no node is a node."""

    reason: str


@dataclass(frozen=True)
class ShutDownDone(NodeEvent):
    """The IO-error shutdown has closed what it can."""
