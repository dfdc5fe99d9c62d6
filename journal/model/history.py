"""How much the history holds."""

from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

ROW_BYTES = 200
"""What a row of the history takes beside a small record, in its table and its two indexes: measured
138 to 265 bytes. Records of a kilobyte and more take more, as pages are not filled."""


@dataclass(frozen=True)
class Kept:
    """A number of rows of the history."""

    rows: int = 0
    record_bytes: int = 0

    @property
    def stored_bytes(self) -> int:
        """What they take in the database, as ``storage-limit`` counts it."""
        return self.record_bytes + self.rows * ROW_BYTES

    def __add__(self, other: "Kept") -> "Kept":
        return Kept(self.rows + other.rows, self.record_bytes + other.record_bytes)

    def __sub__(self, other: "Kept") -> "Kept":
        return Kept(self.rows - other.rows, self.record_bytes - other.record_bytes)


@dataclass(frozen=True)
class HistoryTotals:
    """All that is kept."""

    kept: Kept
    oldest_removed_at: datetime | None
    """When, by the database's clock, the oldest message left its queue; None if none is kept."""


class KeptRow(NamedTuple):
    """A row of the history, as pruning sees it."""

    seq: int
    removed_at: datetime
    size: int
