"""go-stomp and Ruby's stomp, as their users use them: the same program in each language."""

import json
import os
import shutil
import signal
import subprocess
from functools import cache
from pathlib import Path
from typing import Any, Final

import pytest

from tests.clients.node import DEAD_LETTERS, PASSCODES, SECONDS, ClientsNode
from tests.process.clients import take_all
from tests.process.nodes import NodeProcess

HERE: Final = Path(__file__).parent
GO: Final = HERE / "go" / "build" / "client"


@cache
def is_ruby_installed() -> bool:
    """Return whether there is a Ruby that has the gem."""
    ruby = shutil.which("ruby")
    if ruby is None:
        return False
    return subprocess.run([ruby, "-rstomp", "-e", ""], capture_output=True).returncode == 0


class Client:
    """What a user wrote in some language with its client of STOMP."""

    def __init__(self, name: str, command: list[str], *, user: str, awkward: str) -> None:
        self.name = name
        """Its queues begin with it."""
        self.awkward = awkward
        """What it has in a header that has to be escaped."""
        self._command = command
        self._user = user

    def start(self, scenario: str, *nodes: NodeProcess) -> subprocess.Popen[str]:
        """Start it; it prints a line for each thing the test is to judge."""
        environment = {
            "STOMP_LOGIN": self._user,
            "STOMP_PASSCODE": PASSCODES[self._user],
            "STOMP_DEAD_LETTERS": DEAD_LETTERS,
            "LANG": "C.UTF-8",
        }
        return subprocess.Popen(
            [*self._command, scenario, *(f"127.0.0.1:{node.port}" for node in nodes)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **environment},
        )

    def tells(self, scenario: str, *nodes: NodeProcess) -> list[Any]:
        """Run it, and return what it told."""
        return end(self.start(scenario, *nodes))


@pytest.fixture(params=["go", "ruby"])
def client(request: pytest.FixtureRequest) -> Client:
    """Give each program there is something to run with."""
    if request.param == "ruby":
        if not is_ruby_installed():
            pytest.skip("needs Ruby's stomp: install ruby-stomp, as make setup-test does")
        return Client(
            "rb", ["ruby", str(HERE / "ruby" / "client.rb")], user="alice", awkward="a:b\\ c\nd ü"
        )
    if not GO.exists():
        pytest.skip("needs go-stomp: install Go (golang-go), then run make setup-test")
    return Client("go", [str(GO)], user="bob", awkward="a:b\\c\nd ü")


def end(running: subprocess.Popen[str], answer: str = "") -> list[Any]:
    """Return what else it told, at its end."""
    try:
        told, errors = running.communicate(answer, timeout=2 * SECONDS)
    except subprocess.TimeoutExpired:
        running.send_signal(signal.SIGQUIT)  # at which Go says where each goroutine is
        pytest.fail("it did not end:\n{}{}".format(*running.communicate()))
    finally:
        running.kill()
    assert running.returncode == 0, f"{told}{errors}"
    return [json.loads(line) for line in told.splitlines()]


def seen(*bodies: str) -> list[dict[str, object]]:
    """Return messages as the program tells of them, none of them redelivered."""
    return [{"body": body, "redelivered": False} for body in bodies]


def test_a_login_is_wanted(client: Client, node: ClientsNode) -> None:
    """A wrong passcode is refused by an ERROR, which says so; a right one may have any bytes."""
    refusal, version = client.tells("login", node)
    assert refusal == "login or passcode is wrong"
    assert version == "1.2"


def test_what_is_sent_comes_as_it_was_sent(client: Client, node: ClientsNode) -> None:
    """Bytes, an awkward header, an empty body, and a text without content-length."""
    same, headers, rest = client.tells("sent", node)
    assert same
    assert headers == ["a/b", client.awkward]
    assert rest == seen("", "text")


def test_an_ack_of_client_mode_is_of_all_before(client: Client, node: ClientsNode) -> None:
    """Whoever subscribes next gets the rest."""
    (rest,) = client.tells("cumulative", node)
    assert [one["body"] for one in rest] == ["3", "4"]


def test_a_nack_is_a_redelivery_and_two_are_for_the_dead_letters(
    client: Client, node: ClientsNode
) -> None:
    """As many as the node was told."""
    first, second, dead = client.tells("nack", node)
    assert first == {"body": "bad", "redelivered": False}
    assert second == {"body": "bad", "redelivered": True}
    assert dead == ["bad", f"{client.name}-failing"]


def test_a_transaction_is_there_as_a_whole_or_not_at_all(client: Client, node: ClientsNode) -> None:
    """Its acknowledgements, too."""
    (rest,) = client.tells("transaction", node)
    assert rest == seen("beside", "second")


def test_a_durable_subscription_keeps_what_came_meanwhile(
    client: Client, node: ClientsNode
) -> None:
    """Until it is ended by its name; without a client-id it is refused by name."""
    kept, anew, refusal = client.tells("durable", node)
    assert kept["body"] == "meanwhile"
    assert [one["body"] for one in anew] == ["anew"]
    assert "client-id" in refusal


def test_a_selector_chooses(client: Client, node: ClientsNode) -> None:
    """And one that cannot be read is refused with its column."""
    chosen, refusal = client.tells("selector", node)
    assert chosen == seen("Europe 3")
    assert "column" in refusal


def test_a_delayed_message_comes_in_its_time(client: Client, node: ClientsNode) -> None:
    """Behind what was sent after it, and not before; heart-beats go on meanwhile."""
    came, milliseconds = client.tells("delay", node)
    assert came == seen("now", "later")
    assert milliseconds >= 1_500


def test_a_duplicate_id_counts_once(client: Client, node: ClientsNode) -> None:
    """Both get their receipts."""
    (came,) = client.tells("duplicate", node)
    assert came == seen("once", "end")


def test_what_is_of_a_higher_priority_comes_first(client: Client, node: ClientsNode) -> None:
    """And in order among its like."""
    (came,) = client.tells("priority", node)
    assert came == seen("9", "9", "4", "1")


def test_a_group_goes_to_one_of_two_subscriptions(client: Client, node: ClientsNode) -> None:
    """Whole, and in order."""
    (groups,) = client.tells("group", node)
    assert sorted(groups) == [["a0", "a2", "a4"], ["b1", "b3", "b5"]]


def test_a_browser_takes_nothing(client: Client, node: ClientsNode) -> None:
    """What is there, then a message that says that this was all; who consumes gets it, too."""
    browsed, last, consumed = client.tells("browse", node)
    assert browsed == consumed == seen("first", "second")
    assert last == "end"


def test_each_version_of_the_protocol_is_spoken(client: Client, node: ClientsNode) -> None:
    """Before 1.2 an ACK names the message; in 1.0 there is no NACK."""
    told = client.tells("versions", node)
    assert told == [[version, "three"] for version in ("1.0", "1.1", "1.2")]


def test_destinations_of_every_sort(client: Client, node: ClientsNode) -> None:
    """A last value, a wildcard with no-local, an answer at a temporary queue, a divert."""
    price, heard, answer, copied, order = client.tells("destinations", node)
    assert price == seen("2")
    assert heard == ["other", f"/topic/news.{client.name}.eu"]
    assert answer == seen("answer")
    assert copied == ["order", f"orders.{client.name}"]
    assert order == seen("order")


def test_it_goes_on_with_the_backup(client: Client, pair: tuple[NodeProcess, NodeProcess]) -> None:
    """Nothing is lost, or stored twice, by a kill -9 amid what is sent."""
    live, backup = pair
    running = client.start("takeover", live, backup)
    assert running.stdout is not None
    assert json.loads(running.stdout.readline()) == "half"
    live.kill()
    (texts,) = end(running, "\n")
    assert texts == [str(number) for number in range(60)]
    assert take_all(backup.port, f"/queue/{client.name}-kept") == []
