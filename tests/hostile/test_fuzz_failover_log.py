"""Whatever is in a failover log file: its events are shown, the rest is named and left out."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
import click.testing
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orthia.broker.cli.app import orthia
from orthia.nodemanager.failover_log import Entry
from orthia.nodemanager.merge import MAX_LINE_CHARACTERS
from tests.hostile.fuzzing import Long, damaged, fuzzed

pytestmark = pytest.mark.extended

GOOD = Entry(
    db_time=datetime(2026, 1, 31, 12, tzinfo=UTC),
    node_time=datetime(2026, 1, 31, 12, tzinfo=UTC),
    node_id="id",
    node_name="a",
    holder_id="a@host",
    role="live",
    code="AMQ221007",
    level="INFO",
    event="LiveActive",
    lock=None,
    token=7,
    event_seq=1,
    message="the good one",
    details={},
).to_json()
OTHER = json.dumps(json.loads(GOOD) | {"event_seq": 2, "holder_id": "b@host", "node_name": "b"})
ANYTHING = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(st.characters(), max_size=10),
    st.lists(st.integers(), max_size=2),
    st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
    st.sampled_from(
        ["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00", "2026-01-01T00:00:00", "2026"]
    ),
)


@st.composite
def retyped(draw: st.DrawFn) -> bytes:
    """Draw a line whose fields have any values, or are missing."""
    fields: dict[str, Any] = json.loads(OTHER)
    for name in draw(st.lists(st.sampled_from(sorted(fields)), max_size=4)):
        if draw(st.booleans()):
            fields[name] = draw(ANYTHING)
        else:
            fields.pop(name, None)
    return json.dumps(fields).encode()


LINES = st.one_of(
    retyped(),
    damaged(OTHER.encode(), (b'"', b"\\ud800", b"{", b"}", b"[", b"null", b"\n", b"\xff")),
    st.binary(max_size=100),
    st.sampled_from([Long(b"[" * 100_000), Long(b'{"a":' * 100_000), Long(b"x" * 2_000_000)]),
    st.just(b"9" * 5_000),
)


def shown(path: Path, *options: str) -> click.testing.Result:
    """Run ``orthia failover-log`` on the file, as a user does."""
    return click.testing.CliRunner().invoke(orthia, ["failover-log", *options, str(path)])


@fuzzed(150)
@given(st.lists(LINES, max_size=5), st.booleans())
def test_any_file_is_shown_as_far_as_it_can_be(
    tmp_path_factory: pytest.TempPathFactory, lines: list[bytes], as_json: bool
) -> None:
    """The good line among them is there, in text and as JSON; nothing ends in a traceback."""
    path = tmp_path_factory.getbasetemp() / "failover-a.jsonl"
    path.write_bytes(b"\n".join([*lines, GOOD.encode(), *lines]))
    result = shown(path, *(["--json"] if as_json else []))
    assert result.exception is None, result.exception
    assert "the good one" in result.stdout


def test_a_line_without_an_end_does_not_fill_the_memory(tmp_path: Path) -> None:
    """A hole of a gigabyte in the file is one line that is none; what follows is read."""
    path = tmp_path / "failover-a.jsonl"
    with path.open("wb") as file:
        file.write(GOOD.encode() + b"\n")
        file.truncate(64 * MAX_LINE_CHARACTERS)
        file.seek(0, 2)
        file.write(b"\n" + OTHER.encode() + b"\n")
    result = shown(path)
    assert result.exception is None
    assert [line.split()[3] for line in result.stdout.splitlines()] == ["a", "b"]
    assert result.output.count("is not a failover log line") <= 1
