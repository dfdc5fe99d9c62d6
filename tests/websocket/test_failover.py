"""@stomp/stompjs in Node between the two nodes of a pair, by ws and by wss."""

import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from orthia.config.settings import Role
from tests.process.nodes import NodeProcess
from tests.support.certificates import Authority
from tests.websocket.javascript_clients import HERE, NODE, needs_node

pytestmark = [pytest.mark.extended, needs_node]
COUNT = 200
_SECONDS = 240
_FILE = """<configuration xmlns="urn:activemq"><core xmlns="urn:activemq:core">
  <name>{name}</name>
  <store><database-store>
    <jdbc-connection-url>{url}</jdbc-connection-url>
    <jdbc-lock-expiration>300000</jdbc-lock-expiration>
  </database-store></store>
  <ha-policy><shared-store><{role}>{policy}</{role}></shared-store></ha-policy>
  <security-enabled>false</security-enabled>
  <acceptors><acceptor name="web">tcp://127.0.0.1:{port}{parameters}</acceptor></acceptors>
</core></configuration>
"""


@dataclass
class WebNode(NodeProcess):
    """A node of a pair, whose acceptor may have TLS.

    Its lease is long: that it was killed is seen by its presence lock, and nothing else ends it.
    """

    parameters: str = ""

    def command(self) -> list[str]:
        """Return how it is started, its broker.xml written."""
        directory = self.directory / self.name
        directory.mkdir(exist_ok=True)
        path = directory / "broker.xml"
        is_live = self.role is Role.LIVE
        path.write_text(
            _FILE.format(
                name=self.name,
                url=self.url,
                role="primary" if is_live else "backup",
                policy="<failover-on-shutdown>true</failover-on-shutdown>" if is_live else "",
                port=self.port,
                parameters=self.parameters,
            )
        )
        return [*super().command()[:3], "run", "--config", str(path)]


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    """Give one whose certificate is in ``ca.pem``."""
    return Authority(tmp_path / "ca.pem")


@pytest.fixture
def pair(
    request: pytest.FixtureRequest, authority: Authority, tmp_path: Path
) -> Iterator[tuple[str, WebNode, WebNode]]:
    """Give a scheme, a live node and its backup."""
    parameters = ""
    scheme: str = request.param
    if scheme == "wss":
        store = authority.sign().write_pem(tmp_path / "broker.pem")
        parameters = f"?sslEnabled=true;keyStorePath={store}"
    url = f"jdbc:sqlite:{tmp_path / 'orthia.db'}"
    live = WebNode(Role.LIVE, url, tmp_path, "live", parameters=parameters)
    backup = WebNode(Role.BACKUP, url, tmp_path, "backup", parameters=parameters)
    try:
        live.start().wait_serving()
        backup.start().wait_log("AMQ221031")
        yield scheme, live, backup
    finally:
        live.end()
        backup.end()


@pytest.mark.parametrize(("pair", "end"), [("ws", "terminate"), ("wss", "kill")], indirect=["pair"])
def test_it_goes_to_the_other_node_and_nothing_is_lost(
    pair: tuple[str, WebNode, WebNode], tmp_path: Path, end: str
) -> None:
    """What was receipted arrives, after the node was killed or stopped amid it."""
    scheme, live, backup = pair
    urls = [f"{scheme}://localhost:{one.port}/stomp" for one in (live, backup)]
    authority = (tmp_path / "ca.pem").read_text()
    options = {"urls": urls, "queue": "/queue/js", "authority": authority, "count": COUNT}
    command = [NODE, str(HERE / "failover.mjs"), json.dumps(options)]
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
    ) as client:
        try:
            assert client.stdout is not None
            while client.stdout.readline() != f"sent {COUNT // 4}\n":
                assert client.poll() is None
            getattr(live, end)()
            output, _ = client.communicate(timeout=_SECONDS)
        finally:
            client.kill()
    seen = json.loads(output.splitlines()[-1])
    assert seen["urls"][0] == urls[0]
    assert seen["urls"][-1] == urls[1]
    assert {*seen["bodies"]} == {*range(COUNT)}
