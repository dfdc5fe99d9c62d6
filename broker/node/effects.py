"""What a node is to do: the effects of its state machine, values that its shell carries out.

A ``Work`` takes its time and ends with a ``WorkEvent``; a node is at one of them at most.
"""

import enum
from dataclasses import dataclass

from orthia.broker.node.state import Phase
from orthia.config.settings import Role
from orthia.nodemanager.abc import FormerLife
from orthia.nodemanager.events import Event


@dataclass(frozen=True)
class Effect:
    """Carried out at once, by whoever told the event; each in the order they are listed.

    An effect without fields of its own is the dataclass that it inherits.
    """


class Work(Effect):
    """Carried out on the activation thread, and may block there; the last of its list."""


# --- work, in the order of a life


@dataclass(frozen=True)
class Pause(Work):
    """Wait for some time: Paused."""

    seconds: float


class PrepareStore(Work):
    """Make the store usable and start the node manager: Prepared."""


class TryAcceptors(Work):
    """Test whether the acceptors could listen: AcceptorsTried."""


@dataclass(frozen=True)
class AwaitLiveLock(Work):
    """Wait until the node is to be live, and fence the journal: Activated."""

    role: Role


@dataclass(frozen=True)
class ResumeLiveLock(Work):
    """Take the live lock if it is as the former life left it, and fence: Activated."""

    former: FormerLife


class LoadJournal(Work):
    """Open the journal under the token: Loaded."""


class OpenService(Work):
    """Open the acceptors: Opened."""


@dataclass(frozen=True)
class CompleteActivation(Work):
    """Log that the node is live, write state L, release the backup lock: Completed."""

    role: Role


@dataclass(frozen=True)
class Serve(Work):
    """Serve clients: ServedEnough, HandoverAsked, or FailbackAsked if it watches for failback."""

    watches_failback: bool


class AskWhoWaits(Work):
    """Make a live node that was put off ask again: WhoWaitsAsked."""


class CloseService(Work):
    """Close acceptors, store what waits, send the last receipts, close sockets: Drained."""


class Handover(enum.Enum):
    """What releasing the live lock tells the other node."""

    CRASH = "take over at once"
    PAUSE = "stay passive"
    GIVE_UP = "take over at once from a node that never served"


@dataclass(frozen=True)
class ReleaseLiveLock(Work):
    """Release the live lock, if it is held: Released."""

    handover: Handover


class StopBackup(Work):
    """Release the backup lock, if it is held: BackupStopped."""


# --- what is done at once


@dataclass(frozen=True)
class Show(Effect):
    """Show the phase to probes and metrics."""

    phase: Phase


@dataclass(frozen=True)
class Emit(Effect):
    """Write to the failover log."""

    event: Event


@dataclass(frozen=True)
class ShowTakeover(Effect):
    """Count the takeover, and log how long each part of it took."""

    token: int


class Interrupt(Effect):
    """End every wait of the work under way, for locks too."""


class Wake(Effect):
    """End serving, and waits for the store or a port."""


class StopManager(Effect):
    """End the node manager's threads and close the failover log."""


class CloseStore(Effect):
    """Close the connections to the store."""


class Finish(Effect):
    """Let the main thread continue."""


@dataclass(frozen=True)
class ShutDown(Effect):
    """Cut off clients and journal without touching the store; on a thread that stands by for it.

    ShutDownDone says that it is done.
    """

    reason: str


@dataclass(frozen=True)
class ShowLoop(Effect):
    """Log where an event loop is that does not answer."""

    where: str


class EndInTime(Effect):
    """End the process a moment later, whatever hangs."""


class Halt(Effect):
    """End the process at once."""
