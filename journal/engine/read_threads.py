"""Threads that read from a store for the loop, in the order they are asked."""

import threading
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from typing import TypeVar

from orthia.config.errors import OrthiaError
from orthia.database import StoreUnavailable, TransientStoreError
from orthia.journal.engine.retry import pause_seconds
from orthia.journal.errors import JournalError

_Answer = TypeVar("_Answer")
_Job = Callable[[], None]


class ReadThreads:
    """Threads that answer what they are asked.

    A store that does not answer is asked again while ``still_valid``; then ``done`` gets the
    error. ``post`` is called on these threads.
    """

    def __init__(
        self,
        name: str,
        threads: int,
        *,
        still_valid: Callable[[], bool],
        post: Callable[[Callable[[], None]], None],
    ) -> None:
        self._still_valid = still_valid
        self._post = post
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._closed = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, name=f"{name}-{number}", daemon=True)
            for number in range(threads)
        ]

    def start(self) -> None:
        """Start the threads."""
        for thread in self._threads:
            thread.start()

    def ask(
        self, read: Callable[[], _Answer], done: Callable[[_Answer | OrthiaError], None]
    ) -> None:
        """Have ``read`` called on one of the threads, and ``done`` with what it returned."""
        self._jobs.put(partial(self._answer, read, done))

    def close(self) -> None:
        """Have the threads end after the read that is under way; no answer comes any more."""
        self._closed.set()
        for _ in self._threads:
            self._jobs.put(None)

    def join(self, timeout_seconds: float) -> None:
        """Wait for the threads' end, at most so long for each."""
        for thread in self._threads:
            thread.join(timeout_seconds)

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()

    def _answer(
        self, read: Callable[[], _Answer], done: Callable[[_Answer | OrthiaError], None]
    ) -> None:
        failures = 0
        while not self._closed.is_set():
            try:
                answer: _Answer | OrthiaError = read()
            except (StoreUnavailable, TransientStoreError) as error:
                if self._still_valid():
                    failures += 1
                    self._closed.wait(pause_seconds(failures))
                    continue
                answer = error
            except OrthiaError as error:
                answer = error
            except MemoryError:
                raise  # the node is to end with this thread: it has no memory to answer with
            except Exception as error:  # noqa: BLE001 - the caller waits for an answer
                answer = JournalError(f"a read failed: {type(error).__name__}: {error}")
            if not self._closed.is_set():
                self._post(partial(done, answer))
            return
