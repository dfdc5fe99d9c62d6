"""Everything that changes files, one system call after the other, with a hand between any two.

What a memory map and the kernel's asynchronous IO do to a file goes no way that Python could watch:
here stand-ins take their place, whose stores and syncs are calls like the others.
"""

import mmap
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any, Protocol

import pytest

from orthia.journal.file import writing

CALLS = ("open", "mkdir", "pwrite", "fsync", "fdatasync", "link", "rename", "unlink")
"""What of ``os`` changes a file, a directory, or what of either is durable."""


class Observer(Protocol):
    """Told of each call before it is made, and makes it."""

    def call(self, name: str, real: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        """Make the call, or raise instead."""


def changes(name: str, arguments: tuple[Any, ...]) -> bool:
    """Return whether a call changes anything: most files are opened to be read or written."""
    return name != "open" or bool(arguments[1] & os.O_CREAT)


class WatchedMap:
    """A memory map; what is stored in it and flushed goes through an observer.

    The calls are ``store``, with the arguments of ``pwrite``, and ``msync``, of a part of the file.
    """

    def __init__(self, observer: Observer, descriptor: int, length: int) -> None:
        self._observer = observer
        self._descriptor = descriptor
        self._map = mmap.mmap(descriptor, length)

    def __setitem__(self, where: slice, data: bytes) -> None:
        def store(_descriptor: int, data: bytes, offset: int) -> None:
            self._map[offset : offset + len(data)] = data

        self._observer.call("store", store, (self._descriptor, data, where.start))

    def flush(self, offset: int, size: int) -> None:
        """Make a part durable; it begins with a page, and counts up to the end of its last one."""
        end = -(-(offset + size) // mmap.PAGESIZE) * mmap.PAGESIZE

        def msync(_descriptor: int, _offset: int, _end: int) -> None:
            self._map.flush(offset, size)

        self._observer.call("msync", msync, (self._descriptor, offset, end))

    def close(self) -> None:
        """Unmap the file."""
        self._map.close()


class WatchedOperation:
    """One asynchronous write or sync, which is made when it is submitted."""

    def __init__(self, run: Callable[[], int]) -> None:
        self.run = run
        self.callback: Callable[[int], None] = lambda _: None

    @classmethod
    def write(cls, data: bytes, descriptor: int, offset: int) -> "WatchedOperation":
        """Write at an offset."""
        return cls(lambda: os.pwrite(descriptor, data, offset))

    @classmethod
    def fdsync(cls, descriptor: int) -> "WatchedOperation":
        """Make durable what was written."""

        def sync() -> int:
            os.fdatasync(descriptor)
            return 0

        return cls(sync)

    def set_callback(self, callback: Callable[[int], None]) -> None:
        """Have ``callback`` called with the result."""
        self.callback = callback


class WatchedContext:
    """Operations under way: they are made in order, and told of when that is asked for."""

    def __init__(self, _max_requests: int) -> None:
        self._done: list[tuple[WatchedOperation, int]] = []

    def submit(self, *operations: WatchedOperation) -> int:
        """Make them."""
        self._done += [(one, one.run()) for one in operations]
        return len(operations)

    def process_events(self, _most: int, _least: int, _seconds: int) -> int:
        """Tell of those that are done."""
        done, self._done = self._done, []
        for operation, result in done:
            operation.callback(result)
        return len(done)


@contextmanager
def observed(observer: Observer, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Have the calls that change anything go through ``observer``."""

    def through(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def step(*arguments: Any, **named: Any) -> Any:
            if named or not changes(name, arguments):
                return real(*arguments, **named)
            return observer.call(name, real, arguments)

        return step

    with monkeypatch.context() as patch:
        for name in CALLS:
            patch.setattr(os, name, through(name, getattr(os, name)))
        maps = SimpleNamespace(
            PAGESIZE=mmap.PAGESIZE,
            mmap=lambda descriptor, length: WatchedMap(observer, descriptor, length),
        )
        patch.setattr(writing, "mmap", maps)
        aio = ModuleType("caio.linux_aio")
        vars(aio).update(Operation=WatchedOperation, Context=WatchedContext)
        patch.setitem(sys.modules, aio.__name__, aio)
        yield
