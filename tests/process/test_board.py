"""The board and the rules of docs/monitoring/, asked of a Prometheus that scrapes a real pair."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest
import yaml

from orthia.config.settings import Role
from tests.management.test_monitoring import NAME, RULES, alerts, asked_by_the_board
from tests.process.clients import Client
from tests.process.file_nodes import FileNodeProcess
from tests.process.nodes import RENEW_PERIOD_MS, NodeProcess
from tests.support.servers import NODE_LEASE_MS, NODE_NETWORK_TIMEOUT_MS, free_port
from tests.support.waiting import wait_until

PROMETHEUS: Final = shutil.which("prometheus") or ""
pytestmark = [
    pytest.mark.extended,
    pytest.mark.skipif(
        not PROMETHEUS, reason="needs Debian's package prometheus (make packages-all)"
    ),
]
# What this pair has not: TLS, refused clients, rows that wait to be sent; on SQLite,
# acknowledgements by SQL and locked rows.
NOT_HERE: Final = re.compile(
    r"orthia_(acks|certificate|clients_refused|journal_locked_by|outbox_oldest)"
)


class Node(FileNodeProcess):
    """A node with all that can be measured on SQLite."""

    lease = (
        f"<jdbc-lock-renew-period>{RENEW_PERIOD_MS}</jdbc-lock-renew-period>"
        f"<jdbc-network-timeout>{NODE_NETWORK_TIMEOUT_MS}</jdbc-network-timeout>"
        f"<jdbc-lock-expiration>{NODE_LEASE_MS}</jdbc-lock-expiration>"
        '<journal-retention xmlns="urn:orthia" period="1" unit="HOURS"/>'
    )


class Watched:
    """A pair after a takeover, and a Prometheus that scrapes both of its nodes."""

    def __init__(self, directory: Path) -> None:
        self._ports = [free_port(), free_port()]
        self._port = free_port()
        url = f"sqlite:///{directory}/orthia.db"
        self.nodes = [
            Node(role, url, directory, name, core=_core(port), policy=_POLICY)
            for role, name, port in zip(Role, ("live", "backup"), self._ports, strict=True)
        ]
        self._directory = directory
        self._prometheus: subprocess.Popen[bytes] | None = None
        self._clients: list[Client] = []

    def start(self) -> None:
        """Fill a queue, the history and the outbox, and let the backup take over."""
        live, backup = self.nodes
        live.start().wait_serving()
        backup.start().wait_log("AMQ221031")
        client = self._client(live)
        client.subscribe("orders")
        client.send("orders", *map(str, range(20)))
        client.waits(20)
        client.acknowledges()
        self._scrape()
        self.wait_for('orthia_role{role="backup",job="orthia"} == 1')
        live.kill()
        backup.wait_serving()
        again = self._client(backup)
        again.subscribe("orders")
        again.waits(19)
        again.acknowledges()
        self.wait_for("sum(orthia_takeovers_total) > 0")
        self.wait_for('rate(orthia_queue_events{event="added"}[10s])')

    def _client(self, node: NodeProcess) -> Client:
        made = Client(node)
        self._clients.append(made)
        return made

    def _scrape(self) -> None:
        config = {
            "global": {"scrape_interval": "1s", "scrape_timeout": "1s"},
            "rule_files": [str(RULES)],
            "scrape_configs": [
                {
                    "job_name": "orthia",
                    "static_configs": [{"targets": [f"127.0.0.1:{one}" for one in self._ports]}],
                }
            ],
        }
        path = self._directory / "prometheus.yml"
        path.write_text(yaml.safe_dump(config))
        with (self._directory / "prometheus.log").open("wb") as log:
            self._prometheus = subprocess.Popen(
                [
                    PROMETHEUS,
                    f"--config.file={path}",
                    f"--web.listen-address=127.0.0.1:{self._port}",
                    f"--storage.tsdb.path={self._directory / 'series'}",
                ],
                stdout=log,
                stderr=log,
            )

    def ask(self, path: str, **parameters: str) -> Any:
        """Return the data of an answer of Prometheus' API."""
        url = f"http://127.0.0.1:{self._port}/api/v1/{path}?{urlencode(parameters)}"
        with urlopen(url, timeout=60) as answer:
            return json.load(answer)["data"]

    def wait_for(self, expression: str) -> None:
        """Wait until Prometheus has an answer."""

        def is_there() -> bool:
            try:
                return bool(self.ask("query", query=expression)["result"])
            except OSError:
                return False  # it is starting

        wait_until(is_there, what=expression)

    def end(self) -> None:
        """End all."""
        for client in self._clients:
            client.connection.close()
        for node in self.nodes:
            node.end()
        if self._prometheus is not None:
            self._prometheus.kill()
            self._prometheus.wait()


_POLICY: Final = "<failover-on-shutdown>true</failover-on-shutdown>"


def _core(port: int) -> str:
    orthia = 'xmlns="urn:orthia"'
    return (
        f"<health {orthia}><port>{port}</port></health>"
        f"<outbox {orthia}/>"
        f"<max-store-bytes {orthia}>1G</max-store-bytes>"
        '<address-settings><address-setting match="#"><max-size-bytes>1G</max-size-bytes>'
        "<address-full-policy>FAIL</address-full-policy>"
        "</address-setting></address-settings>"
    )


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    """Give a pair after a takeover, that Prometheus scrapes."""
    made = Watched(tmp_path_factory.mktemp("board"))
    try:
        made.start()
        yield made
    finally:
        made.end()


def test_every_panel_of_the_board_has_data(watched: Watched) -> None:
    """As Grafana asks for it; but of those of which this pair has nothing to say."""
    for expression in asked_by_the_board():
        if NOT_HERE.search(expression):
            continue
        names = NAME.findall(expression)
        watched.wait_for(expression.replace("[1m]", "[10s]"))
        for name in names:
            for series in watched.ask("series", **{"match[]": name}):
                assert series["job"] == "orthia"


def test_every_series_of_a_rule_is_scraped(watched: Watched) -> None:
    """With the labels and the values of labels by which the rule chooses it."""
    number = 0
    for rule in alerts().values():
        for name, chosen in re.findall(r"\b(orthia_[a-z_]+)(\{[^}]*\})?", rule["expr"]):
            if not NOT_HERE.match(name):
                found = watched.ask("series", **{"match[]": name + chosen})
                assert found, (rule["alert"], name, chosen)
                number += 1
    assert number > 20


def test_prometheus_evaluates_every_rule(watched: Watched) -> None:
    """And the one of a takeover is on its way: there was one."""
    groups = watched.ask("rules")["groups"]
    rules = {one["name"]: one for group in groups for one in group["rules"]}
    assert rules.keys() == alerts().keys()
    assert [one["lastError"] for one in rules.values() if one.get("lastError")] == []
