"""What happens between a node and the store: its fence, its shared state, a store that is away."""

from dataclasses import dataclass
from typing import ClassVar

from orthia.nodemanager.events.event import ERROR, WARNING, Event
from orthia.nodemanager.locks.lease import State


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
class SchemaMigrated(Event):
    """A node that started brought the tables to the revision of its version."""

    code: ClassVar[str] = "ORT100038"
    text: ClassVar[str] = (
        "schema migrated from revision {from_revision} to {to_revision} in {duration_ms} ms"
    )
    advice: ClassVar[str] = (
        "From revision none: the database was empty. Else nodes of the older version that run go on"
        " and do not start again: upgrade their hosts (docs/upgrading.md)."
    )
    from_revision: str
    to_revision: str
    duration_ms: float
