"""What happens to a lease that is held: its renewals, and the clocks they are counted by."""

from dataclasses import dataclass
from typing import ClassVar

from orthia.nodemanager.events.event import ERROR, WARNING, Event
from orthia.nodemanager.locks.lease import Lock


@dataclass(frozen=True)
class LeaseLost(Event):
    """A lease ended without the node giving it back, so long after its last renewal began."""

    code: ClassVar[str] = "ORT100001"
    level: ClassVar[int] = ERROR
    text: ClassVar[str] = "{lock} lease lost under token {token}: {reason}"
    advice: ClassVar[str] = (
        "A live node stops with code 74, a waiting backup queues again. Look for a pause of the"
        " process, a slow database, or a second node with the same role."
    )
    lock: Lock
    token: int
    reason: str
    silent_ms: float | None = None


@dataclass(frozen=True)
class RenewalFailed(Event):
    """A renewal got an error or a refusal from the store."""

    code: ClassVar[str] = "ORT100002"
    level: ClassVar[int] = ERROR
    text: ClassVar[str] = "renewal of the {lock} lock failed after {duration_ms} ms: {reason}"
    advice: ClassVar[str] = "Look at the database at this time."
    lock: Lock
    token: int
    duration_ms: float
    reason: str


@dataclass(frozen=True)
class RenewalSlow(Event):
    """A renewal succeeded but took longer than its period."""

    code: ClassVar[str] = "ORT100003"
    level: ClassVar[int] = WARNING
    text: ClassVar[str] = "renewal of the {lock} lock took {duration_ms} ms, period {period_ms} ms"
    advice: ClassVar[str] = "The database is slow: find out why before a renewal fails."
    lock: Lock
    token: int
    duration_ms: float
    period_ms: int


@dataclass(frozen=True)
class RenewalGap(Event):
    """Two renewals were further apart than they should be."""

    code: ClassVar[str] = "ORT100004"
    level: ClassVar[int] = WARNING
    text: ClassVar[str] = (
        "renewals of the {lock} lock were {gap_ms} ms apart, period {period_ms} ms,"
        " expiration {expiration_ms} ms"
    )
    advice: ClassVar[str] = "The process was paused or starved: look at the host's load and memory."
    lock: Lock
    token: int
    gap_ms: float
    period_ms: int
    expiration_ms: int


@dataclass(frozen=True)
class RenewalNotTriggered(Event):
    """The scheduler did not run a renewal in time; the watchdog asked for it again."""

    code: ClassVar[str] = "ORT100005"
    level: ClassVar[int] = WARNING
    text: ClassVar[str] = (
        "renewal of the {lock} lock not triggered for {late_ms} ms;"
        " {remaining_ms} ms of the lease remain"
    )
    advice: ClassVar[str] = "The host's clock stepped, or the process is starved."
    lock: Lock
    token: int
    late_ms: float
    remaining_ms: float


@dataclass(frozen=True)
class ClockDrift(Event):
    """The node's wall clock and the database's are further apart than allowed."""

    code: ClassVar[str] = "ORT100007"
    level: ClassVar[int] = WARNING
    text: ClassVar[str] = (
        "clock of this node is {drift_ms} ms off the database's,"
        " jdbc-allowed-time-diff {allowed_ms} ms; leases are not affected"
    )
    advice: ClassVar[str] = "Mend time synchronisation, so that logs can be compared."
    drift_ms: float
    allowed_ms: int


@dataclass(frozen=True)
class RenewalBeyondExpiration(Event):
    """The lease had lapsed before it was renewed; nobody had taken it meanwhile."""

    code: ClassVar[str] = "ORT100017"
    level: ClassVar[int] = ERROR
    text: ClassVar[str] = (
        "renewals of the {lock} lock were {gap_ms} ms apart, more than its expiration of"
        " {expiration_ms} ms: it was lapsed, and renewed only because no backup took it"
    )
    advice: ClassVar[str] = (
        "The process was paused for longer than its lease: look at the host's load, memory and"
        " suspension. With a backup running this is a takeover."
    )
    lock: Lock
    token: int
    gap_ms: float
    expiration_ms: int


@dataclass(frozen=True)
class RenewalOverrun(Event):
    """A renewal has been under way for a period and more; it may yet succeed."""

    code: ClassVar[str] = "ORT100020"
    level: ClassVar[int] = WARNING
    text: ClassVar[str] = (
        "renewal of the {lock} lock has not returned for {running_ms} ms;"
        " {remaining_ms} ms of the lease remain"
    )
    advice: ClassVar[str] = (
        "Look at the database at once: when the time that remains is up, a live node stops with"
        " code 74 and the backup takes over."
    )
    lock: Lock
    token: int
    running_ms: float
    remaining_ms: float


@dataclass(frozen=True)
class TimersDiffer(Event):
    """The node that is live keeps its lease by other timers than this one, which waits."""

    code: ClassVar[str] = "ORT100035"
    level: ClassVar[int] = WARNING
    text: ClassVar[str] = (
        "the timers of this pair differ: {holder} renews its lease every {holder_period_ms} ms and"
        " holds it for {holder_expiration_ms} ms, this node every {period_ms} ms for"
        " {expiration_ms} ms"
    )
    advice: ClassVar[str] = (
        "Give both nodes the same jdbc-lock-renew-period and jdbc-lock-expiration. Until then a"
        " takeover takes longer in one direction than in the other; nothing else is at risk."
    )
    holder: str
    holder_period_ms: int
    holder_expiration_ms: int
    period_ms: int
    expiration_ms: int
