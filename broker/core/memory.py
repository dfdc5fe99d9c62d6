"""How much of messages is in memory, over all queues."""

MESSAGE_OVERHEAD = 600
"""Bytes a message in memory costs beside its headers and body; measured on CPython 3.11."""


class MemoryBudget:
    """Counts bytes against ``global-max-size``."""

    __slots__ = ("limit", "used")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0

    def has_room(self, size: int) -> bool:
        """Return whether ``size`` more bytes fit."""
        return self.limit < 0 or self.used + size <= self.limit
