"""Compaction: copies the live records of closed files into new files, which replace them.

The rename of the control file commits a compaction: a node that opens the journal after it carries
out the rest, and one that opens it before finds nothing of it. A node that meets an error after the
rename also carries out the rest, before it does anything else to the files.
"""

import contextlib
import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final, TypeAlias

from orthia.journal.errors import JournalDamaged
from orthia.journal.file import disk
from orthia.journal.file.control import (
    COMPACTED,
    Control,
    control_path,
    publish_outputs,
    retire_replaced,
    under_way,
    write_control,
)
from orthia.journal.file.fence import Fence
from orthia.journal.file.format import (
    HEADER_BYTES,
    RECORD_BYTES,
    FileHeader,
    Kind,
    Scanned,
    Seal,
    encode_head,
    encode_header,
    encode_seal,
    parse,
)
from orthia.journal.file.index import Position
from orthia.journal.file.journal_file import JournalFile
from orthia.journal.model.records import RecordType

_COPY_BYTES: Final = 1024 * 1024

Output: TypeAlias = tuple[JournalFile, list[Position]]
"""A new file, and where in it the records stand."""


class Compaction:
    """Replaces the ``old`` files of one instance; raises OSError, Fenced."""

    def __init__(
        self,
        directory: Path,
        kind: Kind,
        old: Sequence[JournalFile],
        *,
        generation: int,
        file_size: int,
        next_header: Callable[[], FileHeader],
    ) -> None:
        self._directory = directory
        self._kind = kind
        self._old = old
        self._generation = generation
        self._file_size = file_size
        self._next_header = next_header
        self.met_damage = False
        """Whether there is a record that cannot be copied."""
        self.outputs: list[Output] = []
        """The new files, once all is copied."""
        self.is_published = False
        """Whether it must be carried out, by this node or the next that opens the journal."""
        self._has_effect = False
        self._made: list[Path] = []

    def copy(self, positions: Sequence[Position]) -> None:
        """Copy the records at ``positions`` into new files, which have no names yet.

        Raises JournalDamaged for a record that cannot be copied.
        """
        order = min(closed.order for closed in self._old)
        sources = {closed.file_id: closed for closed in self._old}
        outputs: list[Output] = []
        output: _Copy | None = None
        with _Sources(sources) as reading, ExitStack() as closing:
            for position in positions:
                record, payload = self._read(reading, position)
                if output is None or not output.has_room(len(payload)):
                    if output is not None:
                        outputs.append(output.finish(order))
                    header = self._next_header()
                    size = HEADER_BYTES + RECORD_BYTES + len(payload)
                    path = self._directory / self._kind.file_name(header.file_id)
                    self._made.append(under_way(path, self._generation, COMPACTED))
                    output = _Copy(path, self._made[-1], header, max(size, self._file_size))
                    closing.callback(output.close)
                output.add(position, record, payload)
            if output is not None:
                outputs.append(output.finish(order))
        self.outputs = outputs

    def abandon(self) -> None:
        """Remove the new files of a compaction that is not published. Never raises."""
        for path in self._made:
            with contextlib.suppress(OSError):
                disk.remove(path)

    def _read(self, reading: "_Sources", position: Position) -> tuple[Scanned, bytes]:
        source = reading.file(position.file_id)
        data = reading.read(source, position.offset, RECORD_BYTES + position.size)
        record = parse(data, position.offset, source.header.mark, position.offset)
        if record is None or record.seq != position.seq:
            self.met_damage = True
            raise JournalDamaged(
                f"{source.path} is damaged at byte {position.offset}, where the record with seq"
                f" {position.seq} was; it is not compacted"
            )
        return record, record.payload(data, position.offset)

    @property
    def _control(self) -> Control:
        new_ids = [closed.file_id for closed, _ in self.outputs]
        old_ids = [closed.file_id for closed in self._old]
        newest = max(new_ids, default=max(old_ids))
        path = control_path(self._directory, self._kind, self._generation, newest)
        return Control(path, self._generation, new_ids, old_ids)

    def publish(self, fence: Fence) -> None:
        """Say that the new files take the place of the old; look at ``is_published`` if it fails.

        Until it is carried out nothing else may become of either.
        """
        # What the control file names must have its name before that one has.
        disk.sync_directory(self._directory)
        fence.check()
        control = self._control
        self.is_published = True
        try:
            write_control(control.path, control)
        except OSError:
            self.is_published = control.path.exists()
            raise

    def carry_out(
        self,
        fence: Fence,
        take_effect: Callable[[Sequence[JournalFile], Sequence[Output]], None],
    ) -> None:
        """Replace the old files with the new ones, and remove the old.

        ``take_effect`` is called in between, while both exist. After a failure the caller calls
        this again, and it continues there; nothing else may happen to the files before.
        """
        fence.check()
        if not self._has_effect:
            publish_outputs(self._directory, self._kind, self._control)
            take_effect(self._old, self.outputs)
            self._has_effect = True
        retire_replaced(self._directory, self._kind, self._control)


class _Sources:
    """Descriptors of files that are copied from."""

    def __init__(self, files: dict[int, JournalFile]) -> None:
        self._files = files
        self._open: tuple[int, int] | None = None

    def file(self, file_id: int) -> JournalFile:
        return self._files[file_id]

    def read(self, source: JournalFile, offset: int, size: int) -> bytes:
        if self._open is None or self._open[0] != source.file_id:
            self._close()
            descriptor = os.open(source.path, os.O_RDONLY | os.O_CLOEXEC)
            self._open = (source.file_id, descriptor)
        return os.pread(self._open[1], size, offset)

    def _close(self) -> None:
        if self._open is not None:
            os.close(self._open[1])
            self._open = None

    def __enter__(self) -> "_Sources":
        return self

    def __exit__(self, *_: object) -> None:
        self._close()


class _Copy:
    """A compacted file on its way; it has its name only once all of the compaction is durable."""

    def __init__(self, path: Path, unfinished: Path, header: FileHeader, size: int) -> None:
        self._path = path
        self._header = header
        self._size = size
        disk.create(unfinished, 0, encode_header(header))
        self._file = unfinished.open("r+b", buffering=0)
        self.close = self._file.close
        self._written = self._end = HEADER_BYTES
        self._parts: list[bytes] = []
        self._positions: list[Position] = []

    def has_room(self, payload_size: int) -> bool:
        return self._end + RECORD_BYTES + payload_size <= self._size

    def add(self, position: Position, record: Scanned, payload: bytes) -> None:
        """Copy a record; a payload that is damaged stays so, with the checksum it had."""
        mark = self._header.mark
        plain = record.as_record(b"")._replace(record_type=RecordType.ADD_RECORD, tx_id=0)
        head = encode_head(plain, record.payload_size, record.payload_checksum, mark, 1, 0)
        self._parts += (head, payload.ljust(record.payload_size, b"\0"))
        self._positions.append(position._replace(file_id=self._header.file_id, offset=self._end))
        self._end += RECORD_BYTES + record.payload_size
        if self._end - self._written > _COPY_BYTES:
            self._flush()

    def finish(self, order: int) -> Output:
        """Make it durable and sealed."""
        self._flush()
        os.fsync(self._file.fileno())
        disk.seal(self._file.fileno(), encode_seal(Seal(self._end, order)))
        self.close()
        # What it holds, not how large it could be: so much is what the next compaction saves.
        closed = JournalFile(self._path, self._header, self._end, is_own=True, order=order)
        return closed, self._positions

    def _flush(self) -> None:
        disk.write_all(self._file.fileno(), b"".join(self._parts), self._written)
        self._written = self._end
        self._parts.clear()
