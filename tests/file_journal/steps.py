"""Everything that changes files, one system call after the other, with a hand between any two."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import pytest

CALLS = ("open", "mkdir", "pwrite", "fsync", "fdatasync", "link", "rename", "unlink")
"""What of ``os`` changes a file, a directory, or what of either is durable."""


class Observer(Protocol):
    """Told of each call before it is made, and makes it."""

    def call(self, name: str, real: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        """Make the call, or raise instead."""


def changes(name: str, arguments: tuple[Any, ...]) -> bool:
    """Return whether a call changes anything: most files are opened to be read or written."""
    return name != "open" or bool(arguments[1] & os.O_CREAT)


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
        yield
