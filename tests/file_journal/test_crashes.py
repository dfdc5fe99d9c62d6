"""A unit's writes end at any byte, and any byte of a file is another: nothing is passed over."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orthia.config.address_settings import RoutingType
from orthia.config.store_settings import FileStoreSettings
from orthia.journal import MessageLocation, QueueBinding, Unit
from orthia.journal.errors import CorruptRecord
from orthia.journal.file.format import HEADER_BYTES
from orthia.journal.file.inspect import inspect
from orthia.journal.file.recovery import Contents, read_payload, scan
from orthia.journal.model.records import ID_COUNTER_SEQ, RecordType
from tests.file_journal.steps import observed
from tests.file_journal.support import (
    DirectJournal,
    file_settings,
)
from tests.journal.support import OTHER_QUEUE, QUEUE, payload

pytestmark = pytest.mark.extended


@pytest.fixture(autouse=True)
def _no_syncs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sync nothing: what dies here is the process, and the system keeps its writes."""
    monkeypatch.setattr("os.fsync", lambda _: None)
    monkeypatch.setattr("os.fdatasync", lambda _: None)


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
    unit.add_message([QUEUE, OTHER_QUEUE], payload("first"))
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
    messages = range(kept + 1, journal.seq + 1)
    assert states == [before, (before - {kept}) | {*messages, -100}]


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
