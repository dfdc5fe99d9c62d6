"""The journal is stopped between any two calls to the file system, and opened again."""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orthia.config.address_settings import RoutingType
from orthia.config.store_settings import FileStoreSettings, JournalType
from orthia.journal import MessageLocation, QueueBinding, Unit
from orthia.journal.errors import CorruptRecord
from orthia.journal.file.format import HEADER_BYTES
from orthia.journal.file.inspect import inspect
from orthia.journal.file.recovery import Contents, read_payload, scan
from orthia.journal.file.writing import opener
from orthia.journal.model.records import ID_COUNTER_SEQ, RecordType
from tests.file_journal.steps import observed
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

pytestmark = pytest.mark.extended


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


def test_asyncio_falls_back_where_the_kernel_gives_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The library cannot be loaded when fs.aio-max-nr is used up: NIO serves as well."""
    monkeypatch.setattr("caio.linux_aio", None)  # what the library leaves of it then
    monkeypatch.setitem(sys.modules, "caio.linux_aio", None)
    effective, open_file = opener(JournalType.ASYNCIO, datasync=True, buffer_size=4_096, max_io=8)
    assert effective is JournalType.NIO
    assert "using NIO, which is as durable" in caplog.text
    path = tmp_path / "file"
    path.write_bytes(bytes(10))
    file = open_file(path)
    file.write(0, b"something")
    file.close()
    assert path.read_bytes() == b"something\0"


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


def read_all(contents: Contents) -> None:
    """Read every message and binding; raises CorruptRecord."""
    files = {found.file_id: found for found in contents.message_files.counting}
    for position, _ in contents.messages.rows():
        read_payload(files[position.file_id], position)
    for position, _ in contents.bindings.records.values():
        read_payload(contents.file_of(position), position)


class Writes:
    """Takes note of what is written, in order."""

    def __init__(self) -> None:
        self.made: list[tuple[Path, int, bytes]] = []

    def call(self, name: str, real: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        """Make the call."""
        if name == "pwrite":
            descriptor, data, offset = arguments
            path = Path(f"/proc/self/fd/{descriptor}").readlink()
            self.made.append((path, offset, bytes(data)))
        return real(*arguments)


def everything(s: FileStoreSettings) -> frozenset[int]:
    """Return the seqs of the messages, and the ids of the bindings as negative numbers."""
    contents = inspect(s)
    bindings = (-seq for seq in contents.bindings.records if seq != ID_COUNTER_SEQ)
    return frozenset([*(p.seq for p, _ in contents.messages.rows()), *bindings])


def test_a_unit_of_queues_and_messages_is_whole_wherever_its_writes_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is in two instances of the journal; after any byte of either it is in both or none."""
    s = file_settings(tmp_path)
    journal = DirectJournal(s)
    (kept,) = journal.add("kept")
    before = everything(s)
    files = [*s.journal_directory.glob("*.amq"), *s.bindings_directory.glob("*.bindings")]
    content = {path: bytearray(path.read_bytes()) for path in files}
    unit = Unit()
    unit.add_message([QUEUE], payload("first"))
    unit.delete(MessageLocation(kept))
    unit.add_binding(QueueBinding(100, "queue", "address", RoutingType.ANYCAST))
    writes = Writes()
    with observed(writes, monkeypatch):
        journal.unit(unit)
    journal.abandon()
    assert [path.suffix for path, _, _ in writes.made] == [".bindings", ".amq", ".bindings"]
    for path, whole in content.items():
        path.write_bytes(whole)
    states = [before]
    for path, offset, data in writes.made:
        with path.open("r+b", buffering=0) as file:
            for at, byte in enumerate(data):
                os.pwrite(file.fileno(), bytes([byte]), offset + at)
                found = everything(s)
                if found != states[-1]:
                    states.append(found)
    assert states == [before, (before - {kept}) | {journal.seq, -100}]


@pytest.mark.parametrize("suffix", [".amq", ".bindings"])
def test_no_flipped_byte_is_passed_over(tmp_path: Path, suffix: str) -> None:
    """Wherever it is, the journal is refused, or the one message that it is in cannot be read."""
    s = file_settings(tmp_path)
    journal = DirectJournal(s)
    unit = Unit()
    unit.add_message([QUEUE], payload("first"))
    unit.add_binding(QueueBinding(100, "queue", "address", RoutingType.ANYCAST))
    journal.unit(unit)
    end = {".amq": journal.opened.messages, ".bindings": journal.opened.bindings}[suffix]._offset
    journal.close()
    (path,) = [
        one
        for directory in (s.journal_directory, s.bindings_directory)
        for one in directory.glob(f"*{suffix}")
    ]
    whole, intact = path.read_bytes(), everything(s)
    read_all(inspect(s))
    for at in range(HEADER_BYTES, end):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1 :])
        contents = inspect(s)
        listing = contents.message_files if suffix == ".amq" else contents.binding_files
        (found,) = listing.counting
        if found.damages or found.unreadable or listing.damaged:
            continue
        assert everything(s) == intact
        with scan(found) as records:
            (spoiled,) = (record.record_type for record, is_intact, _ in records if not is_intact)
        if spoiled == RecordType.PREPARE_RECORD:
            continue  # it says how many records it prepares, which nobody needs
        with pytest.raises(CorruptRecord):
            read_all(contents)
