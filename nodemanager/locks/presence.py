"""Asks for, watches and releases a node's presence lock, on a thread of its own.

A node that is live, or next in line, wants it. Whoever is live has it for as long as its process
lives; whoever waits blocks in the database and is woken when that process is gone, or has handed
over. What to make of having it is decided elsewhere (``orthia.nodemanager.activation``).
"""

import math
from collections.abc import Callable

from orthia.config.errors import OrthiaError
from orthia.database import PresenceLock
from orthia.nodemanager.threads import REAL_THREADS, Threads

_CLOSE_SECONDS = 3.0


class PresenceKeeper:
    """Asks for the lock from ``start`` to ``stop``."""

    def __init__(
        self,
        lock: PresenceLock,
        *,
        period_seconds: float,
        clock: Callable[[], float],
        obtained: Callable[[], None],
        lost: Callable[[], None],
        threads: Threads = REAL_THREADS,
        former: "PresenceKeeper | None" = None,
    ) -> None:
        """Prepare to keep ``lock``, looking each ``period_seconds`` whether it is still held.

        ``obtained`` and ``lost`` are called on the keeper's thread. ``former`` is the keeper that
        was stopped before and may still have the lock in use.
        """
        self._lock = lock
        self._period_seconds = period_seconds
        self._clock = clock
        self._obtained = obtained
        self._lost = lost
        self._former = former
        self._changed = threads.condition()
        self._stopped = False
        self._stand_back = False
        self._held_since: float | None = None
        self._refused_since: float | None = None
        self._confirmed = -math.inf
        self._thread = threads.thread(self._run, "orthia-presence")

    @property
    def held_since_seconds(self) -> float | None:
        """Since when, on the stopwatch, the lock is held as far as is known; None if it is not."""
        return self._held_since

    @property
    def refused_since_seconds(self) -> float | None:
        """Since when, on the stopwatch, the lock was asked for and not to be had.

        None while it is held or not asked for, and after an ask that failed.
        """
        return self._refused_since

    @property
    def confirmed_seconds(self) -> float:
        """When the lock's session was last asked and had the lock; minus infinity if never."""
        return self._confirmed

    def start(self) -> None:
        """Begin to ask for the lock."""
        self._thread.start()

    def stand_back(self) -> None:
        """Release the lock for a period: it belongs to a node that is alive."""
        with self._changed:
            self._held_since = None
            self._stand_back = True
            self._changed.notify_all()

    def stop(self) -> None:
        """Release the lock and end the thread; bounded, whatever the database does.

        A thread in a call to a database that hangs outlives this call. It no longer asks for the
        lock, and the next keeper waits for its end.
        """
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        self._lock.interrupt()
        if self._thread.is_alive():
            self._thread.join(_CLOSE_SECONDS)

    def _run(self) -> None:
        former, self._former = self._former, None
        if former is not None:
            # A lock, and its connection, are for one thread only.
            former._thread.join()  # noqa: SLF001 - of the same class
        while not self._stopped:
            if self._held_since is None:
                self._ask()
            elif self._confirm():
                self._wait(self._period_seconds)
            else:
                self._held_since = None
                self._lost()
                continue
            if self._stand_back:
                self._lock.release()
                self._stand_back = False
                self._wait(self._period_seconds)
        self._held_since = None
        self._lock.release()

    def _confirm(self) -> bool:
        asked = self._clock()
        if not self._lock.is_held():
            return False
        self._confirmed = asked
        return True

    def _ask(self) -> None:
        if self._refused_since is None:
            self._refused_since = self._clock()
        try:
            held = self._lock.acquire(self._lock.patience_seconds, lambda: not self._stopped)
        except OrthiaError:
            self._refused_since = None
            # The keep-alive reports a database that is unavailable; here it is only asked again.
            self._wait(self._period_seconds)
            return
        if held and not self._stopped:
            self._refused_since = None
            self._held_since = self._clock()
            self._obtained()

    def _wait(self, seconds: float) -> None:
        with self._changed:
            if not self._stopped and not self._stand_back:
                self._changed.wait(seconds)
