"""One instance of the journal, messages or bindings: its files while they are written.

Two threads use it: the journal's writer writes and rolls, the keeper prepares files, reclaims and
compacts. ``lock`` guards the index and the lists of files, and is never held during a sync.

What destroys something (a file used again, removed, replaced) is done in this order: what makes it
dead is durable, then the fence is asked, then it is destroyed. So a successor either has not begun
to read, or reads that it is dead.
"""

import errno
import logging
import os
import threading
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Final

from orthia.config.settings import FileStoreSettings
from orthia.journal.errors import JournalDamaged
from orthia.journal.file import disk
from orthia.journal.file.disk import io_errors
from orthia.journal.file.fence import Fence
from orthia.journal.file.format import (
    HEADER_BYTES,
    LAST_OF_SYNC,
    MAX_FILE_ID,
    RECORD_BYTES,
    FileHeader,
    Kind,
    Record,
    Scanned,
    Seal,
    encode_head,
    encode_header,
    encode_messages,
    encode_record,
    encode_seal,
    parse,
)
from orthia.journal.file.index import BindingIndex, MessageIndex, Position
from orthia.journal.file.recovery import (
    COMPACTED,
    UNFINISHED,
    Control,
    FoundFile,
    Listing,
    control_path,
    publish_outputs,
    retire_replaced,
    under_way,
    write_control,
)
from orthia.journal.file.writing import Opener, OpenFile
from orthia.journal.records import RecordType
from orthia.journal.unit import AppendedMessage

LOGGER = logging.getLogger("orthia.journal")
_COPY_BYTES: Final = 1024 * 1024


@dataclass(frozen=True)
class _Closed:
    """A file that is not written any more."""

    path: Path
    header: FileHeader
    size: int
    is_own: bool
    """Whether this generation made it: only such a file is used again."""
    order: int = 0
    """Where it stands among the others, once it is sealed."""


@dataclass(frozen=True)
class _Current:
    file: OpenFile
    header: FileHeader
    size: int


class JournalFiles:
    """The files of one instance under one generation; raises JournalIOError and Fenced."""

    def __init__(
        self,
        directory: Path,
        kind: Kind,
        index: MessageIndex | BindingIndex,
        s: FileStoreSettings,
        fence: Fence,
        open_file: Opener,
        *,
        generation: int,
        token: int,
    ) -> None:
        self.directory = directory
        self.kind = kind
        self.index = index
        self.lock = threading.RLock()
        self.unresolved = 0
        """Transactions that are prepared and not resolved: no file is given up meanwhile."""
        self._settings = s
        self._fence = fence
        self._open_file = open_file
        self._generation = generation
        self._token = token
        self._closed: dict[int, _Closed] = {}
        self._free: deque[_Closed] = deque()
        self._current: _Current | None = None
        self._next_id = 1
        self._order = 1
        self._offset = HEADER_BYTES
        self._sync = 1
        self._compacts = True
        self._has_room = True

    # --- opening and closing

    def start(self, listing: Listing) -> None:
        """Take over the files that were found, and begin one of our own."""
        for found in listing.counting:
            self._closed[found.file_id] = _closed(found)
        self._next_id = listing.highest_id + 1
        self._order = listing.highest_order + 1
        self._current = self._begin(self._take_free(0))

    def discard(self, listing: Listing) -> None:
        """Remove what does not count; called once the generation is complete."""
        with io_errors(f"tidy {self.directory}"):
            for path in (*listing.leftovers, *(found.path for found in listing.stale)):
                disk.remove(path)
            disk.sync_directory(self.directory)

    def close(self, *, seal: bool) -> None:
        """Close the file that is written, and seal it if what it holds is known."""
        current, self._current = self._current, None
        if current is None:
            return
        try:
            if seal:
                self._seal(current)
        finally:
            current.file.close()

    # --- the writer

    @property
    def file_id(self) -> int:
        """The file that is written."""
        return self._running().header.file_id

    @property
    def room(self) -> int:
        """How many bytes fit into the file that is written."""
        return self._running().size - self._offset

    @property
    def free_bytes(self) -> int:
        """Bytes of the files that are there to be written; any thread."""
        with self.lock:
            running = self._current
            room = 0 if running is None else running.size - self._offset
            return room + sum(one.size for one in self._free)

    def roll(self, size: int) -> None:
        """Go on in another file, with room for ``size`` bytes."""
        current = self._running()
        self._seal(current)
        current.file.close()
        following = self._begin(self._take_free(size))
        with self.lock:
            closed = _Closed(
                current.file.path, current.header, current.size, is_own=True, order=self._order
            )
            self._closed[current.header.file_id] = closed
            self._current = following
            self._order += 1

    def write(self, records: Sequence[Record], *, sync: bool) -> list[int]:
        """Write records and return the offset of each; durable if ``sync``.

        They fit, as ``has_room`` says, and are not in the index yet. The fence is asked before the
        write and after the sync.
        """
        parts: list[bytes] = []
        offsets: list[int] = []
        at, last = self._offset, len(records) - 1
        for number, record in enumerate(records):
            flags = LAST_OF_SYNC if sync and number == last else 0
            parts.append(encode_record(record, self.file_id, self._sync, flags))
            parts.append(record.payload)
            offsets.append(at)
            at += RECORD_BYTES + len(record.payload)
        self._write(parts, at, sync=sync)
        return offsets

    def write_messages(
        self,
        messages: Sequence[AppendedMessage],
        sizes: Sequence[int],
        epoch: int,
        *,
        sync: bool,
    ) -> list[int]:
        """As ``write``, for messages of one queue each, whose payloads have these ``sizes``."""
        offsets = list(accumulate([RECORD_BYTES + size for size in sizes], initial=self._offset))
        parts = encode_messages(messages, sizes, self.file_id, self._sync, epoch, is_end=sync)
        self._write(parts, offsets.pop(), sync=sync)
        return offsets

    def _write(self, parts: list[bytes], end: int, *, sync: bool) -> None:
        self._fence.check()
        file = self._running().file
        file.write(self._offset, b"".join(parts))
        self._offset = end
        if sync:
            file.sync()
            self._sync += 1
        self._fence.check()

    def _running(self) -> _Current:
        if self._current is None:
            raise RuntimeError(f"the {self.kind.name.lower()} journal is not open")
        return self._current

    def _seal(self, current: _Current) -> None:
        """Make all of a file durable, then say where it ends."""
        current.file.sync()
        self._fence.check()
        with (
            io_errors(f"seal {current.file.path}"),
            current.file.path.open("r+b", buffering=0) as file,
        ):
            disk.seal(file.fileno(), encode_seal(Seal(self._offset, self._order)))

    def _begin(self, closed: _Closed) -> _Current:
        self._offset, self._sync = HEADER_BYTES, 1
        return _Current(self._open_file(closed.path), closed.header, closed.size)

    # --- files to be written

    def _take_free(self, size: int) -> _Closed:
        """Return a file for ``size`` bytes: the next one that is prepared, if it is large enough.

        A unit larger than ``journal-file-size`` has a file of its own size.
        """
        needed = HEADER_BYTES + size
        if needed <= self._settings.journal_file_size:
            with self.lock:
                if self._free:
                    return self._free.popleft()
        return self._create(max(needed, self._settings.journal_file_size))

    def _create(self, size: int) -> _Closed:
        with io_errors(f"create a file in {self.directory}"):
            while True:
                header = self._next_header()
                path = self.directory / self.kind.file_name(header.file_id)
                unfinished = under_way(path, self._generation, UNFINISHED)
                disk.create(unfinished, size, encode_header(header))
                if disk.rename_if_free(unfinished, path):
                    disk.sync_directory(self.directory)
                    return _Closed(path, header, size, is_own=True)
                disk.remove(unfinished)

    def _next_header(self) -> FileHeader:
        with self.lock:
            file_id, self._next_id = self._next_id, self._next_id + 1
        if file_id > MAX_FILE_ID:
            raise JournalDamaged(f"{self.directory} has used up its {MAX_FILE_ID} file numbers")
        return FileHeader(self.kind, file_id, self._generation, self._token)

    def prepare(self, wanted: int) -> None:
        """Have ``wanted`` files ready to be written; raises NoRoomOnDisk if there is no room."""
        while True:
            with self.lock:
                if len(self._free) >= wanted:
                    self._has_room = True
                    return
            try:
                created = self._create(self._settings.journal_file_size)
            except disk.NoRoomOnDisk:
                self._has_room = False
                raise
            with self.lock:
                self._free.append(created)

    @property
    def is_out_of_room(self) -> bool:
        """Whether there is no file to go on in, and none can be made.

        What is left of the one that is written is for deletes then, which make room.
        """
        return not self._has_room and not self._free

    def reserve(self, sizes: Iterable[int]) -> None:
        """Have room for changes of these sizes before any is written; raises NoRoomOnDisk.

        A change is whole in one file; one that is larger than files are has one of its own.
        """
        room, files, usual = self.room, 0, self._settings.journal_file_size - HEADER_BYTES
        for size in sizes:
            if size > usual:
                self._refuse_if_too_large(size)
                room = 0
            elif size > room:
                files, room = files + 1, usual
            room -= min(size, room)
        missing = files - len(self._free)
        # Twice as much: others write to the disk, too.
        if missing > 0 and self._free_on_disk() < 2 * missing * self._settings.journal_file_size:
            self.prepare(files)

    def _refuse_if_too_large(self, size: int) -> None:
        if self._free_on_disk() < size + HEADER_BYTES:
            with io_errors(f"create a file of {size} bytes in {self.directory}"):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _free_on_disk(self) -> int:
        with io_errors(f"look at the disk of {self.directory}"):
            status = os.statvfs(self.directory)
        return status.f_bavail * status.f_frsize

    # --- files that are not needed any more

    def reclaim(self) -> int:
        """Use again, or remove, what nothing needs; return how many files that were.

        In rounds: a file whose deletes were needed goes only when those whose records it deletes
        are durably gone, or a crash could bring these back alone.
        """
        count = 0
        while True:
            with self.lock:
                unneeded = [
                    (file_id, closed)
                    for file_id, closed in self._closed.items()
                    if not self.unresolved and not self.index.is_needed(file_id)
                ]
            if not unneeded:
                return count
            count += len(unneeded)
            self._fence.check()
            with io_errors(f"reclaim files of {self.directory}"):
                again: list[Path] = []
                for _, one in unneeded:
                    unfinished = self._retire(one, ready=len(self._free) + len(again))
                    if unfinished is not None:
                        again.append(unfinished)
                disk.sync_directory(self.directory)
                with self.lock:
                    for file_id, _ in unneeded:
                        del self._closed[file_id]
                        self.index.forget_file(file_id)
                for unfinished in again:
                    self._use_again(unfinished)

    def _retire(self, closed: _Closed, *, ready: int) -> Path | None:
        """Have a file's name go; return where it waits to be used again, if it does.

        There are ``ready`` files already, or soon.
        """
        limit = self._settings.journal_pool_files
        is_usual = closed.size == self._settings.journal_file_size
        if not closed.is_own or not is_usual or 0 <= limit <= ready:
            disk.remove(closed.path)
            return None
        unfinished = under_way(closed.path, self._generation, UNFINISHED)
        disk.rename(closed.path, unfinished)
        return unfinished

    def _use_again(self, unfinished: Path) -> None:
        while True:
            header = self._next_header()
            disk.rewrite_header(unfinished, encode_header(header))
            path = self.directory / self.kind.file_name(header.file_id)
            if disk.rename_if_free(unfinished, path):
                break
        disk.sync_directory(self.directory)
        closed = _Closed(path, header, self._settings.journal_file_size, is_own=True)
        with self.lock:
            self._free.append(closed)

    # --- compaction

    def wants_compaction(self) -> bool:
        """Return whether there are enough files and little enough in them."""
        s = self._settings
        with self.lock:
            if not self._compacts or self.unresolved or s.journal_compact_min_files <= 0:
                return False
            if len(self._closed) < s.journal_compact_min_files:
                return False
            live = self.index.live_bytes(self._closed)
            size = sum(closed.size for closed in self._closed.values())
            return live * 100 < size * s.journal_compact_percentage

    def compact(self) -> int:
        """Copy what is live in the closed files into new ones; return how many files that freed.

        Appending goes on meanwhile: what is deleted while it is copied is deleted by records in
        files that stay. Raises JournalDamaged, once, for a record that cannot be copied.
        """
        with self.lock:
            if self.unresolved or not self._closed:
                return 0
            old = list(self._closed.values())
            positions = self.index.begin_move([closed.header.file_id for closed in old])
        try:
            outputs = self._copy(old, positions)
            self._publish(old, outputs)
        finally:
            with self.lock:
                self.index.abandon_move()
        return len(old) - len(outputs)

    def _copy(
        self, old: Sequence[_Closed], positions: Sequence[Position]
    ) -> list[tuple[_Closed, list[Position]]]:
        order = min(closed.order for closed in old)
        sources = {closed.header.file_id: closed.path for closed in old}
        outputs: list[tuple[_Closed, list[Position]]] = []
        output: _Output | None = None
        with io_errors(f"compact {self.directory}"), _Sources(sources) as reading:
            for position in positions:
                record, payload = self._read(reading, position)
                if output is None or not output.has_room(len(payload)):
                    if output is not None:
                        outputs.append(output.finish(order))
                    header = self._next_header()
                    size = HEADER_BYTES + RECORD_BYTES + len(payload)
                    path = self.directory / self.kind.file_name(header.file_id)
                    output = _Output(path, header, max(size, self._settings.journal_file_size))
                output.add(position, record, payload)
            if output is not None:
                outputs.append(output.finish(order))
        return outputs

    def _read(self, reading: "_Sources", position: Position) -> tuple[Scanned, bytes]:
        data = reading.read(position.file_id, position.offset, RECORD_BYTES + position.size)
        record = parse(data, position.offset, position.file_id, position.offset)
        if record is None or record.seq != position.seq:
            self._compacts = False
            raise JournalDamaged(
                f"{reading.path(position.file_id)} is damaged at byte {position.offset}, where the"
                f" record with seq {position.seq} was; it is not compacted"
            )
        return record, record.payload(data, position.offset)

    def _publish(
        self, old: Sequence[_Closed], outputs: Sequence[tuple[_Closed, list[Position]]]
    ) -> None:
        new_ids = [closed.header.file_id for closed, _ in outputs]
        old_ids = [closed.header.file_id for closed in old]
        newest = max(new_ids, default=max(old_ids))
        path = control_path(self.directory, self.kind, self._generation, newest)
        control = Control(path, self._generation, new_ids, old_ids)
        with io_errors(f"compact {self.directory}"):
            # What the control file names must have its name before that one has.
            disk.sync_directory(self.directory)
            self._fence.check()
            write_control(control.path, control)
            self._fence.check()
            publish_outputs(self.directory, self.kind, control)
            with self.lock:
                for file_id in old_ids:
                    del self._closed[file_id]
                compacted = {closed.header.file_id: closed for closed, _ in outputs}
                self._closed = {**compacted, **self._closed}
                self.index.finish_move(
                    [(closed.header.file_id, moved) for closed, moved in outputs], old_ids
                )
            retire_replaced(self.directory, self.kind, control)

    # --- reading

    def open_for_reading(self, file_id: int) -> int:
        """Return a descriptor of a file; under ``lock``, while the index names it."""
        current = self._current
        if current is not None and current.header.file_id == file_id:
            path = current.file.path
        else:
            path = self._closed[file_id].path
        with io_errors(f"read {path}"):
            return os.open(path, os.O_RDONLY | os.O_CLOEXEC)


class _Sources:
    """Descriptors of files that are copied from."""

    def __init__(self, paths: dict[int, Path]) -> None:
        self._paths = paths
        self._open: tuple[int, int] | None = None

    def path(self, file_id: int) -> Path:
        return self._paths[file_id]

    def read(self, file_id: int, offset: int, size: int) -> bytes:
        if self._open is None or self._open[0] != file_id:
            self._close()
            descriptor = os.open(self._paths[file_id], os.O_RDONLY | os.O_CLOEXEC)
            self._open = (file_id, descriptor)
        return os.pread(self._open[1], size, offset)

    def _close(self) -> None:
        if self._open is not None:
            os.close(self._open[1])
            self._open = None

    def __enter__(self) -> "_Sources":
        return self

    def __exit__(self, *_: object) -> None:
        self._close()


class _Output:
    """A compacted file on its way; it has its name only once all of the compaction is durable."""

    def __init__(self, path: Path, header: FileHeader, size: int) -> None:
        self._path = path
        self._header = header
        self._size = size
        unfinished = under_way(path, header.generation, COMPACTED)
        disk.create(unfinished, 0, encode_header(header))
        self._descriptor = os.open(unfinished, os.O_RDWR | os.O_CLOEXEC)
        self._written = self._end = HEADER_BYTES
        self._parts: list[bytes] = []
        self._positions: list[Position] = []

    def has_room(self, payload_size: int) -> bool:
        return self._end + RECORD_BYTES + payload_size <= self._size

    def add(self, position: Position, record: Scanned, payload: bytes) -> None:
        """Copy a record; a payload that is damaged stays so, with the checksum it had."""
        file_id = self._header.file_id
        plain = record.as_record(b"")._replace(record_type=RecordType.ADD_RECORD, tx_id=0)
        head = encode_head(plain, record.payload_size, record.payload_checksum, file_id, 1, 0)
        self._parts += (head, payload.ljust(record.payload_size, b"\0"))
        self._positions.append(position._replace(file_id=file_id, offset=self._end))
        self._end += RECORD_BYTES + record.payload_size
        if self._end - self._written > _COPY_BYTES:
            self._flush()

    def finish(self, order: int) -> tuple[_Closed, list[Position]]:
        """Make it durable and sealed."""
        try:
            self._flush()
            os.fsync(self._descriptor)
            disk.seal(self._descriptor, encode_seal(Seal(self._end, order)))
        finally:
            os.close(self._descriptor)
        # What it holds, not how large it could be: so much is what the next compaction saves.
        closed = _Closed(self._path, self._header, self._end, is_own=True, order=order)
        return closed, self._positions

    def _flush(self) -> None:
        disk.write_all(self._descriptor, b"".join(self._parts), self._written)
        self._written = self._end
        self._parts.clear()


def _closed(found: FoundFile) -> _Closed:
    order = found.seal.order if found.seal else 0
    return _Closed(found.path, found.header, found.size, is_own=False, order=order)
