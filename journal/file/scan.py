"""Reading the records of one file after a crash: where it ends, and what of it is damaged. No IO.

What tells the one from the other is said in ``orthia.journal.file.format``.
"""

from collections.abc import Iterator
from typing import NamedTuple

from orthia.journal.file.format import (
    HEADER_BYTES,
    LAST_OF_SYNC,
    RECORD_BYTES,
    FileHeader,
    Scanned,
    parse,
)


class Damage(NamedTuple):
    """A stretch of a file that was durable and cannot be read any more."""

    begin: int
    end: int


class FileScan:
    """Reads the records of one file; ``end`` and ``damages`` are known once it is read through.

    ``data`` supports ``find`` and slices, as bytes and a memory map do.
    """

    def __init__(self, data: bytes, header: FileHeader, sealed_end: int | None) -> None:
        self._data = data
        self._view = memoryview(data)
        self._mark = header.mark
        self._sealed_end = sealed_end
        self._limit = len(data) if sealed_end is None else min(sealed_end, len(data))
        self.end = HEADER_BYTES
        """Where the last durable record ends."""
        self.damages: list[Damage] = []
        self.torn_bytes = 0
        """How much lies behind ``end`` that looks like records and never was durable."""
        self._durable_sync = 1
        """The sync that the record at ``_taken_end`` belongs to."""
        self._taken_end = HEADER_BYTES
        """Where the last record that was taken ends: before ``end``, if damage lies between."""

    def records(self) -> Iterator[tuple[Scanned, bool]]:
        """Yield each record and whether its payload is intact; one that is not is damaged."""
        while True:
            found = self._parse(self.end)
            if found is not None and self._intact(found):
                yield self._take(found), True
                continue
            if self._sealed_end is not None and self.end >= self._sealed_end:
                return
            if not self._is_durable(self.end):
                return
            if found is not None and found.end <= self._limit:
                yield self._take(found), False
                continue
            resumed = self._next_record(self.end + 1)
            begin, self.end = self.end, self._limit if resumed is None else resumed.offset
            self.damages.append(Damage(begin, self.end))
            if resumed is None:
                return

    def release(self) -> None:
        """Let go of the data, so that it can be closed."""
        self._view.release()

    def _take(self, found: Scanned) -> Scanned:
        self.end = self._taken_end = found.end
        self._durable_sync = found.sync + (found.flags & LAST_OF_SYNC)
        return found

    def _parse(self, offset: int) -> Scanned | None:
        found = parse(self._view[: self._limit], offset, self._mark)
        return found if found is not None and self._can_stand(found) else None

    def _can_stand(self, found: Scanned) -> bool:
        """Return whether the sync of a record goes on from the last one where the record stands.

        Each sync has a record, and there is room for so many between the two: none at the end.
        """
        between = (found.offset - self._taken_end) // RECORD_BYTES
        return self._durable_sync <= found.sync <= self._durable_sync + between

    def _intact(self, found: Scanned) -> bool:
        begin = found.offset + RECORD_BYTES
        return found.end <= self._limit and found.is_intact(self._view[begin : found.end])

    def _is_durable(self, offset: int) -> bool:
        """Return whether what should be at ``offset`` is known to have been synced."""
        if self._sealed_end is not None:
            return True
        found = self._next_record(offset + 1)
        torn = found is not None
        while found is not None:
            if found.sync > self._durable_sync:
                return True
            found = self._next_record(found.end if self._intact(found) else found.offset + 1)
        self.torn_bytes = self._limit - offset if torn else 0
        return False

    def _next_record(self, offset: int) -> Scanned | None:
        while True:
            offset = self._data.find(self._mark.start, offset, self._limit)
            if offset < 0:
                return None
            found = self._parse(offset)
            if found is not None:
                return found
            offset += 1
