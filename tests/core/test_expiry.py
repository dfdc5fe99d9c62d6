"""Messages that expire, also where nobody consumes, and when their address says."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from orthia.broker.core.queue import taken
from orthia.broker.core.routing.address_expiry import expires_at
from orthia.broker.protocols.stomp.encoding import headers_map
from orthia.config.address_settings import AddressSettings, DivertSettings
from orthia.config.addresses import ResolvedAddressSettings
from orthia.journal.errors import JournalClosed
from tests.core.support import (
    ANYONE,
    NOON_MS,
    SETTINGS,
    Clock,
    FakeConsumer,
    settings,
)

QUEUE = "/queue/orders"
SCAN_SECONDS = 30


class Node(Clock):
    """A node whose store has the same clock as it."""

    def send(self, *texts: str, after_ms: int = 0, **options: Any) -> None:
        """Send messages that expire so much later."""
        expires_ms = self.ms() + after_ms if after_ms else 0
        self.core.send(QUEUE, *texts, expires_ms=expires_ms, **options)

    def scan(self) -> None:
        """Let time pass until expired messages were looked for."""
        self.pass_ms(1_000 * (SCAN_SECONDS + 1))

    def depths(self) -> tuple[int, int]:
        """Return how many messages the queue and the expiry queue have."""
        depths = self.core.broker.depths()
        return depths.get("orders", 0), depths.get("ExpiryQueue", 0)


@pytest.fixture(params=["in memory", "paged"])
def node(request: pytest.FixtureRequest) -> Node:
    """Give a node that keeps all of a queue in memory, or next to nothing."""
    if request.param == "paged":
        return Node(settings("orders", max_size_messages=1))
    return Node()


def test_what_expires_leaves_a_queue_that_nobody_consumes(node: Node) -> None:
    """It is in the expiry queue after the next look; what does not expire stays, in its order."""
    node.send("a")
    node.send("b", "c", after_ms=1_000)
    node.send("d")
    node.send("e", after_ms=3_600_000)
    node.scan()
    assert node.depths() == (3, 2)
    assert node.core.consume("/queue/ExpiryQueue").texts == ["b", "c"]
    assert node.core.consume(QUEUE, auto=True).texts == ["a", "d", "e"]
    assert node.depths() == (0, 2)
    assert not node.core.journal.store.times


def test_it_says_where_and_what_it_was(node: Node) -> None:
    """Address, queue, message id and when it expired, by Artemis' names."""
    node.send("a", "b", after_ms=1_000)
    expired_ms = NOON_MS + 1_000
    seqs = sorted(node.core.journal.store.messages)
    node.scan()
    received = node.core.consume("/queue/ExpiryQueue").received
    assert [headers_map(one.record.head) for one in received] == [
        {
            "_AMQ_ORIG_ADDRESS": "orders",
            "_AMQ_ORIG_QUEUE": "orders",
            "_AMQ_ORIG_MESSAGE_ID": str(seq),
            "_AMQ_ACTUAL_EXPIRY": str(expired_ms),
        }
        for seq in seqs
    ]
    assert [one.record.expires_ms for one in received] == [0, 0]


def test_many_expire_in_bounded_steps(node: Node) -> None:
    """More than one look of the store finds, all gone after one scan."""
    node.send(*(str(number) for number in range(1_200)), after_ms=1_000)
    node.send("last")
    node.scan()
    assert node.depths() == (1, 1_200)
    assert node.core.consume(QUEUE).texts == ["last"]


def test_a_look_that_the_store_refuses_is_repeated(node: Node) -> None:
    """Nothing is lost, and nothing moved twice."""
    node.send("a", "b", after_ms=1_000)
    node.send("c")
    node.core.journal.auto_commit = False
    node.scan()
    node.core.journal.commit()
    node.core.settle()
    node.core.journal.auto_commit = True
    node.scan()
    assert node.depths() == (1, 2)


NOW_MS = 1_000_000


@pytest.mark.parametrize(
    ("given", "expires_ms", "expected"),
    [
        ({}, 0, 0),
        ({}, NOW_MS + 5, NOW_MS + 5),
        ({"expiry_delay": 100}, 0, NOW_MS + 100),
        ({"expiry_delay": 100}, NOW_MS + 5, NOW_MS + 5),
        ({"expiry_delay": 100, "max_expiry_delay": 50}, 0, NOW_MS + 100),
        ({"max_expiry_delay": 50}, 0, NOW_MS + 50),
        ({"max_expiry_delay": 50}, NOW_MS + 60, NOW_MS + 50),
        ({"max_expiry_delay": 50}, NOW_MS + 40, NOW_MS + 40),
        ({"min_expiry_delay": 20}, NOW_MS + 10, NOW_MS + 20),
        ({"min_expiry_delay": 20}, NOW_MS + 30, NOW_MS + 30),
        ({"min_expiry_delay": 20}, 0, NOW_MS + 20),
        ({"min_expiry_delay": 20, "max_expiry_delay": 50}, 0, NOW_MS + 50),
        ({"min_expiry_delay": 20, "max_expiry_delay": 50}, NOW_MS + 1, NOW_MS + 20),
        ({"no_expiry": True, "expiry_delay": 1}, NOW_MS + 5, 0),
    ],
)
def test_an_address_says_when_as_artemis_does(
    given: dict[str, Any], expires_ms: int, expected: int
) -> None:
    """Each setting, and which of them wins."""
    assert expires_at(ResolvedAddressSettings(**given), expires_ms, NOW_MS) == expected


@pytest.mark.parametrize("setting", ["expiry_delay", "max_expiry_delay", "min_expiry_delay"])
@pytest.mark.parametrize("delay_ms", [2**63 - 1, 2**63 - 1 - NOON_MS, 10**18])
def test_the_longest_delay_is_as_good_as_never(setting: str, delay_ms: int) -> None:
    """A message is stored with it, moved with it, and kept; its header says what a SEND may say."""
    delayed: dict[str, Any] = {setting: delay_ms}
    given = (
        AddressSettings("#", max_delivery_attempts=1, dead_letter_address="dead"),
        AddressSettings("orders", **delayed),
        AddressSettings("dead", **delayed),
    )
    node = Node(replace(SETTINGS, address_settings=given))
    node.send("a")
    node.core.consume(QUEUE).reject("a")
    node.core.settle()
    node.scan()
    assert node.core.broker.depths() == {"orders": 0, "dead": 1}
    (dead,) = node.core.consume("/queue/dead").received
    assert headers_map(dead.record.head)["expires"] == "9" * 18


def test_an_expiry_delay_is_of_its_address_alone() -> None:
    """Messages of others do not expire; the record says when."""
    node = Node(settings("orders", expiry_delay=1_000))
    node.send("a")
    node.core.send("/queue/others", "b")
    node.scan()
    assert node.core.broker.depths() == {"orders": 0, "others": 1, "ExpiryQueue": 1}


def test_dead_letters_expire_as_their_address_says() -> None:
    """As what is sent there, counted from when they came; and so over a takeover."""
    given = (
        AddressSettings("#", max_delivery_attempts=1, dead_letter_address="dead"),
        AddressSettings("dead", expiry_delay=5_000, expiry_address="gone"),
    )
    node = Node(replace(SETTINGS, address_settings=given))
    node.send("a")
    consumer = node.core.consume(QUEUE)
    for _ in range(10):
        node.core.pass_time(1)
    rejected_ms = node.ms()
    consumer.reject("a")
    node.core.settle()
    assert node.core.broker.depths() == {"orders": 0, "dead": 1}
    node.takeover()
    dead = node.core.consume("/queue/dead").received[0].record
    assert dead.expires_ms == rejected_ms + 5_000
    assert headers_map(dead.head)["expires"] == str(dead.expires_ms)
    node.takeover()
    node.scan()
    assert node.core.broker.depths() == {"orders": 0, "dead": 0, "gone": 1}
    assert node.core.consume("/queue/gone").texts == ["a"]


def test_what_has_expired_stays_where_it_would_be_moved_again() -> None:
    """A delay for all addresses is not one for the last of them, which is its own."""
    node = Node(settings(expiry_delay=1_000, expiry_address="gone"))
    node.send("a")
    for _ in range(4):
        node.scan()
    assert node.core.broker.depths() == {"orders": 0, "gone": 1}
    gone = node.core.consume("/queue/gone").received[0].record
    assert gone.expires_ms == 0
    assert headers_map(gone.head)["_AMQ_ORIG_QUEUE"] == "orders"


@pytest.mark.parametrize(
    ("given", "expires_ms", "expected_ms"),
    [
        ({"expiry_delay": 5_000}, 0, NOON_MS + 5_000),
        ({"max_expiry_delay": 5_000}, NOON_MS + 9_000, NOON_MS + 5_000),
        ({"no_expiry": True}, NOON_MS + 9_000, 0),
        ({}, NOON_MS + 9_000, NOON_MS + 9_000),
    ],
)
def test_what_is_diverted_expires_as_its_new_address_says(
    given: dict[str, Any], expires_ms: int, expected_ms: int
) -> None:
    """And not as that of the message, which stays."""
    options = replace(settings("audit", **given), diverts=(DivertSettings("d", "orders", "audit"),))
    node = Node(options)
    node.core.send(QUEUE, "a", expires_ms=expires_ms)
    copy = node.core.consume("/queue/audit").received[0].record
    assert copy.expires_ms == expected_ms
    assert headers_map(copy.head).get("expires", "0") == str(expected_ms)
    assert node.core.consume(QUEUE).received[0].record.expires_ms == expires_ms


def test_what_was_acknowledged_meanwhile_is_not_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    """Though its deletion is long committed when the answer comes that shows it."""
    monkeypatch.setattr(taken, "_SWEEP_AT", 1)
    node = Node(settings("orders", max_size_messages=2))
    core = node.core
    core.consume(QUEUE, selector="colour = 'none'")
    for text in ("blue1", "blue2", "blue3"):
        node.send(text)
    node.send("red4", after_ms=10_000, headers=b"colour:red\n")
    node.send("blue5")
    red = core.consume(QUEUE, selector="colour = 'red'")
    late: list[Callable[[], None]] = []
    read_reached: Callable[..., None] = core.journal.read_reached

    def read_and_answer_later(*asked: Any) -> None:
        *others, done = asked
        read_reached(*others, lambda reached: late.append(lambda: done(reached)))

    monkeypatch.setattr(core.journal, "read_reached", read_and_answer_later)
    node.scan()
    assert len(late) == 1
    red.acknowledge("red4")
    core.settle()
    late.pop()()
    core.settle()
    assert node.depths() == (4, 0)
    queue = core.broker.queues()["orders"]
    assert (queue.use.messages, queue.depth) == (4, 4)
    # What was acknowledged is remembered no longer than that: the plain machine goes on.
    red.end.close()
    assert core.consume(QUEUE).texts == ["blue1", "blue2", "blue3", "blue5"]


def test_one_queue_that_fails_keeps_no_expiry_of_others_back(
    node: Node, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The look goes on, now and in its next period."""
    node.send("a", after_ms=1_000)
    node.core.send("/queue/others", "b", expires_ms=node.ms() + 1_000)
    # Not by a method of the queue: where it is compiled, others call that directly.
    with monkeypatch.context() as patch:
        patch.setattr(node.core.broker.queues()["orders"], "disposal", object())
        node.scan()
    assert node.core.consume("/queue/ExpiryQueue").texts == ["b"]
    assert "taking expired messages out of queue 'orders' failed" in caplog.text
    node.scan()
    assert node.core.consume("/queue/orders").texts == []


def test_a_window_under_way_shows_nothing_again_that_has_expired(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A consumer asks for it while the store looks for what has expired, and is answered later."""
    node.send("a", "b", after_ms=1_000)
    node.takeover()
    consumer = FakeConsumer()
    read_reached = node.core.journal.read_reached

    def read(*asked: Any) -> None:
        read_reached(*asked)
        if consumer.subscription is None:
            consumer.subscription = node.core.broker.subscribe(ANYONE, QUEUE, consumer, prefetch=10)
            consumer.subscription.resume()

    monkeypatch.setattr(node.core.journal, "read_reached", read)
    node.scan()
    assert consumer.subscription is not None
    assert (consumer.texts, node.depths()) == ([], (0, 2))
    assert node.core.broker.queues()["orders"].counters.expired == 2


@pytest.mark.parametrize("is_answered", [False, True])
def test_a_look_that_fails_is_not_the_last(
    node: Node,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    *,
    is_answered: bool,
) -> None:
    """Whether in asking or in what follows the answer: it is said, and there is a next one."""
    node.send("a", after_ms=1_000)

    def fail(*asked: Any) -> None:
        if is_answered:
            asked[-1]("no answer")
        else:
            raise RuntimeError("a bug")

    with monkeypatch.context() as patch:
        patch.setattr(node.core.journal, "read_reached", fail)
        node.scan()
    assert "the scan for expired messages failed; retrying at the next one" in caplog.text
    assert not node.core.broker.queues()["orders"].disposal.look.is_under_way
    node.send("b", after_ms=1_000)
    node.scan()
    assert node.core.consume("/queue/ExpiryQueue").texts == ["a", "b"]
    assert node.depths() == (0, 2)


def test_a_node_that_is_ending_looks_no_more(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its journal is closed: that is no failure of the look."""
    node = Node()
    asked = []

    def closed(*arguments: object) -> None:
        asked.append(arguments)
        raise JournalClosed("closed")

    monkeypatch.setattr(node.core.journal, "read_reached", closed)
    node.scan()
    node.scan()
    assert len(asked) == 1
    assert not caplog.records


def test_whoever_waits_for_a_look_and_fails_keeps_no_other_back(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """They are called all the same."""
    look = taken.ExpiryLook()
    called: list[str] = []

    def fail() -> None:
        raise RuntimeError("a bug")

    look.begin()
    for then in (partial(called.append, "first"), fail, partial(called.append, "last")):
        look.after(then)
    look.end()
    assert called == ["first", "last"]
    assert not look.is_under_way
    assert "resuming a queue after a read of its messages failed" in caplog.text
