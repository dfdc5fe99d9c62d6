"""The file of the audit log: whole lines, bounded, nobody waits for it, moved away at any time."""

import json
import os
import stat
import threading
from pathlib import Path

import pytest

from orthia.broker.node.audit_file import KEPT_FILES, AuditFile
from tests.support.waiting import wait_until


def test_lines_are_written_and_private(tmp_path: Path) -> None:
    """In a directory that is made, named after the node."""
    file = AuditFile(tmp_path / "log", "node a")
    assert not (tmp_path / "log").exists()
    file.write(b"one\n")
    file.write(b"two\n")
    file.flush(120)
    assert file.path.name == "audit-node_a.jsonl"
    assert file.path.read_bytes() == b"one\ntwo\n"
    assert stat.S_IMODE(file.path.stat().st_mode) == 0o600


def test_a_file_that_was_moved_away_is_made_anew(tmp_path: Path) -> None:
    """As logrotate does it, without a word to the node."""
    file = AuditFile(tmp_path, "a")
    file.write(b"one\n")
    file.flush(120)
    file.path.rename(tmp_path / "moved")
    file.write(b"two\n")
    file.flush(120)
    assert (tmp_path / "moved").read_bytes() == b"one\n"
    assert file.path.read_bytes() == b"two\n"


def test_what_it_takes_of_a_disk_is_bounded(tmp_path: Path) -> None:
    """A full file is moved, and the oldest goes."""
    file = AuditFile(tmp_path, "a", max_file_bytes=10)
    for number in range(100):
        file.write(f"{number:03d}\n".encode())
    file.flush(120)
    files = sorted(one.name for one in tmp_path.iterdir())
    assert len(files) == KEPT_FILES + 1
    assert file.path.read_bytes() == b"098\n099\n"
    assert (tmp_path / "audit-a.jsonl.1").read_bytes() == b"096\n097\n"
    assert all(one.stat().st_size <= 10 for one in tmp_path.iterdir())


def test_a_disk_that_hangs_keeps_nobody_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is too much is lost, and the file says how many lines, where they were."""
    may_write, write = threading.Event(), os.write

    def slow(descriptor: int, data: bytes) -> int:
        assert may_write.wait(60)
        return write(descriptor, data)

    monkeypatch.setattr("orthia.broker.node.audit_file.os.write", slow)
    file = AuditFile(tmp_path, "a")
    line = b"x" * 1_000_000 + b"\n"
    for _ in range(20):
        file.write(line)
    may_write.set()
    file.flush(60)
    lines = file.path.read_bytes().splitlines()
    kept = [one for one in lines if one == line[:-1]]
    (gap,) = [json.loads(one) for one in lines if one != line[:-1]]
    assert (gap["event"], gap["lines"]) == ("lines-lost", 20 - len(kept))
    assert 0 < len(kept) < 20


def test_a_disk_that_takes_a_part_of_a_line_tears_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One fills up amid a line: it is told once, and the line is whole once there is room."""
    room, write, tried = [7], os.write, []

    def fill(descriptor: int, data: bytes) -> int:
        tried.append(data)
        if not room[0]:
            raise OSError(28, "No space left on device")
        written = write(descriptor, data[: room[0]])
        room[0] -= written
        return written

    monkeypatch.setattr("orthia.broker.node.audit_file.os.write", fill)
    file = AuditFile(tmp_path, "a")
    file.write(b"one\n")
    file.write(b"three\n")
    wait_until(lambda: len(tried) >= 3, what="the second was tried again")
    assert file.path.read_bytes() == b"one\n"
    room[0] = 100
    file.flush(60)
    assert file.path.read_bytes() == b"one\nthree\n"
    (told,) = [one.getMessage() for one in caplog.records]
    assert "cannot be written: No space left on device" in told
