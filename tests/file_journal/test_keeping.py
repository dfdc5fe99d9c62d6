"""Files that are prepared, used again and compacted while the journal is written."""

import errno
import os
import sys
from pathlib import Path

import pytest

from orthia.config.store_settings import JournalType
from orthia.journal import Unit
from orthia.journal.errors import JournalDamaged, JournalIOError
from orthia.journal.file import disk
from orthia.journal.file.control import Control, control_path, write_control
from orthia.journal.file.format import Kind
from orthia.journal.file.inspect import inspect
from orthia.journal.file.instance import JournalFiles
from orthia.journal.file.recovery import scan
from orthia.journal.file.tools import recover
from orthia.journal.model.records import RecordType
from orthia.journal.model.windows import BEGINNING
from tests.file_journal.support import DirectJournal, file_settings, stored
from tests.journal.support import ALWAYS, OTHER_QUEUE, QUEUE, FileJournalStore, payload
from tests.support.waiting import wait_until

BODY = "x" * 900


def names(journal: DirectJournal) -> set[str]:
    """Return the names of the message files."""
    return {path.name for path in journal.settings.journal_directory.glob("*.amq")}


def test_files_are_prepared_and_filled(tmp_path: Path) -> None:
    """From the start there are journal-min-files of each instance, at their full size."""
    s = file_settings(tmp_path, journal_min_files=3)
    journal = DirectJournal(s)
    journal.keeper.keep()
    messages = sorted(s.journal_directory.glob("activemq-data-*.amq"))
    bindings = sorted(s.bindings_directory.glob("activemq-bindings-*.bindings"))
    assert [path.name for path in messages] == [f"activemq-data-{n}.amq" for n in (1, 2, 3)]
    assert len(bindings) == 3
    assert {path.stat().st_size for path in (*messages, *bindings)} == {s.journal_file_size}
    assert all(path.stat().st_blocks * 512 >= s.journal_file_size for path in messages)
    journal.close()


def test_files_without_live_records_are_used_again(tmp_path: Path) -> None:
    """A queue that is consumed as it is filled needs the same few files for ever."""
    journal = DirectJournal(file_settings(tmp_path))
    most = 0
    for _ in range(60):
        journal.delete(*journal.add(*[BODY] * 7))
        journal.keeper.keep()
        most = max(most, len(names(journal)))
    assert most <= 6
    assert journal.opened.messages.file_id > 60
    journal.close()
    assert stored(journal.settings) == []


def test_a_pool_of_one_keeps_one_file(tmp_path: Path) -> None:
    """journal-pool-files bounds what is kept; what is more is removed."""
    journal = DirectJournal(file_settings(tmp_path, journal_pool_files=1))
    seqs = [seq for _ in range(10) for seq in journal.add(*[BODY] * 7)]
    journal.delete(*seqs)
    journal.keeper.keep()
    assert len(journal.opened.messages._free) == 1
    assert len(names(journal)) == 2
    journal.close()


@pytest.mark.parametrize("fails", ["create", "seal"])
def test_a_file_that_cannot_be_gone_on_from_is_closed_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    """Closed twice its number would be that of another file by then, or of a client's socket."""
    journal = DirectJournal(file_settings(tmp_path))
    seqs = journal.add(*[BODY] * 7)

    def refuse(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(disk, fails, refuse)
    with pytest.raises(JournalIOError):
        _ = [journal.add(BODY) for _ in range(9)]
    monkeypatch.undo()
    others = os.pipe()  # which get the lowest numbers that are free
    journal.opened.close(seal=True)
    for descriptor in others:
        os.close(descriptor)
    assert {*seqs} <= {*stored(journal.settings)}


def test_a_delete_keeps_its_file_until_what_it_deletes_is_gone(tmp_path: Path) -> None:
    """A file of nothing but deletes stays while the deleted records are still in their file."""
    journal = DirectJournal(file_settings(tmp_path, journal_compact_min_files=0))
    first = journal.add(*[BODY] * 7)
    second = journal.add(*[BODY] * 7)
    journal.delete(*first[1:])
    deletes_in = journal.opened.messages.file_id
    journal.add(*[BODY] * 7)
    journal.delete(*second)
    journal.keeper.keep()
    assert f"activemq-data-{deletes_in}.amq" in names(journal)
    assert journal.live()[0] == first[0]
    live = journal.live()
    journal.abandon()
    assert stored(journal.settings) == live


def test_what_is_deleted_during_a_compaction_stays_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A message deleted while it was copied is not brought back by the copy, then or later."""
    journal = DirectJournal(file_settings(tmp_path))
    seqs = [seq for _ in range(8) for seq in journal.add(*[BODY] * 7)]
    kept = seqs[::9]
    journal.delete(*(seq for seq in seqs if seq not in kept))
    real = disk.seal
    gone: list[int] = []

    def seal_and_delete(*arguments: object) -> None:
        real(*arguments)  # type: ignore[arg-type]
        if not gone:
            gone.append(kept[1])
            journal.delete(kept[1])

    with monkeypatch.context() as patch:
        patch.setattr(disk, "seal", seal_and_delete)
        assert journal.opened.messages.compact() > 0
    assert gone
    left = [seq for seq in kept if seq not in gone]
    assert journal.live() == left
    # The file with that delete is closed, and would go if nothing needed it.
    while journal.opened.messages.file_id < 40:
        journal.delete(*journal.add(*[BODY] * 7))
        journal.opened.messages.reclaim()
    live = journal.live()
    journal.abandon()
    assert stored(journal.settings) == live == left


def test_a_window_reads_on_through_a_compaction(tmp_path: Path) -> None:
    """Messages are found where a compaction has put them, under the epoch they were written in."""
    store = FileJournalStore(tmp_path, journal_compact_min_files=0)
    old = store.open()
    seqs = store.append(old, *[f"{number} {BODY}" for number in range(200)])
    old.close(drain=True)
    journal = DirectJournal(store.settings, token=2)
    journal.delete(*(seq for seq in seqs if seq % 10))
    journal.opened.messages.compact()
    journal.close()
    successor = store.open(token=3)
    window = store.window(successor)
    assert [message.seq for message in window.messages] == [seq for seq in seqs if seq % 10 == 0]
    assert {message.epoch for message in window.messages} == {1}
    assert store.count(successor, BEGINNING, ALWAYS, 1_000).messages == {QUEUE: 20}
    assert len(window.messages) == 20
    store.close()


def test_a_compaction_meets_damage_and_changes_nothing(tmp_path: Path) -> None:
    """A record that cannot be copied stops the compaction, not the journal."""
    journal = DirectJournal(file_settings(tmp_path))
    seqs = [seq for _ in range(8) for seq in journal.add(*[BODY] * 7)]
    journal.delete(*seqs[3:])
    position = journal.opened.contents.messages.find(seqs[0])
    assert position is not None
    path = journal.settings.journal_directory / f"activemq-data-{position.file_id}.amq"
    with path.open("r+b") as file:
        file.seek(position.offset + 20)
        file.write(b"?")
    before = names(journal)
    with pytest.raises(JournalDamaged, match=f"seq {seqs[0]}"):
        journal.opened.messages.compact()
    assert not journal.opened.messages.wants_compaction()
    assert before <= names(journal)
    journal.add("goes on")
    journal.abandon()


def test_a_message_larger_than_a_file_has_a_file_of_its_own(tmp_path: Path) -> None:
    """Whatever journal-file-size is, a large message is stored, read back and reclaimed."""
    store = FileJournalStore(tmp_path)
    journal = store.open()
    text = "y" * (3 * store.settings.journal_file_size)
    store.append(journal, "before", text, "after")
    assert store.bodies(journal) == ["before", text, "after"]
    journal.close(drain=True)
    assert store.bodies(store.open()) == ["before", text, "after"]
    store.close()


def test_a_transaction_has_its_records_and_a_commit(tmp_path: Path) -> None:
    """A unit of several changes is written as Artemis' transactional records, in one file."""
    journal = DirectJournal(file_settings(tmp_path))
    (consumed,) = journal.add("consumed")
    unit = Unit()
    unit.add_message([QUEUE, OTHER_QUEUE], payload("sent"))
    journal.unit(unit)
    journal.delete(consumed)
    journal.close()
    (found,) = [one for one in journal_files(journal) if one[1]]
    assert found[1] == [
        RecordType.ADD_RECORD,
        RecordType.ADD_RECORD_TX,
        RecordType.ADD_RECORD_TX,
        RecordType.ADD_RECORD_TX,
        RecordType.COMMIT_RECORD,
        RecordType.DELETE_RECORD,
    ]


def journal_files(journal: DirectJournal) -> list[tuple[int, list[int]]]:
    """Return the record types of each file."""
    result = []
    for found in inspect(journal.settings).message_files.counting:
        with scan(found) as records:
            result.append((found.file_id, [record.record_type for record, _, _ in records]))
    return result


@pytest.mark.parametrize("missing", ["caio", "caio.linux_aio"])
def test_asyncio_that_is_not_to_be_had_becomes_nio(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    missing: str,
) -> None:
    """Without the library, or where the kernel gives no more of it (fs.aio-max-nr), NIO is used."""
    monkeypatch.delitem(sys.modules, "caio.linux_aio", raising=False)
    monkeypatch.setitem(sys.modules, missing, None)
    if missing == "caio.linux_aio":
        monkeypatch.setattr("caio.linux_aio", None, raising=False)  # what the library leaves of it
    journal = DirectJournal(file_settings(tmp_path, journal_type=JournalType.ASYNCIO))
    assert "using NIO, which is as durable" in caplog.text
    journal.add("stored")
    journal.close()
    assert len(stored(journal.settings)) == 1


def test_without_syncs_what_was_confirmed_survives_the_process(tmp_path: Path) -> None:
    """With syncing off a crash of the node loses nothing: the system has the writes."""
    s = file_settings(
        tmp_path, journal_sync_transactional=False, journal_sync_non_transactional=False
    )
    journal = DirectJournal(s)
    seqs = [seq for _ in range(20) for seq in journal.add(*[BODY] * 3)]
    journal.abandon()
    assert stored(s) == seqs


def test_a_compaction_whose_result_is_gone_is_refused(tmp_path: Path) -> None:
    """What a lost file replaces is not removed for it; the error says what to do."""
    journal = DirectJournal(file_settings(tmp_path))
    journal.add(*[BODY] * 14)
    journal.close()
    s = journal.settings
    control = control_path(s.journal_directory, Kind.MESSAGES, 1, 9)
    write_control(control, Control(control, 1, [9], [1]))
    with pytest.raises(JournalDamaged, match=r"there is no activemq-data-9\.amq; restore it"):
        DirectJournal(s, token=2)
    assert (s.journal_directory / "activemq-data-1.amq").exists()


def unremovable(patch: pytest.MonkeyPatch, suffix: str = ".amq") -> None:
    """Have no file of this kind removed."""
    real = disk.remove

    def remove(path: Path) -> None:
        if path.suffix == suffix:
            raise OSError(errno.EIO, "Input/output error")
        real(path)

    patch.setattr(disk, "remove", remove)


def test_a_compaction_whose_result_is_gone_is_set_aside_by_recover(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it was to replace is there, so that no message is lost; the next node starts."""
    journal = DirectJournal(file_settings(tmp_path))
    seqs = [seq for _ in range(6) for seq in journal.add(*[BODY] * 7)]
    journal.delete(*seqs[::3])
    before, live = names(journal), journal.live()
    with monkeypatch.context() as patch:
        unremovable(patch)
        with pytest.raises(JournalIOError, match="cannot compact"):
            journal.opened.messages.compact()
    journal.abandon()
    s = journal.settings
    made = sorted(names(journal) - before)
    (s.journal_directory / made[0]).unlink()
    control_path(s.journal_directory, Kind.MESSAGES, 1, 99).write_text("{")
    with pytest.raises(JournalDamaged):
        DirectJournal(s, token=2)
    recovered = recover(s)
    assert any(f"there is no {made[0]}" in said for said in recovered.findings)
    assert any("99.1.ctr of a compaction is damaged" in said for said in recovered.findings)
    attic = {path.name for path in (s.journal_directory / "attic").iterdir()}
    assert {*made[1:], "activemq-data-99.1.ctr"} <= attic
    successor = DirectJournal(s, token=2)
    assert successor.live() == live
    successor.close()


def test_a_compaction_is_finished_before_anything_else_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once published it is tried again until it is done: what it names is not touched before."""
    journal = DirectJournal(file_settings(tmp_path))
    seqs = [seq for _ in range(6) for seq in journal.add(*[BODY] * 7)]
    journal.delete(*(seq for seq in seqs if seq % 7))
    left = journal.live()
    with monkeypatch.context() as patch:
        unremovable(patch)
        for step in [journal.opened.messages.compact, journal.opened.messages.reclaim] * 2:
            with pytest.raises(JournalIOError, match="cannot compact"):
                step()
            assert inspect(journal.settings).messages.total == journal.opened.messages.index.total
        journal.delete(*left)
        journal.delete(*journal.add(*[BODY] * 14))
    journal.keeper.keep()
    assert list(journal.settings.journal_directory.glob("*.ctr")) == []
    journal.abandon()
    assert stored(journal.settings) == []


def test_the_keeper_outlives_what_nobody_thought_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It says what went wrong, tries again, and says when it works again."""
    journal = DirectJournal(file_settings(tmp_path))
    failing = JournalFiles.reclaim
    failures = [RuntimeError("nobody thought of this")] * 2

    def reclaim(files: JournalFiles) -> None:
        # Other tests' journals may still be kept in this process.
        if failures and files.directory == journal.settings.journal_directory:
            raise failures.pop()
        failing(files)

    monkeypatch.setattr(JournalFiles, "reclaim", reclaim)
    journal.keeper.start()
    wait_until(
        lambda: "upkeep of the journal files works again" in caplog.text, what="the keeper goes on"
    )
    (told,) = [one for one in caplog.records if "nobody thought of this" in one.getMessage()]
    assert told.exc_info is not None, "the first time with the traceback"
    journal.keeper.stop()
    journal.close()
