"""A node that has no memory for its own end: what is left undone does not leave it running."""

import subprocess
import sys
import threading
from typing import NoReturn

import pytest

from orthia.broker.node import out_of_memory
from orthia.broker.node.driver import Driver
from orthia.broker.node.effects import Effect, Emit, Work
from orthia.broker.node.events import JournalFailed, PartDied, WorkEvent
from orthia.broker.node.out_of_memory import OutOfMemory
from orthia.broker.node.state import NodeState, Term, Terms


class ShellWithoutMemory:
    """Cannot carry anything out; notes the end of the process."""

    def __init__(self) -> None:
        self.ended = threading.Event()

    def perform(self, work: Work) -> WorkEvent:
        """Not used here."""
        raise AssertionError(work)

    def event_of(self, error: Exception) -> WorkEvent:
        """Not used here."""
        raise AssertionError(error)

    def carry_out(self, effect: Effect) -> None:
        """Fail: this takes memory."""
        assert isinstance(effect, Emit)
        raise MemoryError

    def shut_down(self, reason: str) -> None:
        """Fail: this takes memory."""
        del reason
        raise MemoryError

    def end_process(self) -> None:
        """Note it."""
        self.ended.set()


class Ended(BaseException):
    """Stands in for the end of the process."""


def end(*_: object) -> NoReturn:
    """Stand in for ``os._exit``."""
    raise Ended


@pytest.fixture
def driver() -> Driver:
    """Give the driver of a node whose shell has no memory."""
    return Driver(NodeState(Terms(), term=Term("live@host", 1)), ShellWithoutMemory())


def test_a_node_that_fails_without_memory_for_what_follows_ends_at_once(driver: Driver) -> None:
    """Whatever comes later finds a node that has failed already, and does nothing."""
    shell = driver._shell
    assert isinstance(shell, ShellWithoutMemory)
    with pytest.raises(MemoryError):
        # The event that is to be logged comes before what wakes the threads of the shutdown.
        driver.tell(JournalFailed("fenced", was_fenced=True))
    assert shell.ended.is_set()


def test_a_node_whose_shutdown_gets_no_memory_ends(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread of the shutdown dies; the one that ends the process is there before."""
    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    monkeypatch.setattr("orthia.broker.node.driver.IO_ERROR_GRACE_SECONDS", 0.01)
    shell = driver._shell
    assert isinstance(shell, ShellWithoutMemory)
    driver.stand_by()
    driver.tell(PartDied("a thread"))
    assert shell.ended.wait(120)


@pytest.mark.parametrize("error", [MemoryError, RuntimeError("can't start new thread")])
def test_a_node_that_cannot_begin_its_end_ends_at_once(
    error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever it was that failed for want of memory."""
    monkeypatch.setattr(out_of_memory, "end_at_once", end)

    def give_up(_: str) -> None:
        raise error

    with pytest.raises(Ended):
        OutOfMemory(give_up).met()


def test_a_hook_that_gets_no_memory_ends_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter then calls ``sys.excepthook``, and would only print."""
    monkeypatch.setattr(out_of_memory, "end_at_once", end)
    with pytest.raises(Ended):
        OutOfMemory.hook_failed(MemoryError, MemoryError(), None)


def test_a_thread_that_has_no_room_to_begin_is_heard_of() -> None:
    """No hook in Python runs there: whoever starts the thread waits for it for ever."""
    program = """if True:
        import os, resource, sys, threading
        from pathlib import Path
        from orthia.broker.node.out_of_memory import UnraisableErrors, end_at_once

        def hear(what):
            assert "in thread started by" in what.err_msg
            end_at_once()

        errors = UnraisableErrors(hear)
        errors.start()
        sys.unraisablehook = errors.hook
        # The next thread gets the stack of one that has ended, which the C library keeps.
        for _ in range(4):
            ended = threading.Thread(target=lambda: None)
            ended.start()
            ended.join()
            # It is there until the kernel has ended it, which a busy machine does later.
            while len(list(Path("/proc/self/task").iterdir())) > 2:
                os.sched_yield()
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        limit = pages * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
        threading.Thread(target=lambda: None).start()
        print("it began")
    """
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, timeout=120, check=False
    )
    assert ended.returncode == 74, ended
