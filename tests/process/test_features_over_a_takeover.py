"""What clients say of their messages, over kill -9: once on every store."""

import time
from pathlib import Path

import pytest

from tests.conftest import Servers
from tests.process.clients import Client, connecting
from tests.process.takeover_pairs import PAGED, STORES, pair_on
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
    <filter string="metal = 'gold'"/></divert>
</diverts>
<address-settings>
  <address-setting match="#">{}<max-delivery-attempts>3</max-delivery-attempts></address-setting>
</address-settings>
"""
DELAY_MS = 3_000
MESSAGES = 12


def fill(client: Client) -> float:
    """Send what the successor is to treat as it was said; return when the delayed one is due."""
    for number in range(MESSAGES):
        text = str(number)
        client.send("ranked", f"{number % 3}-{number}", priority=str(number % 3))
        client.send("grouped", f"{number % 2}-{number}", JMSXGroupID=f"g{number % 2}")
        client.send("coloured", text, colour="red" if number % 4 == 0 else "blue")
        client.send("once", str(number // 2), _AMQ_DUPL_ID=str(number // 2))
        client.send("prices", text, item=f"i{number % 3}")
        client.send("newest", text)
        client.send("/topic/news", text, size=text)
        client.send("orders", text, metal="gold" if number < 3 else "lead")
    client.send("expiring", "gone", expires=str(round(time.time() * 1000) + 2_000))
    due = time.time() + DELAY_MS / 1000
    client.send("later", "delayed", AMQ_SCHEDULED_DELAY=str(DELAY_MS))
    client.do("BEGIN", transaction="open")
    client.send("undone", "never", transaction="open")
    return due


@pytest.mark.parametrize(
    ("place", "settings"),
    [(place, PAGED if number % 2 else "") for number, place in enumerate(STORES)],
    ids=[f"{place}{' paged' * (number % 2)}" for number, place in enumerate(STORES)],
)
def test_what_was_said_of_messages_holds_for_the_successor(
    place: str, settings: str, shared_servers: Servers, tmp_path: Path
) -> None:
    """Order, groups, selectors, ids, acknowledgements, attempts, expiry, delays, flags."""
    core = CORE.format(settings)
    with pair_on(place, core, shared_servers, tmp_path) as (live, backup), connecting() as connect:
        subscriber = connect(live, "me")
        kept = {"durable_subscription_name": "kept", "selector": "size > 8"}
        subscriber.subscribe("/topic/news", **kept)
        subscriber.close()
        client = connect(live)
        due = fill(client)
        client.send("taken", "once")
        assert client.takes(1, "taken") == ["once"]
        client.messages.clear()
        client.send("poison", "bad")
        client.subscribe("poison", ack="client")
        client.rejects()
        client.rejects()
        client.send("after", "an attempt is counted behind its receipt, before what comes later")
        live.kill()
        backup.wait_serving()

        client = connect(backup)
        client.send("once", "again", _AMQ_DUPL_ID="0")
        numbers = range(MESSAGES)
        red = [str(number) for number in numbers if number % 4 == 0]
        assert client.takes(3, "coloured", selector="colour = 'red'") == red
        assert client.takes(9, "coloured") == [str(n) for n in numbers if n % 4]
        assert {one.headers.get("redelivered") for one in client.messages} == {"true"}
        ranked = [f"{rank}-{n}" for rank in (2, 1, 0) for n in numbers if n % 3 == rank]
        assert client.takes(MESSAGES, "ranked") == ranked
        assert client.takes(6, "once") == [str(number) for number in range(6)]
        assert client.takes(3, "prices") == ["9", "10", "11"]
        assert client.takes(3, "newest") == ["9", "10", "11"]
        assert client.takes(3, "copies") == ["0", "1", "2"]
        assert client.takes(MESSAGES, "orders") == [str(number) for number in numbers]
        assert client.takes(1, "ExpiryQueue") == ["gone"]
        groups_have_one_consumer_each(connect(backup), connect(backup))
        assert connect(backup, "me").takes(3, "/topic/news", **kept) == ["9", "10", "11"]
        # The third attempt is the last, and counts those that the first node saw.
        client.messages.clear()
        client.subscribe("poison", ack="client")
        client.rejects()
        assert client.takes(1, "DLQ") == ["bad"]
        assert client.messages[0].headers["_AMQ_ORIG_QUEUE"] == "poison"
        assert client.takes(1, "later") == ["delayed"]
        assert time.time() >= due - 1, "it came before it was due"
        assert client.takes(0, "undone") == client.takes(0, "taken") == []
        client.send("new", "sent since")
        assert client.takes(1, "new") == ["sent since"]
        assert client.messages[0].headers.get("redelivered") != "true"


def groups_have_one_consumer_each(first: Client, second: Client) -> None:
    """See that each group comes to one of two consumers, whole and in order."""
    for one in (first, second):
        one.subscribe("grouped", prefetch_count="3")
    owners: dict[str, set[int]] = {}
    order: list[str] = []

    def all_came() -> bool:
        for place, one in enumerate((first, second)):
            for frame in one.hear():
                owners.setdefault(frame.headers["JMSXGroupID"], set()).add(place)
                order.append(frame.body.decode())
            one.acknowledges(len(one.messages))
        return len(order) >= MESSAGES

    wait_until(all_came, what="all messages of the groups")
    assert {group: len(places) for group, places in owners.items()} == {"g0": 1, "g1": 1}
    for group in "01":
        of_group = [int(body[2:]) for body in order if body.startswith(group)]
        assert of_group == sorted(of_group), "the order of a group is not kept"
