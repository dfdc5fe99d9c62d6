"""``server.lock`` and the lock files beside it: what the nodes of a shared directory agree on.

Names are Artemis': ``server.lock`` has the shared state, ``serverlock.1`` is locked by the live
node and ``serverlock.2`` by the backup next in line. The locks are the operating system's: they go
with the process, however it ends, and stay with one that is merely stopped.
"""

import json
import os
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

from orthia.database import PermanentStoreError, StoreError, StoreUnavailable
from orthia.database.file_lock import try_lock
from orthia.nodemanager.locks.lease import Lock, State

STATE_FILE: Final = "server.lock"
_STATE_BYTES: Final = 1_024
_ARTEMIS_BYTES: Final = 32
"""Its file has 19, and 3 before its first start is over."""
_ARTEMIS_STATES: Final = (b"0", b"L", b"F", b"P", b"N")
_PATIENCE_SECONDS: Final = 2.0
_POLL_SECONDS: Final = 0.01


@dataclass(frozen=True)
class SharedState:
    """What ``server.lock`` says."""

    state: State = State.NOT_STARTED
    node_id: str | None = None
    token: int = 0
    """The newest fencing token; each live node takes the next."""
    live_holder: str | None = None
    """Who had the live lock last; whether it is held says the lock itself."""
    backup_holder: str | None = None
    backup_token: int = 0
    """Counts how often the backup lock was taken."""


def encode(shared: SharedState) -> bytes:
    """Return the contents of ``server.lock``: a line a person can read, and its checksum."""
    document = asdict(shared) | {"state": shared.state.value}
    text = json.dumps(document).encode()
    return (text + b"\n%08x\n" % zlib.crc32(text)).ljust(_STATE_BYTES)


def decode(data: bytes) -> SharedState:
    """Read the contents of ``server.lock``; raises ValueError."""
    if not data.strip(b"\0 "):
        return SharedState()
    text, checksum, *_ = data.split(b"\n")
    if int(checksum, 16) != zlib.crc32(text):
        raise ValueError("its checksum does not match")
    document: dict[str, Any] = json.loads(text)
    return SharedState(**(document | {"state": State(document["state"])}))


def _is_of_artemis(data: bytes) -> bool:
    """Return whether this is Artemis' file: a letter of state, two bytes to lock, and a UUID."""
    return len(data) <= _ARTEMIS_BYTES and data[:1] in _ARTEMIS_STATES and data[1:3] == b"00"


class ServerLock:
    """The lock files of one directory, opened; raises StoreUnavailable, PermanentStoreError."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / STATE_FILE
        self._lock_paths = {lock: directory / f"serverlock.{lock.value}" for lock in Lock}
        self._descriptors: dict[Lock, int] = {}
        self._held: set[Lock] = set()
        with _unavailable(self._path, refused=PermanentStoreError):
            self._state = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o660)
            # Its name too outlives a power failure: it says whether the pair is paused.
            of_directory = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(of_directory)
            finally:
                os.close(of_directory)
        self._is_closed = False

    def close(self) -> None:
        """Release every lock; repeating it does no harm."""
        if self._is_closed:
            return
        self._is_closed = True
        for lock in list(self._held):
            self.release(lock)
        os.close(self._state)

    def read(self) -> SharedState:
        """Return the shared state."""
        with self._exclusively():
            return self._read()

    def update(self, *, expected: State | None = None, **changes: Any) -> SharedState | None:
        """Change fields of the shared state, durably, and return it.

        With ``expected`` only if that is the present state; else None.
        """
        with self._exclusively():
            shared = self._read()
            if expected is not None and shared.state is not expected:
                return None
            return self._write(shared, changes)

    def next_token(self, holder_id: str, above: int) -> int:
        """Take the next fencing token, higher than ``above`` too; for the live lock's holder."""
        with self._exclusively():
            shared = self._read()
            changes = {"token": max(shared.token, above) + 1, "live_holder": holder_id}
            return self._write(shared, changes).token

    def try_acquire(self, lock: Lock, holder_id: str, *, if_token: int | None = None) -> bool:
        """Take a lock if nobody has it, and write down who has it now.

        Both at once: nobody reads a lock that is held under the name of whoever had it before.
        With ``if_token`` only while that is the newest fencing token.
        """
        with self._exclusively():
            shared = self._read()
            if if_token not in (None, shared.token) or not self._try_flock(lock):
                return False
            try:
                if lock is Lock.LIVE:
                    self._write(shared, {"live_holder": holder_id})
                else:
                    taken = {"backup_holder": holder_id, "backup_token": shared.backup_token + 1}
                    self._write(shared, taken)
            except BaseException:
                self.release(lock)
                raise
        return True

    def _try_flock(self, lock: Lock) -> bool:
        path = self._lock_paths[lock]
        with _unavailable(path):
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o660)
            # Reopened each time: a file that was replaced since would exclude nobody.
            if not try_lock(descriptor) or not _is_at(descriptor, path):
                os.close(descriptor)
                return False
        self._descriptors[lock] = descriptor
        self._held.add(lock)
        return True

    def release(self, lock: Lock) -> None:
        """Release a lock, if it is held."""
        if lock in self._held:
            self._held.discard(lock)
            os.close(self._descriptors.pop(lock))

    def read_held(self) -> tuple[SharedState, frozenset[Lock]]:
        """Return the shared state and which locks are held, as they are at one moment."""
        with self._exclusively():
            return self._read(), frozenset(filter(self.is_held_by_somebody, Lock))

    def is_held_by_somebody(self, lock: Lock) -> bool:
        """Return whether any process, this one included, has the lock."""
        if lock in self._held:
            return True
        if not self._try_flock(lock):
            return True
        self.release(lock)
        return False

    def why_lost(self, lock: Lock) -> str | None:
        """Return why a lock that was taken no longer excludes others; None if it does."""
        for descriptor, path in (
            (self._descriptors[lock], self._lock_paths[lock]),
            (self._state, self._path),
        ):
            if not _is_at(descriptor, path):
                return f"{path} was removed or replaced by somebody else"
        if os.fstat(self._state).st_size < _STATE_BYTES:
            return f"{self._path} was truncated by somebody else"
        return None

    @contextmanager
    def _exclusively(self) -> Iterator[None]:
        """Hold the lock of the state's file: for a moment, so a long wait is an error."""
        give_up_seconds = time.monotonic() + _PATIENCE_SECONDS
        with _unavailable(self._path):
            # A descriptor of its own: closing it releases the lock, on whichever thread.
            descriptor = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
        try:
            while not try_lock(descriptor):
                if time.monotonic() >= give_up_seconds:
                    raise StoreUnavailable(
                        f"another process has held {self._path} for {_PATIENCE_SECONDS:g} s"
                    )
                time.sleep(_POLL_SECONDS)
            if Lock.LIVE not in self._held:
                self._follow(descriptor)
            yield
        finally:
            os.close(descriptor)

    def _follow(self, descriptor: int) -> None:
        """Use the file that is in place now, if it replaced the one that was opened.

        Whoever waits heeds what others agree on. The live node does not, and loses its lock.
        """
        with _unavailable(self._path):
            if os.path.samestat(os.fstat(descriptor), os.fstat(self._state)):
                return
            opened = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
            try:
                os.dup2(opened, self._state, inheritable=False)
            finally:
                os.close(opened)

    def _read(self) -> SharedState:
        with _unavailable(self._path):
            data = os.pread(self._state, _STATE_BYTES, 0)
        if _is_of_artemis(data):
            raise PermanentStoreError(
                f"{self._path} is Apache ActiveMQ Artemis' own: it says which node of a pair of"
                " Artemis is live. Leave it as it is, with the directory it is in, and give Orthia"
                " a directory of its own (journal-directory, or directory of shared-file-locker)"
            )
        try:
            return decode(data)
        except (ValueError, KeyError, TypeError) as error:
            raise PermanentStoreError(
                f"{self._path} cannot be read ({error}), which says whether the pair was paused."
                " Stop all nodes, move it away and keep it, then start the live node: until that"
                " serves, no backup takes over"
            ) from error

    def _write(self, shared: SharedState, changes: dict[str, Any]) -> SharedState:
        changed = replace(shared, **changes)
        with _unavailable(self._path):
            os.pwrite(self._state, encode(changed), 0)
            os.fsync(self._state)
        return changed


@contextmanager
def _unavailable(path: Path, *, refused: type[StoreError] = StoreUnavailable) -> Iterator[None]:
    """Raise StoreUnavailable for what the operating system cannot do; ``refused`` for may not."""
    try:
        yield
    except PermissionError as error:
        raise refused(f"{path} cannot be used: {error.strerror}") from error
    except OSError as error:
        raise StoreUnavailable(f"{path} cannot be used: {error.strerror}") from error


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except OSError:
        return False
