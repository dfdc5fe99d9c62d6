"""Which locks are waited for, taken and given back."""

from dataclasses import dataclass
from typing import ClassVar

from orthia.nodemanager.events.event import WARNING, Event
from orthia.nodemanager.locks.lease import Lock


@dataclass(frozen=True)
class WaitingForLiveLock(Event):
    """A live node waits for the live lock."""

    code: ClassVar[str] = "AMQ221034"
    text: ClassVar[str] = "waiting to obtain the live lock; held by {held_by}"
    advice: ClassVar[str] = (
        "Nothing if the holder is a backup that allows failback, or a lease that is about to"
        " expire; a backup puts failback off (ORT100027) if this node did not last before."
        " Otherwise another live node runs: stop one of them."
    )
    lock: Lock
    held_by: str


@dataclass(frozen=True)
class LiveLockObtained(Event):
    """The live lock was taken.

    Of the holder before, as far as this node saw: who it was; for how long there had been no sign
    of it, its last renewal or its handing the lock over; and for how long it had certainly been
    gone, its session of the database ended or its lock free. null where nothing was seen.
    """

    code: ClassVar[str] = "AMQ221035"
    text: ClassVar[str] = "live lock obtained under token {token}"
    lock: Lock
    token: int
    former: str | None = None
    silent_ms: float | None = None
    gone_ms: float | None = None


@dataclass(frozen=True)
class WaitingForBackupLock(Event):
    """A backup waits to be next in line."""

    code: ClassVar[str] = "AMQ221032"
    text: ClassVar[str] = "waiting to become backup node"
    lock: Lock


@dataclass(frozen=True)
class BackupLockObtained(Event):
    """A backup is next in line."""

    code: ClassVar[str] = "AMQ221033"
    text: ClassVar[str] = "got backup lock under token {token}"
    lock: Lock
    token: int


@dataclass(frozen=True)
class LockReleased(Event):
    """A lock was given back in good order."""

    code: ClassVar[str] = "ORT100014"
    text: ClassVar[str] = "{lock} lock released, token {token}"
    lock: Lock
    token: int


@dataclass(frozen=True)
class ReleaseFailed(Event):
    """A lock could not be given back; it expires by itself."""

    code: ClassVar[str] = "ORT100015"
    level: ClassVar[int] = WARNING
    text: ClassVar[str] = "{lock} lock not released, it will expire by itself: {reason}"
    advice: ClassVar[str] = (
        "Look at the database. The next node gets the lock when the lease runs out,"
        " jdbc-lock-expiration after its last renewal."
    )
    lock: Lock
    token: int
    reason: str


@dataclass(frozen=True)
class PresenceLost(Event):
    """The session of the presence lock ended, though the node runs; it asks for another."""

    code: ClassVar[str] = "ORT100018"
    level: ClassVar[int] = WARNING
    text: ClassVar[str] = "presence lock lost, asking for it again; the lease is not affected"
    advice: ClassVar[str] = (
        "Something ended a database session: a restart, an administrator, an idle limit, the"
        " network. If it goes on, crash-detection is of no use here."
    )


@dataclass(frozen=True)
class CrashDetected(Event):
    """The live node's process is gone; its lease is taken over before it has run out."""

    code: ClassVar[str] = "ORT100019"
    level: ClassVar[int] = WARNING
    text: ClassVar[str] = (
        "{holder} is gone: its presence lock was free and no renewal seen for {watched_ms} ms;"
        " taking over {remaining_ms} ms before its lease runs out"
    )
    advice: ClassVar[str] = "Find out what became of that process."
    holder: str
    watched_ms: float
    remaining_ms: float


@dataclass(frozen=True)
class LeaseExpired(Event):
    """The live lock's holder let its lease run out and gave nothing back; another node takes it.

    ``silent_ms`` is counted from its last renewal (of a holder that does not publish its timers,
    from when its lease was last seen), ``expired_ms`` from the end of its lease, both until the
    lock was taken. ``presence`` is the state of its presence lock: ``held``, its session of the
    database lives on, as that of a frozen process does; ``free``, its process is gone;
    ``unknown``, it has none, or this node has not asked for it for a whole renew period.
    """

    code: ClassVar[str] = "ORT100037"
    level: ClassVar[int] = WARNING
    text: ClassVar[str] = (
        "{holder} has not renewed its lease for {silent_ms} ms, and it ended {expired_ms} ms ago"
        " (presence lock: {presence}); {taken_by} takes the live lock"
    )
    advice: ClassVar[str] = (
        "Presence held: the process stands still, or its host or network is lost: look for SIGSTOP,"
        " a suspended virtual machine, swapping. Should it wake, its writes are refused and it ends"
        " with code 74. Presence free: find out what became of the process."
    )
    holder: str
    silent_ms: float | None
    expired_ms: float
    presence: str
    taken_by: str
