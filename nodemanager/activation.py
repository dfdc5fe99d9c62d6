"""When a waiting backup may become live: a pure decision on what the store says.

| state | live lock        | decision                                                         |
|-------|------------------|------------------------------------------------------------------|
| L     | held             | wait                                                             |
| L     | free or expired  | take it: the live node failed, or handed over                    |
| P     | any              | wait: an operator stopped the live node and wants it so          |
| F, N  | held             | wait: a live node is on its way                                  |
| F, N  | free or expired  | wait for one expiration, then take it: that node died on its way |

The last line is Orthia's: without it a live node that dies between asking for failback and taking
the lock leaves nobody to serve. It is measured with the waiter's own stopwatch, and is safe because
taking the lock is: a live node that comes after all finds it held.

Whoever took the lock reads the state once more while holding it, since it may have changed between
the look and the taking.
"""

from dataclasses import dataclass
from enum import Enum, auto

from nodemanager.lease import NodeManagerStatus, State


class Decision(Enum):
    """What a waiting backup does next."""

    WAIT = auto()
    TAKE = auto()
    TAKE_STALE = auto()
    """As TAKE, though the state is still that of a node on its way to be live."""


@dataclass(frozen=True)
class BackupWatch:
    """What a waiting backup remembers between two looks."""

    unheld_since_seconds: float | None = None
    """Since when, on its stopwatch, nobody has held the live lock without the state saying L."""


def decide(
    status: NodeManagerStatus, watch: BackupWatch, now_seconds: float, expiration_ms: int
) -> tuple[Decision, BackupWatch]:
    """Return what to do now and what to remember."""
    if status.live.is_held or status.state is State.PAUSED:
        return Decision.WAIT, BackupWatch()
    if status.state is State.LIVE:
        return Decision.TAKE, BackupWatch()
    since = now_seconds if watch.unheld_since_seconds is None else watch.unheld_since_seconds
    if now_seconds - since >= expiration_ms / 1000:
        return Decision.TAKE_STALE, BackupWatch(since)
    return Decision.WAIT, BackupWatch(since)


def still_wanted(decision: Decision, state: State) -> bool:
    """Return whether the lock, now held, may be kept under the state read while holding it."""
    if decision is Decision.TAKE_STALE:
        return state is not State.PAUSED
    return state is State.LIVE
