"""What is multiplied by what clients choose is done in steps: turns are counted, not time."""

from collections.abc import Iterator
from functools import partial

import pytest

from orthia.broker.core.errors import DestinationRefused
from orthia.broker.core.identity import Principal
from orthia.broker.core.routing.router import Gate
from orthia.broker.core.sending.recurrence import RecurrenceRefused, next_time
from orthia.broker.core.slices import Steps
from orthia.config.address_settings import RoutingType
from orthia.config.queues import QueueOptions
from orthia.journal.memory import MemoryJournal
from orthia.journal.model.message import Message
from tests.core.support import (
    ANYONE,
    CoreUnderTest,
    FakeConsumer,
    message,
    settings,
)
from tests.core.test_slices import Work, turns
from tests.stomp.support import Client

TOPIC = "/topic/news"


def subscribe(core: CoreUnderTest, name: str, selector: str | None = None) -> None:
    """Make a durable subscription, and leave it."""
    consumer = FakeConsumer()
    who = Principal("client", frozenset(), unrestricted=True, client_id="c")
    core.broker.subscribe(
        who, TOPIC, consumer, prefetch=10, durable=name, selector=selector
    ).close()


def test_one_message_for_many_filters_is_routed_in_steps() -> None:
    """Its sender is read from again when it is with all that want it; others have their turns."""
    core = CoreUnderTest(clock=Work())
    for number in range(50):
        subscribe(core, f"s{number}", f"colour = 'red' OR weight > {number}")
    core.settle()
    sender, other = Client(core), Client(core)
    sender.session.receive(b"SEND\ndestination:/topic/news\ncolour:red\nreceipt:mine\n\n\0")
    assert sender.session.is_waiting
    other.session.receive(b"SEND\ndestination:/queue/other\nreceipt:r\n\n\0")
    core.turn()
    assert other.commands() == ["RECEIPT"]
    assert turns(core) > 1
    core.settle()
    assert sender.commands() == ["RECEIPT"]
    assert sorted(core.broker.depths().values()) == [1] * 51


def test_who_comes_or_goes_while_a_message_is_routed() -> None:
    """Whoever subscribed before gets it, whoever comes amid it does not; nor who is gone."""
    core = CoreUnderTest()
    for number in range(20):
        subscribe(core, f"s{number}", "colour = 'red'")
    core.settle()
    steps = core.broker.send(ANYONE, TOPIC, message("a", headers=b"colour:red\n"), None)
    assert isinstance(steps, Iterator)
    next(steps)
    subscribe(core, "late", "colour = 'red'")
    core.broker.queues()["c.s3"].is_leaving = True
    for _ in steps:
        pass
    core.settle()
    found = core.broker.depths()
    assert found.pop("c.late") == 0
    assert found.pop("c.s3") == 0
    assert set(found.values()) == {1}


def test_a_message_for_a_queue_that_goes_while_it_is_routed_is_refused() -> None:
    """It would have gone nowhere, and its sender would not know."""
    names = [f"q{number}" for number in range(20)]
    core = CoreUnderTest()
    book = core.broker.parts.book
    for name in names:
        book.create_queue(
            name,
            "jobs",
            RoutingType.ANYCAST,
            auto_created=False,
            options=QueueOptions(filter="colour = 'red'"),
        )
    core.settle()
    steps = core.broker.send(ANYONE, "/queue/jobs", message("a", headers=b"colour:red\n"), None)
    assert isinstance(steps, Iterator)
    next(steps)
    for queue in core.broker.queues().values():
        queue.is_leaving = True
    with pytest.raises(DestinationRefused, match="is being deleted"):
        for _ in steps:
            pass


def test_nothing_of_a_message_is_delivered_before_it_is_in_all_of_its_queues() -> None:
    """However many there are; and what is sent behind it comes behind it."""
    core = CoreUnderTest(clock=Work())
    consumers: list[FakeConsumer] = []
    for number in range(200):
        consumer = FakeConsumer()
        who = Principal("client", frozenset(), unrestricted=True, client_id="c")
        consumer.subscription = core.broker.subscribe(
            who, TOPIC, consumer, prefetch=10, durable=f"s{number}"
        )
        consumer.subscription.resume()
        consumers.append(consumer)
    core.settle()
    core.broker.send(ANYONE, TOPIC, message("a"), None)
    core.broker.send(ANYONE, TOPIC, message("b"), None)
    core.journal.run_posted()
    seen: list[int] = []
    while not core.broker.slices.is_idle:
        core.turn()
        if any(one.texts for one in consumers):
            seen.append(min(core.broker.depths().values()))
    assert seen
    assert min(seen) >= 1
    assert all(one.texts == ["a", "b"] for one in consumers)


def test_a_batch_of_many_messages_is_completed_in_steps_and_in_order() -> None:
    """Each may be matched with many selectors, and delivered to many consumers."""
    core = CoreUnderTest(clock=Work(), journal=MemoryJournal(auto_commit=False))
    consumer = core.consume("/queue/orders", auto=True)
    done: list[int] = []
    for number in range(500):
        core.broker.send(
            ANYONE, "/queue/orders", message(str(number)), partial(done.append, number)
        )
    core.journal.commit()
    core.journal.run_posted()
    assert len(done) < 500
    assert turns(core) > 1
    assert done == list(range(500))
    assert consumer.texts == [str(number) for number in range(500)]


def test_what_is_due_for_many_is_moved_in_steps() -> None:
    """One message after the other, and others have their turns meanwhile."""
    now = [1_000_000]
    core = CoreUnderTest(clock=Work(), time_ms=lambda: now[0])
    core.journal.store.clock_ms = lambda: now[0]
    core.broker.start_schedule()
    for number in range(100):
        subscribe(core, f"s{number}", f"a > {number} OR b = '1'")
    core.settle()
    client = Client(core)
    frame = b"SEND\ndestination:/topic/news\nb:1\nAMQ_SCHEDULED_TIME:1010000\n\nx\0"
    client.session.receive(5 * frame)
    core.settle()
    now[0] += 20_000
    core.now += 20
    count = 0
    while core._timers[0][0] <= core.now:
        core.turn()
        count += 1
        if not core._timers:
            break
    assert count > 20
    found = core.broker.depths()
    assert {depth for name, depth in found.items() if name.startswith("c.")} == {5}


def test_a_session_that_fails_is_ended_alone(caplog: pytest.LogCaptureFixture) -> None:
    """It is told, the log has the traceback, and everybody else goes on."""
    core = CoreUnderTest()
    client, other = Client(core), Client(core)

    def failing(*_: object) -> Steps:
        yield False
        raise ValueError("of this client alone")

    client.session._transitions["SEND"] = (failing, client.session.state)
    client.session.receive(b"SEND\ndestination:/queue/orders\n\n\0")
    assert client.commands() == ["ERROR"]
    assert client.session.is_closed
    assert "of this client alone" in caplog.text
    other.session.receive(b"SEND\ndestination:/queue/orders\nreceipt:r\n\n\0")
    core.settle()
    assert other.commands() == ["RECEIPT"]


@pytest.mark.parametrize(
    ("pattern", "problem"),
    [
        ("*/" + "9" * 5_000 + " * * * *", "may have 256"),
        ("x * * * *", "cannot be read"),
        ("0 * * * * *", "has 6 fields"),
        ("0 0 30 2 *", "cannot be read"),
    ],
)
def test_a_cron_pattern_is_bounded(pattern: str, problem: str) -> None:
    """To read one never takes long, nor raises anything else."""
    with pytest.raises(RecurrenceRefused, match=problem):
        next_time(pattern, 0)


def test_what_expires_asks_only_the_queue_of_its_own_address() -> None:
    """There may be thousands of such queues at the expiry address."""
    own = settings(auto_create_expiry_resources=True, expiry_address="EXPIRED")
    now = [1_000_000]
    core = CoreUnderTest(own, time_ms=lambda: now[0])
    for number in range(20):
        core.send(f"/queue/q{number}", "x", expires_ms=1_000_100)
    now[0] += 1_000
    for number in range(20):
        core.consume(f"/queue/q{number}")
    core.settle()
    address = core.broker.parts.book.address("EXPIRED")
    asked: list[Message] = []

    def counted(gate: Gate) -> Gate:
        def asks(record: Message, principal: Principal) -> bool:
            asked.append(record)
            return gate(record, principal)

        return asks

    for queue, gate in list(address.gates.items()):
        address.gates[queue] = counted(gate)
    core.send("/queue/q3", "y", expires_ms=1)
    core.consume("/queue/q3")
    core.settle()
    assert core.broker.depths()["EXP.q3"] == 2
    assert len(asked) == 1


def test_batches_that_come_in_the_last_turn_of_those_before_are_completed_once() -> None:
    """One after the other, by one task: a second one would leave out what the first is at."""
    journal = MemoryJournal(auto_commit=False)
    tasks: list[Iterator[bool]] = []
    journal.complete_in_steps(tasks.append)
    told: list[int] = []

    def store(first: int, count: int) -> None:
        for number in range(first, first + count):
            journal.append_message(1, b"\1", partial(told.append, number), None)
        journal.commit()
        journal.run_posted()

    store(0, 100)
    while len(told) < 100:
        next(tasks[0])
    for first in (100, 200, 300):
        store(first, 100)
    while tasks:
        for task in list(tasks):
            if next(task, None) is None:
                tasks.remove(task)
    assert told == list(range(400))
