"""What a client can have the broker do by a SEND to the management address."""

from typing import Any

import pytest

from orthia.broker.management import operations
from orthia.broker.protocols.prefixes import Prefixes
from orthia.config.address_settings import AddressFullPolicy
from orthia.config.settings import AcceptorSettings
from tests.core.support import CoreUnderTest, settings
from tests.stomp.support import PASSCODE, QUEUE, Client, bodies, secured

REQUEST = {
    "destination": "activemq.management",
    "_AMQ_ResourceName": "broker",
    "_AMQ_OperationName": "destroyQueue",
}

COUNT = {"_AMQ_ResourceName": "queue.orders", "_AMQ_OperationName": "countMessages"}
NAMES = {"_AMQ_OperationName": "getQueueNames"}
ANSWERS = {"reply-to": "/temp-queue/answers"}


def request(client: Client, body: str, **headers: Any) -> None:
    """Send a management request."""
    given = {name: value for name, value in (REQUEST | headers).items() if value}
    client.say("SEND", given, body)


@pytest.mark.parametrize("destination", ["activemq.management", "/queue/activemq.management"])
def test_a_receipt_says_how_many_messages_went(destination: str) -> None:
    """Once all is done; what the client does next is not concerned."""
    client = Client(CoreUnderTest())
    client.core.send(QUEUE, "a", "b")
    request(client, '["orders", true]', receipt="r", destination=destination)
    frame = client.read()
    assert (frame.command, frame.get(b"receipt-id")) == ("RECEIPT", "r")
    assert frame.get(b"deleted-messages") == "2"
    assert not client.core.broker.queues()
    client.core.send(QUEUE, "c")
    client.core.consume(QUEUE, auto=True).end.close()
    client.core.settle()
    request(client, '["orders"]')
    assert not client.frames()
    client.send("DISCONNECT", receipt="bye")
    assert client.read().get(b"receipt-id") == "bye"
    assert not client.core.broker.queues()


@pytest.mark.parametrize(
    ("body", "headers", "told"),
    [
        ('["orders"]', {}, "by force only"),
        ('["nothing"]', {}, "no queue 'nothing'"),
        ("orders", {}, "expected a JSON array"),
        ('["orders", "yes"]', {}, "expected a JSON array"),
        ('["orders", true, true]', {}, "expected a JSON array"),
        ("[" * 100_000, {}, "expected a JSON array"),
        ('["orders"]', {"_AMQ_OperationName": "createQueue"}, "no operation 'createQueue'"),
        ('["orders"]', {"_AMQ_OperationName": "listQueues"}, "no operation 'listQueues'"),
        ("", {"_AMQ_ResourceName": "address.orders"}, "of 'address.orders' here; expected"),
        ('["orders"]', {"_AMQ_OperationName": ""}, "_AMQ_OperationName"),
        ('["orders"]', {"reply-to": "/queue/answers"}, "not at reply-to"),
        ('["orders"]', {"transaction": "t"}, "cannot be in a transaction"),
        ("", COUNT, "countMessages has no reply-to header"),
        ("", COUNT | {"reply-to": " "}, "destination ' ' is not valid"),
        ("", NAMES, "getQueueNames has no reply-to header"),
        ("", COUNT | ANSWERS | {"transaction": "t"}, "cannot be in a transaction"),
        ("[1]", COUNT | ANSWERS, "not what countMessages takes"),
        ('["QUEUE"]', NAMES | ANSWERS, "not what getQueueNames takes"),
        ("", COUNT | ANSWERS | {"_AMQ_ResourceName": "queue.none"}, "no queue 'none'"),
        ("", COUNT | {"reply-to": "/queue/a,/queue/b"}, "reply-to names several"),
        ("", COUNT | {"reply-to": "/queue/activemq.management"}, "takes management requests"),
        ("", COUNT | {"reply-to": "/temp-queue/"}, "a name of 1 to"),
    ],
)
def test_what_is_not_done_is_refused(body: str, headers: dict[str, str], told: str) -> None:
    """With what would be, and nothing is deleted."""
    client = Client(CoreUnderTest())
    client.core.send(QUEUE, "a")
    client.send("BEGIN", transaction="t")
    request(client, body, receipt="r", **headers)
    frame = client.read()
    assert (frame.command, frame.get(b"receipt-id")) == ("ERROR", "r")
    assert told in frame.body.decode()
    assert client.core.broker.depths() == {"orders": 1}


@pytest.mark.parametrize("version", ["1.0", "1.1", "1.2"])
@pytest.mark.parametrize("kind", ["queue", "topic"])
def test_a_question_is_answered_at_its_reply_to(version: str, kind: str) -> None:
    """Which may be the connection's own; with what tells the answers of several questions apart."""
    core = CoreUnderTest()
    core.send(QUEUE, "a", "b")
    client = Client(core, version)
    where = f"/temp-{kind}/answers"
    client.send("SUBSCRIBE", destination=where, id="s")
    request(client, "", **COUNT, receipt="r", **{"reply-to": where, "correlation-id": "a\\\\b"})
    frames = {frame.command: frame for frame in client.frames()}
    assert set(frames) == {"MESSAGE", "RECEIPT"}
    assert frames["RECEIPT"].raw.keys() == {b"receipt-id"}
    answer = frames["MESSAGE"]
    assert (answer.body, answer.get(b"destination")) == (b"[2]", where)
    assert answer.get(b"_AMQ_OperationSucceeded") == "true"
    assert answer.get(b"correlation-id") == ("a\\b" if version != "1.0" else "a\\\\b")
    assert answer.get(b"persistent") == "false"
    request(client, '["ANYCAST"]', **NAMES, **{"reply-to": where})
    answer = client.read()
    assert b'"orders"' in answer.body
    assert answer.get(b"correlation-id") is None
    assert core.broker.depths()["orders"] == 2


def test_an_answer_goes_wherever_its_client_may_send() -> None:
    """To a queue that is made for it, or by the acceptor's own prefixes."""
    core = CoreUnderTest()
    core.send(QUEUE, "a")
    acceptor = AcceptorSettings("a", "h", 1, anycast_prefixes=("jms.queue.",))
    client = Client(core, prefixes=Prefixes(acceptor))
    for where in ("/queue/answers", "jms.queue.answers"):
        request(client, "", **COUNT, **{"reply-to": where})
    assert core.consume("/queue/answers").texts == ["[1]", "[1]"]


def test_a_receipt_of_a_question_comes_when_its_answer_is_in_its_place() -> None:
    """Nobody has to be subscribed there yet."""
    client = Client(CoreUnderTest())
    request(client, "", **NAMES, **ANSWERS, receipt="r")
    assert client.commands() == ["RECEIPT"]
    client.send("SUBSCRIBE", destination="/temp-queue/answers", id="s")
    (body,) = bodies(client.frames())
    assert body.startswith('[["temp-queue.')


def test_frames_behind_a_question_wait_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """While others have their turns; and an answer that is too long is refused."""
    monkeypatch.setattr(operations, "_NAMES_AT_A_TIME", 1)
    seconds = iter(range(1_000_000))
    core = CoreUnderTest(clock=lambda: next(seconds))
    core.send("/queue/a", "x")
    core.send("/queue/b", "x")
    client = Client(core)
    question = "SEND\ndestination:activemq.management\n_AMQ_ResourceName:broker\n"
    question += "_AMQ_OperationName:getQueueNames\nreply-to:/queue/a\nreceipt:1\n\n\0"
    client.session.receive(f"{question}SEND\ndestination:/queue/a\nreceipt:2\n\n2\0".encode())
    assert not client.frames()
    core.settle()
    assert [frame.get(b"receipt-id") for frame in client.frames()] == ["1", "2"]
    assert core.consume("/queue/a").texts == ["x", '[["a","b"]]', "2"]
    monkeypatch.setattr(operations, "LONGEST_ANSWER", 5)
    request(client, "", **NAMES, **ANSWERS)
    assert "longer than 5 bytes" in client.error()


def test_where_there_is_no_room_for_an_answer_it_is_refused() -> None:
    """As any message would be."""
    core = CoreUnderTest(
        settings("full", max_size_messages=1, address_full_policy=AddressFullPolicy.FAIL)
    )
    core.send("/queue/full", "a")
    client = Client(core)
    request(client, "", **NAMES, **{"reply-to": "/queue/full"})
    assert "'full'" in client.error()


OWN = "send consume createAddress createNonDurableQueue"


@pytest.mark.parametrize(
    ("granted", "refused"),
    [
        ({"mops.queue.orders.countMessages": "view"}, None),
        ({"mops.#": "edit"}, "'view' on address 'mops.queue.orders.countMessages'"),
        ({"activemq.management": ""}, "'manage' on address 'activemq.management'"),
        (
            {"mops.#": "view", "temp-queue.#": OWN.removeprefix("send ")},
            "'send' on address 'temp-queue.",
        ),
    ],
)
def test_what_a_question_needs(granted: dict[str, str], refused: str | None) -> None:
    """The permission manage, view where that is asked for, and to send the answer."""
    matches = {"temp-queue.#": OWN, "activemq.management": "manage"} | granted
    by_role = {match: {"staff": permissions} for match, permissions in matches.items()}
    core = CoreUnderTest(secured({"ada": "staff"}, by_role, management_message_rbac=True))
    core.send(QUEUE, "a")
    client = Client(core, login="ada", passcode=PASSCODE)
    client.send("SUBSCRIBE", destination="/temp-queue/answers", id="s")
    request(client, "", **COUNT, **ANSWERS)
    if refused is None:
        assert bodies(client.frames()) == ["[1]"]
    else:
        assert refused in client.error()
