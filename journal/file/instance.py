"""One instance of the journal, messages or bindings: its files while they are written.

Two threads use it: the journal's writer writes and rolls, the keeper prepares files, reclaims and
compacts. ``lock`` guards the index and the lists of files, and is never held during a sync.

What destroys something (a file used again, removed, replaced) is done in this order: what makes it
dead is durable, then the fence is asked, then it is destroyed. So a successor either has not begun
to read, or reads that it is dead.
"""

import logging
import os
import threading
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

from orthia.config.clock import monotonic_seconds
from orthia.config.store_settings import FileStoreSettings
from orthia.journal.errors import JournalError
from orthia.journal.file import disk
from orthia.journal.file.compaction import Compaction, Output
from orthia.journal.file.disk import io_errors
from orthia.journal.file.fence import Fence
from orthia.journal.file.format import (
    HEADER_BYTES,
    LAST_OF_SYNC,
    RECORD_BYTES,
    Kind,
    Mark,
    Record,
    Seal,
    encode_messages,
    encode_record,
    encode_seal,
)
from orthia.journal.file.free_files import FreeFiles
from orthia.journal.file.index import BindingIndex
from orthia.journal.file.journal_file import JournalFile
from orthia.journal.file.message_index import MessageIndex
from orthia.journal.file.recovery import Listing
from orthia.journal.file.writing import Opener, OpenFile
from orthia.journal.model.unit import AppendedMessage

LOGGER = logging.getLogger("orthia.journal")
_COMPACT_AGAIN_SECONDS = 60.0


@dataclass(frozen=True)
class _Running:
    """The file that is written."""

    file: OpenFile
    made: JournalFile


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
        """How many transactions are in doubt; while there are any, no file is removed."""
        self._settings = s
        self._fence = fence
        self._open_file = open_file
        self._generation = generation
        self._closed: dict[int, JournalFile] = {}
        self._free = FreeFiles(directory, kind, s, self.lock, generation=generation, token=token)
        self._current: _Running | None = None
        self._order = 1
        self._offset = HEADER_BYTES
        self._sync = 1
        self._compacts = True
        self._published: Compaction | None = None
        """A compaction that is not carried out yet: nothing else is done to closed files before."""
        self._compacts_again_seconds = 0.0
        self._retired: list[tuple[int, Path | None]] = []
        """Files that were removed, and may be back after a power failure."""
        self._again: list[Path] = []
        """Those of them that wait to be reused."""

    # --- opening and closing

    def start(self, listing: Listing) -> None:
        """Take over the files that were found, and begin one of our own."""
        for found in listing.counting:
            self._closed[found.file_id] = JournalFile.of(found)
        self._free.next_id = listing.highest_id + 1
        self._order = listing.highest_order + 1
        free = self._free.take(0)
        self._go_on_in(_Running(self._open_file(free.path), free))

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
        return self._running().made.file_id

    @property
    def room(self) -> int:
        """How many bytes fit into the file that is written."""
        return self._running().made.size - self._offset

    @property
    def free_bytes(self) -> int:
        """Bytes of the files that are there to be written; any thread."""
        with self.lock:
            running = self._current
            room = 0 if running is None else running.made.size - self._offset
            return room + self._free.size

    def roll(self, size: int) -> None:
        """Go on in another file, with room for ``size`` bytes."""
        current = self._running()
        with ExitStack() as undo:
            # Before anything else: if that fails, the present file stays in use.
            free = self._free.take(size)
            following = _Running(self._open_file(free.path), free)
            undo.callback(following.file.close)
            self._seal(current)
            undo.pop_all()
        with self.lock:
            self._closed[current.made.file_id] = current.made.sealed(self._order)
            self._go_on_in(following)
            self._order += 1
        current.file.close()

    def write(self, records: Sequence[Record], *, sync: bool) -> list[int]:
        """Write records and return the offset of each; durable if ``sync``.

        They fit, as ``has_room`` says, and are not in the index yet. The fence is asked before the
        write and after the sync.
        """
        parts: list[bytes] = []
        offsets: list[int] = []
        at, last = self._offset, len(records) - 1
        mark = self._running().made.header.mark
        for number, record in enumerate(records):
            flags = LAST_OF_SYNC if sync and number == last else 0
            parts.append(encode_record(record, mark, self._sync, flags))
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
        mark = self._running().made.header.mark
        parts = encode_messages(messages, sizes, mark, self._sync, epoch, is_end=sync)
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

    def _running(self) -> _Running:
        if self._current is None:
            raise RuntimeError(f"the {self.kind.name.lower()} journal is not open")
        return self._current

    def _seal(self, current: _Running) -> None:
        """Make all of a file durable, then say where it ends."""
        current.file.sync()
        self._fence.check()
        with (
            io_errors(f"seal {current.made.path}"),
            current.made.path.open("r+b", buffering=0) as file,
        ):
            disk.seal(file.fileno(), encode_seal(Seal(self._offset, self._order)))

    def _go_on_in(self, following: _Running) -> None:
        self._offset, self._sync = HEADER_BYTES, 1
        self._current = following

    # --- room

    def prepare(self, wanted: int) -> None:
        """Prepare files until ``wanted`` are ready; raises NoRoomOnDisk if there is no room."""
        self._free.prepare(wanted)

    @property
    def is_out_of_room(self) -> bool:
        """Whether there is no file to go on in, and none can be made.

        What is left of the one that is written is for deletes then, which make room.
        """
        return not self._free.has_room and not self._free

    def reserve(self, sizes: Iterable[int]) -> None:
        """Ensure room for changes of these sizes before any is written; raises NoRoomOnDisk.

        A change is whole in one file; one that is larger than files are has one of its own.
        """
        self._free.reserve(sizes, self.room)

    # --- files that are not needed any more

    def reclaim(self) -> int:
        """Reuse or remove the files that nothing needs; return how many.

        In rounds: a file with deletes goes only once the files whose records it deletes are durably
        gone, or a crash could bring these back alone. After a failure the next call continues where
        this one stopped.
        """
        self._carry_out()
        count = 0
        while True:
            with self.lock:
                unneeded = [
                    closed
                    for closed in self._closed.values()
                    if not self.unresolved and not self.index.is_needed(closed.file_id)
                ]
            if not (unneeded or self._retired or self._again):
                return count
            self._fence.check()
            with io_errors(f"reclaim files of {self.directory}"):
                for closed in unneeded:
                    coming = len(self._again) + sum(path is not None for _, path in self._retired)
                    unfinished = self._free.retire(closed, ready=len(self._free) + coming)
                    with self.lock:
                        del self._closed[closed.file_id]
                    self._retired.append((closed.file_id, unfinished))
                count += self._forget_retired()
                while self._again:
                    self._free.use_again(self._again.pop())

    def _forget_retired(self) -> int:
        """Make durable that files are gone, forget them, and return how many; raises OSError.

        Until then what is deleted in them is needed: a power failure may bring them back.
        """
        disk.sync_directory(self.directory)
        retired, self._retired = self._retired, []
        with self.lock:
            for file_id, _ in retired:
                self.index.forget_file(file_id)
        self._again += [unfinished for _, unfinished in retired if unfinished is not None]
        return len(retired)

    # --- compaction

    def wants_compaction(self) -> bool:
        """Return whether there are enough files and little enough in them."""
        s = self._settings
        with self.lock:
            if not self._compacts or self.unresolved or s.journal_compact_min_files <= 0:
                return False
            if self.puts_off_compaction:
                return False
            if len(self._closed) < s.journal_compact_min_files:
                return False
            live = self.index.live_bytes(self._closed)
            size = sum(closed.size for closed in self._closed.values())
            return live * 100 < size * s.journal_compact_percentage

    @property
    def puts_off_compaction(self) -> bool:
        """Whether a compaction failed a short time ago: each attempt reads and writes a lot."""
        return monotonic_seconds() < self._compacts_again_seconds

    def compact(self) -> int:
        """Copy what is live in the closed files into new ones; return how many files that freed.

        Appending goes on meanwhile: what is deleted while it is copied is deleted by records in
        files that stay. Raises JournalDamaged, once, for a record that cannot be copied.
        """
        self._carry_out()
        if self._retired:
            with io_errors(f"compact {self.directory}"):
                self._forget_retired()
        with self.lock:
            if self.unresolved or not self._closed:
                return 0
            old = list(self._closed.values())
            positions = self.index.begin_move([closed.file_id for closed in old])
        compaction = Compaction(
            self.directory,
            self.kind,
            old,
            generation=self._generation,
            file_size=self._settings.journal_file_size,
            next_header=self._free.next_header,
        )
        try:
            with io_errors(f"compact {self.directory}"):
                compaction.copy(positions)
                compaction.publish(self._fence)
        except JournalError:
            if not compaction.is_published:
                compaction.abandon()
                self._compacts_again_seconds = monotonic_seconds() + _COMPACT_AGAIN_SECONDS
            raise
        finally:
            self._compacts = self._compacts and not compaction.met_damage
            if compaction.is_published:
                self._published = compaction
            else:
                with self.lock:
                    self.index.abandon_move()
        self._carry_out()
        return len(old) - len(compaction.outputs)

    def _carry_out(self) -> None:
        """Finish a compaction that was published.

        A failure is retried, since there is no way back: the next node that opens the journal would
        carry it out too.
        """
        if self._published is not None:
            with io_errors(f"compact {self.directory}"):
                self._published.carry_out(self._fence, self._replace)
            self._published = None

    def _replace(self, old: Sequence[JournalFile], outputs: Sequence[Output]) -> None:
        """Replace old files with new ones, which are published."""
        old_ids = [closed.file_id for closed in old]
        with self.lock:
            for file_id in old_ids:
                del self._closed[file_id]
            compacted = {closed.file_id: closed for closed, _ in outputs}
            self._closed = {**compacted, **self._closed}
            self.index.finish_move([(closed.file_id, moved) for closed, moved in outputs], old_ids)

    # --- reading

    def open_for_reading(self, file_id: int) -> tuple[int, Mark]:
        """Return a descriptor of a file, and the mark of its records.

        Under ``lock``, while the index names it.
        """
        current = self._current
        if current is not None and current.made.file_id == file_id:
            made = current.made
        else:
            made = self._closed[file_id]
        with io_errors(f"read {made.path}"):
            return os.open(made.path, os.O_RDONLY | os.O_CLOEXEC), made.header.mark
