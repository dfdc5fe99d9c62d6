# mypyc compiles this module.
"""How many rows the store takes within a time, as its latest batches show.

Whoever sends one message waits for the batch under way and for all that waits before it. Stores
differ tenfold in what a row costs, so what bounds that wait is not a number of rows.
"""

from typing import Final

LEAST_ROWS: Final = 500
"""Of so many the commit itself is a small part: a smaller batch says nothing of a row, and no bound
is lower."""


class StoringRate:
    """A number of rows that follows how fast they are stored."""

    __slots__ = ("_least", "_most", "_seconds", "rows")

    def __init__(self, seconds: float, most: int, least: int = LEAST_ROWS) -> None:
        """Begin with ``most`` rows, and keep to what is stored in so many ``seconds``."""
        self._seconds = seconds
        self._most = most
        self._least = min(least, most)
        self.rows = most
        """How many rows are stored in that time, between ``least`` and ``most``."""

    def stored(self, rows: int, seconds: float) -> None:
        """Take account of a batch of ``LEAST_ROWS`` or more, stored at the first attempt."""
        if seconds <= 0:
            return
        wanted = min(float(self._most), rows * self._seconds / seconds)
        # Halfway: one slow batch is no slow store.
        self.rows = max(self._least, (self.rows + int(wanted)) // 2)
