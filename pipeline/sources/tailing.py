"""What the tails of a journal and of its history share."""

from collections.abc import Sequence
from typing import TypedDict, Unpack

from pyspark.sql.datasource import DataSourceStreamReader
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from orthia.pipeline.sources.journal_rows import Condition
from orthia.pipeline.sources.store import StoreReference


class TailLimits(TypedDict, total=False):
    """How much is read at a time."""

    max_rows: int | None
    """In a micro-batch; all there is if it is None."""
    max_body: int
    """Up to how many bytes the body of a large message is read; 0 is none."""


class TailReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads what comes; it can be pickled: it is not connected."""

    def __init__(
        self,
        store: StoreReference,
        columns: Sequence[str],
        partitions: int | None = None,
        conditions: Sequence[Condition] = (),
        **limits: Unpack[TailLimits],
    ) -> None:
        """Read ``columns`` of rows that meet ``conditions``."""
        self._store = store
        self._columns = list(columns)
        self._wanted_partitions = partitions
        self._conditions = list(conditions)
        self._max_rows = limits.get("max_rows")
        self._max_body = limits.get("max_body", 0)
        self._stop_at: int | None = None
        """Where a run that reads what is there, and no more, ends."""

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """Return how much a micro-batch takes."""
        return ReadAllAvailable() if self._max_rows is None else ReadMaxRows(self._max_rows)
