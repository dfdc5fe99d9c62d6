"""Jolokia's protocol over HTTP: the requests that KEDA, plugins and scripts send."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from orthia.broker.core.errors import NotAuthorized
from orthia.broker.management.attributes import ha_policy_of
from orthia.broker.management.http import jolokia, mbeans
from orthia.broker.management.http.object_names import parse
from orthia.config.secrets import Secret
from orthia.config.settings import HaPolicy, Role
from tests.core.support import SETTINGS
from tests.management.test_api import QUEUE, Answer, Api

ORDERS = (
    'org.apache.activemq.artemis:broker="any",component=addresses,address="orders",'
    'subcomponent=queues,routing-type="anycast",queue="orders"'
)
BROKER = 'org.apache.activemq.artemis:broker="any"'
HERE = {"Origin": "http://127.0.0.1:8161", "Host": "127.0.0.1:8161"}


class Jolokia(Api):
    """A node with three messages in queue ``orders``."""

    def __init__(self) -> None:
        super().__init__()
        self.ask("POST", "/api/v1/queues", {"name": "orders", "routing-type": "anycast"})
        for number in range(3):
            sent = {"destination": "/queue/orders", "body": f"number {number}"}
            assert self.ask("POST", "/api/v1/messages", sent).status == 201

    def get(self, path: str, **headers: str) -> Any:
        """Return what a GET of Artemis' path is answered, which is HTTP 200."""
        answer = self.ask("GET", "/console/jolokia/" + quote(path, safe="/:=,!*%?&"), **headers)
        assert answer.status == 200, answer
        return answer.body

    def post(self, body: object) -> Any:
        """Return what a POST is answered."""
        answer = self.ask("POST", "/console/jolokia/", body)
        assert answer.status == 200, answer
        return answer.body

    def run_operation(self, mbean: str, operation: str, *arguments: object) -> Any:
        """Return what an operation answers."""
        body = {"type": "exec", "mbean": mbean, "operation": operation, "arguments": arguments}
        return self.post(body)


@pytest.fixture
def node() -> Jolokia:
    """A node with three messages in queue ``orders``."""
    return Jolokia()


@pytest.mark.parametrize(
    "path",
    [
        "/console/jolokia/read/org.apache.activemq.artemis:broker=%22B%22,component=addresses,"
        "address=%22orders%22,subcomponent=queues,routing-type=%22anycast%22,queue=%22orders%22"
        "/MessageCount",
        "/api/jolokia/read/org.apache.activemq:type=Broker,brokerName=B,destinationType=Queue,"
        "destinationName=orders/QueueSize",
    ],
)
def test_keda_gets_its_number(node: Jolokia, path: str) -> None:
    """Both of its scalers, with the header Origin that they send."""
    answer = node.ask("GET", path, **HERE)
    assert (answer.status, answer.headers["content-type"]) == (200, "application/json")
    assert (answer.body["value"], answer.body["status"]) == (3, 200)
    assert isinstance(answer.body["timestamp"], int)


@pytest.mark.parametrize("mark", ['"', '!"'])
def test_a_name_is_quoted(node: Jolokia, mark: str) -> None:
    """A quote has a backslash in JMX, a slash an exclamation mark in Jolokia; a comma neither."""
    name = f"{QUEUE},x!*y"
    node.ask("POST", "/api/v1/queues", {"name": name, "routing-type": "anycast"})
    mbean = ORDERS.replace("orders", name.replace('"', '\\"').replace("*", "\\*"))
    escaped = mbean.replace("!", "!!").replace("/", "!/").replace('"', mark)
    found = node.ask(
        "GET", f"/console/jolokia/read/{quote(escaped, safe='!,:=/')}/Name,MessageCount"
    )
    assert found.body["value"] == {"Name": name, "MessageCount": 0}
    pattern = '*:queue="a/?*",*'
    (spelled,) = node.post({"type": "search", "mbean": pattern})["value"]
    assert parse(spelled).keys["queue"].text == name
    assert node.post({"type": "read", "mbean": spelled, "attribute": "Name"})["value"] == name
    pattern = 'org.apache.activemq:destinationName="a/?*",*'
    (classic,) = node.post({"type": "search", "mbean": pattern})["value"]
    assert node.post({"type": "read", "mbean": classic, "attribute": "Name"})["value"] == name


def test_a_bulk_answers_each_by_itself(node: Jolokia) -> None:
    """In its order, what is wrong among what is right."""
    version, one, several, missing = node.post(
        [
            {"type": "version"},
            {"type": "read", "mbean": ORDERS, "attribute": "MessageCount"},
            {"type": "READ", "mbean": ORDERS, "attribute": ["ConsumerCount", "MessagesAdded"]},
            {"type": "read", "mbean": ORDERS.replace("orders", "nosuch")},
        ]
    )
    assert version["value"]["protocol"] == "7.2"
    assert (one["value"], one["request"]["mbean"]) == (3, ORDERS)
    assert several["value"] == {"ConsumerCount": 0, "MessagesAdded": 3}
    assert missing["status"] == 404
    assert missing["error"].endswith("there is no queue 'nosuch'")


@pytest.mark.parametrize(
    ("mbean", "operation", "arguments", "error"),
    [
        ("org.apache.activemq.artemis:broker=*", "forceFailover", [], "not of a pattern"),
        (ORDERS, "sendMessage", [{}, 3, "x", True, "ada", "her passcode"], "sent as user 'op'"),
        (ORDERS, "moveMessages", [None, "other", True], "duplicates are not looked for"),
        (ORDERS, "moveMessage", [1, "other", True], "duplicates are not looked for"),
    ],
)
def test_what_would_be_done_otherwise_is_refused(
    node: Jolokia, mbean: str, operation: str, arguments: list[object], error: str
) -> None:
    """As one object, as who is logged in, without a look for duplicates: and says so."""
    node.ask("POST", "/api/v1/queues", {"name": "other"})
    answer = node.run_operation(mbean, operation, *arguments)
    assert (answer["status"], error in answer["error"]) == (400, True), answer
    assert node.get(f"read/{ORDERS}/MessageCount")["value"] == 3


def test_what_is_due_later_is_counted_as_in_artemis(node: Jolokia) -> None:
    """In MessageCount, by which Artemis' clients scale; not in QueueSize, as of Classic."""
    later = {"destination": "/queue/orders", "delivery-ms": 4_000_000_000_000}
    assert node.ask("POST", "/api/v1/messages", later).status == 201
    assert node.get(f"read/{ORDERS}/MessageCount,ScheduledCount")["value"] == {
        "MessageCount": 4,
        "ScheduledCount": 1,
    }
    classic = "org.apache.activemq:type=Broker,brokerName=x,destinationType=Queue"
    found = node.get(f"read/{classic},destinationName=orders/QueueSize")
    assert found["value"] == 3


def test_it_is_no_proxy(node: Jolokia) -> None:
    """A request for another server is refused, or whoever may log in here could reach that."""
    target = {"url": "service:jmx:rmi:///jndi/rmi://elsewhere.example:1099/jmxrmi"}
    answer = node.post({"type": "read", "mbean": BROKER, "attribute": "Name", "target": target})
    assert (answer["status"], "no proxy" in answer["error"]) == (403, True)
    assert "value" not in answer


def test_a_bulk_has_one_bound(node: Jolokia, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each request by itself may be small enough; the node keeps the whole answer in memory."""
    monkeypatch.setattr(jolokia, "MOST_CHARACTERS", 1_000)
    answers = node.post([{"type": "read", "mbean": "*:*"}, *[{"type": "version"}] * 3])
    assert [one["status"] for one in answers] == [500] * 4
    assert answers[0]["error"].endswith("would be too long: ask for less at a time")
    assert node.post([{"type": "version"}])[0]["status"] == 200


def test_a_pattern_reads_all_that_match(node: Jolokia) -> None:
    """By the broker's own name, and with those attributes that each has."""
    pattern = ORDERS.replace('"any"', "*").replace('"orders"', "*")
    value = node.get(f"read/{pattern}/MessageCount,Address")["value"]
    (name,) = (one for one in value if 'queue="orders"' in one)
    assert name.startswith('org.apache.activemq.artemis:address="orders",broker="test",')
    assert value[name] == {"MessageCount": 3, "Address": "orders"}
    (broker,) = node.get("read/org.apache.activemq.artemis:broker=*/Status")["value"].values()
    assert '"state":"STARTED"' in broker["Status"]


def test_the_broker_tells_of_itself(node: Jolokia) -> None:
    """All its attributes at once, and one by a path into it."""
    value = node.post({"type": "read", "mbean": BROKER})["value"]
    shown = {name: value[name] for name in ("Name", "Active", "Backup", "TotalMessageCount")}
    assert shown == {"Name": "test", "Active": True, "Backup": False, "TotalMessageCount": 3}
    assert value["Uptime"].endswith(" seconds")
    assert node.get(f"read/{BROKER}/QueueNames/0")["value"] == value["QueueNames"][0]


def test_messages_are_counted_browsed_moved_and_purged(node: Jolokia) -> None:
    """By operations with and without a signature."""
    node.ask("POST", "/api/v1/queues", {"name": "other", "routing-type": "anycast"})
    other = ORDERS.replace("orders", "other")
    first, second = node.run_operation(ORDERS, "browse(int,int)", 1, 2)["value"]
    assert (first["text"], second["text"]) == ("number 0", "number 1")
    assert node.run_operation(ORDERS, "countMessages", "color = 'red'")["value"] == 0
    moved = node.run_operation(
        ORDERS, "moveMessage(long, java.lang.String)", first["messageID"], "other"
    )
    assert moved["value"] is True
    assert node.run_operation(other, "countMessages")["value"] == 1
    sent = node.run_operation(other, "sendMessage", {"color": "red"}, 3, "hello", True, None, None)
    assert sent["status"] == 200, sent
    (_, shown) = node.run_operation(other, "browse()")["value"]
    assert (sent["value"], shown["text"]) == (shown["messageID"], "hello")
    assert node.run_operation(other, "removeMessages", "color = 'red'")["value"] == 1
    assert node.run_operation(ORDERS, "removeAllMessages()")["value"] == 2
    assert node.run_operation(ORDERS, "moveMessages", None, "nosuch")["status"] == 404


def test_queues_are_created_paused_and_destroyed(node: Jolokia) -> None:
    """By each of Artemis' ways to say what the queue is to be."""
    spelled = '{"name": "c", "address": "c", "routing-type": "ANYCAST", "ring-size": 5}'
    text, flag = "java.lang.String", "boolean"
    for types, *arguments in (
        ([text, text, text], "a", "a", "ANYCAST"),
        ([text, text, flag, text], "b", "b", True, "anycast"),
        ([text], spelled),
    ):
        made = node.run_operation(BROKER, f"createQueue({','.join(types)})", *arguments)
        assert made["status"] == 200, made
    overloaded = node.run_operation(BROKER, "createQueue", "d", "d", "ANYCAST")
    assert (overloaded["status"], "mean 2 operations" in overloaded["error"]) == (400, True)
    third = ORDERS.replace("orders", "c")
    assert node.run_operation(third, "pause")["status"] == 200
    assert node.get(f"read/{third}/Paused,RingSize")["value"] == {"Paused": True, "RingSize": 5}
    assert node.get(f"exec/{BROKER}/destroyQueue(java.lang.String)/c", **HERE)["status"] == 200
    assert node.get(f"read/{third}")["status"] == 404
    wrong = node.run_operation(BROKER, "createQueue", '{"name": "d", "auto-delete": true}')
    assert (wrong["status"], "auto-delete" in wrong["error"]) == (400, True)


def test_options_of_a_queue_change_as_in_artemis(node: Jolokia) -> None:
    """By each of its signatures; null leaves what there is."""
    text, number, long = "java.lang.String", "java.lang.Integer", "java.lang.Long"
    flag = "java.lang.Boolean"
    first = [text, text, number, flag]
    named = [text, text, text, number, flag, flag, flag, number]
    last = [flag, number, long, text]
    calls: tuple[tuple[list[str], list[object]], ...] = (
        (first, ["orders", None, 3, False]),
        ([*first, flag], ["orders", "ANYCAST", 4, None, True]),
        ([*first, flag, text], ["orders", "anycast", 5, None, None, None]),
        ([*named, *last], ["orders", None, "a = 1", 6, *[None] * 8]),
        ([*named, text, *last], ["orders", None, None, 7, *[None] * 4, "first", *[None] * 4]),
        ([*named, text, *last, long], ["orders", None, None, 8, *[None] * 9, 9]),
    )
    for types, arguments in calls:
        called = f"updateQueue({','.join(types)})"
        made = node.run_operation(BROKER, called, *arguments)
        assert made["status"] == 200, made
        assert node.get(f"read/{ORDERS}/MaxConsumers")["value"] == arguments[3 - (len(types) < 9)]
        assert node.run_operation(BROKER, "updateQueue", *arguments)["status"] == 200
    assert made["value"].startswith("Queue [name=orders, address=orders, routingType=ANYCAST")
    shown = node.get(f"read/{ORDERS}/Exclusive,Filter,RingSize")["value"]
    assert shown == {"Exclusive": True, "Filter": "a = 1", "RingSize": 9}
    changed = {"name": "orders", "max-consumers": 10, "filter-string": ""}
    made = node.run_operation(BROKER, "updateQueue", json.dumps(changed))
    assert json.loads(made["value"]) == {
        "name": "orders",
        "address": "orders",
        "routing-type": "ANYCAST",
        "durable": True,
        "filter-string": None,
        "max-consumers": 10,
        "exclusive": True,
        "last-value-key": None,
        "non-destructive": False,
        "ring-size": 9,
    }


@pytest.mark.parametrize(
    ("arguments", "status", "error"),
    [
        (["nosuch", None, 1, None], 404, "there is no queue 'nosuch'"),
        (["orders", "MULTICAST", 1, None], 500, "the routing type of queue 'orders' cannot change"),
        (["orders", None, -2, None], 400, "expected a number from -1"),
        (["orders", None, None, None, None, "ada"], 500, "the user of queue 'orders' cannot"),
        (['{"name": "orders", "address": "b"}'], 500, "address of queue 'orders' cannot change"),
        (['{"name": "orders", "durable": false}'], 500, "durable of queue 'orders' cannot change"),
        (['{"max-consumers": 1}'], 400, "needs its name"),
        (['{"name": "orders", "auto-delete": true}'], 400, "auto-delete"),
    ],
)
def test_what_does_not_change_is_refused(
    node: Jolokia, arguments: list[object], status: int, error: str
) -> None:
    """By name, and the queue stays as it is."""
    answer = node.run_operation(BROKER, "updateQueue", *arguments)
    assert (answer["status"], error in answer["error"]) == (status, True), answer
    assert node.get(f"read/{ORDERS}/MaxConsumers")["value"] == -1


def test_the_manual_names_all_there_is_and_no_more() -> None:
    """What it says is read or done is so; what it says is refused is not among it."""
    text = (Path(__file__).parents[2] / "docs" / "jolokia.md").read_text()
    there = {name for kind in mbeans.KINDS for name in kind.attributes}
    there |= {one.name for kind in mbeans.KINDS for one in kind.operations}
    tables = [line for line in text.partition("## Objects")[2].splitlines() if line[:1] == "|"]
    words = {word for line in tables for word in re.findall(r"`(\w+)`", line)}
    assert words - {"ignoreIfExists", "null", "true", "rejectDuplicates"} == there


def test_list_describes_what_there_is(node: Jolokia) -> None:
    """All of it, or what a path leads to."""
    assert set(node.get("list")["value"]) == {
        "org.apache.activemq.artemis",
        "org.apache.activemq",
    }
    path = f"list/{ORDERS.replace(':', '/', 1)}/attr/MessageCount"
    assert node.get(path)["value"] == {"rw": False, "type": "long", "desc": "MessageCount"}


@pytest.mark.parametrize(
    ("path", "status", "error"),
    [
        (f"read/{ORDERS}/Nothing", 404, "there is no attribute 'Nothing' here"),
        (f"read/{ORDERS.replace('anycast', 'multicast')}", 404, "it is anycast, of address"),
        ("read/java.lang:type=Memory", 404, "there is no object"),
        ("read/orders", 400, "is no name of an object"),
        ('read/a:b="c', 400, "a quote is not closed"),
        ("read/a:b=c,b=d", 400, "key 'b' is there twice"),
        (f"exec/{BROKER}/freezeReplication", 400, "there is no operation 'freezeReplication'"),
        (f"write/{ORDERS}/Paused/true", 403, "write is not served here"),
        ("eat/it", 400, "there is no request 'eat'"),
        ("version?user=me", 400, "there is no parameter 'user' here"),
    ],
)
def test_what_is_wrong_has_a_status_in_the_answer(
    node: Jolokia, path: str, status: int, error: str
) -> None:
    """The text says by name what is wrong."""
    answer = node.get(path, **HERE)
    assert (answer["status"], error in answer["error"]) == (status, True), answer


def test_a_permission_that_is_missing_is_403(
    node: Jolokia, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And nothing has happened."""

    def refuse(*_: object) -> None:
        raise NotAuthorized("user 'op' has no role with permission 'manage'")

    with monkeypatch.context() as patched:
        patched.setattr(node.node.core.broker.security, "check_management", refuse)
        for answer in (
            node.get(f"read/{ORDERS}/MessageCount"),
            node.run_operation(ORDERS, "removeAllMessages"),
        ):
            assert (answer["status"], answer["error_type"]) == (
                403,
                "java.lang.SecurityException",
            )
    assert node.get(f"read/{ORDERS}/MessageCount")["value"] == 3


@pytest.mark.parametrize(
    ("method", "headers", "status"),
    [
        ("GET", {"Origin": "http://elsewhere.example"}, 403),
        ("GET", {"Origin": "null"}, 403),
        ("GET", {"Sec_Fetch_Site": "cross-site"}, 403),
        ("GET", {}, 403),
        ("GET", HERE, 200),
        ("POST", {"Content_Type": "text/plain"}, 403),
        ("POST", {"Content_Type": "text/plain", "Origin": "http://elsewhere.example"}, 403),
        ("POST", {"Content_Type": "text/plain", **HERE}, 200),
    ],
)
def test_a_page_of_another_site_purges_nothing(
    node: Jolokia, method: str, headers: dict[str, str], status: int
) -> None:
    """Not even by a picture whose address is an operation, which no header tells from curl."""
    body = {"type": "exec", "mbean": ORDERS, "operation": "removeAllMessages"}
    path = "/console/jolokia/"
    if method == "GET":
        path += f"exec/{quote(ORDERS, safe=':=,')}/removeAllMessages"
    answer = node.ask(method, path, body if method == "POST" else None, **headers)
    assert answer.status == status
    left = 0 if status == 200 else 3
    assert node.get(f"read/{ORDERS}/MessageCount")["value"] == left


def test_a_plugin_finds_the_queues_of_classic_and_its_health(node: Jolokia) -> None:
    """As predic8's check_activemq asks: all attributes of the broker, then those of each queue."""
    broker = "org.apache.activemq:type=Broker,brokerName=localhost"
    names = [one["objectName"] for one in node.get(f"read/{broker}")["value"]["Queues"]]
    assert names == [
        "org.apache.activemq:type=Broker,brokerName=test,destinationType=Queue,"
        "destinationName=orders"
    ]
    queue = node.get(f"read/{names[0]}")["value"]
    assert (queue["Name"], queue["QueueSize"]) == ("orders", 3)
    assert node.get(f"read/{broker},service=Health/CurrentStatus")["value"] == "Good"


def test_a_plugin_reads_topics_of_classic(node: Jolokia) -> None:
    """By a pattern or a name: who listens, and how much was sent; no queue is among them."""
    core = node.node.core
    core.consume("/topic/news")
    for _ in range(2):
        core.send("/topic/news", "x")
    node.ask(
        "POST", "/api/v1/queues", {"name": "kept", "address": "news", "routing-type": "multicast"}
    )
    topics = "org.apache.activemq:type=Broker,brokerName=*,destinationType=Topic,destinationName="
    found = node.get(f"read/{topics}*/EnqueueCount,ConsumerCount,DequeueCount")["value"]
    assert found == {
        "org.apache.activemq:brokerName=test,destinationName=news,destinationType=Topic,"
        "type=Broker": {"EnqueueCount": 2, "ConsumerCount": 1}
    }
    news = topics.replace("*", "localhost") + "news"
    assert node.get(f"read/{news}")["value"] == {
        "Name": "news",
        "ConsumerCount": 1,
        "EnqueueCount": 2,
        "Paused": False,
    }
    (named,) = node.get("read/org.apache.activemq:type=Broker,brokerName=x/Topics")["value"]
    assert named["objectName"].endswith("destinationType=Topic,destinationName=news")
    for name, error in (
        (f"{news}/ProducerCount", "there is no attribute 'ProducerCount' here"),
        (f"{news.replace('news', 'orders')}/Name", "that address has queues alone"),
        (f"{news.replace('news', 'nosuch')}/Name", "there is no address 'nosuch'"),
    ):
        answer = node.get(f"read/{name}")
        assert (answer["status"], error in answer["error"]) == (404, True), answer


def test_a_backup_has_its_broker_and_no_queue(node: Jolokia) -> None:
    """As Artemis' has: plugins ask it whether it is active; what is of queues is not there."""
    node.is_live = False
    for name, value in (
        ("Active", False),
        ("Backup", True),
        ("Started", True),
        ("SharedStore", True),
        ("HAPolicy", "Shared Store Backup"),
    ):
        assert node.get(f"read/{BROKER}/{name}")["value"] == value
    status = json.loads(node.get(f"read/{BROKER}/Status")["value"])
    assert (status["server"]["state"], status["server"]["identity"]) == ("STARTED", "node-b")
    found = node.get("search/org.apache.activemq.artemis:*")["value"]
    assert found == ['org.apache.activemq.artemis:broker="node-b"']
    (shown,) = node.get("read/org.apache.activemq.artemis:broker=*")["value"].values()
    assert shown["Active"] is False
    for path, error, of in (
        (f"read/{ORDERS}/MessageCount", 404, "InstanceNotFoundException"),
        (f"read/{BROKER}/TotalMessageCount", 404, "AttributeNotFoundException"),
        (f"exec/{ORDERS}/removeAllMessages", 404, "InstanceNotFoundException"),
        (f"exec/{BROKER}/forceFailover", 500, "IllegalStateException"),
    ):
        answer = node.get(path, **HERE)
        assert (answer["status"], answer["error_type"].rpartition(".")[2]) == (error, of)
    asked = [{"type": "version"}, {"type": "read", "mbean": BROKER, "attribute": "Backup"}]
    assert [one["status"] for one in node.post(asked)] == [200, 200]
    node.token = Secret("seen by few")
    assert node.send("GET", "/console/jolokia/version", None, {}).status == 401
    assert node.ask("GET", "/console/jolokia/version", passcode="seen by few").status == 200


@pytest.mark.parametrize(
    ("options", "policy"),
    [
        ({}, "Shared Store Primary"),
        ({"ha_policy": HaPolicy(Role.BACKUP)}, "Shared Store Backup"),
        ({"persistence_enabled": False}, "Primary Only"),
    ],
)
def test_the_policy_is_what_is_configured(options: dict[str, Any], policy: str) -> None:
    """Also of a backup that is live by now, whose ``Backup`` is false then."""
    assert ha_policy_of(replace(SETTINGS, **options)) == policy
    live = Jolokia()
    live.node.management.ha_policy = policy
    assert live.get(f"read/{BROKER}/HAPolicy")["value"] == policy
    assert live.get(f"read/{BROKER}/Backup")["value"] is False
    assert live.get(f"read/{BROKER}/SharedStore")["value"] is (policy != "Primary Only")


def test_a_wrong_login_is_told_by_http(node: Jolokia) -> None:
    """As every client of HTTP expects it."""
    answer: Answer = node.ask("GET", "/console/jolokia/version", passcode="wrong")
    assert answer.status == 401
