"""No line of a failover log ends the report: it is skipped, or told as far as it can be."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from orthia.nodemanager import events
from orthia.nodemanager.locks.lease import Lock
from orthia.pipeline.history.account import account_of
from orthia.pipeline.history.lives import life_of
from orthia.pipeline.history.rows import TABLES, Row, rows_of
from orthia.pipeline.report.page import html
from orthia.pipeline.report.picture import png
from orthia.pipeline.report.tables import chart_of, on_page
from orthia.pipeline.sources.failover_chapters import events_in, read_part
from orthia.pipeline.sources.failover_events import LogPart
from tests.pipeline.forging import Node, holder

ODD: list[Any] = [
    *(None, True, -1, 0, 2**63, 2**70, 1e308, float("nan"), float("inf"), "", "x", [], {}),
    *("\ud800", "\x00", "<b>", "a" * 5_000, {"a": 1}, "live", "backup", "LiveLockObtained"),
    *("9999-12-31T23:59:59.999999-12:00", "0001-01-01T00:00:00+12:00", "2026-01-01T00:00:00"),
    *("9999-12-31T23:59:59.999999Z", "0001-01-01T00:00:00Z", "2026-01-01T00:00:00.5+00:00:30"),
    *("x@h:1:u/99999999999999999999/0", "x@h:1:u/-1/-1", holder("b")),
]


def log() -> list[dict[str, Any]]:
    """Return the lines of a pair of which one node was killed."""
    first = Node("a").becomes_live(0, 1)
    first.says(50, events.RenewalSlow(Lock.LIVE, 1, 2_500.0, 2_000))
    second = Node("b").becomes_live(118.1, 2, holder("a"), renewed=98, gone=118)
    return [json.loads(one.to_json()) for node in (first, second) for one in node.entries()]


def told(path: Path, lines: list[dict[str, Any]]) -> dict[str, list[Row]]:
    """Return what is told of lines, as the report's tables, which can be shown and sent."""
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    lives = []
    last = 0
    for batch in read_part(LogPart(files=[str(path)])):
        for row in batch.to_pylist():
            assert row["error"] is None
            lives.append(life_of(row["holder"], row["node"], events_in(row["events"])))
            last = max(last, row["last_at"])
    account = account_of(lives, None, None, last)
    tables: dict[str, list[Row]] = {name: [] for name in TABLES}
    for name, row in rows_of("pair", account, lives):
        tables[name].append(json.loads(json.dumps(row)))
    html(chart_of(tables), on_page(tables)).encode()
    return tables


FIELDS = [
    *log()[0],
    "details.former",
    "details.silent_ms",
    "details.gone_ms",
    "details.detection_ms",
]


@pytest.mark.parametrize("field", FIELDS)
def test_whatever_a_field_says_there_is_a_report(
    field: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """In the first, in one amid and in all of them; availability is between none and all."""
    caplog.set_level(logging.CRITICAL)
    outer, _, inner = field.partition(".")
    for odd in ODD:
        for which in (0, 5, None):
            lines = log()
            for number, line in enumerate(lines):
                if which in (number, None):
                    place = line[outer] if inner else line
                    place[inner or outer] = odd
            tables = told(tmp_path / "failover-a.jsonl", lines)
            (pair,) = tables["availability"]
            if pair["availability"] is not None:
                assert 0 <= pair["availability"] <= pair["availability_most"] <= 1


def test_half_a_character_is_told_as_a_question_mark(tmp_path: Path) -> None:
    """A node that quotes a path which is no UTF-8 writes such; its event counts all the same."""
    lines = log()
    for line in lines:
        line["node_name"] = line["node_name"].replace("b", "b\udc80")
    tables = told(tmp_path / "failover-a.jsonl", lines)
    assert [row["node_name"] for row in tables["takeovers"]] == ["a", "b?"]


def test_a_period_of_ten_thousand_years_can_be_drawn(tmp_path: Path) -> None:
    """One forged time stretches it; it is a picture still."""
    lines = log()
    lines[0]["db_time"] = "0001-01-01T00:00:00Z"
    lines[-1]["db_time"] = "9999-12-31T23:59:59.999999Z"
    png(chart_of(told(tmp_path / "failover-a.jsonl", lines)), tmp_path / "one.png")
    assert (tmp_path / "one.png").stat().st_size > 0
