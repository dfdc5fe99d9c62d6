"""Meeting the files of Artemis: said to be Artemis', left alone, and nothing tells to remove them.

The bytes are those Artemis 2.44 writes: the header of a journal file, and ``server.lock`` of a node
that was live.
"""

import struct
import uuid
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from orthia.broker.cli.app import orthia
from orthia.broker.node.exit_codes import ExitCode
from orthia.config.store_settings import FileStoreSettings
from orthia.database import PermanentStoreError
from orthia.journal.errors import ForeignJournal
from orthia.journal.file.artemis import is_of_artemis, refuse_files_of_artemis
from orthia.journal.file.format import SALT_BYTES, FileHeader, Kind, encode_header
from orthia.journal.file.inspect import inspect, list_transactions
from orthia.journal.file.tools import compact, recover
from orthia.nodemanager.locks.server_lock import STATE_FILE, ServerLock

_HEADER = struct.Struct(">iiq")


def _journal_file(file_id: int, version: int = 2, user_version: int = 2) -> bytes:
    return _HEADER.pack(version, user_version, file_id).ljust(4_096, b"\0")


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """An instance of Artemis with its journal, its bindings and its lock."""
    journal, bindings = tmp_path / "data" / "journal", tmp_path / "data" / "bindings"
    for made, prefix, extension in (
        (journal, "activemq-data", "amq"),
        (bindings, "activemq-bindings", "bindings"),
    ):
        made.mkdir(parents=True)
        for file_id in (1, 2):
            (made / f"{prefix}-{file_id}.{extension}").write_bytes(_journal_file(file_id))
    (journal / STATE_FILE).write_bytes(b"L00" + uuid.uuid4().bytes)
    return tmp_path


def _contents(directory: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def _store(directory: Path) -> FileStoreSettings:
    data = directory / "data"
    return FileStoreSettings(data / "journal", data / "bindings", data / "large-messages")


@pytest.mark.parametrize("read", [inspect, compact, recover, list_transactions])
def test_every_tool_says_that_a_journal_is_artemis(
    directory: Path, read: Callable[[FileStoreSettings], object]
) -> None:
    """None sends to another tool, and not a byte is changed."""
    before = _contents(directory)
    with pytest.raises(ForeignJournal) as refused:
        read(_store(directory))
    text = str(refused.value)
    assert "activemq-data-1.amq is of Apache ActiveMQ Artemis' journal" in text
    assert "journal-directory" in text
    assert "recover`" not in text
    assert "remove" not in text
    assert _contents(directory) == before


def test_its_bindings_alone_are_met_too(directory: Path, tmp_path: Path) -> None:
    """The two directories may be apart."""
    store = replace(_store(directory), journal_directory=tmp_path / "empty")
    with pytest.raises(ForeignJournal, match=r"activemq-bindings-1\.bindings is of Apache"):
        recover(store)


@pytest.mark.parametrize("with_journal", [True, False])
def test_a_node_on_its_directory_ends_and_changes_nothing(
    directory: Path, with_journal: bool
) -> None:
    """Exit code 78, for its lock alone too; what was there is there as it was."""
    if not with_journal:
        for path in directory.rglob("activemq-*"):
            path.unlink()
    file = directory / "etc" / "broker.xml"
    file.parent.mkdir()
    file.write_text(
        '<configuration xmlns="urn:activemq"><core xmlns="urn:activemq:core">'
        "<security-enabled>false</security-enabled><acceptors>"
        "<acceptor>tcp://127.0.0.1:0</acceptor></acceptors></core></configuration>"
    )
    before = _contents(directory)
    result = CliRunner().invoke(orthia, ["run", str(file)])
    assert result.exit_code == ExitCode.CONFIGURATION
    after = _contents(directory)
    assert {path: after[path] for path in before} == before


STATES = (b"L", b"F", b"P", b"N")
"""As Artemis writes them."""


@pytest.mark.parametrize(
    "content",
    [b"000", b"000" + bytes(16), *(state + b"00" + bytes(range(16)) for state in STATES)],
    ids=["new", "empty id", "live", "failing back", "paused", "not started"],
)
def test_its_lock_file_is_named_and_not_to_be_removed(tmp_path: Path, content: bytes) -> None:
    """It says who is live of a pair of Artemis."""
    (tmp_path / STATE_FILE).write_bytes(content)
    lock = ServerLock(tmp_path)
    try:
        with pytest.raises(PermanentStoreError) as refused:
            lock.read()
    finally:
        lock.close()
    assert "is Apache ActiveMQ Artemis' own" in str(refused.value)
    assert "remove" not in str(refused.value)
    assert (tmp_path / STATE_FILE).read_bytes() == content


def test_a_lock_file_of_orthias_that_is_damaged_is_not_taken_for_artemis(tmp_path: Path) -> None:
    """What it says then is what it said before."""
    (tmp_path / STATE_FILE).write_bytes(b'{"state": "L"'.ljust(1_024))
    lock = ServerLock(tmp_path)
    try:
        with pytest.raises(PermanentStoreError, match="cannot be read"):
            lock.read()
    finally:
        lock.close()


def test_a_file_that_is_removed_meanwhile_is_passed_over(tmp_path: Path) -> None:
    """A node that runs removes its own while a tool looks; a link to nothing is as one removed."""
    (tmp_path / "activemq-data-1.amq").symlink_to(tmp_path / "removed")
    refuse_files_of_artemis(FileStoreSettings(tmp_path, tmp_path, tmp_path))
    (tmp_path / "activemq-data-2.amq").write_bytes(_journal_file(2))
    with pytest.raises(ForeignJournal, match=r"activemq-data-2\.amq"):
        refuse_files_of_artemis(FileStoreSettings(tmp_path, tmp_path, tmp_path))


def test_files_of_orthias_are_not_taken_for_artemis() -> None:
    """Nor is a file that is empty, or filled with zeros to be written."""
    header = FileHeader(Kind.MESSAGES, 1, 1, 1, bytes(SALT_BYTES))
    assert not is_of_artemis(encode_header(header))
    assert not is_of_artemis(b"")
    assert not is_of_artemis(bytes(4_096))
    assert is_of_artemis(_journal_file(7, version=1, user_version=0))
