"""A thread that reads from a store for the loop, in the order it is asked."""

from collections.abc import Callable
from functools import partial
from typing import TypeVar

from orthia.config.clock import monotonic_seconds
from orthia.config.errors import OrthiaError
from orthia.database import StoreUnavailable, TransientStoreError
from orthia.journal.engine.lasting import LastingFailure
from orthia.journal.engine.retry import Lapses, pause_seconds
from orthia.journal.engine.worker import Worker
from orthia.journal.errors import JournalError

_Answer = TypeVar("_Answer")
_Job = Callable[[], None]


class ReadThread:
    """A thread that answers what it is asked.

    While ``still_valid``, a store that does not answer is asked again, which is logged if it lasts;
    after one more attempt ``done`` gets the error. ``post`` is called on the thread, ``ended``
    last.
    """

    def __init__(
        self,
        name: str,
        *,
        still_valid: Callable[[], bool],
        post: Callable[[Callable[[], None]], None],
        ended: Callable[[], None] = lambda: None,
        what: str,
        clock: Callable[[], float] = monotonic_seconds,
    ) -> None:
        """``what`` names what is read, for the log."""
        self._what = what
        self._clock = clock
        self._still_valid = still_valid
        self._post = post
        self._worker: Worker[_Job] = Worker(name, self._run, ended=ended)
        self._closed = self._worker.stopping
        self.start = self._worker.start
        self.close = self._worker.stop
        """End the thread after the current read; no further answers are given."""
        self.join = self._worker.join

    def ask(
        self, read: Callable[[], _Answer], done: Callable[[_Answer | OrthiaError], None]
    ) -> None:
        """Call ``read`` on the thread, and ``done`` with what it returns."""
        self._worker.put(partial(self._answer, read, done))

    def _run(self) -> None:
        while (job := self._worker.take()) is not None:
            job()

    def _answer(
        self, read: Callable[[], _Answer], done: Callable[[_Answer | OrthiaError], None]
    ) -> None:
        failures, lapses = 0, Lapses(self._still_valid)
        lasting = LastingFailure(f"reading {self._what} has failed", self._clock)
        while not self._closed.is_set():
            try:
                answer: _Answer | OrthiaError = read()
            except (StoreUnavailable, TransientStoreError) as error:
                if not lapses.is_lost():
                    failures += 1
                    lasting.failed(error)
                    self._closed.wait(pause_seconds(failures))
                    continue
                answer = error
            except OrthiaError as error:
                answer = error
            except MemoryError:
                raise  # ends this thread and with it the node: there is no memory to answer with
            except Exception as error:  # noqa: BLE001 - the caller waits for an answer
                answer = JournalError(f"a read failed: {type(error).__name__}: {error}")
            self._worker.tell(self._post, partial(done, answer))
            return
