"""Working on a store while none of its nodes may: one way for every command that does.

``maintenance`` holds the live lock meanwhile, as a node would: one that starts waits for it, and
one that serves keeps the command away. Of a store that is only read nothing is taken:
``refuse_held`` keeps the command away, and ``is_untouched`` tells of a node that came meanwhile.
"""

import math
import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from typing import Final

from orthia.config.clock import monotonic_seconds
from orthia.config.errors import OrthiaError
from orthia.nodemanager.errors import LockLost, StoreInUse
from orthia.nodemanager.locks.lease import Lease, Lock, LockStatus, NodeManagerStatus
from orthia.nodemanager.locks.status import LEASE_MS, PairLocks

_RENEWALS_IN_A_LEASE: Final = 3
_THIS: Final = "this store"
_WHAT: Final = {Lock.LIVE: "a node is live on it", Lock.BACKUP: "a backup waits on it"}


class Maintenance:
    """The live lock, held for a command and renewed on a thread of its own."""

    def __init__(self, locks: PairLocks, lease: Lease) -> None:
        self._locks = locks
        self._lease = lease
        self._lost: OrthiaError | None = None
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._renew, name="orthia-maintenance", daemon=True)
        self._thread.start()

    @property
    def lease(self) -> Lease:
        """The lease as it was last renewed: who holds the lock, under which token."""
        return self._lease

    def is_held(self) -> bool:
        """Return whether the lock certainly is."""
        return self._lost is None and self._lease.is_valid(monotonic_seconds())

    def raise_token(self, to: int) -> None:
        """Give the lock the greater token ``to``; the last step under this lock.

        Raises LockLost, StoreError.
        """
        self._stop()
        if self._lost is not None:
            raise LockLost(f"the live lock could not be renewed: {self._lost}")
        self._lease = self._locks.raise_token(self._lease, to)

    def release(self) -> None:
        """Give the lock back; a store that does not answer keeps it until it ends."""
        self._stop()
        with suppress(OrthiaError):
            self._locks.release(self._lease)

    def _renew(self) -> None:
        while not self._stopped.wait(LEASE_MS / 1000 / _RENEWALS_IN_A_LEASE):
            try:
                self._lease = self._locks.renew(self._lease)
            except OrthiaError as error:
                self._lost = error
                return

    def _stop(self) -> None:
        self._stopped.set()
        self._thread.join()


@contextmanager
def maintenance(
    locks: PairLocks, *, store: str = _THIS, above: int = 0, free: Collection[Lock] = (Lock.LIVE,)
) -> Iterator[Maintenance]:
    """Hold the live lock, under a token greater than ``above``, while no node has one of ``free``.

    ``store`` is what errors call it. Raises StoreInUse, LockUnknown, StoreError.
    """
    seen = locks.look()
    for lock in free:
        if lock in seen.unknown:
            raise seen.unknown[lock]
    refuse_held(seen.status, store=store, free=free)
    lease = locks.try_acquire_live(above)
    if lease is None:
        raise StoreInUse(
            f"a waiting node has just taken the live lock of {store}: a node is live on it; stop"
            " both nodes first"
        )
    held = Maintenance(locks, lease)
    try:
        yield held
    finally:
        held.release()


def refuse_held(
    status: NodeManagerStatus, *, store: str = _THIS, free: Collection[Lock] = (Lock.LIVE,)
) -> None:
    """Raise StoreInUse if somebody holds one of the locks ``free``."""
    for lock in (status.live, status.backup):
        if lock.is_held and lock.lock in free:
            raise StoreInUse(
                f"{lock.holder_id} holds the {lock.lock.name.lower()} lock of {store}"
                f" {_for_how_long(lock)}: {_WHAT[lock.lock]}; stop both nodes first. The lock of a"
                " node that crashed ends by itself"
            )


def is_untouched(before: NodeManagerStatus, after: NodeManagerStatus) -> bool:
    """Return whether no node took a lock between two readings, and none has one."""
    return _tokens(before) == _tokens(after) and not (after.live.is_held or after.backup.is_held)


def _for_how_long(lock: LockStatus) -> str:
    left = lock.expires_in_seconds or 0.0
    return f"for {left:.1f} s more" if math.isfinite(left) else "for as long as its process lives"


def _tokens(status: NodeManagerStatus) -> tuple[object, ...]:
    # A lock that was taken and given back meanwhile has another token.
    return status.state, status.live.token, status.backup.token, status.fence_token
