"""The pair on PostgreSQL of examples/postgresql: what its compose file starts, without Docker."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from orthia.config.settings import Role
from tests.conftest import Servers
from tests.examples.programs import COUNT, EXAMPLES, programs
from tests.process.nodes import NodeProcess
from tests.support.servers import PASSWORD, USER

_HERE = EXAMPLES / "postgresql"
_COMPOSE: dict[str, Any] = yaml.safe_load((_HERE / "compose.yaml").read_text())
_SERVICES: dict[str, Any] = _COMPOSE["services"]
_NODES = {name: one for name, one in _SERVICES.items() if "build" in one}
_ORTHIA = [sys.executable, "-m", "orthia.broker.cli"]
_FILE = _HERE / "broker.xml"
_LOGIN = "client-secret"


def _environment(service: dict[str, Any]) -> dict[str, str]:
    """Return the variables that a node has, with values of this test."""
    values = {"ORTHIA_JDBC_PASSWORD": PASSWORD, "ORTHIA_PASSWORD": _LOGIN}
    return {name: values[name] for name in service["environment"]}


@pytest.mark.parametrize("name", _NODES)
def test_a_node_has_what_its_configuration_names(name: str) -> None:
    """Its file is valid with the variables it has, names the database's service, and is mounted."""
    service = _NODES[name]
    checked = subprocess.run(
        [*_ORTHIA, "check", str(_FILE)],
        env={"PATH": os.environ["PATH"], **_environment(service)},
        cwd=EXAMPLES.parent,
        capture_output=True,
        text=True,
    )
    assert checked.returncode == 0, checked.stderr
    host, database = re.findall(r"jdbc:postgresql://(\w+):5432/(\w+)<", _FILE.read_text())[0]
    assert host in service["depends_on"]
    assert _SERVICES[host]["environment"]["POSTGRES_DB"] == database
    assert f"<jdbc-user>{_SERVICES[host]['environment']['POSTGRES_USER']}<" in _FILE.read_text()
    (mounted,) = service["volumes"]
    source, target, _ = mounted.split(":")
    assert (_HERE / source).samefile(_FILE)
    assert service["command"][service["command"].index("--config") + 1] == target
    (port,) = service["ports"]
    assert f"tcp://0.0.0.0:{port.rpartition(':')[2]}?" in _FILE.read_text()


def test_the_image_is_made_of_this_checkout() -> None:
    """What compose and Dockerfile name is there, and the entry point is what pip installs."""
    for service in _NODES.values():
        context = _HERE / service["build"]["context"]
        assert (context / service["build"]["dockerfile"]).samefile(_HERE / "Dockerfile")
    text = (_HERE / "Dockerfile").read_text()
    assert re.findall(r"/source/([\w.-]+)", text) == ["requirements.lock"]
    assert 'ENTRYPOINT ["/opt/orthia/bin/orthia"]' in text


@dataclass
class ComposeNode(NodeProcess):
    """A node with the command of its service; database and port are those of the test."""

    service: dict[str, Any] = field(default_factory=dict)

    def command(self) -> list[str]:
        """Return how it is started."""
        said = [str(_FILE) if one.startswith("/etc") else one for one in self.service["command"]]
        store = ["--url", self.url, "--jdbc-user", USER]
        return [*_ORTHIA, *said, *store, "--port", str(self.port)]


@pytest.fixture
def nodes(shared_servers: Servers, tmp_path: Path) -> Iterator[list[ComposeNode]]:
    """Give the nodes of the compose file on a private PostgreSQL, the live one first."""
    server = shared_servers("postgresql")
    url = server.url(server.create_database())
    with ExitStack() as ending:
        made = []
        for name, service in _NODES.items():
            role = Role(service["command"][0])
            node = ComposeNode(role, url, tmp_path, name, service=service)
            node.environment = _environment(service)
            ending.callback(node.end)
            made.append(node)
        made[0].start().wait_serving()
        made[1].start().wait_log("AMQ221031")
        yield made


def test_a_pair_of_the_compose_file_takes_over(nodes: list[ComposeNode], tmp_path: Path) -> None:
    """With the login and the clients that the README of the examples names."""
    live = nodes[0]
    addresses = [f"127.0.0.1:{one.port}" for one in nodes]
    login = {"STOMP_LOGIN": "admin", "STOMP_PASSCODE": _LOGIN}
    with programs(tmp_path, login) as running:
        consumer = running.start([sys.executable, "python/consumer.py", *addresses])
        producer = running.start([sys.executable, "python/producer.py", str(COUNT), *addresses])
        producer.wait_for("stored", COUNT // 4)
        live.kill()
        producer.wait_for("stored", COUNT)
        consumer.wait_for("got", COUNT)
        # As compose does after `docker compose start`: it gets its place back.
        live.start().wait_serving()
    assert [one for one in nodes if "Traceback" in one.log] == []
