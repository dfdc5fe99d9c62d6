"""The lines a node logs."""

import errno
import fcntl
import io
import json
import logging
import os
import threading
from collections.abc import Iterator

import pytest

from orthia.broker.node.log_queue import QueuedHandler
from orthia.broker.node.logs import LogFormat, configure, set_role
from orthia.config.clock import monotonic_seconds
from tests.support.waiting import wait_until


class _Stream(io.StringIO):
    """A stream that has all that was logged when it is looked at."""

    def getvalue(self) -> str:
        for handler in logging.getLogger().handlers:
            handler.flush()
        return super().getvalue()


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    """Give a stream that is written to only while the test lasts."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield _Stream()
    for handler in root.handlers:
        if isinstance(handler, QueuedHandler):
            handler.stop()
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.captureWarnings(capture=False)


def test_a_line_has_time_level_code_node_role_and_message(stream: io.StringIO) -> None:
    """A line of text has every fact an operator searches for, in a fixed order."""
    configure(LogFormat.TEXT, node="node-a", role="live", stream=stream)
    logging.getLogger("orthia.failover").warning("it %s", "happened", extra={"code": "AMQ221007"})
    date, time, level, *rest = stream.getvalue().split()
    assert len(f"{date} {time}") == len("2026-01-31 12:00:00.123")
    assert (level, rest) == ("WARN", ["AMQ221007", "node-a", "live:", "it", "happened"])


def test_a_record_may_name_its_own_node_and_role(stream: io.StringIO) -> None:
    """What a record says of itself wins over what the process was configured with."""
    configure(LogFormat.TEXT, node="node-a", role="live", stream=stream)
    logging.getLogger("x").error("m", extra={"node": "node-b", "role": "backup"})
    assert " -         node-b backup: m" in stream.getvalue()


def test_the_role_changes_with_the_node(stream: io.StringIO) -> None:
    """After a takeover the lines are the live node's."""
    configure(LogFormat.TEXT, node="node-b", role="backup", stream=stream)
    set_role("live")
    logging.getLogger("x").info("m")
    assert "node-b live: m" in stream.getvalue()


def test_a_message_of_several_lines_stays_one_line(stream: io.StringIO) -> None:
    """A fact is one line, whatever text it carries, so that nobody can forge a second one."""
    configure(LogFormat.TEXT, stream=stream)
    logging.getLogger("x").info("one\r\ntwo")
    assert stream.getvalue().endswith("one | two\n")
    assert stream.getvalue().count("\n") == 1


def test_json_lines_carry_every_extra_field(stream: io.StringIO) -> None:
    """A JSON line has the same facts, and the record's extra fields as they are."""
    configure(LogFormat.JSON, node="node-a", role="live", stream=stream)
    logging.getLogger("x").info("m\nn", extra={"code": "ORT100001", "token": 7})
    line = json.loads(stream.getvalue())
    assert {name: line[name] for name in ("level", "code", "node", "role", "message", "token")} == {
        "level": "INFO",
        "code": "ORT100001",
        "node": "node-a",
        "role": "live",
        "message": "m\nn",
        "token": 7,
    }
    assert stream.getvalue().count("\n") == 1


def test_json_lines_carry_the_traceback(stream: io.StringIO) -> None:
    """An exception's traceback is part of the JSON line and does not break it."""
    configure(LogFormat.JSON, stream=stream)
    try:
        int("bad")
    except ValueError:
        logging.getLogger("x").exception("it failed")
    assert "ValueError: invalid literal" in json.loads(stream.getvalue())["traceback"]


def test_libraries_do_not_chatter(stream: io.StringIO) -> None:
    """What Orthia says itself with a code is not logged a second time; what is wrong is."""
    configure(LogFormat.TEXT, stream=stream)
    logging.getLogger("alembic.runtime.migration").info("chatter")
    logging.getLogger("apscheduler.scheduler").warning("chatter: job skipped")
    logging.getLogger("alembic.runtime.migration").warning("odd revision")
    logging.getLogger("apscheduler.executors.default").error("job raised")
    assert "chatter" not in stream.getvalue()
    assert "odd revision" in stream.getvalue()
    assert "job raised" in stream.getvalue()


def test_configuring_again_does_not_log_twice(stream: io.StringIO) -> None:
    """A second ``configure`` replaces the first."""
    configure(LogFormat.TEXT, stream=stream)
    configure(LogFormat.TEXT, stream=stream)
    logging.getLogger("x").info("once")
    assert stream.getvalue().count("once") == 1


class _Pipe:
    """A pipe that is full, and a handler that writes into it."""

    def __init__(self, max_waiting_bytes: int) -> None:
        self.reader, writer = os.pipe()
        flags = fcntl.fcntl(writer, fcntl.F_GETFL)
        fcntl.fcntl(writer, fcntl.F_SETFL, flags | os.O_NONBLOCK)
        self.filling = 0
        while True:
            try:
                self.filling += os.write(writer, b"." * 4_096)
            except BlockingIOError:
                break
        fcntl.fcntl(writer, fcntl.F_SETFL, flags)
        self.stream = os.fdopen(writer, "w")
        self.handler = QueuedHandler(self.stream, max_waiting_bytes)
        self.read = b""
        self._thread = threading.Thread(target=self._read_on, daemon=True)

    def read_on(self) -> None:
        """Read what is in it and whatever follows."""
        self._thread.start()

    def _read_on(self) -> None:
        while data := os.read(self.reader, 65_536):
            self.read += data

    @property
    def lines(self) -> list[str]:
        """What was logged, as far as it was read."""
        return self.read[self.filling :].decode().splitlines()

    def end(self) -> None:
        """Close it."""
        if not self._thread.is_alive():
            self.read_on()
        self.handler.stop()
        self.stream.close()
        self._thread.join()
        os.close(self.reader)


def _log(pipe: _Pipe, text: str) -> None:
    pipe.handler.handle(logging.LogRecord("x", logging.INFO, __file__, 1, text, None, None))


@pytest.fixture
def full_pipe() -> Iterator[_Pipe]:
    """Give a pipe that takes nothing, with room for ten lines of ten characters before it."""
    made = _Pipe(10 * 111)
    yield made
    made.end()


def test_nobody_waits_for_a_log_that_nobody_reads(full_pipe: _Pipe) -> None:
    """Lines wait up to a bound; what is lost above it is counted where it is missing."""
    for number in range(1_000):
        _log(full_pipe, f"before {number:03d}")
    full_pipe.read_on()
    full_pipe.handler.flush(60)
    _log(full_pipe, "after")
    full_pipe.handler.flush(60)
    wait_until(lambda: full_pipe.lines[-1:] == ["after"])
    *before, report, after = full_pipe.lines
    assert before == [f"before {number:03d}" for number in range(10)]
    assert report.startswith("990 lines of this log were lost here: for ")
    assert after == "after"


def test_the_bound_holds_however_often_lines_were_lost() -> None:
    """The line that says how many were lost counts as others do, and is given back as they are."""
    is_read = threading.Event()

    class _Terminal(io.StringIO):
        def write(self, text: str) -> int:
            assert is_read.wait(60)
            return super().write(text)

    terminal = _Terminal()
    handler = QueuedHandler(terminal, 10 * 111)
    for round_number in range(3):
        is_read.clear()
        terminal.truncate(0)
        terminal.seek(0)
        for number in range(100):
            text = f"line {round_number} {number:03d}"
            handler.handle(logging.LogRecord("x", logging.INFO, __file__, 1, text, None, None))
        is_read.set()
        handler.flush(60)
        *kept, report = terminal.getvalue().splitlines()
        assert kept == [f"line {round_number} {number:03d}" for number in range(10)]
        assert report.startswith("90 lines of this log were lost here: for ")
    handler.stop()


def test_a_flush_is_bounded(full_pipe: _Pipe) -> None:
    """A process whose log nobody reads ends all the same."""
    _log(full_pipe, "last words")
    began = monotonic_seconds()
    full_pipe.handler.flush(0.2)
    assert monotonic_seconds() - began < 120
    assert full_pipe.lines == []


def test_a_log_that_cannot_be_written_is_tried_again() -> None:
    """A full disk costs no line until too many wait."""
    failures = [OSError(errno.ENOSPC, "No space left on device")] * 2

    class _FullDisk(io.StringIO):
        def write(self, text: str) -> int:
            if failures:
                raise failures.pop()
            return super().write(text)

    disk = _FullDisk()
    handler = QueuedHandler(disk)
    record = logging.LogRecord("x", logging.INFO, __file__, 1, "kept", None, None)
    handler.handle(record)
    handler.flush(60)
    handler.stop()
    assert (disk.getvalue(), failures) == ("kept\n", [])


def test_a_line_that_hangs_as_it_is_made_keeps_no_other_back() -> None:
    """A traceback shows source: where its file system hangs, others log on and the process ends."""
    is_hanging, is_let_go = threading.Event(), threading.Event()

    class _Formatter(logging.Formatter):
        def format(self, record: logging.LogRecord) -> str:
            if threading.current_thread() is hanging:
                is_hanging.set()
                is_let_go.wait()
            return super().format(record)

    stream = io.StringIO()
    handler = QueuedHandler(stream)
    handler.setFormatter(_Formatter())
    first, second = (
        logging.LogRecord("x", logging.INFO, __file__, 1, text, None, None)
        for text in ("first", "second")
    )
    hanging = threading.Thread(target=handler.handle, args=(first,), daemon=True)
    other = threading.Thread(target=handler.handle, args=(second,), daemon=True)
    hanging.start()
    assert is_hanging.wait(120)
    other.start()
    other.join(120)
    handler.flush(120)
    logged = stream.getvalue()
    is_let_go.set()
    hanging.join()
    other.join()
    handler.stop()
    assert logged == "second\n"
    assert stream.getvalue() == "second\nfirst\n"


def test_a_line_that_cannot_be_shown_says_so() -> None:
    """A mistake in a call of the log is a line, and no exception for whoever made it."""
    stream = io.StringIO()
    handler = QueuedHandler(stream)
    handler.handle(logging.LogRecord("x", logging.INFO, __file__, 1, "%d", ("text",), None))
    handler.stop()
    assert stream.getvalue().startswith("a line of x cannot be shown: '%d': TypeError(")
