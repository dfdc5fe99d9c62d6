"""Subscriptions to many topics at once, by wildcards."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orthia.broker.protocols.prefixes import Prefixes
from orthia.config.settings import AcceptorSettings, Settings
from orthia.config.wildcards import WildcardAddresses
from tests.core.support import SETTINGS, CoreUnderTest
from tests.stomp.support import PASSCODE, Client, bodies, secured


def heard(client: Client) -> list[tuple[str, str]]:
    """Return the destination and the body of each message that came."""
    return [(one.get(b"destination") or "", one.body.decode()) for one in client.frames()]


def subscriber(core: CoreUnderTest, destination: str, version: str = "1.2") -> Client:
    """Return a subscriber."""
    client = Client(core, version)
    client.send("SUBSCRIBE", destination=destination, id="s")
    assert client.frames() == []
    return client


@pytest.mark.parametrize("version", ["1.0", "1.1", "1.2"])
def test_a_subscription_hears_what_matches(version: str) -> None:
    """Addresses that are there and those that come; each MESSAGE says which it was sent to."""
    core = CoreUnderTest()
    core.send("/topic/news.old", "before")
    every = subscriber(core, "/topic/news.#", version)
    one_word = subscriber(core, "/topic/news.*", version)
    plain = subscriber(core, "/topic/news.eu", version)
    for name in ("news", "news.old", "news.eu", "news.eu.it", "newspaper", "other"):
        core.send(f"/topic/{name}", name)
    all_of_it = ["news", "news.old", "news.eu", "news.eu.it"]
    assert heard(every) == [(f"/topic/{name}", name) for name in all_of_it]
    assert heard(one_word) == [("/topic/news.old", "news.old"), ("/topic/news.eu", "news.eu")]
    assert heard(plain) == [("/topic/news.eu", "news.eu")]
    every.send("DISCONNECT")
    one_word.send("UNSUBSCRIBE", id="s")
    core.send("/topic/news.eu", "after")
    assert heard(plain) == [("/topic/news.eu", "after")]
    assert heard(one_word) == []


def test_what_shares_a_frame_says_where_it_was_sent() -> None:
    """Subscribers of one version and of another way to say the destination get each their own."""
    core = CoreUnderTest()
    first, second = subscriber(core, "/topic/news.#"), subscriber(core, "/topic/news.#")
    prefixes = Prefixes(AcceptorSettings("a", "h", 1, multicast_prefixes=("jms.topic.",)))
    third = Client(core, prefixes=prefixes)
    third.send("SUBSCRIBE", destination="jms.topic.news.#", id="s")
    core.send("/topic/news.a", "1")
    core.send("/topic/news.b", "2")
    assert heard(first) == heard(second) == [("/topic/news.a", "1"), ("/topic/news.b", "2")]
    assert heard(third) == [("jms.topic.news.a", "1"), ("jms.topic.news.b", "2")]


def test_a_transaction_is_heard() -> None:
    """At its COMMIT."""
    core = CoreUnderTest()
    every = subscriber(core, "/topic/#")
    sender = Client(core)
    sender.send("BEGIN", transaction="t")
    sender.send("SEND", "1", destination="/topic/a", transaction="t")
    sender.send("SEND", "2", destination="/topic/b.c", transaction="t")
    assert heard(every) == []
    sender.send("COMMIT", transaction="t")
    assert heard(every) == [("/topic/a", "1"), ("/topic/b.c", "2")]


def test_a_durable_subscription_hears_what_matches() -> None:
    """While its client is away and after a takeover, also addresses nobody knew."""
    core = CoreUnderTest()
    durable = {"destination": "/topic/news.#", "id": "s", "durable-subscription-name": "all"}
    client = Client(core, client_id="me")
    client.send("SUBSCRIBE", **durable)
    core.send("/topic/news.a", "1")
    assert heard(client) == [("/topic/news.a", "1")]
    client.send("DISCONNECT")
    core.send("/topic/news.a", "2")
    successor = core.takeover()
    successor.send("/topic/news.b", "3")
    successor.send("/topic/other", "4")
    again = Client(successor, client_id="me")
    again.send("SUBSCRIBE", **durable)
    assert heard(again) == [("/topic/news.a", "2"), ("/topic/news.b", "3")]


def test_classics_word_is_refused_by_name() -> None:
    """Unless it is configured."""
    client = Client(CoreUnderTest())
    client.send("SUBSCRIBE", destination="/topic/news.>", id="s")
    assert "here * is one word, # any number of them" in client.error()
    classic = replace(SETTINGS, wildcard_addresses=WildcardAddresses(any_words=">"))
    core = CoreUnderTest(classic)
    every = subscriber(core, "/topic/news.>")
    core.send("/topic/news.a.b", "1")
    assert heard(every) == [("/topic/news.a.b", "1")]


def test_other_words_and_delimiters() -> None:
    """As wildcard-addresses says; what were wildcards before are words like others."""
    words = WildcardAddresses(delimiter="/", any_words="**", single_word="+")
    core = CoreUnderTest(replace(SETTINGS, wildcard_addresses=words))
    every = subscriber(core, "/topic/a/+/**")
    core.send("/topic/a/b/c", "1")
    core.send("/topic/a", "2")
    core.send("/topic/a.b", "3")
    assert heard(every) == [("/topic/a/b/c", "1")]


def test_routing_can_be_off() -> None:
    """Then it is refused: nobody waits for what never comes."""
    off = replace(SETTINGS, wildcard_addresses=WildcardAddresses(routing_enabled=False))
    client = Client(CoreUnderTest(off))
    client.send("SUBSCRIBE", destination="/topic/news.#", id="s")
    assert "routing-enabled of wildcard-addresses is false" in client.error()


def _secured(matches: dict[str, str]) -> Settings:
    """Return settings of user u, who has the role r; ``matches`` name the consumers' role."""
    created = {"r": "createAddress createNonDurableQueue"}
    granted = {
        match: {"r": f"{created['r']} consume"} if role == "r" else created | {role: "consume"}
        for match, role in matches.items()
    }
    return secured({"u": "r"}, granted)


@pytest.mark.parametrize(
    ("settings", "allowed"),
    [
        (_secured({"#": "r"}), True),
        (_secured({"#": "r", "news.secret": "other"}), False),
        (_secured({"#": "r", "news.secret.#": "other"}), False),
        (_secured({"#": "r", "other.#": "other"}), True),
        (_secured({"#": "other", "news.#": "r"}), True),
        (_secured({"news.eu": "r"}), False),
    ],
)
def test_a_subscriber_needs_the_permission_on_all_it_may_hear(
    settings: Settings, *, allowed: bool
) -> None:
    """Not on the name with wildcards alone: so nobody hears what is forbidden by its own name."""
    client = Client(CoreUnderTest(settings), login="u", passcode=PASSCODE)
    client.send("SUBSCRIBE", destination="/topic/news.#", id="s", receipt="r")
    if allowed:
        assert client.commands() == ["RECEIPT"]
    else:
        assert "permission 'consume' on" in client.error()


def test_very_many_patterns_hear_one_message() -> None:
    """Each its own, and the sender has its RECEIPT."""
    core = CoreUnderTest()
    listeners, sender = [Client(core), Client(core)], Client(core)
    words = "a.b.c.d.e.f.g.h.i.j.k".split(".")
    for number in range(1, 1_201):
        wild = ["*" if number >> at & 1 else word for at, word in enumerate(words)]
        listeners[number % 2].send(
            "SUBSCRIBE", destination=f"/topic/{'.'.join(wild)}", id=str(number)
        )
    for number in range(3):
        sender.send("SEND", str(number), destination=f"/topic/{'.'.join(words)}", receipt="r")
        assert sender.commands() == ["RECEIPT"]
        heard_by_all = [body for one in listeners for body in bodies(one.frames())]
        assert heard_by_all == [str(number)] * 1_200


@given(st.data())
def test_subscriptions_hear_what_matches_whoever_comes_and_goes(data: st.DataObject) -> None:
    """As if each message was matched against each name."""
    core = CoreUnderTest()
    core.broker.parts.book._sweep_at = data.draw(st.integers(1, 8))
    names = ["a", "b", "a.a", "a.b", "b.a", "b.b.a"]
    wild = ["#", "*", "a.#", "*.a", "b.*", "#.a"]
    clients: dict[str, Client] = {}
    for number in range(data.draw(st.integers(1, 25))):
        match = data.draw(st.sampled_from(wild))
        name = data.draw(st.sampled_from(names))
        if data.draw(st.booleans()):
            core.send(f"/topic/{name}", str(number))
            for pattern, client in clients.items():
                matches = WildcardAddresses().matches(pattern, name)
                assert bodies(client.frames()) == [str(number)] * matches
        elif match in clients:
            clients.pop(match).send("DISCONNECT")
        else:
            clients[match] = subscriber(core, f"/topic/{match}")


@pytest.mark.parametrize("browser", ["false", "true"])
def test_what_a_durable_subscription_heard_is_as_forbidden(browser: str) -> None:
    """By the name of its queue nobody gets what it is not to hear by its address."""
    created = "send createAddress createNonDurableQueue createDurableQueue"
    secret = {"r": created, "other": "consume browse"}
    granted = {"#": {"r": f"{created} consume browse"}, "news.secret": secret}
    core = CoreUnderTest(secured({"u": "r", "boss": "r other"}, granted))
    boss = Client(core, login="boss", passcode=PASSCODE, client_id="boss")
    durable = {"id": "s", "durable-subscription-name": "all", "receipt": "r"}
    boss.send("SUBSCRIBE", destination="/topic/news.#", **durable)
    boss.send("UNSUBSCRIBE", id="s")
    boss.send("SEND", "top secret", destination="/topic/news.secret", receipt="s")
    assert boss.commands() == ["RECEIPT", "RECEIPT"]
    for destination in ("/queue/boss.all", "boss.all", "/topic/news.#::boss.all"):
        eve = Client(core, login="u", passcode=PASSCODE)
        eve.send("SUBSCRIBE", destination=destination, id="s", browser=browser)
        assert "of which 'news.#' stands for some" in eve.error()


def test_a_setting_of_one_queue_does_not_decide_what_a_topic_is_heard_by() -> None:
    """ADDRESS::QUEUE is about that queue alone."""
    settings = _secured({"#": "r", "news.a::mine": "other"})
    client = Client(CoreUnderTest(settings), login="u", passcode=PASSCODE)
    client.send("SUBSCRIBE", destination="/topic/news.#", id="s", receipt="r")
    assert client.commands() == ["RECEIPT"]
