"""The interface that a user of a replay implements."""

from abc import ABC, abstractmethod


class Notes(ABC):
    """A note in the markers of a replay, which its next run checks."""

    @abstractmethod
    def at(self, place: int) -> str:
        """Return the note for a marker of ``place``; also for one that was found."""

    @abstractmethod
    def found(self, place: int, note: str) -> None:
        """Check the note of the newest marker, before anything is sent after it."""
