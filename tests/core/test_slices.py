"""Long work leaves the loop to others, and nobody sees half of it: turns are counted, not time."""

import itertools
from collections.abc import Callable, Iterator

import pytest

from orthia.broker.core.api import MessageReference, TransactionWork
from orthia.broker.core.queue.queue import Queue
from orthia.broker.core.queue.taken import ExpiryLook
from orthia.broker.core.slices import (
    GO_ON,
    LIGHT_OF_MANY_SECONDS,
    REST,
    SLICE_SECONDS,
    USAGE_SECONDS,
    Slices,
    Steps,
    Usage,
    Wait,
)
from tests.core.support import ANYONE, CoreUnderTest, FakeConsumer, fan_out, message, settings
from tests.stomp.support import Client

QUEUE = "/queue/orders"
TOPIC = "/topic/news"


class Work:
    """A clock that moves on by a slice's tenth with each look: work takes turns."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        """Return the time, later each time."""
        self.now += SLICE_SECONDS / 10
        return self.now


def turns(core: CoreUnderTest) -> int:
    """Go on with what is under way, and return how many turns of the loop that took."""
    count = 0
    while not core.broker.slices.is_idle:
        core.turn()
        count += 1
    return count


def test_work_goes_on_in_turn() -> None:
    """None waits for the end of another, and what waits for something costs one look a turn."""
    calls: list[str] = []
    due: list[object] = []
    slices = Slices(due.append, Work())

    def steps(name: str, *, rests: bool) -> Steps:
        for _ in range(30):
            calls.append(name)
            yield REST if rests else GO_ON

    slices.later(steps("a", rests=False))
    slices.later(steps("b", rests=False))
    slices.later(steps("idle", rests=True))
    seen = []
    while due:
        calls.clear()
        due.pop()()  # type: ignore[operator]
        seen.append((calls.count("a"), calls.count("b"), calls.count("idle")))
    assert all(sum(one) <= 12 and one[2] <= 1 for one in seen)
    assert [sum(column) for column in zip(*seen, strict=True)] == [30, 30, 30]


def test_long_work_goes_on_however_much_is_new() -> None:
    """In each turn of the loop, though new work alone would fill them all."""
    done = 0
    due: list[Callable[[], None]] = []
    slices = Slices(due.append, Work())

    def long() -> Steps:
        nonlocal done
        while True:
            done += 1
            yield GO_ON

    slices.later(long())
    due.pop()()
    for _ in range(20):
        for _ in range(20):
            slices.later(iter([GO_ON]))
        before = done
        due.pop()()
        assert done > before


def test_all_work_of_one_turn_of_the_loop_shares_its_time() -> None:
    """Many clients whose bytes come in the same turn have one slice, not one each."""
    work = Work()
    due: list[Callable[[], None]] = []
    slices = Slices(due.append, work)

    def steps() -> Steps:
        for _ in range(100):
            yield GO_ON

    for _ in range(50):
        slices.run(steps())
    assert work.now < 2 * SLICE_SECONDS
    began = work.now
    due.pop()()
    assert work.now - began < 2 * SLICE_SECONDS


def test_short_work_is_done_before_long_work_goes_on() -> None:
    """However much long work is under way, which goes on all the same."""
    due: list[Callable[[], None]] = []
    slices = Slices(due.append, Work())
    done: list[int] = []
    went_on = 0

    def long() -> Steps:
        nonlocal went_on
        while True:
            went_on += 1
            yield GO_ON

    def short(number: int) -> Steps:
        done.append(number)
        yield GO_ON

    for _ in range(200):
        slices.later(long())
    while went_on < 1_000:
        due.pop()()
    before = went_on
    for number in range(3):
        slices.later(short(number))
    turns = 0
    while len(done) < 3:
        due.pop()()
        turns += 1
    assert turns <= 3
    assert done == [0, 1, 2]
    assert went_on > before


def test_who_had_little_time_waits_for_nobody_who_had_much() -> None:
    """A client that sends one frame does not wait for one of each that always has another."""
    work = Work()
    due: list[Callable[[], None]] = []
    slices = Slices(due.append, work)
    done: list[str] = []

    def frame(name: str, steps: int = 8) -> Steps:
        for _ in range(steps):
            yield GO_ON
        done.append(name)

    busy = [Usage() for _ in range(64)]
    for usage in busy:
        slices.later(frame("first"), usage)
    while due:
        due.pop()()
    done.clear()
    assert not any(usage.is_light(work.now) for usage in busy)
    for usage in busy:
        slices.later(frame("next"), usage)
    slices.later(frame("only", 2), Usage())
    turns = 0
    while "only" not in done:
        due.pop()()
        turns += 1
    assert turns <= 5
    while due:
        due.pop()()
    assert len(done) == 65
    work.now += 2 * USAGE_SECONDS
    assert busy[0].is_light(work.now)


def test_who_is_alone_does_not_wait_for_all_clients_of_another_account() -> None:
    """However many they are, and though each of them had as little time as the one."""
    work = Work()
    due: list[Callable[[], None]] = []
    slices = Slices(due.append, work)
    done: list[str] = []

    def frame(name: str) -> Steps:
        for _ in range(2):
            yield GO_ON
        done.append(name)

    many = Usage(light_seconds=LIGHT_OF_MANY_SECONDS)
    for _ in range(3_000):
        slices.later(frame("many"), Usage(many))
    slices.later(frame("alone"), Usage(Usage(light_seconds=LIGHT_OF_MANY_SECONDS)))
    began = work.now
    while "alone" not in done:
        due.pop()()
    assert work.now - began < 2 * LIGHT_OF_MANY_SECONDS
    for _ in range(100):
        slices.later(frame("many"), Usage(many))
    slices.later(frame("again"), Usage())
    turns = 0
    while "again" not in done:
        due.pop()()
        turns += 1
    assert turns <= 2
    while due:
        due.pop()()
    assert len(done) == 3_102


def test_what_nobody_waits_for_is_done_behind_what_is_new() -> None:
    """All clients may be lost at once: who sends a frame then does not wait for their ends."""
    due: list[Callable[[], None]] = []
    slices = Slices(due.append, Work())
    done: list[str] = []

    def step(name: str) -> Steps:
        done.append(name)
        yield GO_ON

    for _ in range(1_000):
        slices.run_last(step("end"))
    slices.later(step("frame"))
    while "frame" not in done:
        due.pop()()
    assert len(done) < 50
    while due:
        due.pop()()
    assert len(done) == 1_001


def test_what_ends_the_work_of_others_comes_before_it() -> None:
    """However much is under way, which goes on in each turn all the same."""
    due: list[Callable[[], None]] = []
    slices = Slices(due.append, Work())
    went_on = 0
    ended: list[int] = []

    def long() -> Steps:
        nonlocal went_on
        while True:
            went_on += 1
            yield GO_ON

    def ending(number: int) -> Iterator[bool]:
        for _ in range(20):
            ended.append(number)
            yield GO_ON

    for _ in range(200):
        slices.later(long())
    while went_on < 1_000:
        due.pop()()
    for number in range(2):
        slices.end(ending(number))
    turns = 0
    while len(ended) < 40:
        before = went_on
        due.pop()()
        turns += 1
        assert went_on > before
    assert turns <= 10
    assert ended == [0] * 20 + [1] * 20


def test_ending_work_leaves_time_to_others_however_long_its_steps_take() -> None:
    """A step of many deliveries takes more than there is for all."""
    calls: list[str] = []
    due: list[Callable[[], None]] = []
    work = Work()
    slices = Slices(due.append, work)

    def steps(name: str, seconds: float) -> Iterator[bool]:
        for _ in range(5):
            calls.append(name)
            work.now += seconds
            yield GO_ON

    slices.later(steps("other", 0.0))
    slices.end(steps("ends", 2 * SLICE_SECONDS))
    for turn in range(3):
        due.pop(0)()
        assert calls.count("other") > turn
    while due:
        due.pop(0)()
    assert calls.count("ends") == calls.count("other") == 5


def test_work_that_fails_does_not_take_others_with_it() -> None:
    """The loop is told what it raised; the rest has its turns."""
    due: list[object] = []
    slices = Slices(due.append, Work())
    done: list[str] = []

    def failing() -> Steps:
        yield GO_ON
        raise ValueError("of this work alone")

    def going_on() -> Steps:
        yield GO_ON
        done.append("all")

    for steps in (failing(), going_on()):
        slices.later(steps)
    with pytest.raises(ValueError, match="of this work alone"):
        due.pop()()  # type: ignore[operator]
    while due:
        due.pop()()  # type: ignore[operator]
    assert done == ["all"]
    assert slices.is_idle


def test_work_that_is_begun_in_a_slice_ends_with_it() -> None:
    """However much is begun so: sockets are looked at when the slice is over."""
    work = Work()
    due: list[object] = []
    slices = Slices(due.append, work)

    def inner() -> Steps:
        for _ in range(100):
            yield GO_ON

    def outer() -> Steps:
        for _ in range(5):
            slices.run(inner())
        yield GO_ON

    slices.run(outer())
    assert work.now < 2 * SLICE_SECONDS


def test_a_fan_out_takes_turns_and_keeps_the_order() -> None:
    """All subscribers get all messages in one order; who comes meanwhile gets none of before."""
    core = CoreUnderTest(clock=Work())
    subscribers = [core.consume(TOPIC, auto=True) for _ in range(1_000)]
    behind = fan_out(core.broker.send(ANYONE, TOPIC, message("a"), None))
    assert not subscribers[-1].received
    late = core.consume(TOPIC, auto=True)
    next_one = fan_out(core.broker.send(ANYONE, TOPIC, message("b"), None))
    was_behind = next_one.is_behind
    turns(core)
    assert (was_behind, next_one.is_behind, behind.is_behind) == (True, False, False)
    assert all(one.texts == ["a", "b"] for one in subscribers)
    assert late.texts in ([], ["b"])


def test_who_subscribes_while_a_message_waits_for_its_turn_gets_none_of_it() -> None:
    """It was sent before."""
    core = CoreUnderTest(clock=Work())
    for _ in range(1_000):
        core.consume(TOPIC, auto=True)
    for text in ("a", "b"):
        core.broker.send(ANYONE, TOPIC, message(text), None)
    late = FakeConsumer(auto=True)
    late.subscription = core.broker.subscribe(ANYONE, TOPIC, late, prefetch=10)
    assert turns(core) > 1
    assert late.texts == []


def test_a_fan_out_is_linear() -> None:
    """Four times the subscribers take four times the turns."""

    def taken(subscribers: int) -> int:
        core = CoreUnderTest(clock=Work())
        for _ in range(subscribers):
            core.consume(TOPIC, auto=True)
        core.broker.send(ANYONE, TOPIC, message("a"), None)
        return turns(core)

    few, many = taken(2_000), taken(8_000)
    assert 3 * few < many < 5 * few


def test_a_sender_waits_for_the_topic_and_others_do_not() -> None:
    """What is on its way to subscribers is bounded by who sends; a queue's sender goes on."""
    core = CoreUnderTest(clock=Work())
    for _ in range(1_000):
        core.consume(TOPIC, auto=True)
    sender, other = Client(core), Client(core)
    sender.session.receive(b"SEND\ndestination:/topic/news\nreceipt:r\n\n\0" * 10)
    waited = [sender.session.is_waiting]
    assert sender.session.sent > 0
    other.session.receive(b"SEND\ndestination:/queue/orders\nreceipt:mine\n\n\0")
    core.turn()
    assert other.read().get(b"receipt-id") == "mine"
    waited.append(sender.session.is_waiting)
    turns(core)
    assert sender.commands() == ["RECEIPT"] * 10
    waited.append(sender.session.is_waiting)
    assert waited == [True, True, False]
    assert sender.session.sent == 0


def test_a_sender_waits_for_what_was_sent_before_and_not_for_what_comes_after() -> None:
    """One who sends to a topic all the time holds up no other sender, and no COMMIT, to it."""
    core = CoreUnderTest(clock=Work())
    for _ in range(500):
        core.consume(TOPIC, auto=True)
    busy, sender, committer = Client(core), Client(core), Client(core)
    committer.send("BEGIN", transaction="t")
    committer.send("SEND", "c", destination=TOPIC, transaction="t")
    busy.session.receive(b"SEND\ndestination:/topic/news\nreceipt:r\n\n\0" * 100)
    sender.session.receive(
        b"SEND\ndestination:/topic/news\n\n\0SEND\ndestination:/queue/orders\nreceipt:s\n\n\0"
    )
    committer.session.receive(b"COMMIT\ntransaction:t\nreceipt:c\n\n\0")
    answered: list[str | None] = []
    while not core.broker.slices.is_idle:
        core.turn()
        core.journal.run_posted()
        for one in (busy, sender, committer):
            answered += [frame.get(b"receipt-id") for frame in one.frames()]
    assert answered.count("r") == 100
    assert max(answered.index("s"), answered.index("c")) < 10


def test_subscribers_share_a_message_and_its_frame() -> None:
    """What waits for a thousand subscriptions is one message."""
    core = CoreUnderTest()
    slow = [core.consume(TOPIC, prefetch=1) for _ in range(1_000)]
    core.send(TOPIC, *["x" * 1_000] * 5)
    assert all(len(one.received) == 1 for one in slow)
    assert core.broker.parts.factory.topic_memory.used < 5 * 2_000
    first, last = slow[0].received[0], slow[-1].received[0]
    assert first.record is last.record
    assert first.shared is last.shared


def test_what_is_not_acknowledged_keeps_no_frame() -> None:
    """It would be held beside the message, and counted for nobody."""
    core = CoreUnderTest()
    clients = [Client(core) for _ in range(3)]
    for client in clients:
        client.send("SUBSCRIBE", id="0", destination=TOPIC, ack="client")
    core.send(TOPIC, "x" * 1_000)
    assert [client.commands() for client in clients] == [["MESSAGE"]] * 3
    kept = [
        reference
        for client in clients
        for one in client.session.subscriptions.all()
        for reference in one.unacknowledged.values()
    ]
    assert [reference.shared for reference in kept] == [None] * 3


def test_a_message_that_waits_for_one_subscriber_alone_keeps_no_frame() -> None:
    """Its frame was for those who were given it at the same time."""
    core = CoreUnderTest()
    slow, quick = core.consume(TOPIC, prefetch=1), core.consume(TOPIC)
    core.send(TOPIC, "a", "b")
    slow.acknowledge("a")
    assert slow.texts == quick.texts == ["a", "b"]
    assert slow.received[1].shared is None


def transaction(core: CoreUnderTest, messages: int) -> Steps:
    """Return a COMMIT of so many messages, which has begun."""
    sends = [(QUEUE, message(str(number))) for number in range(messages)]
    work = TransactionWork(sends)
    steps = core.broker.commit(ANYONE, work, lambda: None)
    next(steps)
    return steps


def test_a_commit_that_is_left_half_ready_has_done_nothing() -> None:
    """Its client is gone, or the node stops: nothing is stored, nothing is to be seen."""
    core = CoreUnderTest()
    consumer = core.consume(QUEUE)
    steps = transaction(core, 200)
    core.settle()
    assert core.stored_texts() == []
    assert consumer.received == []
    del steps
    core.settle()
    assert core.stored_texts() == []
    assert core.broker.store_use.used == 0


def test_a_commit_in_turns_is_stored_whole() -> None:
    """By one unit in the last turn; its RECEIPT and its messages come after that."""
    core = CoreUnderTest(clock=Work())
    client, consumer = Client(core), core.consume(QUEUE)
    client.send("BEGIN", transaction="t")
    for number in range(1_000):
        client.send("SEND", str(number), destination=QUEUE, transaction="t")
    assert consumer.received == []
    client.session.receive(b"COMMIT\ntransaction:t\nreceipt:r\n\n\0")
    count = 0
    while client.session.is_waiting:
        assert core.stored_texts() == []
        assert client.commands() == []
        core.turn()
        count += 1
    assert count > 1
    core.settle()
    assert core.stored_texts() == [str(number) for number in range(1_000)]
    assert client.commands() == ["RECEIPT"]
    assert consumer.texts == core.stored_texts()


def test_what_a_client_had_goes_back_in_turns_and_in_order() -> None:
    """The next one gets none before all are back: the first to come back may not be the oldest."""
    core = CoreUnderTest(clock=Work())
    texts = [str(number) for number in range(3_000)]
    core.send(QUEUE, *texts)
    first = core.consume(QUEUE, prefetch=5_000)
    second = core.consume(QUEUE, prefetch=5_000)
    assert first.texts + second.texts != []
    held = len(second.received)
    first.end.close()
    assert len(second.received) == held
    assert turns(core) > 1
    assert second.texts[held:] == first.texts
    second.end.close()
    turns(core)
    third = core.consume(QUEUE, prefetch=5_000)
    turns(core)
    assert third.texts == texts


class FailingConsumer(FakeConsumer):
    """A consumer that fails at one of its deliveries."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self.at = at

    def deliver(self, reference: MessageReference) -> None:
        """Note a delivery, or fail of it."""
        if len(self.received) == self.at:
            self.at = -1
            raise RuntimeError("a bug")
        super().deliver(reference)


def attach(core: CoreUnderTest, destination: str, consumer: FakeConsumer) -> FakeConsumer:
    """Subscribe, with any number of messages at a time."""
    consumer.subscription = core.broker.subscribe(ANYONE, destination, consumer, prefetch=0)
    return consumer


def test_a_queue_delivers_on_after_an_exception_in_a_later_turn() -> None:
    """Whoever raised it is ended: what it had, and all the others, the next consumer gets."""
    core = CoreUnderTest(clock=Work())
    core.send(QUEUE, *[str(number) for number in range(400)])
    consumer = attach(core, QUEUE, FailingConsumer(at=200))
    consumer.end.resume()
    core.settle()
    assert len(consumer.failures) == 1
    assert len(consumer.received) == 200
    core.send(QUEUE, "new")
    another = core.consume(QUEUE)
    core.pass_time(10)
    assert another.texts[-1] == "new"
    assert len(another.received) == 401


class FailingDisposal:
    """Lets every dead letter stay in its queue, and fails at one of them."""

    look = ExpiryLook()

    def __init__(self, fails: Callable[[MessageReference], bool]) -> None:
        self._fails = fails

    def dead_letter(self, _queue: Queue, reference: MessageReference) -> bool:
        """Fail, or say that it has to stay."""
        if self._fails(reference):
            raise RuntimeError("a bug")
        return False

    def expire(self, _queue: Queue, _reference: MessageReference) -> None:
        """No message expires here."""
        raise AssertionError("nothing expires")


def test_all_that_come_back_are_delivered_again_whatever_failed_with_one_of_them() -> None:
    """They were with nobody until a takeover."""
    core = CoreUnderTest(settings(max_delivery_attempts=1), clock=Work())
    texts = [str(number) for number in range(400)]
    core.send(QUEUE, *texts)
    consumer = core.consume(QUEUE)
    failing = FailingDisposal(lambda one: one.record.body == b"200")
    core.broker.queues()["orders"].disposal = failing
    another = core.consume(QUEUE)
    with pytest.raises(RuntimeError, match="a bug"):
        consumer.end.close(attempted=consumer.received)
    turns(core)
    core.pass_time(10)
    turns(core)
    assert sorted(another.texts, key=int) == texts


@pytest.mark.parametrize("fails", [200, 256, 290])
def test_what_waits_for_many_that_come_back_is_done_whatever_failed_with_one(fails: int) -> None:
    """Once: a client waits to be told."""
    steps = itertools.count()
    core = CoreUnderTest(settings(max_delivery_attempts=1), clock=lambda: float(next(steps)))
    core.send(QUEUE, *[str(number) for number in range(300)])
    consumer = core.consume(QUEUE)
    failing = FailingDisposal(lambda one: one.record.body == str(fails).encode())
    core.broker.queues()["orders"].disposal = failing
    done: list[bool] = []
    consumer.is_writable = False
    consumer.end.reject(consumer.received, lambda: done.append(True))
    with pytest.raises(RuntimeError, match="a bug"):
        core.settle()
    core.settle()
    assert done == [True]


def test_a_topic_goes_on_after_an_exception_in_a_later_turn() -> None:
    """What was published after it is with all subscribers, once, and no sender waits for ever."""
    core = CoreUnderTest(clock=Work())
    hearing = [core.consume(TOPIC, auto=True) for _ in range(400)]
    failing = attach(core, TOPIC, FailingConsumer(at=0))
    later = [core.consume(TOPIC, auto=True) for _ in range(100)]
    core.broker.send(ANYONE, TOPIC, message("a"), None)
    behind = fan_out(core.broker.send(ANYONE, TOPIC, message("b"), None))
    core.settle()
    assert len(failing.failures) == 1
    assert not behind.is_behind
    assert all(one.texts == ["a", "b"] for one in hearing)
    assert all(one.texts[-1] == "b" for one in later)
    core.send(TOPIC, "c")
    assert all(one.texts[-2:] == ["b", "c"] for one in [*hearing, *later])


def test_who_waits_no_more_is_not_woken() -> None:
    """Whoever it waited for is told that it is gone."""
    told: list[Wait] = []
    woken: list[str] = []
    left, stayed = Wait(told.append), Wait(told.append)
    left.then(lambda: woken.append("left"))
    stayed.then(lambda: woken.append("stayed"))
    left.drop()
    left()
    stayed()
    assert (told, woken) == ([left], ["stayed"])
