"""What happens to a node: its start, its roles and its end, and failback."""

from dataclasses import dataclass
from typing import ClassVar

from orthia.nodemanager.events.event import ERROR, WARNING, Event
from orthia.nodemanager.locks.lease import State


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
class LiveActive(Event):
    """A live node serves clients."""

    code: ClassVar[str] = "AMQ221007"
    text: ClassVar[str] = "server is now active under token {token}{outbox}"
    token: int
    outbox: str = ""
    """What waits in the outbox, after a semicolon; nothing where there is none."""


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
    text: ClassVar[str] = "backup server is now active under token {token}{outbox}"
    advice: ClassVar[str] = "Find out what became of the node that was live, and start it again."
    token: int
    outbox: str = ""
    """What waits in the outbox, after a semicolon; nothing where there is none."""


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
class FailbackRequested(Event):
    """A live node returned and asks this backup to hand over."""

    code: ClassVar[str] = "ORT100011"
    text: ClassVar[str] = "failback requested: handing over to the returning live node"


@dataclass(frozen=True)
class ServiceClosing(Event):
    """A live node stops serving in good order, and gives the live lock back after that."""

    code: ClassVar[str] = "ORT100036"
    text: ClassVar[str] = (
        "closing the acceptors under token {token}: what clients sent is stored first"
    )
    token: int


@dataclass(frozen=True)
class StaleFailback(Event):
    """No live node took the lock, though one was to start or to return; the backup takes over."""

    code: ClassVar[str] = "ORT100016"
    level: ClassVar[int] = WARNING
    text: ClassVar[str] = "state {state} but nobody took the live lock for {waited_ms} ms"
    advice: ClassVar[str] = (
        "State F: the returning live node died on its way, find out why. State N: the rows of the"
        " store were put back, and only a backup was started."
    )
    state: State
    waited_ms: float


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
