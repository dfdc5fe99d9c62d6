"""rhea and go-amqp between the two nodes of a pair: nothing that was accepted is lost.

``make test-amqp`` brings both, where there are npm and Go.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from orthia.config.settings import Role
from tests.clients.amqp_programs import GO, NODE, RHEA, needs_go, needs_rhea, through
from tests.conftest import Servers
from tests.process.clients import take_all
from tests.process.file_nodes import FileCluster, file_cluster
from tests.process.nodes import NodeProcess
from tests.process.takeover_pairs import STORES, stored
from tests.support.certificates import Authority

pytestmark = pytest.mark.extended

COUNT = 2_000
QUEUE = "through-a-crash"
_POLICY = "<failover-on-shutdown>true</failover-on-shutdown>"
Pair = tuple[NodeProcess, NodeProcess]


def started(nodes: FileCluster, parameters: str = "") -> Pair:
    """Start a live node and its backup, whose acceptors tell clients of both."""
    live = nodes.node(Role.LIVE, "live", policy=_POLICY)
    backup = nodes.node(Role.BACKUP, "backup", policy=_POLICY)
    both = f"amqpFailoverServers=localhost:{live.port},localhost:{backup.port}"
    for one in (live, backup):
        one.parameters = f"?{both}{parameters}"
    live.start().wait_serving()
    backup.start().wait_log("AMQ221031")
    return live, backup


@pytest.fixture(params=STORES)
def pair(request: pytest.FixtureRequest, shared_servers: Servers, tmp_path: Path) -> Iterator[Pair]:
    """Give a live node that serves and its backup, on each store."""
    core = stored(request.param, shared_servers, tmp_path)
    with file_cluster(tmp_path, core) as nodes:
        yield started(nodes)


def check(seen: dict[str, Any], backup: NodeProcess) -> None:
    """Each message was received, and its acknowledgement is known to the node that serves now."""
    assert {*seen["bodies"]} == {*range(COUNT)}
    assert take_all(backup.port, f"/queue/{QUEUE}") == []


@needs_rhea
def test_rhea_finds_the_backup_by_what_the_broker_says(pair: Pair) -> None:
    """It is told of the live node only, which is killed amid 2,000 messages."""
    live, backup = pair
    options = {"port": live.port, "queue": QUEUE, "count": COUNT}
    seen = through([NODE, str(RHEA), json.dumps(options)], COUNT // 4, live.kill)
    assert seen["listed"] == [live.port, backup.port]
    assert seen["ports"] == [live.port, backup.port]
    check(seen, backup)


@needs_go
def test_go_amqp_goes_on_with_the_backup(pair: Pair) -> None:
    """It sends again what was not accepted when the live node was killed."""
    live, backup = pair
    addresses = [f"localhost:{one.port}" for one in pair]
    seen = through([str(GO), QUEUE, str(COUNT), *addresses], COUNT // 4, live.kill)
    assert seen["addresses"] == addresses
    check(seen, backup)


@needs_rhea
@pytest.mark.parametrize(("scheme", "end"), [("ws", "terminate"), ("wss", "kill")])
def test_rhea_goes_by_web_socket(scheme: str, end: str, tmp_path: Path) -> None:
    """With the subprotocol amqp, to a node that ends amid it, and then to the other one."""
    authority, parameters = Authority(tmp_path / "ca.pem"), ""
    if scheme == "wss":
        store = authority.sign().write_pem(tmp_path / "broker.pem")
        parameters = f";sslEnabled=true;keyStorePath={store}"
    with file_cluster(tmp_path, stored("sqlite", None, tmp_path)) as nodes:
        live, backup = started(nodes, parameters)
        options = {
            "urls": [f"{scheme}://localhost:{one.port}/" for one in (live, backup)],
            "queue": QUEUE,
            "count": COUNT,
            "authority": (tmp_path / "ca.pem").read_text(),
        }
        command = [NODE, str(RHEA), json.dumps(options)]
        seen = through(command, COUNT // 4, getattr(live, end))
        assert seen["ports"] == [live.port, backup.port]
        assert seen["subprotocols"] == ["amqp"] * 2
        assert {*seen["bodies"]} == {*range(COUNT)}
