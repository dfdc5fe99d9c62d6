"""Consumers of Classic's virtual topics: ``virtualTopicConsumerWildcards`` of an acceptor."""

import pytest

from orthia.broker.protocols.prefixes import Prefixes
from orthia.broker.protocols.stomp.virtual_topics import VirtualTopics
from orthia.config.settings import AcceptorSettings, Settings, VirtualTopicConsumers
from tests.core.support import CoreUnderTest, settings
from tests.stomp.support import PASSCODE, Client, bodies, secured

ACCEPTOR = AcceptorSettings(
    "a",
    "h",
    1,
    anycast_prefixes=("jms.queue.",),
    virtual_topic_consumers=(VirtualTopicConsumers("Consumer.*.>", 2),),
)
NAME = "Consumer.app1.VirtualTopic.Orders"


def client_of_classic(core: CoreUnderTest) -> Client:
    """Return a client of an acceptor with the parameter."""
    return Client(core, prefixes=Prefixes.of(ACCEPTOR), virtual_topics=VirtualTopics.of(ACCEPTOR))


def subscribed(core: CoreUnderTest, destination: str = f"/queue/{NAME}") -> Client:
    """Return such a client that consumes."""
    client = client_of_classic(core)
    client.send("SUBSCRIBE", destination=destination, id="s")
    return client


@pytest.mark.parametrize("destination", [f"/queue/{NAME}", NAME, f"jms.queue.{NAME}"])
def test_each_application_gets_each_message_once(destination: str) -> None:
    """Its consumers share them; they are there when it comes back, and after a takeover."""
    core = CoreUnderTest()
    mine = [subscribed(core, destination) for _ in range(2)]
    other = subscribed(core, "/queue/Consumer.app2.VirtualTopic.Orders")
    for text in "abcd":
        client_of_classic(core).send("SEND", text, destination="/topic/VirtualTopic.Orders")
    shared = [frame for client in mine for frame in client.frames()]
    assert sorted(bodies(shared)) == list("abcd")
    assert {frame.get(b"destination") for frame in shared} == {destination}
    assert bodies(other.frames()) == list("abcd")
    for client in mine:
        client.send("DISCONNECT")
    client_of_classic(core).send("SEND", "e", destination="/topic/VirtualTopic.Orders")
    successor = core.takeover()
    assert bodies(subscribed(successor, destination).frames()) == ["e"]


def test_it_is_browsed_by_its_name_too() -> None:
    """And nothing is taken by that."""
    core = CoreUnderTest()
    subscribed(core).send("DISCONNECT")
    client_of_classic(core).send("SEND", "a", destination="/topic/VirtualTopic.Orders")
    looking = client_of_classic(core)
    looking.send("SUBSCRIBE", destination=f"/queue/{NAME}", id="b", browser="true")
    assert bodies(looking.frames())[:1] == ["a"]
    assert bodies(subscribed(core).frames()) == ["a"]


@pytest.mark.parametrize(
    "destination",
    [
        "/queue/orders",
        "/queue/Consumer.app1",
        f"/topic/{NAME}",
        f"/queue/orders::{NAME}",
        "Other.a.b",
    ],
)
def test_other_names_mean_what_they_mean_without(destination: str) -> None:
    """Topics, names that say their address, and names that do not match."""
    assert VirtualTopics.of(ACCEPTOR) is not None
    assert VirtualTopics(ACCEPTOR.virtual_topic_consumers).of_core(destination) == destination


@pytest.mark.parametrize(
    ("pattern", "words", "name", "topic"),
    [
        ("A.>", 1, "A.T", "T"),
        ("A.>", 1, "A", None),
        ("B.*.>", 2, "B.b.T.x", "T.x"),
        ("B.*.>", 2, "B.b", None),
        ("C.*.*.*.EE", 3, "C.c.c.T.EE", "T.EE"),
        ("C.*.*.*.EE", 3, "C.c.c.T.FF", None),
        ("C.*.*.*.EE", 3, "C.c.c.T.EE.F", None),
        (">", 4, "a.b.c.d", None),
        (">", 4, "a.b.c.d.e", "e"),
    ],
)
def test_which_topic_a_name_is_of(pattern: str, words: int, name: str, topic: str | None) -> None:
    """As in Artemis; a name of which nothing would be left is not one."""
    assert VirtualTopicConsumers(pattern, words).topic_of(name) == topic


def test_what_is_sent_to_the_queues_name_is_refused() -> None:
    """By the address that the queue is of: nobody would find it in the topic."""
    core = CoreUnderTest()
    subscribed(core)
    client = client_of_classic(core)
    client.send("SEND", "a", destination=f"/queue/{NAME}")
    assert "belongs to address 'VirtualTopic.Orders': send to that" in client.error()


def test_a_queue_of_before_the_parameter_is_told_of() -> None:
    """It keeps what it has; who consumes hears that it is not the topic's."""
    core = CoreUnderTest()
    core.send(f"/queue/{NAME}", "old")
    client = client_of_classic(core)
    client.send("SUBSCRIBE", destination=f"/queue/{NAME}", id="s")
    assert f"queue '{NAME}' belongs to address '{NAME}', not to" in client.error()


def test_without_the_parameter_it_is_a_queue_and_the_log_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Once, as in Artemis it is one; a queue of the topic that is called so is consumed."""
    core = CoreUnderTest(settings(auto_delete_queues=False))
    for name in (NAME, "Consumer.app2.VirtualTopic.Orders"):
        client = Client(core)
        client.send("SUBSCRIBE", destination=f"/queue/{name}", id="s", receipt="r")
        assert client.commands() == ["RECEIPT"]
    Client(core).send("SEND", "a", destination="/topic/VirtualTopic.Orders")
    assert core.broker.depths() == {NAME: 0, "Consumer.app2.VirtualTopic.Orders": 0}
    (told,) = [one for one in caplog.messages if "virtualTopicConsumerWildcards" in one]
    assert told.startswith(f"a client consumes from '{NAME}', as clients of Classic do")
    assert "Consumer.*.%3E%3B2" in told


def test_a_queue_of_the_topic_needs_no_parameter(caplog: pytest.LogCaptureFixture) -> None:
    """It is the topic's already, and nothing is told."""
    core = CoreUnderTest()
    core.consume(f"/topic/VirtualTopic.Orders::{NAME}").end.close()
    client = Client(core)
    client.send("SUBSCRIBE", destination=f"/queue/{NAME}", id="s")
    Client(core).send("SEND", "a", destination="/topic/VirtualTopic.Orders")
    assert bodies(client.frames()) == ["a"]
    assert not [one for one in caplog.messages if "virtualTopicConsumerWildcards" in one]


def _guarded(*topics: str) -> Settings:
    """Return settings of a user who has all rights on queues of consumers and on some topics."""
    everything = {"r": "send consume createAddress createDurableQueue"}
    granted = dict.fromkeys(("Consumer.#", *topics), everything)
    return secured({"eve": "r"}, granted, acceptors=(ACCEPTOR,))


def _eve(core: CoreUnderTest) -> Client:
    return Client(core, login="eve", passcode=PASSCODE, client_id="Consumer.a")


_SQUATTED = "Consumer.a.VirtualTopic.private.x"
_SQUATTING = [
    f"/queue/VirtualTopic.public::{_SQUATTED}",
    f"/topic/VirtualTopic.public::{_SQUATTED}",
    f"/queue/{_SQUATTED}",
]


@pytest.mark.parametrize("frame", ["SEND", "SUBSCRIBE"])
@pytest.mark.parametrize("destination", _SQUATTING)
def test_nobody_takes_the_queue_of_a_topic_without_its_rights(destination: str, frame: str) -> None:
    """By whatever address; with them it is a name like others."""
    core = CoreUnderTest(_guarded("VirtualTopic.public"))
    eve = _eve(core)
    eve.send(frame, destination=destination, id="s")
    assert (
        f"on address 'VirtualTopic.private.x', whose consumer queue '{_SQUATTED}' is called as"
        in eve.error()
    )
    assert core.broker.depths() == {}
    core = CoreUnderTest(_guarded("VirtualTopic.#"))
    eve = _eve(core)
    eve.send(frame, destination=destination, id="s", receipt="r")
    assert eve.commands() == ["RECEIPT"]
    core = core.takeover(_guarded("VirtualTopic.public"))
    eve = _eve(core)
    eve.send("SUBSCRIBE", destination=destination, id="s")
    assert "permission 'consume' on address 'VirtualTopic.private.x'" in eve.error()


def test_no_durable_subscription_takes_such_a_name() -> None:
    """Its queue is called ``CLIENT-ID.NAME``."""
    core = CoreUnderTest(_guarded("VirtualTopic.public"))
    eve = _eve(core)
    durable = {"id": "s", "durable-subscription-name": "VirtualTopic.private.x"}
    eve.send("SUBSCRIBE", destination="/topic/VirtualTopic.public", **durable)
    assert "on address 'VirtualTopic.private.x'" in eve.error()
    assert core.broker.depths() == {}
