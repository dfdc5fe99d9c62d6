"""Requests of somebody who may look, or merely log in, that would keep a node busy are bounded."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from orthia.broker.core.errors import LimitExceeded
from orthia.broker.core.identity import Origin, Principal
from orthia.broker.management.errors import WrongArgument
from orthia.broker.management.facade import Management
from orthia.broker.management.http import api, jolokia
from orthia.broker.management.http.pace import SHARE, Budget
from orthia.broker.management.jobs import MOST_IDS
from orthia.broker.management.views import JobKind
from orthia.broker.security.audit import LONGEST_FACT, Audit
from tests.management.support import OPERATOR, Managed
from tests.management.test_jolokia import BROKER, Jolokia

ADDRESSES = 'org.apache.activemq.artemis:broker="any",component=addresses,address="none*"'


@pytest.fixture
def node() -> Jolokia:
    """A node with three messages in queue ``orders``."""
    return Jolokia()


@pytest.mark.parametrize(
    ("asked", "error"),
    [
        ({"type": "read", "mbean": BROKER, "path": "a" * 9_000}, "path has 9000 characters"),
        ({"type": "read", "mbean": BROKER, "path": ["a"] * 257}, "path has 257 parts"),
        ({"type": "read", "mbean": BROKER, "path": [["a"]]}, "an array of strings"),
        ({"type": "list", "path": "a/" * 5_000}, "path has 10000 characters"),
        ({"type": "read", "mbean": BROKER, "attribute": "a," * 5_000}, "attribute has 10000"),
        ({"type": "read", "mbean": BROKER, "attribute": ["a"] * 300}, "attribute has 300 parts"),
        ({"type": "exec", "mbean": BROKER, "operation": "a" * 9_000}, "operation has 9000"),
        (
            {
                "type": "exec",
                "mbean": BROKER,
                "operation": "createQueue(java.lang.String)",
                "arguments": [{"name": "a" * 70_000}],
            },
            "arguments has 70012 characters, more than 65536",
        ),
    ],
)
def test_a_text_without_end_never_reaches_the_loop(
    node: Jolokia, asked: dict[str, Any], error: str
) -> None:
    """The path of one such request held the loop for minutes: its user needed no permission."""
    answer = node.post(asked)
    assert (answer["status"], error in answer["error"]) == (400, True), answer


@pytest.mark.parametrize("number", [b"NaN", b"Infinity", b"-Infinity"])
def test_what_is_no_number_in_json_is_refused(node: Jolokia, number: bytes) -> None:
    """Python reads it, and what shows it again is no JSON."""
    answer = node.post(b'{"type": "version", "x": %b}' % number)
    assert (answer["status"], "is no number in JSON" in answer["error"]) == (400, True), answer
    sent = b'{"destination": "/queue/orders", "properties": {"x": %b}}' % number
    assert node.ask("POST", "/api/v1/messages", sent).status == 400


def test_a_message_is_sent_with_a_long_body(node: Jolokia) -> None:
    """It is the one argument that may be long."""
    sent: tuple[object, ...] = ({}, 3, "x" * 100_000, True, None, None)
    orders = f'{BROKER},component=addresses,address="orders"'
    answer = node.run_operation(orders, "sendMessage", *sent)
    assert answer["status"] == 200, answer


def test_a_bulk_lists_addresses_once(node: Jolokia, monkeypatch: pytest.MonkeyPatch) -> None:
    """500 requests for what one user may look at made as many lists of 50,000 addresses."""
    made, make = [], Management._all_addresses

    def counted(self: Management) -> Any:
        made.append(self)
        return make(self)

    monkeypatch.setattr(Management, "_all_addresses", counted)
    management = node.node.management
    management._addressed._make = management._all_addresses
    answers = node.post([{"type": "read", "mbean": ADDRESSES}] * 20)
    assert [one["status"] for one in answers] == [404] * 20
    assert len(made) == 1


def test_a_bulk_is_not_answered_for_ever(node: Jolokia, monkeypatch: pytest.MonkeyPatch) -> None:
    """What comes late in it is refused, and says why."""
    monkeypatch.setattr(jolokia, "BULK_SECONDS", -1.0)
    answers = node.post([{"type": "version"}] * 3)
    assert [one["status"] for one in answers] == [500] * 3
    assert "ask for less at a time" in answers[2]["error"]


@pytest.mark.parametrize(
    ("bound", "asked", "error"),
    [
        ("MOST_VALUES", {"type": "read", "mbean": f"{BROKER},*"}, "these are more than 2 values"),
        ("MOST_LISTED", {"type": "list"}, "there are more than 2 objects"),
        ("MOST_REQUESTS", [{"type": "version"}] * 3, "a bulk has 1 to 2 requests, not 3"),
    ],
)
def test_an_answer_has_bounds(
    node: Jolokia, bound: str, asked: object, error: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is beyond them is refused, and says what to ask for instead."""
    monkeypatch.setattr(jolokia, bound, 2)
    answer = node.post(asked)
    answer = answer[0] if isinstance(answer, list) else answer
    assert (answer["status"], error in answer["error"]) == (400, True), answer


def test_what_is_computed_beside_the_loops_is_of_the_share() -> None:
    """Or whoever has long lists searched would take half of the interpreter."""
    budget = Budget(processor=lambda: 0.0, clock=lambda: 0.0)
    assert budget.ahead_seconds() <= 0
    budget.charge(0.4)
    assert budget.ahead_seconds() == pytest.approx((0.4 - 0.25) / SHARE)


@pytest.mark.parametrize("path", ["addresses", "consumers", "queues/orders/consumers"])
def test_lists_are_searched_beside_the_loop(
    node: Jolokia, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sorting 10,000 addresses held it for more than 50 ms."""
    threads: list[threading.Thread] = []

    def noted(make: Any) -> Any:
        def run(*given: Any, **named: Any) -> Any:
            threads.append(threading.current_thread())
            return make(*given, **named)

        return run

    for name in ("_page", "_all"):
        monkeypatch.setattr(api, name, noted(getattr(api, name)))
    assert node.ask("GET", f"/api/v1/{path}").status == 200
    assert threads
    assert threading.main_thread() not in threads


@pytest.fixture
def managed() -> Iterator[Managed]:
    """A node with queue ``orders``."""
    made = Managed()
    made.run(made.management.create_queue(OPERATOR, "orders"))
    yield made
    assert made.texts("orders") == [], "what is refused is not stored"


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"properties": {str(one): "" for one in range(257)}}, "257 properties, more than 256"),
        ({"properties": {"a": "x" * 65_536}}, "65537 characters, more than 65536"),
        ({"correlation_id": "x" * 65_537}, "65537 characters, more than 65536"),
        ({"properties": {"content-length": "0"}}, "what the broker says, or a protocol"),
        ({"properties": {"_AMQ_ORIG_QUEUE": "a"}}, "what the broker says, or a protocol"),
        ({"properties": {"JMSXUserID": "a"}}, "what the broker says, or a protocol"),
        ({"properties": {"_ORTHIA_RETURNS": "9"}}, "what the broker says, or a protocol"),
        ({"properties": {"a\n": "0"}}, "a name is printable"),
        ({"properties": {"": "0"}}, "a name is printable"),
        ({"properties": {"a": None}}, "neither a text, a number, nor a flag"),
        ({"properties": {"a": [1]}}, "neither a text, a number, nor a flag"),
        ({"expires_ms": 1 << 63}, "no moment"),
        ({"expires_ms": -1}, "no moment"),
        ({"delivery_ms": -1}, "no moment"),
        ({"properties": {"a": float("nan")}}, "property 'a' is no finite number"),
        ({"properties": {"a": float("inf")}}, "property 'a' is no finite number"),
    ],
)
def test_what_is_sent_is_bounded_as_a_clients_is(
    managed: Managed, given: dict[str, Any], error: str
) -> None:
    """And is a number that JSON has: with another the page that shows it would fail."""
    with pytest.raises((LimitExceeded, WrongArgument), match=error):
        managed.run(managed.management.send(OPERATOR, "/queue/orders", b"", **given))


def test_a_job_of_too_many_ids_is_refused_first(managed: Managed) -> None:
    """Before they are looked at one by one."""

    class Ids(list[int]):
        def __iter__(self) -> Iterator[int]:
            raise AssertionError("they are looked at")

    ids = Ids([1] * (MOST_IDS + 1))
    work = managed.management.start_job(OPERATOR, JobKind.DELETE, queue="orders", ids=ids)
    with pytest.raises(WrongArgument, match="a job has 1 to 1000 ids, not 1001"):
        managed.run(work)


def test_a_line_of_the_audit_log_is_short() -> None:
    """Who may ask for something must not push out of it what others did."""
    lines: list[bytes] = []
    audit = Audit(lines.append, "test")
    who = Principal("ada", frozenset(), unrestricted=False, origin=Origin("10.0.0.1", 1))
    audit.managed(who, "broker", "createQueue", ["x" * 1_000_000, 7])
    audit.managed(who, "queue." + "x" * 1_000_000, "pause", [])
    audit.managed(who, "queue." + "x" * 1_000_000, "getAttributes", [])
    audit.refused(who, "view", "x" * 1_000_000)
    assert [len(one) < LONGEST_FACT + 500 for one in lines] == [True] * 4
    assert b"... (1000000 characters)" in lines[0]
    assert b"7]" in lines[0]
    assert max(len(one) for key in audit._read_at for one in key) <= LONGEST_FACT
