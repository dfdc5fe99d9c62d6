"""Deleting a queue of a running node: all of it goes, and nothing that is anybody else's."""

from dataclasses import replace

import pytest

from orthia.broker.core.api import TransactionWork
from orthia.broker.core.errors import BrokerError, DestinationRefused, QueueInUse, Refusal
from orthia.broker.core.identity import Principal
from orthia.broker.core.queue import refill as window_module
from orthia.config.address_settings import QueueSettings, RoutingType
from orthia.config.security_settings import SecuritySetting
from orthia.config.settings import ClientLimits, Settings
from orthia.journal.errors import StoreFull
from orthia.journal.memory import MemoryJournal
from orthia.journal.model.codec import QueueBinding
from orthia.journal.model.unit import Unit
from orthia.journal.model.windows import BEGINNING, QueueCounts
from orthia.journal.model.xid import Xid
from orthia.journal.xa import XaTransactions
from tests.core.support import ANYONE, SETTINGS, CoreUnderTest, declared, message, settings
from tests.core.test_slices import Work

NEWS = replace(
    SETTINGS,
    addresses=(declared("news", kind=RoutingType.MULTICAST),),
)


def delete(
    core: CoreUnderTest, name: str, *, force: bool = False, who: Principal = ANYONE
) -> int | None:
    """Delete a queue and return how many messages went; None if it has not ended."""
    ended: list[int] = []
    core.broker.delete_queue(who, name, ended.append, force=force)
    core.settle()
    return ended[0] if ended else None


def names(core: CoreUnderTest) -> list[str]:
    """Return the queues there are."""
    return list(core.broker.queues())


def bound(core: CoreUnderTest) -> list[str]:
    """Return the queues that the next node will open."""
    opened = MemoryJournal(core.journal.store, token=core.journal.store.fence_token)
    return [one.name for one in opened.bindings if isinstance(one, QueueBinding)]


def test_an_empty_queue_is_deleted_for_good() -> None:
    """Its name is free: whoever uses it next gets another queue."""
    core = CoreUnderTest()
    core.send("/queue/orders", "a")
    core.consume("/queue/orders", auto=True).end.close()
    core.settle()
    first = core.broker.queues()["orders"].id
    assert delete(core, "orders") == 0
    assert (names(core), bound(core)) == ([], [])
    core.send("/queue/orders", "b")
    assert core.broker.queues()["orders"].id != first
    assert core.consume("/queue/orders").texts == ["b"]


@pytest.mark.parametrize("used", ["messages", "consumers", "in flight", "uncounted"])
def test_a_queue_that_is_used_stays_unless_it_is_forced(used: str) -> None:
    """The refusal says what it has; nothing was done."""
    core = CoreUnderTest(auto_commit=used != "in flight")
    if used == "consumers":
        core.consume("/queue/orders")
    else:
        core.send("/queue/orders", "a")
    if used == "uncounted":
        core = core.takeover()
    with pytest.raises(QueueInUse, match="by force only") as refused:
        delete(core, "orders")
    expected = {
        "messages": "1 messages",
        "consumers": "1 consumers",
        "in flight": "a message on its way",
        "uncounted": "not counted yet",
    }
    assert expected[used] in str(refused.value)
    core.journal.commit()
    core.settle()
    core.send("/queue/orders", "b")
    core.journal.commit()
    core.settle()
    assert core.broker.queues()["orders"].depth


@pytest.mark.parametrize("how", ["transaction", "dead letter"])
@pytest.mark.parametrize("is_stored", [False, True])
def test_a_message_that_may_come_back_keeps_its_queue(how: str, *, is_stored: bool) -> None:
    """What takes it out is not stored yet: if the store refuses that, it is in the queue again."""
    core = CoreUnderTest(settings("orders", max_delivery_attempts=1), auto_commit=False)
    core.send("/queue/orders", "a")
    core.journal.commit()
    core.settle()
    consumer = core.consume("/queue/orders")
    if how == "transaction":
        taken = consumer.take("a")
        consumer.end.set_aside(taken)
        sends = [("/queue/answers", message("b"))]
        work = TransactionWork(sends, acknowledgements={consumer.end: taken})
        core.commit(work, lambda: None)
    else:
        consumer.reject("a")
    consumer.end.close()
    assert core.broker.queues()["orders"].depth == 0
    with pytest.raises(QueueInUse, match="may come back"):
        delete(core, "orders")
    core.journal.commit(len(core.journal.waiting) - 1)  # the other queue's binding
    if is_stored:
        core.journal.commit()
    else:
        core.journal.refuse(StoreFull("disk full"))
    core.settle()
    if not is_stored:
        with pytest.raises(QueueInUse, match="1 messages"):
            delete(core, "orders")
        return
    ended: list[int] = []
    core.broker.delete_queue(ANYONE, "orders", ended.append, force=False)
    while not ended:
        core.journal.commit()
        core.settle()
    assert ended == [0]


@pytest.mark.parametrize("backlog", ["in memory", "in the table", "of an earlier node"])
def test_messages_go_with_a_queue_by_force(backlog: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them, wherever they are; nothing counts for them any more, and others stay."""
    monkeypatch.setattr("orthia.broker.core.upkeep.deletion.WINDOW_MESSAGES", 3)
    monkeypatch.setattr(window_module, "WINDOW_MESSAGES", 4)
    limit = 1_500 if backlog == "in the table" else SETTINGS.global_max_size
    core = CoreUnderTest(replace(SETTINGS, global_max_size=limit))
    core.send("/queue/orders", *"abcdefgh")
    core.send("/queue/others", "x")
    if backlog == "of an earlier node":
        core = core.takeover().counted()
    else:
        core.send("/queue/orders", "i", persistent=False)
    assert delete(core, "orders", force=True) == (8 if backlog == "of an earlier node" else 9)
    assert names(core) == ["others"]
    assert core.broker.depths() == {"others": 1}
    assert core.stored_texts() == ["x"]
    assert core.broker.store_use.used == 601
    core.consume("/queue/others", auto=True)
    core.settle()
    assert (core.broker.store_use.used, core.memory_used) == (0, 0)


def test_consumers_are_ended_and_what_they_have_goes_too() -> None:
    """Also what waits for its next delivery, or is a transaction's: no dead letters are made."""
    core = CoreUnderTest()
    core.send("/queue/orders", *"abc")
    consumer = core.consume("/queue/orders")
    consumer.end.set_aside(consumer.take("b"))
    assert delete(core, "orders", force=True) == 3
    assert consumer.failures == ["queue 'orders' is deleted"]
    assert consumer.refusals == [Refusal.DESTINATION]
    assert (names(core), core.stored_texts()) == ([], [])
    assert core.memory_used == 0
    work = TransactionWork(acknowledgements={consumer.end: consumer.take("b")})
    with pytest.raises(BrokerError):
        core.commit(work, lambda: None)


def test_a_delayed_message_is_forgotten() -> None:
    """When its time comes the queue is gone."""
    core = CoreUnderTest(settings(redelivery_delay=1_000))
    core.send("/queue/orders", "a")
    core.send("/queue/orders", "b", persistent=False)
    consumer = core.consume("/queue/orders")
    consumer.reject("a", "b")
    consumer.end.close()
    core.settle()
    assert delete(core, "orders", force=True) == 2
    core.pass_time(10.0)
    assert (core.memory_used, core.broker.store_use.used) == (0, 0)


def test_what_is_on_its_way_goes_with_the_queue() -> None:
    """A message that was accepted before is stored first, and then deleted, not left over."""
    core = CoreUnderTest(auto_commit=False)
    core.send("/queue/orders", "a")
    core.journal.commit()
    core.settle()
    core.send("/queue/orders", "b")
    ended: list[int] = []
    core.broker.delete_queue(ANYONE, "orders", ended.append, force=True)
    with pytest.raises(DestinationRefused, match="is being deleted"):
        core.send("/queue/orders", "c")
    with pytest.raises(DestinationRefused, match="is being deleted"):
        core.consume("/queue/orders")
    with pytest.raises(DestinationRefused, match="is being deleted"):
        delete(core, "orders")
    while not ended:
        core.journal.commit()
        core.settle()
    assert ended == [2]
    assert not core.journal.store.messages


def test_a_node_that_dies_in_between_leaves_a_queue_to_delete_again() -> None:
    """Whatever was done by then: its binding is the last that goes."""
    for commits in range(5):
        core = CoreUnderTest(auto_commit=False)
        core.send("/queue/orders", *"abc")
        core.journal.commit()
        core.settle()
        core.broker.delete_queue(ANYONE, "orders", lambda _: None, force=True)
        for _ in range(commits):
            core.journal.commit()
            core.settle()
        successor = core.takeover()
        assert len(successor.stored_texts()) in (0, 3)
        if names(successor):
            assert delete(successor, "orders", force=True) is not None
        assert (names(successor), bound(successor)) == ([], [])
        counts: list[object] = []
        successor.journal.count(BEGINNING, 2**62, 10, counts.append)
        successor.settle()
        assert counts == [QueueCounts({}, None, {})]


def test_a_message_of_several_queues_stays_in_the_others() -> None:
    """And the address goes on routing to those."""
    queues = tuple(QueueSettings(name, RoutingType.MULTICAST) for name in ("one", "two"))
    news = declared("news", *queues, kind=RoutingType.MULTICAST)
    core = CoreUnderTest(replace(SETTINGS, addresses=(news,)))
    core.send("/topic/news", "a")
    with pytest.raises(DestinationRefused, match="is configured"):
        delete(core, "one", force=True)
    core = core.takeover(NEWS)
    assert delete(core, "one", force=True) == 1
    core.send("/topic/news", "b")
    assert core.consume("two").texts == ["a", "b"]


@pytest.mark.parametrize("is_topic", [False, True])
def test_a_commit_that_was_half_ready_when_a_queue_went_is_refused_whole(
    is_topic: bool,
) -> None:
    """Nothing of it is stored: not for the queue that went, nor for others of its address."""
    queues = tuple(QueueSettings(name, RoutingType.MULTICAST) for name in ("one", "two"))
    news = declared("news", *queues, kind=RoutingType.MULTICAST)
    core = CoreUnderTest(replace(SETTINGS, addresses=(news,))).takeover(NEWS)
    core.send("/queue/orders", "before")
    two = core.consume("two", auto=True)
    destination = "/topic/news" if is_topic else "/queue/orders"
    sends = [(destination, message(str(number))) for number in range(50)]
    done: list[str] = []
    steps = core.broker.commit(ANYONE, TransactionWork(sends), lambda: done.append("done"))
    next(steps)
    assert delete(core, "one" if is_topic else "orders", force=True) is not None
    with pytest.raises(DestinationRefused, match="was deleted during the commit"):
        list(steps)
    core.settle()
    assert (two.texts, done) == ([], [])
    assert core.stored_texts() == (["before"] if is_topic else [])
    core.send("/topic/news", "after")
    assert two.texts == ["after"]


def test_a_commit_that_was_half_ready_when_a_queue_went_binds_nothing() -> None:
    """A level of a queue that is gone would be stored, and count as a queue, for ever."""
    core = CoreUnderTest()
    core.send("/queue/orders", "before")
    sends = [("/queue/orders", message(str(number), priority=7)) for number in range(32)]
    steps = core.broker.commit(ANYONE, TransactionWork(sends), lambda: None)
    next(steps)
    assert delete(core, "orders", force=True) == 1
    with pytest.raises(DestinationRefused, match="was deleted during the commit"):
        list(steps)
    core.settle()
    assert (names(core), bound(core)) == ([], [])


def test_what_goes_back_to_a_queue_that_is_deleted_is_no_dead_letter() -> None:
    """Nor is it counted as gone twice, so that the limits would take more than they say."""
    core = CoreUnderTest(
        settings("orders", max_delivery_attempts=1), clock=Work(), auto_commit=False
    )
    texts = [str(number) for number in range(3_000)]
    core.send("/queue/orders", *texts)
    core.journal.commit()
    core.settle()
    use = core.broker.queues()["orders"].use
    consumer = core.consume("/queue/orders", prefetch=5_000)
    assert len(consumer.received) == 3_000
    consumer.reject(*texts)
    ended: list[int] = []
    core.broker.delete_queue(ANYONE, "orders", ended.append, force=True)
    core.turn()
    while not ended or core.journal.waiting:
        core.journal.commit(1)
        core.settle()
    (dead,) = core.broker.queues().values()
    assert 0 < dead.depth == 3_000 - ended[0] < 3_000
    assert (use.used, use.messages) == (0, 0)
    assert core.broker.store_use.used == dead.use.used
    assert core.memory_used == dead.log.bytes_in_memory


def test_what_a_client_still_has_of_a_queue_that_is_gone_comes_back_to_nothing() -> None:
    """A connection may end later than the deletion that ends it."""
    core = CoreUnderTest()
    core.send("/queue/orders", "a", "b")
    queue = core.broker.queues()["orders"]
    consumer = core.consume("/queue/orders")
    consumer.fail = lambda reason, _: consumer.failures.append(reason)  # type: ignore[assignment, method-assign]
    ended: list[int] = []
    core.broker.delete_queue(ANYONE, "orders", ended.append, force=True)
    core.settle()
    assert ended == [2]
    consumer.end.close()
    assert (queue.depth, queue.log.in_memory, core.memory_used) == (0, 0, 0)
    assert core.broker.parts.factory.services.budget.claimed == 0


def test_a_row_that_cannot_be_read_counts_no_more_when_its_queue_is_gone() -> None:
    """Else the address would be fuller than it is, until the next node."""
    core = CoreUnderTest()
    core.send("/queue/orders", "a", "b")
    queue = core.broker.queues()["orders"]
    (row, epoch) = core.journal.store.messages[max(core.journal.store.messages)]
    core.journal.store.messages[row.seq] = (row._replace(record=row.record[:-1]), epoch)
    assert delete(core, "orders", force=True) == 2
    assert (queue.use.used, queue.use.messages, core.broker.store_use.used) == (0, 0, 0)


def test_a_queue_that_is_not_there_is_refused() -> None:
    """By its name."""
    with pytest.raises(DestinationRefused, match="no queue 'orders'"):
        delete(CoreUnderTest(), "orders")


def test_a_queue_that_a_transaction_in_doubt_needs_stays() -> None:
    """It may be committed yet."""
    core = CoreUnderTest()
    core.send("/queue/orders", "a")
    queue_id = core.broker.queues()["orders"].id
    unit = Unit()
    unit.add_message([queue_id], next(iter(core.journal.store.messages.values()))[0].record)
    XaTransactions(core.journal).prepare(Xid(1, b"g", b"b"), unit)
    core.settle()
    core = core.takeover()
    with pytest.raises(QueueInUse, match="in doubt"):
        delete(core, "orders", force=True)


def _secured(*permissions: str) -> Settings:
    granted = {one: frozenset({"ops"}) for one in permissions}
    everybody = {
        one: frozenset({"ops"})
        for one in ("send", "consume", "createAddress", "createDurableQueue")
    }
    return replace(
        SETTINGS,
        security_enabled=True,
        security_settings=(SecuritySetting("#", everybody | granted),),
    )


def test_a_deleted_queue_counts_for_its_user_no_more() -> None:
    """Who had as many as may be can have another."""
    needed = ("manage", "deleteDurableQueue", "deleteAddress")
    core = CoreUnderTest(
        replace(_secured(*needed), stomp_limits=ClientLimits(max_queues_per_user=1))
    )
    who = Principal("ada", frozenset({"ops"}))

    def send(name: str) -> None:
        core.broker.send(who, f"/queue/{name}", message("a"), None)

    send("a")
    with pytest.raises(BrokerError):
        send("b")
    delete(core, "a", force=True, who=who)
    send("b")


def test_nobody_makes_a_queue_of_the_management_address() -> None:
    """What is asked for there would wait in it for ever."""
    core = CoreUnderTest()
    with pytest.raises(DestinationRefused, match="takes management requests"):
        core.send("activemq.management", "a")
