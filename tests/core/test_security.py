"""Who may connect, and what they may do with which address."""

from dataclasses import replace

import pytest

from orthia.broker.core.api import (
    AuthenticationFailed,
    BrokerError,
    NotAuthorized,
    Principal,
    TransactionWork,
)
from orthia.broker.security.permissions import Security
from orthia.config.secrets import Secret
from orthia.config.settings import (
    AddressConfiguration,
    QueueSettings,
    RoutingType,
    SecuritySetting,
    User,
)
from tests.core.support import SETTINGS, CoreUnderTest, FakeConsumer, message

EVERYTHING = ("send", "consume", "createAddress", "createDurableQueue", "createNonDurableQueue")
SECURED = replace(
    SETTINGS,
    security_enabled=True,
    users=(
        User("ada", Secret("l0vel@ce"), frozenset({"staff"})),
        User("guest", Secret("guest"), frozenset({"visitors"})),
    ),
    security_settings=(
        SecuritySetting("#", {each: frozenset({"staff"}) for each in EVERYTHING}),
        SecuritySetting("public.#", {"send": frozenset({"staff", "visitors"})}),
        SecuritySetting("public.box", {each: frozenset({"visitors"}) for each in EVERYTHING}),
    ),
)
ADA = Principal("ada", frozenset({"staff"}))
GUEST = Principal("guest", frozenset({"visitors"}))


def test_a_user_is_known_by_login_and_passcode() -> None:
    """Whoever says both gets the roles that were configured."""
    known = Security(SECURED).authenticate("ada", "l0vel@ce")
    assert isinstance(known, Principal)
    assert (known.name, known.roles, known.unrestricted) == (
        "ada",
        frozenset({"staff"}),
        False,
    )


@pytest.mark.parametrize("passcode", [None, "", " "])
def test_no_user_has_an_empty_password(passcode: str | None) -> None:
    """Whatever a configuration was read as: it would be a login without a password."""
    careless = replace(SECURED, users=(User("ada", Secret(""), frozenset({"staff"})),))
    with pytest.raises(AuthenticationFailed):
        Security(careless).authenticate("ada", passcode)


@pytest.mark.parametrize(
    ("login", "passcode"),
    [
        ("ada", "wrong"),
        ("ada", None),
        ("ada", ""),
        ("nobody", "l0vel@ce"),
        ("nobody", ""),
        (None, None),
        ("", ""),
        ("ADA", "l0vel@ce"),
    ],
)
def test_every_wrong_login_is_refused_in_the_same_words(
    login: str | None, passcode: str | None
) -> None:
    """The refusal does not tell an unknown name from a wrong passcode."""
    with pytest.raises(AuthenticationFailed, match=r"^login or passcode is wrong$"):
        Security(SECURED).authenticate(login, passcode)


def test_without_security_everybody_may_do_everything() -> None:
    """With security-enabled false any login is taken, none included."""
    security = Security(SETTINGS)
    for login in (None, "whoever"):
        principal = security.authenticate(login, "whatever")
        assert isinstance(principal, Principal)
        security.check(principal, "send", "any.address")


@pytest.mark.parametrize(
    ("principal", "permission", "address", "allowed"),
    [
        (ADA, "send", "orders", True),
        (GUEST, "send", "orders", False),
        (GUEST, "send", "public.news", True),
        (ADA, "consume", "public.news", False),
        (ADA, "send", "public.box", False),
        (GUEST, "consume", "public.box", True),
        (ADA, "browse", "orders", False),
    ],
)
def test_the_most_specific_setting_alone_decides(
    principal: Principal, permission: str, address: str, allowed: bool
) -> None:
    """As in Artemis: what it does not grant is not taken from a more general one."""
    security = Security(SECURED)
    for _ in range(2):  # asked, and remembered
        if allowed:
            security.check(principal, permission, address)
        else:
            with pytest.raises(NotAuthorized, match=f"{permission!r} on address {address!r}"):
                security.check(principal, permission, address)


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that names ever new addresses fills no memory."""
    monkeypatch.setattr(Security, "MAX_REMEMBERED", 10)
    security = Security(SECURED)
    for number in range(100):
        security.check(ADA, "send", f"orders.{number}")
    assert len(security._remembered) <= 10


def test_sending_consuming_and_creating_are_each_asked_for() -> None:
    """Who may send may not therefore create, nor consume."""
    core = CoreUnderTest(SECURED)
    with pytest.raises(NotAuthorized, match="'consume'"):
        core.broker.subscribe(GUEST, "/queue/orders", FakeConsumer(), prefetch=1)
    with pytest.raises(NotAuthorized, match="'createAddress'"):
        core.broker.send(GUEST, "/queue/public.news", message("a"), None)
    core.broker.send(GUEST, "/queue/public.box", message("a"), None)
    core.settle()
    assert core.broker.depths() == {"public.box": 1}


def test_who_may_send_may_not_therefore_hear_a_topic() -> None:
    """To hear the messages of an address is to consume them, with a queue or without."""
    core = CoreUnderTest(SECURED)
    with pytest.raises(NotAuthorized, match=r"'consume' on address 'public\.news'"):
        core.broker.subscribe(GUEST, "/topic/public.news", FakeConsumer(), prefetch=1)
    core.broker.subscribe(GUEST, "/topic/public.box", FakeConsumer(), prefetch=1)


def test_a_queue_is_created_for_who_may_create_it() -> None:
    """Whoever may send, consume and create addresses but no durable queue gets none."""
    granted = {each: frozenset({"visitors"}) for each in ("send", "consume", "createAddress")}
    settings = replace(SECURED, security_settings=(SecuritySetting("#", granted),))
    core = CoreUnderTest(settings)
    refused = "'createDurableQueue' on address 'new'"
    with pytest.raises(NotAuthorized, match=refused):
        core.broker.send(GUEST, "/queue/new", message("a"), None)
    with pytest.raises(NotAuthorized, match=refused):
        core.broker.subscribe(GUEST, "/queue/new", FakeConsumer(), prefetch=1)
    core.settle()
    assert core.broker.depths() == {}


def test_a_transaction_is_refused_whole_for_one_address() -> None:
    """Nothing of it is stored."""
    core = CoreUnderTest(SECURED)
    work = TransactionWork([("/queue/public.box", message("a")), ("/queue/orders", message("b"))])
    with pytest.raises(BrokerError, match="'send' on address 'orders'"):
        list(core.broker.commit(GUEST, work, lambda: None))
    core.settle()
    assert core.broker.depths() == {"public.box": 0}


def test_a_queue_is_guarded_by_its_address() -> None:
    """To name the queue and not its address is no way round the permission."""
    address = AddressConfiguration(
        "orders",
        frozenset({RoutingType.ANYCAST}),
        (QueueSettings("public.box", RoutingType.ANYCAST),),
    )
    core = CoreUnderTest(replace(SECURED, addresses=(address,)))
    with pytest.raises(NotAuthorized, match="'consume' on address 'orders'"):
        core.broker.subscribe(GUEST, "/queue/public.box", FakeConsumer(), prefetch=1)


def test_a_topics_subscriber_needs_the_permission_of_its_queue() -> None:
    """Artemis makes a queue that is not durable for it, and asks the same."""
    permissions = {
        "consume": frozenset({"staff", "visitors"}),
        "createAddress": frozenset({"staff"}),
    }
    settings = replace(
        SECURED,
        addresses=(AddressConfiguration("news", frozenset({RoutingType.MULTICAST})),),
        security_settings=(
            SecuritySetting("#", {**permissions, "createNonDurableQueue": frozenset({"visitors"})}),
        ),
    )
    core = CoreUnderTest(settings)
    core.broker.subscribe(GUEST, "/topic/news", FakeConsumer(), prefetch=1)
    with pytest.raises(NotAuthorized, match="'createNonDurableQueue' on address 'news'"):
        core.broker.subscribe(ADA, "/topic/news", FakeConsumer(), prefetch=1)
