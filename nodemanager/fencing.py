"""Advances the fence of the journal, and ends the sessions that block it meanwhile.

The fence waits for the batch that the former live node has in flight, which takes milliseconds. One
that takes longer belongs to a process that froze in the middle of it, or whose host is lost, and
the database would keep it until it notices. That node is no longer live: this one has the live
lock. So the sessions in the way are ended, on another connection than the one that waits.
"""

from collections.abc import Callable
from typing import Final

from orthia.config.errors import OrthiaError
from orthia.database import Blocker, StoreUnavailable, TransientStoreError
from orthia.nodemanager.errors import LockLost
from orthia.nodemanager.events import Event, FenceBlocked, FenceUnblocked
from orthia.nodemanager.locks.abc import NodeManagerStore
from orthia.nodemanager.locks.lease import Lease
from orthia.nodemanager.threads import Threads

PATIENCE_SECONDS: Final = 1.0
"""How long a batch in flight is left alone; also the pause between two looks."""


class Unblocker:
    """A thread that ends sessions that block the fence, from ``start`` to ``stop``.

    ``end_blockers`` asks the store; ``is_held`` says whether the live lock still is.
    """

    def __init__(
        self,
        end_blockers: Callable[[], list[Blocker]],
        *,
        token: int,
        is_held: Callable[[], bool],
        report: Callable[[Event], None],
        threads: Threads,
    ) -> None:
        self._end_blockers = end_blockers
        self._token = token
        self._is_held = is_held
        self._report = report
        self._over = threads.event()
        self._thread = threads.thread(self._run, "orthia-fence-unblocker")
        self._told: set[Event] = set()

    def start(self) -> None:
        """Begin to look, after the first ``PATIENCE_SECONDS``."""
        self._thread.start()

    def stop(self) -> None:
        """Stop ending sessions; the thread ends by itself."""
        self._over.set()

    def _run(self) -> None:
        while not self._over.wait(PATIENCE_SECONDS) and self._is_held():
            try:
                blockers = self._end_blockers()
            except OrthiaError as error:
                self._tell(FenceBlocked(self._token, "a session of the database", str(error)))
                continue
            for blocker in blockers:
                session = f"{blocker.session} ({blocker.description})"
                if blocker.refusal is None:
                    self._tell(FenceUnblocked(self._token, session))
                else:
                    self._tell(FenceBlocked(self._token, f"session {session}", blocker.refusal))

    def _tell(self, event: Event) -> None:
        """Report each event once."""
        if event not in self._told:
            self._told.add(event)
            self._report(event)


def fence_journal(
    store: NodeManagerStore,
    lease: Lease,
    *,
    is_held: Callable[[], bool],
    pause: Callable[[], None],
    report: Callable[[Event], None],
    threads: Threads,
) -> None:
    """Fence the journal so that only the holder of ``lease`` can write, however long that takes.

    ``pause`` waits between two attempts. Raises LockLost, and what ``pause`` raises.
    """
    unblocker = Unblocker(
        lambda: store.end_fence_blockers(lease.holder_id, lease.token),
        token=lease.token,
        is_held=is_held,
        report=report,
        threads=threads,
    )
    unblocker.start()
    try:
        while not _try_advance(store, lease, is_held):
            pause()
    finally:
        unblocker.stop()


def _try_advance(store: NodeManagerStore, lease: Lease, is_held: Callable[[], bool]) -> bool:
    if not is_held():
        raise LockLost("the live lease was lost before the journal was fenced")
    try:
        advanced = store.advance_fence(lease.holder_id, lease.token)
    except (StoreUnavailable, TransientStoreError):
        return False  # renewals decide whether there is a next attempt
    if not advanced:
        raise LockLost(
            f"the journal was not fenced under token {lease.token}: the live lock expired in"
            " the database or a newer token is fenced already, which another node then holds"
        )
    return True
