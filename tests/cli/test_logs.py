"""The lines a node logs."""

import io
import json
import logging
from collections.abc import Iterator

import pytest

from broker.logs import LogFormat, configure, set_role


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    """Give a stream that is written to only while the test lasts."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield io.StringIO()
    root.handlers[:] = handlers
    root.setLevel(level)


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
