"""The programs of README.md and docs/getting-started.md, as a newcomer runs them."""

import re
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from orthia.broker.client.connection import BrokerAddress
from orthia.broker.client.failover import FailoverLink
from orthia.broker.client.traffic import Consumer
from orthia.config.settings import Role
from tests.process.nodes import CLI, NodeProcess
from tests.support.servers import free_port

ROOT = Path(__file__).parents[2]
PAGE, README = ROOT / "docs" / "getting-started.md", ROOT / "README.md"


@pytest.mark.parametrize("number", [0, 1])
def test_the_client_has_its_message_stored(tmp_path: Path, number: int) -> None:
    """Whichever of the two nodes serves, it ends only when the message is in the store."""
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    node = NodeProcess(Role.LIVE, f"sqlite:///{tmp_path}/orthia.db", tmp_path, "live")
    ports = [free_port(), free_port()]
    ports[number] = node.port
    client = tmp_path / "client.py"
    client.write_text(code.replace("61613", str(ports[0])).replace("61614", str(ports[1])))
    node.start().wait_serving()
    try:
        shown = subprocess.run(
            [sys.executable, str(client)], capture_output=True, text=True, check=True, timeout=120
        )
        assert shown.stdout == "stored\n"
        link = FailoverLink([BrokerAddress("127.0.0.1", node.port)], patience_seconds=120)
        assert Consumer(link, "/queue/orders", count=1).run().confirmed == 1
    finally:
        node.end()


def test_what_the_readme_commits_is_sent_and_what_it_rolls_back_is_not(tmp_path: Path) -> None:
    """Its program as it is, on the database of a node like those that ``make run`` starts."""
    (code,) = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    (tmp_path / "instance").mkdir()
    url = f"sqlite:///{tmp_path}/instance/orthia.db"
    node = NodeProcess(Role.LIVE, url, tmp_path, "live", options={"outbox": True})
    node.start().wait_serving()
    try:
        for _ in range(2):  # it can be tried again
            subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True, timeout=120)
        asked = [*CLI, "consume", "--broker", f"127.0.0.1:{node.port}", "--count", "2", "--print"]
        asked += ["--destination", "/queue/orders", "--timeout", "120"]
        shown = subprocess.run(asked, capture_output=True, text=True, check=True, timeout=240)
        bodies = [line for line in shown.stdout.splitlines() if line.startswith("order ")]
        assert bodies == ["order 4711", "order 4711"]
        with closing(sqlite3.connect(tmp_path / "instance" / "orthia.db", timeout=60)) as shop:
            assert shop.execute("SELECT id FROM orders").fetchall() == [(4711,), (4711,)]
    finally:
        node.end()
