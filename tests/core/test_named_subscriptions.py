"""Subscriptions of topics that have names: durable or not, with one consumer or several."""

from dataclasses import replace

import pytest

from orthia.broker.core.api import SubscriptionName
from orthia.broker.core.errors import BrokerError, DestinationRefused, QueueInUse
from orthia.broker.core.identity import Principal
from orthia.broker.core.routing.durable import NoSuchSubscription, SubscriptionChanged
from orthia.broker.core.sole_clients import ClientIdInUse, SoleClients
from tests.core.support import ANYONE, CoreUnderTest, FakeConsumer

TOPIC = "/topic/news"
DURABLE = SubscriptionName("all")
SHARED = DURABLE._replace(is_shared=True)
VOLATILE = SHARED._replace(is_durable=False)


def client(name: str = "c") -> Principal:
    """Return somebody with a client id."""
    return replace(ANYONE, client_id=name)


def subscribe(
    core: CoreUnderTest,
    name: SubscriptionName,
    *,
    who: Principal | None = None,
    to: str = TOPIC,
    selector: str | None = None,
) -> FakeConsumer:
    """Attach a consumer to a subscription."""
    consumer = FakeConsumer()
    consumer.subscription = core.broker.subscribe_by_name(
        who or client(), to, consumer, name, prefetch=1, selector=selector
    )
    consumer.end.resume()
    core.settle()
    return consumer


def end(core: CoreUnderTest, name: SubscriptionName) -> None:
    """Delete a subscription."""
    done: list[bool] = []
    core.broker.end_by_name(client(), name, lambda: done.append(True))
    core.settle()
    assert done == [True]


@pytest.mark.parametrize(
    ("name", "queue"),
    [
        (DURABLE, "c.all"),
        (SHARED, "c.all"),
        (SHARED._replace(is_global=True), "all:global"),
        (VOLATILE, "c.all:shared-volatile"),
        (VOLATILE._replace(is_global=True), "all:shared-volatile:global"),
    ],
)
def test_the_queue_of_a_subscription_is_called_as_in_artemis(
    name: SubscriptionName, queue: str
) -> None:
    """So that clients of either broker find the same."""
    core = CoreUnderTest()
    subscribe(core, name)
    assert [*core.broker.queues()] == [queue]


def test_a_subscription_has_one_consumer_unless_it_is_shared_by_all() -> None:
    """Whoever came first says which it is, until it leaves."""
    core = CoreUnderTest()
    alone = subscribe(core, DURABLE)
    for name in (DURABLE, SHARED):
        with pytest.raises(QueueInUse, match="has a consumer already"):
            subscribe(core, name)
    alone.end.close()
    first, second = subscribe(core, SHARED), subscribe(core, SHARED)
    with pytest.raises(QueueInUse):
        subscribe(core, DURABLE)
    core.send(TOPIC, "a", "b")
    assert sorted(first.texts + second.texts) == ["a", "b"]


def test_a_durable_subscription_outlives_its_consumers() -> None:
    """What was sent meanwhile is there; what it was asked for is known."""
    core = CoreUnderTest()
    subscribe(core, DURABLE, selector="n is null").end.close()
    core.send(TOPIC, "kept")
    found = core.broker.find_by_name(client(), DURABLE)
    assert found == ("news", "n is null", False)
    assert subscribe(core, DURABLE, selector="n is null").texts == ["kept"]


def test_one_that_is_asked_for_otherwise_may_be_ended_and_made_anew() -> None:
    """As JMS has it; while somebody consumes it, it stays as it is."""
    core = CoreUnderTest()
    consumer = subscribe(core, SHARED)
    with pytest.raises(DestinationRefused) as refused:
        subscribe(core, SHARED, selector="n = 1")
    assert not isinstance(refused.value, SubscriptionChanged)
    consumer.end.close()
    with pytest.raises(SubscriptionChanged):
        subscribe(core, SHARED, selector="n = 1")
    end(core, SHARED)
    subscribe(core, SHARED, selector="n = 1")
    assert core.broker.find_by_name(client(), SHARED).selector == "n = 1"


def test_what_is_not_there_is_neither_found_nor_ended() -> None:
    """Nor what is another client's."""
    core = CoreUnderTest()
    subscribe(core, DURABLE, who=client("other"))
    with pytest.raises(NoSuchSubscription):
        core.broker.find_by_name(client(), DURABLE)
    with pytest.raises(NoSuchSubscription):
        core.broker.end_by_name(client(), DURABLE, lambda: None)


def test_a_shared_subscription_that_is_not_durable_ends_with_its_last_consumer() -> None:
    """With what it has; the next one begins empty."""
    core = CoreUnderTest()
    first, second = subscribe(core, VOLATILE), subscribe(core, VOLATILE)
    core.send(TOPIC, "a", "b", "c")
    assert sorted(first.texts + second.texts) == ["a", "b"]
    first.end.close()
    core.settle()
    assert core.broker.queues()
    second.end.close()
    core.settle()
    assert not core.broker.queues()
    core.send(TOPIC, "lost")
    third = subscribe(core, VOLATILE)
    assert third.texts == []
    assert core.takeover().counted().broker.queues() == {}


def test_a_shared_subscription_that_an_operator_deletes_begins_anew() -> None:
    """Whoever subscribes next shares it with nobody of before, and may want another selector."""
    core = CoreUnderTest()
    first = subscribe(core, VOLATILE)
    core.broker.delete_queue(ANYONE, "c.all:shared-volatile", lambda _: None, force=True)
    core.settle()
    assert first.failures
    second = subscribe(core, VOLATILE, selector="n IS NULL")
    core.send(TOPIC, "a")
    assert second.texts == ["a"]


@pytest.mark.parametrize("to", ["/queue/news", "/topic/news::q"])
def test_a_shared_subscription_is_to_a_topic(to: str) -> None:
    """A queue is shared without one."""
    with pytest.raises(BrokerError, match="expected a topic"):
        subscribe(CoreUnderTest(), VOLATILE, to=to)


def test_those_who_share_a_subscription_share_what_it_is() -> None:
    """Its topic and its selector, and its name is no other queue's."""
    core = CoreUnderTest()
    subscribe(core, VOLATILE)
    with pytest.raises(DestinationRefused, match="its consumers have these in common"):
        subscribe(core, VOLATILE, selector="n = 1")
    core.send("/queue/c.other:shared-volatile", "a")
    with pytest.raises(DestinationRefused, match="is another's"):
        subscribe(core, VOLATILE._replace(name="other"))


def test_one_connection_alone_has_a_client_id() -> None:
    """Until it is gone; what another one releases does not count."""
    clients, one, other = SoleClients(), object(), object()
    clients.claim("c", one)
    clients.claim("c", one)
    with pytest.raises(ClientIdInUse, match="'c' is another connection's"):
        clients.claim("c", other)
    clients.release("c", other)
    with pytest.raises(ClientIdInUse):
        clients.claim("c", other)
    clients.release("c", one)
    clients.claim("c", other)
