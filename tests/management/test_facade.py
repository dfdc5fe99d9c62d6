"""The facade of operators: what it shows and changes, who may, and what it writes to the audit."""

import asyncio
import json
import logging
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

import pytest

from orthia.broker.core.errors import LimitExceeded, NotAuthorized, NotLive, QueueInUse
from orthia.broker.core.identity import Principal
from orthia.broker.core.selectors import SelectorRefused
from orthia.broker.management.errors import AlreadyThere, NotFound, NotPossible, WrongArgument
from orthia.broker.management.facade import Management
from orthia.broker.management.listing import Asked, Page
from orthia.broker.management.views import QueueView, as_json
from orthia.broker.security.audit import READ_SECONDS, Audit
from orthia.config.address_settings import AddressConfiguration, QueueSettings, RoutingType
from orthia.config.security_settings import SecuritySetting
from orthia.config.settings import ClientLimits
from tests.core.support import ANYONE, SETTINGS, CoreUnderTest, message, settings
from tests.management.support import OPERATOR, FakeClients, Managed, connection

ANYCAST, MULTICAST = RoutingType.ANYCAST, RoutingType.MULTICAST
_Work = Callable[[Management], Coroutine[Any, Any, object]]
STAFF = frozenset({"staff"})
ADA = Principal("ada", STAFF)
DECLARED = replace(
    SETTINGS,
    addresses=(
        AddressConfiguration("fixed", frozenset({ANYCAST}), (QueueSettings("fixed", ANYCAST),)),
    ),
)


def test_a_queue_is_shown_with_its_counts() -> None:
    """What came, what consumers have, what is done; bytes follow what is left."""
    managed = Managed()
    core, management = managed.core, managed.management
    core.send("/queue/orders", "a", "b", "c")
    whole = managed.run(management.queue(OPERATOR, "orders"))
    assert (whole.messages, whole.added, whole.consumers, whole.delivering) == (3, 3, 0, 0)
    assert whole.bytes == core.broker.queues()["orders"].use.used
    consumer = core.consume("/queue/orders", prefetch=2)
    consumer.acknowledge("a")
    core.settle()
    view = managed.run(management.queue(OPERATOR, "orders"))
    assert (view.messages, view.acknowledged, view.consumers, view.delivering) == (2, 1, 1, 2)
    assert view.bytes == core.broker.queues()["orders"].use.used < whole.bytes
    assert view.oldest_ms is not None
    assert (view.temporary, view.paused, view.counted, view.configured) == (False,) * 2 + (
        True,
        False,
    )
    assert as_json(view)["routing-type"] == "ANYCAST"
    consumer.acknowledge("b", "c")
    core.settle()
    assert managed.run(management.queue(OPERATOR, "orders")).bytes == 0


def test_bytes_are_a_queues_own_where_its_address_has_several() -> None:
    """The address counts all of them together."""
    managed = Managed()
    for name in ("x::one", "x::two"):
        managed.core.send(f"/queue/{name}", "a" * 100)
    managed.core.send("/queue/x::one", "b")
    one, two = (managed.run(managed.management.queue(OPERATOR, name)) for name in ("one", "two"))
    address = managed.run(managed.management.address(OPERATOR, "x"))
    assert one.bytes + two.bytes == address.bytes
    assert one.bytes > two.bytes > 0
    assert address.queues == ("one", "two")
    assert address.messages == 3


def test_what_an_earlier_node_left_is_counted_and_its_age_read() -> None:
    """Nothing of it is in memory; the oldest message is read for who asks for the one queue."""
    now = [1_000_000]
    managed = Managed(time_ms=lambda: now[0])
    managed.core.send("/queue/orders", "a", "b")
    later = managed.takeover()
    later.core.broker.count_backlogs()
    later.core.settle()
    (listed,) = later.run(later.management.queues(OPERATOR)).items
    assert (listed.messages, listed.oldest_ms) == (2, None)
    view = later.run(later.management.queue(OPERATOR, "orders"))
    assert (view.messages, view.oldest_ms) == (2, 1_000_000)
    assert view.bytes == managed.core.broker.queues()["orders"].log.stored_bytes


def test_a_list_of_queues_is_shared_sorted_searched_and_paged() -> None:
    """A list is made once for all who ask within a second; schedules are not in it."""
    managed = Managed()
    core = managed.core
    for number in range(25):
        core.send(f"/queue/q{number:02}", *("x" * (1 + number % 5)))

    def page(**asked: Any) -> Page[QueueView]:
        return managed.run(managed.management.queues(OPERATOR, Asked(**asked)))

    assert page() is page()
    found = page(search="Q1", sort="messages", descending=True, limit=3)
    assert found.total == 10
    assert [one.name for one in found.items] == ["q14", "q19", "q13"]
    assert [one.name for one in page(offset=24, limit=5).items] == ["q24"]
    assert page(where=(("messages", 5),)).total == 5
    for wrong in ({"sort": "colour"}, {"limit": 0}, {"offset": -1}, {"where": (("x", 1),)}):
        with pytest.raises(WrongArgument):
            page(**wrong)


def test_messages_are_shown_a_page_at_a_time_and_stay() -> None:
    """By priority and seq, what is in memory only among them; a page says where the next begins."""
    managed = Managed(settings(max_size_messages=4))
    core, management = managed.core, managed.management
    core.send("/queue/orders", "m0", persistent=False)
    core.send("/queue/orders", *(f"s{number}" for number in range(9)))
    core.send("/queue/orders", "urgent", priority=9, headers=b"kind:hot\n")
    bodies: list[str] = []
    after = None
    pages = 0
    while True:
        got = managed.run(management.browse(OPERATOR, "orders", None, after, 4, body_bytes=100))
        bodies += [(one.body or b"").decode() for one in got.messages]
        pages += 1
        after = got.next
        if after is None:
            break
    assert bodies == ["urgent", "m0", *(f"s{number}" for number in range(9))]
    assert pages == 3
    hot = managed.run(management.browse(OPERATOR, "orders", "kind = 'hot'"))
    assert [one.priority for one in hot.messages] == [9]
    assert hot.messages[0].properties["kind"] == "hot"
    assert hot.messages[0].body is None
    assert managed.run(management.count(OPERATOR, "orders", "JMSPriority < 5")) == 10
    assert managed.run(management.count(OPERATOR, "orders")) == 11
    one = managed.run(management.message(OPERATOR, "orders", hot.messages[0].id))
    assert one.body == b"urgent"
    assert len(core.consume("/queue/orders").received) == 11


def test_what_a_sender_says_of_returns_breaks_no_page() -> None:
    """A number that is too long, or none, counts for none; so does a place of a page."""
    managed = Managed()
    for said in (b"9" * 5_000, "٣".encode(), b"x", b"2"):
        managed.core.send("/queue/orders", "a", headers=b"_ORTHIA_RETURNS:%b\n" % said)
    shown = managed.run(managed.management.browse(OPERATOR, "orders")).messages
    assert [one.returns for one in shown] == [0, 0, 0, 2]
    with pytest.raises(WrongArgument, match="no place"):
        managed.run(managed.management.browse(OPERATOR, "orders", after="9" * 5_000 + ".1"))


def test_wrong_input_is_refused_by_name() -> None:
    """A queue, a page, a message, a selector with its column."""
    managed = Managed()
    management = managed.management
    managed.core.send("/queue/orders", "a")
    for work, kind, text in (
        (management.queue(OPERATOR, "nothing"), NotFound, "no queue 'nothing'"),
        (management.address(OPERATOR, "nothing"), NotFound, "no address 'nothing'"),
        (management.message(OPERATOR, "orders", 77), NotFound, "no message '77'"),
        (management.browse(OPERATOR, "orders", "a ="), SelectorRefused, "column 4"),
        (management.browse(OPERATOR, "orders", None, "x"), WrongArgument, "no place"),
        (management.browse(OPERATOR, "orders", limit=0), WrongArgument, "1 to 500"),
        (management.close_connection(OPERATOR, "7"), NotFound, "no connection '7'"),
        (management.close_consumer(OPERATOR, "7.1"), NotFound, "no consumer '7.1'"),
        (management.create_queue(OPERATOR, "orders"), AlreadyThere, "already"),
        (management.create_queue(OPERATOR, " a"), WrongArgument, "no name"),
        (
            management.create_queue(OPERATOR, "b", options={"colour": 1}),
            WrongArgument,
            "no option 'colour'",
        ),
        (
            management.create_queue(OPERATOR, "b", options={"filter": "a b"}),
            SelectorRefused,
            "queue 'b' is refused: at column 3",
        ),
        (management.delete_queue(OPERATOR, "nothing"), NotFound, "no queue"),
        (management.delete_address(OPERATOR, "orders"), NotPossible, "has queue 'orders'"),
        (management.send(OPERATOR, "orders", b"", priority=10), WrongArgument, "0 to 9"),
    ):
        with pytest.raises(kind, match=text):
            managed.run(work)
    assert list(managed.core.broker.queues()) == ["orders"]


def test_queues_and_addresses_are_created_and_deleted_and_outlive_the_node() -> None:
    """An address stays without a queue; a takeover finds both."""
    managed = Managed()
    made = managed.run(
        managed.management.create_queue(
            OPERATOR, "red", address="paint", routing_type=MULTICAST, options={"filter": "hue = 1"}
        )
    )
    assert (made.address, made.routing_type, made.filter) == ("paint", MULTICAST, "hue = 1")
    managed.run(managed.management.create_address(OPERATOR, "empty", [ANYCAST, MULTICAST]))
    later = managed.takeover()
    later.core.broker.count_backlogs()
    later.core.settle()
    assert later.run(later.management.queue(OPERATOR, "red")) == made
    address = later.run(later.management.address(OPERATOR, "empty"))
    assert (address.created, address.routing_types) == (True, (ANYCAST, MULTICAST))
    later.run(later.management.delete_address(OPERATOR, "empty"))
    assert later.run(later.management.delete_queue(OPERATOR, "red")) == 0
    last = later.takeover()
    assert last.run(last.management.queues(OPERATOR)).items == ()
    assert last.run(last.management.addresses(OPERATOR)) == ()


def test_a_queue_in_use_is_deleted_by_force_alone() -> None:
    """And a declared one not at all: the text says what works."""
    managed = Managed(DECLARED)
    managed.core.send("/queue/orders", "a")
    with pytest.raises(QueueInUse, match="1 messages"):
        managed.run(managed.management.delete_queue(OPERATOR, "orders"))
    assert managed.run(managed.management.delete_queue(OPERATOR, "orders", force=True)) == 1
    with pytest.raises(Exception, match=r"configured.*purge"):
        managed.run(managed.management.delete_queue(OPERATOR, "fixed", force=True))


def test_a_paused_queue_takes_messages_and_delivers_none_also_after_a_takeover() -> None:
    """Until it is resumed; a pause that is not to persist ends with the node."""
    managed = Managed()
    core = managed.core
    consumer = core.consume("/queue/orders")
    core.send("/queue/short", "x")
    managed.run(managed.management.pause_queue(OPERATOR, "orders"))
    managed.run(managed.management.pause_queue(OPERATOR, "short", persist=False))
    core.send("/queue/orders", "a")
    assert consumer.texts == []
    assert managed.run(managed.management.queue(OPERATOR, "orders")).paused
    later = managed.takeover()
    again = later.core.consume("/queue/orders")
    assert again.texts == []
    assert later.core.consume("/queue/short").texts == ["x"]
    later.run(later.management.resume_queue(OPERATOR, "orders"))
    later.core.settle()
    assert again.texts == ["a"]
    assert not later.takeover().core.broker.queues()["orders"].is_paused


def test_a_paused_address_pauses_all_of_its_queues_and_those_to_come() -> None:
    """One that is paused by itself stays so when the address is resumed."""
    managed = Managed()
    core, management = managed.core, managed.management
    core.send("/queue/x::one", "1")
    core.send("/queue/x::own", "own")
    managed.run(management.pause_queue(OPERATOR, "own"))
    managed.run(management.pause_address(OPERATOR, "x"))
    core.send("/queue/x::two", "2")
    managed = managed.takeover()
    core, management = managed.core, managed.management
    consumers = [core.consume(f"/queue/x::{name}") for name in ("one", "two", "own")]
    assert [one.texts for one in consumers] == [[], [], []]
    assert managed.run(management.address(OPERATOR, "x")).paused
    managed.run(management.resume_address(OPERATOR, "x"))
    core.settle()
    assert [one.texts for one in consumers] == [["1"], ["2"], []]


def test_the_pause_of_a_temporary_address_ends_with_it() -> None:
    """Nothing of it is stored: a later node would pause an address that nobody has."""
    managed = Managed()
    core, management = managed.core, managed.management
    core.broker.create_temporary(ANYONE, ANYCAST, "mine")
    (view,) = [one for one in managed.run(management.addresses(OPERATOR)) if one.temporary]
    assert managed.run(management.pause_address(OPERATOR, view.name)).paused
    later = managed.takeover()
    assert not later.core.broker.parts.book.address(view.name).is_paused


def test_a_message_is_sent_and_has_what_was_said_of_it() -> None:
    """It is stored when the call returns; a routing type may be said by a prefix."""
    managed = Managed()
    sent = managed.management.send(
        OPERATOR, "/queue/orders", b"hello", properties={"n": 3}, priority=7
    )
    managed.run(sent)
    (one,) = managed.run(managed.management.browse(OPERATOR, "orders", body_bytes=10)).messages
    assert (one.body, one.priority, one.properties["n"], one.durable) == (b"hello", 7, 3, True)
    later = managed.takeover()
    (stored,) = later.run(later.management.browse(OPERATOR, "orders", body_bytes=10)).messages
    assert stored == one


def test_who_sends_is_told_the_id_in_the_first_of_the_queues() -> None:
    """By which it is found, whatever way it goes; none if no queue takes it."""
    managed = Managed()
    core, management = managed.core, managed.management
    for name in ("one", "two"):
        made = management.create_queue(
            OPERATOR, name, address="news", routing_type=RoutingType.MULTICAST
        )
        managed.run(made)
    last = management.create_queue(
        OPERATOR, "last", routing_type=ANYCAST, options={"last_value_key": "k"}
    )
    managed.run(last)
    for queue, said in (
        ("orders", {"destination": "/queue/orders"}),
        ("orders", {"destination": "/queue/orders", "durable": False}),
        ("orders", {"destination": "/queue/orders", "expires_ms": 4_000_000_000_000}),
        ("one", {"destination": "/topic/news"}),
        ("last", {"destination": "last", "properties": {"k": "a"}}),
        ("last", {"destination": "last", "properties": {"k": "a"}}),
    ):
        sent = managed.run(management.send(OPERATOR, body=b"x", **said))
        assert sent is not None
        managed.run(management.message(OPERATOR, queue, sent))
        assert managed.run(management.browse(OPERATOR, queue)).messages[-1].id == sent
    later = core.broker.time_ms() + 3_600_000
    sent = managed.run(management.send(OPERATOR, "/queue/orders", b"x", delivery_ms=later))
    (waits,) = managed.run(management.scheduled(OPERATOR)).messages
    assert waits.id == sent
    assert managed.run(management.send(OPERATOR, "/topic/nobody", b"x")) is None


def test_consumers_and_connections_are_shown_and_closed() -> None:
    """Each consumer has an id of its own; who is ended is told by whom and why."""
    managed = Managed(clients=FakeClients(connection(""), connection("c2", user="bob")))
    managed.core.consume("/queue/orders", selector="a = 1")
    managed.core.consume("/topic/news")
    (of_queue,) = managed.run(managed.management.consumers(OPERATOR, "orders"))
    assert (of_queue.queue, of_queue.selector, of_queue.prefetch) == ("orders", "a = 1", 1_000)
    everyone = managed.run(managed.management.consumers(OPERATOR))
    assert [one.address for one in everyone] == ["orders", "news"]
    assert len({one.id for one in everyone}) == 2
    shown = managed.run(managed.management.connections(OPERATOR)).items
    assert [(one.id, one.consumers) for one in shown] == [("", 2), ("c2", 0)]
    managed.run(managed.management.close_consumer(OPERATOR, of_queue.id, "stuck"))
    told = "an operator, user 'op', closed this consumer: stuck"
    assert managed.clients.ended == [("", told)]
    assert managed.run(managed.management.close_connections(OPERATOR, user="bob")) == 1


def test_only_the_connections_that_are_meant_are_closed() -> None:
    """Of a user, wherever it is; or at an address, whoever it is; never of both, nor of all."""
    here, there = "10.0.0.1", "10.0.0.2"
    managed = Managed(
        clients=FakeClients(
            connection("1", user="ada", address=here),
            connection("2", user="bob", address=here),
            connection("3", user="ada", address=there),
            connection("4", user="cyd", address=there),
        )
    )
    close = managed.management.close_connections
    for given in ({}, {"user": "ada", "address": here}):
        with pytest.raises(WrongArgument, match="of a user, or of an address"):
            managed.run(close(OPERATOR, **given))
    assert managed.run(close(OPERATOR, user="ada")) == 2
    assert set(managed.clients.there) == {"2", "4"}
    assert managed.run(close(OPERATOR, address=there, reason="moved")) == 1
    assert set(managed.clients.there) == {"2"}
    assert managed.clients.ended[-1] == (
        "4",
        "an operator, user 'op', closed this connection: moved",
    )


def test_what_is_declared_is_not_created_once_more() -> None:
    """An address of broker.xml has the types that it has there."""
    declared = (AddressConfiguration("declared", frozenset({RoutingType.ANYCAST}), ()),)
    managed = Managed(replace(SETTINGS, addresses=declared))
    both = (RoutingType.ANYCAST, RoutingType.MULTICAST)
    with pytest.raises(AlreadyThere, match=r"address 'declared' is declared in broker\.xml"):
        managed.run(managed.management.create_address(OPERATOR, "declared", both))
    view = managed.run(managed.management.address(OPERATOR, "declared"))
    assert (view.routing_types, view.created) == ((RoutingType.ANYCAST,), False)


def test_a_body_is_sent_up_to_its_bound() -> None:
    """A longer one is refused as a client's is, and nothing is stored."""
    managed = Managed(replace(SETTINGS, stomp_limits=ClientLimits(max_body_bytes=5)))
    management = managed.management
    managed.run(management.send(OPERATOR, "/queue/orders", b"12345"))
    with pytest.raises(LimitExceeded, match="a body of 6 bytes is longer than max-body-bytes 5"):
        managed.run(management.send(OPERATOR, "/queue/orders", b"123456"))
    assert managed.texts("orders") == ["12345"]


def test_each_operation_needs_its_permission_and_writes_one_line() -> None:
    """Without ``manage`` nothing; with role-based management ``view`` or ``edit``, by its name."""
    lines: list[bytes] = []
    rights = ("send", "createDurableQueue", "createAddress", "deleteDurableQueue")
    everything = SecuritySetting("#", dict.fromkeys((*rights, "deleteAddress"), STAFF))
    manage = SecuritySetting("activemq.management", {"manage": STAFF})

    def managed(*granted: SecuritySetting) -> tuple[Managed, Management]:
        options = replace(
            SETTINGS,
            security_enabled=True,
            security_settings=(everything, *granted),
            management_message_rbac=len(granted) != 1 or granted[0] is not manage,
        )
        core = CoreUnderTest(options)
        core.broker.security.audit = type(core.broker.security.audit)(lines.append, "test")
        core.send("/queue/orders", "a")
        made = Managed(core=core, clients=FakeClients(connection("c1")))
        return made, made.management

    operations: list[tuple[str, str, _Work]] = [
        ("view", "broker.listQueues", lambda m: m.queues(ADA)),
        ("view", "queue.orders.getAttributes", lambda m: m.queue(ADA, "orders")),
        ("view", "queue.orders.browse", lambda m: m.browse(ADA, "orders")),
        ("view", "queue.orders.countMessages", lambda m: m.count(ADA, "orders")),
        ("view", "broker.listConnectionsAsJSON", lambda m: m.connections(ADA)),
        ("view", "address.orders.getAttributes", lambda m: m.address(ADA, "orders")),
        ("edit", "queue.orders.pause", lambda m: m.pause_queue(ADA, "orders")),
        ("edit", "address.orders.resume", lambda m: m.resume_address(ADA, "orders")),
        ("edit", "address.orders.sendMessage", lambda m: m.send(ADA, "orders", b"x")),
        ("edit", "broker.createQueue", lambda m: m.create_queue(ADA, "more")),
        ("edit", "broker.destroyQueue", lambda m: m.delete_queue(ADA, "orders", force=True)),
        ("edit", "broker.createAddress", lambda m: m.create_address(ADA, "a", [ANYCAST])),
        ("edit", "broker.closeConnectionWithID", lambda m: m.close_connection(ADA, "c1")),
    ]
    for permission, name, work in operations:
        for granted, missing in (
            ((), "'manage'"),
            ((manage, SecuritySetting("mops.#", {})), f"'{permission}' on address 'mops.{name}'"),
        ):
            node, management = managed(*granted)
            with pytest.raises(NotAuthorized, match=missing):
                node.run(work(management))
        for own in ((), (SecuritySetting(f"mops.{name}", {permission: STAFF}),)):
            node, management = managed(manage, *own)
            lines.clear()
            node.run(work(management))
            (line,) = [json.loads(one) for one in lines]
            assert line["event"] == "management"
            assert f"{line['resource']}.{line['operation']}" == name
            assert line["user"] == "ada"


def test_a_read_that_is_repeated_is_in_the_audit_once() -> None:
    """Else a console fills the log; after a while, of another user and of what changes, always."""
    lines: list[bytes] = []
    now = [0.0]
    managed = Managed()
    managed.core.send("/queue/orders", "a")
    security = managed.core.broker.security
    security.audit = Audit(lines.append, "test", clock=lambda: now[0])

    def written(who: Principal, *work: Callable[[Principal], Coroutine[Any, Any, Any]]) -> int:
        lines.clear()
        for one in work:
            managed.run(one(who))
        return len(lines)

    node = managed.management
    reads = (node.queues, lambda who: node.queue(who, "orders"), lambda who: node.jobs(who))
    changes = (
        lambda who: node.pause_queue(who, "orders"),
        lambda who: node.resume_queue(who, "orders"),
    )
    assert written(OPERATOR, *reads, *reads) == 3
    assert written(replace(OPERATOR, name="bob"), *reads, *reads) == 3
    assert written(OPERATOR, *reads) == 0
    assert written(OPERATOR, *changes, *changes) == 4
    now[0] = READ_SECONDS
    assert written(OPERATOR, *reads, *reads) == 3


def test_a_node_that_stops_answers_nothing() -> None:
    """Neither who asks then, nor who waits."""
    managed = Managed(auto_commit=False)
    managed.core.broker.send(OPERATOR, "/queue/orders", message("a"), None)

    async def asked() -> None:
        waits = asyncio.ensure_future(managed.management.pause_queue(OPERATOR, "orders"))
        await asyncio.sleep(0)
        assert not waits.done()
        managed.management.end()
        managed.core.broker.stop()
        with pytest.raises(NotLive):
            await waits
        with pytest.raises(NotLive):
            await managed.management.queues(OPERATOR)

    managed.run(asked())


def test_the_settings_in_effect_are_shown_by_their_names() -> None:
    """Of an address that may not exist yet, too."""
    managed = Managed(settings("orders.#", max_delivery_attempts=3))
    shown = managed.run(managed.management.settings(OPERATOR, "orders.new"))
    assert shown["max-delivery-attempts"] == 3
    assert shown["address-full-policy"] == "PAGE"
    assert managed.run(managed.management.memory(OPERATOR)).store_bytes == 0
    assert managed.run(managed.management.overview(OPERATOR)).queues == 0
    assert managed.run(managed.management.transactions(OPERATOR)) == ()


def test_more_is_logged_as_an_operator_says(request: pytest.FixtureRequest) -> None:
    """Of Orthia's own loggers, and by the levels there are."""
    logger = logging.getLogger("orthia.for-a-test")
    request.addfinalizer(lambda: logger.setLevel(logging.NOTSET))
    managed = Managed()
    managed.run(managed.management.set_log_level(OPERATOR, logger.name, "DEBUG"))
    assert logger.level == logging.DEBUG
    for name, level, wrong in (
        ("uvicorn", "DEBUG", "no logger"),
        ("orthiarchive", "DEBUG", "no logger"),
        ("orthia", "LOUD", "a level is"),
    ):
        with pytest.raises(WrongArgument, match=wrong):
            managed.run(managed.management.set_log_level(OPERATOR, name, level))


def test_a_node_without_a_backup_hands_nothing_over() -> None:
    """It says so, and goes on."""
    managed = Managed()
    with pytest.raises(NotPossible, match="no backup to hand over to"):
        managed.run(managed.management.hand_over(OPERATOR))
    managed.core.send("/queue/orders", "a")
    assert managed.texts("orders") == ["a"]
