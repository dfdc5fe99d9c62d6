"""@stomp/stompjs in Node between the two nodes of a pair, by ws and by wss."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.process.file_nodes import file_cluster
from tests.process.takeover_pairs import stored
from tests.support.certificates import Authority
from tests.websocket.javascript_clients import HERE, NODE, needs_node

pytestmark = [pytest.mark.extended, needs_node]
COUNT = 200
_SECONDS = 240


@pytest.mark.parametrize(("scheme", "end"), [("ws", "terminate"), ("wss", "kill")])
def test_it_goes_to_the_other_node_and_nothing_is_lost(
    scheme: str, end: str, authority: Authority, tmp_path: Path
) -> None:
    """What was receipted arrives, after the node was killed or stopped amid it."""
    parameters = ""
    if scheme == "wss":
        store = authority.sign().write_pem(tmp_path / "broker.pem")
        parameters = f"?sslEnabled=true;keyStorePath={store}"
    core = stored("sqlite", None, tmp_path)
    with file_cluster(tmp_path, core, parameters=parameters) as nodes:
        live, backup = nodes.pair()
        urls = [f"{scheme}://localhost:{one.port}/stomp" for one in (live, backup)]
        seen = sent_through(urls, getattr(live, end), (tmp_path / "ca.pem").read_text())
    assert seen["urls"][0] == urls[0]
    assert seen["urls"][-1] == urls[1]
    assert {*seen["bodies"]} == {*range(COUNT)}


def sent_through(urls: list[str], end: Callable[[], object], authority: str) -> dict[str, Any]:
    """Have a client send and receive, with a node ended amid it; return what it saw."""
    options = {"urls": urls, "queue": "/queue/js", "authority": authority, "count": COUNT}
    command = [NODE, str(HERE / "failover.mjs"), json.dumps(options)]
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
    ) as client:
        try:
            assert client.stdout is not None
            while client.stdout.readline() != f"sent {COUNT // 4}\n":
                assert client.poll() is None
            end()
            output, _ = client.communicate(timeout=_SECONDS)
        finally:
            client.kill()
    seen: dict[str, Any] = json.loads(output.splitlines()[-1])
    return seen
