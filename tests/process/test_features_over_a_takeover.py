"""What clients say of their messages, over kill -9: in memory and paged, on every store."""

import time
from collections.abc import Callable, Iterator

import pytest

from tests.process.takeover_pairs import PLACES, Client, Pair, connecting
from tests.process.takeover_pairs import pair as pair
from tests.support.waiting import wait_until

pytestmark = pytest.mark.extended

CORE = """
<message-expiry-scan-period>200</message-expiry-scan-period>
<addresses>
  <address name="prices"><anycast>
    <queue name="prices" last-value-key="item"/></anycast></address>
  <address name="newest"><anycast><queue name="newest" ring-size="3"/></anycast></address>
</addresses>
<diverts>
  <divert name="copies"><address>orders</address>
    <forwarding-address>copies</forwarding-address><exclusive>false</exclusive>
    <filter string="priority_class = 'gold'"/></divert>
</diverts>
<address-settings>
  <address-setting match="#">{}<max-delivery-attempts>3</max-delivery-attempts></address-setting>
</address-settings>
"""
DELAY_MS = 3_000
MESSAGES = 12


@pytest.fixture(params=PLACES)
def core(request: pytest.FixtureRequest) -> str:
    """Give the settings with which queues are in memory, or beyond two messages in the store."""
    return CORE.format(PLACES[request.param])


def fill(client: Client) -> float:
    """Send what the successor is to treat as it was said; return when the delayed one is due."""
    for number in range(MESSAGES):
        client.sends("ranked", f"{number % 3}-{number}", priority=str(number % 3))
        client.sends("grouped", f"{number % 2}-{number}", JMSXGroupID=f"g{number % 2}")
        client.sends("coloured", str(number), colour="red" if number % 4 == 0 else "blue")
        client.sends("once", str(number // 2), _AMQ_DUPL_ID=str(number // 2))
        client.sends("prices", str(number), item=f"i{number % 3}")
        client.sends("newest", str(number))
        client.sends("/topic/news", str(number), size=str(number))
        client.sends("orders", str(number), priority_class="gold" if number < 3 else "lead")
    client.sends("expiring", "gone", expires=str(round(time.time() * 1000) + 2_000))
    due = time.time() + DELAY_MS / 1000
    client.sends("later", "delayed", AMQ_SCHEDULED_DELAY=str(DELAY_MS))
    client.says("BEGIN", {"transaction": "open"})
    client.sends("undone", "never", transaction="open")
    return due


@pytest.fixture
def connect() -> Iterator[Callable[..., Client]]:
    """Give what makes a client, which the end of the test closes."""
    with connecting() as made:
        yield made


def test_what_was_said_of_messages_holds_for_the_successor(
    pair: Pair, connect: Callable[..., Client]
) -> None:
    """Order, groups, selectors, ids, values, subscriptions, attempts, expiry, delays."""
    live, backup = pair
    subscriber = connect(live, "me")
    kept = {"durable-subscription-name": "kept", "selector": "size > 8"}
    subscriber.says("SUBSCRIBE", {"id": "s", "destination": "/topic/news", **kept})
    subscriber.close()
    client = connect(live)
    due = fill(client)
    client.sends("poison", "bad")
    client.says("SUBSCRIBE", {"id": "p", "destination": "/queue/poison", "ack": "client"})
    client.rejects("poison")
    client.rejects("poison")
    client.sends("after", "an attempt is counted behind its receipt, before what comes later")
    live.kill()
    backup.wait_serving()

    client = connect(backup)
    client.sends("once", "again", _AMQ_DUPL_ID="0")
    numbers = range(MESSAGES)
    red = [str(number) for number in numbers if number % 4 == 0]
    assert client.takes(3, "coloured", selector="colour = 'red'") == red
    assert client.takes(9, "coloured") == [str(n) for n in numbers if n % 4]
    ranked = [f"{rank}-{n}" for rank in (2, 1, 0) for n in numbers if n % 3 == rank]
    assert client.takes(MESSAGES, "ranked") == ranked
    assert client.takes(6, "once") == [str(number) for number in range(6)]
    assert client.takes(3, "prices") == ["9", "10", "11"]
    assert client.takes(3, "newest") == ["9", "10", "11"]
    assert client.takes(3, "copies") == ["0", "1", "2"]
    assert client.takes(MESSAGES, "orders") == [str(number) for number in numbers]
    assert client.takes(1, "ExpiryQueue") == ["gone"]
    first, second = connect(backup), connect(backup)
    for one in (first, second):
        credit = {"ack": "client-individual", "prefetch-count": "3"}
        one.says("SUBSCRIBE", {"id": "g", "destination": "/queue/grouped", **credit})
    owners: dict[str, set[int]] = {}
    order: list[str] = []

    def all_came() -> bool:
        for place, one in enumerate((first, second)):
            for frame in one.hear():
                owners.setdefault(frame.headers["JMSXGroupID"], set()).add(place)
                order.append(frame.body.decode())
                one.says("ACK", {"id": frame.headers["ack"]})
            one.messages.clear()
        return len(order) >= MESSAGES

    wait_until(all_came, what="all messages of the groups")
    assert {group: len(places) for group, places in owners.items()} == {"g0": 1, "g1": 1}
    for group in "01":
        of_group = [int(body[2:]) for body in order if body.startswith(group)]
        assert of_group == sorted(of_group), "the order of a group is not kept"
    subscriber = connect(backup, "me")
    assert subscriber.takes(3, "/topic/news", **kept) == ["9", "10", "11"]
    # The third attempt is the last, and counts those that the first node saw.
    client.messages.clear()
    client.says("SUBSCRIBE", {"id": "p", "destination": "/queue/poison", "ack": "client"})
    client.rejects("poison")
    assert client.takes(1, "DLQ") == ["bad"]
    assert client.takes(1, "later") == ["delayed"]
    assert time.time() >= due - 1, "it came before it was due"
    assert client.takes(0, "undone") == []
