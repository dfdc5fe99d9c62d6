"""Tailing a journal and a failover log, each row once.

A journal's offset is a ``seq``. One fenced writer gives it out in the order of its commits, and
after a takeover above every earlier one: all rows below the highest committed ``seq`` are there,
and no row appears there later.

A failover log has many writers, so the ids of its table are not in the order of commits: a row may
appear below the highest id. Each holder's own events are inserted one after the other, though. So
the offset there is the last ``event_seq`` of each holder.
"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, Unpack

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from typing_extensions import override

from orthia.pipeline.sources.failover_rows import in_batches, table_entries
from orthia.pipeline.sources.fetching import open_source
from orthia.pipeline.sources.journal_ranges import RangePartition, read_range
from orthia.pipeline.sources.journal_rows import (
    Condition,
    SeqRange,
    first_seq_since,
    last_seq,
    plan_ranges,
)
from orthia.pipeline.sources.micro_batches import Limits, MicroBatches, Places
from orthia.pipeline.sources.seq_places import SeqPlaces
from orthia.pipeline.sources.spark_versions import ReadLimit, SupportsTriggerAvailableNow
from orthia.pipeline.sources.store import StoreReference
from orthia.pipeline.sources.tailing import TailOptions, TailReader

_HOLDERS_A_STATEMENT: Final = 100


class JournalStreamReader(TailReader):
    """Tails MESSAGES by ``seq``."""

    def __init__(
        self,
        store: StoreReference,
        columns: Sequence[str],
        partitions: int | None = None,
        conditions: Sequence[Condition] = (),
        *,
        starting: datetime | None = None,
        **options: Unpack[TailOptions],
    ) -> None:
        """As ``TailReader``; a new stream begins with what was written at ``starting`` or later."""
        super().__init__(store, columns, partitions, conditions, **options)
        self._starting = starting

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name
        """Return the offset before the first row: a new stream begins with the present rows."""
        if self._starting is None:
            return {"seq": 0}
        settings = self._store.settings()
        with open_source(settings) as source:
            first = first_seq_since(source, settings, self._starting, after=0)
            return {"seq": last_seq(source, settings) if first is None else first - 1}

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Fix where this run ends, however much is written meanwhile."""
        self._stop_at = self._last_seq()

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802
        """Return the highest committed seq, or where the micro-batch ends."""
        after = start["seq"]
        last = self._last_seq() if self._stop_at is None else self._stop_at
        last = min(last, self._before_until(after, last))
        if last > after:
            settings = self._store.settings()
            with open_source(settings) as source:
                last = self.end_of_batch(SeqPlaces(source, settings), after, last, limit)
        # Acknowledged rows are gone: the highest seq may have been higher before.
        return {"seq": max(after, last)}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        """Split ``start < seq <= end``."""
        settings = self._store.settings()
        within = SeqRange(start["seq"] + 1, end["seq"] + 1)
        with open_source(settings) as source:
            ranges = plan_ranges(
                source, settings, self._wanted_partitions, self._conditions, within=within
            )
        return [RangePartition(seqs) for seqs in ranges]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a range."""
        rows = read_range(
            self._store,
            self._columns,
            partition,
            self._conditions,
            max_body=self._max_body,
            ordered=True,
        )
        return self.shaped(rows)

    def _before_until(self, after: int, last: int) -> int:
        """Return the seq before the first message that is too new for the option ``until``.

        If the stream passed it, a run with a later ``until`` would never read it.
        """
        for condition in self._conditions:
            if condition.column == "written_at" and condition.operator == "<":
                settings = self._store.settings()
                with open_source(settings) as source:
                    found = first_seq_since(source, settings, condition.values[0], after=after)
                return last if found is None else found - 1
        return last

    def _last_seq(self) -> int:
        settings = self._store.settings()
        with open_source(settings) as source:
            return last_seq(source, settings)


class HolderPartition(InputPartition):
    """New events of some holders: those after the first number up to the second."""

    def __init__(self, numbers: Mapping[str, tuple[int, int]]) -> None:
        self.numbers = dict(numbers)


class FailoverLogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Tails FAILOVER_LOG by each holder's own numbers."""

    def __init__(
        self,
        store: StoreReference,
        pair: str | None = None,
        *,
        limits: Limits | None = None,
        starting: datetime | None = None,
    ) -> None:
        """A new stream begins with what was logged at ``starting`` or later."""
        self._store = store
        self._pair = pair
        self._micro_batches = MicroBatches(limits or Limits())
        self._starting = starting
        self._stop_at: dict[str, int] | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return the offset before every holder's first event."""
        if self._starting is None:
            return {}
        return self._last_of("WHERE db_time < {time}")

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Fix where this run ends, whatever is logged meanwhile."""
        self._stop_at = self._last_of("")

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """Return the size of a micro-batch."""
        return self._micro_batches.default_limit()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Return the number of each holder's last event, or of those of the micro-batch."""
        last = self._last_of("") if self._stop_at is None else self._stop_at
        new = {one: number for one, number in last.items() if number > start.get(one, 0)}
        places = _EventPlaces(start, new)
        waits = self._stop_at is None
        end = self._micro_batches.end(places, 0, places.last(), limit, waits=waits)
        # Pruned events do not count as new again.
        return start | places.offset(end)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Return the holders that have new events."""
        new = [
            (holder, (start.get(holder, 0), last))
            for holder, last in sorted(end.items())
            if last > start.get(holder, 0)
        ]
        return [
            HolderPartition(dict(new[at : at + _HOLDERS_A_STATEMENT]))
            for at in range(0, len(new), _HOLDERS_A_STATEMENT)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield new events."""
        if not isinstance(partition, HolderPartition):
            raise TypeError(f"{partition!r} is not of this reader")
        settings = self._store.settings()
        with open_source(settings) as source:
            table = source.table(settings.failover_log_table_name)
            tests = (
                f"(holder_id = {source.placeholder(number)} AND event_seq > {after:d}"
                f" AND event_seq <= {last:d})"
                for number, (after, last) in enumerate(partition.numbers.values(), 1)
            )
            holders = list(partition.numbers)
            entries = table_entries(source, table, " OR ".join(tests), holders)
            yield from in_batches(entries, self._pair)

    def _last_of(self, where: str) -> dict[str, int]:
        settings = self._store.settings()
        with open_source(settings) as source:
            table = source.table(settings.failover_log_table_name)
            if self._starting is not None:
                where = where.format(time=source.time(self._starting))
            found = source.rows(
                f"SELECT holder_id, MAX(event_seq) FROM {table} {where} GROUP BY holder_id"  # noqa: S608
            )
        return {holder: int(last) for holder, last in found}


class _EventPlaces(Places):
    """New events, one holder's after the other's, as numbered from 1."""

    def __init__(self, start: Mapping[str, int], new: Mapping[str, int]) -> None:
        self._start = start
        self._new = sorted(new.items())

    def offset(self, end: int) -> dict[str, int]:
        """Return the number of each holder's last event among the first ``end``."""
        found = {}
        for holder, last in self._new:
            before = self._start.get(holder, 0)
            taken = min(end, last - before)
            if taken <= 0:
                break
            found[holder] = before + taken
            end -= taken
        return found

    @override
    def last(self) -> int:
        return sum(last - self._start.get(holder, 0) for holder, last in self._new)

    @override
    def after_rows(self, after: int, rows: int, *, up_to: int) -> int:
        return min(after + rows, up_to)

    @override
    def count(self, after: int, up_to: int, *, most: int) -> int:
        return min(up_to - after, most)

    @override
    def sizes(self, after: int, up_to: int) -> Iterator[tuple[int, int]]:
        return iter(())  # its reader has no bound of bytes
