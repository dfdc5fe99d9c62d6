"""What queues and subscriptions do, over kill -9: in memory and paged, on every store."""

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from orthia.broker.client.connection import BrokerRefused
from tests.conftest import Servers
from tests.process.takeover_pairs import PLACES, STORES, Client, Pair, connecting, pair_on
from tests.process.takeover_pairs import pair as pair
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
"""
NUMBERS = [str(number) for number in range(12)]
PERIOD_MS = 700
TICKS = 9
NO_LOCAL = {"durable-subscription-name": "others", "no-local": "true"}
Connect = Callable[..., Client]


@pytest.fixture(params=PLACES)
def core(request: pytest.FixtureRequest) -> str:
    """Give the settings with which queues are in memory, or beyond two messages in the store."""
    return CORE.format(PLACES[request.param])


@pytest.fixture
def connect() -> Iterator[Connect]:
    """Give what makes a client, which the end of the test closes."""
    with connecting() as made:
        yield made


def subscribe_durably(client: Client, topic: str, **headers: str) -> None:
    """Make a durable subscription, and leave it."""
    client.says("SUBSCRIBE", {"id": topic, "destination": f"/topic/{topic}", **headers})
    client.says("UNSUBSCRIBE", {"id": topic})


def fill(client: Client, me: Client, blocked: Client) -> None:
    """Send what the successor is to have; of one client nothing is read any more after this."""
    period = {"AMQ_SCHEDULED_PERIOD": str(PERIOD_MS), "AMQ_SCHEDULED_REPEAT": str(TICKS - 1)}
    client.sends("ticks", "tick", **period)
    subscribe_durably(me, "news", **NO_LOCAL)
    subscribe_durably(me, "both", **{"durable-subscription-name": "all"})
    for number in NUMBERS:
        client.sends("shown", number)
        client.sends("windowed", number)
        me.sends("/topic/news", f"own {number}")
        client.sends("/topic/news", number)
    for policy in POLICIES:
        for number in NUMBERS[:LIMIT]:
            sender = blocked if policy == "BLOCK" else client
            sender.sends(f"full.{policy}", number)
    client.sends("full.DROP", "dropped")
    client.sends("jobs", "first")
    client.sends("both", "to one")
    client.sends("/topic/both", "to all")
    client.sends("split::a", "of a")
    client.sends("split::b", "of b")
    client.sends("goes.idle", "taken")
    client.sends("goes.busy", "stays")


def test_queues_do_for_the_successor_as_before(pair: Pair, connect: Connect) -> None:
    """Browsers, no-local, series, windows, full addresses, queues that go, routing types."""
    live, backup = pair
    client = connect(live)
    fill(client, connect(live, "me"), connect(live))
    with pytest.raises(BrokerRefused, match="max-size-messages"):
        connect(live).sends("full.FAIL", "refused")
    # As long as it is subscribed, the queue that it emptied stays.
    user = connect(live)
    assert user.holds(1, "goes.idle") == ["taken"]
    user.acknowledges(1)
    under_way = connect(live)
    assert under_way.holds(2, "shown", browser="true", prefetch_count="2") == NUMBERS[:2]
    wait_until(lambda: len(client.browses("ticks")) >= 2, what="two messages of the series")
    assert "auto-delete-queues" not in live.log
    live.kill()
    backup.wait_serving()

    client = connect(backup)
    shows(client, connect(backup))
    flows(connect(backup), connect(backup))
    leaves_out_its_own(connect(backup, "me"), client)
    has_no_more_room(backup.name, lambda: connect(backup))
    has_its_types(client, connect(backup, "me"), connect(backup))
    backup.wait_log("queue 'goes.idle' is deleted: nobody uses it")
    assert "'goes.busy' is deleted" not in backup.log
    assert client.takes(1, "goes.busy") == ["stays"]
    goes_on(client)


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
        client.sends("elsewhere", "a round trip, in which more would come")
        assert len(client.hear()) == 1
    for number in NUMBERS[2:7]:
        prefetch.acknowledges(1)
        wait_until(prefetch.hear, what=f"message {number}")
        assert [frame.body.decode() for frame in prefetch.messages] == [number]
    for number in NUMBERS[7:]:
        no_window.acknowledges(1)
        wait_until(no_window.hear, what=f"message {number}")
        assert [frame.body.decode() for frame in no_window.messages] == [number]
    prefetch.acknowledges(1)
    no_window.acknowledges(1)


def leaves_out_its_own(me: Client, client: Client) -> None:
    """See that a durable subscription has nothing of its own client-id, of before or now."""
    me.sends("/topic/news", "own again")
    # What the address is says what a plain name is: a topic.
    client.says("SEND", {"destination": "news"}, "again")
    assert me.takes(len(NUMBERS) + 1, "/topic/news", **NO_LOCAL) == [*NUMBERS, "again"]


def has_no_more_room(name: str, connect: Connect) -> None:
    """See that what is there counts; it is read, and so counted, once a consumer holds it."""
    held = {}
    for policy in POLICIES:
        held[policy] = connect()
        stored = [str(number) for number in range(LIMIT)]
        assert held[policy].holds(LIMIT, f"full.{policy}") == stored, f"{name}: {policy}"
    with pytest.raises(BrokerRefused, match="max-size-messages"):
        connect().sends("full.FAIL", "refused again")
    connect().sends("full.DROP", "dropped again")
    sender = connect()
    # Of each sender one message is taken, and then nothing more is read.
    for body in ("taken", "waits"):
        said = {"destination": "/queue/full.BLOCK", "receipt": body}
        sender.writes("SEND", said, body)

    def is_answered(count: int) -> bool:
        sender.hear()
        return sender.receipts >= count

    wait_until(lambda: is_answered(1), what="the receipt of the one that is taken")
    assert connect().browses("full.BLOCK") == ["0", "1", "2", "taken"]
    assert not is_answered(2)
    for policy in POLICIES:
        held[policy].acknowledges(LIMIT)
    wait_until(lambda: is_answered(2), what="the receipt of the one that waited")
    wait_until(lambda: len(held["BLOCK"].hear()) >= 2, what="what was taken, and what waited")
    assert [frame.body for frame in held["BLOCK"].messages] == [b"taken", b"waits"]
    for policy in ("FAIL", "DROP"):
        connect().sends(f"full.{policy}", "there is room")
        wait_until(held[policy].hear, what="what there is room for")
        assert [frame.body for frame in held[policy].messages] == [b"there is room"]


def has_its_types(client: Client, me: Client, other: Client) -> None:
    """See that a queue is a queue, a topic a topic, and each queue of an address its own."""
    client.says("SEND", {"destination": "jobs"}, "second")
    assert client.takes(2, "jobs") == ["first", "second"]
    assert client.takes(1, "both") == ["to one"]
    durable = {"durable-subscription-name": "all"}
    assert me.takes(1, "/topic/both", **durable) == ["to all"]
    client.sends("split::a", "of a again")
    assert client.takes(1, "split::b") == ["of b"]
    assert client.takes(2, "split::a") == ["of a", "of a again"]
    with pytest.raises(BrokerRefused, match="ANYCAST"):
        other.says("SUBSCRIBE", {"id": "s", "destination": "/topic/split::a"})


def goes_on(client: Client) -> None:
    """See that a series is delivered as often as was said, by both nodes together."""
    wait_until(lambda: len(client.browses("ticks")) >= TICKS, what="the rest of the series")
    client.sends("ticks", "end", AMQ_SCHEDULED_DELAY=str(2 * PERIOD_MS))
    wait_until(lambda: "end" in client.browses("ticks"), what="what is due after a tick too many")
    assert client.takes(TICKS + 1, "ticks") == ["tick"] * TICKS + ["end"]
    assert len({frame.headers["message-id"] for frame in client.messages}) == TICKS + 1


def test_a_pattern_goes_on(shared_servers: Servers, tmp_path: Path, connect: Connect) -> None:
    """At its next minute, once: all stores at a time, as no minute is shorter."""
    with contextlib.ExitStack() as stack:
        pairs = []
        for place in STORES:
            directory = tmp_path / place
            directory.mkdir()
            pairs.append(
                stack.enter_context(pair_on(place, CORE.format(""), shared_servers, directory))
            )
        began_minute = time.time() // 60
        for live, _ in pairs:
            connect(live).sends("minutely", "tick", AMQ_SCHEDULED_CRON="* * * * *")
            live.kill()
        for _, backup in pairs:
            backup.wait_serving()
            client = connect(backup)
            assert set(client.holds(1, "minutely")) == {"tick"}
            client.sends("elsewhere", "a round trip, in which more would come")
            assert len(client.hear()) <= time.time() // 60 - began_minute
