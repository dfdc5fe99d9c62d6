"""What a node holds in memory, and what it does while the store is behind."""

import logging
from typing import Any

import pytest

from orthia.broker.core.broker import Broker
from orthia.broker.core.limits.memory import MESSAGE_OVERHEAD, MemoryBudget, size_in_store
from orthia.journal.limits import JournalLimits
from orthia.journal.memory import MemoryJournal
from orthia.journal.model.encodings import NO_HEAD
from orthia.journal.model.fields import Fields, encode_fields
from orthia.journal.model.message import RECORD_OVERHEAD, LargeBody, Message, encode_message
from tests.core.support import ANYONE, SETTINGS, CoreUnderTest, FakeConsumer, opened, settings

QUEUE = "/queue/orders"
WAITING_ROWS = 2_000
BACKLOG = 10_000


class Idler:
    """Holds memory that it gives up when asked."""

    def __init__(self, budget: MemoryBudget, size: int) -> None:
        self.size = size
        self.asked: list[int] = []
        self._budget = budget
        budget.used += size
        budget.register(self)

    def shed(self, size: int) -> bool:
        """Give up what is asked for, as far as there is."""
        self.asked.append(size)
        given = min(size, self.size)
        self.size -= given
        self._budget.used -= given
        return self.size > 0


def test_a_budget_without_limit_always_has_room() -> None:
    """``global-max-size`` -1 means what it means in Artemis."""
    budget = MemoryBudget(-1)
    budget.used = 1 << 39
    assert budget.has_room(1 << 39)
    assert budget.room > 1 << 30


def test_a_budget_is_exact_at_its_limit() -> None:
    """The last byte may be used, not one more."""
    budget = MemoryBudget(100)
    budget.used = 60
    assert budget.room == 40
    assert budget.has_room(40)
    assert not budget.has_room(41)


class Waiter:
    """Wants messages, and takes all the memory that there is when it is asked."""

    def __init__(self, budget: MemoryBudget, asked: list["Waiter"]) -> None:
        self._budget = budget
        self._asked = asked
        budget.refuse(self)

    def resume(self) -> None:
        """Take what there is."""
        self._asked.append(self)
        self._budget.claim(50)


def test_those_that_were_refused_are_asked_in_their_order() -> None:
    """Whoever came last does not get it first; and those that left are not asked at all."""
    budget, asked = MemoryBudget(100), list[Waiter]()
    budget.claim(100)
    first, gone, second, third = (Waiter(budget, asked) for _ in range(4))
    budget.forget(gone)
    budget.unclaim(100)
    budget.relieve()
    assert asked == [first, second]
    budget.unclaim(50)
    budget.relieve()
    assert asked == [first, second, third]


class Passing:
    """Gives what it takes back at once, and wants more as often as it is told."""

    def __init__(self, budget: MemoryBudget, messages: int) -> None:
        self._budget = budget
        self.messages = messages
        budget.refuse(self)

    def resume(self) -> None:
        """Take one message, and give its room back."""
        self.messages -= 1
        if self.messages:
            self._budget.refuse(self)
        self._budget.claim(50)
        self._budget.unclaim(50)


def test_very_many_that_give_room_back_at_once_are_all_asked() -> None:
    """One after the other, not one within the other; and as often as there is room again."""
    budget = MemoryBudget(100, lambda relieve: relieve())
    budget.claim(100)
    waiting = [Passing(budget, 3) for _ in range(2_000)]
    budget.unclaim(50)
    assert not any(one.messages for one in waiting)
    assert budget.claimed == 50


def test_room_is_made_by_one_holder_after_the_other() -> None:
    """Nobody is asked for more than is missing, and not the same one first each time."""
    budget = MemoryBudget(100)
    first, second = Idler(budget, 50), Idler(budget, 50)
    budget.make_room(30)
    assert (first.asked, second.asked) == ([30], [])
    budget.make_room(30)
    assert (first.asked, second.asked) == ([30], [])
    budget.make_room(60)
    assert (first.asked, second.asked) == ([30], [30])


def test_those_that_hold_nothing_are_not_asked() -> None:
    """Of very many queues most are empty: they cost those that need room nothing."""
    budget = MemoryBudget(100)
    empty, full = Idler(budget, 10), Idler(budget, 90)
    budget.make_room(100)
    budget.make_room(101)
    assert len(empty.asked) == 1
    assert len(full.asked) <= 2


def test_a_queue_that_was_empty_gives_memory_up_again() -> None:
    """Whatever was asked of it before."""
    core = CoreUnderTest()
    budget = core.broker.parts.factory.services.budget
    for _ in range(3):
        core.send(QUEUE, "a")
        budget.make_room(1 << 40)
        assert core.memory_used == 0
    assert core.consume(QUEUE).texts == ["a", "a", "a"]


def test_all_holders_are_asked_when_there_is_no_room_to_be_made() -> None:
    """And the call ends."""
    budget = MemoryBudget(100)
    holders = [Idler(budget, 10) for _ in range(3)]
    budget.make_room(1_000)
    assert [holder.size for holder in holders] == [0, 0, 0]


def backlog_under_a_slow_store(options: dict[str, object], *, expires_ms: int = 0) -> CoreUnderTest:
    """Return the next live node on a long backlog, whose store answers when the test says so."""
    core = CoreUnderTest(settings("orders", **options))
    core.send(QUEUE, *["x"] * BACKLOG, expires_ms=expires_ms)
    core.journal.store.fence_token = 2
    slow = MemoryJournal(
        core.journal.store,
        token=2,
        auto_commit=False,
        limits=JournalLimits(max_waiting_rows=WAITING_ROWS),
    )
    successor = CoreUnderTest(settings("orders", **options), store=core.journal.store, token=2)
    successor.journal = slow
    successor.broker = opened(
        Broker(
            settings("orders", **options),
            slow,
            lease_valid=lambda: True,
            call_later=successor._call_later,
        )
    )
    return successor


@pytest.mark.parametrize("expiry_address", ["", "expired"])
def test_a_backlog_that_expired_is_moved_no_faster_than_it_is_stored(
    expiry_address: str,
) -> None:
    """However long it is, what waits for the store stays bounded, and all of it is moved."""
    core = backlog_under_a_slow_store({"expiry_address": expiry_address}, expires_ms=1)
    consumer = core.consume(QUEUE)
    most = 0
    while core.journal.waiting:
        most = max(most, len(core.journal.waiting))
        core.journal.commit()
        core.settle()
    assert most <= 2 * WAITING_ROWS
    assert consumer.texts == []
    moved = BACKLOG if expiry_address else 0
    assert len(core.journal.store.messages) == moved
    assert core.broker.depths().get("expired", 0) == moved


def test_a_backlog_is_consumed_no_faster_than_it_is_deleted() -> None:
    """A consumer that acknowledges by receiving does not outrun the store; it gets everything."""
    core = backlog_under_a_slow_store({})
    consumer = core.consume(QUEUE, auto=True, prefetch=0)
    assert len(core.journal.waiting) <= 2 * WAITING_ROWS
    core.store_all()
    assert len(consumer.received) == BACKLOG
    assert core.journal.store.messages == {}


def test_messages_that_expire_without_an_address_are_reported_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Not a line for each of a million."""
    core = CoreUnderTest(SETTINGS)
    core.send(QUEUE, *["x"] * 50, expires_ms=1)
    with caplog.at_level(logging.WARNING):
        core.consume(QUEUE)
    assert caplog.text.count("queue orders expire and are moved to expiry-address") == 1
    assert core.broker.queues()["orders"].counters.expired == 50


def test_memory_is_not_taken_while_a_window_is_on_its_way() -> None:
    """What it brings comes after what is there: none of either is lost, or out of order."""
    core = CoreUnderTest(settings(max_size_messages=4))
    core.send(QUEUE, *map(str, range(20)))
    leaving = FakeConsumer()
    leaving.subscription = core.broker.subscribe(ANYONE, QUEUE, leaving, prefetch=1)
    leaving.end.resume()
    leaving.end.close()
    core.broker.queues()["orders"].shed(1_000_000)
    core.settle()
    assert core.consume(QUEUE).texts == [str(number) for number in range(20)]


@pytest.mark.parametrize("is_large", [False, True])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"stated": encode_fields(Fields(correlation_id="a"))},
        {"head": b"", "encoding": NO_HEAD},
    ],
)
def test_a_message_counts_the_same_on_the_next_live_node(
    changes: dict[str, Any], *, is_large: bool
) -> None:
    """Which is told how long encoded messages are, and counts what is in a message of them."""
    sent = Message("orders", b"a:b\n", b"body", 1, 0, 4)._replace(**changes)
    if is_large:
        sent = sent._replace(body=b"", large=LargeBody(7, 1_000, 1))
    outside = RECORD_OVERHEAD + len(b"orders")
    counted = len(encode_message(sent)) + (1_000 if is_large else 0) - outside + MESSAGE_OVERHEAD
    assert size_in_store(sent) == counted
