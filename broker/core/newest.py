"""Messages of last value queues, as it is known of each which is the newest of its value."""

from hashlib import blake2b
from typing import Final

from orthia.journal.unit import MessageLocation

MOST_VALUES: Final = 1_000_000
"""Values of all last value queues together: about 300 MB. One more is refused."""


_DIGEST_BYTES: Final = 16


def digest_of(value: object) -> bytes | None:
    """Return by what a value is known; None for none."""
    if value is None:
        return None
    return blake2b(str(value).encode(), digest_size=_DIGEST_BYTES).digest()


class ValueCount:
    """How many values all queues of a node keep the place of."""

    __slots__ = ("is_used", "most", "now")

    def __init__(self, most: int = MOST_VALUES) -> None:
        self.is_used = False
        """Whether there is such a queue, or was."""
        self.now = 0
        self.most = most


class Value:
    """A message that may be the newest of its key."""

    __slots__ = ("before", "is_gone", "is_out", "is_stored", "location", "replaces", "size")

    def __init__(self, location: MessageLocation, size: int, before: "Value | None") -> None:
        self.location = location
        self.size = size
        """What it counts for in the store."""
        self.before = before
        """The one it replaces, until it is stored."""
        self.replaces: MessageLocation | None = None
        """What the transaction deletes that stores it."""
        self.is_stored = False
        self.is_out = False
        """Whether a consumer has it, or it is to be moved somewhere else."""
        self.is_gone = False
        """Whether it is acknowledged, moved or was refused."""

    @property
    def seq(self) -> int:
        """Its place."""
        return self.location.seq
