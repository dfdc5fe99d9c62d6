"""What the client's tools ask of whoever uses them."""

from abc import ABC, abstractmethod


class Notes(ABC):
    """What the markers of a replay say beside their place, so that its next run can check it."""

    @abstractmethod
    def at(self, place: int) -> str:
        """Return what a marker of ``place`` is to say; also of one that was found."""

    @abstractmethod
    def found(self, place: int, note: str) -> None:
        """Take what the newest marker says, before anything is sent after it."""
