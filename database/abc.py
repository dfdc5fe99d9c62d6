"""What differs by DBMS, and what others see of it."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Turnstile(ABC):
    """What the lease and the journal see; a DBMS with row locks needs nothing behind it."""

    @contextmanager
    @abstractmethod
    def urgent(self) -> Iterator[None]:
        """Make journal writers, of every process, give way for as long as this is held."""

    @abstractmethod
    def give_way(self) -> None:
        """Let urgent transactions go first; call it before each batch, outside a transaction."""


class PresenceLock(ABC):
    """One lock, asked for and held by one object; not for several threads at once."""

    patience_seconds: float
    """How long one ``acquire`` had best wait: longer where it can be interrupted."""

    @abstractmethod
    def acquire(self, timeout_seconds: float, is_wanted: Callable[[], bool] = lambda: True) -> bool:
        """Wait for the lock, in the database where it can; return whether it is held now.

        ``is_wanted`` is asked when there is a session, which may take long to get, and before the
        lock is asked for. If it says no, the session is ended. Raises StoreError.
        """

    @abstractmethod
    def interrupt(self) -> None:
        """Make a waiting ``acquire`` return, or raise, soon; any thread, does not wait itself.

        One that has no session yet goes on to ask whether the lock is wanted. So where that is said
        no to before this is called, no wait begins after it.
        """

    @abstractmethod
    def is_held(self) -> bool:
        """Ask the session whether it has the lock; raises nothing: a lost session has none."""

    @abstractmethod
    def release(self) -> None:
        """Release the lock by ending the session; raises nothing."""
