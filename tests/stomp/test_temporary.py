"""Temporary queues and topics: a connection's own, which others answer to and which end with it."""

import re
from dataclasses import replace

import pytest

from orthia.config.address_settings import AddressSettings, DivertSettings
from tests.core.support import SETTINGS, CoreUnderTest, settings
from tests.stomp.support import Client, bodies

KINDS = ["queue", "topic"]


def subscribed(core: CoreUnderTest, kind: str, name: str = "answers") -> Client:
    """Return a client that is subscribed to a temporary destination of its own."""
    client = Client(core)
    client.send("SUBSCRIBE", destination=f"/temp-{kind}/{name}", id="s")
    assert client.frames() == []
    return client


def ask(client: Client, kind: str, name: str = "answers") -> None:
    """Send a request that is to be answered at a temporary destination."""
    client.send("SEND", "?", destination="/queue/requests", reply_to=f"/temp-{kind}/{name}")


def answer_to(core: CoreUnderTest) -> tuple[Client, str]:
    """Return who has the next request, and where it is to answer."""
    server = Client(core)
    server.send("SUBSCRIBE", destination="/queue/requests", id="r")
    return server, server.read().get(b"reply-to") or ""


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("version", ["1.0", "1.1", "1.2"])
@pytest.mark.parametrize("asks_first", [True, False])
def test_another_connections_answer_arrives(kind: str, version: str, *, asks_first: bool) -> None:
    """By the reply-to of the request; with the destination that the client calls it by."""
    core = CoreUnderTest()
    client = Client(core, version)
    if asks_first and kind == "queue":
        ask(client, kind)
        client.send("SUBSCRIBE", destination=f"/temp-{kind}/answers", id="s")
    else:
        client.send("SUBSCRIBE", destination=f"/temp-{kind}/answers", id="s")
        ask(client, kind)
    server, where = answer_to(core)
    assert where.startswith(f"/remote-temp-{kind}/temp-{kind}.")
    server.send("SEND", "!", destination=where, receipt="r")
    assert server.commands() == ["RECEIPT"]
    frame = client.read()
    assert (frame.get(b"destination"), frame.body) == (f"/temp-{kind}/answers", b"!")


def test_a_reply_to_in_a_transaction_and_an_answer_in_one() -> None:
    """At their COMMITs."""
    core = CoreUnderTest()
    client = subscribed(core, "queue")
    client.send("BEGIN", transaction="t")
    request = {"destination": "/queue/requests", "reply-to": "/temp-queue/answers"}
    client.send("SEND", "?", transaction="t", **request)
    client.send("COMMIT", transaction="t")
    server, where = answer_to(core)
    server.send("BEGIN", transaction="t")
    server.send("SEND", "!", destination=where, transaction="t")
    server.send("COMMIT", transaction="t")
    assert bodies(client.frames()) == ["!"]


@pytest.mark.parametrize("kind", KINDS)
def test_names_are_each_connections_own(kind: str) -> None:
    """Two clients with one name get each their own answers."""
    core = CoreUnderTest()
    first, second = subscribed(core, kind), subscribed(core, kind)
    for client in (first, second):
        client.send("SEND", "own", destination=f"/temp-{kind}/answers")
        assert bodies(client.frames()) == ["own"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("how", ["DISCONNECT", "lost"])
def test_it_ends_with_its_connection(kind: str, how: str) -> None:
    """An answer that comes later is dropped, and whoever sends it goes on."""
    core = CoreUnderTest()
    client = subscribed(core, kind)
    ask(client, kind)
    server, where = answer_to(core)
    server.send("SEND", "!", destination=where)
    if how == "lost":
        client.session.connection_lost()
    else:
        client.send("DISCONNECT", receipt="bye")
    core.pass_time(1)
    assert list(core.broker.queues()) == ["requests"]
    server.send("SEND", "!", destination=where, receipt="r")
    assert server.commands() == ["RECEIPT"]
    assert list(core.broker.queues()) == ["requests"]


def test_nobody_else_consumes_from_it() -> None:
    """Not by any of its names."""
    core = CoreUnderTest()
    client = subscribed(core, "queue")
    ask(client, "queue")
    _, where = answer_to(core)
    for destination in (where, where.replace("/remote-temp-queue/", "/queue/")):
        other = Client(core)
        other.send("SUBSCRIBE", destination=destination, id="s")
        assert "is another connection's own: it alone consumes" in other.error()
        other = Client(core)
        other.send("SUBSCRIBE", destination=destination, id="s", browser="true")
        assert "is another connection's own" in other.error()
    client.send("DISCONNECT")
    core.pass_time(1)
    late = Client(core)
    late.send("SUBSCRIBE", destination=where, id="s")
    assert "was temporary, and is gone" in late.error()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("qualified", ["::stolen", "::{address}.x"])
def test_nobody_makes_another_queue_at_its_address(kind: str, qualified: str) -> None:
    """Neither by a SEND, in a transaction too, nor by a SUBSCRIBE: its owner gets all answers."""
    core = CoreUnderTest()
    client = subscribed(core, kind)
    ask(client, kind)
    server, where = answer_to(core)
    address = where.removeprefix(f"/remote-temp-{kind}/")
    named = address + qualified.format(address=address)
    for destination in (named, f"/{kind}/{named}"):
        thief = Client(core)
        thief.send("SUBSCRIBE", destination=destination, id="t")
        assert "is another connection's own: it alone consumes" in thief.error()
        thief = Client(core)
        thief.send("BEGIN", transaction="t")
        thief.send("SEND", "x", destination=destination, transaction="t")
        thief.send("COMMIT", transaction="t")
        assert "which is temporary: nothing is created there" in thief.error()
        thief = Client(core)
        thief.send("SEND", "x", destination=destination)
        assert "which is temporary: nothing is created there" in thief.error()
    assert set(core.broker.queues()) - {address} == {"requests"}
    for number in range(4):
        server.send("SEND", str(number), destination=where)
    assert bodies(client.frames()) == list("0123")


@pytest.mark.parametrize("headers", [{"durable-subscription-name": "d"}, {"no-local": "true"}])
def test_nobody_else_hears_its_topic(headers: dict[str, str]) -> None:
    """Not by a durable subscription, nor by one without its own messages."""
    core = CoreUnderTest()
    client = subscribed(core, "topic")
    ask(client, "topic")
    server, where = answer_to(core)
    for destination in (where, where.replace("/remote-temp-topic/", "/topic/")):
        other = Client(core, client_id="other")
        other.send("SUBSCRIBE", destination=destination, id="s", **headers)
        assert re.search("which is temporary: it ends|another connection's own", other.error())
    server.send("SEND", "!", destination=where)
    assert bodies(client.frames()) == ["!"]
    assert list(core.broker.queues()) == ["requests"]


def test_nothing_of_it_is_stored_nor_there_after_a_takeover() -> None:
    """Its client subscribes again, under a new name; what is sent to the old one is dropped."""
    core = CoreUnderTest()
    client = subscribed(core, "queue")
    ask(client, "queue")
    server, where = answer_to(core)
    before = len(core.journal.store.messages)
    client.send("UNSUBSCRIBE", id="s")
    server.send("SEND", "!", destination=where)
    assert len(core.journal.store.messages) == before
    successor = core.takeover()
    successor.broker.count_backlogs()
    successor.pass_time(1)
    assert list(successor.broker.queues()) == ["requests"]
    late = Client(successor)
    late.send("SEND", "!", destination=where, receipt="r")
    assert late.commands() == ["RECEIPT"]


def test_what_memory_has_no_room_for_is_there_all_the_same() -> None:
    """It is stored meanwhile, and deleted with the queue, by this node or by the next."""
    settings = replace(SETTINGS, address_settings=(AddressSettings("#", max_size_messages=2),))
    core = CoreUnderTest(settings)
    client = Client(core)
    for number in range(5):
        client.send("SEND", str(number), destination="/temp-queue/q")
    assert len(core.journal.store.messages) == 3
    successor = CoreUnderTest(settings, store=core.successor_store())
    client.send("SUBSCRIBE", destination="/temp-queue/q", id="s")
    assert bodies(client.frames()) == ["0", "1", "2", "3", "4"]
    successor.broker.count_backlogs()
    successor.pass_time(1)
    assert not successor.journal.store.messages
    assert not successor.broker.queues()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("is_first", [True, False])
def test_wildcards_and_diverts_do_not_hear_it(kind: str, *, is_first: bool) -> None:
    """What is answered is between two, whoever came first."""
    divert = DivertSettings("all", "#", "copies")
    core = CoreUnderTest(replace(SETTINGS, diverts=(divert,)))
    every = Client(core)
    if is_first:
        every.send("SUBSCRIBE", destination="/topic/#", id="s")
    client = subscribed(core, kind)
    if not is_first:
        every.send("SUBSCRIBE", destination="/topic/#", id="s")
    client.send("SEND", "own", destination=f"/temp-{kind}/answers")
    assert bodies(client.frames()) == ["own"]
    assert every.frames() == []
    assert core.consume("/queue/copies").texts == []


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_to_be_answered_later_goes_with_it(kind: str) -> None:
    """Nothing waits for a client that is gone, here or after a takeover."""
    core = CoreUnderTest()
    client = subscribed(core, kind)
    ask(client, kind)
    server, where = answer_to(core)
    send_later(server, where, "later")
    successor = CoreUnderTest(store=core.successor_store())
    successor.broker.count_backlogs()
    successor.broker.start_schedule()
    successor.pass_time(1)
    assert list(successor.broker.queues()) == ["requests"]
    assert not successor.journal.store.messages
    assert core.journal.store.messages
    client.send("DISCONNECT")
    send_later(server, where, "too late")
    core.pass_time(1)
    assert list(core.broker.queues()) == ["requests"]
    assert not core.journal.store.messages


def send_later(client: Client, destination: str, text: str) -> None:
    """Send a message that is delivered in a minute."""
    later = {"destination": destination, "AMQ_SCHEDULED_DELAY": 60_000, "receipt": "r"}
    client.say("SEND", later, text)
    assert client.commands() == ["RECEIPT"]


def test_a_temporary_queue_is_as_no_address_setting_says() -> None:
    """It keeps every answer, and its connection may subscribe to it as often as it likes."""
    core = CoreUnderTest(settings("#", default_max_consumers=1, default_ring_size=1))
    client = subscribed(core, "queue")
    client.send("SUBSCRIBE", destination="/temp-queue/answers", id="t")
    assert client.frames() == []
    for id_ in ("s", "t"):
        client.send("UNSUBSCRIBE", id=id_)
    ask(client, "queue")
    server, where = answer_to(core)
    for text in ("a", "b"):
        server.send("SEND", text, destination=where)
    client.send("SUBSCRIBE", destination="/temp-queue/answers", id="u")
    assert bodies(client.frames()) == ["a", "b"]
