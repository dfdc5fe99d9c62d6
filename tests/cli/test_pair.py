"""``orthia pair`` as its user sees it: two nodes, a takeover, and an orderly end of both."""

import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from orthia.broker.client.connection import BrokerAddress, Connection
from tests.cli.conftest import PROGRAM
from tests.process.nodes import accepts
from tests.support.servers import free_port
from tests.support.waiting import wait_until


class Pair:
    """The command, its output, and the nodes it runs."""

    def __init__(self, directory: Path) -> None:
        self.live_port, self.backup_port = free_port(), free_port()
        self._output = directory / "output"
        command = [*PROGRAM, "pair", "--data-dir", str(directory / "data")]
        command += ["--live-port", str(self.live_port), "--backup-port", str(self.backup_port)]
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
    other = Connection.open(BrokerAddress("127.0.0.1", pair.backup_port), timeout_seconds=60)
    other.send("SUBSCRIBE", {"id": "1", "destination": "/queue/orders", "ack": "auto"})
    wait_until(
        lambda: any(frame.body == b"hello" for frame in other.exchange(0.1)), what="the message"
    )
    other.close()
    pair.process.send_signal(signal.SIGINT)
    assert pair.process.wait(90) == 0, pair.output


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
