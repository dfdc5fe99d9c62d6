"""``orthia.journal`` on a file journal: its own readers, its live records in ranges of ``seq``.

The driver reads the files once, as a node does when it opens them, and finds the position of each
live record; the tasks read the records there. While a node writes, a file may be gone when a task
reads it, because its live records were moved to another file or acknowledged: the task then
searches for its records again, and skips those that are gone.

The files have no time of a database's clock: ``written_at`` is NULL.
"""

import contextlib
import operator
import os
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from orthia.config.store_settings import FileStoreSettings
from orthia.journal.errors import JournalDamaged
from orthia.journal.file.disk import io_errors
from orthia.journal.file.format import RECORD_BYTES, Mark, Scanned, parse
from orthia.journal.file.index import Added, Position
from orthia.journal.file.inspect import inspect
from orthia.journal.file.recovery import Contents, read_payload, refuse_damage
from orthia.journal.model.codec import decode_queue_binding
from orthia.journal.model.records import RecordType, UserRecordType
from orthia.pipeline.errors import BadOption
from orthia.pipeline.sources.bodies import FileBodyReader
from orthia.pipeline.sources.decoding import Bodies, Decoder, decode_bindings, needed
from orthia.pipeline.sources.journal_rows import Condition, column
from orthia.pipeline.sources.portions import portions
from orthia.pipeline.sources.schemas import JOURNAL, arrow_schema, subset

_ROWS_A_PARTITION: Final = 250_000
_ATTEMPTS: Final = 10


@dataclass(frozen=True)
class FileReference:
    """The location of a file journal, which every worker must be able to read."""

    directory: str
    bindings_directory: str
    large_messages_directory: str

    @classmethod
    def of(cls, s: FileStoreSettings) -> "FileReference":
        """Return the reference to the journal of a node."""
        return cls(
            str(s.journal_directory.absolute()),
            str(s.bindings_directory.absolute()),
            str(s.large_messages_directory.absolute()),
        )

    def settings(self) -> FileStoreSettings:
        """Return the settings to read it with."""
        return FileStoreSettings(
            Path(self.directory),
            Path(self.bindings_directory),
            Path(self.large_messages_directory),
        )

    def to_options(self) -> dict[str, str]:
        """Return the options of ``orthia.journal`` that name it."""
        return {
            "directory": self.directory,
            "bindingsDirectory": self.bindings_directory,
            "largeMessagesDirectory": self.large_messages_directory,
        }


def default_bodies(journal_directory: Path) -> Path:
    """Return the default directory of large bodies."""
    return journal_directory.with_name("large-messages")


def read_files(reference: FileReference) -> Contents:
    """Return the live records; raises JournalError, also if any durable record cannot be read."""
    settings = reference.settings()
    contents = inspect(settings)
    refuse_damage(settings.journal_directory, contents.message_files)
    refuse_damage(settings.bindings_directory, contents.binding_files)
    return contents


class FilePartition(InputPartition):
    """Live records in the order of their ``seq``, which one task reads."""

    def __init__(
        self,
        queues: Mapping[int, str],
        files: Mapping[int, tuple[str, Mark]],
        body: Position | None = None,
    ) -> None:
        self.queues = dict(queues)
        self.files = dict(files)
        """Paths, and the marks of the records there, by file id."""
        self.body = body
        """The last body before the partition, whose references may be the first records here."""
        self._columns = tuple(array("q") for _ in Position._fields)

    def __len__(self) -> int:
        return len(self._columns[0])

    def append(self, position: Position) -> None:
        """Add a record."""
        for values, value in zip(self._columns, position, strict=True):
            values.append(value)

    def positions(self) -> Iterator[Position]:
        """Yield the records."""
        return map(Position._make, zip(*self._columns, strict=True))


class FileJournalReader(DataSourceReader):
    """Reads the messages of a file journal."""

    def __init__(
        self,
        reference: FileReference,
        columns: Sequence[str],
        partitions: int | None = None,
        conditions: Sequence[Condition] = (),
        *,
        max_body: int = 0,
    ) -> None:
        """Raise BadOption for a condition on the time of a row, which files do not have."""
        if any(condition.column == "written_at" for condition in conditions):
            raise BadOption("options since and until: a file journal has no time of each record")
        self._reference = reference
        self._columns = list(columns)
        self._partitions = partitions
        self._conditions = list(conditions)
        self._max_body = max_body

    def partitions(self) -> list[InputPartition]:
        """Read the files and split the live records; raises JournalError."""
        contents = read_files(self._reference)
        queues = _queue_names(contents)
        files = {
            found.file_id: (str(found.path), found.header.mark)
            for found in contents.message_files.counting
        }
        rows = contents.messages.total
        most = -(-rows // self._partitions) if self._partitions else _ROWS_A_PARTITION
        found = [FilePartition(queues, files)]
        body: Position | None = None
        for position, queue_id in contents.messages.rows():
            if len(found[-1]) >= most:
                found.append(FilePartition(queues, files, body))
            if queue_id is None:
                body = position
            found[-1].append(position)
        return list(found)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the requested columns of a partition's records."""
        if not isinstance(partition, FilePartition):
            raise TypeError(f"{partition!r} is no part of this reader")
        reader = FileBodyReader(self._reference.settings().large_messages_directory)
        decoder = Decoder(
            arrow_schema(subset(JOURNAL, ",".join(self._columns))),
            partition.queues,
            Bodies(reader, self._max_body) if self._max_body else None,
        )
        names = needed(self._columns)
        schema = pa.schema([(name, _type(name)) for name in names])
        with contextlib.closing(_Records(self._reference, partition.files)) as records:
            rows = (
                tuple(row[name] for name in names)
                for row in _rows(records, partition)
                if all(_holds(one, row, partition.queues) for one in self._conditions)
            )
            sized = [at for at, field in enumerate(schema) if field.type == pa.binary()]
            for some in portions(rows, sized):
                columns = zip(*some, strict=True)
                arrays = [pa.array(v, f.type) for v, f in zip(columns, schema, strict=True)]
                batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
                yield from decoder.decode_in_parts(batch)


def _type(name: str) -> pa.DataType:
    return pa.binary() if name == "body_record" else column(name).type


def _rows(records: "_Records", partition: FilePartition) -> Iterator[dict[str, Any]]:
    body = records.read(partition.body) if partition.body is not None else None
    for position in partition.positions():
        found = records.read(position)
        if found is None:
            continue
        record, payload = found
        if record.queue_id is None:
            body = found
        is_reference = record.user_record_type == UserRecordType.ADD_REF
        mine = is_reference and body is not None and body[0].seq == record.id
        yield {
            "seq": record.seq,
            "id": record.id,
            # What is live is committed, whatever it was written as.
            "record_type": int(RecordType.ADD_RECORD),
            "user_record_type": record.user_record_type,
            "tx_id": None,
            "queue_id": record.queue_id,
            "epoch": record.epoch,
            "written_at": None,
            "record": payload,
            "size": len(payload),
            "body_record": body[1] if mine and body is not None else None,
        }


_COMPARISONS: Final = {
    "<": operator.lt,
    "<=": operator.le,
    "=": operator.eq,
    ">=": operator.ge,
    ">": operator.gt,
}


def _holds(condition: Condition, row: Mapping[str, Any], queues: Mapping[int, str]) -> bool:
    if condition.column == "queue":
        return queues.get(row["queue_id"]) in condition.values
    value = row[condition.column]
    if condition.operator == "IN":
        return value in condition.values
    return value is not None and bool(_COMPARISONS[condition.operator](value, condition.values[0]))


class _Records:
    """Reads records at their known position, or where they have moved to."""

    def __init__(self, reference: FileReference, files: Mapping[int, tuple[str, Mark]]) -> None:
        self._reference = reference
        self._files = files
        self._open: dict[int, int | None] = {}
        self._contents: Contents | None = None

    def read(self, position: Position) -> tuple[Scanned, bytes] | None:
        """Return a record and its payload; None if it was deleted meanwhile.

        Raises JournalError.
        """
        _, mark = self._files[position.file_id]
        found = self._read(position, self._file(position.file_id), mark)
        if found is not None and found[0].is_intact(found[1]):
            return found
        for _ in range(_ATTEMPTS):
            if self._contents is None:
                self._contents = read_files(self._reference)
            moved = self._contents.messages.find(position.seq)
            if moved is None:
                return None
            again = self._read_moved(moved, self._contents)
            if again is not None:
                # The decoder reports a damaged record.
                return again
            self._contents = None
        raise JournalDamaged(
            f"the record of seq {position.seq} is moved faster than it can be read"
        )

    def _file(self, file_id: int) -> int | None:
        if file_id not in self._open:
            path, _ = self._files[file_id]
            try:
                self._open[file_id] = os.open(path, os.O_RDONLY)
            except FileNotFoundError:
                self._open[file_id] = None
        return self._open[file_id]

    def _read(
        self, position: Position, file: int | None, mark: Mark
    ) -> tuple[Scanned, bytes] | None:
        if file is None:
            return None
        with io_errors("read a journal file"):
            # Not mapped: a node may truncate the file meanwhile.
            data = os.pread(file, RECORD_BYTES + position.size, position.offset)
        record = parse(data, position.offset, mark, position.offset)
        if record is None or record.seq != position.seq:
            return None
        return record, record.payload(data, position.offset)

    def _read_moved(self, position: Position, contents: Contents) -> tuple[Scanned, bytes] | None:
        for found in contents.message_files.counting:
            if found.file_id == position.file_id:
                with contextlib.suppress(FileNotFoundError), found.path.open("rb") as file:
                    return self._read(position, file.fileno(), found.header.mark)
        return None

    def close(self) -> None:
        """Close the files."""
        for file in self._open.values():
            if file is not None:
                os.close(file)


class FileBindingsReader(DataSourceReader):
    """Reads the bindings of a file journal whole."""

    def __init__(self, reference: FileReference) -> None:
        self._reference = reference

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:  # noqa: ARG002
        """Yield every binding; raises JournalError."""
        rows = stored_bindings(self._reference)
        schema = pa.schema([(name, column(name).type) for name in BINDING_COLUMNS])
        yield decode_bindings(pa.RecordBatch.from_pylist(rows, schema=schema))


def stored_bindings(reference: FileReference) -> list[dict[str, Any]]:
    """Return the bindings as they are stored, the counter among them; raises JournalError."""
    contents = read_files(reference)
    return [_binding_row(contents, *found) for found in contents.bindings.records.values()]


BINDING_COLUMNS: Final = ("seq", "id", "user_record_type", "epoch", "written_at", "record")


def _binding_row(contents: Contents, position: Position, added: Added) -> dict[str, Any]:
    found = contents.file_of(position)
    path = found.path
    with io_errors(f"read {path}"), path.open("rb") as file:
        data = os.pread(file.fileno(), RECORD_BYTES + position.size, position.offset)
    record = parse(data, position.offset, found.header.mark, position.offset)
    if record is None:
        raise JournalDamaged(f"{path}: no record at byte {position.offset} any more; try again")
    return {
        "seq": position.seq,
        "id": added.row_id,
        # What is live is committed, whatever it was written as.
        "record_type": int(RecordType.ADD_RECORD),
        "user_record_type": added.user_record_type,
        "queue_id": record.queue_id,
        "epoch": record.epoch,
        "record": record.payload(data, position.offset),
    }


def _queue_names(contents: Contents) -> dict[int, str]:
    names: dict[int, str] = {}
    for position, added in contents.bindings.records.values():
        if added.user_record_type == UserRecordType.QUEUE_BINDING:
            payload = read_payload(contents.file_of(position), position)
            names[position.seq] = decode_queue_binding(payload, position.seq).name
    return names
