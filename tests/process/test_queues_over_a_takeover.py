"""What queues, subscriptions and destinations do over kill -9: in memory, and paged."""

import time
from pathlib import Path

import pytest

from orthia.broker.client.connection import BrokerRefused
from tests.conftest import Servers
from tests.process.clients import Client, connecting
from tests.process.nodes import NodeProcess
from tests.process.takeover_pairs import PAGED, pair_on
from tests.support.waiting import wait_until

pytestmark = pytest.mark.extended

LIMIT = 3
POLICIES = ("FAIL", "DROP", "BLOCK")
_LIMITED = "".join(
    f"""<address-setting match="full.{policy}"><max-size-messages>{LIMIT}</max-size-messages>
    <address-full-policy>{policy}</address-full-policy></address-setting>"""
    for policy in POLICIES
)
CORE = f"""
<address-queue-scan-period>200</address-queue-scan-period>
<address-settings>
  <address-setting match="#">{{}}</address-setting>
  <address-setting match="goes.#"><auto-delete-queues>true</auto-delete-queues></address-setting>
  {_LIMITED}
</address-settings>
<addresses>
<address name="one"><anycast><queue name="one" exclusive="true"/></anycast></address>
<address name="briefly"><anycast><queue name="briefly"><durable>false</durable></queue></anycast>
</address></addresses>
"""
NUMBERS = [str(number) for number in range(12)]
PERIOD_MS = 700
TICKS = 9
NO_LOCAL = {"durable_subscription_name": "others", "no_local": "true"}
EVERY = {"durable_subscription_name": "every"}


def fill(client: Client, me: Client, blocked: Client) -> None:
    """Send what the successor is to have; of one client nothing is read any more after this."""
    period = {"AMQ_SCHEDULED_PERIOD": str(PERIOD_MS), "AMQ_SCHEDULED_REPEAT": str(TICKS - 1)}
    client.send("ticks", "tick", **period)
    durable = {"news": NO_LOCAL, "both": {"durable_subscription_name": "all"}, "sports.#": EVERY}
    for topic, headers in durable.items():
        me.subscribe(f"/topic/{topic}", **headers)
        me.do("UNSUBSCRIBE", id=f"/topic/{topic}")
    for number in NUMBERS:
        client.send("shown", number)
        client.send("windowed", number)
        me.send("/topic/news", f"own {number}")
        client.send("/topic/news", number)
    for policy in POLICIES:
        sender = blocked if policy == "BLOCK" else client
        sender.send(f"full.{policy}", *NUMBERS[:LIMIT])
    client.send("full.DROP", "dropped")
    client.send("jobs", "first")
    client.send("both", "to one")
    client.send("/topic/both", "to all")
    client.send("/topic/sports.chess", "a wildcard's")
    client.send("briefly", "gone with its node")
    client.send("split::a", "of a")
    client.send("split::b", "of b")
    client.send("goes.idle", "taken")
    client.send("goes.busy", "stays")


@pytest.mark.parametrize(("place", "settings"), [("files", ""), ("sqlite", PAGED)])
def test_queues_do_for_the_successor_as_before(
    place: str, settings: str, shared_servers: Servers, tmp_path: Path
) -> None:
    """Browsers, no-local, series, windows, full addresses, queues that go, routing types."""
    core = CORE.format(settings)
    with pair_on(place, core, shared_servers, tmp_path) as (live, backup), connecting() as connect:
        client = connect(live)
        fill(client, connect(live, "me"), connect(live))
        with pytest.raises(BrokerRefused, match="max-size-messages"):
            connect(live).send("full.FAIL", "refused")
        # As long as it is subscribed, the queue that it emptied stays.
        user = connect(live)
        assert user.holds(1, "goes.idle") == ["taken"]
        user.acknowledges(1)
        under_way = connect(live)
        assert under_way.holds(2, "shown", browser="true", prefetch_count="2") == NUMBERS[:2]
        wait_until(lambda: len(client.browses("ticks")) >= 2, what="two messages of the series")
        assert "auto-delete-queues" not in live.log
        answered_at = ask_and_answer(connect(live), connect(live))
        live.kill()
        backup.wait_serving()

        client, me = connect(backup), connect(backup, "me")
        shows(client, connect(backup))
        flows(connect(backup), connect(backup))
        leaves_out_its_own(me, client)
        has_no_more_room(backup)
        has_its_types(client, me, connect(backup))
        has_its_destinations(client, me, connect(backup))
        client.send(answered_at, "to nobody")
        ask_and_answer(connect(backup), connect(backup))
        backup.wait_log("queue 'goes.idle' is deleted: nobody uses it")
        assert "'goes.busy' is deleted" not in backup.log
        assert client.takes(1, "goes.busy") == ["stays"]
        goes_on(client)


def ask_and_answer(asking: Client, answering: Client) -> str:
    """Have one client ask another through a temporary queue; return where it was answered."""
    asking.subscribe("/temp-queue/answers")
    asking.send("requests", "1", reply_to="/temp-queue/answers")
    assert answering.takes(1, "requests") == ["1"]
    where = answering.messages[0].headers["reply-to"]
    answering.send(where, "2")
    (answer,) = asking.waits(1)
    assert (answer.body, answer.headers["destination"]) == (b"2", "/temp-queue/answers")
    asking.acknowledges(1)
    asking.do("UNSUBSCRIBE", id="/temp-queue/answers")
    return where


def shows(client: Client, browser: Client) -> None:
    """See that a browser begins anew, sees all and changes nothing, also amid its way."""
    assert browser.holds(2, "shown", browser="true", prefetch_count="2") == NUMBERS[:2]
    assert client.browses("shown") == NUMBERS
    assert client.browses("shown") == NUMBERS
    assert client.takes(len(NUMBERS), "shown") == NUMBERS


def flows(no_window: Client, prefetch: Client) -> None:
    """See that neither has more than one at a time, and both together all."""
    assert no_window.holds(1, "windowed", consumer_window_size="0") == NUMBERS[:1]
    assert prefetch.holds(1, "windowed", prefetch_count="1") == NUMBERS[1:2]
    for client in (no_window, prefetch):
        client.send("elsewhere", "a round trip, in which more would come")
        assert len(client.hear()) == 1
    for client, numbers in ((prefetch, NUMBERS[2:7]), (no_window, NUMBERS[7:])):
        for number in numbers:
            client.acknowledges(1)
            assert [frame.body.decode() for frame in client.waits(1)] == [number]
    prefetch.acknowledges(1)
    no_window.acknowledges(1)


def leaves_out_its_own(me: Client, client: Client) -> None:
    """See that a durable subscription has nothing of its own client-id, of before or now."""
    me.send("/topic/news", "own again")
    # What the address is says what a plain name is: a topic.
    client.do("SEND", "again", destination="news")
    assert me.takes(len(NUMBERS) + 1, "/topic/news", **NO_LOCAL) == [*NUMBERS, "again"]


def has_no_more_room(backup: NodeProcess) -> None:
    """See that what is there counts; it is read, and so counted, once a consumer holds it."""
    with connecting() as connect:
        held = {}
        for policy in POLICIES:
            held[policy] = connect(backup)
            assert held[policy].holds(LIMIT, f"full.{policy}") == NUMBERS[:LIMIT], policy
        with pytest.raises(BrokerRefused, match="max-size-messages"):
            connect(backup).send("full.FAIL", "refused again")
        connect(backup).send("full.DROP", "dropped again")
        sender = connect(backup)
        # Of each sender one message is taken, and then nothing more is read.
        taken, waiting = (
            sender.write("SEND", body, destination="/queue/full.BLOCK")
            for body in ("taken", "waits")
        )
        sender.answered(taken)
        assert connect(backup).browses("full.BLOCK") == [*NUMBERS[:LIMIT], "taken"]
        assert not sender.has(waiting)
        for policy in POLICIES:
            held[policy].acknowledges(LIMIT)
        sender.answered(waiting)
        assert [frame.body for frame in held["BLOCK"].waits(2)] == [b"taken", b"waits"]
        for policy in ("FAIL", "DROP"):
            connect(backup).send(f"full.{policy}", "there is room")
            assert [frame.body for frame in held[policy].waits(1)] == [b"there is room"]


def has_its_types(client: Client, me: Client, other: Client) -> None:
    """See that a queue is a queue, a topic a topic, and each queue of an address its own."""
    client.do("SEND", "second", destination="jobs")
    assert client.takes(2, "jobs") == ["first", "second"]
    assert client.takes(1, "both") == ["to one"]
    assert me.takes(1, "/topic/both", durable_subscription_name="all") == ["to all"]
    client.send("split::a", "of a again")
    assert client.takes(1, "split::b") == ["of b"]
    assert client.takes(2, "split::a") == ["of a", "of a again"]
    with pytest.raises(BrokerRefused, match="ANYCAST"):
        other.subscribe("/topic/split::a")


def has_its_destinations(client: Client, me: Client, other: Client) -> None:
    """See a durable subscription with a wildcard and its end, and queues of other sorts."""
    client.send("/topic/sports.go", "since")
    assert me.takes(2, "/topic/sports.#", **EVERY) == ["a wildcard's", "since"]
    client.send("/topic/sports.go", "for the subscription that is ended")
    me.do("UNSUBSCRIBE", **EVERY)
    assert me.takes(0, "/topic/sports.#", **EVERY) == []
    client.send("briefly", "new")
    assert client.takes(1, "briefly::briefly") == ["new"]
    client.subscribe("one")
    other.messages.clear()
    other.subscribe("one")
    client.messages.clear()
    client.send("one", *NUMBERS)
    assert [frame.body.decode() for frame in client.waits(len(NUMBERS))] == NUMBERS
    assert not other.hear()
    client.acknowledges(len(NUMBERS))


def goes_on(client: Client) -> None:
    """See that a series is delivered as often as was said, by both nodes together."""
    wait_until(lambda: len(client.browses("ticks")) >= TICKS, what="the rest of the series")
    client.send("ticks", "end", AMQ_SCHEDULED_DELAY=str(2 * PERIOD_MS))
    wait_until(lambda: "end" in client.browses("ticks"), what="what is due after a tick too many")
    assert client.takes(TICKS + 1, "ticks") == ["tick"] * TICKS + ["end"]
    assert len({frame.headers["message-id"] for frame in client.messages}) == TICKS + 1


def test_a_pattern_goes_on(shared_servers: Servers, tmp_path: Path) -> None:
    """At its next minute, once."""
    core = CORE.format("")
    with (
        pair_on("sqlite", core, shared_servers, tmp_path) as (live, backup),
        connecting() as connect,
    ):
        began_minute = time.time() // 60
        connect(live).send("minutely", "tick", AMQ_SCHEDULED_CRON="* * * * *")
        live.kill()
        client = connect(backup.wait_serving())
        assert set(client.holds(1, "minutely")) == {"tick"}
        client.send("elsewhere", "a round trip, in which more would come")
        assert len(client.hear()) <= time.time() // 60 - began_minute
