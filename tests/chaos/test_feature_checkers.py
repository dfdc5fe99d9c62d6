"""The checkers of groups, selectors, delays and durable subscriptions find what goes wrong."""

from collections.abc import Sequence

import pytest

from tests.chaos.checker import Checker, Violations
from tests.chaos.feature_checkers import DelayChecker, GroupChecker, SelectorChecker
from tests.chaos.history import Kind, Operation
from tests.chaos.subscriptions import Subscriptions, subscription_name

QUEUE = "accounts"
FIRST, SAME, OTHER = "p/0", "p/4", "p/1"
"""Of four groups the first two are in the same."""
TOPIC = "/topic/audits"
LANES = {"picky": frozenset({1})}


def of(client: str, kind: Kind, name: str = "", message_id: int = 0, queue: str = "") -> Operation:
    """Make what a consumer does or sees."""
    return Operation(kind, client, queue, name, message_id)


def got(client: str, name: str, message_id: int, queue: str = QUEUE) -> Operation:
    """Make a MESSAGE."""
    return of(client, Kind.RECEIVE, name, message_id, queue)


def done(client: str, message_id: int) -> list[Operation]:
    """Make an acknowledgement that is confirmed."""
    return [of(client, kind, message_id=message_id) for kind in (Kind.ACK, Kind.ACKED)]


LOST = [of("a", Kind.LOST), of("a", Kind.CONNECTED)]


@pytest.mark.parametrize(
    ("found", "history"),
    [
        # Both had acknowledged after both had received.
        (1, [got("a", FIRST, 1), got("b", SAME, 2), *done("a", 1), *done("b", 2)]),
        (1, [got("a", FIRST, 1), got("b", SAME, 2), *done("b", 2), *done("a", 1)]),
        (0, [got("a", FIRST, 1), got("b", OTHER, 2), *done("a", 1), *done("b", 2)]),
        (0, [got("a", FIRST, 1), *done("a", 1), got("b", SAME, 2), *done("b", 2)]),
        (0, [got("a", FIRST, 1), got("a", SAME, 2), *done("a", 1), *done("a", 2)]),
        # Who lost its connection may have lost its group before, and not known it.
        (0, [got("a", FIRST, 1), got("b", SAME, 2), *LOST, *done("b", 2)]),
        (0, [got("a", FIRST, 1), *LOST, got("b", SAME, 2), *done("b", 2)]),
        (
            0,
            [
                *(got("a", FIRST, 1), of("a", Kind.ACK, message_id=1), got("b", SAME, 2)),
                *(*LOST, *done("b", 2)),
            ],
        ),
        (0, [got("b", SAME, 2), got("a", FIRST, 1), *done("b", 2), *LOST, *done("a", 1)]),
        # A second pair beside one of which nobody can tell.
        (
            1,
            [
                *(got("a", FIRST, 1), got("b", SAME, 2), got("c", FIRST, 3)),
                *(*LOST, *done("b", 2), *done("c", 3)),
            ],
        ),
    ],
)
def test_a_group_at_two_consumers_is_found(found: int, history: Sequence[Operation]) -> None:
    """And only where both certainly had it."""
    violations = Violations()
    checker = GroupChecker([QUEUE], violations)
    for operation in history:
        checker.observe(operation)
    assert violations.counts["group"] == found


def test_what_was_not_selected_is_found() -> None:
    """A consumer without a selector may have everything."""
    violations = Violations()
    checker = SelectorChecker(LANES, violations)
    for operation in (got("picky", "p/1", 1), got("picky", "p/2", 2), got("other", "p/2", 3)):
        checker.observe(operation)
    assert dict(violations.counts) == {"selected": 1}
    assert checker.selected == 2


@pytest.mark.parametrize(
    ("at", "has_true_clock", "found"), [(8.0, True, 1), (10.0, True, 0), (8.0, False, 0)]
)
def test_what_comes_before_it_is_due_is_found(
    at: float, *, has_true_clock: bool, found: int
) -> None:
    """The first SEND says when: what is sent again is due no earlier."""
    violations = Violations()
    checker = DelayChecker(violations, has_true_clock=has_true_clock)
    for due_at in (10.0, 20.0):
        checker.observe(Operation(Kind.SEND, "p", "alarms", "p/0", due_at=due_at))
    checker.observe(Operation(Kind.RECEIVE, "c", "alarms", "p/0", 1, at=at))
    assert violations.counts["early"] == found


def sub(kind: Kind, number: int = 1, client: str = "listener") -> Operation:
    """Make an operation on a durable subscription."""
    return Operation(kind, client, subscription_name(TOPIC, client, number))


def sent(name: str) -> Operation:
    """Make a SEND to the topic."""
    return Operation(Kind.SEND, "p", TOPIC, name)


def receipt(name: str) -> Operation:
    """Make its RECEIPT."""
    return Operation(Kind.RECEIPT, "p", TOPIC, name)


def heard(name: str, message_id: int, number: int = 1, client: str = "listener") -> list[Operation]:
    """Make a MESSAGE of a subscription that is acknowledged."""
    name_of_it = subscription_name(TOPIC, client, number)
    return [got(client, name, message_id, name_of_it), *done(client, message_id)]


BEGUN = [sub(Kind.SUBSCRIBE), sub(Kind.SUBSCRIBED)]
PICKY = [sub(Kind.SUBSCRIBE, client="picky"), sub(Kind.SUBSCRIBED, client="picky")]


@pytest.mark.parametrize(
    ("found", "history"),
    [
        ({}, [*BEGUN, sent("p/0"), receipt("p/0"), *heard("p/0", 1)]),
        ({"lost": 1}, [*BEGUN, sent("p/0"), receipt("p/0")]),
        # Its subscriber came back, or not: it is one subscription.
        ({"lost": 1}, [*BEGUN, *LOST, sent("p/0"), receipt("p/0"), *BEGUN]),
        ({}, [sent("p/0"), receipt("p/0"), *BEGUN]),
        ({"invented": 1}, [sent("p/0"), receipt("p/0"), *BEGUN, *heard("p/0", 1)]),
        # What was on its way when the subscription began may come.
        ({}, [sent("p/0"), *BEGUN, receipt("p/0")]),
        ({}, [sent("p/0"), *BEGUN, receipt("p/0"), *heard("p/0", 1)]),
        ({}, [sub(Kind.SUBSCRIBE), sent("p/0"), sub(Kind.SUBSCRIBED), receipt("p/0")]),
        # What it had is gone with it, and does not come to the next of its name.
        ({}, [*BEGUN, sent("p/0"), receipt("p/0"), sub(Kind.UNSUBSCRIBE), sub(Kind.SUBSCRIBE, 2)]),
        (
            {"invented": 1},
            [
                *(*BEGUN, sent("p/0"), receipt("p/0"), sub(Kind.UNSUBSCRIBE)),
                *(sub(Kind.SUBSCRIBE, 2), sub(Kind.SUBSCRIBED, 2), *heard("p/0", 1, 2)),
            ],
        ),
        # With a duplicate id it is stored once, and the SEND that counts may have been the first.
        ({}, [sent("p/0"), *BEGUN, sent("p/0"), receipt("p/0")]),
        (
            {"multiplied": 1},
            [*BEGUN, sent("p/0"), sent("p/0"), receipt("p/0"), *heard("p/0", 1), *heard("p/0", 2)],
        ),
        ({}, [*PICKY, sent("p/0"), receipt("p/0")]),
        ({"lost": 1}, [*PICKY, sent("p/1"), receipt("p/1")]),
        ({"invented": 1}, [*PICKY, sent("p/0"), receipt("p/0"), *heard("p/0", 1, client="picky")]),
    ],
)
def test_what_a_durable_subscription_lacks_is_found(
    found: dict[str, int], history: Sequence[Operation]
) -> None:
    """It is owed what was sent after it had begun and before it was ended."""
    checker = Checker([], once=[TOPIC])
    subscriptions = Subscriptions(checker.observe, checker.forget, LANES)
    for operation in history:
        subscriptions.observe(operation)
    assert dict(checker.finish().counts) == found
