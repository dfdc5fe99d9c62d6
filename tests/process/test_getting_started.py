"""The client of docs/getting-started.md, as a newcomer runs it."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from orthia.broker.client.connection import BrokerAddress
from orthia.broker.client.failover import FailoverLink
from orthia.broker.client.traffic import Consumer
from orthia.config.settings import Role
from tests.process.nodes import NodeProcess
from tests.support.servers import free_port

PAGE = Path(__file__).parents[2] / "docs" / "getting-started.md"


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
