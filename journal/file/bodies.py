"""Large bodies as files, ``<id>.msg`` in the large-messages-directory, as Artemis names them.

What refers to a body is in the journal alone; here is a copy in memory of which bodies are
referred to, made when the journal is opened and kept by the journal's writer. A file goes after the
commit of what deleted its last reference, so that no death in between can lose a body: what is
left over is found when the journal is opened next.

A node that was stopped may wake up here beside its successor, whose bodies it knows nothing of. It
looks at the fence before it removes any, and its sweep leaves alone every id that was not given out
when it opened the journal: those are its own, which it knows of, or its successor's. That is enough
even if it is stopped between the look and the removal, since what a successor finds unneeded of the
older ones is the same.
"""

import contextlib
import os
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from typing_extensions import override

from orthia.config.store_settings import FileStoreSettings
from orthia.journal.engine.abc import PIECE_BYTES, BodyStore, Piece
from orthia.journal.errors import LargeBodyError
from orthia.journal.file.disk import io_errors, make_directory, sync_directory
from orthia.journal.file.fence import Fence
from orthia.journal.model.changes import LargeReference

EXTENSION: Final = ".msg"


class LargeReferences:
    """Which bodies are needed; any thread."""

    def __init__(self, references: Iterable[LargeReference]) -> None:
        self._lock = threading.Lock()
        self._by_body: dict[int, set[int]] = {}
        self.change(references, ())

    def change(self, linked: Iterable[LargeReference], unlinked: Iterable[LargeReference]) -> None:
        """Apply the links of a durable batch."""
        with self._lock:
            for large_id, seq in linked:
                self._by_body.setdefault(large_id, set()).add(seq)
            for large_id, seq in unlinked:
                seqs = self._by_body.get(large_id)
                if seqs is not None:
                    seqs.discard(seq)
                    if not seqs:
                        del self._by_body[large_id]

    def __contains__(self, body_id: int) -> bool:
        with self._lock:
            return body_id in self._by_body


class FileBodies(BodyStore):
    """The bodies in one directory."""

    def __init__(
        self, s: FileStoreSettings, references: LargeReferences, fence: Fence, horizon: int
    ) -> None:
        """Make the directory if it is not there; raises JournalIOError.

        No id above ``horizon`` was given out before the journal was opened under ``fence``.
        """
        self._horizon = horizon
        self._directory = s.large_messages_directory
        self._sync = os.fdatasync if s.journal_datasync else None
        self._references = references
        self._open: dict[int, int] = {}
        """Descriptors of the bodies that are being written."""
        make_directory(self._directory, create=s.create_journal_dir, element="create-journal-dir")
        # A descriptor of its own: this thread may outlive the writer, which closes the other.
        self._fence = fence.another()

    def path_of(self, body_id: int) -> Path:
        """Return the file of a body."""
        return self._directory / f"{body_id}{EXTENSION}"

    @override
    def write(self, pieces: Sequence[Piece]) -> None:
        """Raises JournalIOError."""
        for body_id, position, data in pieces:
            path = self.path_of(body_id)
            with io_errors(f"write {path}"):
                descriptor = self._open.get(body_id)
                if descriptor is None:
                    flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC
                    descriptor = self._open[body_id] = os.open(path, flags, 0o640)
                written = 0
                while written < len(data):
                    at = position * PIECE_BYTES + written
                    written += os.pwrite(descriptor, memoryview(data)[written:], at)

    @override
    def finish(self, body_id: int) -> None:
        """Raises JournalIOError."""
        descriptor = self._open.pop(body_id, None)
        if descriptor is None:
            return
        with io_errors(f"sync {self.path_of(body_id)}"):
            try:
                if self._sync is not None:
                    self._sync(descriptor)
            finally:
                os.close(descriptor)
        if self._sync is not None:
            with io_errors(f"sync {self._directory}"):
                sync_directory(self._directory)

    @override
    def read(self, body_id: int, position: int) -> bytes:
        """Raises JournalIOError too."""
        path = self.path_of(body_id)
        with io_errors(f"read {path}"):
            try:
                descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                raise LargeBodyError(f"the large message body {path} is missing") from None
            try:
                data = os.pread(descriptor, PIECE_BYTES, position * PIECE_BYTES)
            finally:
                os.close(descriptor)
        if not data:
            raise LargeBodyError(f"the large message body {path} ends too early")
        return data

    @override
    def sweep(
        self,
        after_id: int,
        limit: int,
    ) -> tuple[list[int], int | None]:
        """Look at the whole directory. Raises Fenced, JournalIOError."""
        with io_errors(f"list {self._directory}"):
            found = list_bodies(self._directory)
        self._fence.check()
        older = (body_id for body_id in found if body_id <= self._horizon)
        return [body_id for body_id in older if body_id not in self._references], None

    @override
    def remove(self, body_id: int) -> bool:
        """Raises Fenced, JournalIOError."""
        if body_id in self._references:
            return True
        self._fence.check()
        descriptor = self._open.pop(body_id, None)
        if descriptor is not None:
            os.close(descriptor)
        path = self.path_of(body_id)
        with io_errors(f"remove {path}"), contextlib.suppress(FileNotFoundError):
            path.unlink()
        return True

    @override
    def close(self) -> None:
        for descriptor in self._open.values():
            with contextlib.suppress(OSError):
                os.close(descriptor)
        self._open.clear()
        self._fence.close()


def list_bodies(directory: Path) -> list[int]:
    """Return the ids of the bodies in ``directory``, ascending; raises OSError."""
    with os.scandir(directory) as entries:
        names = [entry.name for entry in entries if entry.name.endswith(EXTENSION)]
    stems = (name.removesuffix(EXTENSION) for name in names)
    return sorted(int(stem) for stem in stems if stem.isascii() and stem.isdigit())


@dataclass(frozen=True)
class StoredBodies:
    """What a large-messages-directory holds, beside what the journal says."""

    directory: Path
    bodies: int
    payload_bytes: int
    unneeded: list[int]
    """Bodies that nothing refers to: of uploads under way, or to be removed by the next node."""
    missing: list[LargeReference]
    """What refers to a body that is not there."""


def compare_bodies(directory: Path, references: Iterable[LargeReference]) -> StoredBodies:
    """Compare a directory with what refers to bodies; raises JournalIOError."""
    wanted = list(references)
    sizes: dict[int, int] = {}
    if directory.is_dir():
        with io_errors(f"list {directory}"):
            for body_id in list_bodies(directory):
                with contextlib.suppress(FileNotFoundError):  # removed by a node beside us
                    sizes[body_id] = (directory / f"{body_id}{EXTENSION}").stat().st_size
    needed = {one.large_id for one in wanted}
    return StoredBodies(
        directory,
        len(sizes),
        sum(sizes.values()),
        sorted(sizes.keys() - needed),
        [one for one in wanted if one.large_id not in sizes],
    )
