"""Noticing that the live lock's holder is gone, before its lease ends: by its presence lock.

What to make of having that lock is decided in ``orthia.nodemanager.activation``.
"""

import math
from collections.abc import Callable

from orthia.database import PresenceLock
from orthia.nodemanager.activation import Holder, HolderWatch, judge_holder
from orthia.nodemanager.events import Event, PresenceLost
from orthia.nodemanager.last_sign import LastSign
from orthia.nodemanager.locks.holder_id import HolderId
from orthia.nodemanager.locks.lease import LockStatus
from orthia.nodemanager.locks.presence import PresenceKeeper
from orthia.nodemanager.threads import Threads


class CrashDetection:
    """A node's request for the presence lock; without a ``lock`` nothing is noticed."""

    def __init__(
        self,
        lock: PresenceLock | None,
        *,
        period_seconds: float,
        clock: Callable[[], float],
        wake: Callable[[], None],
        report: Callable[[Event], None],
        threads: Threads,
    ) -> None:
        """Check each ``period_seconds`` that the lock is held; call ``wake`` once it is."""
        self.lock = lock
        self._period_seconds = period_seconds
        self._clock = clock
        self._wake = wake
        self._report = report
        self._threads = threads
        self.keeper: PresenceKeeper | None = None
        """What asks for the lock, from ``want`` to ``drop``."""
        self._former: PresenceKeeper | None = None
        """Its predecessor, which may still be in a call to a database that hangs."""

    def want(self) -> None:
        """Begin to ask for the lock: this node is live, or next in line."""
        if self.lock is None or self.keeper is not None:
            return
        self.keeper = PresenceKeeper(
            self.lock,
            period_seconds=self._period_seconds,
            clock=self._clock,
            obtained=self._wake,
            lost=lambda: self._report(PresenceLost()),
            threads=self._threads,
            former=self._former,
        )
        self.keeper.start()

    def drop(self) -> None:
        """Stop asking for the lock, and release it."""
        keeper, self.keeper = self.keeper, None
        if keeper is not None:
            self._former = keeper
            keeper.stop()

    def judge(self, live: LockStatus, watch: HolderWatch) -> tuple[Holder, HolderWatch]:
        """Judge the live lock's holder; one that is alive gets its presence lock back."""
        keeper = self.keeper
        holder, watch = judge_holder(
            live,
            watch,
            present_since_seconds=keeper.held_since_seconds if keeper else None,
            confirmed_seconds=keeper.confirmed_seconds if keeper else -math.inf,
            now_seconds=self._clock(),
        )
        if holder is Holder.ALIVE and keeper is not None:
            keeper.stand_back()
        return holder, watch

    def presence_of(self, holder: HolderId) -> str:
        """Return ``held``, ``free`` or ``unknown``: the presence lock of the live lock's holder.

        A lock counts as held once this node has failed to get it for a whole period: the session of
        a process that just ended may still exist, and this node may have just begun to ask.
        """
        keeper = self.keeper
        if keeper is None or not holder.has_presence:
            return "unknown"
        if keeper.held_since_seconds is not None:
            return "free"
        since = keeper.refused_since_seconds
        is_held = since is not None and self._clock() - since >= self._period_seconds
        return "held" if is_held else "unknown"

    def gone(self, former: LastSign) -> LastSign:
        """Return what is known of a former holder, now that this node may have its lock."""
        if self.keeper is None or not (former.holder_id is None or former.holder_id.has_presence):
            return former
        return former.gone_since(self.keeper.held_since_seconds)
