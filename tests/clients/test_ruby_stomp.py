"""Ruby's stomp, as its users use it."""

import json
import os
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any, Final

import pytest

from tests.clients.node import DEAD_LETTERS, PASSCODES, SECONDS, ClientsNode
from tests.process.clients import take_all
from tests.process.nodes import NodeProcess

PROGRAM: Final = Path(__file__).parent / "ruby" / "client.rb"


@cache
def is_installed() -> bool:
    """Return whether there is a Ruby that has the gem."""
    ruby = shutil.which("ruby")
    if ruby is None:
        return False
    return subprocess.run([ruby, "-rstomp", "-e", ""], capture_output=True).returncode == 0


pytestmark = pytest.mark.skipif(
    not is_installed(), reason="needs Ruby's stomp: install ruby-stomp, as make setup-test does"
)


def program(scenario: str, *nodes: NodeProcess) -> subprocess.Popen[str]:
    """Start what a user wrote; it prints a line for each thing the test is to judge."""
    environment = {
        "STOMP_LOGIN": "alice",
        "STOMP_PASSCODE": PASSCODES["alice"],
        "STOMP_DEAD_LETTERS": DEAD_LETTERS,
        "LANG": "C.UTF-8",
    }
    return subprocess.Popen(
        ["ruby", str(PROGRAM), scenario, *(f"127.0.0.1:{node.port}" for node in nodes)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    )


def end(running: subprocess.Popen[str], answer: str = "") -> list[Any]:
    """Return what else it told, at its end."""
    try:
        told, errors = running.communicate(answer, timeout=2 * SECONDS)
    finally:
        running.kill()
    assert running.returncode == 0, f"{told}{errors}"
    return [json.loads(line) for line in told.splitlines()]


def of(scenario: str, *nodes: NodeProcess) -> list[Any]:
    """Run what a user wrote, and return what it told."""
    return end(program(scenario, *nodes))


def seen(*bodies: str) -> list[dict[str, object]]:
    """Return messages as the program tells of them, none of them redelivered."""
    return [{"body": body, "redelivered": False} for body in bodies]


def test_a_login_is_wanted(node: ClientsNode) -> None:
    """A wrong passcode is refused by an ERROR, which says so; a right one may have any bytes."""
    refusal, version = of("login", node)
    assert "login or passcode is wrong" in refusal
    assert version == "1.2"


def test_what_is_sent_comes_as_it_was_sent(node: ClientsNode) -> None:
    """Bytes, an awkward header, an empty body, and a text without content-length."""
    same, headers, rest = of("sent", node)
    assert same
    assert headers == ["a/b", "a:b\\ c\nd ü"]
    assert rest == seen("", "text")


def test_an_ack_of_client_mode_is_of_all_before(node: ClientsNode) -> None:
    """Whoever subscribes next gets the rest."""
    (rest,) = of("cumulative", node)
    assert [one["body"] for one in rest] == ["3", "4"]


def test_a_nack_is_a_redelivery_and_two_are_for_the_dead_letters(node: ClientsNode) -> None:
    """As many as the node was told."""
    first, second, dead = of("nack", node)
    assert first == {"body": "bad", "redelivered": False}
    assert second == {"body": "bad", "redelivered": True}
    assert dead == ["bad", "rb-failing"]


def test_a_transaction_is_there_as_a_whole_or_not_at_all(node: ClientsNode) -> None:
    """Its acknowledgements, too."""
    (rest,) = of("transaction", node)
    assert rest == seen("beside", "second")


def test_a_durable_subscription_keeps_what_came_meanwhile(node: ClientsNode) -> None:
    """Until it is ended by its name; without a client-id it is refused by name."""
    kept, anew, refusal = of("durable", node)
    assert kept["body"] == "meanwhile"
    assert [one["body"] for one in anew] == ["anew"]
    assert "client-id" in refusal


def test_a_selector_chooses(node: ClientsNode) -> None:
    """And one that cannot be read is refused with its column."""
    chosen, refusal = of("selector", node)
    assert chosen == seen("Europe 3")
    assert "column" in refusal


def test_a_delayed_message_comes_in_its_time(node: ClientsNode) -> None:
    """Behind what was sent after it, and not before; heart-beats go on meanwhile."""
    came, milliseconds = of("delay", node)
    assert came == seen("now", "later")
    assert milliseconds >= 1_500


def test_a_duplicate_id_counts_once(node: ClientsNode) -> None:
    """Both get their receipts."""
    (came,) = of("duplicate", node)
    assert came == seen("once", "end")


def test_each_version_of_the_protocol_is_spoken(node: ClientsNode) -> None:
    """Before 1.2 an ACK names the message; in 1.0 there is no NACK."""
    told = of("versions", node)
    assert told == [[version, "three"] for version in ("1.0", "1.1", "1.2")]


def test_it_goes_on_with_the_backup(pair: tuple[NodeProcess, NodeProcess]) -> None:
    """Nothing is lost, or stored twice, by a kill -9 amid what is sent."""
    live, backup = pair
    running = program("takeover", live, backup)
    assert running.stdout is not None
    assert json.loads(running.stdout.readline()) == "half"
    live.kill()
    (texts,) = end(running, "\n")
    assert texts == [str(number) for number in range(60)]
    assert take_all(backup.port, "/queue/rb-kept") == []
