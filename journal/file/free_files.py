"""Free files: prepared ahead of need, new ones or reused ones."""

import errno
import os
import secrets
import threading
from collections import deque
from collections.abc import Iterable
from pathlib import Path

from orthia.config.store_settings import FileStoreSettings
from orthia.journal.errors import JournalDamaged
from orthia.journal.file import disk
from orthia.journal.file.control import UNFINISHED, under_way
from orthia.journal.file.disk import io_errors
from orthia.journal.file.format import (
    HEADER_BYTES,
    MAX_FILE_ID,
    SALT_BYTES,
    FileHeader,
    Kind,
    encode_header,
)
from orthia.journal.file.journal_file import JournalFile


class FreeFiles:
    """The free files of one instance, under its lock; raises JournalIOError."""

    def __init__(
        self,
        directory: Path,
        kind: Kind,
        s: FileStoreSettings,
        lock: threading.RLock,
        *,
        generation: int,
        token: int,
    ) -> None:
        self._directory = directory
        self._kind = kind
        self._settings = s
        self._lock = lock
        self._generation = generation
        self._token = token
        self._free: deque[JournalFile] = deque()
        self.next_id = 1
        """The number of the next file that is made."""
        self.has_room = True
        """Whether the last file that was wanted could be made."""

    def __len__(self) -> int:
        return len(self._free)

    @property
    def size(self) -> int:
        """How many bytes all of them have; under the lock."""
        return sum(one.size for one in self._free)

    def take(self, size: int) -> JournalFile:
        """Return a file for ``size`` bytes: the next one that is prepared, if it is large enough.

        A unit larger than ``journal-file-size`` has a file of its own size.
        """
        needed = HEADER_BYTES + size
        if needed <= self._settings.journal_file_size:
            with self._lock:
                if self._free:
                    return self._free.popleft()
        return self._create(max(needed, self._settings.journal_file_size))

    def _create(self, size: int) -> JournalFile:
        with io_errors(f"create a file in {self._directory}"):
            while True:
                header = self.next_header()
                path = self._directory / self._kind.file_name(header.file_id)
                unfinished = under_way(path, self._generation, UNFINISHED)
                disk.create(unfinished, size, encode_header(header))
                try:
                    made = self._give_name(unfinished, path, header, size)
                except OSError:
                    disk.remove(unfinished)
                    raise
                if made is not None:
                    return made
                disk.remove(unfinished)

    def _give_name(
        self, unfinished: Path, path: Path, header: FileHeader, size: int
    ) -> JournalFile | None:
        """Return the file under its name; None if there is another of that name."""
        if not disk.rename_if_free(unfinished, path):
            return None
        try:
            disk.sync_directory(self._directory)
        except OSError:
            disk.remove(path)  # nobody would know of it
            raise
        return JournalFile(path, header, size, is_own=True)

    def next_header(self) -> FileHeader:
        """Return the header of a file that is to be made; raises JournalDamaged."""
        with self._lock:
            file_id, self.next_id = self.next_id, self.next_id + 1
        if file_id > MAX_FILE_ID:
            raise JournalDamaged(f"{self._directory} has used up its {MAX_FILE_ID} file numbers")
        salt = secrets.token_bytes(SALT_BYTES)
        return FileHeader(self._kind, file_id, self._generation, self._token, salt)

    def prepare(self, wanted: int) -> None:
        """Prepare files until ``wanted`` are ready; raises NoRoomOnDisk if there is no room."""
        while True:
            with self._lock:
                if len(self._free) >= wanted:
                    self.has_room = True
                    return
            try:
                created = self._create(self._settings.journal_file_size)
            except disk.NoRoomOnDisk:
                self.has_room = False
                raise
            with self._lock:
                self._free.append(created)

    def reserve(self, sizes: Iterable[int], room: int) -> None:
        """Ensure room for changes of these sizes, given so much; raises NoRoomOnDisk.

        A change is whole in one file; one that is larger than files are has one of its own.
        """
        files, usual = 0, self._settings.journal_file_size - HEADER_BYTES
        for size in sizes:
            if size > usual:
                self._refuse_if_too_large(size)
                room = 0
            elif size > room:
                files, room = files + 1, usual
            room -= min(size, room)
        missing = files - len(self._free)
        # Twice as much: other programs write to the disk, too.
        if missing > 0 and self._free_on_disk() < 2 * missing * self._settings.journal_file_size:
            self.prepare(files)

    def _refuse_if_too_large(self, size: int) -> None:
        if self._free_on_disk() < size + HEADER_BYTES:
            with io_errors(f"create a file of {size} bytes in {self._directory}"):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _free_on_disk(self) -> int:
        with io_errors(f"look at the disk of {self._directory}"):
            status = os.statvfs(self._directory)
        return status.f_bavail * status.f_frsize

    def retire(self, closed: JournalFile, *, ready: int) -> Path | None:
        """Remove a file's name; return where it waits to be reused, if it does.

        There are ``ready`` files already, or soon.
        """
        limit = self._settings.journal_pool_files
        is_usual = closed.size == self._settings.journal_file_size
        if not closed.is_own or not is_usual or 0 <= limit <= ready:
            disk.remove(closed.path)
            return None
        unfinished = under_way(closed.path, self._generation, UNFINISHED)
        try:
            disk.rename(closed.path, unfinished)
        except FileNotFoundError:
            # An earlier call did it and still reported an error; or somebody removed the file.
            return unfinished if unfinished.exists() else None
        return unfinished

    def use_again(self, unfinished: Path) -> None:
        """Make a free file of one that was retired; it is removed if that fails."""
        again: JournalFile | None = None
        try:
            while again is None:
                header = self.next_header()
                disk.rewrite_header(unfinished, encode_header(header))
                path = self._directory / self._kind.file_name(header.file_id)
                size = self._settings.journal_file_size
                again = self._give_name(unfinished, path, header, size)
        except OSError:
            # How far that got is unknown, and another file is made as easily.
            disk.remove(unfinished)
            raise
        with self._lock:
            self._free.append(again)
