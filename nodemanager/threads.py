"""The threads of a node manager behind one door, so that a simulation can come in by another.

What waits, wakes, or runs beside the activation thread gets it here. The names are those of
``threading``, whose objects these are in a broker.
"""

import contextlib
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Any, Protocol

from apscheduler.executors.debug import DebugExecutor
from apscheduler.jobstores.base import JobLookupError
from apscheduler.schedulers.background import BackgroundScheduler
from typing_extensions import override


class Event(Protocol):
    """As ``threading.Event``."""

    def is_set(self) -> bool:
        """Return whether it is set."""

    def set(self) -> None:
        """Set it and wake whoever waits."""

    def clear(self) -> None:
        """Allow later waits again."""

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is set, or for so many seconds; return whether it is."""


class Condition(Protocol):
    """As ``threading.Condition``."""

    def __enter__(self) -> bool:
        """Take its lock."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
        /,
    ) -> None:
        """Give its lock back."""

    def wait(self, timeout: float | None = None) -> bool:
        """Wait to be notified."""

    def wait_for(self, predicate: Callable[[], bool], timeout: float | None = None) -> bool:
        """Wait until something is true; return whether it is."""

    def notify_all(self) -> None:
        """Wake whoever waits."""


class Thread(Protocol):
    """As ``threading.Thread``."""

    def start(self) -> None:
        """Begin to run."""

    def is_alive(self) -> bool:
        """Return whether it runs."""

    def join(self, timeout: float | None = None) -> None:
        """Wait for its end."""


class Repeated(ABC):
    """Something done again and again, never twice at once."""

    @abstractmethod
    def start(self) -> None:
        """Do it after each period from now on."""

    @abstractmethod
    def run_now(self) -> None:
        """Do it soon instead, and then after each period; waits for nothing."""

    @abstractmethod
    def stop(self) -> None:
        """Do it no more; what is under way goes on."""


class Threads(ABC):
    """Where a node manager gets them."""

    @abstractmethod
    def event(self) -> Event:
        """Make an event."""

    @abstractmethod
    def condition(self) -> Condition:
        """Make a condition with a lock of its own."""

    @abstractmethod
    def thread(self, run: Callable[[], None], name: str) -> Thread:
        """Make a thread that keeps no process alive; it is not started."""

    @abstractmethod
    def every(self, seconds: float, run: Callable[[], None]) -> Repeated:
        """Make something that is done on a thread of its own; it is not started."""


class RealThreads(Threads):
    """Those of the interpreter, and APScheduler's."""

    @override
    def event(self) -> Event:
        return threading.Event()

    @override
    def condition(self) -> Condition:
        return threading.Condition()

    @override
    def thread(self, run: Callable[[], None], name: str) -> Thread:
        return threading.Thread(target=_Run(run), name=name, daemon=True)

    @override
    def every(self, seconds: float, run: Callable[[], None]) -> Repeated:
        return _ScheduledJob(seconds, run)


class _Run:
    """What a thread runs; a MemoryError that ends it goes to ``threading.excepthook``.

    ``threading`` calls that hook, too, but makes the hook's argument only then. Here it is there
    before, in case there is no memory for it.
    """

    def __init__(self, run: Callable[[], None]) -> None:
        self._run = run
        self._prepared = threading.ExceptHookArgs((MemoryError, None, None, None))

    def __call__(self) -> None:
        try:
            self._run()
        except MemoryError as error:
            try:
                told = self._told(error)
            except MemoryError:
                told = self._prepared
            threading.excepthook(told)

    @staticmethod
    def _told(error: MemoryError) -> threading.ExceptHookArgs:
        thread = threading.current_thread()
        return threading.ExceptHookArgs((type(error), error, error.__traceback__, thread))


class _ScheduledJob(Repeated):
    """APScheduler says when, and a thread that is there from the start does it.

    A pool of APScheduler begins its thread when a job is due, and has the scheduler locked
    meanwhile. Without memory that thread may never begin; the scheduler then stays locked, and
    whoever asks it for something waits for ever.
    """

    def __init__(self, seconds: float, run: Callable[[], None]) -> None:
        self._scheduler = BackgroundScheduler(
            timezone=UTC,
            executors={"default": DebugExecutor()},  # calls on the thread of the scheduler
            job_defaults={"max_instances": 1, "coalesce": True, "misfire_grace_time": None},
        )
        self._seconds = seconds
        self._run = run
        self._due = threading.Event()
        self._is_late = False
        self._is_stopped = False
        self._thread = threading.Thread(
            target=_Run(self._work), name="orthia-renewals", daemon=True
        )

    @override
    def start(self) -> None:
        self._job: Any = self._scheduler.add_job(self._due.set, "interval", seconds=self._seconds)
        self._thread.start()
        self._scheduler.start()

    @override
    def run_now(self) -> None:
        self._is_late = True
        self._due.set()

    @override
    def stop(self) -> None:
        self._is_stopped = True
        self._due.set()
        if self._scheduler.running:
            self._scheduler.shutdown(wait=False)

    def _work(self) -> None:
        while True:
            self._due.wait()
            self._due.clear()
            if self._is_stopped:
                return
            was_late, self._is_late = self._is_late, False
            self._run()
            if was_late:
                self._begin_anew()

    def _begin_anew(self) -> None:
        """Have the scheduler count the next period from now, whatever the wall clock showed."""
        after = datetime.now(UTC) + timedelta(seconds=self._seconds)
        with contextlib.suppress(JobLookupError):  # stopped meanwhile
            self._job.modify(next_run_time=after)


REAL_THREADS: Threads = RealThreads()
