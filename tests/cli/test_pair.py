"""``orthia pair`` as its user sees it: two nodes, a takeover, and an orderly end of both."""

import base64
import os
import re
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path

import pytest

from orthia.broker.cli.pair import console_port
from orthia.broker.client.connection import BrokerAddress, Connection
from tests.cli.conftest import PROGRAM
from tests.process.nodes import accepts
from tests.support.servers import free_port
from tests.support.waiting import wait_until


class Pair:
    """The command, its output, and the nodes it runs."""

    def __init__(self, directory: Path) -> None:
        self.live_port, self.backup_port = free_port(), free_port()
        self.consoles = free_port(), free_port()
        self.data = directory / "data"
        self._output = directory / "output"
        command = [*PROGRAM, "pair", "--data-dir", str(self.data)]
        command += ["--live-port", str(self.live_port), "--backup-port", str(self.backup_port)]
        for role, port in zip(("live", "backup"), self.consoles, strict=True):
            command += [f"--{role}-console-port", str(port)]
        with self._output.open("wb") as output:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
            )

    @property
    def output(self) -> str:
        """What it printed so far."""
        return self._output.read_text()

    def wait(self, text: str) -> None:
        """Wait until it has printed ``text``."""
        wait_until(lambda: text in self.output, what=f"{text!r} in {self.output}")

    def wait_serving(self, port: int) -> None:
        """Wait until a node serves clients."""
        wait_until(lambda: accepts(port), what=f"clients are served: {self.output}")

    @property
    def live_pid(self) -> int:
        """The live node's process, as the command says how to kill it."""
        said = re.search(r"kill -9 (\d+) ", self.output)
        assert said is not None, self.output
        return int(said[1])

    def status(self, console: int, path: str, password: str | None = None) -> int:
        """Return the status of a page, asked for as the operator, or as nobody."""
        with closing(HTTPConnection("127.0.0.1", self.consoles[console], timeout=60)) as client:
            login = base64.b64encode(f"admin:{password}".encode()).decode()
            headers = {} if password is None else {"Authorization": f"Basic {login}"}
            client.request("GET", path, headers=headers)
            return client.getresponse().status

    def serves_nobody(self) -> bool:
        """Return whether neither node accepts connections."""
        return not accepts(self.live_port) and not accepts(self.backup_port)


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    """Give a pair whose live node serves and whose backup is announced."""
    made = Pair(tmp_path)
    try:
        made.wait_serving(made.live_port)
        made.wait("AMQ221031")
        made.wait("Ctrl-C stops both.")
        yield made
    finally:
        if made.process.poll() is None:
            made.process.terminate()
        made.process.wait(90)


def test_the_backup_of_a_pair_started_again_leaves_the_live_node_its_place(
    pair: Pair, tmp_path: Path
) -> None:
    """It may start faster; taking over and handing back would cut off who came meanwhile."""
    pair.process.send_signal(signal.SIGINT)
    assert pair.process.wait(90) == 0, pair.output
    again = Pair(tmp_path)
    try:
        again.wait("AMQ221007")
        again.wait("AMQ221031")
        assert "AMQ221010" not in again.output  # the backup never served
        assert "AMQ221001 backup" not in again.output.partition("AMQ221035 live")[0]
    finally:
        again.process.terminate()
        again.process.wait(90)
    assert "both nodes are stopped" in again.output


@pytest.mark.parametrize("by", [signal.SIGINT, signal.SIGTERM])
def test_both_nodes_stop_with_the_command(pair: Pair, by: signal.Signals) -> None:
    """Ctrl-C, or SIGTERM: exit code 0, and no node is left behind."""
    assert not accepts(pair.backup_port)
    pair.process.send_signal(by)
    assert pair.process.wait(90) == 0, pair.output
    assert "both nodes are stopped" in pair.output
    assert pair.serves_nobody()


def test_the_backup_takes_over_from_a_live_node_that_is_killed(pair: Pair) -> None:
    """What was stored is served, and the command says how to bring the live node back."""
    client = Connection.open(BrokerAddress("127.0.0.1", pair.live_port), timeout_seconds=60)
    client.send("SEND", {"destination": "/queue/orders", "receipt": "1"}, b"hello")
    wait_until(
        lambda: any(frame.command == "RECEIPT" for frame in client.exchange(0.1)), what="a receipt"
    )
    client.close()
    os.kill(pair.live_pid, signal.SIGKILL)
    pair.wait_serving(pair.backup_port)
    pair.wait("live was killed by signal 9")
    pair.wait("to bring live back, type elsewhere:")
    nodes = f"amqp://127.0.0.1:{pair.live_port},amqp://127.0.0.1:{pair.backup_port}"
    assert f"JMS, with qpid-jms: failover:({nodes})\n" in pair.output
    other = Connection.open(BrokerAddress("127.0.0.1", pair.backup_port), timeout_seconds=60)
    other.send("SUBSCRIBE", {"id": "1", "destination": "/queue/orders", "ack": "auto"})
    wait_until(
        lambda: any(frame.body == b"hello" for frame in other.exchange(0.1)), what="the message"
    )
    other.close()
    pair.process.send_signal(signal.SIGINT)
    assert pair.process.wait(90) == 0, pair.output


def test_the_console_of_either_node_is_shown_first_with_a_login(pair: Pair) -> None:
    """The login holds on the node that takes over, too; its password is in no file."""
    first, second, *_ = pair.output.splitlines()
    live, backup = (f"http://127.0.0.1:{port}/console/" for port in pair.consoles)
    assert first == f"console: {live} (live) and {backup} (backup)"
    password = second.rpartition(" ")[2]
    assert second == f"log in as admin with the password {password}"
    assert pair.status(0, "/console/queues") == 401
    assert pair.status(0, "/console/queues", "another") == 401
    assert pair.status(0, "/console/queues", password) == 200
    assert pair.status(1, "/console/pair") == 200
    os.kill(pair.live_pid, signal.SIGKILL)
    pair.wait_serving(pair.backup_port)
    wait_until(lambda: pair.status(1, "/console/queues") != 503, what="the console serves")
    assert pair.status(1, "/console/queues") == 401
    assert pair.status(1, "/console/queues", password) == 200
    written = [file.read_bytes() for file in pair.data.rglob("*") if file.is_file()]
    assert not any(password.encode() in data for data in written)


def test_a_console_has_a_free_port_where_its_own_is_taken() -> None:
    """So that another pair, or Artemis, may run beside it."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert console_port(port, set()) not in (0, port)
    assert console_port(port, {port}) != port
    assert console_port(port, set()) == port


def test_a_pair_that_ends_by_itself_says_how(pair: Pair) -> None:
    """Both were killed, one after the other: the command ends, and not with 0."""
    os.kill(pair.live_pid, signal.SIGKILL)
    pair.wait_serving(pair.backup_port)
    said = re.search(r"AMQ221031.*", pair.output)
    assert said is not None
    children = Path(f"/proc/{pair.process.pid}/task/{pair.process.pid}/children").read_text()
    for child in children.split():
        os.kill(int(child), signal.SIGKILL)
    assert pair.process.wait(90) == 74, pair.output
    assert "backup was killed by signal 9" in pair.output
    assert pair.serves_nobody()
