"""What docs/monitoring/ makes of the metrics: alert rules for Prometheus, a board for Grafana."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from orthia.broker.core.limits.quota import ShownUse
from orthia.broker.core.sending.relay import RelayStatus
from orthia.broker.management.metrics import NodeMetrics, Values
from orthia.broker.management.queue_metrics import QueueSeen
from orthia.broker.tls.expiry import Validity
from orthia.database.lock_holders import SessionWithLock
from orthia.journal.engine.acks import AckStatus
from orthia.journal.engine.locks import LocksSeen
from orthia.journal.model.history import HistoryTotals, Kept

FILES: Final = Path(__file__).parents[2] / "docs" / "monitoring"
RULES: Final = FILES / "orthia-rules.yml"
DASHBOARD: Final = FILES / "orthia-dashboard.json"
PROMTOOL: Final = shutil.which("promtool") or ""
needs_promtool = pytest.mark.skipif(
    not PROMTOOL, reason="needs promtool: install Debian's package prometheus (make packages-all)"
)
NAME: Final = re.compile(r"\borthia_[a-z_]+\b")
LABELS: Final = re.compile(r"\b(orthia_[a-z_]+)\{([^}]*)\}")


def alerts() -> dict[str, dict[str, Any]]:
    """Return the rules by the names of their alerts."""
    groups = yaml.safe_load(RULES.read_text())["groups"]
    return {one["alert"]: one for group in groups for one in group["rules"]}


def asked_by_the_board() -> Iterator[str]:
    """Yield all that the board asks Prometheus for, as Grafana would ask it."""
    board = json.loads(DASHBOARD.read_text())
    asked = [target["expr"] for panel in board["panels"] for target in panel.get("targets", ())]
    asked += [one["expr"] for one in board["annotations"]["list"]]
    for one in asked:
        yield (
            one.replace("$job", ".*").replace("$__rate_interval", "1m").replace("$__range", "1h")
        )


def exposed() -> dict[str, set[str]]:
    """Return the labels of each series that a node has which knows everything."""
    now = datetime(2026, 1, 1, tzinfo=UTC)
    metrics = NodeMetrics(["live", "backup"], ["authentication"])
    values = Values(
        lease_seconds_remaining=lambda: 12.5,
        queue_depths=lambda: {"q": 3},
        connections=lambda: 3,
        history=lambda: HistoryTotals(Kept(2, 700), now),
        store_use=lambda: ShownUse(7_000, 9_000, frozenset({"disk"})),
        messages=lambda: {"added": 1, "dead_lettered": 1},
        certificates=lambda: {"stomp": Validity("stomp", "leaf", now, now)},
        locks=lambda: LocksSeen(2.5, 4, [SessionWithLock(99, "ann", "some GUI", "")]),
        queues=lambda: [QueueSeen("q", "a", False, 3, 2, 1, 9, 6, 0, 0, 1_000, 0.5)],
        outbox=lambda: RelayStatus(5, 2_500, 70, 1, "the store is full"),
        acks=lambda: AckStatus(3, 1.5, 40, None),
    )
    metrics.watch(values)
    found: dict[str, set[str]] = {}
    for family in metrics.registry.collect():
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


@pytest.mark.parametrize("of", ["rules", "board"])
def test_what_is_asked_of_prometheus_is_there(of: str) -> None:
    """Each metric, and each label that its series are chosen by; none that is always empty."""
    asked = [one["expr"] for one in alerts().values()] if of == "rules" else asked_by_the_board()
    has = exposed()
    number = 0
    for expression in asked:
        for name in NAME.findall(expression):
            assert name in has, expression
            number += 1
        for name, chosen in LABELS.findall(expression):
            labels = set(re.findall(r"(\w+)(?:=|!)", chosen)) - {"job"}
            assert labels <= has[name], expression
    assert number > 20


def test_the_board_shows_all_that_a_node_measures() -> None:
    """But for what is there for others, every metric is on it."""
    shown = {name for one in asked_by_the_board() for name in NAME.findall(one)}
    families = {re.sub(r"_(bucket|count|sum|total|created)$", "", one) for one in shown}
    there = {re.sub(r"_(bucket|count|sum|total|created)$", "", one) for one in exposed()}
    assert {one for one in there if one.startswith("orthia_")} - families == set()


def test_the_page_tells_of_every_alert() -> None:
    """By its name, so that whoever was woken finds it."""
    page = (FILES.parent / "monitoring.md").read_text()
    assert [one for one in alerts() if f"`{one}`" not in page] == []
    assert f"| {len(alerts())} alert rules" in page


def promtool(*arguments: str) -> str:
    """Return what promtool says; it has to find nothing wrong."""
    ran = subprocess.run([PROMTOOL, *arguments], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


@needs_promtool
def test_promtool_accepts_the_rules() -> None:
    """As whoever takes them over checks them."""
    assert f"{len(alerts())} rules found" in promtool("check", "rules", str(RULES))


@needs_promtool
def test_promtool_accepts_what_the_board_asks(tmp_path: Path) -> None:
    """A board with a mistake in an expression shows an empty panel, and nobody knows why."""
    rules = [
        {"record": f"board:{number}", "expr": one}
        for number, one in enumerate(asked_by_the_board())
    ]
    path = tmp_path / "board.yml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "board", "rules": rules}]}))
    assert f"{len(rules)} rules found" in promtool("check", "rules", str(path))


@needs_promtool
def test_the_alerts_are_raised_when_they_should_be() -> None:
    """A takeover, a pair without a live node, what fills, what is slow, what nobody consumes."""
    assert "SUCCESS" in promtool("test", "rules", str(FILES / "orthia-rules-test.yml"))
