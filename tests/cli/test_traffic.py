"""Producing and consuming through lost connections, and what the commands say of it."""

import contextlib
import json
import os
import re
import subprocess
from collections import deque
from pathlib import Path
from typing import Any

import pytest

from orthia.broker.cli.progress import PlainLines
from orthia.broker.client.connection import BrokerAddress, BrokerRefused, BrokerUnreachable
from orthia.broker.client.failover import FailoverLink
from orthia.broker.client.traffic import Consumer, Producer, TrafficReport
from tests.cli.conftest import PROGRAM, Run
from tests.cli.scripted_broker import Script, scripted_broker
from tests.core.test_server import serving


def link(*addresses: BrokerAddress) -> FailoverLink:
    """Return a link that gives up soon enough for a test."""
    return FailoverLink(addresses, patience_seconds=120)


def numbered(number: int) -> bytes:
    """Return a body that tells its number."""
    return b"m%d" % number


def produce(script: Script, count: int = 5, **options: Any) -> TrafficReport:
    """Send numbered messages to a broker that keeps to ``script``."""
    with scripted_broker(script) as address:
        return Producer(link(address), "/queue/q", body=numbered, count=count, **options).run()


def test_every_message_is_sent_once_and_confirmed() -> None:
    """Without trouble the broker has each message once, in order, and each has its receipt."""
    script = Script()
    confirmed: list[int] = []
    report = produce(script, 500, on_confirmed=confirmed.append)
    assert script.stored == [numbered(n) for n in range(500)]
    assert confirmed == list(range(500))
    assert (report.confirmed, report.repeated, report.complete) == (500, 0, True)
    assert report.latencies_ms([50]).keys() == {"p50"}


def test_what_had_no_receipt_is_sent_again() -> None:
    """When the connection breaks, messages without a receipt are sent again, and no others."""
    script = Script(drop_after_sends=deque([40]), receipts_lost=10)
    report = produce(script, 60, outstanding=20)
    assert set(script.stored) == {numbered(n) for n in range(60)}
    assert report.confirmed == 60
    assert report.repeated >= 11  # the ten, the last one, and what was under way
    assert len(script.stored) >= 60 + 11
    assert script.connections == 2


def test_reconnections_are_counted_and_told() -> None:
    """A person sees where the client went, and how long it was without a node."""
    script = Script(drop_after_sends=deque([3]))
    said: list[str] = []
    with scripted_broker(script) as address:
        watched = FailoverLink([address], patience_seconds=120, say=said.append)
        Producer(watched, "/queue/q", body=numbered, count=5).run()
    assert watched.reconnects == 1
    assert 0 < watched.longest_outage_seconds < 120
    assert said[0] == f"connected to {address}"
    assert said[1].startswith("lost the connection: ")
    assert said[2].startswith(f"connected to {address} after ")


def test_a_frozen_node_is_left() -> None:
    """A node that keeps its sockets and stops talking is noticed by its missing heart-beats."""
    script = Script(freeze_first=True)
    with scripted_broker(script) as address:
        impatient = FailoverLink([address], patience_seconds=120, heart_beat_ms=100)
        report = Producer(impatient, "/queue/q", body=numbered, count=5).run()
    assert (report.confirmed, report.repeated, script.connections) == (5, 5, 2)


def test_outstanding_messages_are_bounded() -> None:
    """A producer that waits for each receipt has nothing to repeat but one message."""
    script = Script(drop_after_sends=deque([5]))
    report = produce(script, 9, outstanding=1)
    assert report.repeated == 1
    assert len(script.stored) == 10


def test_the_other_node_is_found() -> None:
    """A node that does not answer is passed over for the one that does."""
    script = Script()
    with scripted_broker(script) as address:
        dead = BrokerAddress("127.0.0.1", 1)
        assert Producer(link(dead, address), "/queue/q", body=numbered, count=3).run().complete


def test_no_node_at_all() -> None:
    """When nobody answers in time, the error names every address that was tried."""
    dead = BrokerAddress("127.0.0.1", 1)
    patient = FailoverLink([dead], patience_seconds=0.1)
    with pytest.raises(BrokerUnreachable, match=r"127\.0\.0\.1:1: .*refused"):
        Producer(patient, "/queue/q", body=numbered, count=1).run()


def test_a_node_that_is_not_there_yet_is_told_at_once() -> None:
    """Whoever mistyped a port should not look at nothing for a minute."""
    dead = BrokerAddress("127.0.0.1", 1)
    said: list[str] = []
    patient = FailoverLink([dead], patience_seconds=3, say=said.append)
    with pytest.raises(BrokerUnreachable):
        Producer(patient, "/queue/q", body=numbered, count=1).run()
    assert said == ["no node serves yet (127.0.0.1:1: Connection refused); trying for 3 s"]


@pytest.mark.parametrize(
    ("script", "words", "connections"),
    [
        (Script(refuse="wrong passcode"), "wrong passcode", 1),
        (
            Script(error_at_send=deque(["message:no such address\nreceipt-id:0"])),
            "no such address",
            1,
        ),
        # A broker that ends every connection without progress is not tried for ever.
        (Script(error_at_send=deque(["message:frame too large"] * 100)), "frame too large", 5),
    ],
)
def test_a_refusal_ends_the_work(script: Script, words: str, connections: int) -> None:
    """With the broker's own words, and without another attempt where it answers a frame."""
    with pytest.raises(BrokerRefused, match=words):
        produce(script)
    assert script.connections == connections


def test_a_broker_that_stops_is_not_a_refusal() -> None:
    """An ERROR that answers nothing is a node on its way out: the work goes on elsewhere."""
    script = Script(error_at_send=deque(["message:stopping"]))
    assert (produce(script).confirmed, script.connections) == (5, 2)


def test_a_refusal_is_told_once() -> None:
    """The message header has what fits of it, the body all."""
    script = Script(error_at_send=deque(["message:no such addr\nreceipt-id:0\n\nno such address"]))
    with scripted_broker(script) as address, pytest.raises(BrokerRefused) as refused:
        Producer(link(address), "/queue/q", body=numbered, count=5).run()
    assert str(refused.value) == f"{address}: no such address"


def test_a_consumer_takes_as_many_as_it_wants() -> None:
    """Beyond the count nothing is acknowledged, so it stays for others."""
    script = Script(stored=[numbered(n) for n in range(10)])
    got: list[bytes] = []
    with scripted_broker(script) as address:
        report = Consumer(
            link(address), "/queue/q", count=4, on_message=lambda frame: got.append(frame.body)
        ).run()
    assert got == [numbered(n) for n in range(4)]
    assert (report.confirmed, report.complete) == (4, True)
    assert script.stored == [numbered(n) for n in range(4, 10)]


def test_frames_may_come_in_any_pieces() -> None:
    """A byte at a time gives the same messages."""
    script = Script(stored=[b"m0", b"m1"], byte_by_byte=True)
    with scripted_broker(script) as address:
        assert Consumer(link(address), "/queue/q", count=2).run().confirmed == 2


@pytest.mark.parametrize("stored", [True, False])
def test_an_acknowledgement_lost_with_the_connection_is_resolved(
    stored: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each message counts once, whether the broker had stored the ACK or delivers it again."""
    if not stored:  # what comes again is not to be missed by a silence before it
        monkeypatch.setattr("orthia.broker.client.traffic._SETTLED_SECONDS", 60.0)
    script = Script(
        stored=[numbered(n) for n in range(6)],
        drop_after_acks=deque([6]),
        acks_stored_at_drop=stored,
    )
    with scripted_broker(script) as address:
        report = Consumer(link(address), "/queue/q", count=6).run()
    assert (report.confirmed, report.complete) == (6, True)
    assert report.repeated == script.acks_undone
    assert stored is (script.acks_undone == 0)
    assert script.stored == []


def test_a_consumer_stops_when_nothing_comes() -> None:
    """A silence ends the work; fewer messages than wanted are not complete."""
    script = Script(stored=[b"m0"])
    with scripted_broker(script) as address:
        report = Consumer(link(address), "/queue/q", count=2, idle_timeout_seconds=10).run()
    assert (report.confirmed, report.complete) == (1, False)


def test_produce_prints_a_summary(run: Run) -> None:
    """A person reads how many, how fast, and how long receipts took."""
    with scripted_broker(Script()) as address:
        result = run("produce", "--broker", address, "--count", 50)
    assert result.exit_code == 0
    assert "sent and confirmed 50 of 50 in" in result.stdout
    assert "p99" in result.stdout


def test_produce_as_json(run: Run) -> None:
    """The JSON summary has these names, which programs rely on."""
    script = Script()
    with scripted_broker(script) as address:
        result = run("produce", "--broker", address, "--count", 5, "--size", 20, "--json")
    shown = json.loads(result.stdout)
    assert shown.keys() == {
        "wanted",
        "confirmed",
        "repeated",
        "reconnects",
        "longest_outage_seconds",
        "seconds",
        "messages_per_second",
        "latency_ms",
        "complete",
    }
    assert (shown["confirmed"], shown["complete"]) == (5, True)
    assert shown["latency_ms"].keys() == {"p50", "p95", "p99", "p100"}
    assert script.stored[3] == b"message 3 ".ljust(20, b".")


def test_consume_of_too_little_fails(run: Run) -> None:
    """The smoke test fails by its exit code when messages are missing."""
    with scripted_broker(Script(stored=[b"m0"])) as address:
        result = run("consume", "--broker", address, "--count", 2, "--timeout", 5, "--print")
    assert result.exit_code == 1
    assert result.stdout.startswith("m0\n")
    assert "not everything was confirmed" in result.stderr


def test_bodies_and_the_outcome_as_json_are_not_mixed(run: Run) -> None:
    """Whoever reads the one could not tell it from the other."""
    result = run("consume", "--destination", "/queue/q", "--print", "--json")
    assert result.exit_code == 64
    assert "--print and --json both write to standard output" in result.output


HOSTILE = b"\x1b]0;title\x07\x1b[2J\r\x9b1m\xe2\x80\xae end\ttab \xc3\xbc\xff"
"""Renames the window, clears the screen, begins the line anew, turns the writing round."""


def printed(address: BrokerAddress, output: int) -> None:
    """Have the body of one message printed to an open file."""
    command = [*PROGRAM, "consume", "--broker", str(address)]
    subprocess.run(
        [*command, "--count", "1", "--print"], stdout=output, stderr=subprocess.DEVNULL, check=True
    )


def test_a_terminal_is_not_told_what_a_message_tells_it() -> None:
    """What controls a terminal is shown as an escape; line ends, tabs and letters as they are."""
    terminal, output = os.openpty()
    with scripted_broker(Script(stored=[HOSTILE])) as address:
        printed(address, output)
    shown = os.read(terminal, 65_536).decode().partition(" end")
    os.close(terminal)
    os.close(output)
    assert shown[0] == r"\x1b]0;title\x07\x1b[2J\x0d" + "\ufffd1m" + r"\u202e"
    assert re.match(r"\s+tab ü\ufffd\r\n", shown[2])


def test_a_program_has_a_message_byte_for_byte(tmp_path: Path) -> None:
    """Whatever its encoding; a line end follows."""
    with (
        (tmp_path / "out").open("wb") as output,
        scripted_broker(Script(stored=[HOSTILE])) as address,
    ):
        printed(address, output.fileno())
    assert (tmp_path / "out").read_bytes().startswith(HOSTILE + b"\n")


def test_an_unreachable_broker_is_unavailable(run: Run) -> None:
    """No broker is EX_UNAVAILABLE and one clear line."""
    result = run("produce", "--broker", "127.0.0.1:1", "--reconnect-timeout", 0.1)
    assert result.exit_code == 69
    assert "orthia: no broker in 0.1 s" in result.stderr


@pytest.mark.parametrize("text", ["localhost", "localhost:", ":1", "h:0", "h:70000", "h:x"])
def test_a_broken_address_is_a_usage_error(run: Run, text: str) -> None:
    """An address is HOST:PORT."""
    assert run("produce", "--broker", text).exit_code == 64


def test_an_ipv6_address() -> None:
    """Brackets keep the colons of an IPv6 address apart from the port's."""
    address = BrokerAddress.parse("[::1]:61613")
    assert (address.host, address.port, str(address)) == ("::1", 61_613, "[::1]:61613")


def test_a_login_that_is_refused_has_an_exit_code_of_its_own(run: Run) -> None:
    """Nothing went wrong in the program, and trying again does not help."""
    with scripted_broker(Script(refuse="login or passcode is wrong")) as address:
        login = {"ORTHIA_PASSWORD": "x"}
        result = run("produce", "--broker", address, "--user", "u", environment=login)
    assert result.exit_code == 77
    assert result.stderr.endswith("login or passcode is wrong\n")


def test_a_login_that_was_not_given_is_asked_for(run: Run) -> None:
    """The broker says the same to everybody; the command knows what it left out."""
    with scripted_broker(Script(refuse="login or passcode is wrong")) as address:
        nobody = run("produce", "--broker", address, environment={"ORTHIA_PASSWORD": "x"})
        silent = run("produce", "--broker", address, "--user", "u")
    assert (nobody.exit_code, silent.exit_code) == (77, 77)
    assert "no user was given: say --user NAME" in nobody.stderr
    assert "no password was given: set ORTHIA_PASSWORD" in silent.stderr


def test_a_destination_is_no_name_of_a_queue(run: Run) -> None:
    """Whoever deletes /queue/orders is told the name of the queue."""
    refused = "message:there is no queue '/queue/orders'\nreceipt-id:/queue/orders"
    with scripted_broker(Script(error_at_send=deque([refused]))) as address:
        result = run("queue", "delete", "/queue/orders", "--broker", address)
    assert result.exit_code == 1
    assert "the queue of the destination /queue/orders is named orders" in result.stderr


def test_what_takes_long_tells_how_far_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    """Without a terminal: a line every five seconds, with what was done since the last."""
    times = iter((100.0, 101.0, 104.9, 105.0, 106.0, 112.0))
    lines = PlainLines("sent", 10_000, clock=lambda: next(times))
    for _ in range(5):
        lines.advance(1_000)
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.splitlines() == [
        "sent 3,000 of 10,000 in 5 s: 600/s now",
        "sent 5,000 of 10,000 in 12 s: 286/s now",
    ]


@pytest.mark.parametrize("arguments", [("--json",), ()])
def test_a_program_that_reads_json_is_told_no_progress(
    run: Run, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    """What is for people is not mixed with what is for programs."""
    monkeypatch.setattr("orthia.broker.cli.progress.PLAIN_SECONDS", 0.0)
    with scripted_broker(Script()) as address:
        result = run("produce", "--broker", address, "--count", 2, *arguments)
    assert result.exit_code == 0
    assert ("sent 2 of 2 in" in result.stderr) is (not arguments)


def test_consume_takes_what_its_selector_names(run: Run) -> None:
    """The others stay for whoever wants them; what is no selector is refused by the broker."""
    with serving() as server:
        address = f"127.0.0.1:{server.port}"
        queue = ("--broker", address, "--destination", "/queue/q")
        with contextlib.closing(FailoverLink([BrokerAddress.parse(address)]).connect()) as client:
            for colour in ("red", "blue", "red"):
                headers = {"destination": "/queue/q", "colour": colour, "receipt": colour}
                client.send("SEND", headers, colour.encode())
            answered = [*client.exchange(60.0)]
            while len(answered) < 3:
                answered += client.exchange(60.0)
        red = run("consume", *queue, "--count", 2, "--selector", "colour = 'red'", "--print")
        assert (red.exit_code, red.stdout.split()[:2]) == (0, ["red", "red"])
        rest = run("consume", *queue, "--count", 1, "--print")
        assert rest.stdout.split()[0] == "blue"
        refused = run("consume", *queue, "--count", 1, "--selector", "colour = = 'red'")
    assert refused.exit_code == 77
    assert "selector" in refused.stderr
