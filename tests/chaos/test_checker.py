"""The checker finds each fault that a history can have, and none in a good one."""

from collections.abc import Callable

import pytest

from tests.chaos.checker import RESULT_OF, Checker, Row
from tests.chaos.clients import body_of, name_of
from tests.chaos.history import Kind, Operation

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


def acked(message_id: int) -> Operation:
    """Make a confirmed ACK."""
    return Operation(Kind.ACKED, "consumer", message_id=message_id)


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
    acked(10),
    send("p/1"),
    receive("p/1", 11),
    connected(2),
    receive("p/1", 11, redelivered=True),
    receive("p/1", 12),
    receive("p/2", 13),
    send("p/3", "t2"),
    Operation(Kind.ABORT, "producer", transaction="t2"),
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


RESULT = f"{RESULT_OF}requests/7/"


@pytest.mark.parametrize(
    ("rule", "operations"),
    [
        ("lost", [send("p/9"), receipt("p/9")]),
        ("lost", [send("p/9", "t9"), committed("t9")]),
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
    assert check(*GOOD, *operations) == {rule: 1}


def test_rows_of_two_tokens_that_interleave_are_two_writers() -> None:
    """A row of an older token after one of a newer is found; takeovers alone are not."""
    rows: Callable[[list[int]], list[Row]] = lambda epochs: [  # noqa: E731 - one expression
        Row(number, number, epoch) for number, epoch in enumerate(epochs)
    ]
    good, bad = Checker([]), Checker([])
    assert good.check_rows(rows([1, 1, 2, 5, 5])) == 5
    assert bad.check_rows(rows([1, 2, 1, 2])) == 4
    assert dict(good.violations.counts) == {}
    assert bad.violations.counts["two writers"] == 1


def test_a_message_keeps_its_name_only_if_it_is_whole() -> None:
    """A body that lost or changed a byte is not taken for the one that was sent."""
    body = body_of("producer/17")
    assert name_of(body) == "producer/17"
    assert name_of(body[:-1]) != "producer/17"
    assert name_of(body.replace(b"1", b"2", 1)) != "producer/17"
