"""A network time-out for psycopg2, which has none of its own.

libpq waits for an answer for as long as the TCP connection lives: a server that is stopped, or a
host that froze, hangs the caller for ever. Every call of a ``TimedConnection`` that talks to the
server is therefore armed with a deadline, and one thread of the process, the reaper, shuts down
the socket of a call that overruns. libpq then sees a lost connection and the call raises
``psycopg2.OperationalError``.

Connecting is bounded by libpq's own ``connect_timeout``.
"""

import os
import socket
import threading
import time
import weakref
from types import TracebackType
from typing import Any, NoReturn

import psycopg2
import psycopg2.extensions


class _Fuse:
    """The deadline of the call that is under way on one connection, and how to cut it short.

    Armed in its own ``with`` block, which is around each call that talks to the server.
    """

    __slots__ = ("__weakref__", "_descriptor", "blown", "deadline_seconds", "timeout_seconds")

    def __init__(self, descriptor: int, timeout_seconds: float) -> None:
        # A duplicate: libpq may close its own at any moment and the number may be used anew.
        self._descriptor = os.dup(descriptor)
        self.timeout_seconds = timeout_seconds
        self.deadline_seconds: float | None = None
        self.blown = False

    def __enter__(self) -> None:
        _reaper.arm(self)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        blown = self.blown
        _reaper.disarm(self)
        if blown and isinstance(error, psycopg2.Error):
            raise psycopg2.OperationalError(
                f"no answer within {self.timeout_seconds * 1000:.0f} ms; connection cut"
            ) from error

    def blow(self) -> None:
        self.blown = True
        self.deadline_seconds = None
        # The descriptor itself: at the limit of open files there is no other.
        connection = socket.socket(fileno=self._descriptor)
        try:
            connection.shutdown(socket.SHUT_RDWR)
        except OSError:
            return  # the peer has closed it: the call ends by itself
        finally:
            connection.detach()

    def close(self) -> None:
        self.deadline_seconds = None
        os.close(self._descriptor)


class _Reaper:
    """Watches every fuse of the process with one thread that sleeps while nothing is armed."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Start afresh: a forked child has no thread and perhaps no free lock."""
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._fuses: weakref.WeakSet[_Fuse] = weakref.WeakSet()
        self._thread: threading.Thread | None = None
        self._wake_seconds = float("inf")

    def install(self, fuse: _Fuse) -> None:
        with self._changed:
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._watch, name="database-network-timeout", daemon=True
                )
                self._thread.start()
            self._fuses.add(fuse)

    def arm(self, fuse: _Fuse) -> None:
        deadline = time.monotonic() + fuse.timeout_seconds
        with self._lock:
            fuse.deadline_seconds = deadline
            if deadline < self._wake_seconds:
                self._changed.notify()

    def disarm(self, fuse: _Fuse) -> None:
        with self._lock:
            fuse.deadline_seconds = None

    def cut(self, fuse: _Fuse) -> None:
        with self._changed:
            if fuse in self._fuses:
                fuse.blow()

    def remove(self, fuse: _Fuse) -> None:
        with self._changed:
            self._fuses.discard(fuse)
            fuse.close()

    def _watch(self) -> NoReturn:
        with self._changed:
            while True:
                now = time.monotonic()
                earliest = float("inf")
                for fuse in self._fuses:
                    deadline = fuse.deadline_seconds
                    if deadline is None:
                        continue
                    if deadline <= now:
                        fuse.blow()
                    else:
                        earliest = min(earliest, deadline)
                # Calls armed and disarmed before this moment wake no thread.
                self._wake_seconds = earliest
                self._changed.wait(None if earliest == float("inf") else earliest - now)


_reaper = _Reaper()
os.register_at_fork(after_in_child=_reaper.reset)


class TimedConnection(psycopg2.extensions.connection):
    """A connection none of whose calls lasts longer than its network time-out."""

    def __init__(self, dsn: str, network_timeout_seconds: float) -> None:
        super().__init__(dsn)
        self.cursor_factory = TimedCursor
        try:
            self.fuse = _Fuse(self.fileno(), network_timeout_seconds)
            """Around each call: it makes the time-out of that one."""
        except OSError as error:
            super().close()
            # As libpq reports it without a socket: a store that cannot be reached at present.
            raise psycopg2.OperationalError(f"no descriptor for a time-out: {error}") from error
        _reaper.install(self.fuse)
        self._remove_fuse = weakref.finalize(self, _reaper.remove, self.fuse)

    def abandon(self) -> None:
        """End a call that is under way, from another thread, and the connection with it.

        Not by psycopg2's cancel(): that waits for the server, and holds the whole interpreter up
        while it does.
        """
        _reaper.cut(self.fuse)

    @property
    def network_timeout_seconds(self) -> float:
        """How long a call may take; settable, as JDBC's setNetworkTimeout is."""
        return self.fuse.timeout_seconds

    @network_timeout_seconds.setter
    def network_timeout_seconds(self, seconds: float) -> None:
        self.fuse.timeout_seconds = seconds

    def commit(self) -> None:
        """Commit within the time-out."""
        with self.fuse:
            super().commit()

    def rollback(self) -> None:
        """Roll back within the time-out."""
        with self.fuse:
            super().rollback()

    def cursor(self, *args: Any, **kwargs: Any) -> Any:
        """Return a bounded cursor; a named (server-side) one is refused: it fetches unbounded."""
        if kwargs.get("name") or (args and args[0]):
            raise psycopg2.NotSupportedError(
                "server-side cursors have no network time-out; read in chunks instead"
            )
        return super().cursor(*args, **kwargs)

    def close(self) -> None:
        """Close without waiting for the server."""
        super().close()
        self._remove_fuse()


class TimedCursor(psycopg2.extensions.cursor):
    """A cursor of a TimedConnection. Fetching needs no bound: the rows are here by then."""

    connection: TimedConnection

    def execute(self, query: Any, vars: Any = None) -> None:  # noqa: A002 - psycopg2's
        """Execute within the time-out."""
        with self.connection.fuse:
            super().execute(query, vars)

    def executemany(self, query: Any, vars_list: Any) -> None:
        """Execute for all within one time-out."""
        with self.connection.fuse:
            super().executemany(query, vars_list)

    def callproc(self, procname: Any, parameters: Any = None) -> None:
        """Call within the time-out."""
        with self.connection.fuse:
            super().callproc(procname, parameters)

    def copy_expert(self, sql: Any, file: Any, size: int = 8192) -> None:
        """Copy within the time-out."""
        with self.connection.fuse:
            super().copy_expert(sql, file, size)

    def copy_from(self, *args: Any, **kwargs: Any) -> None:
        """Copy within the time-out."""
        with self.connection.fuse:
            super().copy_from(*args, **kwargs)

    def copy_to(self, *args: Any, **kwargs: Any) -> None:
        """Copy within the time-out."""
        with self.connection.fuse:
            super().copy_to(*args, **kwargs)
