"""Reads an export that was just written to this machine, without Spark.

For some thousand rows Spark's planning costs more than reading them. What is read is the same:
every stored column of every row, with the checksums that an import compares.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from orthia.journal.model.records import ID_COUNTER_SEQ
from orthia.pipeline.jobs.contents import TableDigest
from orthia.pipeline.jobs.export import NO_VALUE
from orthia.pipeline.jobs.row_hash import digest_of
from orthia.pipeline.jobs.together import Rows

_ROWS: Final = 1_000
"""Rows in memory at a time, each of which may have a record of some hundred KiB."""
_COUNTED: Final = ("kind", "queue_name", "body_size")


class WrittenTable:
    """The Parquet files of one table of an export."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def summary(self) -> Rows:
        """Return the number of messages and bytes of each day and queue, as ``export.summary``."""
        found: dict[tuple[str | None, str | None], list[Any]] = defaultdict(lambda: [0, None])
        for path in self._files():
            day, queue = self._partition(path)
            for batch in _batches(path, _COUNTED):
                is_message = pc.is_in(batch.column("kind"), pa.array(["message", "reference"]))
                messages = batch.filter(is_message)
                names = messages.column("queue_name").to_pylist()
                for name, size in zip(names, messages.column("body_size").to_pylist(), strict=True):
                    row = found[day, queue if name is None else name]
                    row[0] += 1
                    if size is not None:
                        row[1] = size + (row[1] or 0)
        return [
            {"day": day, "queue": queue, "messages": messages, "body_bytes": size}
            for (day, queue), (messages, size) in sorted(found.items(), key=_with_none_first)
        ]

    def digest(self, columns: Sequence[str], *, without_counter: bool = False) -> TableDigest:
        """Return the number of rows and their checksum, perhaps without the store's counter."""
        batches = (batch for path in self._files() for batch in _batches(path, columns))
        if without_counter:
            batches = (
                one.filter(pc.not_equal(one.column("seq"), ID_COUNTER_SEQ)) for one in batches
            )
        return digest_of(batches)

    def rows(self, columns: Sequence[str]) -> Rows:
        """Return some columns of all rows of a small table."""
        return [
            row
            for path in self._files()
            for batch in _batches(path, columns)
            for row in batch.to_pylist()
        ]

    def _files(self) -> list[Path]:
        return sorted(self._directory.rglob("part-*.parquet"))

    def _partition(self, path: Path) -> tuple[str | None, str | None]:
        """Return the day and the queue that the directories of a file name, if it has rows."""
        named: Mapping[str, str] = dict(
            part.split("=", 1) for part in path.relative_to(self._directory).parts[:-1]
        )
        day, queue = (unquote(named.get(name, NO_VALUE)) for name in ("day", "queue"))
        return (None if day == NO_VALUE else day), (None if queue == NO_VALUE else queue)


def _batches(path: Path, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    with pq.ParquetFile(path, coerce_int96_timestamp_unit="us") as file:
        for batch in file.iter_batches(_ROWS, columns=list(columns)):
            yield batch.select(list(columns))


def _with_none_first(item: tuple[tuple[str | None, ...], Any]) -> list[tuple[bool, str]]:
    """Order a key as Spark does."""
    return [(part is not None, part or "") for part in item[0]]
