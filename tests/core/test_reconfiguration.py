"""A core that is as a changed broker.xml says, while its clients go on."""

from dataclasses import replace
from typing import Any

import pytest

from orthia.broker.core.errors import (
    BrokerError,
    DestinationRefused,
    NotAuthorized,
    QuotaExceeded,
    Refusal,
)
from orthia.broker.core.identity import Principal
from orthia.broker.core.queue.queue import Queue
from orthia.broker.core.routing.addresses import AddressBook
from orthia.broker.core.upkeep.reconfiguration import NewRules
from orthia.config.address_settings import (
    AddressConfiguration,
    AddressFullPolicy,
    DivertSettings,
    PageFullPolicy,
    QueueSettings,
    RoutingType,
    SlowConsumerPolicy,
)
from orthia.config.addresses import ResolvedAddressSettings
from orthia.config.security_settings import RoleMapping, SecuritySetting
from orthia.config.settings import Settings
from tests.core.support import ANYONE, SETTINGS, CoreUnderTest, FakeConsumer, message, settings
from tests.support.compiled import needs_pure_python

QUEUE = "/queue/orders"
patches_methods = needs_pure_python(
    "what is compiled calls its own methods, whatever stands in their place"
)
ANYCAST, MULTICAST = RoutingType.ANYCAST, RoutingType.MULTICAST


def declaring(*queues: QueueSettings, types: frozenset[RoutingType] | None = None) -> Settings:
    """Return settings with an address that has these queues."""
    types = types or frozenset(one.routing_type for one in queues)
    return replace(SETTINGS, addresses=(AddressConfiguration("orders", types, queues),))


def diverting(**options: Any) -> Settings:
    """Return settings with a divert of what is sent to orders."""
    return replace(SETTINGS, diverts=(DivertSettings("d", "orders", "copies", **options),))


def test_limits_of_an_address_change_while_it_has_messages() -> None:
    """What is there counts; a limit that goes leaves room again."""
    core = CoreUnderTest()
    core.send(QUEUE, "1", "2")
    core.reconfigure(settings(max_size_messages=2, address_full_policy=AddressFullPolicy.FAIL))
    with pytest.raises(QuotaExceeded, match="max-size-messages 2"):
        core.send(QUEUE, "3")
    core.reconfigure(settings(max_size_messages=2, address_full_policy=AddressFullPolicy.DROP))
    core.send(QUEUE, "dropped")
    core.reconfigure(settings(page_limit_messages=3, page_full_policy=PageFullPolicy.FAIL))
    core.send(QUEUE, "3")
    with pytest.raises(QuotaExceeded, match="page-limit-messages 3"):
        core.send(QUEUE, "4")
    core.reconfigure(SETTINGS)
    core.send(QUEUE, "4")
    assert core.consume(QUEUE).texts == ["1", "2", "3", "4"]


def test_senders_that_wait_for_room_go_on_when_the_limit_goes() -> None:
    """Whoever was told to wait is told that there is room."""
    core = CoreUnderTest(settings(max_size_messages=1, address_full_policy=AddressFullPolicy.BLOCK))
    core.send(QUEUE, "1")
    behind = core.broker.queues()["orders"].use.behind()
    assert behind is not None
    went_on: list[bool] = []
    wait = behind.rest
    assert not isinstance(wait, bool)
    wait.then(lambda: went_on.append(True))
    core.reconfigure(SETTINGS)
    assert went_on == [True]


def test_dead_letters_go_by_the_new_settings() -> None:
    """Of a message that was delivered before, too."""
    core = CoreUnderTest(settings(max_delivery_attempts=3, dead_letter_address="old"))
    core.send(QUEUE, "x")
    consumer = core.consume(QUEUE)
    consumer.reject("x")
    core.settle()
    core.reconfigure(settings(max_delivery_attempts=2, dead_letter_address="new"))
    consumer.reject("x")
    core.settle()
    assert core.consume("/queue/new").texts == ["x"]


def test_messages_expire_where_that_is_said_now_and_no_more_where_it_is_not() -> None:
    """Those that are sent from then on."""
    core = CoreUnderTest()
    core.reconfigure(settings(expiry_delay=1_000_000))
    core.send(QUEUE, "x")
    core.reconfigure(SETTINGS)
    core.send(QUEUE, "y")
    consumer = core.consume(QUEUE)
    expires = {one.record.body: one.record.expires_ms > 0 for one in consumer.received}
    assert expires == {b"x": True, b"y": False}


def test_slow_consumers_are_looked_for_in_the_new_period_alone() -> None:
    """With the policy that is set now; a period that is gone ends."""
    policy = SlowConsumerPolicy.KILL
    core = CoreUnderTest()
    core.broker.count_backlogs()
    core.reconfigure(
        settings(
            slow_consumer_threshold=1, slow_consumer_policy=policy, slow_consumer_check_period=3
        )
    )
    core.send(QUEUE, "x")
    consumer = core.consume(QUEUE)
    for _ in range(3):
        core.pass_time(3)
    assert "slow-consumer-threshold is 1" in consumer.failures[0]
    core.reconfigure(SETTINGS)
    other = core.consume(QUEUE)
    for _ in range(4):
        core.pass_time(3)
    assert other.failures == []


def test_queues_are_deleted_when_that_is_said_later() -> None:
    """Though no setting said so when the node opened."""
    core = CoreUnderTest()
    core.broker.count_backlogs()
    core.consume(QUEUE).end.close()
    core.pass_time(100)
    assert "orders" in core.broker.queues()
    core.reconfigure(settings(auto_delete_queues=True))
    core.pass_time(100)
    assert "orders" not in core.broker.queues()


def test_names_of_the_brokers_own_queues_are_kept_for_it() -> None:
    """Those of dead letters, from when they are made."""
    core = CoreUnderTest()
    core.send("/queue/DLQ.a", "x")
    core.reconfigure(settings(auto_create_dead_letter_resources=True))
    with pytest.raises(DestinationRefused, match="called as those that the broker makes"):
        core.send("/queue/DLQ.b", "x")


def test_a_divert_comes_changes_and_goes() -> None:
    """Of an address that was used before, and of one that is used later."""
    core = CoreUnderTest()
    core.send(QUEUE, "0")
    core.reconfigure(diverting(filter="n = 1"))
    core.send(QUEUE, "1", headers=b"n:1\n")
    core.send(QUEUE, "2", headers=b"n:2\n")
    core.reconfigure(diverting(exclusive=True))
    core.send(QUEUE, "3")
    core.reconfigure(SETTINGS)
    core.send(QUEUE, "4")
    assert core.consume(QUEUE).texts == ["0", "1", "2", "4"]
    assert core.consume("/queue/copies").texts == ["1", "3"]


def test_what_is_declared_is_created_and_stays_when_it_is_declared_no_more() -> None:
    """Stored, for the next node; then it can be deleted, and its address is what its queues are."""
    core = CoreUnderTest()
    core.reconfigure(declaring(QueueSettings("q", ANYCAST, 1, user="ada")))
    core.send("/queue/orders", "x")
    assert core.broker.queues()["q"].max_consumers == 1
    with pytest.raises(DestinationRefused, match="MULTICAST was asked for"):
        core.send("/topic/orders", "x")
    with pytest.raises(DestinationRefused, match="is configured"):
        core.broker.delete_queue(ANYONE, "q", lambda _: None, force=True)
    core.reconfigure(SETTINGS)
    core.send("/topic/orders", "nobody hears it")
    assert core.broker.queues()["q"].depth == 1
    next_core = core.takeover()
    assert next_core.consume("/queue/orders::q").texts == ["x"]
    gone: list[int] = []
    next_core.broker.delete_queue(ANYONE, "q", gone.append, force=True)
    next_core.pass_time(1)
    assert gone


def test_a_queue_that_is_there_takes_what_its_declaration_says_now(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Its filter, whether it is enabled, its consumers; the log names what waits for a restart."""
    core = CoreUnderTest(declaring(QueueSettings("q", ANYCAST)))
    core.send(QUEUE, "1")
    new = QueueSettings("q", ANYCAST, 1, options={"filter": "n = 1", "exclusive": True})
    core.reconfigure(declaring(new))
    core.send(QUEUE, "2", headers=b"n:2\n")
    core.send(QUEUE, "3", headers=b"n:1\n")
    core.reconfigure(declaring(QueueSettings("q", ANYCAST, options={"enabled": False})))
    core.send(QUEUE, "4")
    core.reconfigure(declaring(QueueSettings("q", ANYCAST)))
    core.send(QUEUE, "5")
    assert core.consume("/queue/orders::q").texts == ["1", "3", "5"]
    told = [one for one in caplog.messages if "takes effect at the next start" in one]
    assert told == [
        "queue 'q' is there: what broker.xml says of its exclusive takes effect at the next start"
    ]


def test_a_queue_of_another_address_stays_and_is_told(caplog: pytest.LogCaptureFixture) -> None:
    """As when a node opens."""
    core = CoreUnderTest()
    core.send("/queue/other::q", "1")
    core.reconfigure(declaring(QueueSettings("q", ANYCAST)))
    assert core.broker.queues()["q"].address == "other"
    assert "stored as ANYCAST of address 'other': it stays as it is stored" in caplog.text


# --- permissions

_ADA = Principal("ada", frozenset({"staff"}))


def secured(*matches: str, permission: str = "consume") -> Settings:
    """Return settings in which staff lacks a permission, but at the addresses that match."""
    names = {"send", "consume", "createAddress", "createDurableQueue", "createNonDurableQueue"}
    granted = {one: frozenset({"staff"}) for one in names}
    rules = {"#": SecuritySetting("#", {**granted, permission: frozenset[str]()})}
    rules |= {one: SecuritySetting(one, granted) for one in matches}
    return replace(SETTINGS, security_enabled=True, security_settings=tuple(rules.values()))


class Adas(FakeConsumer):
    """A consumer of ada's."""

    @property
    def principal(self) -> Principal:
        """Who subscribed."""
        return _ADA


def subscribed(core: CoreUnderTest, destination: str) -> Adas:
    """Return a consumer of ada's."""
    consumer = Adas()
    consumer.subscription = core.broker.subscribe(_ADA, destination, consumer, prefetch=9)
    consumer.end.resume()
    core.settle()
    return consumer


@pytest.mark.parametrize("destination", ["/queue/a", "/topic/a", "/topic/#", "/queue/x::a"])
def test_a_consumer_that_lost_its_permission_is_ended(destination: str) -> None:
    """With the reason; one that has it still is not, wherever it consumes."""
    core = CoreUnderTest(secured("#"))
    theirs, other = subscribed(core, destination), subscribed(core, "/queue/b")
    core.reconfigure(secured("b"))
    assert theirs.failures
    assert "the permissions were changed: user 'ada' has no role" in theirs.failures[0]
    assert theirs.refusals == [Refusal.AUTHORIZATION]
    assert other.failures == []
    with pytest.raises(NotAuthorized):
        subscribed(core, destination)


def test_a_consumer_is_ended_when_all_permissions_go() -> None:
    """Where nothing is said of an address nobody has a permission."""
    core = CoreUnderTest(secured("#"))
    theirs = subscribed(core, "/queue/a")
    core.reconfigure(replace(secured(), security_settings=()))
    assert theirs.failures


def test_a_consumer_that_had_its_permission_by_a_mapped_role_is_ended() -> None:
    """When that role is mapped to no other one, though the permissions are the same."""
    of_crew = replace(
        SETTINGS,
        security_enabled=True,
        security_settings=tuple(
            SecuritySetting(one.match, {name: frozenset({"crew"}) for name in one.permissions})
            for one in secured("#").security_settings
        ),
    )
    core = CoreUnderTest(
        replace(of_crew, role_mappings=(RoleMapping("staff", frozenset({"crew"})),))
    )
    theirs = subscribed(core, "/queue/a")
    core.reconfigure(of_crew)
    assert theirs.failures


def test_whoever_lost_a_permission_is_ended_whatever_else_fails(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A queue that cannot be created keeps nobody."""
    core = CoreUnderTest(secured("#"))
    theirs = subscribed(core, "/queue/a")

    def failing(*_: object, **__: object) -> None:
        raise RuntimeError("unforeseen")

    monkeypatch.setattr(AddressBook, "create_queue", failing)
    declared = declaring(QueueSettings("q", ANYCAST)).addresses
    core.reconfigure(replace(secured("b"), addresses=declared))
    assert "creating what the changed broker.xml declares failed" in caplog.text
    assert theirs.failures


def test_a_sender_is_judged_by_the_new_permissions() -> None:
    """Also if it was allowed to send there a moment before, and the answer was remembered."""
    core = CoreUnderTest(secured("a", permission="send"))
    core.broker.send(_ADA, "/queue/a", message("x"), None)
    core.reconfigure(secured("b", permission="send"))
    with pytest.raises(NotAuthorized):
        core.broker.send(_ADA, "/queue/a", message("x"), None)
    core.broker.send(_ADA, "/queue/b", message("x"), None)


# --- in steps


@patches_methods
def test_no_step_grows_with_the_queues(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one address or many: by a clock that counts looks, each turn does a few of them."""
    now = 0.0

    def clock() -> float:
        nonlocal now
        now += 0.001
        return now

    core = CoreUnderTest(secured("#"), clock=clock)
    for number in range(200):
        core.broker.send(_ADA, f"/queue/a::{number}", message("x"), None)
    core.settle()
    changed = 0
    configure = Queue.configure

    def counted(self: Queue, settings: ResolvedAddressSettings) -> None:
        nonlocal changed
        changed += 1
        configure(self, settings)

    monkeypatch.setattr(Queue, "configure", counted)
    done: list[bool] = []
    queues = [QueueSettings(f"q{number}", ANYCAST) for number in range(200)]
    wanted = replace(
        secured("0"),
        addresses=declaring(*queues).addresses,
        address_settings=settings(max_size_messages=9).address_settings,
    )
    core.broker.reconfigure(NewRules.of(wanted), lambda: done.append(True))
    turns = 0
    while not done:
        before = len(core.broker.queues()), changed
        core.turn()
        turns += 1
        assert len(core.broker.queues()) - before[0] < 20
        assert changed - before[1] < 20
    assert turns > 50
    assert changed >= 200
    assert len(core.broker.queues()) == 400


@patches_methods
def test_what_fails_keeps_nothing_else_back(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One queue that cannot be changed is told of, and the others are."""
    core = CoreUnderTest()
    core.send("/queue/a", "x")
    core.send("/queue/b", "x")
    queue = core.broker.queues()["a"]
    resume = type(queue).resume

    def failing(self: Queue) -> None:
        if self is queue:
            raise RuntimeError("unforeseen")
        resume(self)

    monkeypatch.setattr(type(queue), "resume", failing)
    core.reconfigure(settings(max_size_messages=1, address_full_policy=AddressFullPolicy.FAIL))
    assert "applying the changed broker.xml to queue 'a' failed" in caplog.text
    with pytest.raises(BrokerError):
        core.send("/queue/b", "y")
