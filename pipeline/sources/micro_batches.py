"""How far a micro-batch goes: by rows and bytes, and when there is enough for one.

The options have the names and the meaning that Spark's source for Kafka gives them, for one
partition: ``maxRowsPerBatch`` there is ``maxOffsetsPerTrigger``, ``minRowsPerBatch`` is
``minOffsetsPerTrigger``; ``maxTriggerDelay`` and ``startingTimestamp`` are called the same.
"""

import re
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from orthia.pipeline.errors import BadOption
from orthia.pipeline.sources.options import positive
from orthia.pipeline.sources.spark_versions import ReadAllAvailable, ReadLimit, ReadMaxRows
from orthia.pipeline.times import instant_at

OPTIONS: Final = frozenset(
    {"maxrowsperbatch", "minrowsperbatch", "maxtriggerdelay", "maxbytesperbatch"}
)
"""In lower case, as Spark passes options."""
STARTING: Final = "startingtimestamp"
_DELAY_SECONDS: Final = 15 * 60.0
_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?) ?(ms|s|m|h|d)")
_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0}
_ALL: Final = 2**31 - 1


class Places(ABC):
    """The rows of a stream by their places: numbers that grow in the order of reading."""

    @abstractmethod
    def last(self) -> int:
        """Return the place of the last row; 0 if there is none."""

    @abstractmethod
    def after_rows(self, after: int, rows: int, *, up_to: int) -> int:
        """Return the place of the ``rows``-th row above ``after``; ``up_to`` if there are fewer."""

    @abstractmethod
    def count(self, after: int, up_to: int, *, most: int) -> int:
        """Return how many rows there are, or ``most`` if there are more."""

    @abstractmethod
    def sizes(self, after: int, up_to: int) -> Iterator[tuple[int, int]]:
        """Yield the place and the stored bytes of each row, in order."""

    def after_bytes(self, after: int, most: int, *, up_to: int) -> int:
        """Return the place before which rows have ``most`` bytes; but at least one row is."""
        total = 0
        end = after
        for place, size in self.sizes(after, up_to):
            total += size
            if end > after and total > most:
                return end
            end = place
        return up_to


@dataclass(frozen=True)
class Limits:
    """The bounds of a micro-batch."""

    max_rows: int | None = None
    max_bytes: int | None = None
    min_rows: int | None = None
    max_delay_seconds: float = _DELAY_SECONDS
    """How long to wait for ``min_rows``."""

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> "Limits":
        """Read a data source's options; raises BadOption."""
        found = cls(
            positive(options, "maxrowsperbatch"),
            positive(options, "maxbytesperbatch"),
            positive(options, "minrowsperbatch"),
            _seconds(options),
        )
        if "maxtriggerdelay" in options and found.min_rows is None:
            raise BadOption("option maxTriggerDelay: it bounds the wait for minRowsPerBatch")
        if found.min_rows and found.max_rows and found.min_rows > found.max_rows:
            raise BadOption("option minRowsPerBatch: it is more than maxRowsPerBatch")
        return found


class MicroBatches:
    """Says where the next micro-batch ends; it remembers when the last one began."""

    def __init__(self, limits: Limits, clock: Callable[[], float] = time.monotonic) -> None:
        self._limits = limits
        self._clock = clock
        self._since = clock()

    def default_limit(self) -> ReadLimit:
        """Return what Spark passes on unless its trigger wants all."""
        if self._limits.max_rows is None and self._limits.max_bytes is None:
            return ReadAllAvailable()
        return ReadMaxRows(self._limits.max_rows or _ALL)

    def end(
        self, places: Places, after: int, last: int, limit: ReadLimit, *, waits: bool = True
    ) -> int:
        """Return the place of the last row to take; ``after`` for none yet.

        Unless it ``waits`` it takes what there is.
        """
        limits = self._limits
        if last <= after:
            return after
        if waits and limits.min_rows is not None:
            enough = places.count(after, last, most=limits.min_rows) >= limits.min_rows
            if not enough and self._clock() - self._since < limits.max_delay_seconds:
                return after
        self._since = self._clock()
        if isinstance(limit, ReadMaxRows):
            last = places.after_rows(after, limit.max_rows, up_to=last)
            if limits.max_bytes is not None:
                last = places.after_bytes(after, limits.max_bytes, up_to=last)
        return last


def starting_at(options: Mapping[str, str]) -> datetime | None:
    """Return from when on a new stream begins; raises BadOption.

    Milliseconds since 1970, as Kafka's, or a time as ISO 8601, in UTC unless it says.
    """
    text = options.get(STARTING)
    if text is None:
        return None
    try:
        if text.isdecimal():
            return instant_at(int(text) * 1_000)
        found = datetime.fromisoformat(text)
    except (ValueError, OverflowError):
        raise BadOption(
            f"option startingTimestamp: {text!r} is neither milliseconds since 1970 nor a time such"
            " as 2026-01-31T12:00:00Z"
        ) from None
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


def _seconds(options: Mapping[str, str]) -> float:
    text = options.get("maxtriggerdelay")
    if text is None:
        return _DELAY_SECONDS
    found = _DURATION.fullmatch(text.strip())
    if found is None:
        raise BadOption(f"option maxTriggerDelay: {text!r} is not a duration such as 30s or 15m")
    return float(found[1]) * _UNITS[found[2]]
