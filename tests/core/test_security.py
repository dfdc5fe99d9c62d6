"""Who may connect, and what they may do with which address."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from orthia.broker.core.api import TransactionWork
from orthia.broker.core.errors import AuthenticationFailed, BrokerError, NotAuthorized
from orthia.broker.core.identity import Principal
from orthia.broker.security.permissions import Security
from orthia.config.address_settings import AddressConfiguration, QueueSettings, RoutingType
from orthia.config.secrets import Secret
from orthia.config.security_settings import RoleMapping, SecuritySetting, User
from orthia.config.settings import Settings
from tests.core.support import SETTINGS, CoreUnderTest, FakeConsumer, declared, message

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


def test_who_may_send_may_not_therefore_hear_a_topic() -> None:
    """To hear the messages of an address is to consume them, with a queue or without."""
    core = CoreUnderTest(SECURED)
    with pytest.raises(NotAuthorized, match=r"'consume' on address 'public\.news'"):
        core.broker.subscribe(GUEST, "/topic/public.news", FakeConsumer(), prefetch=1)
    core.broker.subscribe(GUEST, "/topic/public.box", FakeConsumer(), prefetch=1)


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
    address = declared("orders", "public.box")
    core = CoreUnderTest(replace(SECURED, addresses=(address,)))
    with pytest.raises(NotAuthorized, match="'consume' on address 'orders'"):
        core.broker.subscribe(GUEST, "/queue/public.box", FakeConsumer(), prefetch=1)


def granting(*permissions: str, match: str = "#", **options: Any) -> Settings:
    """Return settings that let the staff do these things, on what matches."""
    granted = {one: frozenset({"staff"}) for one in permissions}
    return replace(SECURED, security_settings=(SecuritySetting(match, granted),), **options)


def without(permission: str) -> CoreUnderTest:
    """Return a core with a queue of each kind, where the staff may do all but one thing."""
    types = frozenset({RoutingType.ANYCAST})
    queues = (QueueSettings("box", RoutingType.ANYCAST),)
    return CoreUnderTest(
        granting(
            *(one for one in TWELVE if one != permission),
            addresses=(AddressConfiguration("boxes", types, queues),),
            management_message_rbac=True,
        )
    )


def send(core: CoreUnderTest, destination: str, who: Principal = ADA) -> None:
    """Send as ada, or somebody else."""
    core.broker.send(who, destination, message("a"), None)
    core.settle()


def consume(core: CoreUnderTest, destination: str, who: Principal = ADA) -> None:
    """Subscribe as ada, or somebody else."""
    core.broker.subscribe(who, destination, FakeConsumer(), prefetch=1)
    core.settle()


def delete(core: CoreUnderTest, name: str) -> None:
    """Delete a queue as ada; there is one."""
    core.send(f"/queue/{name}", "x")
    core.broker.delete_queue(ADA, name, lambda _: None, force=True)
    core.settle()


def count(core: CoreUnderTest, name: str) -> None:
    """Ask as ada how many messages a queue has."""
    core.broker.security.check_management(ADA, f"queue.{name}", "countMessages")


TWELVE: Mapping[str, Callable[[CoreUnderTest], None]] = {
    "send": lambda core: send(core, "/queue/boxes"),
    "consume": lambda core: consume(core, "/queue/box"),
    "browse": lambda core: core.broker.security.check_browse(ADA, "boxes", "box"),
    "createAddress": lambda core: send(core, "/queue/new"),
    "deleteAddress": lambda core: delete(core, "new"),
    "createDurableQueue": lambda core: send(core, "/queue/new"),
    "deleteDurableQueue": lambda core: delete(core, "new"),
    "createNonDurableQueue": lambda core: consume(core, "/topic/new"),
    "deleteNonDurableQueue": lambda core: delete_non_durable(core),
    "manage": lambda core: delete(core, "new"),
    "view": lambda core: count(core, "box"),
    "edit": lambda core: delete(core, "new"),
}
"""Something for which each permission is needed."""


def delete_non_durable(core: CoreUnderTest) -> None:
    """Delete a queue that is not durable."""
    core.send("/queue/new", "x")
    core.broker.queues()["new"].durable = False
    core.broker.delete_queue(ADA, "new", lambda _: None, force=True)


@pytest.mark.parametrize("permission", TWELVE)
def test_each_of_the_twelve_is_needed_for_something(permission: str) -> None:
    """Whoever has all others is refused, by its name; whoever has it, too, is not."""
    with pytest.raises(NotAuthorized, match=f"has no role with permission '{permission}' on"):
        TWELVE[permission](without(permission))
    TWELVE[permission](without("none of them"))


def test_what_a_temporary_queue_needs() -> None:
    """It has an address of its own."""
    Security(granting("createAddress", "createNonDurableQueue")).check_temporary_queue(ADA, "tmp")
    with pytest.raises(NotAuthorized, match="'createAddress' on address 'tmp'"):
        Security(granting("createNonDurableQueue")).check_temporary_queue(ADA, "tmp")
    with pytest.raises(NotAuthorized, match="'createNonDurableQueue' on address 'tmp'"):
        Security(granting("createAddress")).check_temporary_queue(ADA, "tmp")


def test_a_fully_qualified_name_decides_alone() -> None:
    """For what is asked about that queue; for the address it says nothing."""
    settings = replace(
        SECURED,
        security_settings=(
            SecuritySetting("boxes", {"consume": frozenset({"staff", "visitors"})}),
            SecuritySetting("boxes::one", {"consume": frozenset({"staff"})}),
        ),
        addresses=(declared("boxes", "one", "two"),),
    )
    core = CoreUnderTest(settings)
    core.broker.subscribe(GUEST, "/queue/two", FakeConsumer(), prefetch=1)
    core.broker.subscribe(ADA, "/queue/one", FakeConsumer(), prefetch=1)
    with pytest.raises(NotAuthorized, match="'consume' on address 'boxes::one'"):
        core.broker.subscribe(GUEST, "/queue/one", FakeConsumer(), prefetch=1)


def _with_two_teams(*more: SecuritySetting) -> CoreUnderTest:
    """Give each of two teams its own addresses, of which ``pay`` is one of staff's."""
    everything = (*EVERYTHING, "deleteDurableQueue")
    settings = (
        SecuritySetting("#", {each: frozenset({"staff"}) for each in everything}),
        SecuritySetting("m.#", {each: frozenset({"visitors"}) for each in everything}),
        *more,
    )
    return CoreUnderTest(replace(SECURED, security_settings=settings))


@pytest.mark.parametrize(
    "take",
    [
        lambda core: send(core, "/topic/m.a::pay", GUEST),
        lambda core: consume(core, "/queue/m.a::pay", GUEST),
    ],
)
def test_nobody_takes_the_name_of_anothers_queue(take: Callable[[CoreUnderTest], None]) -> None:
    """No two queues have one name: it would keep ``/queue/pay`` from whoever it is for."""
    core = _with_two_teams()
    with pytest.raises(
        NotAuthorized,
        match=r"'createDurableQueue' on address 'pay', whose name queue 'm.a::pay' would take",
    ):
        take(core)
    send(core, "/queue/pay", ADA)
    assert core.broker.depths() == {"pay": 1}


def test_a_setting_for_exactly_that_queue_lets_it_be_made() -> None:
    """And one for the address of its name does; whose own it is needs nothing more."""
    send(_with_two_teams(), "/topic/m.a::m.pay", GUEST)
    created = {"createDurableQueue": frozenset({"visitors"})}
    for match in ("m.a::pay", "pay"):
        core = _with_two_teams(SecuritySetting(match, created))
        send(core, "/topic/m.a::pay", GUEST)
        assert core.broker.depths() == {"pay": 1}


def test_roles_are_mapped_beside_what_they_are() -> None:
    """Whoever has one role has those it is mapped to as well, and keeps it."""
    settings = replace(
        granting("send"),
        role_mappings=(
            RoleMapping("visitors", frozenset({"staff", "others"})),
            RoleMapping("cn=admins,dc=example", frozenset({"staff"})),
        ),
    )
    security = Security(settings)
    for roles in ({"staff"}, {"visitors"}, {"cn=admins,dc=example"}):
        security.check(Principal("eve", frozenset(roles)), "send", "orders")
    with pytest.raises(NotAuthorized):
        security.check(Principal("eve", frozenset({"others"})), "send", "orders")


def test_an_operation_needs_view_or_edit_where_that_is_asked_for() -> None:
    """By the operation's own address, so that one may be allowed and another not."""
    settings = replace(
        granting("manage"),
        management_message_rbac=True,
        security_settings=(
            SecuritySetting("activemq.management", {"manage": frozenset({"staff"})}),
            SecuritySetting("mops.queue.*.countMessages", {"view": frozenset({"staff"})}),
            SecuritySetting("mops.broker.destroyQueue", {"edit": frozenset({"staff"})}),
        ),
    )
    security = Security(settings)
    security.check_management(ADA, "queue.box", "countMessages")
    security.check_management(ADA, "broker", "destroyQueue")
    with pytest.raises(NotAuthorized, match=r"'edit' on address 'mops\.queue\.box\.pause'"):
        security.check_management(ADA, "queue.box", "pause")
    with pytest.raises(NotAuthorized, match="'view' on"):
        security.check_management(ADA, "queue.box", "listMessages")
    Security(granting("manage")).check_management(ADA, "queue.box", "pause")
    own = replace(
        settings, view_permission_method_match_pattern="^pause$", management_rbac_prefix="m"
    )
    with pytest.raises(NotAuthorized, match=r"'view' on address 'm\.queue\.box\.pause'"):
        Security(own).check_management(ADA, "queue.box", "pause")
