"""The rows of MESSAGES, or of one queue of it, by ``seq``: how far so many rows go."""

from collections.abc import Iterator, Sequence

import pyarrow as pa
from typing_extensions import override

from orthia.config.store_settings import DatabaseStoreSettings
from orthia.pipeline.errors import BadOption
from orthia.pipeline.sources.fetching import Column, Source
from orthia.pipeline.sources.journal_rows import column, ids_by_name, queue_names
from orthia.pipeline.sources.micro_batches import Places

_ROWS_A_PARTITION = 250_000
_MAX_PARTITIONS = 64


class SeqPlaces(Places):
    """The statements; raises StoreError."""

    def __init__(
        self, source: Source, settings: DatabaseStoreSettings, queue_ids: Sequence[int] = ()
    ) -> None:
        """Of the queue with these ids; without any, of the whole table."""
        self._source = source
        self._table = f"FROM {source.table(settings.message_table_name)} m"
        self._of_queue = (
            [f"m.queue_id IN ({', '.join(f'{one:d}' for one in queue_ids)})"] if queue_ids else []
        )

    @classmethod
    def of_queue(cls, source: Source, settings: DatabaseStoreSettings, queue: str) -> "SeqPlaces":
        """Return those of a queue; raises BadOption if there is none of that name."""
        ids = ids_by_name(queue_names(source, settings)).get(queue)
        if not ids:
            raise BadOption(f"option queue: the store has no queue {queue!r}")
        return cls(source, settings, ids)

    @override
    def last(self) -> int:
        where = f" WHERE {self._of_queue[0]}" if self._of_queue else ""
        ((found,),) = self._source.rows(f"SELECT MAX(m.seq) {self._table}{where}")
        return int(found or 0)

    @override
    def after_rows(self, after: int, rows: int, *, up_to: int) -> int:
        found = self._source.rows(
            f"SELECT m.seq {self._within(after, up_to)} ORDER BY m.seq LIMIT 1 OFFSET {rows - 1:d}"
        )
        return int(found[0][0]) if found else up_to

    @override
    def count(self, after: int, up_to: int, *, most: int) -> int:
        within = f"SELECT m.seq {self._within(after, up_to)} LIMIT {most:d}"
        ((found,),) = self._source.rows(f"SELECT COUNT(*) FROM ({within}) AS part")  # noqa: S608
        return int(found)

    @override
    def sizes(self, after: int, up_to: int) -> Iterator[tuple[int, int]]:
        columns = [Column("seq", pa.int64(), "m.seq"), column("size")]
        for batch in self._source.batches(columns, f"{self._within(after, up_to)} ORDER BY m.seq"):
            yield from zip(*(one.to_pylist() for one in batch.columns), strict=True)

    def cut(self, after: int, up_to: int, partitions: int | None) -> list[int]:
        """Return seqs from ``after`` on that split the rows into ranges of about one size."""
        ((count,),) = self._source.rows(f"SELECT COUNT(*) {self._within(after, up_to)}")
        if not count:
            return []
        wanted = partitions or min(_MAX_PARTITIONS, 1 + count // _ROWS_A_PARTITION)
        share = -(-count // wanted)
        cuts = [after]
        while cuts[-1] < up_to:
            cuts.append(self.after_rows(cuts[-1], share, up_to=up_to))
        return cuts

    def _within(self, after: int, up_to: int) -> str:
        tests = [*self._of_queue, f"m.seq > {after:d}", f"m.seq <= {up_to:d}"]
        return f"{self._table} WHERE {' AND '.join(tests)}"
