"""What the store refuses alone leaves nothing behind: no charge, no place, no wait, no memory.

Each test breaks when a line of a branch that takes a refusal is taken out.
"""

from collections.abc import Callable

import pytest

from orthia.broker.core.api import TransactionWork
from orthia.broker.core.errors import LimitExceeded, QuotaExceeded
from orthia.config.address_settings import AddressFullPolicy
from orthia.config.errors import OrthiaError
from orthia.journal.errors import StoreFull, UnitRefused
from orthia.journal.model.message import LargeBody, decode_message, encode_message
from tests.core.support import ANYONE, Clock, CoreUnderTest, anyone, message, settings
from tests.core.test_expiry import Node
from tests.stomp.test_scheduled import depth, send

POISON, FULL = UnitRefused("for a test"), StoreFull("for a test")
BOTH = pytest.mark.parametrize("reason", [POISON, FULL], ids=["poison", "no room"])
QUEUE = "/queue/orders"
SCHEDULE = "orthia.scheduled.anycast.orders"
RETRIED_MS = 10_100


def refused(core: CoreUnderTest, act: Callable[[], object], reason: OrthiaError = POISON) -> None:
    """Have the store refuse every unit that stores a message and that ``act`` leads to."""
    core.settle()
    core.journal.auto_commit = False
    act()
    core.settle()
    assert core.journal.waiting
    while core.journal.waiting:
        core.journal.refuse(reason)
    core.journal.auto_commit = True
    core.settle()


def used(core: CoreUnderTest) -> int:
    """Return what counts against max-store-bytes."""
    return core.broker.store_use.used


# --- what is due


def due(clock: Clock, reason: OrthiaError, ms: int = 100) -> None:
    """Let time pass until a move is made, which the store refuses."""
    refused(clock.core, lambda: clock.pass_ms(ms), reason)


@BOTH
def test_a_message_whose_move_was_refused_can_be_cancelled(reason: OrthiaError) -> None:
    """It is not on its way any more."""
    clock = Clock()
    send(clock, "later", AMQ_SCHEDULED_DELAY=100)
    due(clock, reason)
    ((seq, _),) = clock.core.journal.store.times.items()
    counts: list[int] = []
    clock.core.cancel(SCHEDULE, seq, counts.append)
    clock.core.settle()
    assert counts == [1]
    clock.pass_ms(RETRIED_MS)
    assert (depth(clock), depth(clock, "orders")) == (0, 0)
    assert used(clock.core) == 0


@BOTH
@pytest.mark.parametrize("repeats", [{}, {"AMQ_SCHEDULED_PERIOD": 100, "AMQ_SCHEDULED_REPEAT": 3}])
def test_refused_moves_count_against_no_limit(reason: OrthiaError, repeats: dict[str, int]) -> None:
    """However often: what others send is taken as before, up to the limit."""
    limits = settings(address_full_policy=AddressFullPolicy.FAIL, max_size_messages=3)
    clock = Clock(limits)
    send(clock, "later", AMQ_SCHEDULED_DELAY=100, **repeats)
    before = used(clock.core)
    due(clock, reason)
    for _ in range(4):
        due(clock, reason, RETRIED_MS)
    assert used(clock.core) == before
    clock.core.send(QUEUE, "1", "2")
    with pytest.raises(QuotaExceeded):
        clock.core.send(QUEUE, "3")
    consumer = clock.core.consume(QUEUE, auto=True)
    clock.pass_ms(2 * RETRIED_MS)
    assert consumer.texts[:3] == ["1", "2", "later"]
    assert depth(clock) == 0
    assert used(clock.core) == 0


def test_a_message_that_finds_no_room_counts_nowhere() -> None:
    """One that comes without end waits for room in its queue; the others of its unit do not."""
    limits = settings("orders", address_full_policy=AddressFullPolicy.FAIL, max_size_messages=3)
    clock = Clock(limits)
    send(clock, "again", AMQ_SCHEDULED_DELAY=100, AMQ_SCHEDULED_PERIOD=100, AMQ_SCHEDULED_REPEAT=9)
    clock.core.send(QUEUE, "1")
    before = used(clock.core)
    for _ in range(3):
        clock.pass_ms(RETRIED_MS)
    assert used(clock.core) == before
    consumer = clock.core.consume(QUEUE, auto=True)
    clock.pass_ms(3 * RETRIED_MS)
    assert consumer.texts[:2] == ["1", "again"]


@BOTH
def test_a_schedule_with_a_refused_move_can_be_deleted_once_it_is_empty(
    reason: OrthiaError,
) -> None:
    """Nothing of it is on its way."""
    clock = Clock()
    send(clock, "later", AMQ_SCHEDULED_DELAY=100)
    due(clock, reason)
    clock.pass_ms(RETRIED_MS)
    assert depth(clock, "orders") == 1
    ended: list[int] = []
    clock.core.broker.delete_queue(ANYONE, SCHEDULE, ended.append, force=False)
    clock.core.settle()
    assert ended == [0]


@BOTH
def test_a_refused_move_is_tried_after_a_while_and_others_at_once(
    reason: OrthiaError, caplog: pytest.LogCaptureFixture
) -> None:
    """The log has it once, unless the store is full, which is told by itself."""
    clock = Clock()
    send(clock, "refused", AMQ_SCHEDULED_DELAY=100)
    due(clock, reason)
    due(clock, reason, RETRIED_MS)
    assert depth(clock) == 1
    clock.pass_ms(9_000)
    assert depth(clock) == 1
    clock.pass_ms(1_200)
    assert clock.core.consume(QUEUE).texts == ["refused"]
    told = [one for one in caplog.messages if "is due and cannot be delivered" in one]
    assert len(told) == (1 if reason is POISON else 0)


# --- what is sent


@BOTH
@pytest.mark.parametrize("transacted", [False, True])
def test_a_refused_message_for_several_queues_counts_nowhere(
    reason: OrthiaError, *, transacted: bool
) -> None:
    """And nothing waits for it: what is not persistent is in memory alone, as before."""
    core = CoreUnderTest()
    for name in "ab":
        core.consume(f"/topic/news::{name}").end.close()
    told: list[OrthiaError] = []

    def act() -> None:
        if transacted:
            work = TransactionWork([("/topic/news", message("x"))])
            core.commit(work, lambda: None, lambda error, _: told.append(error))
        else:
            core.broker.send(
                anyone(), "/topic/news", message("x"), None, lambda error, _: told.append(error)
            )

    refused(core, act, reason)
    assert told == [reason]
    assert used(core) == 0
    for name in "ab":
        assert not core.broker.queues()[name].is_expecting
        ended: list[int] = []
        core.broker.delete_queue(ANYONE, name, ended.append, force=False)
        core.settle()
        assert ended == [0]


@BOTH
@pytest.mark.parametrize("expires_ms", [0, 2**52])
def test_what_comes_behind_a_refused_message_is_in_memory_again(
    reason: OrthiaError, expires_ms: int
) -> None:
    """It would be stored as long as something before it was on its way to the store."""
    core = CoreUnderTest()
    core.consume(QUEUE).end.close()
    sent = message("x", expires_ms=expires_ms)
    refused(core, lambda: core.broker.send(anyone(), QUEUE, sent, None), reason)
    core.send(QUEUE, "y", persistent=False)
    assert core.journal.store.messages == {}
    assert core.consume(QUEUE).texts == ["y"]


def test_what_comes_behind_a_message_that_is_too_large_is_in_memory() -> None:
    """The journal refuses such a one at once, and nothing waits for it."""
    core = CoreUnderTest()
    core.consume(QUEUE).end.close()
    most = core.journal.intake._max_record_bytes
    core.journal.intake._max_record_bytes = 10
    with pytest.raises(LimitExceeded):
        core.broker.send(anyone(), QUEUE, message("x" * 20), None)
    core.journal.intake._max_record_bytes = most
    core.send(QUEUE, "y", persistent=False)
    assert core.journal.store.messages == {}
    core.consume(QUEUE, auto=True).end.close()
    core.broker.delete_queue(ANYONE, "orders", lambda _: None, force=False)


class Bodies:
    """Counts who needs large bodies."""

    def __init__(self) -> None:
        self.pinned: dict[int, int] = {}

    def taken_over(self, body_id: int) -> None:
        """Take no note: what counts is asked elsewhere."""

    def pin(self, body_id: int) -> None:
        """Count one more."""
        self.pinned[body_id] = self.pinned.get(body_id, 0) + 1

    def unpin(self, body_id: int) -> None:
        """Count one less."""
        self.pinned[body_id] = self.pinned.get(body_id, 0) - 1


@BOTH
@pytest.mark.parametrize("transacted", [False, True])
def test_the_body_of_a_refused_message_is_let_go_of(
    reason: OrthiaError, *, transacted: bool
) -> None:
    """It was pinned by its upload, which is undone once: then it can be removed."""
    core = CoreUnderTest()
    bodies = Bodies()
    core.broker.parts.context._large = bodies  # type: ignore[assignment]
    large = message("")._replace(large=LargeBody(7, 1_000_000, 0))

    def act() -> None:
        if transacted:
            core.commit(TransactionWork([(QUEUE, large)]), lambda: None)
        else:
            core.broker.send(anyone(), QUEUE, large, None)

    bodies.pin(7)
    refused(core, act, reason)
    assert bodies.pinned == {7: 0}
    assert used(core) == 0


# --- what is moved


DEAD_LETTERING = settings("orders", max_delivery_attempts=1, dead_letter_address="DLQ")


@BOTH
def test_a_refused_dead_letter_is_where_it_was(
    reason: OrthiaError, caplog: pytest.LogCaptureFixture
) -> None:
    """It counts there alone, and is a dead letter once, when the store takes it."""
    core = CoreUnderTest(DEAD_LETTERING)
    core.send(QUEUE, "x")
    before = used(core)
    consumer = core.consume(QUEUE)
    refused(core, lambda: consumer.reject("x"), reason)
    consumer.end.close()
    core.settle()
    queue = core.broker.queues()["orders"]
    assert (used(core), queue.depth, queue.counters.dead_lettered) == (before, 1, 0)
    assert not queue.is_expecting
    told = [one for one in caplog.messages if "cannot be moved to queue DLQ" in one]
    assert len(told) == (1 if reason is POISON else 0)
    core.pass_time(3_600)
    again = core.consume(QUEUE)
    again.reject(*again.texts)
    again.end.close()
    core.pass_time(3_600)
    assert core.broker.depths() == {"orders": 0, "DLQ": 1}
    assert queue.counters.dead_lettered == 1
    core.broker.delete_queue(ANYONE, "orders", lambda _: None, force=False)


@BOTH
def test_the_body_of_a_refused_dead_letter_is_pinned_no_more(reason: OrthiaError) -> None:
    """It is needed by the row that stays; a pin would keep it when that is gone."""
    core = CoreUnderTest(DEAD_LETTERING)
    bodies = Bodies()
    core.broker.parts.context._large = bodies  # type: ignore[assignment]
    bodies.pin(7)
    large = message("x")._replace(large=LargeBody(7, 1_000_000, 0))
    core.broker.send(anyone(), QUEUE, large, None)
    core.settle()
    consumer = core.consume(QUEUE)
    refused(core, lambda: consumer.reject("x"), reason)
    assert bodies.pinned == {7: 0}


@BOTH
def test_the_body_of_a_refused_move_to_a_topic_is_pinned_no_more(reason: OrthiaError) -> None:
    """A topic has no row that keeps the body, so it is pinned until subscribers have it."""
    clock = Clock()
    core = clock.core
    core.consume("/topic/news")
    send(clock, "later", "/topic/news", AMQ_SCHEDULED_DELAY=100)
    bodies = Bodies()
    core.broker.parts.context._large = bodies  # type: ignore[assignment]
    ((seq, (row, epoch)),) = core.journal.store.messages.items()
    record = decode_message(row.record, seq)._replace(large=LargeBody(7, 1_000_000, 0))
    core.journal.store.messages[seq] = (row._replace(record=encode_message(record)), epoch)
    due(clock, reason)
    assert bodies.pinned == {7: 0}


@BOTH
def test_an_expired_message_that_is_refused_expires_later(reason: OrthiaError) -> None:
    """It counts as expired once, and is in one queue."""
    node = Node()
    node.send("x", after_ms=1_000)
    core = node.core
    before = used(core)
    core.now += 2
    refused(core, lambda: core.consume(QUEUE).end.close(), reason)
    queue = core.broker.queues()["orders"]
    assert (used(core), queue.depth, queue.counters.expired) == (before, 1, 0)
    node.scan()
    assert (queue.depth, queue.counters.expired) == (0, 1)
    assert core.broker.depths() == {"orders": 0, "ExpiryQueue": 1}
    assert not queue.is_expecting


# --- what is acknowledged in a transaction
