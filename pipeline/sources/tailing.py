"""The common part of streams of a journal and of its history."""

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
    """Bounds of one read."""

    max_rows: int | None
    """The rows of a micro-batch; None for no bound."""
    max_body: int
    """The most bytes of a large message's body that is read; 0 for none."""


class TailReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads new rows; it can be pickled: it has no connection."""

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
        """Where a run that reads only the present rows ends."""

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """Return the size of a micro-batch."""
        return ReadAllAvailable() if self._max_rows is None else ReadMaxRows(self._max_rows)
