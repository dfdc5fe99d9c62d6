"""Clients that know the format, and send bodies that are records of the journal."""

from pathlib import Path

import pytest

from orthia.journal.file.format import decode_header
from orthia.journal.file.inspect import inspect
from orthia.journal.file.tools import recover
from tests.file_journal.former import forged, send
from tests.file_journal.support import DirectJournal, file_settings
from tests.journal.support import OTHER_QUEUE

FILE_SIZE = 64 * 1024


@pytest.fixture(autouse=True)
def _no_syncs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sync nothing: what dies here is the process, and the system keeps its writes."""
    monkeypatch.setattr("os.fsync", lambda _: None)
    monkeypatch.setattr("os.fdatasync", lambda _: None)


def damages(journal: DirectJournal) -> list[object]:
    """Return what is damaged for whoever opens the journal now."""
    return [
        damage
        for _, listing in inspect(journal.settings).listings
        for found in listing.counting
        for damage in (*found.damages, *found.unreadable)
    ]


@pytest.mark.parametrize("sync", [2, 2**40])
def test_bodies_that_are_records_of_later_files_delete_nothing(tmp_path: Path, sync: int) -> None:
    """Consumed, in a file that is used again, they are neither records nor damage after a kill."""
    s = file_settings(tmp_path, journal_file_size=FILE_SIZE)
    journal = DirectJournal(s)
    confirmed = [send(journal, b"order %d" % number, OTHER_QUEUE) for number in range(20)]
    body = forged(range(1, 60), [*range(1, 100)], sync)
    for _ in range(20):
        journal.delete(send(journal, body))
        journal.keeper.keep()
    confirmed += [send(journal, b"last orders", OTHER_QUEUE) for _ in range(3)]
    assert journal.opened.messages.file_id > 10, "files were used again"
    journal.abandon()
    assert damages(journal) == []
    successor = DirectJournal(s, token=2)
    assert successor.live() == confirmed
    successor.close()
    assert recover(s).findings == []
    recovered = DirectJournal(s, token=3)
    assert recovered.live() == confirmed
    recovered.close()


@pytest.mark.parametrize("sync", [2, 2**40])
def test_a_file_that_ends_where_a_body_has_a_record_ends_there(tmp_path: Path, sync: int) -> None:
    """Wherever the last record ends among those of a body, it is the last: nothing is deleted."""
    size = len(forged(range(1), [1, 2, 3], sync))
    for shift in range(size):
        s = file_settings(tmp_path / str(shift), journal_file_size=FILE_SIZE)
        journal = DirectJournal(s)
        confirmed = [send(journal, b"order", OTHER_QUEUE) for _ in range(3)]
        for _ in range(8):
            following = journal.opened.messages.file_id + 1
            body = b"".join(
                forged(range(following, following + 4), confirmed, sync) for _ in range(100)
            )
            journal.delete(send(journal, body))
            journal.keeper.keep()
        journal.opened.messages.roll(100)
        confirmed.append(send(journal, b"x" * (100 + shift), OTHER_QUEUE))
        journal.abandon()
        assert damages(journal) == [], shift
        successor = DirectJournal(s, token=2)
        assert successor.live() == confirmed, shift
        successor.close()


def test_no_two_files_are_told_by_the_same_bytes(tmp_path: Path) -> None:
    """A file has a salt of its own whenever it is begun, used again or made by a compaction."""
    s = file_settings(tmp_path)
    journal = DirectJournal(s)
    salts: dict[str, bytes] = {}
    inodes: list[int] = []
    for number in range(40):
        seqs = journal.add(*["x" * 900] * 7)
        journal.delete(*seqs[number % 3 == 0 :])
        journal.keeper.keep()
        for path in (*s.journal_directory.glob("*.amq"), *s.bindings_directory.iterdir()):
            salt = decode_header(path.read_bytes()).salt
            if salts.setdefault(path.name, salt) == salt and path.stat().st_ino not in inodes:
                inodes.append(path.stat().st_ino)
    journal.close()
    assert len(set(salts.values())) == len(salts) > len(inodes), "files were used again"
    assert {len(salt) for salt in salts.values()} == {16}
