"""Journals of the former version of the format, and what versions do with each other's files."""

import json
import struct
import zlib
from pathlib import Path
from typing import Any

import pytest

from orthia.broker.node.exit_codes import ExitCode, code_of
from orthia.journal import QueueBinding
from orthia.journal.errors import JournalDamaged, UnknownFormat
from orthia.journal.file.format import decode_header
from orthia.journal.file.inspect import inspect
from orthia.journal.file.tools import compact, recover
from orthia.journal.model.message import RECORD_OVERHEAD
from tests.file_journal.commands import run, write_broker_xml
from tests.file_journal.former import FILE_HEADER, VERSION, refusal, restore
from tests.file_journal.support import FILE_SIZE, DirectJournal, file_settings, stored
from tests.journal.support import OTHER_QUEUE, QUEUE, FileJournalStore

FIXTURE = "version-1.json"


class Restored:
    """A journal of the former version, as a kill left it."""

    def __init__(self, directory: Path) -> None:
        self.store = FileJournalStore(directory, journal_file_size=FILE_SIZE)
        self.settings = self.store.settings
        self.said: dict[str, Any] = restore(FIXTURE, self.settings)
        self._token = self.said["token"]

    def files(self) -> list[Path]:
        """Return its files but the fence."""
        s = self.settings
        return [*s.journal_directory.glob("*.amq"), *s.bindings_directory.iterdir()]

    def versions(self) -> set[int]:
        """Return the versions of the format that its files are of."""
        return {struct.unpack_from(">H", path.read_bytes(), 8)[0] for path in self.files()}

    def check(self) -> None:
        """Open it as the next node does, and fail unless everything is there as it was sent."""
        self._token += 1
        journal = self.store.open(self._token)
        names = [one.name for one in journal.bindings if isinstance(one, QueueBinding)]
        assert names == self.said["queues"]
        for queue in (QUEUE, OTHER_QUEUE):
            window = self.store.window(journal, queue)
            assert window.corrupt == []
            found = [(one.seq, one.record.body.decode()) for one in window.messages]
            assert found == [(seq, text) for seq, to, text in self.said["messages"] if to == queue]
        self.store.close()


@pytest.fixture
def restored(tmp_path: Path) -> Restored:
    """Give a journal that the former version wrote."""
    one = Restored(tmp_path)
    assert one.versions() == {VERSION}
    return one


@pytest.fixture
def broker_xml(tmp_path: Path, restored: Restored) -> Path:
    """Give the broker.xml of that journal."""
    return write_broker_xml(tmp_path, restored.settings)


def test_a_journal_of_the_former_version_is_opened_and_goes_on(restored: Restored) -> None:
    """Everything is there, a forging client's bodies are not taken for records, and it goes on."""
    restored.check()
    assert restored.versions() == {VERSION, 2}, "what is written is of the new version"
    journal = DirectJournal(restored.settings, token=20)
    before = journal.live()
    more = journal.add("more")
    journal.abandon()
    assert stored(restored.settings) == [*before, *more]


def test_compacting_makes_it_a_journal_of_the_new_version(restored: Restored) -> None:
    """Nothing is lost on the way, and afterwards no file of the former version is left."""
    compact(restored.settings)
    assert restored.versions() == {2}
    restored.check()


def test_a_node_compacts_and_uses_up_files_of_the_former_version(restored: Restored) -> None:
    """Live messages move to files of the new version beside the traffic; the old files go."""
    journal = DirectJournal(restored.settings, token=2)
    journal.opened.messages.compact()
    journal.opened.bindings.compact()
    for files in journal.opened.instances:
        files.reclaim()
    assert restored.versions() == {2}
    journal.abandon()
    restored._token = 2
    restored.check()


@pytest.mark.parametrize("command", ["print", "compact", "recover"])
def test_the_commands_take_either_version(
    broker_xml: Path, restored: Restored, command: str
) -> None:
    """They find the former version whole; mixed with the new one, too; and lose nothing."""
    for _ in range(2):
        code, said, error = run("data", command, "--config", broker_xml)
        assert (code, error) == (0, ""), said
        restored.check()
    code, said, _ = run("data", "print", "--config", broker_xml, "--records", "--json")
    assert code == 0
    live = sum(file["live"] for file in json.loads(said)["files"] if "data" in file["file"])
    assert live == len(restored.said["messages"]) + 1, "and the body that two of them share"


def test_damage_of_a_former_version_is_named_and_recovered_from(restored: Restored) -> None:
    """A flipped byte of a closed file is no less damage than in a file of the new version."""
    seq, _, text = next(one for one in restored.said["messages"] if one[2].startswith("closed"))
    for path in restored.files():
        content = path.read_bytes()
        at = content.find(text.encode())
        if at > 0:
            at -= RECORD_OVERHEAD + 40
            path.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
    with pytest.raises(JournalDamaged, match="are no records"):
        DirectJournal(restored.settings, token=2)
    (finding,) = recover(restored.settings).findings
    assert "what they stored is lost" in finding
    restored.said["messages"] = [one for one in restored.said["messages"] if one[0] != seq]
    restored._token = 2
    restored.check()


def test_a_node_of_the_former_version_refuses_newer_files_by_name(tmp_path: Path) -> None:
    """It says of which version they are, and takes them for no damage."""
    s = file_settings(tmp_path)
    DirectJournal(s).abandon()
    files = [*s.journal_directory.glob("*.amq"), *s.bindings_directory.iterdir()]
    assert {refusal(path.read_bytes()) for path in files} == {
        "it is of format version 2, and this node reads 1"
    }


def test_files_of_a_later_version_are_refused_by_name_and_left_alone(tmp_path: Path) -> None:
    """Neither a node nor a command touches what it cannot read: recovering would empty them."""
    s = file_settings(tmp_path)
    journal = DirectJournal(s)
    journal.add("something")
    journal.close()
    (path,) = s.journal_directory.glob("*.amq")
    content = path.read_bytes()
    magic, version, *rest = FILE_HEADER.unpack_from(content)
    head = FILE_HEADER.pack(magic, version + 1, *rest)
    later = head + struct.pack(">I", zlib.crc32(head)) + content[FILE_HEADER.size + 4 :]
    path.write_bytes(later)
    for step in (lambda: DirectJournal(s, token=2), lambda: compact(s), lambda: recover(s)):
        with pytest.raises(UnknownFormat, match=f"{path}.* format version 3.* reads 1 to 2") as met:
            step()
        assert "install the version that wrote them" in str(met.value)
        assert code_of(met.value) is ExitCode.IO_ERROR
    with pytest.raises(UnknownFormat):
        inspect(s)
    assert [one.name for one in s.journal_directory.iterdir() if one.is_dir()] == []
    assert path.read_bytes() == later


def test_the_salt_is_not_shown_with_its_header(tmp_path: Path) -> None:
    """What is logged of a file says nothing of what clients must not know."""
    s = file_settings(tmp_path)
    DirectJournal(s).close()
    (path,) = s.journal_directory.glob("*.amq")
    header = decode_header(path.read_bytes())
    assert repr(header.salt) not in repr(header)
    assert "salt" not in repr(header)
