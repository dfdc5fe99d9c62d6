"""When a waiting backup may become live: a pure decision on what the store says.

| state | live lock        | decision                                                         |
|-------|------------------|------------------------------------------------------------------|
| L     | held             | wait                                                             |
| L     | free or expired  | take it: the live node failed, or handed over                    |
| P     | any              | wait: an operator stopped the live node and wants it so          |
| F, N  | held             | wait: a live node is on its way                                  |
| F, N  | free or expired  | wait for one expiration, then take it: that node died on its way |
| not P | held by a node that is gone | take it over: see ``judge_holder``                     |

The row of F, N and a lock that is free or expired is Orthia's: without it a live node that dies
between asking for failback and taking the lock leaves nobody to serve. It is measured with the
waiter's own stopwatch, and is safe because taking the lock is: a live node that comes after all
finds it held.

Whoever took the lock reads the state once more while holding it, since it may have changed between
the look and the taking.
"""

from dataclasses import dataclass
from datetime import datetime
from enum import Enum, auto

from orthia.nodemanager.locks.holder_id import HolderId
from orthia.nodemanager.locks.lease import LockStatus, NodeManagerStatus, State

GRACE_PERIODS = 1.25
"""For how many renew periods a node that has the presence lock must see no renewal before it takes
the lease of a node that is gone; and how many a live node delivers after its last renewal began.

One period brings a renewal if the holder is alive; the quarter is for its being late. Since the
watch begins after the last renewal did, the holder has stopped delivering when it ends: that is why
both are the same number, of the same periods: the holder's, which it publishes in its id.
"""


class Decision(Enum):
    """What a waiting backup does next."""

    WAIT = auto()
    TAKE = auto()
    TAKE_STALE = auto()
    """As TAKE, though the state is still that of a node on its way to be live."""
    TAKE_OVER = auto()
    """Take the lock though it has not expired: its holder is gone."""


@dataclass(frozen=True)
class BackupWatch:
    """What a waiting backup remembers between two looks."""

    unheld_since_seconds: float | None = None
    """Since when, on its stopwatch, nobody has held the live lock without the state saying L."""


class Holder(Enum):
    """What a node that has the presence lock knows of the live lock's holder."""

    UNKNOWN = auto()
    ALIVE = auto()
    """It renews, or has just taken the lock, though its presence lock was to be had: its session
    was lost and not its process, or this node was faster to get what the one before had let go."""
    GONE = auto()


@dataclass(frozen=True)
class HolderWatch:
    """What is remembered between two looks at a lock whose holder may be gone."""

    present_since_seconds: float | None = None
    lease: tuple[HolderId | None, int, datetime | None] | None = None
    unchanged_since_seconds: float = 0.0


def grace_seconds(renew_period_ms: int) -> float:
    """Return for how long a holder that renews so often delivers after a renewal began."""
    return GRACE_PERIODS * renew_period_ms / 1000


def judge_holder(
    lock: LockStatus,
    watch: HolderWatch,
    *,
    present_since_seconds: float | None,
    confirmed_seconds: float,
    now_seconds: float,
) -> tuple[Holder, HolderWatch]:
    """Return what the holder of ``lock`` is, for a node that has the presence lock since then.

    ``now_seconds`` is read after ``lock`` was. ``confirmed_seconds`` is when the presence lock was
    last asked about and found held; that must be after the watch began: this node may not know yet
    that it lost the lock's session, and a holder that is merely paused may have it by now. A lock
    that is taken while this node watches has a holder that is alive: it gets its presence lock at
    once, or it would have no more than the grace for its first renewal. A holder that has no
    presence lock to lose, or does not say for how long it delivers, is never taken for gone.
    """
    if present_since_seconds is None:
        return Holder.UNKNOWN, HolderWatch()
    lease = (lock.holder_id, lock.token, lock.expiration_time)
    seen = HolderWatch(present_since_seconds, lease, now_seconds)
    if lock.holder_id is None or not lock.is_held:
        return Holder.UNKNOWN, seen
    period_ms = lock.holder_id.watched_period_ms
    if period_ms is None:
        return Holder.UNKNOWN, HolderWatch()
    if watch.present_since_seconds != present_since_seconds:
        return Holder.UNKNOWN, seen
    if watch.lease != lease:
        return Holder.ALIVE, seen
    since = watch.unchanged_since_seconds
    if now_seconds - since < grace_seconds(period_ms) or confirmed_seconds < since:
        return Holder.UNKNOWN, watch
    return Holder.GONE, watch


def decide(
    status: NodeManagerStatus,
    watch: BackupWatch,
    now_seconds: float,
    expiration_ms: int,
    holder: Holder = Holder.UNKNOWN,
) -> tuple[Decision, BackupWatch]:
    """Return what to do now and what to remember."""
    if status.state is State.PAUSED:
        return Decision.WAIT, BackupWatch()
    if status.live.is_held:
        taken = Decision.TAKE_OVER if holder is Holder.GONE else Decision.WAIT
        return taken, BackupWatch()
    if status.state is State.LIVE:
        return Decision.TAKE, BackupWatch()
    since = now_seconds if watch.unheld_since_seconds is None else watch.unheld_since_seconds
    if now_seconds - since >= expiration_ms / 1000:
        return Decision.TAKE_STALE, BackupWatch(since)
    return Decision.WAIT, BackupWatch(since)


def still_wanted(decision: Decision, state: State) -> bool:
    """Return whether the lock, now held, may be kept under the state read while holding it."""
    if decision in (Decision.TAKE_STALE, Decision.TAKE_OVER):
        return state is not State.PAUSED
    return state is State.LIVE
