"""Addresses and their queues: which queue a destination means, and what clients can make."""

import itertools
import logging
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from orthia.broker.core.broker import Broker
from orthia.broker.core.destinations import MAX_NAME_LENGTH, Destination, parse
from orthia.broker.core.errors import BrokerError, DestinationRefused, LimitExceeded, NotAuthorized
from orthia.broker.core.identity import Principal
from orthia.broker.core.routing import addresses as addresses_module
from orthia.config.address_settings import (
    AddressConfiguration,
    AddressSettings,
    QueueSettings,
    RoutingType,
)
from orthia.config.security_settings import ResourceLimitSetting, SecuritySetting
from orthia.config.settings import ClientLimits, Settings
from tests.core.support import ANYONE, SETTINGS, CoreUnderTest, FakeConsumer, declared, message

_ALL = frozenset({"all"})
ANYCAST, MULTICAST = RoutingType.ANYCAST, RoutingType.MULTICAST
CONFIGURED = replace(
    SETTINGS,
    addresses=(
        declared("orders", "orders.eu", "orders.us"),
        declared("prices", "asia", kind=MULTICAST),
    ),
)


@pytest.mark.parametrize(
    ("text", "destination"),
    [
        ("/queue/a", Destination("a", ANYCAST)),
        ("/queue/a::b", Destination("a", ANYCAST, "b")),
        ("/remote-temp-topic/a", Destination("a", MULTICAST, is_temporary=True)),
        ("/topic/a", Destination("a", MULTICAST)),
        ("a", Destination("a", None)),
        ("/queue/a/b", Destination("a/b", ANYCAST)),
        ("/queue//topic/a", Destination("/topic/a", ANYCAST)),
        ("/queues/a", Destination("/queues/a", None)),
        ("/queue/größe 2", Destination("größe 2", ANYCAST)),
        ("/topic/" + "x" * MAX_NAME_LENGTH, Destination("x" * MAX_NAME_LENGTH, MULTICAST)),
    ],
)
def test_a_destination_is_a_kind_and_a_name(text: str, destination: Destination) -> None:
    """Only the two prefixes mean something; the rest is the name."""
    assert parse(text) == destination


def test_a_queue_is_consumed_by_its_own_name() -> None:
    """A configured queue may be named otherwise than its address; no second one is made for it."""
    core = CoreUnderTest(CONFIGURED)
    core.send("/queue/orders", "1", "2", "3", "4")
    europe, america = core.consume("/queue/orders.eu"), core.consume("/queue/orders.us")
    assert sorted(europe.texts + america.texts) == ["1", "2", "3", "4"]
    assert len(europe.texts) == len(america.texts) == 2
    assert set(core.broker.queues()) == {"orders.eu", "orders.us", "asia"}
    assert len(core.takeover(CONFIGURED).journal.bindings) == 3


def test_sending_to_a_queue_of_another_address_is_refused() -> None:
    """The refusal names the address to send to, and consuming by that name still works."""
    core = CoreUnderTest(CONFIGURED)
    with pytest.raises(DestinationRefused, match=r"'orders\.eu' belongs to address 'orders'"):
        core.send("/queue/orders.eu", "a")
    core.send("orders", "a", "b")
    assert len(core.consume("orders.eu").texts) == 1


def test_a_topics_subscriber_hears_a_message_after_its_queues_have_it() -> None:
    """An address with a queue and a subscriber: nobody gets what is not stored."""
    core = CoreUnderTest(CONFIGURED)
    core.settle()
    core.journal.auto_commit = False
    subscriber = core.consume("/topic/prices")
    core.send("/topic/prices", "a")
    assert subscriber.texts == []
    core.journal.commit()
    core.settle()
    assert subscriber.texts == ["a"]
    assert core.broker.depths()["asia"] == 1


def test_addresses_that_nobody_uses_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that names ever new topics fills no memory; what is used or configured stays."""
    monkeypatch.setattr(addresses_module, "MIN_SWEEP", 20)
    empty = declared("empty", kind=MULTICAST)
    core = CoreUnderTest(replace(CONFIGURED, addresses=(*CONFIGURED.addresses, empty)))
    subscriber = core.consume("/topic/kept")
    for number in range(500):
        core.send(f"/topic/{number}", "a")
        core.consume(f"/topic/left.{number}").end.close()
    addresses = core.broker.parts.book.known
    assert len(addresses) <= 50
    assert {"orders", "prices", "empty", "kept"} <= set(addresses)
    core.send("/topic/kept", "b")
    assert subscriber.texts == ["b"]


# --- one address, both routing types


@pytest.mark.parametrize("order", list(itertools.permutations(("send", "listen", "leave"))))
def test_a_queue_and_a_topic_may_have_one_name(order: Sequence[str]) -> None:
    """Whoever came first, and whether they are still there; neither sees what the other gets."""
    core = CoreUnderTest()
    for step in order:
        if step == "send":
            core.send("/queue/jobs", "queued")
        elif step == "listen":
            listener = core.consume("/topic/jobs")
        else:
            core.consume("/topic/jobs").end.close()
    core.send("/topic/jobs", "published")
    assert listener.texts == ["published"]
    assert core.broker.depths()["jobs"] == 1
    core = core.takeover()
    late = core.consume("/topic/jobs")
    core.send("/topic/jobs", "published again")
    core.send("/queue/jobs", "queued again")
    assert late.texts == ["published again"]
    assert core.consume("/queue/jobs").texts == ["queued", "queued again"]


def test_a_plain_name_does_not_mean_a_topic_because_somebody_listens() -> None:
    """Else its meaning would change when the last listener leaves, or another node takes over."""
    core = CoreUnderTest()
    listener = core.consume("/topic/jobs")
    core.send("jobs", "queued")
    assert listener.texts == []
    assert core.consume("jobs").texts == ["queued"]


def test_a_plain_name_means_the_queue_that_is_stored() -> None:
    """Also where plain names are topics; subscribers of the topic change nothing about it."""
    options = replace(
        SETTINGS, address_settings=(AddressSettings("#", default_address_routing_type=MULTICAST),)
    )
    core = CoreUnderTest(options)
    listener = core.consume("jobs")
    core.send("jobs", "to those who listen")
    core.send("/queue/jobs", "1")
    core.send("jobs", "2")
    assert listener.texts == ["to those who listen"]
    core = core.takeover(options)
    core.send("jobs", "3")
    assert core.consume("jobs").texts == ["1", "2", "3"]
    # And the name of a queue that has another address is the queue.
    configured = replace(CONFIGURED, address_settings=options.address_settings)
    core = CoreUnderTest(configured)
    core.send("orders", "a", "b")
    assert len(core.consume("orders.eu").texts) == 1


def test_an_address_that_is_configured_with_one_type_refuses_the_other() -> None:
    """The refusal names the address, its types and the one that was asked for."""
    for node in (CoreUnderTest(CONFIGURED), CoreUnderTest(CONFIGURED).takeover(CONFIGURED)):
        with pytest.raises(
            DestinationRefused, match=r"'prices' is configured as MULTICAST; ANYCAST was asked for"
        ):
            node.send("/queue/prices", "a")
        with pytest.raises(
            DestinationRefused, match=r"'orders' is configured as ANYCAST; MULTICAST was asked for"
        ):
            node.consume("/topic/orders")
        with pytest.raises(DestinationRefused, match="MULTICAST was asked for"):
            node.send("/topic/orders", "a")


def test_an_address_that_is_configured_with_both_types_serves_both() -> None:
    """Its anycast queues get what goes to /queue/, its multicast ones what goes to /topic/."""
    both = AddressConfiguration(
        "news",
        frozenset({ANYCAST, MULTICAST}),
        (QueueSettings("work", ANYCAST), QueueSettings("archive", MULTICAST)),
    )
    options = replace(SETTINGS, addresses=(both,))
    core = CoreUnderTest(options)
    core.settle()
    listener = core.consume("/topic/news")
    core.send("/queue/news", "q")
    core.send("/topic/news", "t")
    core.send("news", "plain")
    assert core.broker.depths() == {"work": 2, "archive": 1}
    assert listener.texts == ["t"]
    core = core.takeover(options)
    assert core.consume("/queue/work").texts == ["q", "plain"]
    assert core.consume("/queue/archive").texts == ["t"]


def test_without_auto_creation_an_address_has_the_types_it_is_known_with() -> None:
    """Configured, or by the queues that are stored; the refusal says which."""
    core = CoreUnderTest()
    core.send("/queue/jobs", "a")
    closed = replace(
        SETTINGS, address_settings=(AddressSettings("#", auto_create_addresses=False),)
    )
    core = core.takeover(closed)
    core.send("/queue/jobs", "b")
    with pytest.raises(
        DestinationRefused, match="'jobs' is ANYCAST, not MULTICAST, and auto-create-addresses"
    ):
        core.consume("/topic/jobs")
    with pytest.raises(DestinationRefused, match="'other' does not exist and auto-create"):
        core.send("/topic/other", "a")


def test_a_queue_that_is_stored_otherwise_than_configured_stays_and_is_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It may have messages; both types then work, as long as the queue is there."""
    core = CoreUnderTest()
    core.send("/queue/asia", "a")
    with caplog.at_level(logging.WARNING):
        core = core.takeover(CONFIGURED)
    assert "queue 'asia' is configured as MULTICAST of address 'prices'" in caplog.text
    assert "stored as ANYCAST of address 'asia'" in caplog.text
    assert core.consume("/queue/asia").texts == ["a"]


@pytest.mark.parametrize("default", [ANYCAST, MULTICAST])
def test_a_plain_name_means_what_its_address_is_configured_as(default: RoutingType) -> None:
    """Whatever the default is, and though a queue of the other type is stored from before."""
    before = CoreUnderTest()
    before.send("/queue/prices", "left")
    core = before.takeover(
        replace(
            CONFIGURED,
            address_settings=(AddressSettings("#", default_address_routing_type=default),),
        )
    )
    core.send("prices", "a")
    assert core.consume("/queue/asia").texts == ["a"]
    assert core.consume("/queue/prices").texts == ["left"]


def test_there_are_as_many_queues_as_may_be_and_not_one_more() -> None:
    """What is there goes on; the refusal names the limit."""
    core = CoreUnderTest(replace(SETTINGS, stomp_limits=ClientLimits(max_queues=3)))
    for name in "abc":
        core.send(f"/queue/{name}", "1")
    with pytest.raises(LimitExceeded, match="max-queues 3 already: 'd' is one more"):
        core.send("/queue/d", "1")
    core.send("/queue/a", "2")
    assert core.broker.depths() == {"a": 2, "b": 1, "c": 1}


def _with_users(**limits: int) -> Settings:
    may = ("send", "consume", "createAddress", "createDurableQueue", "createNonDurableQueue")
    everybody = SecuritySetting("#", dict.fromkeys(may, _ALL))
    return replace(
        SETTINGS,
        security_enabled=True,
        security_settings=(everybody,),
        stomp_limits=ClientLimits(**limits),
    )


def _connection(user: str) -> Principal:
    return Principal(user, _ALL)


def _create(core: CoreUnderTest, connection: Principal, name: str) -> None:
    core.broker.send(connection, f"/queue/{name}", message("x"), None)
    core.settle()


def test_a_connection_creates_so_many_queues_and_no_more() -> None:
    """It goes on with those there are; another connection, of the same user too, begins anew."""
    core = CoreUnderTest(_with_users(max_queues_per_connection=2))
    first = _connection("ada")
    for name in "abab":
        _create(core, first, name)
    with pytest.raises(LimitExceeded, match="max-queues-per-connection 2 already: 'c' is one more"):
        _create(core, first, "c")
    _create(core, _connection("ada"), "c")
    _create(core, first, "c")


@pytest.mark.parametrize("kind", list(RoutingType))
def test_a_connection_may_make_temporary_destinations_again_and_again(kind: RoutingType) -> None:
    """One for each request, which is gone with its answer: it never has more than it may."""
    core = CoreUnderTest(_with_users(max_queues_per_connection=2))
    ada = _connection("ada")
    for _ in range(5):
        made = [core.broker.create_temporary(ada, kind, "answers") for _ in range(2)]
        with pytest.raises(LimitExceeded, match="max-queues-per-connection 2 already"):
            core.broker.create_temporary(ada, kind, "answers")
        for one in made:
            core.broker.end_temporary(ada, one)
        core.settle()


def test_a_queue_of_a_connection_that_is_deleted_does_not_count_any_more() -> None:
    """By whomever; nor does one whose connection is gone by then."""
    core = CoreUnderTest(_with_users(max_queues_per_connection=2))
    ada = _connection("ada")
    for name in "abcd":
        _create(core, ada, name)
        core.broker.delete_queue(ANYONE, name, lambda _: None, force=True)
        core.settle()
    gone = _connection("ada")
    _create(core, gone, "a")
    del gone
    core.broker.delete_queue(ANYONE, "a", lambda _: None, force=True)
    core.settle()
    assert not core.broker.queues()


def test_a_user_creates_so_many_queues_whatever_connects_and_whoever_serves() -> None:
    """Neither a new connection nor a takeover begins anew; another user is not concerned."""
    core = CoreUnderTest(_with_users(max_queues_per_user=2))
    for name in "ab":
        _create(core, _connection("ada"), name)
    _create(core, _connection("bob"), "c")
    for _ in range(2):
        with pytest.raises(LimitExceeded, match="user 'ada' has created max-queues-per-user 2"):
            _create(core, _connection("ada"), "d")
        core = core.takeover(_with_users(max_queues_per_user=2))
    _create(core, _connection("bob"), "d")


def test_the_queues_of_a_single_user_have_a_limit_of_their_own() -> None:
    """max-queues of resource-limit-settings wins: a number, none at all, or any number."""
    named = (("ada", 1), ("bob", 0), ("eve", -1))
    settings = replace(
        _with_users(max_queues_per_user=2),
        resource_limit_settings=tuple(
            ResourceLimitSetting(name, max_queues=limit) for name, limit in named
        ),
    )
    core = CoreUnderTest(settings)
    _create(core, _connection("ada"), "a")
    for user in ("ada", "bob"):
        with pytest.raises(LimitExceeded, match=f"user '{user}' has created max-queues of its res"):
            _create(core, _connection(user), "b")
    for name in "cdef":
        _create(core, _connection("eve"), name)


def test_what_the_broker_creates_counts_for_nobody() -> None:
    """Its dead-letter queue, and what clients create that are asked for no login."""
    core = CoreUnderTest(replace(SETTINGS, stomp_limits=ClientLimits(max_queues_per_user=1)))
    for name in "abc":
        core.send(f"/queue/{name}", "1")
    assert len(core.broker.queues()) == 3


def test_the_name_of_a_stored_multicast_queue_cannot_be_one_of_the_other_type() -> None:
    """After its configuration is gone; what to send to instead is said."""
    news = declared("news", "news", kind=MULTICAST)
    core = CoreUnderTest(replace(SETTINGS, addresses=(news,)))
    core = core.takeover()
    with pytest.raises(DestinationRefused, match="is MULTICAST: send to /topic/news"):
        core.send("/queue/news", "a")
    core.send("news", "b")
    assert core.consume("/queue/news").texts == ["b"]


# --- what it depends on

_STAFF = Principal("ada", frozenset({"staff"}))
_GUEST = Principal("guest", frozenset({"guests"}))
"""May send and consume, and create nothing."""
_SECURED = replace(
    SETTINGS,
    security_enabled=True,
    addresses=(
        declared("a", "a.1", kind=MULTICAST),
        AddressConfiguration("b", frozenset({ANYCAST, MULTICAST})),
    ),
    address_settings=(
        AddressSettings("d", default_address_routing_type=MULTICAST),
        AddressSettings("e", auto_create_addresses=False),
    ),
    security_settings=(
        SecuritySetting(
            "#",
            {
                "send": frozenset({"staff", "guests"}),
                "consume": frozenset({"staff", "guests"}),
                "createNonDurableQueue": frozenset({"staff", "guests"}),
                "createAddress": frozenset({"staff"}),
                "createDurableQueue": frozenset({"staff"}),
            },
        ),
    ),
)
_NAMES = ("a", "a.1", "b", "c", "d", "e")
_USES = st.tuples(
    st.sampled_from(("send", "listen", "visit")),
    st.sampled_from((_STAFF, _GUEST)),
    st.sampled_from(("", "/queue/", "/topic/")),
    st.sampled_from(_NAMES),
)


def use(broker: Broker, what: str, who: Principal, destination: str) -> str:
    """Use a destination and say what came of it."""
    try:
        if what == "send":
            broker.send(who, destination, message("x"), None)
            return "sent"
        end = broker.subscribe(who, destination, FakeConsumer(), prefetch=1)
    except BrokerError as error:
        return f"{type(error).__name__}: {error}"
    if what == "visit":
        end.close()
    return type(end).__name__


@hypothesis_settings(deadline=None, max_examples=60)
@given(st.lists(_USES, max_size=12))
def test_what_an_address_is_does_not_depend_on_who_used_it(
    uses: list[tuple[str, Principal, str, str]],
) -> None:
    """The next live node, on what is stored and nothing else, answers everybody as this one."""

    def answers(core: CoreUnderTest) -> list[str]:
        found = []
        for what, who, prefix, name in itertools.product(
            ("send", "listen"), (_GUEST, _STAFF), ("", "/queue/", "/topic/"), _NAMES
        ):
            found.append(use(core.broker, what, who, prefix + name))
            core.settle()
        return found

    core = CoreUnderTest(_SECURED)
    core.settle()
    for what, who, prefix, name in uses:
        use(core.broker, what, who, prefix + name)
        core.settle()
    successor = CoreUnderTest(_SECURED, store=core.successor_store())
    assert answers(core) == answers(successor)


@pytest.mark.parametrize("prefix", ["/queue/", ""])
@pytest.mark.parametrize("name", ["news.#", "*.europe", "news.*.today", "#", "news.>"])
def test_a_subscription_to_queues_with_a_wildcard_is_refused(prefix: str, name: str) -> None:
    """It would hear nothing; what only looks like one, or is the name of a queue, is taken."""
    core = CoreUnderTest()
    with pytest.raises(DestinationRefused, match="has a wildcard"):
        core.consume(prefix + name)
    core.consume("/topic/news.c#")
    core.send(f"/queue/{name}", "kept")
    assert core.consume(f"/queue/{name}").texts == ["kept"]


def test_who_may_send_may_send_to_a_topic_whoever_listens() -> None:
    """Nothing is created for it. To listen to one that is not configured is to create it."""
    core = CoreUnderTest(_SECURED)
    broker = core.broker
    for _ in range(2):
        assert use(broker, "send", _GUEST, "/topic/c") == "sent"
        with pytest.raises(NotAuthorized, match="'createAddress' on address 'c'"):
            broker.subscribe(_GUEST, "/topic/c", FakeConsumer(), prefetch=1)
        assert use(broker, "listen", _GUEST, "/topic/b") == "TopicSubscription"
        assert use(broker, "listen", _STAFF, "/topic/c") == "TopicSubscription"
    broker.send(ANYONE, "/queue/c", message("x"), None)
    core.settle()
    assert use(broker, "send", _GUEST, "/queue/c") == "sent"


# --- ADDRESS::QUEUE


@pytest.mark.parametrize("prefix", ["/queue/", ""])
def test_a_qualified_name_means_one_queue(prefix: str) -> None:
    """To send to and to consume from, whatever others its address has."""
    core = CoreUnderTest(CONFIGURED)
    core.send(f"{prefix}orders::orders.us", "1", "2")
    core.send(f"{prefix}orders::orders.eu", "3")
    assert core.consume(f"{prefix}orders::orders.us").texts == ["1", "2"]
    assert core.consume("orders.eu").texts == ["3"]


def test_a_qualified_queue_is_created() -> None:
    """By whoever sends or subscribes first: as asked for, else as its address is by default."""
    core = CoreUnderTest()
    core.send("/topic/news::mine", "1")
    other = core.consume("/topic/news::other")
    core.send("/topic/news", "2")
    assert core.consume("news::mine").texts == ["1", "2"]
    assert other.texts == ["2"]
    core.send("jobs::high", "3")
    core.send("/queue/jobs", "4")
    types = {name: queue.routing_type for name, queue in core.broker.queues().items()}
    assert types == {"mine": MULTICAST, "other": MULTICAST, "high": ANYCAST}
    again = core.takeover()
    assert again.consume("/queue/jobs::high").texts == ["3", "4"]


def test_of_an_address_of_both_types_the_queue_default_counts() -> None:
    """default-queue-routing-type says what a plain name subscribes to and what is created."""
    both = AddressConfiguration("b", frozenset({ANYCAST, MULTICAST}))
    for wanted in (ANYCAST, MULTICAST):
        settings = replace(
            SETTINGS,
            addresses=(both,),
            address_settings=(AddressSettings("#", default_queue_routing_type=wanted),),
        )
        core = CoreUnderTest(settings)
        consumer = core.consume("b")
        core.send("/queue/b" if wanted is ANYCAST else "/topic/b", "1")
        assert consumer.texts == ["1"]
        core.send("b::new", "2")
        assert core.broker.queues()["new"].routing_type is wanted


@pytest.mark.parametrize(
    ("destination", "problem"),
    [
        ("other::orders.eu", "queue 'orders.eu' belongs to address 'orders', not to 'other'"),
        ("/topic/orders::orders.eu", "is ANYCAST; MULTICAST was asked for"),
        ("/queue/prices::new", "is configured as MULTICAST; ANYCAST was asked for"),
        ("orders::", "is not valid"),
        ("::orders.eu", "is not valid"),
    ],
)
def test_a_qualified_name_that_contradicts_is_refused(destination: str, problem: str) -> None:
    """By name, for a SEND and a SUBSCRIBE."""
    core = CoreUnderTest(CONFIGURED)
    with pytest.raises(DestinationRefused, match=problem):
        core.send(destination, "1")
    with pytest.raises(DestinationRefused, match=problem):
        core.consume(destination)


def test_a_qualified_name_needs_permissions_on_its_address() -> None:
    """Those of the address, which the queue's name does not have."""
    core = CoreUnderTest(_SECURED)
    with pytest.raises(NotAuthorized, match="'createAddress' on address 'c'"):
        core.broker.send(_GUEST, "c::q", message("1"), None)
    with pytest.raises(NotAuthorized, match="'createAddress' on address 'c'"):
        core.broker.subscribe(_GUEST, "c::q", FakeConsumer(), prefetch=1)


@pytest.mark.parametrize("name", ["DLQ", "ExpiryQueue"])
def test_a_queue_of_another_address_gets_no_dead_letters_of_others(name: str) -> None:
    """Nobody has one made that is called as what the broker itself sends to."""
    core = CoreUnderTest()
    with pytest.raises(DestinationRefused, match=f"the broker itself sends to address '{name}'"):
        core.consume(f"mine::{name}")
    core.send(name, "1")
    assert core.consume(name).texts == ["1"]
