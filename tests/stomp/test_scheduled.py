"""SEND with the headers that say when a message is delivered, and how often."""

from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from orthia.broker.core.routing.diverts import Divert
from orthia.broker.core.sending.recurrence import FOR_EVER, Recurrence, decode
from orthia.config.address_settings import (
    AddressConfiguration,
    AddressFullPolicy,
    DivertSettings,
    QueueSettings,
    RoutingType,
)
from orthia.database import StoreUnavailable
from orthia.journal.model.message import Message
from tests.core.support import NOON_MS, SETTINGS, Clock, anyone, settings
from tests.management.support import Managed
from tests.stomp.support import Client


def send(clock: Clock, text: str, destination: str = "/queue/orders", /, **headers: Any) -> None:
    """Send a message as a client that ends."""
    client = Client(clock.core)
    client.say("SEND", {"destination": destination, "receipt": "r", **headers}, text)
    frames = client.frames()
    assert [frame.command for frame in frames] == ["RECEIPT"], frames


def refusal(clock: Clock, **headers: Any) -> str:
    """Return the ERROR that a SEND gets."""
    client = Client(clock.core)
    client.say("SEND", {"destination": "/queue/orders", **headers}, "x")
    return client.error()


@pytest.fixture
def clock() -> Clock:
    """Give a broker whose time the test moves."""
    return Clock()


def depth(clock: Clock, queue: str = "orthia.scheduled.anycast.orders") -> int:
    """Return how many messages a queue has."""
    return clock.core.broker.depths().get(queue, 0)


HOUR_MS = 3_600_000
SCHEDULES: list[tuple[dict[str, Any], list[int]]] = [
    ({"AMQ_SCHEDULED_DELAY": 5_000}, [5_000]),
    ({"AMQ_SCHEDULED_TIME": NOON_MS + 2_000, "AMQ_SCHEDULED_DELAY": 1}, [2_000]),
    ({"_AMQ_SCHED_DELIVERY": NOON_MS + 2_000, "AMQ_SCHEDULED_DELAY": 1}, [2_000]),
    ({"AMQ_SCHEDULED_TIME": NOON_MS - 1}, [0]),
    ({"AMQ_SCHEDULED_PERIOD": 100}, [100]),  # without repeats a delay, as in Classic
    (
        {"AMQ_SCHEDULED_DELAY": 50, "AMQ_SCHEDULED_PERIOD": 100, "AMQ_SCHEDULED_REPEAT": 3},
        [50, 150, 250, 350],
    ),
    ({"AMQ_SCHEDULED_CRON": "0 * * * *"}, [HOUR_MS, 2 * HOUR_MS]),
    (
        {
            "AMQ_SCHEDULED_CRON": "0 * * * *",
            "AMQ_SCHEDULED_DELAY": 1_000,
            "AMQ_SCHEDULED_PERIOD": 500,
            "AMQ_SCHEDULED_REPEAT": 2,
        },
        [HOUR_MS + 1_000 + 500 * more for more in range(3)],
    ),
]
"""Headers of a SEND, and how long after it the message comes: in the first two hours."""


@pytest.mark.parametrize("takes_over", [False, True])
@pytest.mark.parametrize(("headers", "comes_ms"), SCHEDULES)
def test_a_message_comes_when_its_headers_say(
    clock: Clock, headers: dict[str, Any], comes_ms: list[int], *, takes_over: bool
) -> None:
    """Its RECEIPT comes at once; it comes in time, and not early, whoever serves then."""
    send(clock, "later", **headers)
    consumers = [clock.core.consume("/queue/orders", auto=True)]
    passed = 0
    for moment in (comes_ms[0] - 1, *comes_ms, max(2 * HOUR_MS, comes_ms[-1])):
        clock.pass_ms(max(0, moment - passed))
        passed = max(passed, moment)
        if takes_over:
            clock.takeover()
            consumers.append(clock.core.consume("/queue/orders", auto=True))
        came = [text for one in consumers for text in one.texts]
        assert came == ["later"] * len([one for one in comes_ms if one <= passed])
    ends = "AMQ_SCHEDULED_CRON" not in headers
    assert (depth(clock) == 0) is ends
    assert bool(clock.core.journal.store.times) is not ends


def test_a_series_goes_by_the_stores_clock(clock: Clock) -> None:
    """A node that is ahead of it does not take times for passed that have not come."""
    clock.core.journal.store.clock_ms = lambda: clock.ms() - 10_000
    consumer = clock.core.consume("/queue/orders", auto=True)
    send(clock, "tick", AMQ_SCHEDULED_DELAY=1_000, AMQ_SCHEDULED_PERIOD=100, AMQ_SCHEDULED_REPEAT=2)
    clock.pass_ms(10_999)
    assert consumer.texts == []
    clock.pass_ms(1)
    assert consumer.texts == ["tick"]
    clock.pass_ms(99)
    assert consumer.texts == ["tick"]
    clock.pass_ms(101)
    assert consumer.texts == ["tick"] * 3


def test_each_of_a_series_lasts_as_long_as_can_be_said(clock: Clock) -> None:
    """Also where the first lasts up to the latest moment there is, and the others come later."""
    consumer = clock.core.consume("/queue/orders", auto=True)
    series = {"AMQ_SCHEDULED_DELAY": 10, "AMQ_SCHEDULED_PERIOD": 100, "AMQ_SCHEDULED_REPEAT": 1}
    send(clock, "tick", expires="9" * 18, **series)
    clock.pass_ms(200)
    assert consumer.texts == ["tick", "tick"]
    assert [one.record.expires_ms for one in consumer.received] == [10**18 - 1] * 2


def test_the_receiver_does_not_see_when_it_was_to_come(clock: Clock) -> None:
    """A receiver that sends the message on does not delay it again; other headers stay."""
    consumer = clock.core.consume("/queue/orders")
    send(clock, "later", AMQ_SCHEDULED_DELAY=10, colour="red")
    clock.pass_ms(10)
    (reference,) = consumer.received
    assert reference.record.head == b"colour:red\n"
    assert reference.record.stated == b""


def test_what_is_due_comes_behind_what_is_there(clock: Clock) -> None:
    """It takes its place at the end of its queue, and an earlier moment comes first."""
    send(clock, "c", AMQ_SCHEDULED_DELAY=3)
    send(clock, "b", AMQ_SCHEDULED_DELAY=2)
    send(clock, "a")
    clock.pass_ms(10)
    assert clock.core.consume("/queue/orders").texts == ["a", "b", "c"]


def test_a_transaction_may_send_later(clock: Clock) -> None:
    """With its COMMIT it is stored, and then comes when it is due; an ABORT sends nothing."""
    consumer = clock.core.consume("/queue/orders", auto=True)
    client = Client(clock.core)
    for name, end in (("kept", "COMMIT"), ("gone", "ABORT")):
        client.send("BEGIN", transaction=name)
        later = {"destination": "/queue/orders", "AMQ_SCHEDULED_DELAY": 100}
        client.say("SEND", later | {"transaction": name}, name)
        client.send(end, transaction=name)
    assert depth(clock) == 1
    clock.pass_ms(100)
    assert consumer.texts == ["kept"]


def test_a_topics_message_whose_row_is_locked_keeps_no_other_back(clock: Clock) -> None:
    """Its delete waits for another session's lock; what it was for hears it then, once."""
    there = clock.core.consume("/topic/news", auto=True)
    send(clock, "locked", "/topic/news", AMQ_SCHEDULED_DELAY=100)
    for number in (1, 2):
        send(clock, f"{number}", AMQ_SCHEDULED_DELAY=100 + number * 100)
    journal = clock.core.journal
    journal.auto_commit = False
    clock.pass_ms(100)
    put_aside = journal.waiting.popleft()
    assert not journal.waiting
    journal.auto_commit = True
    clock.pass_ms(100)
    assert depth(clock, "orders") == 1
    journal.auto_commit = False
    clock.pass_ms(100)
    journal.waiting.appendleft(put_aside)
    journal.commit()
    journal.auto_commit = True
    clock.core.settle()
    clock.pass_ms(1_000)
    assert (there.texts, depth(clock, "orders")) == (["locked"], 2)
    assert not journal.store.times


def test_a_topics_message_goes_to_who_is_there_when_it_is_due(clock: Clock) -> None:
    """Whoever subscribed after the SEND hears it; whoever did not stay does not."""
    gone = clock.core.consume("/topic/news", auto=True)
    send(clock, "later", "/topic/news", AMQ_SCHEDULED_DELAY=100)
    gone.end.close()
    there = clock.core.consume("/topic/news", auto=True)
    clock.pass_ms(100)
    clock.core.settle()
    assert (gone.texts, there.texts) == ([], ["later"])
    assert depth(clock, "orthia.scheduled.multicast.news") == 0


def test_a_million_waiting_messages_are_not_in_memory(clock: Clock) -> None:
    """What waits counts nothing against the memory, however much of it there is."""
    for number in range(100):
        send(clock, str(number), AMQ_SCHEDULED_DELAY=10_000 + number)
    assert (depth(clock), clock.core.broker.parts.factory.services.budget.used) == (100, 0)
    clock.pass_ms(20_000)
    assert depth(clock, "orders") == 100


def test_what_waits_counts_against_the_limits_of_its_address() -> None:
    """An address that may hold two messages takes no third one, due or not; also later."""
    options = settings("orders", max_size_messages=2, address_full_policy=AddressFullPolicy.FAIL)
    clock = Clock(options)
    send(clock, "a", AMQ_SCHEDULED_DELAY=1_000)
    send(clock, "b")
    assert "max-size-messages 2" in refusal(clock, AMQ_SCHEDULED_DELAY=1)
    clock.takeover(options)
    clock.core.consume("/queue/orders", auto=True)  # counts what it reads
    assert depth(clock) == 1
    send(clock, "c", AMQ_SCHEDULED_DELAY=1_000)
    assert "max-size-messages 2" in refusal(clock, AMQ_SCHEDULED_DELAY=1)
    clock.pass_ms(10_000)
    assert depth(clock) == 0
    send(clock, "d", AMQ_SCHEDULED_DELAY=1_000)


def test_times_that_no_node_saw_are_not_made_up_for(clock: Clock) -> None:
    """After an hour without a node a message of each second comes once, and goes on."""
    send(clock, "tick", AMQ_SCHEDULED_PERIOD=1_000, AMQ_SCHEDULED_REPEAT=-1)
    clock.core.broker.stop()
    clock.pass_ms(3_600_000)
    clock.takeover()
    consumer = clock.core.consume("/queue/orders", auto=True)
    assert consumer.texts == ["tick"]
    clock.pass_ms(3_000)
    assert consumer.texts == ["tick"] * 4


def test_an_earlier_nodes_series_without_pause_has_one() -> None:
    """Each delivery is a transaction: what was stored with a millisecond between waits for more."""
    stored = decode(Recurrence(period_ms=1, repeats=FOR_EVER).encode())
    for now_ms in (NOON_MS, NOON_MS + 3_600_000):
        ((following_ms, follows),) = stored.after(NOON_MS, now_ms).scheduled
        assert following_ms == now_ms + 100
        assert follows == stored


@pytest.mark.parametrize(
    ("headers", "named"),
    [
        ({"AMQ_SCHEDULED_DELAY": "soon"}, "AMQ_SCHEDULED_DELAY"),
        ({"AMQ_SCHEDULED_DELAY": "-1"}, "AMQ_SCHEDULED_DELAY"),
        ({"AMQ_SCHEDULED_TIME": "1e9"}, "AMQ_SCHEDULED_TIME"),
        ({"AMQ_SCHEDULED_TIME": "9" * 30}, "AMQ_SCHEDULED_TIME"),
        ({"AMQ_SCHEDULED_DELAY": "253402300799999"}, "9999"),
        ({"AMQ_SCHEDULED_PERIOD": "x"}, "AMQ_SCHEDULED_PERIOD"),
        ({"AMQ_SCHEDULED_PERIOD": "5", "AMQ_SCHEDULED_REPEAT": "-2"}, "AMQ_SCHEDULED_REPEAT"),
        ({"AMQ_SCHEDULED_REPEAT": "5"}, "AMQ_SCHEDULED_PERIOD"),
        (
            {"AMQ_SCHEDULED_PERIOD": "99", "AMQ_SCHEDULED_REPEAT": "-1"},
            "AMQ_SCHEDULED_PERIOD of SEND is 99, and AMQ_SCHEDULED_REPEAT -1; expected 100",
        ),
        ({"AMQ_SCHEDULED_CRON": "every day"}, "AMQ_SCHEDULED_CRON"),
        ({"AMQ_SCHEDULED_CRON": "0 0 31 2 *"}, "AMQ_SCHEDULED_CRON"),
        ({"AMQ_SCHEDULED_CRON": "0 * * * *", "AMQ_SCHEDULED_TIME": "5"}, "AMQ_SCHEDULED_CRON"),
        ({"AMQ_SCHEDULER_ACTION": "REMOVE"}, "AMQ_SCHEDULER_ACTION"),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(
    clock: Clock, headers: dict[str, str], named: str
) -> None:
    """A value that is none, and a header that does nothing here."""
    assert named in refusal(clock, **headers)
    assert depth(clock) == 0


def test_a_message_that_is_being_cancelled_is_not_delivered(clock: Clock) -> None:
    """Though it becomes due before that is stored: who cancels is told that it is gone."""
    send(clock, "gone", AMQ_SCHEDULED_DELAY=100)
    (seq,) = clock.core.journal.store.times
    clock.core.journal.auto_commit = False
    counts: list[int] = []
    clock.core.cancel("orthia.scheduled.anycast.orders", seq, counts.append)
    clock.pass_ms(100)
    clock.core.journal.commit()
    clock.core.journal.auto_commit = True
    clock.pass_ms(20_000)
    assert (counts, depth(clock), depth(clock, "orders")) == ([1], 0, 0)


def test_a_message_that_is_being_delivered_cannot_be_cancelled(clock: Clock) -> None:
    """Whoever tries is told that it is not there; it comes once."""
    send(clock, "comes", AMQ_SCHEDULED_DELAY=100)
    (seq,) = clock.core.journal.store.times
    clock.core.journal.auto_commit = False
    clock.pass_ms(100)
    counts: list[int] = []
    clock.core.cancel("orthia.scheduled.anycast.orders", seq, counts.append)
    clock.core.settle()
    clock.core.journal.auto_commit = True
    clock.core.journal.commit()
    clock.pass_ms(20_000)
    assert (counts, depth(clock)) == ([0], 0)
    assert clock.core.consume("/queue/orders").texts == ["comes"]


def test_a_deleted_schedule_delivers_nothing(clock: Clock) -> None:
    """Whoever deletes the queue cancels all that is in it; a later SEND makes another."""
    send(clock, "gone", AMQ_SCHEDULED_DELAY=100)
    deleted: list[int] = []
    clock.core.broker.delete_queue(
        anyone(), "orthia.scheduled.anycast.orders", deleted.append, force=True
    )
    clock.core.settle()
    assert deleted == [1]
    send(clock, "stays", AMQ_SCHEDULED_DELAY=100)
    clock.pass_ms(100)
    assert clock.core.consume("/queue/orders").texts == ["stays"]


@pytest.mark.parametrize("name", [{}, {"_AMQ_DUPL_ID": "1"}])
def test_what_need_not_be_stored_is_while_it_waits(clock: Clock, name: dict[str, str]) -> None:
    """Also known by a duplicate id: it survives a takeover, and comes once."""
    for _ in range(2):
        send(clock, "later", persistent="false", AMQ_SCHEDULED_DELAY=100, **name)
    clock.takeover()
    clock.pass_ms(100)
    expected = ["later"] if name else ["later"] * 2
    assert clock.core.consume("/queue/orders").texts == expected
    assert depth(clock) == 0


def test_a_client_may_cancel_by_a_management_request(clock: Clock) -> None:
    """The RECEIPT says how many are gone; what is no id, or no such queue, is refused."""
    send(clock, "gone", AMQ_SCHEDULED_DELAY=100)
    (seq,) = clock.core.journal.store.times
    name = "orthia.scheduled.anycast.orders"
    managed = Managed(core=clock.core)
    managed.manage()
    for expected in ("1", "0"):
        client = Client(clock.core)
        managed.let(partial(request, client, f"queue.{name}", f"[{seq}]"))
        assert client.read().get(b"deleted-messages") == expected
    for resource, arguments in ((f"queue.{name}", '["a"]'), ("queue.none", f"[{seq}]")):
        client = Client(clock.core)
        managed.let(partial(request, client, resource, arguments))
        assert client.error()


def test_it_is_cancelled_by_the_queue_that_it_goes_to_as_well(clock: Clock) -> None:
    """As in Artemis, which has no queues of such messages."""
    send(clock, "gone", AMQ_SCHEDULED_DELAY=100)
    (seq,) = clock.core.journal.store.times
    managed = Managed(core=clock.core)
    managed.manage()
    client = Client(clock.core)
    managed.let(partial(request, client, "queue.orders", f"[{seq}]"))
    assert client.read().get(b"deleted-messages") == "1"
    clock.pass_ms(100)
    assert depth(clock) + depth(clock, "orders") == 0


def request(client: Client, resource: str, arguments: str) -> None:
    """Ask for removeMessage."""
    operation = {"_AMQ_ResourceName": resource, "_AMQ_OperationName": "removeMessage"}
    headers = {"destination": "activemq.management", "receipt": "r", **operation}
    client.say("SEND", headers, arguments)


def test_each_of_a_series_is_good_for_as_long_as_the_first(clock: Clock) -> None:
    """None has expired when it comes, however often it came; one that lies too long has."""
    again = {"AMQ_SCHEDULED_PERIOD": 1_000, "AMQ_SCHEDULED_REPEAT": 3}
    send(clock, "tick", expires=clock.ms() + 1_500, **again)
    consumer = clock.core.consume("/queue/orders", auto=True)
    for _ in range(3):
        clock.pass_ms(1_000)
    clock.takeover()
    clock.core.broker.count_backlogs()
    last = clock.core.consume("/queue/orders", auto=True)
    clock.pass_ms(1_000)
    received = [*consumer.received, *last.received]
    assert [one.record.expires_ms - NOON_MS for one in received] == [2_500, 3_500, 4_500, 5_500]
    assert depth(clock, "ExpiryQueue") == 0
    send(clock, "tock", expires=clock.ms() + 500, AMQ_SCHEDULED_CRON="* * * * *")
    last.end.close()
    clock.pass_ms(120_000)
    assert depth(clock, "orders") + depth(clock, "ExpiryQueue") == 2
    assert depth(clock, "ExpiryQueue") >= 1


def test_queues_of_an_address_get_what_is_due_in_turn() -> None:
    """Also where something of the address asks each message first, as a divert does."""
    declared = AddressConfiguration(
        "orders",
        frozenset({RoutingType.ANYCAST}),
        (QueueSettings("a", RoutingType.ANYCAST), QueueSettings("b", RoutingType.ANYCAST)),
    )
    diverts = (DivertSettings("d", "orders", "audit", filter="colour = 'red'"),)
    clock = Clock(replace(SETTINGS, addresses=(declared,), diverts=diverts))
    for text in "1234":
        send(clock, text, AMQ_SCHEDULED_DELAY=100)
    clock.pass_ms(100)
    assert (depth(clock, "a"), depth(clock, "b")) == (2, 2)


def test_it_comes_where_no_duplicate_ids_are_kept() -> None:
    """A name for which nothing is kept leaves the message to be found when it is due."""
    clock = Clock(replace(SETTINGS, id_cache_size=0))
    send(clock, "later", AMQ_SCHEDULED_DELAY=100, _AMQ_DUPL_ID="1")
    assert clock.core.journal.store.times
    clock.pass_ms(100)
    assert clock.core.consume("/queue/orders").texts == ["later"]


def test_a_message_that_could_not_be_cancelled_comes(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if it became due while the store was asked for it, which failed."""
    send(clock, "later", AMQ_SCHEDULED_DELAY=100)
    (seq,) = clock.core.journal.store.times
    asked: list[Any] = []
    told: list[int] = []
    with monkeypatch.context() as patched:
        patched.setattr(clock.core.journal, "read_window", lambda *ask: asked.append(ask[-1]))
        queue = "orthia.scheduled.anycast.orders"
        clock.core.cancel(queue, seq, told.append)
        clock.pass_ms(150)
    asked[0](StoreUnavailable("for a test"))
    clock.core.settle()
    clock.pass_ms(1)
    assert told == [0]
    assert clock.core.consume("/queue/orders").texts == ["later"]


def test_nobody_makes_a_queue_that_would_hold_what_others_send_later() -> None:
    """By the queue of an address of one's own, or by a durable subscription."""
    clock = Clock()
    name = "orthia.scheduled.anycast.orders"
    for destination in (f"/queue/mine::{name}", f"/queue/{name}"):
        thief = Client(clock.core, client_id="orthia")
        thief.send("SUBSCRIBE", destination=destination, id="1")
        assert "nobody sends to it or consumes from it" in thief.error()
    thief = Client(clock.core, client_id="orthia")
    durable = {"durable-subscription-name": name.removeprefix("orthia.")}
    thief.send("SUBSCRIBE", destination="/topic/mine", id="1", **durable)
    assert "nobody sends to it or consumes from it" in thief.error()
    send(clock, "1", AMQ_SCHEDULED_DELAY=1_000)
    forger = Client(clock.core)
    forger.send("SEND", "2", destination=f"/queue/orders::{name}")
    assert "nobody sends to it or consumes from it" in forger.error()
    clock.pass_ms(1_000)
    assert clock.core.consume("/queue/orders").texts == ["1"]


@pytest.mark.parametrize("default", [{"default_last_value_queue": True}, {"default_ring_size": 1}])
def test_what_waits_is_not_in_a_queue_as_settings_make_them(default: dict[str, Any]) -> None:
    """None of it replaces another, or is one too many, before it comes."""
    clock = Clock(settings(**default))
    for delay_ms in (1_000, 2_000):
        send(clock, f"{delay_ms}", _AMQ_LVQ_NAME="a", AMQ_SCHEDULED_DELAY=delay_ms)
    assert depth(clock) == 2
    consumer = clock.core.consume("/queue/orders", auto=True)
    clock.pass_ms(2_000)
    assert consumer.texts == ["1000", "2000"]


def test_a_schedule_that_is_deleted_while_a_message_is_routed_delivers_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whoever deletes it is told that the message is gone, and it is."""
    clock = Clock(replace(SETTINGS, diverts=(DivertSettings("d", "orders", "audit"),)))
    send(clock, "gone", AMQ_SCHEDULED_DELAY=100)
    deleted: list[int] = []
    takes = Divert.takes

    def delete(divert: Divert, record: Message) -> bool:
        clock.core.broker.delete_queue(
            anyone(), "orthia.scheduled.anycast.orders", deleted.append, force=True
        )
        return takes(divert, record)

    monkeypatch.setattr(Divert, "takes", delete)
    clock.pass_ms(100)
    assert deleted == [1]
    assert (depth(clock, "orders"), depth(clock, "audit")) == (0, 0)
    assert clock.core.stored_texts() == []


def test_one_that_fails_keeps_no_other_back(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever it is, the others come; it is tried again."""
    clock = Clock(replace(SETTINGS, diverts=(DivertSettings("d", "orders", "audit"),)))
    consumer = clock.core.consume("/queue/orders", auto=True)
    for text in ("before", "fails", "behind"):
        send(clock, text, AMQ_SCHEDULED_DELAY=100)
    takes = Divert.takes

    def fail(divert: Divert, record: Message) -> bool:
        if record.body == b"fails":
            raise RuntimeError("a bug")
        return takes(divert, record)

    with monkeypatch.context() as patched:
        patched.setattr(Divert, "takes", fail)
        clock.pass_ms(100)
        assert consumer.texts == ["before", "behind"]
        send(clock, "later", AMQ_SCHEDULED_DELAY=100)
        clock.pass_ms(100)
    assert consumer.texts == ["before", "behind", "later"]
    assert "a bug" in caplog.text
    clock.pass_ms(60_000)
    assert consumer.texts == ["before", "behind", "later", "fails"]
