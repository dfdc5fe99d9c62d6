"""Bodies of large messages: whole ones up to a size, and pieces as the rows of a data source.

A body may be larger than memory, so readers hold only a few pieces of one at a time, except for
``BodyReader.whole``, whose caller bounds the size. A body is removed once its message left its
queue: while a node serves, a body may vanish after its message was read.
"""

import zlib
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.datasource import DataSourceReader, InputPartition
from typing_extensions import override

from orthia.config.store_settings import DatabaseStoreSettings
from orthia.journal.engine.abc import PIECE_BYTES
from orthia.journal.file.bodies import EXTENSION, list_bodies
from orthia.journal.file.disk import io_errors
from orthia.journal.model.message import LargeBody
from orthia.pipeline.errors import BodyUnreadable
from orthia.pipeline.sources.fetching import open_source
from orthia.pipeline.sources.schemas import BODIES, arrow_schema
from orthia.pipeline.sources.store import StoreReference

WINDOW_PIECES: Final = 16
"""Pieces in memory at a time."""
_PIECES_A_PARTITION: Final = 512
_EXPORT_WINDOW_PIECES: Final = 64
"""Pieces of one job of Spark: 16 MiB."""
_WINDOWS_AHEAD: Final = 3
"""Jobs at a time, so that one is read while another is sent."""


class BodyReader(ABC):
    """Reads bodies of one store; a context manager, used by one thread."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @abstractmethod
    def window(self, large_id: int, first: int, count: int) -> list[bytes]:
        """Return the pieces from position ``first`` on, ``count`` at most; raises OrthiaError."""

    def close(self) -> None:  # noqa: B027 - a default: most have nothing open
        """Close the reader's connections and files."""

    def windows(self, body: LargeBody) -> Generator[list[bytes]]:
        """Yield the pieces of a body in lists, until one is missing."""
        position = 0
        while found := self.window(body.id, position, WINDOW_PIECES):
            yield found
            position += len(found)

    def pieces(self, body: LargeBody) -> Iterator[bytes]:
        """Yield a body piece by piece, with a few in memory.

        Raises BodyUnreadable if it ends early, or if its checksum is wrong.
        """
        size = checksum = 0
        with closing(self.windows(body)) as windows:
            while size < body.size:
                found = next(windows, None)
                if not found:
                    raise BodyUnreadable(
                        f"the body {body.id} ends after {size} of {body.size} bytes: it is damaged,"
                        " or its message left its queue while it was read"
                    )
                for piece in found:
                    size += len(piece)
                    checksum = zlib.crc32(piece, checksum)
                    if size >= body.size and (size, checksum) != (body.size, body.checksum):
                        raise BodyUnreadable(f"the body {body.id} is not what was stored")
                    yield piece

    def whole(self, body: LargeBody) -> bytes:
        """Return a body; raises BodyUnreadable."""
        return b"".join(self.pieces(body))


class SqlBodyReader(BodyReader):
    """Reads LARGE_MESSAGES through a connection of its own, opened on first use."""

    def __init__(self, settings: DatabaseStoreSettings) -> None:
        self._settings = settings
        self._opening = open_source(settings)
        self._source: Any = None

    @override
    def window(self, large_id: int, first: int, count: int) -> list[bytes]:
        """Raises StoreError."""
        if self._source is None:
            self._source = self._opening.__enter__()
        table = self._source.table(self._settings.large_message_table_name)
        rows = self._source.rows(
            f"SELECT position, piece FROM {table} WHERE id = {large_id:d}"  # noqa: S608 - validated
            f" AND position >= {first:d} AND position < {first + count:d} ORDER BY position"
        )
        return _without_gap(first, rows)

    @override
    def close(self) -> None:
        if self._source is not None:
            self._opening.__exit__(None, None, None)
            self._source = None


class FileBodyReader(BodyReader):
    """Reads the files of a large-messages-directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    @override
    def window(self, large_id: int, first: int, count: int) -> list[bytes]:
        """Return no pieces if the file is missing. Raises JournalIOError."""
        path = self._directory / f"{large_id}{EXTENSION}"
        with io_errors(f"read {path}"):
            try:
                with path.open("rb") as file:
                    file.seek(first * PIECE_BYTES)
                    data = file.read(count * PIECE_BYTES)
            except FileNotFoundError:
                return []
        return [data[at : at + PIECE_BYTES] for at in range(0, len(data), PIECE_BYTES)]


class ExportBodyReader(BodyReader):
    """Reads the bodies of an export, with a Spark job for each window, some at a time."""

    def __init__(self, bodies: DataFrame) -> None:
        self._bodies = bodies

    @override
    def windows(self, body: LargeBody) -> Generator[list[bytes]]:
        count = -(-body.size // PIECE_BYTES)
        firsts = iter(range(0, count, _EXPORT_WINDOW_PIECES))
        with ThreadPoolExecutor(_WINDOWS_AHEAD, "orthia-body") as pool:

            def read(first: int) -> "Future[list[bytes]]":
                return pool.submit(self.window, body.id, first, _EXPORT_WINDOW_PIECES)

            waiting = deque(map(read, islice(firsts, _WINDOWS_AHEAD)))
            try:
                while waiting:
                    found = waiting.popleft().result()
                    # As many are in memory as are asked for, and the one that is sent.
                    waiting.extend(map(read, islice(firsts, 1)))
                    yield found
                    if len(found) < _EXPORT_WINDOW_PIECES:
                        return
            finally:
                pool.shutdown(cancel_futures=True)

    @override
    def window(self, large_id: int, first: int, count: int) -> list[bytes]:
        wanted = (
            f"large_id = {large_id:d} AND position >= {first:d} AND position < {first + count:d}"
        )
        rows = self._bodies.where(wanted).select("position", "piece").toArrow()
        rows = rows.sort_by("position")
        columns = (rows.column(name).to_pylist() for name in ("position", "piece"))
        return _without_gap(first, zip(*columns, strict=True))


def _without_gap(first: int, rows: Iterable[tuple[int, bytes]]) -> list[bytes]:
    """Return the pieces up to the first that is missing."""
    found: list[bytes] = []
    for position, piece in rows:
        if position != first + len(found):
            break
        found.append(bytes(piece))
    return found


class BodyRange(NamedTuple):
    """Pieces of one body with ``first <= position < end``."""

    large_id: int
    first: int
    end: int


class BodyRangesPartition(InputPartition):
    """The ranges that one task reads."""

    def __init__(self, ranges: Sequence[BodyRange]) -> None:
        self.ranges = list(ranges)


def dealt_out(
    pieces: Iterable[tuple[int, int]], partitions: int | None = None
) -> list[BodyRangesPartition]:
    """Split bodies, given as id and number of pieces, into partitions of about the same size."""
    bodies = list(pieces)
    total = sum(count for _, count in bodies)
    most = max(1, -(-total // partitions)) if partitions else _PIECES_A_PARTITION
    dealt: list[list[BodyRange]] = [[]]
    room = most
    for large_id, count in bodies:
        first = 0
        while first < count:
            if not room:
                dealt.append([])
                room = most
            end = min(count, first + room)
            dealt[-1].append(BodyRange(large_id, first, end))
            room -= end - first
            first = end
    return [BodyRangesPartition(part) for part in dealt]


class _BodiesReader(DataSourceReader, ABC):
    """Reads ranges of bodies; it can be pickled, since it holds no open connection."""

    def __init__(self, partitions: int | None) -> None:
        self._wanted_partitions = partitions

    @abstractmethod
    def _sizes(self) -> list[tuple[int, int]]:
        """Return each body's id and its number of pieces, in the order of ids."""

    @abstractmethod
    def _reader(self) -> BodyReader:
        """Open the bodies."""

    def partitions(self) -> Sequence[InputPartition]:
        """Split the present bodies; raises OrthiaError."""
        return dealt_out(self._sizes(), self._wanted_partitions)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the pieces of a partition that exist; raises OrthiaError."""
        if not isinstance(partition, BodyRangesPartition):
            raise TypeError(f"{partition!r} is not of this reader")
        with self._reader() as reader:
            for large_id, first, end in partition.ranges:
                at = first
                while found := reader.window(large_id, at, min(WINDOW_PIECES, end - at)):
                    yield pa.RecordBatch.from_arrays(
                        [
                            pa.array([large_id] * len(found), pa.int64()),
                            pa.array(range(at, at + len(found)), pa.int64()),
                            pa.array(found, pa.binary()),
                        ],
                        schema=arrow_schema(BODIES),
                    )
                    at += len(found)


class SqlBodiesReader(_BodiesReader):
    """Reads LARGE_MESSAGES."""

    def __init__(self, store: StoreReference, partitions: int | None = None) -> None:
        super().__init__(partitions)
        self._store = store

    def _sizes(self) -> list[tuple[int, int]]:
        settings = self._store.settings()
        with open_source(settings) as source:
            table = source.table(settings.large_message_table_name)
            rows = source.rows(
                f"SELECT id, MAX(position) FROM {table} WHERE position >= 0"  # noqa: S608
                " GROUP BY id ORDER BY id"
            )
        return [(large_id, last + 1) for large_id, last in rows]

    def _reader(self) -> BodyReader:
        return SqlBodyReader(self._store.settings())


class FileBodiesReader(_BodiesReader):
    """Reads a large-messages-directory, which every worker must see."""

    def __init__(self, directory: Path, partitions: int | None = None) -> None:
        super().__init__(partitions)
        self._directory = directory

    def _sizes(self) -> list[tuple[int, int]]:
        if not self._directory.is_dir():
            return []
        with io_errors(f"list {self._directory}"):
            ids = list_bodies(self._directory)
        return [(one, -(-self._size(one) // PIECE_BYTES)) for one in ids]

    def _size(self, large_id: int) -> int:
        path = self._directory / f"{large_id}{EXTENSION}"
        with io_errors(f"look at {path}"):
            try:
                return path.stat().st_size
            except FileNotFoundError:  # removed by a running node
                return 0

    def _reader(self) -> BodyReader:
        return FileBodyReader(self._directory)
