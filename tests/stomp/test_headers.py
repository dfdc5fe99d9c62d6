"""Every header that has a meaning in Artemis or Classic acts here, or is refused by its name."""

import ast
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import orthia
from orthia.broker.protocols.stomp import headers as table
from orthia.broker.protocols.stomp.frames import Version
from orthia.broker.protocols.stomp.headers import (
    HEADERS,
    Header,
    Rule,
    resendable,
)
from orthia.config.settings import ClientLimits
from tests.core.support import SETTINGS, CoreUnderTest, settings
from tests.stomp.support import PASSCODE, QUEUE, Client, bodies, fill, secured
from tools.documents.stomp_headers import reference

_ROOT = Path(__file__).parents[2]
_VERSIONS = [one.value for one in Version]

# What the two brokers' documents and STOMP converters name, frame by frame.
ARTEMIS = {
    "CONNECT": "login passcode client-id request-id accept-version host heart-beat",
    "SEND": "destination destination-type correlation-id reply-to expires priority type persistent"
    " AMQ_SCHEDULED_DELAY AMQ_SCHEDULED_TIME JMSXGroupID content-type content-length receipt"
    " transaction _AMQ_ROUTE_TO _AMQ_SCALEDOWN_TO _AMQ_ACK_ROUTE_TO _AMQ_BRIDGE_DUP"
    " _AMQ_ACTUAL_EXPIRY _AMQ_ORIG_ADDRESS _AMQ_ORIG_QUEUE _AMQ_ORIG_MESSAGE_ID _AMQ_GROUP_ID"
    " _AMQ_GROUP_SEQUENCE _AMQ_LARGE_COMPRESSED _AMQ_LARGE_SIZE _AMQ_SCHED_DELIVERY _AMQ_DUPL_ID"
    " _AMQ_LVQ_NAME _AMQ_VALIDATED_USER _AMQ_ROUTING_TYPE _AMQ_ORIG_ROUTING_TYPE"
    " _AMQ_INGRESS_TIMESTAMP _AMQ_PREFIX JMSXUserID ingress-timestamp message-id redelivered"
    " timestamp subscription ack",
    "SUBSCRIBE": "destination ack id selector durable-subscriber-name durable-subscription-name"
    " activemq.subscriptionName activemq.prefetchSize consumer-window-size subscription-type"
    " no-local activemq.noLocal receipt",
    "UNSUBSCRIBE": "destination id durable-subscriber-name durable-subscription-name"
    " activemq.subscriptionName receipt",
    **dict.fromkeys(("ACK", "NACK"), "message-id subscription id transaction receipt"),
    **dict.fromkeys(("BEGIN", "COMMIT", "ABORT"), "transaction receipt"),
    "DISCONNECT": "receipt",
}
CLASSIC = {
    "CONNECT": "login passcode client-id request-id accept-version host heart-beat",
    "SEND": "destination correlation-id reply-to expires priority type persistent transformation"
    " amq-msg-type JMSXGroupID JMSXGroupSeq AMQ_SCHEDULED_DELAY AMQ_SCHEDULED_PERIOD"
    " AMQ_SCHEDULED_REPEAT AMQ_SCHEDULED_CRON AMQ_SCHEDULER_ACTION content-type content-length"
    " transaction receipt message-id redelivered timestamp subscription ack JMSXUserID"
    " JMSXDeliveryCount original-destination",
    "SUBSCRIBE": "destination ack id selector browser transformation receipt"
    " activemq.dispatchAsync activemq.exclusive activemq.maximumPendingMessageLimit"
    " activemq.noLocal activemq.prefetchSize activemq.priority activemq.retroactive"
    " activemq.subscriptionName activemq.browser activemq.selector",
    "UNSUBSCRIBE": "destination id activemq.subscriptionName receipt",
    **dict.fromkeys(("ACK", "NACK"), "message-id subscription id transaction receipt"),
    **dict.fromkeys(("BEGIN", "COMMIT", "ABORT"), "transaction receipt"),
    "DISCONNECT": "receipt",
}


SECURED = secured(
    {"app": "apps", "operator": "apps operators"},
    {"#": {"apps": "send consume createAddress createDurableQueue", "operators": "manage"}},
)
"""An application and an operator; only that one may manage."""


def of(*rules: Rule) -> Iterator[tuple[str, Header]]:
    """Give each header of these rules with each of its frames."""
    for header in HEADERS:
        if header.rule in rules:
            yield from ((frame, header) for frame in header.frames)


def send(client: Client, command: str, name: str, value: str) -> None:
    """Send an otherwise good frame with one header more."""
    lines = {
        "SEND": f"destination:{QUEUE}",
        "SUBSCRIBE": f"id:t\ndestination:{QUEUE}\nack:client",
        "UNSUBSCRIBE": "id:s",
    }[command]
    client.session.receive(f"{command}\n{lines}\n{name}:{value}\n\nbody\0".encode())
    client.core.settle()


def subscribed(core: CoreUnderTest, version: str = "1.2") -> Client:
    """Return a client with a subscription."""
    client = Client(core, version)
    client.send("SUBSCRIBE", destination="/queue/other", id="s")
    return client


# --- the table


def test_the_committed_page_is_the_generated_one() -> None:
    """docs/stomp-headers.md is what python -m tools.documents.stomp_headers writes."""
    assert (_ROOT / "docs" / "stomp-headers.md").read_text() == reference()


@pytest.mark.parametrize("lists", [ARTEMIS, CLASSIC], ids=["Artemis", "Classic"])
def test_every_header_with_a_meaning_elsewhere_is_in_the_table(lists: dict[str, str]) -> None:
    """For the frame it has the meaning on."""
    for frame, names in lists.items():
        known = {one.name for one in HEADERS if frame in one.frames}
        assert set(names.split()) <= known, frame


def test_a_header_has_one_rule_for_each_frame() -> None:
    """No name is twice in the table for one frame."""
    pairs = [(frame, header.name) for header in HEADERS for frame in header.frames]
    assert len(pairs) == len(set(pairs))


def test_every_header_that_acts_is_read() -> None:
    """Its name is in the code that takes frames apart, and not in the table only."""
    read: set[str] = set()
    broker = Path(orthia.__file__).parent / "broker"
    for path in (broker / "protocols" / "stomp").glob("*.py"):
        if path.stem != table.__name__.rpartition(".")[2]:
            constants = (one for one in ast.walk(ast.parse(path.read_text())))
            read |= {
                one.value.decode()
                for one in constants
                if isinstance(one, ast.Constant) and isinstance(one.value, bytes)
            }
    # What a message says.
    others = [broker / "protocols/stomp/encoding.py", broker / "../config/queues.py"]
    for path in [*others, *(broker / "core" / "queue").glob("*.py")]:
        tree = ast.parse(path.read_text())
        read |= {
            one.value
            for one in ast.walk(tree)
            if isinstance(one, ast.Constant) and isinstance(one.value, str)
        }
    assert {header.name for _, header in of(Rule.ACTS)} <= read


# --- what is refused


@pytest.mark.parametrize("version", _VERSIONS)
@pytest.mark.parametrize(
    ("frame", "header"),
    [pytest.param(*one, id=f"{one[0]} {one[1].name}") for one in of(Rule.REFUSED)],
)
def test_what_is_not_done_is_refused_by_name(frame: str, header: Header, version: str) -> None:
    """The ERROR says what it would have meant, and that this version does not do it."""
    core = CoreUnderTest()
    client = subscribed(core, version)
    send(client, frame, header.name, "1")
    error = client.error()
    assert f"{frame} has the header {header.name}" in error
    assert header.meaning in error
    assert "this version of Orthia does not do that" in error
    assert Client(core).subscribe() == []


@pytest.mark.parametrize(
    ("frame", "header", "value"),
    [
        pytest.param(frame, header, said, id=f"{frame} {header.name} {said}")
        for frame, header in of(Rule.REFUSED)
        for value in sorted(header.harmless)
        for said in sorted({value, value.capitalize(), f" {value}"})
    ],
)
def test_values_that_ask_for_what_is_done_anyway_are_taken(
    frame: str, header: Header, value: str
) -> None:
    """Clients write their defaults into every frame."""
    client = subscribed(CoreUnderTest())
    send(client, frame, header.name, value)
    assert client.commands() == []
    assert not client.closed


def test_what_was_taken_once_can_be_sent_again() -> None:
    """A replay leaves out what did nothing the first time, and would be refused now."""
    stored = {"priority": "10", "_AMQ_DUPL_ID": "1", "destination-type": "MULTICAST", "a": "b"}
    assert resendable(stored) == {"a": "b"}
    assert resendable({"priority": "9"}) == {"priority": "9"}
    assert resendable({"persistent": "maybe", "JMSXGroupSeq": "x"}) == {}
    good = {"persistent": "False", "JMSXGroupSeq": "-1", "_AMQ_GROUP_SEQUENCE": "7"}
    assert resendable(good) == good


# --- what passes, and what does not


@pytest.mark.parametrize("sender", _VERSIONS)
@pytest.mark.parametrize("receiver", _VERSIONS)
def test_what_passes_reaches_the_receiver(sender: str, receiver: str) -> None:
    """Unchanged, and so does whatever has no meaning anywhere."""
    core = CoreUnderTest()
    names = [header.name for _, header in of(Rule.PASSES)] + ["customer", "priority"]
    lines = "".join(f"{name}:4\n" for name in names)
    Client(core, sender).session.receive(f"SEND\ndestination:{QUEUE}\n{lines}\n\0".encode())
    core.settle()
    (frame,) = Client(core, receiver).subscribe()
    assert {name: frame.get(name.encode()) for name in names} == dict.fromkeys(names, "4")


@pytest.mark.parametrize("sender", _VERSIONS)
@pytest.mark.parametrize("receiver", _VERSIONS)
def test_of_repeated_headers_the_first_counts_and_all_are_kept(sender: str, receiver: str) -> None:
    """For the broker, for the receiver, and for a selector, in the order they were written."""
    core = CoreUnderTest()
    consumer = Client(core, receiver)
    consumer.send("SUBSCRIBE", destination=QUEUE, id="s", selector="colour = 'red'")
    lines = f"destination:{QUEUE}\ncolour:red\nexpires:0\ncolour:green\nexpires:1\ncolour:blue"
    client = Client(core, sender)
    client.session.receive(f"SEND\n{lines}\ndestination:/queue/other\n\nx\0".encode())
    core.settle()
    written = consumer.written
    (frame,) = consumer.frames()
    assert frame.get(b"colour") == "red"
    assert re.findall(rb"\ncolour:(\w+)", written) == [b"red", b"green", b"blue"]
    assert re.findall(rb"\nexpires:(\d)", written) == [b"0", b"1"]
    assert re.findall(rb"\ndestination:(.*)", written) == [QUEUE.encode()]


_DEFAULTS = {
    "persistent": "true",
    "priority": "4",
    "expires": "0",
    "destination-type": "ANYCAST",
}


@pytest.mark.parametrize(
    "said",
    [
        {},
        {"persistent": "true"},
        {"persistent": "false", "x-priority": "9"},
        {"expires": "9000", "colour": "expires:1"},
        {"priority": "4", "destination-type": "ANYCAST"},
        _DEFAULTS,
    ],
)
@pytest.mark.parametrize("version", _VERSIONS)
def test_a_message_says_what_its_sender_did_not(version: str, said: dict[str, str]) -> None:
    """As in Artemis, each once: clients may look for them without asking whether they are there."""
    core = CoreUnderTest(time_ms=lambda: 2_000)
    Client(core, version).send("SEND", "1", destination=QUEUE, **said)
    consumer = Client(core, version)
    consumer.send("SUBSCRIBE", destination=QUEUE, id="s")
    names = [line.partition(b":")[0].decode() for line in consumer.written.split(b"\n")]
    frame = consumer.read()
    assert {name: frame.get(name.encode()) for name in _DEFAULTS} == {
        name: said.get(name, default) for name, default in _DEFAULTS.items()
    }
    assert {name: names.count(name) for name in _DEFAULTS} == dict.fromkeys(_DEFAULTS, 1)


@pytest.mark.parametrize(
    ("destination", "told"),
    [
        ("/topic/news", ["MULTICAST"]),
        ("/topic/#", ["MULTICAST"]),
        ("/queue/news,/topic/news", ["ANYCAST", "MULTICAST"]),
    ],
)
def test_a_message_says_as_what_it_was_sent(destination: str, told: list[str]) -> None:
    """By the queue it comes from, also where one subscription is to several destinations."""
    core = CoreUnderTest()
    consumer = Client(core)
    consumer.send("SUBSCRIBE", destination=destination, id="s")
    Client(core).send("SEND", "1", destination="/queue/news,/topic/news")
    frames = consumer.frames()
    assert sorted(str(one.get(b"destination-type")) for one in frames) == told


@pytest.mark.parametrize("header", [pytest.param(one, id=one.name) for _, one in of(Rule.REMOVED)])
def test_what_only_the_broker_says_is_removed(header: Header) -> None:
    """A tool that sends a dead letter on with all its headers goes on working."""
    core = CoreUnderTest(SECURED)
    client = Client(core, login="app", passcode=PASSCODE)
    send(client, "SEND", header.name, "forged")
    assert client.frames() == []
    (frame,) = Client(core, login="app", passcode=PASSCODE).subscribe()
    assert frame.body == b"body"
    assert frame.get(header.name.encode()) != "forged"


@pytest.mark.parametrize("version", _VERSIONS)
def test_messages_say_who_sent_them(version: str) -> None:
    """With populate-validated-user, whatever the sender says, in transactions and to selectors."""
    core = CoreUnderTest(replace(SECURED, populate_validated_user=True))
    sender = Client(core, version, login="app", passcode=PASSCODE)
    sender.send("BEGIN", transaction="t")
    send(sender, "SEND", "transaction:t\nJMSXUserID", "operator")
    sender.send("COMMIT", transaction="t")
    consumer = Client(core, login="operator", passcode=PASSCODE)
    (frame,) = consumer.subscribe(selector="JMSXUserID = 'app'")
    assert frame.get(b"JMSXUserID") == "app"
    nobody = CoreUnderTest(replace(SETTINGS, populate_validated_user=True))
    send(Client(nobody, login="app", passcode=PASSCODE), "SEND", "colour", "red")
    (frame,) = Client(nobody).subscribe()
    assert frame.get(b"JMSXUserID") is None


@pytest.mark.parametrize("version", _VERSIONS)
def test_messages_say_when_they_came(version: str) -> None:
    """With enable-ingress-timestamp, whatever the sender says, in transactions and to selectors."""
    core = CoreUnderTest(settings("orders", enable_ingress_timestamp=True))
    sender = Client(core, version)
    send(sender, "SEND", "ingress-timestamp", "7")
    sender.send("BEGIN", transaction="t")
    send(sender, "SEND", "transaction:t\n_AMQ_INGRESS_TIMESTAMP", "7")
    sender.send("COMMIT", transaction="t")
    successor = core.takeover(settings("orders", enable_ingress_timestamp=True))
    successor.broker.count_backlogs()
    successor.settle()
    consumer = Client(successor, version)
    frames = consumer.subscribe(selector="_AMQ_INGRESS_TIMESTAMP > 7")
    successor.settle()
    frames += consumer.frames()
    said = [frame.get(b"ingress-timestamp") for frame in frames]
    assert said == [frame.get(b"timestamp") for frame in frames]
    assert len(said) == 2
    plain = CoreUnderTest(settings("others", enable_ingress_timestamp=True))
    send(Client(plain, version), "SEND", "ingress-timestamp", "7")
    (frame,) = Client(plain, version).subscribe()
    assert frame.get(b"ingress-timestamp") is None


@pytest.mark.parametrize("version", _VERSIONS)
@pytest.mark.parametrize(
    ("given", "sent", "told"),
    [
        ({"expiry_delay": 1_000}, None, "3000"),
        ({"expiry_delay": 1_000}, "9000", "9000"),
        ({"max_expiry_delay": 1_000}, "9000", "3000"),
        ({"min_expiry_delay": 1_000}, "2500", "3000"),
        ({"no_expiry": True}, "9000", "0"),
        ({"no_expiry": True}, None, "0"),
    ],
)
def test_a_message_says_when_it_expires(
    given: dict[str, Any], sent: str | None, told: str | None, version: str
) -> None:
    """Where its address says otherwise than its sender, what is so."""
    core = CoreUnderTest(settings("orders", **given), time_ms=lambda: 2_000)
    said = {} if sent is None else {"expires": sent}
    Client(core, version).send("SEND", "x", destination=QUEUE, colour="red", **said)
    consumer = Client(core, version)
    frames = consumer.subscribe(ack="client")
    assert [one.get(b"expires") for one in frames] == [told]
    assert frames[0].get(b"colour") == "red"


def test_what_a_replay_says_is_taken_from_operators() -> None:
    """Who may manage may say that a replay sent a message, and of which it is a copy."""
    core = CoreUnderTest(SECURED)
    operator = Client(core, login="operator", passcode=PASSCODE)
    send(operator, "SEND", "orthia-replayed-from", "17")
    (frame,) = operator.subscribe()
    assert frame.get(b"orthia-replayed-from") == "17"


@pytest.mark.parametrize("command", ["SEND", "SUBSCRIBE"])
@pytest.mark.parametrize("destination", ["/queue/orthia.replay.one", "orthia.replay.one"])
def test_a_replays_queue_is_closed_to_others(command: str, destination: str) -> None:
    """Whoever could send there, or take what is there, would decide what a replay sends."""
    core = CoreUnderTest(SECURED)
    client = Client(core, login="app", passcode=PASSCODE)
    client.send(command, destination=destination, id="m")
    assert "no role with permission 'manage' on address 'orthia.replay.one'" in client.error()
    assert "orthia.replay.one" not in core.broker.queues()
    operator = Client(core, login="operator", passcode=PASSCODE)
    operator.send(command, destination=destination, id="m")
    assert operator.frames() == []
    assert "orthia.replay.one" in core.broker.queues()
    app = Client(core, login="app", passcode=PASSCODE)
    app.send("SEND", "x", destination="/queue/orthia.replayed", receipt="r")
    assert app.commands() == ["RECEIPT"]


# --- what acts


def received(client: Client) -> list[str]:
    """Return the bodies that came."""
    return bodies(client.frames())


@pytest.mark.parametrize(
    ("destination", "kind", "queue"),
    [
        ("orders", "ANYCAST", True),
        ("orders", "MULTICAST", False),
        ("/queue/orders", "ANYCAST", True),
        ("/topic/orders", "MULTICAST", False),
    ],
)
def test_a_destinations_type_says_what_a_name_is(destination: str, kind: str, queue: bool) -> None:
    """Beside SEND's and SUBSCRIBE's destination, as in Artemis."""
    core = CoreUnderTest()
    consumer = Client(core)
    consumer.send("SUBSCRIBE", destination=destination, id="s", subscription_type=kind)
    assert ("orders" in core.broker.queues()) is queue
    client = Client(core)
    client.send("SEND", "x", destination=destination, destination_type=kind)
    (frame,) = consumer.frames()
    assert frame.get(b"destination") == destination
    assert frame.get(b"destination-type") == kind


@pytest.mark.parametrize(
    ("headers", "count"),
    [
        ({"consumer-window-size": "0"}, 1),
        ({"consumer-window-size": "1"}, 1),
        ({"consumer-window-size": "-1"}, 20),
        ({"consumer-window-size": "0", "prefetch-count": "5"}, 1),
        ({"activemq.prefetchSize": "0"}, 1),
        ({"activemq.prefetchSize": "3"}, 3),
        ({"activemq.prefetchSize": "-1"}, 20),
        ({"activemq.prefetchSize": "3", "prefetch-count": "5"}, 5),
        ({"prefetch-count": "0"}, 10),
        ({}, 10),
    ],
)
@pytest.mark.parametrize("destination", [QUEUE, "/topic/news"])
def test_the_credit_a_subscription_asks_for_is_its_own(
    headers: dict[str, str], count: int, destination: str
) -> None:
    """In messages or in bytes, which are counted as they are in memory."""
    core = CoreUnderTest()
    client = Client(core, limits=ClientLimits(prefetch_count=10))
    client.send("SUBSCRIBE", destination=destination, id="s", ack="client", **headers)
    core.send(destination, *(f"{number:0400}" for number in range(20)))
    frames = client.frames()
    assert len(frames) == count
    client.send("ACK", id=frames[-1].get(b"ack") or "")
    assert received(client)[:1] == ([f"{count:0400}"] if count < 20 else [])


@pytest.mark.parametrize("destination", [QUEUE, "/topic/news"])
def test_a_window_is_full_when_its_bytes_are_delivered(destination: str) -> None:
    """As they count in memory: the message that reaches the size is the last."""
    core = CoreUnderTest()
    measure = core.consume("/queue/measure")
    core.send("/queue/measure", "x" * 400)
    size = measure.received[0].size
    client = Client(core)
    window = {"consumer-window-size": str(3 * size)}
    client.send("SUBSCRIBE", destination=destination, id="s", ack="client", **window)
    core.send(destination, *("x" * 400 for _ in range(20)))
    frames = client.frames()
    assert len(frames) == 3
    client.send("ACK", id=frames[0].get(b"ack") or "")
    assert len(client.frames()) == 1


@pytest.mark.parametrize("asked", ["-1", "999999999"])
@pytest.mark.parametrize("destination", [QUEUE, "/topic/news"])
def test_no_window_is_wider_than_the_brokers(asked: str, destination: str) -> None:
    """max-unacknowledged-bytes bounds each subscription, whatever it asks for."""
    core = CoreUnderTest(
        replace(SETTINGS, stomp_limits=ClientLimits(max_unacknowledged_bytes=5_000))
    )
    client = Client(core)
    window = {"consumer-window-size": asked}
    client.send("SUBSCRIBE", destination=destination, id="s", ack="client", **window)
    core.send(destination, *("x" * 400 for _ in range(20)))
    assert 1 < len(client.frames()) < 20


def test_a_request_id_comes_back() -> None:
    """As response-id of CONNECTED, as Artemis and Classic answer it."""
    assert Client(CoreUnderTest(), request_id="r1").connected.get(b"response-id") == "r1"
    assert Client(CoreUnderTest()).connected.get(b"response-id") is None


# --- what ordinary clients send

_NMS = {
    "selector": "",
    "no-local": "False",
    "transformation": "jms-xml",
    "activemq.dispatchAsync": "True",
    "activemq.exclusive": "False",
    "activemq.maximumPendingMessageLimit": "0",
    "activemq.prefetchSize": "1000",
    "activemq.priority": "0",
    "activemq.retroactive": "False",
}


@pytest.mark.parametrize(
    "headers",
    [
        {},
        _NMS,
        {"activemq.prefetchSize": "1"},
        {"x-queue-name": "mine", "persistent": "true", "header-of-ours": "1"},
    ],
    ids=["stomp.py", "NMS", "PHP", "others"],
)
def test_what_clients_write_into_every_subscribe_is_taken(headers: dict[str, str]) -> None:
    """Their defaults, and what means nothing to anybody."""
    core = CoreUnderTest()
    fill(core, "a")
    client = Client(core)
    assert bodies(client.subscribe("client", **headers)) == ["a"]


def test_what_clients_write_into_every_send_is_taken() -> None:
    """Priority and persistence as they are anyway, and how the body is written."""
    core = CoreUnderTest()
    client = Client(core)
    client.send(
        "SEND",
        "a",
        destination=QUEUE,
        persistent="true",
        priority="4",
        expires="0",
        content_type="text/plain;charset=UTF-8",
        amq_msg_type="text",
        suppress_content_length="true",
        reply_to="/queue/answers",
        receipt="r",
    )
    assert client.commands() == ["RECEIPT"]
