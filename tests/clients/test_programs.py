"""What users of STOMP do, with the clients that they use: the same program with each of them.

Each scenario is one test for each client, here with a node on SQLite whose queues are in memory.
``make test-clients`` has them on every store, with queues in memory and paged, and with a kill -9
and a takeover amid each.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import pytest

from orthia.broker.client.connection import Login
from tests.clients.node import DEAD_LETTERS, PASSCODES, REDELIVERY_DELAY_MS, SECONDS, Scene
from tests.process.clients import take_all
from tests.websocket.javascript_clients import HERE as JAVASCRIPT
from tests.websocket.javascript_clients import NODE, has_stompjs

HERE: Final = Path(__file__).parent
GO: Final = HERE / "go" / "build" / "client"
AWKWARD: Final = "a:b\\c\nd ü"
"""What a header may hold, all of which is escaped."""
NO_LETTER_BEHIND_IT: Final = "a:b\\ c\nd ü"
"""The same for clients that unescape it twice."""
DELAY_MS: Final = 1_500
"""Of the message that the programs send to come later."""
READING_MS: Final = 50
"""By how much a node may be wrong about its store's clock: half of what it took to read it."""


@dataclass(frozen=True)
class Client:
    """What a user wrote with some client of STOMP."""

    name: str
    """Its queues begin with it."""
    command: list[str]
    user: str = "alice"
    missing: str = ""
    """Why it cannot be run here."""
    awkward: str = AWKWARD
    """What it has in a header that has to be escaped."""
    versions: tuple[str, ...] = ("1.2",)
    """What it speaks."""
    is_told_why: bool = True
    """It tells its user why a login was refused."""

    def start(self, scenario: str, ports: list[int]) -> subprocess.Popen[str]:
        """Start it; it prints a line for each thing the test is to judge."""
        environment = {
            "STOMP_LOGIN": self.user,
            "STOMP_PASSCODE": PASSCODES[self.user],
            "STOMP_DEAD_LETTERS": DEAD_LETTERS,
            "LANG": "C.UTF-8",
        }
        return subprocess.Popen(
            [*self.command, scenario, *(f"127.0.0.1:{port}" for port in ports)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **environment},
            cwd=HERE.parents[1],
        )

    def tells(self, scenario: str, scene: Scene) -> list[Any]:
        """Run it, with a takeover amid it where the scene has one, and return what it told."""
        running = self.start(scenario, scene.ports)
        return end(running, scene.take_over if scene.place.moves else None)


@cache
def is_ruby_installed() -> bool:
    """Return whether there is a Ruby that has the gem."""
    ruby = shutil.which("ruby")
    if ruby is None:
        return False
    return subprocess.run([ruby, "-rstomp", "-e", ""], capture_output=True).returncode == 0


def _clients() -> dict[str, Client]:
    every = ("1.0", "1.1", "1.2")
    go = "" if GO.exists() else "go-stomp: install Go (golang-go), then run make setup-test-all"
    ruby = (
        ""
        if is_ruby_installed()
        else "Ruby's stomp: install ruby-stomp, as make setup-test-all does"
    )
    node = (
        ""
        if NODE and has_stompjs
        else "@stomp/stompjs: install nodejs and npm, then run make setup-test-all"
    )
    return {
        "go-stomp": Client("go", [str(GO)], "bob", go, versions=every),
        "Ruby's stomp": Client(
            "rb",
            ["ruby", str(HERE / "ruby" / "client.rb")],
            missing=ruby,
            awkward=NO_LETTER_BEHIND_IT,
            versions=every,
        ),
        "@stomp/stompjs": Client(
            "js",
            [NODE, str(JAVASCRIPT / "client.mjs")],
            user="bob",
            missing=node,
            awkward=NO_LETTER_BEHIND_IT,
            versions=every,
        ),
        "stomp.py": Client(
            "py", [sys.executable, "-m", "tests.clients.stomp_py"], user="bob", versions=every
        ),
        "stompman": Client(
            "sm", [sys.executable, "-m", "tests.clients.stompman_client"], is_told_why=False
        ),
    }


@pytest.fixture(params=["go-stomp", "Ruby's stomp", "@stomp/stompjs", "stomp.py", "stompman"])
def client(request: pytest.FixtureRequest) -> Client:
    """Give each program there is something to run with."""
    found = _clients()[request.param]
    if found.missing:
        pytest.skip(f"needs {found.missing}")
    return found


def end(running: subprocess.Popen[str], take_over: Callable[[], None] | None = None) -> list[Any]:
    """Return what it tells until its end, once it had the takeover that it waits for."""
    told: list[Any] = []
    try:
        if take_over is not None:
            assert running.stdout is not None
            for line in iter(running.stdout.readline, ""):
                if json.loads(line) == "takeover":
                    take_over()
                    break
                told.append(json.loads(line))
            else:
                pytest.fail(f"it ended before the takeover: {told} {running.communicate()[1]}")
        rest, errors = running.communicate("\n", timeout=2 * SECONDS)
    except subprocess.TimeoutExpired:
        running.send_signal(signal.SIGQUIT)  # at which Go says where each goroutine is
        pytest.fail("it did not end:\n{}{}".format(*running.communicate()))
    finally:
        running.kill()
    assert running.returncode == 0, f"{told}{rest}{errors}"
    return told + [json.loads(line) for line in rest.splitlines()]


def bodies(messages: list[dict[str, object]]) -> list[object]:
    """Return the bodies of messages that a program told of."""
    return [one["body"] for one in messages]


def test_a_login_is_wanted(client: Client, scene: Scene) -> None:
    """A wrong passcode is refused by an ERROR, which says so; a right one may have any bytes."""
    refusal, version = client.tells("login", scene)
    assert refusal == ("login or passcode is wrong" if client.is_told_why else "refused")
    assert version == "1.2"


def test_what_is_sent_comes_as_it_was_sent(client: Client, scene: Scene) -> None:
    """Bytes, an awkward header, an empty body, and a text without content-length."""
    same, headers, rest = client.tells("sent", scene)
    assert same
    assert headers == ["a/b", client.awkward]
    assert bodies(rest) == ["", "text"]


def test_an_ack_of_client_mode_is_of_all_before(client: Client, scene: Scene) -> None:
    """Whoever subscribes next gets the rest."""
    (rest,) = client.tells("cumulative", scene)
    assert bodies(rest) == ["3", "4"]


def test_a_nack_is_a_redelivery_and_two_are_for_the_dead_letters(
    client: Client, scene: Scene
) -> None:
    """As many as the node was told."""
    first, second, dead = client.tells("nack", scene)
    assert first == {"body": "bad", "redelivered": False}
    assert second == {"body": "bad", "redelivered": True}
    assert dead == ["bad", f"{client.name}-failing"]


def test_a_transaction_is_there_as_a_whole_or_not_at_all(client: Client, scene: Scene) -> None:
    """Its acknowledgements, too."""
    (rest,) = client.tells("transaction", scene)
    assert bodies(rest) == ["beside", "second"]


def test_a_durable_subscription_keeps_what_came_meanwhile(client: Client, scene: Scene) -> None:
    """Until it is ended by its name; without a client-id it is refused by name."""
    kept, anew, refusal = client.tells("durable", scene)
    assert kept["body"] == "meanwhile"
    assert bodies(anew) == ["anew"]
    assert "client-id" in refusal


def test_a_selector_chooses(client: Client, scene: Scene) -> None:
    """Of what was there and of what comes; one that cannot be read is refused with its column."""
    chosen, refusal = client.tells("selector", scene)
    assert bodies(chosen) == ["Europe 3", "Europe 4"]
    assert "column" in refusal


def test_a_delayed_message_comes_in_its_time(client: Client, scene: Scene) -> None:
    """Behind what was sent after it, and not before; heart-beats go on meanwhile."""
    sent_ms, came, milliseconds = client.tells("delay", scene)
    assert set(bodies(came)) == {"later", "now"}
    assert len(came) == 2
    # Where the machine stood still between the two the first may have been due before the second.
    assert bodies(came)[0] == "now" or sent_ms >= DELAY_MS
    assert milliseconds >= DELAY_MS - READING_MS


def test_a_duplicate_id_counts_once(client: Client, scene: Scene) -> None:
    """Both get their receipts."""
    (came,) = client.tells("duplicate", scene)
    assert bodies(came) == ["once", "end"]


def test_what_is_of_a_higher_priority_comes_first(client: Client, scene: Scene) -> None:
    """And in order among its like."""
    (came,) = client.tells("priority", scene)
    assert bodies(came) == ["9 b", "9 d", "4 c", "1 a"]


def test_a_group_goes_to_one_of_two_subscriptions(client: Client, scene: Scene) -> None:
    """Whole, and in order."""
    (groups,) = client.tells("group", scene)
    assert sorted(groups) == [["a0", "a2", "a4"], ["b1", "b3", "b5"]]


def test_a_browser_takes_nothing(client: Client, scene: Scene) -> None:
    """What is there, then a message that says that this was all; who consumes gets it, too."""
    browsed, last, consumed = client.tells("browse", scene)
    assert bodies(browsed) == bodies(consumed) == ["first", "second", "third"]
    assert last == "end"


def test_each_version_of_the_protocol_is_spoken(client: Client, scene: Scene) -> None:
    """Before 1.2 an ACK names the message; in 1.0 there is no NACK."""
    told = client.tells("versions", scene)
    assert told == [[version, "three"] for version in client.versions]


def test_destinations_of_every_sort(client: Client, scene: Scene) -> None:
    """A last value, a divert, a wildcard with no-local, an answer at a temporary queue."""
    price, copied, order, heard, answer = client.tells("destinations", scene)
    assert bodies(price) == ["2"]
    assert copied == ["order", f"orders.{client.name}"]
    assert bodies(order) == ["order"]
    assert heard == ["other", f"/topic/news.{client.name}.eu"]
    assert bodies(answer) == ["answer"]


def test_headers_pass_through(client: Client, scene: Scene) -> None:
    """And the message says what it is."""
    (came,) = client.tells("passing", scene)
    named = (
        "correlation-id",
        "reply-to",
        "type",
        "priority",
        "expires",
        "persistent",
        "traceparent",
    )
    said = {"content-type": "text/plain", "destination-type": "ANYCAST"}
    assert came == dict.fromkeys(named, "as it was sent") | said


def test_what_nobody_took_in_time_expires(client: Client, scene: Scene) -> None:
    """Though it has no consumer: it is found at the expiry-address, and the other one stays."""
    expired, kept = client.tells("expiry", scene)
    assert expired == ["gone", f"{client.name}-expiring"]
    assert bodies(kept) == ["kept"]


def test_a_client_gets_as_many_as_it_asks_for(client: Client, scene: Scene) -> None:
    """With a prefetch of one the next comes once the first is acknowledged."""
    (first, others), second = client.tells("flow", scene)
    assert (first, others) == ("first", 0)
    assert second == "second"


def test_headers_say_what_a_name_is(client: Client, scene: Scene) -> None:
    """One queue of an address, a topic, and what contradicts itself."""
    one, each, refusal = client.tells("routing", scene)
    assert bodies(one) == ["to one"]
    assert bodies(each) == ["to each", "to each"]
    assert "is ANYCAST" in refusal


def test_a_rejected_message_comes_again_after_its_delay(client: Client, scene: Scene) -> None:
    """And says that it is not the first time."""
    milliseconds, again = client.tells("redelivery", scene)
    # Its end is stored as the node read the database's clock: the successor reads it anew.
    reading_ms = REDELIVERY_DELAY_MS / 2 if scene.place.moves else READING_MS
    assert milliseconds >= REDELIVERY_DELAY_MS - reading_ms
    assert again == {"body": "slow", "redelivered": True}


def test_a_ring_keeps_the_newest(client: Client, scene: Scene) -> None:
    """As many as it has room for; a successor may begin before it deleted what is too many."""
    (came,) = client.tells("ring", scene)
    assert bodies(came)[-2:] == ["2", "3"]
    assert bodies(came)[:-2] in (([], ["1"]) if scene.place.moves else ([],))


def test_it_goes_on_with_the_backup(client: Client, moving: Scene) -> None:
    """Nothing is lost, or stored twice, by a kill -9 amid what is sent."""
    running = client.start("takeover", moving.ports)
    (texts,) = end(running, moving.live.kill)
    assert texts == [str(number) for number in range(60)]
    login = Login(client.user, PASSCODES[client.user])
    assert take_all(moving.ports[1], f"/queue/{client.name}-kept", login) == []
