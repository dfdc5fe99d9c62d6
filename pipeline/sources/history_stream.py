"""The history as a stream: every message that left its queue, once, in the order of leaving.

The offset is a time, ``removed_at`` in microseconds since 1970. The one fenced writer gives each
transaction a later time than all before it, whatever the database's clock did meanwhile
(``orthia.journal.sql.statements.history_of``), and a takeover waits for the previous node's batch.
So the rows up to the latest time are complete: no row appears below it later. This does not hold
for ``seq``: messages leave in another order than they came.

Pruning deletes the oldest rows, and records up to when in the counter's row of BINDINGS. A stream
that pruning has overtaken fails, unless it was told to continue. Its first micro-batch misses
nothing: it begins with the oldest row that is left.
"""

import logging
from collections.abc import Iterator, Sequence
from datetime import datetime
from itertools import pairwise
from typing import Any, Final, Unpack

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from typing_extensions import override

from orthia.config.dialects import Dialect
from orthia.config.store_settings import DatabaseStoreSettings
from orthia.journal.model.codec import decode_pruned_through
from orthia.journal.model.records import ID_COUNTER_SEQ
from orthia.journal.sql.tables import history_index_name
from orthia.pipeline.errors import HistoryPruned
from orthia.pipeline.sources.bodies import SqlBodyReader
from orthia.pipeline.sources.decoding import Bodies, Decoder, needed
from orthia.pipeline.sources.fetching import TIME, Column, Source, open_source
from orthia.pipeline.sources.journal_rows import Condition, history_column, ids_by_name, queue_names
from orthia.pipeline.sources.micro_batches import Places
from orthia.pipeline.sources.schemas import HISTORY, arrow_schema, subset
from orthia.pipeline.sources.spark_versions import ReadLimit
from orthia.pipeline.sources.store import StoreReference
from orthia.pipeline.sources.tailing import TailOptions, TailReader
from orthia.pipeline.times import instant_at, microseconds

LOGGER: Final = logging.getLogger("orthia.pipeline")
_ROWS_A_PARTITION: Final = 250_000
_MAX_PARTITIONS: Final = 64

Offset = dict[str, int]
_BEGINS: Final = "begins"
"""A field of the offset before the first micro-batch only."""


class HistoryRange(InputPartition):
    """Messages with ``after < removed_at <= up_to``, which one task reads."""

    def __init__(self, after: int, up_to: int, *, begins: bool) -> None:
        """``begins`` is true for the first micro-batch."""
        self.after = after
        self.up_to = up_to
        self.begins = begins


class HistoryStreamReader(TailReader):
    """Tails the history by ``removed_at``."""

    def __init__(
        self,
        store: StoreReference,
        columns: Sequence[str],
        partitions: int | None = None,
        conditions: Sequence[Condition] = (),
        *,
        fail_on_pruned: bool = True,
        starting: datetime | None = None,
        **options: Unpack[TailOptions],
    ) -> None:
        """As ``TailReader``; without ``fail_on_pruned`` pruned rows only cause a warning.

        A new stream begins with what left its queue at ``starting`` or later.
        """
        super().__init__(store, columns, partitions, conditions, **options)
        self._starting = starting
        self._fail_on_pruned = fail_on_pruned

    def initialOffset(self) -> Offset:  # noqa: N802 - Spark's name
        """Return the offset before the oldest row; rows pruned earlier are not missed."""
        settings = self._store.settings()
        with open_source(settings) as source:
            pruned = pruned_through(source, settings)
        starting = 0 if self._starting is None else microseconds(self._starting) - 1
        return {"removed_at": max(pruned, starting), _BEGINS: 1}

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Fix where this run ends, however many messages leave the queues meanwhile."""
        settings = self._store.settings()
        with open_source(settings) as source:
            self._stop_at = _History(source, settings).last()

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802
        """Return the latest time, or the time of the last row of the micro-batch.

        Raises HistoryPruned if rows after ``start`` were pruned.
        """
        after = start["removed_at"]
        settings = self._store.settings()
        with open_source(settings) as source:
            if _BEGINS not in start:
                self._look_for_pruning(source, settings, after)
            history = _History(source, settings)
            last = history.last() if self._stop_at is None else self._stop_at
            last = self.end_of_batch(history, after, last, limit)
        # All rows may have been pruned.
        return {"removed_at": last} if last > after else start

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        """Split the rows after ``start`` up to ``end``, in the order of leaving."""
        settings = self._store.settings()
        with open_source(settings) as source:
            cuts = _History(source, settings).cut(
                start["removed_at"], end["removed_at"], self._wanted_partitions
            )
        begins = _BEGINS in start
        return [HistoryRange(after, up_to, begins=begins) for after, up_to in pairwise(cuts)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a range, in order; raises HistoryPruned if pruning overtook it."""
        if not isinstance(partition, HistoryRange):
            raise TypeError(f"{partition!r} is no range of this reader")
        settings = self._store.settings()
        with open_source(settings) as source, SqlBodyReader(settings) as reader:
            history = _History(source, settings)
            queues = queue_names(source, settings)
            bodies = Bodies(reader, self._max_body) if self._max_body else None
            schema = arrow_schema(subset(HISTORY, ",".join(self._columns)))
            decoder = Decoder(schema, queues, bodies)
            conditions = [one.sql(source, ids_by_name(queues)) for one in self._conditions]
            for batch in history.rows(needed(self._columns), partition, conditions):
                yield from self.shaped(decoder.decode_in_parts(batch))
            if not partition.begins:
                self._look_for_pruning(source, settings, partition.after)

    def _look_for_pruning(
        self, source: Source, settings: DatabaseStoreSettings, after: int
    ) -> None:
        through = pruned_through(source, settings)
        if through <= after:
            return
        text = (
            f"the history was pruned up to {instant_at(through).isoformat()} before the stream had"
            f" read it, from {instant_at(after).isoformat()} on: what left its queue in between may"
            " be missing from the stream"
        )
        if self._fail_on_pruned:
            raise HistoryPruned(
                f"{text}. To go on with what is left, set onPruned to continue; so that it does not"
                " happen again, keep more (journal-retention), or run the stream more often"
            )
        LOGGER.warning("%s", text)


def pruned_through(source: Source, settings: DatabaseStoreSettings) -> int:
    """Return the time up to which the history was pruned, 0 if it never was; raises OrthiaError."""
    table = source.table(settings.bindings_table_name)
    rows = source.rows(f"SELECT record FROM {table} WHERE seq = {ID_COUNTER_SEQ}")  # noqa: S608
    found = decode_pruned_through(bytes(rows[0][0])) if rows else None
    return 0 if found is None else microseconds(found)


class _History(Places):
    """The statements; the place of a row is its ``removed_at``."""

    def __init__(self, source: Source, settings: DatabaseStoreSettings) -> None:
        self._source = source
        name = settings.message_history_table_name
        self._table = source.table(name)
        index = history_index_name(name, source.dialect)
        # With stale statistics of a table that fills and empties, a planner may read all of it.
        hint = {
            Dialect.POSTGRESQL: "",
            Dialect.MYSQL: f" FORCE INDEX ({index})",
            Dialect.SQLITE: f' INDEXED BY "{index}"',
        }
        self._from = f"FROM {self._table} m{hint[source.dialect]}"

    @override
    def last(self) -> int:
        return self._time("MAX(m.removed_at)", f"FROM {self._table} m") or 0

    @override
    def after_rows(self, after: int, rows: int, *, up_to: int) -> int:
        # Rows of one instant stay together, so a range may have a few more.
        nth = self._time(
            "m.removed_at",
            f"{self._within(after, up_to)} ORDER BY m.removed_at LIMIT 1 OFFSET {rows - 1:d}",
        )
        return up_to if nth is None else nth

    @override
    def count(self, after: int, up_to: int, *, most: int) -> int:
        within = f"SELECT m.seq {self._within(after, up_to)} LIMIT {most:d}"
        ((found,),) = self._source.rows(f"SELECT COUNT(*) FROM ({within}) AS part")  # noqa: S608
        return int(found)

    @override
    def sizes(self, after: int, up_to: int) -> Iterator[tuple[int, int]]:
        columns = [Column("at", TIME, "m.removed_at"), history_column("size")]
        rest = f"{self._within(after, up_to)} ORDER BY m.removed_at"
        for batch in self._source.batches(columns, rest):
            places = batch.column("at").cast(pa.int64()).to_pylist()
            yield from zip(places, batch.column("size").to_pylist(), strict=True)

    def cut(self, after: int, up_to: int, partitions: int | None) -> list[int]:
        """Return times from ``after`` on that split the rows into ranges of about the same size."""
        ((count,),) = self._source.rows(f"SELECT COUNT(*) {self._within(after, up_to)}")
        if not count:
            return []
        wanted = partitions or min(_MAX_PARTITIONS, 1 + count // _ROWS_A_PARTITION)
        share = -(-count // wanted)
        cuts = [after]
        while cuts[-1] < up_to:
            cuts.append(self.after_rows(cuts[-1], share, up_to=up_to))
        return cuts

    def rows(
        self, names: Sequence[str], wanted: HistoryRange, conditions: Sequence[str]
    ) -> Iterator[pa.RecordBatch]:
        """Read columns of a range in the order of leaving."""
        tests = "".join(f" AND {one}" for one in conditions)
        return self._source.batches(
            [history_column(name) for name in names],
            f"{self._within(wanted.after, wanted.up_to)}{tests} ORDER BY m.removed_at",
        )

    def _within(self, after: int, up_to: int) -> str:
        first, last = (self._source.time(instant_at(one)) for one in (after, up_to))
        return f"{self._from} WHERE m.removed_at > {first} AND m.removed_at <= {last}"

    def _time(self, expression: str, rest: str) -> int | None:
        # Read to the end: the rest of a result would block the next statement.
        batches: list[Any] = list(self._source.batches([Column("at", TIME, expression)], rest))
        values = [one for batch in batches for one in batch.column("at").cast(pa.int64())]
        found: int | None = values[0].as_py() if values else None
        return found
