"""The checker finds each fault that a history can have, and none in a good one."""

from dataclasses import replace

import pytest

from tests.chaos.checker import DEAD, EXPIRED, RESULT_OF, Checker, Violations
from tests.chaos.clients import body_of, name_of
from tests.chaos.exits import (
    GRACE_SECONDS,
    End,
    Expectations,
    Waited,
    is_of_a_stall,
    is_of_starvation,
    waited_before,
)
from tests.chaos.history import Kind, Operation
from tests.chaos.topic_checker import TopicChecker
from tests.chaos.writers import Act, Change, check_changes

QUEUE = "orders"


def send(name: str, transaction: str = "", queue: str = QUEUE) -> Operation:
    """Make a SEND."""
    return Operation(Kind.SEND, "producer", queue, name, transaction=transaction)


def receipt(name: str) -> Operation:
    """Make its RECEIPT."""
    return Operation(Kind.RECEIPT, "producer", QUEUE, name)


def connected(port: int) -> Operation:
    """Make a connection of the consumer."""
    return Operation(Kind.CONNECTED, "consumer", port=port)


def receive(
    name: str, message_id: int, *, redelivered: bool = False, queue: str = QUEUE
) -> Operation:
    """Make a MESSAGE."""
    return Operation(Kind.RECEIVE, "consumer", queue, name, message_id, redelivered=redelivered)


def moved(name: str, message_id: int, why: str = DEAD, at: float = 0.0) -> Operation:
    """Make a MESSAGE of a dead-letter or an expiry queue."""
    return Operation(Kind.RECEIVE, "consumer", QUEUE, name, message_id, moved=why, at=at)


def ack(message_id: int) -> Operation:
    """Make an ACK."""
    return Operation(Kind.ACK, "consumer", message_id=message_id)


def acked(message_id: int) -> Operation:
    """Make a confirmed ACK."""
    return Operation(Kind.ACKED, "consumer", message_id=message_id)


def expiring(name: str, at: float) -> Operation:
    """Make a SEND of a message that expires."""
    return Operation(Kind.SEND, "producer", QUEUE, name, expires_at=at)


def received_at(name: str, message_id: int, at: float) -> Operation:
    """Make a MESSAGE that comes at some time."""
    return Operation(Kind.RECEIVE, "consumer", QUEUE, name, message_id, at=at)


def committed(transaction: str) -> Operation:
    """Make a confirmed COMMIT."""
    return Operation(Kind.COMMITTED, "producer", transaction=transaction)


GOOD = [
    connected(1),
    send("p/0"),
    send("p/1"),
    send("p/2", "t1"),
    receipt("p/0"),
    committed("t1"),
    receive("p/0", 10),
    ack(10),
    acked(10),
    send("p/1"),
    receive("p/1", 11),
    connected(2),
    receive("p/1", 11, redelivered=True),
    ack(11),
    receive("p/1", 12),
    ack(12),
    receive("p/2", 13),
    ack(13),
    send("p/3", "t2"),
    Operation(Kind.ABORT, "producer", transaction="t2"),
    send("d/0", queue=QUEUE),
    receipt("d/0"),
    receive("d/0", 14),
    moved("d/0", 15),
    ack(15),
    acked(15),
    connected(2),
]


def check(*operations: Operation) -> dict[str, int]:
    """Return the violations of a history, by rule."""
    checker = Checker([QUEUE])
    for operation in operations:
        checker.observe(operation)
    return dict(checker.finish().counts)


def test_a_good_history_has_no_violation() -> None:
    """Redeliveries, copies of what was sent twice, and what was not confirmed are allowed."""
    assert check(*GOOD) == {}


@pytest.mark.parametrize("end", [Kind.ABORT, Kind.LOST])
def test_a_transaction_whose_outcome_is_to_come_is_waited_for(end: Kind) -> None:
    """What it acknowledges is done with, and what it sends is not there yet."""
    checker = Checker([QUEUE])
    for operation in (send("p/9"), receipt("p/9"), receive("p/9", 14), ack(14)):
        checker.observe(operation)
    assert checker.missing == 0
    checker.observe(send("r/9", "t9"))
    assert checker.missing == 1
    checker.observe(Operation(end, "producer", transaction="t9"))
    assert checker.missing == 0
    checker.observe(send("r/9", "t10"))
    checker.observe(committed("t10"))
    assert checker.missing == 1, "the message itself"


UNSETTLED = ("lost", "forgotten")
"""Rules of messages that nobody acknowledges."""
RESULT = f"{RESULT_OF}requests/7/"


@pytest.mark.parametrize(
    ("rule", "operations"),
    [
        ("lost", [send("p/9"), receipt("p/9")]),
        ("lost", [send("p/9", "t9"), committed("t9")]),
        ("lost", [send("p/9"), receipt("p/9"), receive("p/9", 99)]),
        ("forgotten", [send("p/9"), receive("p/9", 99)]),
        ("moved", [send("p/9"), moved("p/9", 99)]),
        ("multiplied", [moved("p/0", 99)]),
        ("moved", [expiring("p/9", 100), moved("p/9", 99, EXPIRED, at=90)]),
        ("moved", [expiring("p/9", 100), received_at("p/9", 99, 120)]),
        ("invented", [receive("p/77", 99)]),
        ("invented", [send("p/9", queue="other"), receive("p/9", 99)]),
        ("invented", [receive("p/3", 99)]),
        ("invented", [receive(name_of(body_of("p/2")[:-1]), 99)]),
        ("resurrected", [receive("p/0", 10, redelivered=True)]),
        ("unflagged", [receive("p/2", 13)]),
        ("multiplied", [receive("p/0", 99)]),
        ("order", [send("p/4"), send("p/5"), receive("p/5", 90), receive("p/4", 91)]),
        (
            "order",
            [
                send("p/4"),
                send("p/5"),
                connected(3),
                receive("p/4", 91, redelivered=True),
                receive("p/5", 90, redelivered=True),
            ],
        ),
        ("torn", [send("p/4", "t4"), send("p/5", "t4"), receive("p/4", 90)]),
        (
            "repeated",
            [
                send(f"{RESULT}1", "r1", "results"),
                send(f"{RESULT}2", "r2", "results"),
                receive(f"{RESULT}1", 90, queue="results"),
                receive(f"{RESULT}2", 91, queue="results"),
            ],
        ),
    ],
)
def test_a_violation_is_found(rule: str, operations: list[Operation]) -> None:
    """One thing wrong after a good history is one violation, of its own rule."""
    received = [operation for operation in operations if operation.kind is Kind.RECEIVE]
    acks = [] if rule in UNSETTLED else [ack(operation.message_id) for operation in received]
    assert check(*GOOD, *operations, *acks) == {rule: 1}


@pytest.mark.parametrize(
    ("stalls", "found"), [([(119, 17)], 0), ([(119, 10)], 1), ([(101, 17)], 1)]
)
def test_what_was_here_while_the_machine_stood_still_came_no_later(
    stalls: list[tuple[float, float]], found: int
) -> None:
    """Nobody noted it: only the time in which somebody could have is held against the broker."""
    checker = Checker([QUEUE], stalls=stalls)
    for operation in (expiring("p/9", 100), received_at("p/9", 99, 120), ack(99)):
        checker.observe(operation)
    assert checker.finish().counts["moved"] == found


@pytest.mark.parametrize(("at", "is_of_the_tail"), [(5.0, True), (15.0, False)])
def test_what_a_database_lost_with_its_tail_is_counted_by_itself(
    *, at: float, is_of_the_tail: bool
) -> None:
    """Only what was confirmed while the standby was behind; anything else is a violation."""
    checker = Checker([QUEUE], tails=[(4.0, 6.0)])
    for operation in (
        send("p/1"),
        replace(receipt("p/1"), at=at),
        send("p/2"),
        receive("p/2", 11),
        ack(11),
        replace(acked(11), at=at),
        receive("p/2", 11, redelivered=True),
        ack(11),
    ):
        checker.observe(operation)
    assert checker.missing == (0 if is_of_the_tail else 1)
    found = {"lost": 1, "resurrected": 1}
    assert dict(checker.finish().counts) == ({} if is_of_the_tail else found)
    assert dict(checker.of_tails) == (found if is_of_the_tail else {})


def test_changes_of_two_tokens_that_interleave_are_two_writers() -> None:
    """A change of an older token after one of a newer is found, a DELETE as well."""

    def changes(tokens: list[int], act: Act) -> list[Change]:
        return [Change(n, "M", act, n, token) for n, token in enumerate(tokens)]

    good, bad = Violations(), Violations()
    figures = check_changes(changes([1, 1, 2, 5, 0, 5], Act.INSERT), good)
    assert figures["rows inserted"] == 6
    check_changes(changes([1, 2, 1, 2], Act.DELETE), bad)
    assert dict(good.counts) == {}
    assert dict(bad.counts) == {"two writers": 1}


def test_an_end_is_explained_by_a_fault_of_its_node_and_time() -> None:
    """A lease lost without a fault, elsewhere, otherwise, or long after is a violation."""
    expectations = Expectations()
    expectations.allow("alpha", [74], at=10)
    assert expectations.explain(End("alpha", 74, 1_000))
    expectations.close(20)
    assert expectations.explain(End("alpha", 74, 20 + GRACE_SECONDS))
    for end in (
        End("alpha", 74, 9),
        End("alpha", 74, 21 + GRACE_SECONDS),
        End("alpha", 70, 15),
        End("beta", 74, 15),
    ):
        assert not expectations.explain(end)


def test_a_stall_of_the_machine_explains_a_lost_lease_and_nothing_else() -> None:
    """It must have been long enough, and shortly before."""
    stalls = [(10.0, 1.5), (30.0, 0.4)]
    assert is_of_a_stall(End("alpha", 74, 12), stalls, [74])
    assert not is_of_a_stall(End("alpha", 70, 12), stalls, [74])
    assert not is_of_a_stall(End("alpha", 74, 31), stalls, [74])
    assert not is_of_a_stall(End("alpha", 74, 5), stalls, [74])


def test_a_node_without_a_processor_for_half_of_its_last_seconds_was_starved() -> None:
    """What it waited before that, or after its end, is no reason; nor is it for another exit."""
    end = End("alpha", 74, 100.0)
    samples = [Waited(90.0, 3.0, 0.0), *(Waited(98.0 + n, 0.7, 0.1) for n in range(3))]
    waited = waited_before(end, samples)
    assert (round(waited.processor_seconds, 6), round(waited.disk_seconds, 6)) == (2.1, 0.3)
    assert is_of_starvation(end, waited, [74])
    assert not is_of_starvation(End("alpha", 70, 100.0), waited, [74])
    assert not is_of_starvation(end, waited_before(end, [*samples[:3], Waited(101, 9, 0)]), [74])


TOPIC = "/topic/prices"


def publish(name: str) -> Operation:
    """Make a SEND to a topic."""
    return Operation(Kind.PUBLISH, "publisher", TOPIC, name)


def heard(name: str, connection: str = "s.1") -> Operation:
    """Make a MESSAGE of it."""
    return Operation(Kind.HEARD, "subscriber", TOPIC, name, transaction=connection)


@pytest.mark.parametrize(
    ("found", "operations"),
    [
        ({}, [heard("p.1/1"), heard("p.1/2"), heard("p.2/0"), heard("p.1/0", "s.2")]),
        ({"gap": 1}, [heard("p.1/0"), heard("p.1/2")]),
        ({"gap": 1}, [heard("p.1/1"), heard("p.1/1")]),
        ({"gap": 1}, [heard("p.1/1"), heard("p.1/0")]),
        ({"invented": 1}, [heard("p.1/3")]),
        ({"invented": 1}, [heard("p.3/0")]),
    ],
)
def test_a_gap_of_a_topic_is_found(found: dict[str, int], operations: list[Operation]) -> None:
    """A connection hears all from where it began, once and in order."""
    violations = Violations()
    checker = TopicChecker(violations)
    for operation in [*(publish(name) for name in ("p.1/0", "p.1/1", "p.1/2", "p.2/0"))]:
        checker.observe(operation)
    for operation in operations:
        checker.observe(operation)
    assert dict(violations.counts) == found


def test_a_message_keeps_its_name_only_if_it_is_whole() -> None:
    """A body that lost or changed a byte is not taken for the one that was sent."""
    body = body_of("producer/17")
    assert name_of(body) == "producer/17"
    assert name_of(body[:-1]) != "producer/17"
    assert name_of(body.replace(b"1", b"2", 1)) != "producer/17"


def test_what_has_a_duplicate_id_is_stored_once() -> None:
    """However often it was sent; on other queues as often as it was."""
    history = [
        *(connected(1), send("p/0"), send("p/0"), receipt("p/0")),
        *(receive("p/0", 1), ack(1), acked(1), receive("p/0", 2), ack(2), acked(2)),
    ]
    for once, expected in (([], {}), ([QUEUE], {"multiplied": 1})):
        checker = Checker([], once=once)
        for operation in history:
            checker.observe(operation)
        assert dict(checker.finish().counts) == expected
