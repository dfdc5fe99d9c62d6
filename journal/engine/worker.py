"""The journal's threads: each of them is a Worker, and nothing else in it makes any."""

import threading
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from typing import Generic, TypeVar

from orthia.config.errors import OrthiaError
from orthia.journal.errors import JournalError

_Job = TypeVar("_Job")


class Worker(Generic[_Job]):
    """A thread and what it is given to do.

    ``work`` is called on it, once, and takes jobs until it is given None, or until it is told to
    stop. An error that ends it goes to ``failed``, on the thread, unless it was told to stop; what
    is no error of ours goes there as a JournalError that begins with ``failure``. Without
    ``failed`` it ends the thread like any other.
    """

    def __init__(
        self,
        name: str,
        work: Callable[[], None],
        *,
        failed: Callable[[OrthiaError], None] | None = None,
        failure: str = "",
        ended: Callable[[], None] = lambda: None,
    ) -> None:
        """``ended`` is called on the thread, as the last."""
        self._work = work
        self._failed = failed
        self._failure = failure
        self._ended = ended
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self.put = self._jobs.put
        """Hand over a job, or None behind the last; any thread, never waits."""
        self.take = self._jobs.get
        """Wait for the next job, or None; raises Empty after ``timeout`` seconds."""
        self.take_now = self._jobs.get_nowait
        """Return what ``take`` would; raises Empty if nothing waits."""
        self.stopping = threading.Event()
        """Set by ``stop``; what the thread waits with when it has to pause."""
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Have the thread end after the step it is at; any thread, never waits."""
        self.stopping.set()
        self._jobs.put(None)

    def join(self, timeout_seconds: float) -> bool:
        """Wait for the thread's end; return whether it is over, or was never begun."""
        if self._thread.is_alive():
            self._thread.join(timeout_seconds)
        return not self._thread.is_alive()

    def tell(
        self, post: Callable[[Callable[[], None]], None], callback: Callable[[], None]
    ) -> None:
        """Have ``post`` call back elsewhere, unless the thread was told to stop by then."""
        if not self.stopping.is_set():
            post(partial(self._call_unless_stopped, callback))

    def _call_unless_stopped(self, callback: Callable[[], None]) -> None:
        if not self.stopping.is_set():  # since it was posted
            callback()

    def _run(self) -> None:
        try:
            self._work()
        except Exception as error:
            if self._failed is None:
                raise
            if not self.stopping.is_set():
                self._failed(self._as_ours(error))
        finally:
            self._ended()

    def _as_ours(self, error: Exception) -> OrthiaError:
        if isinstance(error, OrthiaError):
            return error
        return JournalError(f"{self._failure}: {type(error).__name__}: {error}")
