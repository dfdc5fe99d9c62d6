"""A writer that was stopped, lost its place and wakes up does no harm, whatever it was doing."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from orthia.config.store_settings import JournalType
from orthia.journal import Fenced
from orthia.journal.errors import JournalDamaged, JournalInUse, JournalIOError
from orthia.journal.file import disk
from orthia.journal.file.fence import Fence, FenceState, decode, encode
from orthia.journal.file.opening import open_files
from orthia.journal.file.writing import NioFile
from tests.file_journal.support import DirectJournal, file_settings, stored
from tests.support.processes import is_stopped
from tests.support.waiting import wait_until

pytestmark = pytest.mark.extended


@contextlib.contextmanager
def writer(
    directory: Path, kind: JournalType = JournalType.NIO, *, compacting: bool = False
) -> Iterator[tuple["subprocess.Popen[bytes]", Path]]:
    """Give a process that stores messages under token 1, and the file it prints to."""
    printed = directory / "printed"
    command = [sys.executable, "-m", "tests.file_journal.writer", str(directory), "1"]
    command += [kind.value, "yes" if compacting else "no"]
    with printed.open("wb") as output, (directory / "errors").open("wb") as errors:
        process = subprocess.Popen(command, stdout=output, stderr=errors)
        try:
            yield process, printed
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGCONT)
            process.kill()
            process.wait(120)


def told(printed: Path, word: str) -> set[int]:
    """Return the seqs of the whole lines that begin with ``word``."""
    lines = printed.read_text().split("\n")[:-1]
    return {int(seq) for line in lines if line.split()[0] == word for seq in line.split()[1:]}


def wait_told(printed: Path, word: str, count: int) -> None:
    """Wait until more than ``count`` seqs were printed after ``word``."""
    wait_until(lambda: len(told(printed, word)) > count, what=f"{count} seqs {word}")


@pytest.mark.parametrize("kind", list(JournalType))
def test_a_stopped_writer_that_wakes_up_stores_nothing(tmp_path: Path, kind: JournalType) -> None:
    """SIGSTOP, a successor, SIGCONT: all that was confirmed is there, and nothing after."""
    for attempt in range(2):
        directory = tmp_path / str(attempt)
        directory.mkdir()
        with writer(directory, kind) as (process, printed):
            wait_told(printed, "stored", 40 * (attempt + 1))
            os.kill(process.pid, signal.SIGSTOP)
            wait_until(lambda: is_stopped(process.pid), what="the writer stands still")
            before = told(printed, "stored")
            s = file_settings(directory, journal_type=kind)
            successor = DirectJournal(s, token=2)
            taken_over = successor.live()
            assert before <= set(taken_over)
            mine = successor.add("of the successor")
            os.kill(process.pid, signal.SIGCONT)
            assert process.wait(120) == 1
            # What it was about to tell when it was stopped it may tell: it was durable, and read.
            assert told(printed, "stored") <= set(taken_over)
            # Refused by the fence, or by a file that is gone from under it.
            error = (directory / "errors").read_text().splitlines()[-1]
            assert error.startswith(
                ("orthia.journal.errors.Fenced", "orthia.journal.errors.JournalIOError")
            )
            mine += successor.add("after the other woke up")
            successor.keeper.keep()
            successor.close()
            assert stored(s) == [*taken_over, *mine]


def test_kill_9_while_compacting_loses_and_revives_nothing(tmp_path: Path) -> None:
    """Killed anywhere between writing, deleting and compacting, the journal is what was told."""
    for attempt in range(3):
        directory = tmp_path / str(attempt)
        directory.mkdir()
        with writer(directory, compacting=True) as (process, printed):
            wait_told(printed, "deleted", 60 + 37 * attempt)
            process.kill()
            process.wait(120)
        added, deleting = told(printed, "stored"), told(printed, "deleting")
        deleted = told(printed, "deleted")
        successor = DirectJournal(file_settings(directory), token=2)
        found = set(successor.live())
        assert added - deleting <= found
        assert not deleted & found
        successor.close()


def test_a_write_that_lands_late_is_behind_the_seal(tmp_path: Path) -> None:
    """What an old writer still writes into its file after a takeover is read by nobody."""
    s = file_settings(tmp_path)
    old = DirectJournal(s)
    before = old.add("before")
    current = old.opened.messages._running()
    successor = DirectJournal(s, token=2)
    # The write alone, as if it had been on its way: the fence is not asked first.
    old.opened.fence.adopt(old.opened.fence.read())
    late = old.add("late")
    assert current.file.path.exists()
    assert stored(s) == before
    mine = successor.add("mine")
    successor.close()
    third = DirectJournal(s, token=3)
    assert third.live() == [*before, *mine]
    assert late[0] not in third.live()
    third.close()
    old.abandon()


def test_a_takeover_during_a_sync_leaves_nobody_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A write that is durable only when the successor has read it is found, and not confirmed."""
    s = file_settings(tmp_path)
    old = DirectJournal(s)
    successors: list[DirectJournal] = []
    real = NioFile._sync

    def sync(file: NioFile) -> None:
        if not successors:
            successors.append(old)  # only this sync, not those of the successor
            successors[0] = DirectJournal(s, token=2)
        real(file)

    with monkeypatch.context() as patch:
        patch.setattr(NioFile, "_sync", sync)
        with pytest.raises(Fenced):
            old.add("in flight")
    assert len(successors[0].live()) == 1
    assert old.live() == []
    successors[0].close()
    old.abandon()


def test_files_of_a_fenced_writer_are_not_read(tmp_path: Path) -> None:
    """A file that a stopped writer creates after the takeover does not count, and is removed."""
    s = file_settings(tmp_path)
    old = DirectJournal(s)
    before = old.add("before")
    successor = DirectJournal(s, token=2)
    created = old.opened.messages._free._create(s.journal_file_size)
    assert created.path.exists()
    mine = successor.add("mine")
    assert stored(s) == [*before, *mine]
    successor.close()
    third = DirectJournal(s, token=3)
    assert not created.path.exists()
    assert third.live() == [*before, *mine]
    third.close()
    old.abandon()


def test_a_stopped_writer_takes_no_file_away(tmp_path: Path) -> None:
    """Rolling, reclaiming and compacting ask the fence before they destroy anything."""
    s = file_settings(tmp_path)
    old = DirectJournal(s)
    kept = [seq for _ in range(8) for seq in old.add(*["x" * 900] * 8)]
    old.delete(*kept[:-3])
    successor = DirectJournal(s, token=2)
    names = sorted(path.name for path in s.journal_directory.glob("*.amq"))
    for destroy in (old.opened.messages.reclaim, old.opened.messages.compact):
        with pytest.raises(Fenced):
            destroy()
    with pytest.raises(Fenced):
        old.opened.messages.roll(0)
    left = {path.name for path in s.journal_directory.glob("*.amq")}
    assert set(names) <= left
    assert list(s.journal_directory.glob("*.ctr")) == []
    assert successor.live() == kept[-3:]
    successor.close()
    assert stored(s) == kept[-3:]
    old.abandon()


class _Stopped(BaseException):
    """A writer stands still here."""


def looks_of_a_takeover(directory: Path, monkeypatch: pytest.MonkeyPatch, lands_at: int) -> int:
    """Have a compaction of the writer be published when its successor looks into a directory.

    Returns how often that looked.
    """
    s = file_settings(directory)
    old = DirectJournal(s)
    seqs = [seq for _ in range(6) for seq in old.add(*["x" * 700] * 7)]
    old.delete(*(seq for seq in seqs if seq % 7))
    kept = old.live()
    rename, glob = disk.rename, Path.glob
    waiting: list[tuple[Path, Path]] = []
    looks = 0

    def stop(path: Path, target: Path) -> None:
        if target.suffix == ".ctr":
            waiting.append((path, target))
            raise _Stopped
        rename(path, target)

    def look(inside: Path, pattern: str) -> Iterator[Path]:
        nonlocal looks
        looks += 1
        if looks == lands_at:
            rename(*waiting[0])
        return glob(inside, pattern)

    with monkeypatch.context() as patch, contextlib.suppress(_Stopped):
        patch.setattr(disk, "rename", stop)
        old.opened.messages.compact()
    with monkeypatch.context() as patch:
        patch.setattr(Path, "glob", look)
        successor = DirectJournal(s, token=2)
    assert successor.live() == kept
    more = successor.add("confirmed")
    successor.close()
    third = DirectJournal(s, token=3)
    assert third.live() == [*kept, *more]
    third.close()
    old.abandon()
    return looks


def test_a_compaction_that_is_published_amid_a_takeover_harms_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whenever its one rename lands, the successor and whoever comes next have every message."""
    looks = looks_of_a_takeover(tmp_path / "never", monkeypatch, 0)
    assert looks > 3
    for look in range(1, looks + 1):
        looks_of_a_takeover(tmp_path / str(look), monkeypatch, look)


def test_a_file_that_is_used_again_amid_a_takeover_stays_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its writer looked at the fence before it lost its place; the successor seals meanwhile."""
    s = file_settings(tmp_path)
    old = DirectJournal(s)
    for _ in range(4):
        old.delete(*old.add(*["x" * 900] * 7))
    kept = old.add("kept")
    real = disk.write_all
    used_again: list[int] = []

    def write_all(descriptor: int, data: bytes, offset: int) -> None:
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        if path.suffix == ".amq" and not used_again:
            used_again.append(0)
            used_again[0] = old.opened.messages.reclaim()
        real(descriptor, data, offset)

    with monkeypatch.context() as patch:
        patch.setattr(old.opened.fence, "check", lambda: None)
        patch.setattr(disk, "write_all", write_all)
        successor = DirectJournal(s, token=2)
    assert used_again[0] > 2
    assert successor.live() == kept
    successor.close()
    third = DirectJournal(s, token=3)
    assert third.live() == kept
    third.close()
    old.abandon()


def test_who_opens_waits_for_who_is_opening(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two do not open at once; one that is stopped in the middle is named, and not run over."""
    s = file_settings(tmp_path)
    DirectJournal(s).close()
    monkeypatch.setattr("orthia.journal.file.fence._OPENING_SECONDS", 0.1)
    with contextlib.closing(Fence(s.journal_directory, create=False)) as other:
        other.lock()
        with pytest.raises(JournalInUse, match="continue or kill it"):
            open_files(s, token=2, id_block=1)
    DirectJournal(s, token=2).close()


def test_tools_leave_the_journal_of_a_running_node_alone(tmp_path: Path) -> None:
    """Opened exclusively, as tools do, a journal that is open is refused."""
    s = file_settings(tmp_path)
    node = DirectJournal(s)
    with pytest.raises(JournalInUse, match="stop it first"):
        open_files(s, token=None, id_block=1, exclusive=True)
    node.add("goes on")
    node.close()
    open_files(s, token=None, id_block=1, exclusive=True).close(seal=True)


def test_the_fence_survives_a_torn_write() -> None:
    """Of its two slots the newer that can be read counts."""
    older, newer = FenceState(4, 7, 9, 8), FenceState(5, 8, 10, 9)
    whole = encode(older) + encode(newer)
    assert decode(whole) == newer
    for cut in range(len(encode(older)), len(whole)):
        assert decode(whole[:cut].ljust(len(whole), b"\0")) in (older, newer)
    assert decode(bytes(1024)) is None


def test_files_without_their_fence_are_not_guessed_at(tmp_path: Path) -> None:
    """A directory restored without journal.fence is refused, and left as it is."""
    s = file_settings(tmp_path)
    journal = DirectJournal(s)
    journal.add("kept")
    journal.close()
    (s.journal_directory / "journal.fence").unlink()
    with pytest.raises(JournalDamaged, match=r"journal\.fence"):
        DirectJournal(s)


def test_a_disk_that_fails_ends_the_journal_and_is_never_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a failed write or sync nothing is sealed: what the disk has is found by reading it."""
    s = file_settings(tmp_path)
    journal = DirectJournal(s)
    journal.add("kept")

    def no_space(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(disk, "write_all", no_space)
        with pytest.raises(JournalIOError, match="No space left on device"):
            journal.add("lost")
    journal.close()
    successor = DirectJournal(s)
    assert len(successor.live()) == 1
    successor.close()
