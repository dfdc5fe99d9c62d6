"""What can happen to a pair: one frozen dataclass for each event of the failover log.

Where Artemis logs the same fact its code is used (ActiveMQServerLogger), so that alerts that match
on codes go on working; codes beginning with ORT are Orthia's own. ``REGISTRY`` has them all.
"""

import logging
from dataclasses import asdict, dataclass, fields
from typing import ClassVar

from orthia.nodemanager.locks.lease import Lock, State

INFO = logging.INFO
WARNING = logging.WARNING
ERROR = logging.ERROR


@dataclass(frozen=True)
class Event:
    """Something that happened; ``text`` is a format of the fields."""

    code: ClassVar[str] = ""
    level: ClassVar[int] = INFO
    text: ClassVar[str] = ""
    advice: ClassVar[str] = "Nothing."

    @property
    def message(self) -> str:
        """The sentence an operator reads."""
        values = {item.name: _shown(getattr(self, item.name)) for item in fields(self)}
        return self.text.format(**values)

    def details(self) -> dict[str, object]:
        """The fields as JSON has them."""
        return {name: _plain(value) for name, value in asdict(self).items()}


def _shown(value: object) -> object:
    plain = _plain(value)
    if plain is None:
        return "unknown"
    return f"{plain:.1f}" if isinstance(plain, float) else plain


def _plain(value: object) -> object:
    if isinstance(value, Lock):
        return value.name.lower()
    if isinstance(value, State):
        return value.value
    return value


@dataclass(frozen=True)
class NodeStarted(Event):
    """The node manager runs; no lock is held yet."""

    code: ClassVar[str] = "AMQ221001"
    text: ClassVar[str] = "Orthia {version} started as {role} on {store}, node id {node_id}"
    version: str
    role: str
    store: str
    node_id: str


@dataclass(frozen=True)
class NodeStopped(Event):
    """The node ends; the last event of a process."""

    code: ClassVar[str] = "AMQ221002"
    text: ClassVar[str] = "node stopped with exit code {exit_code}: {reason}"
    advice: ClassVar[str] = "With an exit code other than 0 read the events before this one."
    exit_code: int
    reason: str


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
class LiveActive(Event):
    """A live node serves clients."""

    code: ClassVar[str] = "AMQ221007"
    text: ClassVar[str] = "server is now active under token {token}"
    token: int


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
class BackupStarted(Event):
    """A backup watches the live node; it opens no acceptor."""

    code: ClassVar[str] = "AMQ221109"
    text: ClassVar[str] = "backup server started, waiting for the live node to fail"


@dataclass(frozen=True)
class BackupAnnounced(Event):
    """A backup will take over when the live node fails."""

    code: ClassVar[str] = "AMQ221031"
    text: ClassVar[str] = "backup announced; live is {live_holder}"
    live_holder: str


@dataclass(frozen=True)
class BackupActive(Event):
    """A backup took over and serves clients."""

    code: ClassVar[str] = "AMQ221010"
    level: ClassVar[int] = WARNING
    text: ClassVar[str] = "backup server is now active under token {token}"
    advice: ClassVar[str] = "Find out what became of the node that was live, and start it again."
    token: int


@dataclass(frozen=True)
class CriticalIOError(Event):
    """The node stops itself, with exit code 74, so that the other one can go on."""

    code: ClassVar[str] = "AMQ222010"
    level: ClassVar[int] = ERROR
    text: ClassVar[str] = "critical IO error, shutting down the server: {reason}"
    advice: ClassVar[str] = (
        "Look at the database, and at the network to it, at this time. The service manager starts"
        " the node again."
    )
    reason: str


@dataclass(frozen=True)
class StartFailed(Event):
    """The node could not start or take over."""

    code: ClassVar[str] = "AMQ224097"
    level: ClassVar[int] = ERROR
    text: ClassVar[str] = "failed to start server: {reason}"
    advice: ClassVar[str] = "Mend what the reason names, then start the node again."
    reason: str


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
class FencedWriteRefused(Event):
    """The journal refused a batch of this node because a newer token is fenced."""

    code: ClassVar[str] = "ORT100006"
    level: ClassVar[int] = ERROR
    text: ClassVar[str] = "journal write under token {token} refused: {reason}"
    advice: ClassVar[str] = "Nothing: this is the fence at work. The node stops with code 74."
    token: int
    reason: str


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
class TakeoverTimings(Event):
    """How long each part of becoming live took.

    Detection runs from the last sign that this node has of the one before, its last renewal or its
    handing the lock over, to the lock being taken; it is unknown if no other node was seen.
    """

    code: ClassVar[str] = "ORT100008"
    text: ClassVar[str] = (
        "serving under token {token}; milliseconds: detection {detection_ms}, fence {fence_ms},"
        " load {load_ms}, open {open_ms}"
    )
    token: int
    detection_ms: float | None
    fence_ms: float
    load_ms: float
    open_ms: float


@dataclass(frozen=True)
class StoreUnavailableEvent(Event):
    """The database does not answer; a waiting node goes on waiting."""

    code: ClassVar[str] = "ORT100009"
    level: ClassVar[int] = WARNING
    text: ClassVar[str] = "database unavailable: {reason}"
    advice: ClassVar[str] = "Bring the database back; waiting nodes go on by themselves."
    reason: str


@dataclass(frozen=True)
class StoreRecovered(Event):
    """The database answers again."""

    code: ClassVar[str] = "ORT100010"
    text: ClassVar[str] = "database available again after {outage_ms} ms"
    outage_ms: float


@dataclass(frozen=True)
class FailbackRequested(Event):
    """A live node returned and asks this backup to hand over."""

    code: ClassVar[str] = "ORT100011"
    text: ClassVar[str] = "failback requested: handing over to the returning live node"


@dataclass(frozen=True)
class StateWritten(Event):
    """The shared state changed."""

    code: ClassVar[str] = "ORT100012"
    text: ClassVar[str] = "state {state} written"
    state: State


@dataclass(frozen=True)
class FenceAdvanced(Event):
    """From here on no older node can write to the journal."""

    code: ClassVar[str] = "ORT100013"
    text: ClassVar[str] = "journal fenced at token {token} in {duration_ms} ms"
    token: int
    duration_ms: float


@dataclass(frozen=True)
class LockReleased(Event):
    """A lock was given back in good order."""

    code: ClassVar[str] = "ORT100014"
    text: ClassVar[str] = "{lock} lock released, token {token}"
    lock: Lock
    token: int


@dataclass(frozen=True)
class ServiceClosing(Event):
    """A live node stops serving in good order, and gives the live lock back after that."""

    code: ClassVar[str] = "ORT100036"
    text: ClassVar[str] = (
        "closing the acceptors under token {token}: what clients sent is stored first"
    )
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
class StaleFailback(Event):
    """A live node asked for failback and then never took the lock; the backup takes over."""

    code: ClassVar[str] = "ORT100016"
    level: ClassVar[int] = WARNING
    text: ClassVar[str] = "state {state} but nobody took the live lock for {waited_ms} ms"
    advice: ClassVar[str] = "The returning live node died on its way: find out why."
    state: State
    waited_ms: float


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
class StateNotWritten(Event):
    """A live node that stops without failover could not say so; it releases the lock anyway."""

    code: ClassVar[str] = "ORT100021"
    level: ClassVar[int] = WARNING
    text: ClassVar[str] = "state {state} not written: {reason}"
    advice: ClassVar[str] = (
        "A backup takes over although failover-on-shutdown is false. If it must not serve, stop it."
    )
    state: State
    reason: str


@dataclass(frozen=True)
class RestartsAsBackup(Event):
    """After an IO error the node begins anew, as a backup, in the same process id."""

    code: ClassVar[str] = "ORT100022"
    level: ClassVar[int] = WARNING
    text: ClassVar[str] = "io-error-policy restart-as-backup: starting anew as a backup"
    advice: ClassVar[str] = "See the critical IO error before it."


@dataclass(frozen=True)
class ConnectorsStopped(Event):
    """After an IO error the node serves nobody and waits for its store."""

    code: ClassVar[str] = "ORT100023"
    level: ClassVar[int] = WARNING
    text: ClassVar[str] = (
        "io-error-policy stop-connectors: no clients are served; the store is asked every"
        " {period_ms} ms whether token {token} still has the live lock"
    )
    advice: ClassVar[str] = "See the critical IO error before it, and bring the store back."
    token: int
    period_ms: float


@dataclass(frozen=True)
class ConnectorsResume(Event):
    """The store says that the live lock is still the node's: it serves again, under a new token."""

    code: ClassVar[str] = "ORT100024"
    level: ClassVar[int] = WARNING
    text: ClassVar[str] = (
        "the live lock is still this node's, {outage_ms} ms after its connectors stopped; taken"
        " from token {former_token} to token {token}"
    )
    former_token: int
    token: int
    outage_ms: float


@dataclass(frozen=True)
class LoopUnanswered(Event):
    """The critical analyzer: the event loop of a node that serves does not answer."""

    code: ClassVar[str] = "ORT100025"
    level: ClassVar[int] = ERROR
    text: ClassVar[str] = (
        "the event loop has not answered for {unanswered_ms} ms, and no client is served;"
        " critical-analyzer-timeout is {timeout_ms} ms, critical-analyzer-policy {policy}"
    )
    advice: ClassVar[str] = (
        "The line before it in the node's log says where the loop is: report that. With SHUTDOWN"
        " and HALT the node ends and the backup takes over; with LOG end it yourself."
    )
    unanswered_ms: float
    timeout_ms: int
    policy: str


@dataclass(frozen=True)
class FenceUnblocked(Event):
    """A session of the database that held the fence was ended: its node froze, or its host died."""

    code: ClassVar[str] = "ORT100030"
    level: ClassVar[int] = WARNING
    text: ClassVar[str] = (
        "the journal's fence under token {token} waited for session {session} of the database,"
        " which was ended"
    )
    advice: ClassVar[str] = (
        "Find out what became of the node whose session it was: it froze, or its host was lost, in"
        " the middle of a batch. Nothing of that batch was confirmed to a client."
    )
    token: int
    session: str


@dataclass(frozen=True)
class FenceBlocked(Event):
    """A session of the database holds the fence and cannot be ended by this node."""

    code: ClassVar[str] = "ORT100031"
    level: ClassVar[int] = ERROR
    text: ClassVar[str] = (
        "the journal's fence under token {token} waits for {session}, which could"
        " not be ended: {reason}"
    )
    advice: ClassVar[str] = (
        "Until that session is gone nobody serves. End it in the database (PostgreSQL:"
        " pg_terminate_backend; MySQL, MariaDB: KILL), or kill the process or host it belongs to."
        " Then give the nodes' users the right that the reason names."
    )
    token: int
    session: str
    reason: str


@dataclass(frozen=True)
class AcceptorNotFreeEvent(Event):
    """An acceptor's address is taken, or not this host's, at present."""

    code: ClassVar[str] = "ORT100026"
    level: ClassVar[int] = WARNING
    text: ClassVar[str] = (
        "acceptor {acceptor} cannot listen on {address} at present: {reason}; {consequence}"
    )
    advice: ClassVar[str] = (
        "Find out which process listens there (`ss -ltnp`) and end it, or give the acceptor another"
        " port. A node that takes over waits for its port for a few seconds while it holds the live"
        " lock, then gives the lock back and ends with code 75."
    )
    acceptor: str
    address: str
    reason: str
    consequence: str


@dataclass(frozen=True)
class FailbackPutOff(Event):
    """A live node asks for its place, and the last ones that got it did not last."""

    code: ClassVar[str] = "ORT100027"
    level: ClassVar[int] = WARNING
    text: ClassVar[str] = (
        "failback put off for {wait_ms} ms, and this backup serves on: the live node did not last,"
        " {short_terms} times in a row, the last time {lasted_ms} ms"
    )
    advice: ClassVar[str] = (
        "Find out why the live node ends soon after it has taken its place: its log, and the events"
        " before this one. Restart this backup to have it hand back at once, or stop the live node."
    )
    wait_ms: float
    short_terms: int
    lasted_ms: float


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


def _all_events() -> dict[str, type[Event]]:
    registry: dict[str, type[Event]] = {}
    for kind in Event.__subclasses__():
        if kind.code in registry:
            raise ValueError(f"{kind.code} is used by {kind} and {registry[kind.code]}")
        registry[kind.code] = kind
    return registry


REGISTRY = _all_events()
"""Every code of the failover log and its event."""
