"""Files are looked after, or opened, and that fails: it costs nothing for ever, and no disk."""

import contextlib
import errno
import itertools
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orthia.config.store_settings import FileStoreSettings
from orthia.journal.errors import JournalIOError
from orthia.journal.file import compaction, disk
from orthia.journal.file.disk import NoRoomOnDisk
from orthia.journal.file.inspect import read_fence
from tests.file_journal.device import WRITES
from tests.file_journal.steps import observed
from tests.file_journal.support import BODY, DirectJournal, SimulatedCrash, file_settings, stored
from tests.support.waiting import wait_until


class Fails:
    """A disk one of whose calls fails, counted from 1."""

    def __init__(self, at: int, error: BaseException) -> None:
        self._at = at
        self._error = error
        self.calls = 0

    def call(self, _name: str, real: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        """Make the call, or raise instead."""
        self.calls += 1
        if self.calls == self._at:
            raise self._error
        return real(*arguments)


class SmallDisk:
    """A disk on which so many bytes are free."""

    def __init__(self, directory: Path, free: int) -> None:
        self._directory = directory
        self._size = self.used + free

    @property
    def used(self) -> int:
        """How much all files take."""
        return sum(one.stat().st_size for one in self._directory.rglob("*") if one.is_file())

    @property
    def free(self) -> int:
        """How much there is room for."""
        return self._size - self.used

    def call(self, name: str, real: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        """Make the call, unless a file would become too large."""
        if name in WRITES:
            descriptor, data, offset = arguments
            grows = offset + len(data) - os.fstat(descriptor).st_size
            if grows > self.free:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(*arguments)


def files_of(s: FileStoreSettings) -> list[str]:
    """Return the names of everything that is kept."""
    directories = (s.journal_directory, s.bindings_directory)
    return [path.name for one in directories for path in one.iterdir()]


def descriptors_in_use(directory: Path) -> int:
    """Count the files in a directory that this process has open; others it has of other tests."""
    found = 0
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found += descriptor.readlink().is_relative_to(directory)
    return found


def half_empty(journal: DirectJournal) -> list[int]:
    """Fill files of which most goes, and return what is left."""
    seqs = [seq for _ in range(8) for seq in journal.add(*[BODY] * 7)]
    journal.delete(*(seq for seq in seqs if seq % 5))
    return journal.live()


@pytest.mark.parametrize("number", [errno.EIO, errno.EMFILE])
def test_a_keeper_gets_over_one_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """Whatever call fails once, it makes room for ever after, and leaves nothing behind."""
    for call in itertools.count(1):
        s = file_settings(tmp_path / str(call), journal_min_files=3)
        journal = DirectJournal(s)
        half_empty(journal)
        failing = Fails(call, OSError(number, os.strerror(number)))
        error: JournalIOError | None = None
        with observed(failing, monkeypatch):
            try:
                journal.keeper.keep()
            except JournalIOError as refused:
                error = refused
        for _ in range(12):
            journal.delete(*journal.add(*[BODY] * 7))
            journal.keeper.keep()
        journal.delete(*journal.live())
        journal.add("last")
        journal.keeper.keep()
        suffixes = {Path(name).suffix for name in files_of(s)}
        assert suffixes == {".amq", ".bindings", ".fence"}, call
        # Unlucky, one that nobody knows of, until the journal is opened.
        assert len(files_of(s)) <= 14, call
        live = journal.live()
        assert len(live) == 1
        journal.abandon()
        assert stored(s) == live
        if failing.calls < call:
            assert error is None
            break
    assert call > 40


def test_a_compaction_that_cannot_read_is_put_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It leaves nothing behind, is not tried at each look, and is said to work when it does."""
    now = [1_000.0]
    monkeypatch.setattr("orthia.journal.file.instance.monotonic_seconds", lambda: now[0])
    journal = DirectJournal(file_settings(tmp_path))
    live = half_empty(journal)
    caplog.set_level(logging.INFO)
    attempts = 0

    def read(*_: object) -> bytes:
        nonlocal attempts
        attempts += 1
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(compaction._Sources, "read", read)
        with pytest.raises(JournalIOError, match="cannot compact"):
            journal.keeper.keep()
        journal.keeper.keep()
        left = sorted(files_of(journal.settings))
        descriptors = descriptors_in_use(tmp_path)
        for _ in range(50):
            journal.keeper.keep()
        assert attempts == 1
        for later in range(1, 4):
            now[0] += 61
            with pytest.raises(JournalIOError, match="cannot compact"):
                journal.keeper.keep()
            assert attempts == 1 + later
        assert sorted(files_of(journal.settings)) == left
        assert descriptors_in_use(tmp_path) == descriptors
        now[0] += 61
        journal.keeper.start()
        wait_until(lambda: "a compaction each minute" in caplog.text, what="it says what is wrong")
        journal.keeper.wake()
    now[0] += 61
    journal.keeper.wake()
    wait_until(lambda: "upkeep of the journal files works again" in caplog.text, what="it goes on")
    assert caplog.text.index("compacted the journal") < caplog.text.index("works again")
    journal.keeper.stop()
    assert journal.live() == live
    journal.close()


def test_a_compaction_on_a_full_disk_takes_nothing_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each attempt leaves as much room as there was."""
    journal = DirectJournal(file_settings(tmp_path))
    live = half_empty(journal)
    for files in journal.opened.instances:
        files.reclaim()
        files.prepare(1)
    full = SmallDisk(tmp_path, 9_000)
    with observed(full, monkeypatch):
        for _ in range(3):
            with pytest.raises(NoRoomOnDisk):
                journal.opened.messages.compact()
            assert full.free == 9_000
    assert journal.opened.messages.compact() > 0
    assert journal.live() == live
    journal.close()


def test_an_opening_without_room_takes_nothing_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However often it fails, there is as much room as before."""
    s = file_settings(tmp_path)
    journal = DirectJournal(s)
    seqs = journal.add(*[BODY] * 5)
    journal.abandon()
    full = SmallDisk(tmp_path, s.journal_file_size + 1_000)
    with observed(full, monkeypatch):
        for token in range(2, 6):
            with pytest.raises(NoRoomOnDisk):
                DirectJournal(s, token)
            assert full.free == s.journal_file_size + 1_000
    journal = DirectJournal(s, 7)
    assert journal.live() == seqs
    journal.close()


def test_openings_that_are_killed_leave_no_more_than_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What one has left the next removes, before it makes its own."""
    for call in itertools.count(1):
        s = file_settings(tmp_path / str(call))
        journal = DirectJournal(s)
        seqs = journal.add(*[BODY] * 5)
        journal.abandon()
        for token in range(2, 6):
            failing = Fails(call, SimulatedCrash())
            with observed(failing, monkeypatch), contextlib.suppress(SimulatedCrash):
                DirectJournal(s, token).abandon()
            if read_fence(s).complete == 1:
                # The fence, two of the first and two of the last, of which one has two names.
                assert len(files_of(s)) <= 6
        successor = DirectJournal(s, 7)
        assert successor.live() == seqs
        successor.close()
        if failing.calls < call:
            break
    assert call > 10


@pytest.mark.parametrize("step", ["rename_if_free", "sync_directory"])
def test_a_file_that_cannot_be_prepared_is_not_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """A look each second makes no file each second."""
    journal = DirectJournal(file_settings(tmp_path, journal_min_files=4))
    before = files_of(journal.settings)

    def refuse(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(disk, step, refuse)
        for _ in range(10):
            with pytest.raises(JournalIOError):
                journal.keeper.keep()
    assert sorted(files_of(journal.settings)) == sorted(before)
    journal.close()
