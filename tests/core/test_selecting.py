"""Consumers with selectors: each gets what it wants, wherever that is, and nobody waits for it."""

import itertools
import tracemalloc
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest

from orthia.broker.core.api import MessageReference
from orthia.broker.core.limits.memory import LENT_WINDOW_BYTES, MemoryBudget
from orthia.broker.core.queue import refill as window_module
from orthia.broker.core.queue.cursor import Cursor
from orthia.broker.core.queue.levels import Level
from orthia.broker.core.queue.pace import AT_ONCE
from orthia.broker.core.queue.selecting import (
    CHARACTERS_AT_COST,
    MATCH_COST,
    OPERATIONS_AT_COST,
)
from orthia.broker.core.queue.views import PriorityLane, ScanPosition
from orthia.broker.core.selectors import Selector, SelectorRefused
from orthia.broker.core.selectors import properties as properties_module
from orthia.broker.core.selectors.selector import MAX_LENGTH
from orthia.broker.core.upkeep import backlog
from orthia.config.errors import OrthiaError
from orthia.journal.errors import JournalError
from orthia.journal.model.fields import Property
from orthia.journal.model.message import Message
from tests.core.support import ANYONE, SETTINGS, CoreUnderTest, FakeConsumer, settings

QUEUE = "/queue/orders"
IN_MEMORY = SETTINGS
PAGED = settings(max_size_messages=3)
BOTH = pytest.mark.parametrize("options", [IN_MEMORY, PAGED], ids=["in-memory", "paged"])


@pytest.fixture(autouse=True)
def small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have every backlog be of many windows."""
    monkeypatch.setattr(window_module, "WINDOW_MESSAGES", 4)


def colours(core: CoreUnderTest, *numbered: str) -> None:
    """Send messages, each of the colour that its name begins with."""
    for text in numbered:
        core.send(QUEUE, text, headers=f"colour:{text.rstrip('0123456789')}\n".encode())


@BOTH
def test_a_consumer_gets_what_its_selector_matches_in_order(options) -> None:  # type: ignore[no-untyped-def]
    """And the rest stays, for whoever wants it."""
    core = CoreUnderTest(options)
    colours(core, *(f"{'red' if n % 5 == 0 else 'blue'}{n}" for n in range(30)))
    red = core.consume(QUEUE, selector="colour = 'red'")
    assert red.texts == ["red0", "red5", "red10", "red15", "red20", "red25"]
    assert core.broker.depths()["orders"] == 30
    red.acknowledge(*red.texts)
    core.settle()
    assert core.broker.depths()["orders"] == 24
    assert core.consume(QUEUE).texts == [f"blue{n}" for n in range(30) if n % 5]


def test_one_message_far_down_a_backlog_comes_in_bounded_memory() -> None:
    """While another consumer gets the rest in order, as it asks for it."""
    core = CoreUnderTest(PAGED)
    colours(core, *(f"blue{n}" for n in range(400)), "red400", "blue401")
    most = 0

    def look() -> None:
        nonlocal most
        most = max(most, core.memory_used)

    core.journal.register_batch_listener(lambda _: look())
    red = core.consume(QUEUE, selector="colour = 'red'", prefetch=1)
    assert red.texts == ["red400"]
    assert core.memory_used < 20 * 1_000
    blue = core.consume(QUEUE, prefetch=1)
    for number in range(30):
        assert blue.texts[-1] == f"blue{number}"
        blue.acknowledge(f"blue{number}")
        core.settle()
        look()
    assert most < 20 * 1_000


SMALL = replace(SETTINGS, global_max_size=300_000)
BODY = "x" * 1_000


class Windows:
    """How many bytes each window that a queue reads may have."""

    def __init__(self, core: CoreUnderTest, monkeypatch: pytest.MonkeyPatch) -> None:
        """Have windows be as large as those of a node are."""
        monkeypatch.setattr(window_module, "WINDOW_MESSAGES", 1_000)
        self.asked: list[int] = []
        self.error: OrthiaError | None = None
        """What is answered in place of a window that is lent."""
        self._read: Callable[..., None] = core.journal.read_window
        monkeypatch.setattr(core.journal, "read_window", self._counted)

    def _counted(self, *asked: Any) -> None:
        self.asked.append(asked[4])
        *others, done = asked
        if self.error is not None and asked[4] == LENT_WINDOW_BYTES:
            error = self.error
            self._read(*others, lambda _: done(error))
        else:
            self._read(*asked)


def test_a_queue_that_fills_memory_is_not_read_in_little_pieces(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """For a selector that few of its messages match; nor are those of the next queues."""
    core = CoreUnderTest(SMALL)
    queues = [f"/queue/{number}" for number in range(4)]
    for queue in queues:
        for number in range(2_000):
            core.send(queue, f"{number}-{BODY}", headers=b"colour:blue\n")
        core.send(queue, "needle", headers=b"colour:red\n")
    windows = Windows(core, monkeypatch)
    for queue in queues:
        windows.asked.clear()
        consumer = core.consume(queue, selector="colour = 'red'")
        assert consumer.texts == ["needle"]
        # 2 MB: forty pieces of 64 KiB.
        assert len(windows.asked) < 8
        assert set(windows.asked) <= {window_module.MIN_WINDOW_BYTES, LENT_WINDOW_BYTES}
        assert core.memory_used <= SMALL.global_max_size + 2_000


def test_of_a_window_that_is_lent_little_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """However much of it is wanted, and what was not kept is read again, in order."""
    core = CoreUnderTest(SMALL)
    for number in range(800):
        core.send(QUEUE, f"{number}-{BODY}", headers=b"colour:blue\n")
    red = [f"red{number}-{BODY}" for number in range(400)]
    for text in red:
        core.send(QUEUE, text, headers=b"colour:red\n")
    windows = Windows(core, monkeypatch)
    consumer = core.consume(QUEUE, selector="colour = 'red'", prefetch=1)
    assert LENT_WINDOW_BYTES in windows.asked
    assert core.memory_used <= SMALL.global_max_size + 2 * window_module.MIN_WINDOW_BYTES
    for text in red:
        assert consumer.texts[-1] == text
        consumer.acknowledge(text)
        core.settle()
    assert consumer.texts == red


def test_a_window_that_was_lent_and_could_not_be_read_comes_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """However often, the next one is lent all the same."""
    core = CoreUnderTest(SMALL)
    for number in range(2_000):
        core.send(QUEUE, f"{number}-{BODY}", headers=b"colour:blue\n")
    core.send(QUEUE, "needle", headers=b"colour:red\n")
    windows = Windows(core, monkeypatch)
    windows.error = JournalError("as if the database were away")
    consumer = core.consume(QUEUE, selector="colour = 'red'")
    for _ in range(5):
        core.pass_time(1.0)
        core.settle()
    assert windows.asked.count(LENT_WINDOW_BYTES) >= 5
    windows.error = None
    windows.asked.clear()
    core.pass_time(1.0)
    core.settle()
    assert consumer.texts == ["needle"]
    assert len(windows.asked) < 8


def test_equal_selectors_read_once() -> None:
    """A cursor for each selector, and not for each consumer; and views that go together share."""
    core = CoreUnderTest(PAGED)
    colours(core, *(f"blue{n}" for n in range(80)))
    asked = 0
    read_window = core.journal.read_window

    def counted(*arguments, **options) -> None:  # type: ignore[no-untyped-def]
        nonlocal asked
        asked += 1
        read_window(*arguments, **options)

    core.journal.read_window = counted  # type: ignore[method-assign]
    core.consume(QUEUE, selector="colour = 'red'")
    alone, asked = asked, 0
    for _ in range(5):
        core.consume(QUEUE, selector="colour = 'red'")
    assert asked == 0
    assert alone >= 80 / 4


def test_a_selector_that_cannot_be_read_is_refused() -> None:
    """With its column; nothing is attached."""
    core = CoreUnderTest()
    with pytest.raises(SelectorRefused, match="at column 10"):
        core.consume(QUEUE, selector="colour = = 'red'")
    assert "orders" not in core.broker.queues()


def test_a_topics_subscriber_gets_what_its_selector_matches() -> None:
    """As it is published."""
    core = CoreUnderTest()
    red = core.consume("/topic/news", selector="colour = 'red'")
    everything = core.consume("/topic/news")
    core.send("/topic/news", "red", headers=b"colour:red\n")
    core.send("/topic/news", "blue", headers=b"colour:blue\n")
    assert red.texts == ["red"]
    assert everything.texts == ["red", "blue"]


@pytest.mark.parametrize("selector", ["colour = 'red'", None])
def test_what_is_shed_while_a_window_is_matched_is_read_again(
    selector: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In its place: neither a view nor the queue takes for looked at what was forgotten."""
    monkeypatch.setattr(window_module, "WINDOW_MESSAGES", 100)
    ticks = itertools.count()
    core = CoreUnderTest(PAGED, clock=lambda: float(next(ticks)))  # each step is a turn
    names = [f"red{n}" for n in range(90)]
    colours(core, *names)
    other = core.consume(QUEUE, selector="colour = 'blue'")
    consumer = FakeConsumer()
    consumer.subscription = core.broker.subscribe(
        ANYONE, QUEUE, consumer, prefetch=1_000, selector=selector
    )
    consumer.end.resume()
    core.journal.run_posted()
    consumer.is_writable = False  # the first messages of a window are looked at
    core.broker.queues()["orders"].shed(1_000_000)
    core.turn()
    consumer.is_writable = True
    consumer.end.resume()
    core.settle()
    assert consumer.texts == names
    assert not other.texts


def test_a_head_is_parsed_once_whoever_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundred selectors would parse each message a hundred times."""
    parsed: list[str] = []

    def properties(message: Message) -> Mapping[str, Property]:
        parsed.append(message.body.decode())
        return parse(message)

    parse = properties_module._properties
    monkeypatch.setattr(properties_module, "_properties", properties)
    monkeypatch.setattr(properties_module, "_PARSED", properties_module.Parsed())
    core = CoreUnderTest(IN_MEMORY)
    wanted = [f"colour{letter}" for letter in "abcdefghij"]
    consumers = [core.consume(QUEUE, selector=f"colour = '{one}'") for one in wanted]
    colours(core, *(f"{one}{number}" for number in range(5) for one in wanted))
    for one, consumer in zip(wanted, consumers, strict=True):
        assert consumer.texts == [f"{one}{number}" for number in range(5)]
    assert sorted(parsed) == [f"{one}0" for one in wanted]  # whose heads are those of the others


@pytest.mark.parametrize("length", [1, 100, 60_000])
def test_heads_that_were_parsed_are_kept_in_little_memory(length: int) -> None:
    """However long they are, and whatever comes."""
    parsed = properties_module.Parsed()
    tracemalloc.start()
    try:
        for number in range(3_000 if length < 1_000 else 30):
            message = Message("orders", b"x:%d%0*d\n" % (number, length, 0), b"", 0, 0, 4)
            assert str(parsed.properties(message)["x"]).startswith(str(number))
        assert tracemalloc.get_traced_memory()[0] < 1024 * 1024
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("again", [[0], [40, 3, 20, 60]], ids=["one", "some"])
def test_what_is_rejected_again_costs_no_look_at_all_that_was_given_back(
    again: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """For consumers that want none of it; who wants it gets it in order."""
    core = CoreUnderTest(settings(max_delivery_attempts=-1))
    names = [f"red{n}" for n in range(400)]
    colours(core, *names)
    held = core.consume(QUEUE)
    core.consume(QUEUE, selector="colour = 'blue'")
    held.end.close()
    core.settle()
    red = core.consume(QUEUE, selector="colour = 'red'", prefetch=100)
    matched: list[str] = []

    def accepts(selector: Selector, asked: properties_module.MessageProperties) -> bool:
        matched.append(selector.text)
        return bool(accept(selector, asked))

    accept = Selector.accepts
    monkeypatch.setattr(Selector, "accepts", accepts)
    for _ in range(20):
        rejected = red.take(*[names[number] for number in again])
        red.received.clear()
        red.end.reject(rejected, None)
        core.settle()
        assert red.texts == [names[number] for number in sorted(again)]
    assert matched.count("colour = 'blue'") <= 20 * len(again)


def test_who_wants_all_goes_on_when_the_last_selector_has_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also if that is found out by a commit, amid the counting of what an earlier node left."""
    monkeypatch.setattr(backlog, "COUNT_STEP", 4)
    core = CoreUnderTest()
    colours(core, *(f"{'red' if n == 3 else 'blue'}{n}" for n in range(8)))
    successor = core.takeover()
    answers: list[Callable[[], None]] = []
    count = successor.journal.count

    def counted(after: Any, up_to: int, step: int, done: Any) -> None:
        count(after, up_to, step, lambda counts: answers.append(lambda: done(counts)))

    monkeypatch.setattr(successor.journal, "count", counted)
    red = successor.consume(QUEUE, selector="colour = 'red'")
    every = successor.consume(QUEUE, prefetch=1)
    successor.counted()
    answers.pop(0)()  # four are counted, and the others are being counted
    successor.settle()
    assert (red.texts, every.texts) == (["red3"], ["blue0"])
    successor.journal.auto_commit = False
    red.acknowledge("red3")
    red.end.close()
    for number in range(3):
        every.acknowledge(f"blue{number}")
        successor.settle()
    successor.journal.commit()
    successor.settle()
    successor.journal.auto_commit = True
    while answers:
        answers.pop(0)()
        successor.settle()
    successor.pass_time(1)
    assert every.texts == ["blue0", "blue1", "blue2", "blue4"]


class Counted(list[int]):
    """Counts how often one of it is looked at."""

    looked = 0

    def __getitem__(self, place: Any) -> Any:
        self.looked += 1
        return super().__getitem__(place)

    def __iter__(self) -> Iterator[int]:
        self.looked += len(self)
        return super().__iter__()


@pytest.mark.parametrize("looked_to", [-1, 5, 500, 9_999])
def test_what_was_given_back_costs_each_selector_little(looked_to: int) -> None:
    """However much comes back at once: there may be many selectors, and nobody has the loop."""
    look = ScanPosition(PriorityLane(Level(1, 4, Cursor())), MemoryBudget(1 << 20))
    plain = Message("orders", b"", b"", 0, 0, 4)
    for seq in range(10_000):
        look.lane.returned.add(MessageReference(seq, plain, None, 1, redelivered=False))
    look.returned_to = looked_to
    back = Counted(range(10_000))
    look.came_back(back)
    assert back.looked < 30
    first = look.first_again()
    seen = [look.returned_to + 1] if first is None else [first.seq]
    assert min(seen) == 0


def test_a_turn_has_work_for_the_dearest_messages() -> None:
    """One that came back and one behind it are matched anew in each: it must get past both."""
    most_operations = MAX_LENGTH // 2  # each is a sign and a name of one letter
    dearest = MATCH_COST + (
        properties_module.MOST_CHARACTERS // CHARACTERS_AT_COST
        + most_operations // OPERATIONS_AT_COST
    )
    assert 2 * dearest < AT_ONCE * MATCH_COST
