"""The threads of a node manager behind one door, so that a simulation can come in by another.

What waits, wakes, or runs beside the activation thread gets it here. The names are those of
``threading``, whose objects these are in a broker.
"""

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Protocol

from apscheduler.executors.pool import ThreadPoolExecutor
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
        """Have later waits wait."""

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
        """Do it soon instead, and then after each period."""

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
        return threading.Thread(target=run, name=name, daemon=True)

    @override
    def every(self, seconds: float, run: Callable[[], None]) -> Repeated:
        return _ScheduledJob(seconds, run)


class _ScheduledJob(Repeated):
    def __init__(self, seconds: float, run: Callable[[], None]) -> None:
        self._scheduler = BackgroundScheduler(
            timezone=UTC,
            executors={"default": ThreadPoolExecutor(1)},
            job_defaults={"max_instances": 1, "coalesce": True, "misfire_grace_time": None},
        )
        self._seconds = seconds
        self._run = run

    @override
    def start(self) -> None:
        self._job: Any = self._scheduler.add_job(self._do, "interval", seconds=self._seconds)
        self._scheduler.start()

    def _do(self) -> None:
        try:
            self._run()
        except MemoryError as error:
            # The scheduler would log it and go on; a thread of its own would have ended.
            ended = (type(error), error, error.__traceback__, threading.current_thread())
            threading.excepthook(threading.ExceptHookArgs(ended))

    @override
    def run_now(self) -> None:
        try:
            self._job.modify(next_run_time=datetime.now(UTC))
        except JobLookupError:
            return  # stopped meanwhile

    @override
    def stop(self) -> None:
        if self._scheduler.running:
            self._scheduler.shutdown(wait=False)


REAL_THREADS: Threads = RealThreads()
