"""A store of the node manager that is away, or late, when a test says so."""

from collections.abc import Callable
from datetime import datetime
from typing import TypeVar

from typing_extensions import override

from orthia.nodemanager.locks.abc import Acquired
from orthia.nodemanager.locks.lease import Lock, LockStatus, NodeManagerStatus, State
from tests.nodemanager.conftest import ManualClock
from tests.support.memory_store import MemoryNodeManagerStore

T = TypeVar("T")


class ScriptedNodeStore(MemoryNodeManagerStore):
    """Calls ``before`` as a request is sent and ``after`` as its answer is.

    Both get the request's name; they may let time pass, ask the store by itself (``looks``), or
    raise. What is raised afterwards was carried out all the same.
    """

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock)
        self.clock = clock
        self.before: Callable[[str], None] = lambda _: None
        self.after: Callable[[str], None] = lambda _: None

    def script(self, request: str, step: Callable[[], None]) -> None:
        """Take this ``step`` before each such request, and no other."""

        def before(name: str) -> None:
            if name == request:
                step()

        self.before = before

    def looks(self) -> NodeManagerStatus:
        """Return what there is, without the script."""
        return super().status()

    def _asked(self, request: str, carry_out: Callable[[], T]) -> T:
        self.before(request)
        found = carry_out()
        self.after(request)
        return found

    @override
    def try_acquire(self, lock: Lock, holder_id: str, expiration_ms: int) -> Acquired | None:
        acquire = super().try_acquire
        return self._asked("try_acquire", lambda: acquire(lock, holder_id, expiration_ms))

    @override
    def take_over(
        self, lock: Lock, holder_id: str, expiration_ms: int, *, seen: LockStatus
    ) -> Acquired | None:
        take_over = super().take_over
        return self._asked(
            "take_over", lambda: take_over(lock, holder_id, expiration_ms, seen=seen)
        )

    @override
    def renew(self, lock: Lock, holder_id: str, token: int, expiration_ms: int) -> datetime | None:
        renew = super().renew
        return self._asked("renew", lambda: renew(lock, holder_id, token, expiration_ms))

    @override
    def write_state_as_live(self, state: State, holder_id: str, token: int) -> bool:
        write = super().write_state_as_live
        return self._asked("write_state_as_live", lambda: write(state, holder_id, token))

    @override
    def status(self) -> NodeManagerStatus:
        return self._asked("status", super().status)
