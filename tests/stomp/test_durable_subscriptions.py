"""Durable subscriptions: a topic's messages wait for a client that is away."""

from dataclasses import replace

import pytest

from orthia.config.address_settings import (
    AddressConfiguration,
    AddressSettings,
    QueueSettings,
    RoutingType,
)
from orthia.config.settings import ClientLimits, Settings
from tests.core.support import SETTINGS, CoreUnderTest, anyone, message
from tests.stomp.support import PASSCODE, Client, bodies, secured

TOPIC = "/topic/news"
_NEEDED = "send consume createAddress createDurableQueue deleteDurableQueue"
NAMES = ["durable-subscription-name", "durable-subscriber-name", "activemq.subscriptionName"]


def client(core: CoreUnderTest, client_id: str = "me", version: str = "1.2") -> Client:
    """Return a client with a client id."""
    return Client(core, version, client_id=client_id)


def subscribe(
    subscriber: Client, name: str = "paper", destination: str = TOPIC, **headers: str
) -> list[str]:
    """Subscribe durably, and return the bodies that come at once."""
    given = {"durable-subscription-name": name, "ack": "auto", "id": "s", **headers}
    subscriber.send("SUBSCRIBE", destination=destination, **given)
    return bodies(subscriber.frames())


def leave(subscriber: Client) -> None:
    """Disconnect."""
    subscriber.send("DISCONNECT")
    assert subscriber.closed


@pytest.mark.parametrize("header", NAMES)
@pytest.mark.parametrize("version", ["1.0", "1.1", "1.2"])
def test_what_is_sent_while_a_subscriber_is_away_waits_for_it(version: str, header: str) -> None:
    """By whatever name the header goes, and across a takeover; what it had acknowledged is gone."""
    core = CoreUnderTest()
    subscriber = client(core, version=version)
    subscriber.send("SUBSCRIBE", destination=TOPIC, id="s", **{header: "paper"})
    core.send(TOPIC, "1")
    assert bodies(subscriber.frames()) == ["1"]
    leave(subscriber)
    core.send(TOPIC, "2", "3")
    again = client(core, version=version)
    again.send("SUBSCRIBE", destination=TOPIC, id="s", **{header: "paper"})
    assert bodies(again.frames()) == ["2", "3"]
    leave(again)
    core.send(TOPIC, "4")
    successor = core.takeover()
    successor.send(TOPIC, "5")
    assert subscribe(client(successor)) == ["4", "5"]
    assert list(successor.broker.queues()) == ["me.paper"]


def _with_selectors(characters: int) -> Settings:
    """Return settings of two users, with room for so many characters of selectors."""
    limits = ClientLimits(max_selector_bytes=100 * characters)
    return secured(
        dict.fromkeys(("ada", "bob"), "all"), {"#": {"all": _NEEDED}}, stomp_limits=limits
    )


def _of(core: CoreUnderTest, user: str) -> Client:
    return Client(core, login=user, passcode=PASSCODE, client_id=user)


def _refusal(subscriber: Client, name: str, selector: str) -> str:
    headers = {NAMES[0]: name, "id": name, "selector": selector}
    subscriber.send("SUBSCRIBE", destination=TOPIC, **headers)
    return subscriber.error()


def test_selectors_of_a_user_are_bounded_whoever_serves() -> None:
    """Equal ones count once; another user has room, and what is deleted makes some."""
    given = _with_selectors(80)
    core = CoreUnderTest(given)
    for name in ("one", "two", "three"):
        subscribe(_of(core, "ada"), name, selector="a = 1" + " " * 60)
    for _ in range(2):
        assert (
            "the selectors of durable subscriptions of user 'ada' are 6500 bytes, and one may have"
            " 7000 of max-selector-bytes 8000: that of 'ada.four' is 600 more"
        ) in _refusal(_of(core, "ada"), "four", "b = 22")
        assert subscribe(_of(core, "bob"), "four", selector="b = 22") == []
        core = core.takeover(given)
    refused = _refusal(_of(core, "bob"), "five", "c = 1234567")
    assert "are 7100 bytes, and all may have max-selector-bytes 8000" in refused
    for name in ("one", "two", "three"):
        subscriber = _of(core, "ada")
        subscriber.send("UNSUBSCRIBE", id="s", **{NAMES[0]: name})
        core.settle()
        leave(subscriber)
    subscriber = _of(core, "ada")
    assert subscribe(subscriber, "four", selector="c = 1234567") == []
    leave(subscriber)
    smaller = core.takeover(_with_selectors(10))
    assert list(smaller.broker.queues()) == ["bob.four", "ada.four"]


def test_another_user_of_the_same_client_id_neither_uses_nor_ends_it() -> None:
    """A client-id is what a client says; its messages are there for the user who made it."""
    given = _with_selectors(1_000)
    core = CoreUnderTest(given)
    subscriber = _of(core, "ada")
    assert subscribe(subscriber) == []
    leave(subscriber)
    for _ in range(2):
        core.broker.send(anyone(), TOPIC, message("1"), None)
        for frame in ("SUBSCRIBE", "UNSUBSCRIBE"):
            bob = Client(core, login="bob", passcode=PASSCODE, client_id="ada")
            bob.send(frame, destination=TOPIC, id="s", **{NAMES[0]: "paper"})
            assert "was made by another user, and user 'bob' may neither use" in bob.error()
        core = core.takeover(given)
    assert subscribe(_of(core, "ada")) == ["1", "1"]


def test_one_that_was_made_without_security_is_its_client_ids() -> None:
    """Nobody knows who made it."""
    core = CoreUnderTest()
    subscriber = client(core, "ada")
    subscribe(subscriber)
    leave(subscriber)
    core.send(TOPIC, "1")
    assert subscribe(_of(core.takeover(_with_selectors(1_000)), "ada")) == ["1"]


def test_selectors_of_a_connection_are_bounded_where_there_are_no_users() -> None:
    """Another connection has what is left."""
    core = CoreUnderTest(replace(SETTINGS, stomp_limits=ClientLimits(max_selector_bytes=8_000)))
    greedy = client(core)
    subscribe(greedy, selector="a = 1" + " " * 60)
    subscribe(client(core, "other"), selector="b = 22")
    refused = _refusal(greedy, "two", "c = 22")
    assert "of this connection are 6500 bytes, and one may have 7000" in refused


def test_subscriptions_are_apart() -> None:
    """By client id and by name, and from subscribers that are not durable."""
    core = CoreUnderTest()
    for client_id, name in (("me", "a"), ("me", "b"), ("you", "a")):
        leaving = client(core, client_id)
        subscribe(leaving, name)
        leave(leaving)
    passer_by = Client(core)
    passer_by.send("SUBSCRIBE", destination=TOPIC, id="s")
    core.send(TOPIC, "1")
    assert bodies(passer_by.frames()) == ["1"]
    for client_id, name in (("me", "a"), ("me", "b"), ("you", "a")):
        assert subscribe(client(core, client_id), name) == ["1"]


def test_unsubscribe_without_the_name_detaches() -> None:
    """The subscription goes on keeping messages."""
    core = CoreUnderTest()
    subscriber = client(core)
    subscribe(subscriber)
    subscriber.send("UNSUBSCRIBE", id="s", receipt="r")
    assert subscriber.commands() == ["RECEIPT"]
    core.send(TOPIC, "1")
    assert bodies(subscriber.frames()) == []
    assert subscribe(subscriber) == ["1"]


@pytest.mark.parametrize("header", NAMES)
@pytest.mark.parametrize("is_subscribed", [True, False])
def test_unsubscribe_with_the_name_deletes_it(header: str, *, is_subscribed: bool) -> None:
    """With what it has; also by a client that is not subscribed now, as in Artemis."""
    core = CoreUnderTest()
    subscriber = client(core)
    subscribe(subscriber)
    core.send("/queue/other", "stays")
    if not is_subscribed:
        leave(subscriber)
        core.send(TOPIC, "1")
        subscriber = client(core)
    subscriber.send("UNSUBSCRIBE", id="s", receipt="r", **{header: "paper"})
    core.pass_time(1)
    assert subscriber.commands() == ["RECEIPT"]
    assert list(core.broker.queues()) == ["other"]
    core.send(TOPIC, "2")
    successor = core.takeover()
    assert list(successor.broker.queues()) == ["other"]
    assert subscribe(client(successor)) == []


def test_it_can_be_made_anew_at_once() -> None:
    """What follows the UNSUBSCRIBE waits until the old one is gone."""
    core = CoreUnderTest()
    subscriber = client(core)
    subscribe(subscriber)
    leave(subscriber)
    core.send(TOPIC, "1")
    subscriber = client(core)
    subscriber.session.receive(
        b"UNSUBSCRIBE\nid:s\ndurable-subscription-name:paper\n\n\0"
        b"SUBSCRIBE\nid:s\ndestination:/topic/other\ndurable-subscription-name:paper\n\n\0"
    )
    core.pass_time(1)
    core.send(TOPIC, "2")
    core.send("/topic/other", "3")
    assert bodies(subscriber.frames()) == ["3"]


def test_while_it_is_deleted_its_client_goes_on() -> None:
    """Which takes long where another session has locked a row; its name alone waits."""
    core = CoreUnderTest(auto_commit=False)
    subscriber = client(core)
    subscribe(subscriber)
    core.store_all()
    subscriber.frames()
    subscriber.send("UNSUBSCRIBE", id="s", receipt="ended", **{NAMES[0]: "paper"})
    subscriber.send("SUBSCRIBE", id="o", destination="/topic/others", receipt="others")
    subscriber.send("BEGIN", transaction="t", receipt="begun")
    assert subscriber.commands() == ["RECEIPT", "RECEIPT"], "all but the first"
    subscriber.send("SUBSCRIBE", destination=TOPIC, id="s", receipt="anew", **{NAMES[0]: "paper"})
    subscriber.send("BEGIN", transaction="u", receipt="behind")
    assert subscriber.commands() == []
    core.store_all()
    answered = [frame.get(b"receipt-id") for frame in subscriber.frames()]
    assert answered == ["ended", "behind", "anew"]
    assert list(core.broker.queues()) == ["me.paper"]


@pytest.mark.parametrize("end", ["DISCONNECT", "lost", "stop"])
def test_a_client_may_leave_while_its_subscription_is_deleted(end: str) -> None:
    """It is deleted; a DISCONNECT is answered behind it, and what waits for it is not done."""
    core = CoreUnderTest(auto_commit=False)
    subscriber = client(core)
    subscribe(subscriber)
    core.store_all()
    subscriber.frames()
    subscriber.send("UNSUBSCRIBE", id="s", receipt="ended", **{NAMES[0]: "paper"})
    if end == "DISCONNECT":
        subscriber.send("DISCONNECT", receipt="left")
        assert subscriber.commands() == []
    else:
        subscriber.send("UNSUBSCRIBE", id="s", receipt="again", **{NAMES[0]: "paper"})
        if end == "lost":
            subscriber.session.connection_lost()
        else:
            subscriber.session.stop_serving()
    core.store_all()
    left = [frame.get(b"receipt-id") for frame in subscriber.frames()]
    assert left == {"DISCONNECT": ["ended", "left"], "lost": [], "stop": ["ended"]}[end]
    assert not core.broker.queues()


def test_a_subscription_that_is_ended_twice_is_gone_the_second_time() -> None:
    """The second UNSUBSCRIBE waits for the first."""
    core = CoreUnderTest(auto_commit=False)
    subscriber = client(core)
    subscribe(subscriber)
    core.store_all()
    subscriber.frames()
    for receipt in ("first", "second"):
        subscriber.send("UNSUBSCRIBE", id="s", receipt=receipt, **{NAMES[0]: "paper"})
    core.store_all()
    first, error = subscriber.frames()
    assert first.get(b"receipt-id") == "first"
    assert error.get(b"receipt-id") == "second"
    assert "has no durable subscription 'paper'" in (error.get(b"message") or "")


def test_a_name_that_is_no_subscription_of_the_client_is_refused() -> None:
    """Neither one that is not there, nor another's, nor one of this connection for another name."""
    core = CoreUnderTest()
    core.send("/queue/me.queue", "1")
    subscribe(client(core, "you"))
    for name in ("paper", "queue"):
        subscriber = client(core)
        subscriber.send("UNSUBSCRIBE", id="s", **{NAMES[0]: name})
        assert f"client-id 'me' has no durable subscription '{name}'" in subscriber.error()
    subscriber = client(core)
    subscribe(subscriber)
    subscriber.send("UNSUBSCRIBE", id="s", **{NAMES[0]: "other"})
    assert "subscription 's' is not of the durable subscription 'other'" in subscriber.error()


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"destination": "/topic/other"}, "destination 'news', and 'other' is asked for"),
        ({"no_local": "true"}, "no-local 'false', and 'true' is asked for"),
    ],
)
def test_a_changed_subscription_is_refused(changed: dict[str, str], problem: str) -> None:
    """Artemis goes on with the old one, and says nothing; what it has stays."""
    core = CoreUnderTest()
    subscriber = client(core)
    subscribe(subscriber)
    leave(subscriber)
    core.send(TOPIC, "1")
    changing = client(core)
    changing.send("SUBSCRIBE", **{"destination": TOPIC, "id": "s", NAMES[0]: "paper", **changed})
    error = changing.error()
    assert f"was made with the {problem}: end it first" in error
    assert subscribe(client(core)) == ["1"]


def test_two_pairs_that_make_one_name_are_told_apart() -> None:
    """The client a.b with its c must not get what a has for its b.c."""
    core = CoreUnderTest()
    subscribe(client(core, "a"), "b.c")
    other = client(core, "a.b")
    other.send("SUBSCRIBE", destination=TOPIC, id="s", **{NAMES[0]: "c"})
    assert "the queue of that name is another's" in other.error()
    ending = client(core, "a.b")
    ending.send("UNSUBSCRIBE", id="s", **{NAMES[0]: "c"})
    assert "has no durable subscription 'c'" in ending.error()


def test_a_queue_is_not_subscribed_to_durably() -> None:
    """It keeps its messages anyway; and a plain name is what its address is."""
    core = CoreUnderTest()
    core.send("/queue/orders", "1")
    for destination in ("/queue/news", "orders"):
        subscriber = client(core)
        subscriber.send("SUBSCRIBE", destination=destination, id="s", **{NAMES[0]: "paper"})
        assert "which is ANYCAST: a queue keeps its messages without one" in subscriber.error()
    subscriber = client(core)
    assert subscribe(subscriber, destination="weather") == []
    core.send("weather", "2")
    assert bodies(subscriber.frames()) == ["2"]


def test_a_subscription_is_shared_by_connections_of_one_client_id() -> None:
    """Each message goes to one of them; with default-max-consumers 1 the second is refused."""
    core = CoreUnderTest()
    first, second = client(core), client(core)
    subscribe(first)
    subscribe(second)
    core.send(TOPIC, "1", "2", "3", "4")
    both = bodies(first.frames()), bodies(second.frames())
    assert sorted(both[0] + both[1]) == ["1", "2", "3", "4"]
    assert all(both)
    first.send("UNSUBSCRIBE", id="s", **{NAMES[0]: "paper"})
    assert "has 1 consumers: it is ended once the others" in first.error()
    alone = replace(SETTINGS, address_settings=(AddressSettings("#", default_max_consumers=1),))
    core = CoreUnderTest(alone)
    first, second = client(core), client(core)
    subscribe(first)
    second.send("SUBSCRIBE", destination=TOPIC, id="s", **{NAMES[0]: "paper"})
    assert "queue 'me.paper' has max-consumers 1 already" in second.error()


def test_one_that_is_configured_is_used() -> None:
    """Where clients may create nothing, an operator declares the queue; and nobody deletes it."""
    multicast = RoutingType.MULTICAST
    queue = QueueSettings("me.paper", multicast)
    settings = replace(
        SETTINGS, addresses=(AddressConfiguration("news", frozenset({multicast}), (queue,)),)
    )
    core = CoreUnderTest(settings)
    core.send(TOPIC, "1")
    subscriber = client(core)
    assert subscribe(subscriber) == ["1"]
    subscriber.send("UNSUBSCRIBE", id="s", **{NAMES[0]: "paper"})
    assert "has no durable subscription" in subscriber.error()


def _secured(*permissions: str, match: str = "#") -> Settings:
    return secured({"u": "r"}, {match: {"r": " ".join(permissions)}})


def _user(core: CoreUnderTest) -> Client:
    return Client(core, login="u", passcode=PASSCODE, client_id="me")


def test_a_subscription_takes_no_name_of_anothers_address() -> None:
    """Its queue is called ``me.paper``: ``/queue/me.paper`` could not be for others any more.

    One that is there goes on whatever is allowed now.
    """
    needed = ("consume", "createAddress", "createDurableQueue")
    core = CoreUnderTest(_secured(*needed, match="news"))
    subscriber = _user(core)
    subscriber.send("SUBSCRIBE", destination=TOPIC, id="s", **{NAMES[0]: "paper"})
    assert (
        "permission 'createDurableQueue' on address 'me.paper', whose name queue"
        " 'news::me.paper' would take" in subscriber.error()
    )
    assert core.broker.depths() == {}
    core = CoreUnderTest(_secured(*needed))
    assert subscribe(_user(core)) == []
    core = core.takeover(_secured(*needed, match="news"))
    core.send(TOPIC, "1")
    assert subscribe(_user(core)) == ["1"]


# --- no-local


@pytest.mark.parametrize("header", ["no-local", "activemq.noLocal"])
@pytest.mark.parametrize("in_transaction", [True, False])
def test_a_subscriber_does_not_hear_itself(header: str, *, in_transaction: bool) -> None:
    """Others do, and it hears others."""
    core = CoreUnderTest()
    one, other = Client(core), Client(core)
    one.send("SUBSCRIBE", destination=TOPIC, id="s", **{header: "true"})
    other.send("SUBSCRIBE", destination=TOPIC, id="s")
    for sender, body in ((one, "1"), (other, "2")):
        if in_transaction:
            sender.send("BEGIN", transaction="t")
            sender.send("SEND", body, destination=TOPIC, transaction="t")
            sender.send("COMMIT", transaction="t")
        else:
            sender.send("SEND", body, destination=TOPIC)
    assert bodies(one.frames()) == ["2"]
    assert bodies(other.frames()) == ["1", "2"]


@pytest.mark.parametrize("in_transaction", [True, False])
def test_a_durable_subscription_leaves_out_its_client_ids_own(*, in_transaction: bool) -> None:
    """Also while it is away, by another connection of it, and after a takeover."""
    core = CoreUnderTest()
    subscriber = client(core)
    assert subscribe(subscriber, no_local="true") == []
    leave(subscriber)
    successor = core.takeover()
    for sender, body in ((client(successor), "own"), (Client(successor), "other")):
        sender.send("BEGIN", transaction="t")
        transaction = {"transaction": "t"} if in_transaction else {}
        sender.send("SEND", body, destination=TOPIC, **transaction)
        sender.send("COMMIT", transaction="t")
    assert subscribe(client(successor), no_local="true") == ["other"]


# --- selectors


def test_a_durable_subscription_keeps_what_its_selector_matches() -> None:
    """While it is away and after a takeover; the others count against nothing."""
    core = CoreUnderTest()
    subscriber = client(core)
    assert subscribe(subscriber, selector="colour = 'red'") == []
    leave(subscriber)
    node = core
    for _ in range(2):
        for colour in ("red", "blue"):
            node.send(TOPIC, colour, headers=f"colour:{colour}\n".encode())
        assert node.broker.depths() == {"me.paper": 1}
        again = client(node)
        assert subscribe(again, selector="colour = 'red'") == ["red"]
        leave(again)
        node = node.takeover()
    changing = client(node)
    changing.send("SUBSCRIBE", destination=TOPIC, id="s", **{NAMES[0]: "paper"})
    assert "with the selector 'colour = 'red'', and 'none' is asked for" in changing.error()
