"""What a client can have the broker do by a SEND to the management address."""

import asyncio
import gc
import json
import math
from typing import Any

import pytest

from orthia.broker.management import operations, requests
from orthia.broker.management.abc import Handover
from orthia.broker.management.operations import (
    ADDRESS_OPERATIONS,
    BROKER_OPERATIONS,
    QUEUE_OPERATIONS,
)
from orthia.broker.management.views import HandoverView
from orthia.broker.protocols.amqp.values import Value
from orthia.broker.protocols.prefixes import Prefixes
from orthia.broker.protocols.stomp.client_frame import Frame
from orthia.broker.security.audit import Audit
from orthia.broker.security.permissions import PermissionRules
from orthia.config.address_settings import AddressFullPolicy, RoutingType
from orthia.config.settings import AcceptorSettings, Settings
from tests.amqp.support import Client as AmqpClient
from tests.core.support import SETTINGS, settings
from tests.management.support import OPERATOR, FakeClients, Managed, connection
from tests.stomp.support import PASSCODE, QUEUE, Client, bodies, secured

MANAGEMENT = {"destination": "activemq.management"}
COUNT = {"_AMQ_ResourceName": "queue.orders", "_AMQ_OperationName": "countMessages"}
NAMES = {"_AMQ_ResourceName": "broker", "_AMQ_OperationName": "getQueueNames"}
DESTROY = {"_AMQ_ResourceName": "broker", "_AMQ_OperationName": "destroyQueue"}
ANSWERS = {"reply-to": "/temp-queue/answers"}


class Scene:
    """A node that does what clients ask of it."""

    def __init__(self, options: Settings = SETTINGS, *messages: str) -> None:
        self.managed = Managed(options, FakeClients(connection("c1"), connection("c2", user="bob")))
        self.managed.manage()
        self.core = self.managed.core
        self.core.send(QUEUE, *messages)
        self.core.settle()

    def request(self, client: Client, body: str = "", **headers: Any) -> None:
        """Send a request by a client, and wait for what comes of it."""
        given = MANAGEMENT | headers
        said = {name: value for name, value in given.items() if value}
        self.managed.let(lambda: client.say("SEND", said, body))

    def ask(self, resource: str, operation: str, *arguments: Any) -> tuple[str, Any]:
        """Return what a request is answered: whether it succeeded, and the body."""
        client = self.listening()
        frame = self.answer(client, resource, operation, json.dumps(arguments))
        return frame.get(b"_AMQ_OperationSucceeded") or "", json.loads(frame.body)

    def listening(self, **login: Any) -> Client:
        """Return a client that waits for answers."""
        client = Client(self.core, **login)
        client.send("SUBSCRIBE", destination="/temp-queue/answers", id="s")
        return client

    def answer(self, client: Client, resource: str, operation: str, body: str = "") -> Frame:
        """Return the answer to one request."""
        names = {"_AMQ_ResourceName": resource, "_AMQ_OperationName": operation}
        self.request(client, body, **names, **ANSWERS)
        return client.read()


@pytest.mark.parametrize("destination", ["activemq.management", "/queue/activemq.management"])
def test_a_receipt_says_how_many_messages_went(destination: str) -> None:
    """Once all is done; what the client does next is not concerned."""
    scene = Scene(SETTINGS, "a", "b")
    client = Client(scene.core)
    scene.request(client, '["orders", true]', **DESTROY, receipt="r", destination=destination)
    frame = client.read()
    assert (frame.command, frame.get(b"receipt-id")) == ("RECEIPT", "r")
    assert frame.get(b"deleted-messages") == "2"
    assert not scene.core.broker.queues()
    scene.core.send(QUEUE, "c")
    scene.core.consume(QUEUE, auto=True).end.close()
    scene.core.settle()
    scene.request(client, '["orders"]', **DESTROY)
    assert not client.frames()
    client.send("DISCONNECT", receipt="bye")
    assert client.read().get(b"receipt-id") == "bye"
    assert not scene.core.broker.queues()


@pytest.mark.parametrize(
    ("body", "headers", "told"),
    [
        ('["orders"]', {}, "by force only"),
        ('["nothing"]', {}, "no queue 'nothing'"),
        ("orders", {}, "the body is not JSON"),
        ("[NaN]", {}, "no number in JSON"),
        ('{"name": "orders"}', {}, "no JSON array of arguments"),
        ('["orders", "yes"]', {}, '"yes"\' is no boolean'),
        ('["orders", true, true]', {}, "expected one of destroyQueue(java.lang.String)"),
        ("[" * 100_000, {}, "the body is not JSON"),
        (f"[{'[' * 900}{']' * 900}]", {}, "no queue"),
        (f"[{'1,' * 50_000}1]", {}, "50001 arguments"),
        ('["orders"]', {"_AMQ_OperationName": "fly"}, "no operation 'fly' here; expected"),
        ("", {"_AMQ_ResourceName": "divert.orders"}, "expected broker, queue.NAME or address"),
        ("", {"_AMQ_ResourceName": "queue."}, "there is no resource 'queue.' here"),
        ('["orders"]', {"_AMQ_OperationName": ""}, "_AMQ_OperationName"),
        ('["orders"]', {"_AMQ_ResourceName": ""}, "_AMQ_ResourceName"),
        ('["orders"]', {"_AMQ_Attribute": "Name"}, "an _AMQ_OperationName or an _AMQ_Attribute"),
        ('["orders"]', {"transaction": "t"}, "cannot be in a transaction"),
        ("", COUNT, "countMessages has no reply-to header"),
        ("", COUNT | {"reply-to": " "}, "destination ' ' is not valid"),
        ("", NAMES, "getQueueNames has no reply-to header"),
        ("", {"_AMQ_Attribute": "Name", "_AMQ_OperationName": ""}, "Name has no reply-to header"),
        ("", COUNT | ANSWERS | {"transaction": "t"}, "cannot be in a transaction"),
        ("", COUNT | {"reply-to": "/queue/a,/queue/b"}, "reply-to names several"),
        ("", COUNT | {"reply-to": "/queue/activemq.management"}, "takes management requests"),
        ("", COUNT | {"reply-to": "/temp-queue/"}, "a name of 1 to"),
    ],
)
def test_what_cannot_be_answered_elsewhere_is_an_error(
    body: str, headers: dict[str, str], told: str
) -> None:
    """With what would be done, and nothing is deleted."""
    scene = Scene(SETTINGS, "a")
    client = Client(scene.core)
    client.send("BEGIN", transaction="t")
    scene.request(client, body, receipt="r", **DESTROY | headers)
    frame = client.read()
    assert (frame.command, frame.get(b"receipt-id")) == ("ERROR", "r")
    assert told in frame.body.decode()
    assert scene.core.broker.depths() == {"orders": 1}


@pytest.mark.parametrize(
    ("resource", "operation", "arguments", "told"),
    [
        ("queue.none", "countMessages", [], "there is no queue 'none'"),
        ("queue.orders", "countMessages", ["a >"], "column"),
        ("queue.orders", "countMessages", [1, 2], "expected one of countMessages()"),
        ("queue.orders", "moveMessages", [None, "orders"], "target of its own messages"),
        ("queue.orders", "moveMessages", [None, None], "needs a target"),
        ("queue.orders", "removeMessage", ["x"], "is no long"),
        ("queue.orders", "removeMessage", [None], "null is no long"),
        ("queue.orders", "removeMessage", [10**30], "is no long"),
        ("broker", "createQueue", ["a", "a", "sideways"], "neither ANYCAST nor MULTICAST"),
        ("broker", "createQueue", ["{"], "it is not JSON"),
        ("broker", "forceFailover", [], "no backup to hand over to"),
        ("broker", "getQueueNames", ["QUEUE"], "neither ANYCAST nor MULTICAST"),
        ("broker", "getFlight", [], "no operation 'getFlight'"),
        ("address.none", "pause", [], "there is no address 'none'"),
        ("queue.orders", "sendMessage", [{"a": {}}, 3, "x", True, "eve", None], "as user"),
    ],
)
def test_a_refusal_is_told_where_the_answer_goes(
    resource: str, operation: str, arguments: list[Any], told: str
) -> None:
    """The client goes on, and nothing has happened."""
    scene = Scene(SETTINGS, "a")
    succeeded, (reason,) = scene.ask(resource, operation, *arguments)
    assert succeeded == "false"
    assert told in reason
    assert scene.core.broker.depths()["orders"] == 1


def test_what_was_refused_is_no_end_of_the_connection() -> None:
    """It asks again, of the same connection, and has its RECEIPT for each."""
    scene = Scene(SETTINGS, "a")
    client = scene.listening()
    refused = scene.answer(client, "queue.none", "countMessages")
    assert refused.get(b"_AMQ_OperationSucceeded") == "false"
    scene.request(client, **COUNT, **ANSWERS, receipt="r")
    assert {frame.command for frame in client.frames()} == {"MESSAGE", "RECEIPT"}


@pytest.mark.parametrize("version", ["1.0", "1.1", "1.2"])
@pytest.mark.parametrize("kind", ["queue", "topic"])
def test_a_question_is_answered_at_its_reply_to(version: str, kind: str) -> None:
    """Which may be the connection's own; with what tells the answers of several questions apart."""
    scene = Scene(SETTINGS, "a", "b")
    client = Client(scene.core, version)
    where = f"/temp-{kind}/answers"
    client.send("SUBSCRIBE", destination=where, id="s")
    said = {"reply-to": where, "correlation-id": "a\\\\b"}
    scene.request(client, **COUNT, receipt="r", **said)
    frames = {frame.command: frame for frame in client.frames()}
    assert set(frames) == {"MESSAGE", "RECEIPT"}
    assert frames["RECEIPT"].raw.keys() == {b"receipt-id"}
    answer = frames["MESSAGE"]
    assert (answer.body, answer.get(b"destination")) == (b"[2]", where)
    assert answer.get(b"_AMQ_OperationSucceeded") == "true"
    assert answer.get(b"correlation-id") == ("a\\b" if version != "1.0" else "a\\\\b")
    assert answer.get(b"persistent") == "false"
    scene.request(client, '["ANYCAST"]', **NAMES, **{"reply-to": where})
    answer = client.read()
    assert b'"orders"' in answer.body
    assert answer.get(b"correlation-id") is None
    assert scene.core.broker.depths()["orders"] == 2


def test_an_answer_goes_wherever_its_client_may_send() -> None:
    """To a queue that is made for it, or by the acceptor's own prefixes."""
    scene = Scene(SETTINGS, "a")
    acceptor = AcceptorSettings("a", "h", 1, anycast_prefixes=("jms.queue.",))
    client = Client(scene.core, prefixes=Prefixes(acceptor))
    for where in ("/queue/answers", "jms.queue.answers"):
        scene.request(client, **COUNT, **{"reply-to": where})
    assert scene.core.consume("/queue/answers").texts == ["[1]", "[1]"]


def test_a_receipt_of_a_question_comes_when_its_answer_is_in_its_place() -> None:
    """Nobody has to be subscribed there yet."""
    scene = Scene()
    client = Client(scene.core)
    scene.request(client, **NAMES, **ANSWERS, receipt="r")
    assert client.commands() == ["RECEIPT"]
    client.send("SUBSCRIBE", destination="/temp-queue/answers", id="s")
    (body,) = bodies(client.frames())
    assert body.startswith('[["temp-queue.')


def test_frames_behind_a_request_wait_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """And an answer that is too long is refused."""
    scene = Scene()
    scene.core.send("/queue/a", "x")
    scene.core.send("/queue/b", "x")
    client = Client(scene.core)
    question = "SEND\ndestination:activemq.management\n_AMQ_ResourceName:broker\n"
    question += "_AMQ_OperationName:getQueueNames\nreply-to:/queue/a\nreceipt:1\n\n\0"
    both = f"{question}SEND\ndestination:/queue/a\nreceipt:2\n\n2\0".encode()
    scene.managed.let(lambda: client.session.receive(both))
    assert [frame.get(b"receipt-id") for frame in client.frames()] == ["1", "2"]
    assert scene.core.consume("/queue/a").texts == ["x", '[["a","b"]]', "2"]
    monkeypatch.setattr(requests, "LONGEST_ANSWER", 5)
    succeeded, (reason,) = scene.ask("broker", "getQueueNames")
    assert (succeeded, "longer than 5 bytes" in reason) == ("false", True)


def test_of_a_client_that_leaves_what_can_be_is_abandoned() -> None:
    """It waits for its answer; no other client does."""
    scene = Scene(SETTINGS, "a")
    client = Client(scene.core)

    def leave() -> None:
        client.say("SEND", MANAGEMENT | COUNT | {"reply-to": "/queue/a"})
        client.session.connection_lost()

    scene.managed.let(leave)
    assert "a" not in scene.core.broker.depths() or scene.core.broker.depths()["a"] == 0


def test_a_node_that_stops_answers_nothing() -> None:
    """Who waits is disconnected, and asks the next node."""
    scene = Scene(SETTINGS, "a")
    client = Client(scene.core)

    def stop() -> None:
        client.say("SEND", MANAGEMENT | COUNT | ANSWERS)
        scene.managed.management.end()
        scene.core.broker.stop()

    scene.managed.let(stop)
    assert (client.frames(), client.session.is_closed) == ([], True)
    late = Scene()
    late.core.broker.manager = None
    client = Client(late.core)
    late.request(client, **COUNT, **ANSWERS)
    assert (client.frames(), client.session.is_closed) == ([], True)


def test_where_there_is_no_room_for_an_answer_it_is_refused() -> None:
    """As any message would be."""
    scene = Scene(settings("full", max_size_messages=1, address_full_policy=AddressFullPolicy.FAIL))
    scene.core.send("/queue/full", "a")
    client = Client(scene.core)
    scene.request(client, **COUNT, **{"reply-to": "/queue/full"})
    assert "'full'" in client.error()


def test_a_body_that_would_hold_the_loop_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """However much of it a client may send."""
    monkeypatch.setattr(requests, "LONGEST_ARGUMENTS", 10)
    succeeded, (reason,) = Scene().ask("queue.orders", "countMessages", "a" * 10)
    assert (succeeded, "more than 10" in reason) == ("false", True)


@pytest.mark.parametrize(
    ("resource", "operation", "arguments"),
    [
        ("broker", "createQueue", ["a", "a", "x = '\ud800'", True]),
        ("broker", "createQueue", [json.dumps({"name": "q", "last-value-key": "\udfff"})]),
        ("queue.orders", "moveMessages", ["x <> '\ud800'", "other"]),
        ("queue.orders", "sendMessage", [{"a": "\ud800"}, 3, "b", True, None, None]),
        ("queue.orders", "sendMessage", [json.dumps({"\ud800": "a"}), 3, "b", True, None, None]),
    ],
)
def test_what_is_no_text_is_refused(resource: str, operation: str, arguments: list[Any]) -> None:
    """Half of a surrogate pair could not be stored."""
    scene = Scene(SETTINGS, "a")
    scene.core.send("/queue/other", "b")
    succeeded, (reason,) = scene.ask(resource, operation, *arguments)
    assert (succeeded, "half of a surrogate pair" in reason) == ("false", True)
    assert {"orders", "other"} == {one for one in scene.core.broker.queues() if "temp" not in one}


def test_a_refusal_shows_the_beginning_of_a_long_name() -> None:
    """To escape all of it would hold the loop."""
    succeeded, (reason,) = Scene().ask("broker", "destroyQueue", "\xa0" * 40_000)
    assert (succeeded, len(reason) < 5_000) == ("false", True)
    assert reason.endswith("...' (40000 characters)")


def test_what_json_has_no_number_for_is_told_as_a_text() -> None:
    """No client reads ``NaN`` in an answer."""
    scene = Scene()
    sender = AmqpClient(scene.core)
    said: dict[str, Value] = {"a": math.nan, "b": -math.inf, "c": 1.5}
    sender.send(sender.sender("orders"), "x", application=said)
    scene.core.settle()
    succeeded, (found,) = scene.ask("queue.orders", "browse")
    assert succeeded == "true"
    assert found[0]["StringProperties"] == {"a": "NaN", "b": "-Infinity"}
    assert found[0]["DoubleProperties"] == {"c": 1.5}


def test_nothing_is_kept_of_what_is_refused() -> None:
    """However often it is asked for."""
    scene = Scene(settings("full", max_size_messages=1, address_full_policy=AddressFullPolicy.FAIL))
    scene.core.send("/queue/full", "a")
    client = scene.listening()

    def ask() -> int:
        for _ in range(20):
            scene.answer(client, "broker", "destroyQueue", '["nowhere"]')
            scene.answer(client, "address.full", "sendMessage", '[{}, 3, "b", true, null, null]')
        gc.collect()
        return sum(isinstance(one, asyncio.Future) for one in gc.get_objects())

    before = ask()
    assert ask() < before + 20


def test_a_page_that_would_fill_the_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside the bodies, of which the beginning is shown."""
    scene = Scene(SETTINGS, "a" * 5_000, "b" * 5_000)
    monkeypatch.setattr(operations, "LONGEST_PAGE", 2_000)
    succeeded, (reason,) = scene.ask("queue.orders", "browse")
    assert (succeeded, "more than 2000 bytes" in reason) == ("false", True)
    succeeded, (found,) = scene.ask("queue.orders", "browse", 2, 1)
    assert (succeeded, [one["messageID"] for one in found]) == ("true", ["3"])


def test_a_fault_of_the_broker_is_told_and_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """And the client goes on."""
    monkeypatch.setattr(requests, "fitting", None)
    succeeded, (reason,) = Scene(SETTINGS, "a").ask("queue.orders", "countMessages")
    assert (succeeded, "its log says why" in reason) == ("false", True)
    assert "countMessages of queue.orders failed" in caplog.text


def test_attributes_are_read() -> None:
    """By name, with a small letter or a large one; or by what Java calls the method."""
    scene = Scene(SETTINGS, "a", "b")
    client = scene.listening()

    def read(resource: str, attribute: str) -> Any:
        names = {"_AMQ_ResourceName": resource, "_AMQ_Attribute": attribute}
        scene.request(client, **names, **ANSWERS)
        (value,) = json.loads(client.read().body)
        return value

    assert read("queue.orders", "messageCount") == 2
    assert read("queue.orders", "MessageCount") == 2
    assert read("address.orders", "QueueNames") == ["orders"]
    assert read("broker", "TotalMessageCount") == 2
    assert json.loads(read("broker", "Status"))["server"]["state"] == "STARTED"
    assert "expected one of Name, Address" in read("queue.orders", "Flight")
    assert "no queue 'none'" in read("queue.none", "MessageCount")
    assert scene.ask("queue.orders", "getMessageCount") == ("true", [2])
    assert scene.ask("queue.orders", "isPaused") == ("true", [False])
    assert scene.ask("broker", "isActive") == ("true", [True])


_ID = object()
"""In place of the id of the first message."""
EVERY: tuple[tuple[str, str, list[Any], Any], ...] = (
    ("broker", "createAddress", ["made", "ANYCAST,MULTICAST"], str),
    ("broker", "deleteAddress", ["made"], None),
    ("broker", "createQueue", ["red", "red", "ANYCAST"], None),
    ("broker", "createQueue", ['{"name": "blue", "routing-type": "ANYCAST"}'], str),
    ("broker", "updateQueue", ['{"name": "blue", "max-consumers": 3}'], str),
    ("broker", "getQueueNames", ["ANYCAST"], list),
    ("broker", "getAddressSettingsAsJSON", ["orders"], str),
    ("broker", "closeConnectionWithID", ["c1"], True),
    ("broker", "closeConnectionsForUser", ["bob"], True),
    ("broker", "closeConnectionsForAddress", ["10.9.9.9"], False),
    ("broker", "destroyQueue", ["blue"], None),
    ("address.orders", "pause", [], None),
    ("address.orders", "resume", [], None),
    ("address.orders", "sendMessage", [{"a": "1"}, 3, "hello", True, None, None], str),
    ("queue.orders", "pause", [True], None),
    ("queue.orders", "resume", [], None),
    ("queue.orders", "sendMessage", [None, 3, "world", True, None, None], str),
    ("queue.orders", "countMessages", ["a = '1'"], 1),
    ("queue.orders", "browse", [1, 1], list),
    ("queue.orders", "copyMessage", [_ID, "red"], True),
    ("queue.orders", "moveMessage", [_ID, "red"], True),
    ("queue.red", "retryMessage", [_ID], True),
    ("queue.red", "retryMessages", [], 1),
    ("queue.orders", "moveMessages", ["a = '1'", "red"], 1),
    ("queue.orders", "changeMessagePriority", [_ID, 9], True),
    ("queue.orders", "changeMessagesPriority", [None, 2], 10),
    ("queue.orders", "removeMessage", [_ID], True),
    ("queue.orders", "removeMessages", ["a = '2'"], 0),
    ("queue.orders", "expireMessage", [_ID], True),
    ("queue.orders", "expireMessages", ["a = '2'"], 0),
    ("queue.orders", "removeAllMessages", [], 8),
    ("address.red", "purge", [], 1),
    ("broker", "forceFailover", [], None),
)
"""Resources, operations, arguments and results, in an order in which each finds what it needs."""
AS_CLIENT = "send consume createAddress deleteAddress createDurableQueue deleteDurableQueue"
AS_CLIENT += " createNonDurableQueue"


class _Handover(Handover):
    async def hand_over(self) -> HandoverView:
        return HandoverView("other", 0.5)


def test_no_operation_is_missing_below() -> None:
    """Each is tried by name."""
    there = {
        (resource, one.name)
        for resource, operations in (
            ("broker", BROKER_OPERATIONS),
            ("address", ADDRESS_OPERATIONS),
            ("queue", QUEUE_OPERATIONS),
        )
        for one in operations
    }
    assert {(resource.partition(".")[0], name) for resource, name, _, _ in EVERY} == there


def test_every_operation_is_refused_granted_and_audited() -> None:
    """Refused by the permission that it needs; granted, it has the result of Artemis."""
    granted = {"#": {"staff": AS_CLIENT}, "activemq.management": {"staff": "manage"}}
    may = granted | {"mops.#": {"staff": "view edit"}}
    scene = Scene(secured({"ada": "staff"}, granted, management_message_rbac=True))
    management, broker = scene.managed.management, scene.core.broker
    management._handover = _Handover()
    lines: list[bytes] = []
    broker.security.audit = Audit(lines.append, "test")
    scene.managed.run(management.create_queue(OPERATOR, "orders", routing_type=RoutingType.ANYCAST))
    scene.core.send(QUEUE, *"abcdefgh")
    ada = scene.listening(login="ada", passcode=PASSCODE)

    def rules(by_match: dict[str, dict[str, str]]) -> PermissionRules:
        return PermissionRules(secured({}, by_match, management_message_rbac=True))

    def noted() -> list[dict[str, Any]]:
        found = [json.loads(one) for one in lines]
        lines.clear()
        return [one for one in found if one["user"] == "ada"]

    for resource, operation, arguments, expected in EVERY:
        queue = resource.removeprefix("queue.")
        if _ID in arguments:
            first = scene.managed.run(management.browse(OPERATOR, queue)).messages[0].id
            arguments = [first if one is _ID else one for one in arguments]
        body, depths = json.dumps(arguments), dict(broker.depths())
        noted()
        broker.security.rules = rules(granted)
        refused = scene.answer(ada, resource, operation, body)
        assert refused.get(b"_AMQ_OperationSucceeded") == "false", operation
        (reason,) = json.loads(refused.body)
        (line,) = noted()
        assert (line["event"], line["permission"]) in (
            ("permission-refused", "edit"),
            ("permission-refused", "view"),
        )
        assert f"'{line['permission']}' on address '{line['address']}'" in reason
        assert broker.depths() == depths
        broker.security.rules = rules(may)
        answer = scene.answer(ada, resource, operation, body)
        (result,) = json.loads(answer.body)
        assert answer.get(b"_AMQ_OperationSucceeded") == "true", (operation, result)
        if isinstance(expected, type):
            assert isinstance(result, expected), (operation, result)
        else:
            assert result == expected, operation
        last = (noted() or [line])[-1]
        assert last["event"] == "management" or operation.startswith(("get", "count", "browse"))
    broker.security.rules = rules({"#": {"staff": AS_CLIENT}})
    scene.request(ada, '["orders", true]', **DESTROY, **ANSWERS)
    assert "'manage' on address 'activemq.management'" in ada.error()
    (line,) = [one for one in noted() if one["event"] == "permission-refused"]
    assert (line["permission"], line["operation"]) == ("manage", "destroyQueue")
    assert "orders" in broker.queues()


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
    scene = Scene(secured({"ada": "staff"}, by_role, management_message_rbac=True), "a")
    client = scene.listening(login="ada", passcode=PASSCODE)
    scene.request(client, **COUNT, **ANSWERS)
    frame = client.read()
    if refused is None:
        assert (frame.command, frame.body) == ("MESSAGE", b"[1]")
    else:
        assert refused in frame.body.decode()
        assert frame.command == ("MESSAGE" if "mops" in refused else "ERROR")
