"""``orthia queue scheduled`` and ``cancel`` with a real node."""

from pathlib import Path

import pytest

from tests.process.clients import Client
from tests.process.nodes import cluster, orthia, told

pytestmark = pytest.mark.extended


def test_what_waits_is_listed_and_cancelled(tmp_path: Path) -> None:
    """An operator sees what is due when, and cancels one message of two."""
    url = f"sqlite:///{tmp_path / 'store.db'}"
    with cluster(url, tmp_path) as nodes:
        node = nodes.live().wait_serving()
        client = Client(node)
        for delay_ms in (7_200_000, 3_600_000):
            client.send("a", "x", AMQ_SCHEDULED_DELAY=str(delay_ms))
        first, second = scheduled(url)
        assert first["due"] < second["due"]
        assert first["queue"] == "orthia.scheduled.anycast.a"
        broker = ("--broker", f"127.0.0.1:{node.port}")
        arguments = ("queue", "cancel", first["queue"], str(first["message"]), *broker)
        orthia(*arguments)
        orthia(*arguments, code=1)
        assert scheduled(url, first["queue"]) == [second]
        client.close()


def scheduled(url: str, *arguments: str) -> list[dict[str, str]]:
    """Return what the command lists."""
    found: list[dict[str, str]] = told("queue", "scheduled", *arguments, "--url", url)
    return found
