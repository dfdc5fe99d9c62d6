"""Subscriptions of topics by the names of links, as JMS clients make, share and end them."""

from typing import Any

import pytest

from orthia.broker.protocols.amqp.performatives import (
    RECEIVER,
    Attach,
    Detach,
    Source,
    Target,
)
from orthia.broker.protocols.amqp.values import Described, Symbol, ULong, Value
from tests.amqp.support import Client
from tests.core.support import CoreUnderTest
from tests.stomp.support import Client as StompClient

TOPIC = Symbol("topic")
SHARED = Symbol("shared")
GLOBAL = Symbol("global")
NO_LOCAL = Described(ULong(0x0000468C00000003), [])


def source(
    *capabilities: Symbol, durable: int = 2, selector: str | None = None, no_local: bool = False
) -> Source:
    """Return the source of a subscription of news."""
    filters: dict[Symbol, Value] = {}
    if selector is not None:
        filters[Symbol("jms-selector")] = Described(ULong(0x0000468C00000004), selector)
    if no_local:
        filters[Symbol("no-local")] = NO_LOCAL
    return Source("news", durable, filter=filters, capabilities=(TOPIC, *capabilities))


def subscribe(client: Client, name: str, *capabilities: Symbol, **said: Any) -> int:
    """Attach a link to a subscription, with credit; return its handle."""
    return client.receiver("", 10, name=name, source=source(*capabilities, **said))


def finding(name: str, *capabilities: Symbol, handle: int = 9) -> Attach:
    """Return the attach of a link to a subscription that is there."""
    return Attach(
        name, handle, RECEIVER, source=None, target=Target(), desired_capabilities=capabilities
    )


def detach(client: Client, handle: int, *, closed: bool) -> None:
    """End a link; the client is answered without an error."""
    client.say(Detach(handle, closed=closed))
    assert client.take(Detach) == Detach(handle, closed=closed)


def publish(client: Client, *texts: str, **said: Any) -> None:
    """Send news."""
    handle = client.sender("", target=Target("news", capabilities=(TOPIC,)))
    client.send(handle, *texts, **said)


@pytest.mark.parametrize(
    ("name", "capabilities", "durable", "queue"),
    [
        ("audit", (), 2, "client.audit"),
        ("audit|x", (), 2, "client.audit|x"),
        ("audit", (SHARED,), 2, "client.audit"),
        ("audit|2", (SHARED,), 2, "client.audit"),
        ("audit|global", (SHARED, GLOBAL), 2, "audit:global"),
        ("audit|volatile1", (SHARED,), 0, "client.audit:shared-volatile"),
        ("audit|global-volatile1", (SHARED, GLOBAL), 0, "audit:shared-volatile:global"),
    ],
)
def test_the_queue_of_a_subscription_is_called_by_its_link(
    name: str, capabilities: tuple[Symbol, ...], durable: int, queue: str
) -> None:
    """As in Artemis, of which qpid-jms writes a number behind the name of those it shares."""
    core = CoreUnderTest()
    subscribe(Client(core), name, *capabilities, durable=durable)
    assert [*core.broker.queues()] == [queue]


def test_a_durable_subscription_outlives_its_links_and_ends_with_a_closing_detach() -> None:
    """What is sent while nobody is there waits for its client; the next one begins empty."""
    core = CoreUnderTest()
    client = Client(core)
    detach(client, subscribe(client, "audit"), closed=False)
    client.connection.connection_lost()
    core.send("/topic/news", "kept")
    client = Client(core)
    handle = subscribe(client, "audit")
    assert client.texts() == ["kept"]
    detach(client, handle, closed=True)
    assert not core.broker.queues()
    subscribe(client, "audit")
    assert client.texts() == []


def test_a_link_that_is_no_durable_subscription_ends_without_a_word_of_one() -> None:
    """Of a topic, or of a shared subscription that ends with its last link."""
    core = CoreUnderTest()
    client = Client(core)
    for capabilities in ((), (SHARED,)):
        detach(client, subscribe(client, "n", *capabilities, durable=0), closed=True)
    core.settle()
    assert not core.broker.queues()


def test_a_subscription_is_found_by_a_link_without_a_source() -> None:
    """Its client learns what it is, and has no more of it than before; so JMS unsubscribes."""
    core = CoreUnderTest()
    client = Client(core)
    wanted = source(selector="n = 1", no_local=True)
    detach(client, client.receiver("", name="audit", source=wanted), closed=False)
    found = client.attach(finding("audit")).source
    assert found is not None
    assert (found.address, found.durable, found.capabilities) == ("news", 2, (TOPIC,))
    assert found.filter == wanted.filter
    client.flow(9, 10)
    publish(client, "own", application={"n": 1})
    other = Client(core, container_id="other")
    publish(other, "other", application={"n": 1})
    publish(other, "another", application={"n": 2})
    client.say(Detach(9))
    assert client.texts() == ["other"]
    client.attach(finding("audit"))
    detach(client, 9, closed=True)
    assert not core.broker.queues()
    assert client.refused(finding("audit")).condition == "amqp:not-found"


def test_a_shared_subscription_is_found_by_what_it_is_shared_by() -> None:
    """By all of its client id, or by everybody."""
    core = CoreUnderTest()
    client = Client(core)
    detach(client, subscribe(client, "audit|global", SHARED, GLOBAL), closed=False)
    assert client.refused(finding("audit", SHARED)).condition == "amqp:not-found"
    client.say(Detach(9, closed=True))
    other = Client(core, container_id="other")
    other.attach(finding("audit|global", SHARED, GLOBAL))
    detach(other, 9, closed=True)
    assert not core.broker.queues()


def test_links_that_share_a_subscription_share_its_messages() -> None:
    """It ends with the last link that closes it, and stays while it has others."""
    core = CoreUnderTest()
    client = Client(core)
    one, other = (subscribe(client, name, SHARED) for name in ("audit", "audit|2"))
    core.send("/topic/news", *"abcd")
    messages = client.messages()
    assert {message.text for message in messages} == {*"abcd"}
    assert len(messages) == 4
    assert {message.transfer.handle for message in messages} == {one, other}
    client.settle(*messages)
    detach(client, one, closed=True)
    assert [*core.broker.queues()] == ["client.audit"]
    detach(client, other, closed=True)
    assert not core.broker.queues()


@pytest.mark.parametrize("durable", [0, 2])
def test_who_shares_a_subscription_wants_the_same_of_it(durable: int) -> None:
    """Nobody gets what another's selector leaves out."""
    core = CoreUnderTest()
    client = Client(core)
    subscribe(client, "audit", SHARED, durable=durable, selector="n = 1")
    attach = Attach("audit|2", 9, RECEIVER, source=source(SHARED, durable=durable))
    error = client.refused(attach)
    assert error.condition == "amqp:not-found"
    assert "selector" in (error.description or "")


def test_a_subscription_that_is_not_shared_has_one_link() -> None:
    """Of whatever connection, also if the second would share it."""
    core = CoreUnderTest()
    subscribe(Client(core), "audit")
    other = Client(core)
    for capabilities in ((), (SHARED,)):
        attach = Attach("audit", 9, RECEIVER, source=source(*capabilities))
        assert other.refused(attach).condition == "amqp:resource-locked"


@pytest.mark.parametrize("changed", [{"selector": "n = 2"}, {"no_local": True}])
def test_a_subscription_that_is_asked_for_otherwise_is_made_anew(changed: dict[str, Any]) -> None:
    """As JMS has it: what it kept was for another."""
    core = CoreUnderTest()
    client = Client(core)
    detach(client, subscribe(client, "audit", selector="n = 1"), closed=False)
    other = Client(core, container_id="other")
    publish(other, "old", application={"n": 1})
    subscribe(client, "audit", **changed)
    publish(client, "own", application={"n": 2})
    publish(other, "new", application={"n": 2})
    assert client.texts() == (["new"] if "no_local" in changed else ["own", "new"])


def test_a_durable_subscription_leaves_out_what_its_client_sends() -> None:
    """By any connection of its client id."""
    core = CoreUnderTest()
    client = Client(core)
    subscribe(client, "audit", no_local=True)
    publish(client, "own")
    publish(Client(core), "own, too")
    publish(Client(core, container_id="other"), "other")
    assert client.texts() == ["other"]


def test_a_durable_subscription_of_stomp_is_the_same() -> None:
    """By the client id and the name that both say."""
    core = CoreUnderTest()
    stomp = StompClient(core, client_id="client")
    stomp.send("SUBSCRIBE", destination="/topic/news", id="1", durable_subscription_name="audit")
    stomp.send("DISCONNECT")
    core.send("/topic/news", "kept")
    client = Client(core)
    handle = subscribe(client, "audit")
    (message,) = client.messages()
    client.settle(message)
    detach(client, handle, closed=True)
    assert message.text == "kept"
    assert not core.broker.queues()
