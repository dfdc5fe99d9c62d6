"""A lease: what a node may believe, and until when.

The rules:

1. The database decides. A lease is a row with an expiry that the database writes, reads and
   compares by its own clock, each in one statement.
2. A node measures only how long ago it asked. Its local deadline is counted from *before* the
   request was sent, so it is never later than the expiry in the database, however long the answer
   took, as long as its stopwatch is not slower than the database's clock by more than
   ``CLOCK_RATE_MARGIN``.
3. A token grows by one with every acquisition. Who holds a lease is told by holder *and* token, so
   a node cannot mistake an earlier lease of its own for the present one.
4. A lease that was lost stays lost: no later answer revives it.
"""

from dataclasses import dataclass
from datetime import datetime
from enum import Enum, IntEnum

from orthia.nodemanager.locks.holder_id import HolderId


class Lock(IntEnum):
    """The leases of a pair, by the row of NODE_MANAGER_STORE that holds each."""

    LIVE = 1
    BACKUP = 2


class State(Enum):
    """The shared state of a pair, as Artemis' JdbcNodeManager writes it."""

    NOT_STARTED = "N"
    LIVE = "L"
    FAILING_BACK = "F"
    PAUSED = "P"


CLOCK_RATE_MARGIN = 0.01
"""By how much a stopwatch may be slower than the clock it is compared with, as a part of its rate.

A node counts its deadlines as so much earlier. Quartz is within 0.0001 and NTP slews by 0.0005 at
most; a virtual machine's clock that drifts by more than this is broken.
"""


@dataclass(frozen=True)
class Lease:
    """A lease as its holder knows it."""

    lock: Lock
    holder_id: HolderId
    token: int
    deadline_seconds: float
    """On the holder's stopwatch; from here on the lease may be somebody else's."""

    def is_valid(self, now_seconds: float) -> bool:
        """Return whether the lease is certainly still held."""
        return now_seconds < self.deadline_seconds

    def renewed(self, asked_seconds: float, expiration_ms: int) -> "Lease":
        """Return the lease after a renewal that was asked for at ``asked_seconds``."""
        return Lease(self.lock, self.holder_id, self.token, deadline(asked_seconds, expiration_ms))


def deadline(asked_seconds: float, expiration_ms: int) -> float:
    """Return the local deadline of a lease requested at ``asked_seconds`` (rule 2)."""
    return asked_seconds + certain_seconds(expiration_ms)


def certain_seconds(duration_ms: float) -> float:
    """Return for how long on a node's stopwatch ``duration_ms`` of another clock are not over."""
    return duration_ms / 1000 * (1 - CLOCK_RATE_MARGIN)


@dataclass(frozen=True)
class LockStatus:
    """A lock as the database sees it at one instant of its own clock."""

    lock: Lock
    holder_id: HolderId | None
    token: int
    expires_in_seconds: float | None
    """Negative once expired; None while nobody holds the lock."""
    expiration_time: datetime | None = None
    """The expiry itself; each renewal changes it."""

    @property
    def is_held(self) -> bool:
        """Whether somebody holds the lock and it has not expired."""
        return (
            self.holder_id is not None
            and self.expires_in_seconds is not None
            and self.expires_in_seconds > 0
        )


@dataclass(frozen=True)
class NodeManagerStatus:
    """NODE_MANAGER_STORE whole, read in one statement."""

    state: State
    live: LockStatus
    backup: LockStatus
    node_id: str | None
    fence_token: int
    database_time: datetime
