"""The thread of a part of the journal; no other module of the journal makes threads."""

import threading
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from typing import Generic, TypeVar

from orthia.config.errors import OrthiaError
from orthia.journal.errors import JournalError

_Job = TypeVar("_Job")


class Worker(Generic[_Job]):
    """A thread and its queue of jobs.

    The thread calls ``work`` once, which takes jobs until it gets None or is told to stop. An error
    that ends it goes to ``failed``, on the thread, unless it was told to stop; an error that is no
    OrthiaError is wrapped in a JournalError that begins with ``failure``. Without ``failed`` the
    error ends the thread as usual.
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
        """``ended`` is called last on the thread."""
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
        """Set by ``stop``; the thread pauses by waiting for it."""
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread after its current step; any thread, never waits."""
        self.stopping.set()
        self._jobs.put(None)

    def join(self, timeout_seconds: float) -> bool:
        """Wait for the thread's end; return whether it has ended or never started."""
        if self._thread.is_alive():
            self._thread.join(timeout_seconds)
        return not self._thread.is_alive()

    def tell(
        self, post: Callable[[Callable[[], None]], None], callback: Callable[[], None]
    ) -> None:
        """Post ``callback``, unless the thread is told to stop before it runs."""
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
