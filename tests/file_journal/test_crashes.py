"""The journal is stopped between any two calls to the file system, and opened again."""

from pathlib import Path

import pytest

from config.settings import JournalType
from journal import MessageLocation, Unit
from tests.file_journal.support import (
    Client,
    DirectJournal,
    SimulatedCrash,
    crash_at,
    file_settings,
    rolling,
    stored,
)
from tests.journal.support import OTHER_QUEUE, QUEUE, payload


@pytest.fixture(autouse=True)
def _no_syncs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sync nothing: what dies here is the process, and the system keeps its writes."""
    monkeypatch.setattr("os.fsync", lambda _: None)
    monkeypatch.setattr("os.fdatasync", lambda _: None)


def test_the_work_that_is_interrupted_covers_every_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Left alone, it rolls, seals, uses files again, compacts and removes."""
    journal = DirectJournal(file_settings(tmp_path))
    client = Client()
    with crash_at(10_000, monkeypatch) as made:
        rolling(journal, client)
    assert {"create", "rename", "rename_if_free", "remove", "rewrite_header", "seal"} <= set(made)
    assert list(journal.settings.journal_directory.glob("*.ctr")) == []
    client.check(stored(journal.settings))
    assert journal.live() == sorted(client.confirmed)
    journal.close()


def test_a_crash_between_any_two_steps_loses_and_revives_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped anywhere, everything confirmed is there, and the journal goes on from there."""
    call, crashed = 0, True
    while crashed:
        call += 1
        s = file_settings(tmp_path / str(call))
        journal, client = DirectJournal(s), Client()
        try:
            with crash_at(call, monkeypatch):
                rolling(journal, client)
            crashed = False
        except SimulatedCrash:
            pass
        journal.abandon()
        client.check(stored(s))
        successor = DirectJournal(s, token=2)
        found = stored(s)
        client.check(found)
        assert successor.live() == found
        successor.keeper.keep()
        more = successor.add("more")
        successor.close()
        assert stored(s) == sorted([*found, *more])
        left = {path.suffix for path in s.journal_directory.iterdir()}
        assert left <= {".amq", ".fence"}, "leftovers are tidied away"
    assert call > 60


def test_a_crash_while_opening_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Opening a journal that crashed in the middle of a write, crashed again anywhere, is safe."""
    call, crashed = 0, True
    while crashed:
        call += 1
        s = file_settings(tmp_path / str(call))
        journal, client = DirectJournal(s), Client()
        rolling(journal, client)
        journal.abandon()
        opened: DirectJournal | None = None
        try:
            with crash_at(call, monkeypatch):
                opened = DirectJournal(s, token=2)
            crashed = False
        except SimulatedCrash:
            pass
        if opened is not None:
            opened.abandon()
        client.check(stored(s))
        third = DirectJournal(s, token=3)
        assert third.live() == sorted(client.confirmed)
        third.close()
    assert call > 10


def test_a_unit_is_stored_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A unit cut off anywhere in its write is not there; one that is there is whole."""
    s = file_settings(tmp_path)
    journal = DirectJournal(s)
    (kept,) = journal.add("kept")
    before = {path: path.read_bytes() for path in s.journal_directory.glob("*.amq")}
    unit = Unit()
    unit.add_message([QUEUE, OTHER_QUEUE], payload("shared"))
    unit.add_message([QUEUE], payload("single"))
    unit.delete(MessageLocation(kept))
    journal.unit(unit)
    journal.abandon()
    (path,) = [p for p in before if p.read_bytes() != before[p]]
    after = path.read_bytes()
    whole = list(range(kept + 1, journal.seq + 1))
    first = next(at for at in range(len(after)) if after[at] != before[path][at])
    last = max(at for at in range(len(after)) if after[at] != before[path][at])
    seen = set()
    for cut in range(first, last + 2):
        path.write_bytes(after[:cut] + before[path][cut:])
        found = tuple(stored(s))
        seen.add(found)
    assert seen == {(kept,), tuple(whole)}


@pytest.mark.parametrize("kind", list(JournalType))
def test_every_journal_type_keeps_what_was_confirmed(tmp_path: Path, kind: JournalType) -> None:
    """Whatever writes the files, they hold the same."""
    s = file_settings(tmp_path, journal_type=kind)
    journal, client = DirectJournal(s), Client()
    rolling(journal, client)
    journal.abandon()
    client.check(stored(s))
    successor = DirectJournal(s)
    assert successor.live() == sorted(client.confirmed)
    successor.close()
