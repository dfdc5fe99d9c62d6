"""The verdict about messages that applications send and acknowledge by SQL finds faults."""

import pytest

from tests.chaos.business import Processed, check_business
from tests.chaos.checker import Violations

SENT = ["m.0/1", "m.0/2", "m.1/3"]
DONE = [Processed("m.0/1", 10), Processed("m.0/2", 12), Processed("m.1/3", 11)]


def told(done: list[Processed], *, sent: list[str] = SENT, counted: int | None = None) -> list[str]:
    """Return what is wrong, of merchants that rolled back one message."""
    violations = Violations()
    count = len(done) if counted is None else counted
    check_business(sent, done, count, ["m.1/4"], violations)
    return violations.told


def test_each_committed_message_processed_once_is_in_order() -> None:
    """Numbers rise among what a merchant sends in a row; nothing is said of the rest."""
    assert told(DONE) == []


@pytest.mark.parametrize(
    ("done", "expected"),
    [
        (DONE[1:], "m.0/1 was sent and never processed"),
        ([*DONE, Processed("m.0/1", 13)], "m.0/1 was sent 1x and processed 2x, as [10, 13]"),
        ([*DONE, Processed("m.0/2", 12)], "m.0/2 was sent 1x and processed 2x, as [12, 12]"),
        ([*DONE, Processed("m.1/4", 13)], "m.1/4 was rolled back and processed 1x, as [13]"),
        ([Processed("m.0/1", 13), *DONE[1:]], "m.0/2 came before m.0/1"),
    ],
)
def test_what_is_lost_doubled_invented_or_out_of_order_is_told(
    done: list[Processed], expected: str
) -> None:
    """By name, and by the ids of its messages."""
    assert f"business: {expected}" in told(done)


def test_a_counter_that_is_off_is_told() -> None:
    """An effect that happened twice, or not."""
    assert told(DONE, counted=4) == ["business: 3 messages are processed, 4 are counted"]
