"""The simulated database: its locks and tables, and what befalls requests on their way."""

from collections.abc import Callable
from typing import Any, TypeVar

from typing_extensions import override

from orthia.database import Blocker, PresenceLock, StoreUnavailable
from orthia.nodemanager.locks.abc import Acquired, NodeManagerStore
from orthia.nodemanager.locks.lease import Lock, LockStatus, NodeManagerStatus, State
from tests.simulation.engine import SHORTEST_WAIT_SECONDS, Engine
from tests.simulation.mechanisms import EXPIRATION_MS, Mechanisms
from tests.simulation.tables import Client, Tables, Violation
from tests.support.memory_store import MemoryNodeManagerStore

CALL_TIMEOUT_SECONDS = 4.0
_NO_ANSWER = object()
_Answer = TypeVar("_Answer")


class Database:
    """One for all nodes."""

    def __init__(
        self, engine: Engine, mechanisms: Mechanisms, *, rate: float, may_end_sessions: bool
    ) -> None:
        """``may_end_sessions`` says whether nodes have the right to; without it none must COPY."""
        self.engine = engine
        self.mechanisms = mechanisms
        self.may_end_sessions = may_end_sessions
        self.faults = True
        self.clock_offset = 0.0
        self.store = MemoryNodeManagerStore(lambda: engine.now * rate + self.clock_offset)
        self.down_until = 0.0
        self.slow_until = 0.0
        self.tables = Tables(
            engine,
            mechanisms,
            fence_token=lambda: self.store.fence_token,
            may_copy=may_end_sessions,
        )
        self.presence: PresenceSession | None = None
        self.waiting: list[PresenceSession] = []
        self.renewed_in_presence: PresenceSession | None = None
        """The session of the live lock's holder, if it had the presence lock ever since."""
        self.answers_next_acquisition_late = False
        self.acquired_late: tuple[str, float] | None = None
        """Who got the live lock by an answer that came late, and when its lease expires."""

    # --- requests

    def reaches(self, client: Client) -> bool:
        """Return whether requests of this process arrive."""
        return self.engine.now >= max(client.cut_off_until, self.down_until)

    def call(
        self,
        client: Client,
        request: Callable[[], _Answer],
        *,
        ready: Callable[[], bool] = lambda: True,
    ) -> _Answer:
        """Send a request: it arrives late, or not at all; so does the answer.

        It waits in the database until it is ``ready``. Raises StoreUnavailable after a time-out;
        the request may have been carried out, or may yet be.
        """
        engine, random = self.engine, self.engine.random
        resume = engine.resumer()
        gives_up_at = engine.now + EXPIRATION_MS / 1000

        def arrive() -> None:
            if not self.reaches(client) or engine.now > gives_up_at:
                return
            if not ready():
                engine.after(0.05, arrive)
                return
            answer = request()
            if not self.faults or random.random() > 0.02:
                engine.after(self.delay(), answered, answer)

        def answered(answer: Any) -> None:
            if self.reaches(client):
                resume(answer)

        if not self.faults or random.random() > 0.01:
            engine.after(self.delay(), arrive)
        answer = engine.suspend(CALL_TIMEOUT_SECONDS, _NO_ANSWER)
        if answer is _NO_ANSWER:
            raise StoreUnavailable("no answer")
        return answer  # type: ignore[no-any-return]

    def delay(self) -> float:
        """Return how long a message takes."""
        random = self.engine.random
        if self.faults and self.engine.now < self.slow_until:
            return random.uniform(0.2, 2.0)
        if self.faults and random.random() < 0.01:
            return random.uniform(1.0, 6.0)
        return random.uniform(0.0005, 0.01)

    # --- the fence

    def end_blockers(self, holder_id: str, token: int) -> list[Blocker]:
        """End the sessions of older batches, for the node that has the live lock."""
        row = self.store._rows[Lock.LIVE]
        is_held = row.holder_id == holder_id and row.token == token
        if not (is_held and self.may_end_sessions and self.mechanisms.blockers_are_ended):
            return []
        blocking = [one for one in self.tables.open if one.token < token]
        for transaction in blocking:
            self.tables.end_session(transaction.session)
        return [Blocker(transaction.token, "journal", None) for transaction in blocking]

    def fence_is_free(self, token: int) -> bool:
        """Return whether no batch is in flight under an older token."""
        if not self.mechanisms.fence_waits_for_batches:
            return True
        return all(transaction.token >= token for transaction in self.tables.open)

    def lets_believe(self, holder_id: str, token: int) -> bool:
        """Return whether it would be true that the live lock is held so, if it ever was.

        Not what another node took over: its holder may not know yet.
        """
        row = self.store._rows[Lock.LIVE]
        ours = row.holder_id == holder_id and row.token == token
        return not ours or row.expires_seconds > self.store._clock()

    # --- the presence lock

    def grant_presence(self, session: "PresenceSession | None") -> None:
        """Have the presence lock held by this session, or by the next that waits."""
        self.presence = session
        self.renewed_in_presence = None
        while self.presence is None and self.waiting:
            waiting = self.waiting.pop(0)
            if not waiting.client.life.is_over:
                self.presence = waiting
                waiting.wake(True)

    def note_live_lock_written(self, holder_id: str) -> None:
        """Remember whether the holder had the presence lock at this moment."""
        present = self.presence is not None and self.presence.client.holder_id == holder_id
        self.renewed_in_presence = self.presence if present else None

    def note_acquired(self, holder_id: str, seconds: float) -> None:
        """Answer late who has taken the live lock for so long, if that is to go wrong."""
        if self.answers_next_acquisition_late and self.faults:
            self.answers_next_acquisition_late = False
            self.acquired_late = (holder_id, self.engine.now + seconds)
            self.slow_until = max(self.slow_until, self.engine.now + SHORTEST_WAIT_SECONDS)

    def check_takeover(self, holder_id: str, seen: LockStatus) -> None:
        """Check that the lease of another process, which has its presence lock, is left alone.

        What a process holds without knowing, since the answer was lost, it may take once more.
        """
        live = self.store.lock_status(Lock.LIVE)
        if live.holder_id == holder_id:
            return
        unchanged = (live.holder_id, live.token, live.expiration_time) == (
            seen.holder_id,
            seen.token,
            seen.expiration_time,
        )
        if unchanged and live.is_held and self.renewed_in_presence is not None:
            raise Violation(f"the lease of {live.holder_id} was taken, which was present")

    def restart(self, until: float) -> None:
        """Be away until then; every session ends."""
        self.down_until = until
        waiting, self.waiting = self.waiting, []
        for session in waiting:
            session.wake(False)
        self.grant_presence(None)
        self.tables.end_every_session()


class PresenceSession(PresenceLock):
    """The presence lock as one process asks for it."""

    patience_seconds = 60.0

    def __init__(self, database: Database, client: Client) -> None:
        self._database = database
        self.client = client
        self.wake: Callable[[bool], None] = lambda _: None

    @override
    def acquire(self, timeout_seconds: float, is_wanted: Callable[[], bool] = lambda: True) -> bool:
        """Wait for the lock in the database."""
        database = self._database
        if not database.reaches(self.client):
            database.engine.suspend(CALL_TIMEOUT_SECONDS)
            raise StoreUnavailable("no answer")
        if not is_wanted():
            return False
        if database.presence is None:
            database.grant_presence(self)
            return True
        self.wake = database.engine.waker()
        database.waiting.append(self)
        database.engine.suspend(timeout_seconds)
        if self in database.waiting:
            database.waiting.remove(self)
        return database.presence is self

    @override
    def interrupt(self) -> None:
        """End a wait."""
        self.wake(False)

    @override
    def is_held(self) -> bool:
        """Ask the session."""
        try:
            return self._database.call(self.client, lambda: self._database.presence is self)
        except StoreUnavailable:
            return False

    @override
    def release(self) -> None:
        """End the session."""
        if self in self._database.waiting:
            self._database.waiting.remove(self)
        if self._database.presence is self:
            self._database.grant_presence(None)


class RemoteStore(NodeManagerStore):
    """The store as a process reaches it."""

    def __init__(self, database: Database, client: Client) -> None:
        self._database = database
        self._store = database.store
        self._client = client

    def _call(self, request: Callable[[], _Answer]) -> _Answer:
        return self._database.call(self._client, request)

    def _note(self, lock: Lock, holder_id: str, answer: _Answer) -> _Answer:
        if lock is Lock.LIVE and answer is not None:
            self._database.note_live_lock_written(holder_id)
        return answer

    def _note_acquired(
        self, lock: Lock, holder_id: str, expiration_ms: int, answer: Acquired | None
    ) -> Acquired | None:
        if lock is Lock.LIVE and answer is not None:
            self._database.note_acquired(holder_id, expiration_ms / 1000)
        return self._note(lock, holder_id, answer)

    def try_acquire(self, lock: Lock, holder_id: str, expiration_ms: int) -> Acquired | None:
        """Take the lock if it is free or expired."""
        return self._call(
            lambda: self._note_acquired(
                lock,
                holder_id,
                expiration_ms,
                self._store.try_acquire(lock, holder_id, expiration_ms),
            )
        )

    def take_over(
        self, lock: Lock, holder_id: str, expiration_ms: int, *, seen: LockStatus
    ) -> Acquired | None:
        """Take the lock if nothing has changed."""

        def take() -> Acquired | None:
            self._database.check_takeover(holder_id, seen)
            taken = self._store.take_over(lock, holder_id, expiration_ms, seen=seen)
            return self._note_acquired(lock, holder_id, expiration_ms, taken)

        return self._call(take)

    def raise_token(self, lock: Lock, holder_id: str, token: int, to: int) -> bool:
        """Write the token."""
        return self._call(lambda: self._store.raise_token(lock, holder_id, token, to))

    def renew(self, lock: Lock, holder_id: str, token: int, expiration_ms: int) -> Any:
        """Set the expiry anew."""

        def renew() -> Any:
            who, under = holder_id, token
            if not self._database.mechanisms.renewal_matches_holder_and_token:
                status = self._store.lock_status(lock)
                who, under = status.holder_id or holder_id, status.token
            return self._note(lock, who, self._store.renew(lock, who, under, expiration_ms))

        return self._call(renew)

    def release(self, lock: Lock, holder_id: str, token: int) -> bool:
        """Free the lock."""
        return self._call(lambda: self._store.release(lock, holder_id, token))

    def advance_fence(self, holder_id: str, token: int) -> bool:
        """Advance the fence when no older batch is in flight."""
        return self._database.call(
            self._client,
            lambda: self._store.advance_fence(holder_id, token),
            ready=lambda: self._database.fence_is_free(token),
        )

    def end_fence_blockers(self, holder_id: str, token: int) -> list[Blocker]:
        """End the sessions that are in the way."""
        return self._call(lambda: self._database.end_blockers(holder_id, token))

    def write_state(self, state: State, *, expected: State | None = None) -> bool:
        """Write the shared state."""
        return self._call(lambda: self._store.write_state(state, expected=expected))

    def write_state_as_live(self, state: State, holder_id: str, token: int) -> bool:
        """Write the shared state, guarded."""
        return self._call(lambda: self._store.write_state_as_live(state, holder_id, token))

    def create_node_id(self, candidate: str) -> str:
        """Create the node id once."""
        return self._call(lambda: self._store.create_node_id(candidate))

    def status(self) -> NodeManagerStatus:
        """Read everything."""
        return self._call(self._store.status)
