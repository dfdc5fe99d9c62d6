"""Exclusive locks: what somebody else keeps for us, and what third-party lockers implement.

An exclusive lock knows nothing of tokens: ``orthia.nodemanager.locker.ExclusiveLocker`` takes the
next one while the lock is held. A locker of somebody else is found by its entry point in the group
``orthia.lockers``: something that is called with a ``LockerContext`` and returns an
``ExclusiveLock``; docs/lockers.md has an example.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from typing import Final

from orthia.config.errors import ConfigurationError
from orthia.nodemanager.lease import Lock

ENTRY_POINT_GROUP: Final = "orthia.lockers"


class ExclusiveLock(ABC):
    """A lock that one holder at most has, and that does not outlive its process.

    One object is one would-be holder. All calls may block for a bounded time. They come from two
    threads, never at once. Each raises ``StoreUnavailable`` if what keeps the lock does not answer.
    """

    def prepare(self) -> None:
        """Make ready at the start of a node; raises OrthiaError if it must not start so."""
        return

    @abstractmethod
    def try_acquire(self) -> bool:
        """Take the lock if nobody has it, without waiting for it."""

    @abstractmethod
    def keep_alive(self) -> None:
        """Prove that the lock is still held; raises LockLost, with the reason, if it is not."""

    @abstractmethod
    def release(self) -> None:
        """Let the lock go; nothing happens if it is not held."""

    def abandon(self) -> None:
        """Let the lock go at the end of the node manager, without waiting for anything."""
        self.release()

    def is_free(self) -> bool:
        """Return whether nobody has the lock; called by a node that has not."""
        if not self.try_acquire():
            return False
        self.release()
        return True


class NoLock(ExclusiveLock):
    """``useLock`` false: everybody has it."""

    def try_acquire(self) -> bool:
        """Return True."""
        return True

    def keep_alive(self) -> None:
        """Do nothing."""

    def release(self) -> None:
        """Do nothing."""


@dataclass(frozen=True)
class LockerContext:
    """What a third-party locker is told."""

    lock: Lock
    """Which of the two locks of a pair is wanted: each is one of its own."""
    node_name: str
    holder_id: str
    """Who would hold it: node, host, process and a UUID."""
    properties: Mapping[str, str] = field(default_factory=dict)
    """The ``property`` elements of ``custom-locker``."""


LockerFactory = Callable[[LockerContext], ExclusiveLock]


def installed_lockers() -> set[str]:
    """Return the names that a ``custom-locker`` may have here."""
    return {one.name for one in entry_points(group=ENTRY_POINT_GROUP)}


def third_party_locker(name: str) -> LockerFactory:
    """Return the locker of this entry point; raises ConfigurationError."""
    found = {one.name: one for one in entry_points(group=ENTRY_POINT_GROUP)}
    if name not in found:
        known = ", ".join(sorted(found)) or "none is installed"
        raise ConfigurationError(
            f"<custom-locker>: no locker {name!r} in the entry points of {ENTRY_POINT_GROUP};"
            f" expected one that is: {known}"
        )
    try:
        factory: LockerFactory = found[name].load()
    except Exception as error:
        raise ConfigurationError(
            f"<custom-locker>: the locker {name!r} ({found[name].value}) cannot be loaded:"
            f" {type(error).__name__}: {error}"
        ) from error
    return factory
