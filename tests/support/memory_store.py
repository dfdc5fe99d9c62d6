"""NODE_MANAGER_STORE in memory: the same promises, for tests and simulations of the protocol."""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from typing_extensions import override

from orthia.database import Blocker
from orthia.nodemanager.locks.abc import Acquired, NodeManagerStore
from orthia.nodemanager.locks.holder_id import HolderId
from orthia.nodemanager.locks.lease import Lock, LockStatus, NodeManagerStatus, State

_EPOCH = datetime.fromtimestamp(0, UTC)


@dataclass
class _LockRow:
    holder_id: str | None = None
    expires_seconds: float = 0.0
    token: int = 0


class MemoryNodeManagerStore(NodeManagerStore):
    """Shared by the node managers of one process; ``clock`` is the store's clock, in seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._mutex = threading.Lock()
        self._rows = {lock: _LockRow() for lock in Lock}
        self._state = State.NOT_STARTED
        self._node_id: str | None = None
        self.fence_token = 0
        """Row 4; a journal in memory compares with it."""

    def _now(self) -> datetime:
        return self._at(self._clock())

    @staticmethod
    def _at(seconds: float) -> datetime:
        return _EPOCH + timedelta(seconds=seconds)

    def _matches(self, lock: Lock, holder_id: str, token: int) -> bool:
        row = self._rows[lock]
        return row.holder_id == holder_id and row.token == token

    @override
    def try_acquire(self, lock: Lock, holder_id: str, expiration_ms: int) -> Acquired | None:
        with self._mutex:
            row, now = self._rows[lock], self._clock()
            if row.holder_id not in (None, holder_id) and row.expires_seconds > now:
                return None
            return self._take(lock, holder_id, expiration_ms)

    @override
    def take_over(
        self, lock: Lock, holder_id: str, expiration_ms: int, *, seen: LockStatus
    ) -> Acquired | None:
        with self._mutex:
            now = self._lock_status(lock)
            if (now.holder_id, now.token, now.expiration_time) != (
                seen.holder_id,
                seen.token,
                seen.expiration_time,
            ):
                return None
            return self._take(lock, holder_id, expiration_ms)

    def _take(self, lock: Lock, holder_id: str, expiration_ms: int) -> Acquired:
        row = self._rows[lock]
        row.holder_id = holder_id
        row.expires_seconds = self._clock() + expiration_ms / 1000
        row.token += 1
        return Acquired(row.token, self._now())

    @override
    def renew(self, lock: Lock, holder_id: str, token: int, expiration_ms: int) -> datetime | None:
        with self._mutex:
            if not self._matches(lock, holder_id, token):
                return None
            self._rows[lock].expires_seconds = self._clock() + expiration_ms / 1000
            return self._now()

    @override
    def raise_token(self, lock: Lock, holder_id: str, token: int, to: int) -> bool:
        with self._mutex:
            if token >= to or not self._matches(lock, holder_id, token):
                return False
            self._rows[lock].token = to
            return True

    @override
    def release(self, lock: Lock, holder_id: str, token: int) -> bool:
        with self._mutex:
            if not self._matches(lock, holder_id, token):
                return False
            self._rows[lock].holder_id = None
            return True

    @override
    def advance_fence(self, holder_id: str, token: int) -> bool:
        with self._mutex:
            held = (
                self._matches(Lock.LIVE, holder_id, token)
                and self._rows[Lock.LIVE].expires_seconds > self._clock()
            )
            if not held or self.fence_token > token:
                return False
            self.fence_token = token
            return True

    @override
    def end_fence_blockers(
        self,
        holder_id: str,
        token: int,
    ) -> list[Blocker]:
        """End nothing: there are no sessions."""
        return []

    @override
    def write_state(self, state: State, *, expected: State | None = None) -> bool:
        with self._mutex:
            if expected is not None and self._state is not expected:
                return False
            self._state = state
            return True

    @override
    def write_state_as_live(self, state: State, holder_id: str, token: int) -> bool:
        with self._mutex:
            if not self._matches(Lock.LIVE, holder_id, token):
                return False
            self._state = state
            return True

    @override
    def create_node_id(self, candidate: str) -> str:
        with self._mutex:
            if self._node_id is None:
                self._node_id = candidate
            return self._node_id

    @override
    def status(self) -> NodeManagerStatus:
        with self._mutex:
            return NodeManagerStatus(
                self._state,
                self._lock_status(Lock.LIVE),
                self._lock_status(Lock.BACKUP),
                self._node_id,
                self.fence_token,
                self._now(),
            )

    @override
    def lock_status(self, lock: Lock) -> LockStatus:
        with self._mutex:
            return self._lock_status(lock)

    def _lock_status(self, lock: Lock) -> LockStatus:
        row = self._rows[lock]
        if row.holder_id is None:
            return LockStatus(lock, None, row.token, None)
        left = row.expires_seconds - self._clock()
        holder_id = HolderId(row.holder_id)
        return LockStatus(lock, holder_id, row.token, left, self._at(row.expires_seconds))
