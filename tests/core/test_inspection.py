"""What can be asked about the queues of a running node: it changes nothing, and reads nothing."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from orthia.broker.core.errors import DestinationRefused, LimitExceeded, NotAuthorized, NotLive
from orthia.broker.core.identity import Principal
from orthia.broker.management import operations
from orthia.broker.management.operations import (
    CountMessages,
    GetQueueNames,
    Question,
    UnknownOperation,
    answer,
    read_operation,
)
from orthia.config.address_settings import RoutingType
from orthia.config.security_settings import SecuritySetting
from orthia.config.settings import Settings
from tests.core.support import SETTINGS, CoreUnderTest, FakeConsumer, anyone

ADA = Principal("ada", frozenset({"staff"}))
STAFF = frozenset({"staff"})


def asked(question: Question, core: CoreUnderTest, who: Principal | None = None) -> bytes:
    """Return the answer to a question."""
    return b"".join(answer(question, core.broker, who or anyone()))


def secured(*granted: SecuritySetting, rbac: bool = False) -> Settings:
    """Return settings where the staff may do what is said alone."""
    return replace(
        SETTINGS,
        security_enabled=True,
        security_settings=granted,
        management_message_rbac=rbac,
    )


MANAGE = SecuritySetting("activemq.management", {"manage": STAFF})


def test_what_consumers_have_counts_too() -> None:
    """Until it is acknowledged."""
    core = CoreUnderTest()
    core.send("/queue/orders", "a", "b", "c")
    core.settle()
    assert asked(CountMessages("orders"), core) == b"[3]"
    consumer = core.consume("/queue/orders")
    core.settle()
    assert asked(CountMessages("orders"), core) == b"[3]"
    consumer.acknowledge("a")
    core.settle()
    assert asked(CountMessages("orders"), core) == b"[2]"


def test_to_ask_reads_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The journal is not asked, though most of the messages are in the table only."""
    core = CoreUnderTest()
    core.send("/queue/orders", *map(str, range(3_000)))
    core.settle()
    core = core.takeover().counted()
    windows = core.count_windows()
    monkeypatch.setattr(type(core.journal), "count", None)
    assert asked(CountMessages("orders"), core) == b"[3000]"
    assert asked(GetQueueNames(None), core) == b'[["orders"]]'
    assert not windows


def test_names_are_of_all_queues_or_of_one_type() -> None:
    """Durable subscriptions are queues; who hears a topic is none."""
    core = CoreUnderTest()
    assert asked(GetQueueNames(None), core) == b"[[]]"
    core.send("/queue/größe", "a")
    core.broker.subscribe(
        Principal("x", frozenset(), unrestricted=True, client_id="billing"),
        "/topic/news",
        FakeConsumer(),
        prefetch=1,
        durable="invoices",
    )
    core.consume("/topic/other")
    core.settle()
    assert asked(GetQueueNames(RoutingType.ANYCAST), core) == '[["größe"]]'.encode()
    assert asked(GetQueueNames(RoutingType.MULTICAST), core) == b'[["billing.invoices"]]'
    assert asked(GetQueueNames(None), core) == '[["größe","billing.invoices"]]'.encode()


def test_many_names_are_told_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Queues that come and go between them are no matter; what is too long is refused."""
    monkeypatch.setattr(operations, "_NAMES_AT_A_TIME", 2)
    core = CoreUnderTest()
    for name in "abcde":
        core.send(f"/queue/{name}", "x")
    core.settle()
    pieces = answer(GetQueueNames(None), core.broker, anyone())
    first = [next(pieces), next(pieces)]
    core.send("/queue/f", "x")
    core.broker.delete_queue(anyone(), "e", lambda _: None, force=True)
    core.settle()
    assert [*first, *pieces] == [b"[", b'["a","b"', b',"c","d"', b',"e"', b"]", b"]"]
    monkeypatch.setattr(operations, "LONGEST_ANSWER", 10)
    with pytest.raises(LimitExceeded, match="longer than 10 bytes"):
        asked(GetQueueNames(None), core)


@pytest.mark.parametrize(
    ("question", "address"),
    [
        (CountMessages("box"), "mops.queue.box.countMessages"),
        (GetQueueNames(None), "mops.broker.getQueueNames"),
    ],
)
def test_a_question_needs_view_where_that_is_asked_for(question: Question, address: str) -> None:
    """Without it manage is enough, and always needed."""
    everything = SecuritySetting("#", dict.fromkeys(("send", "edit", "createDurableQueue"), STAFF))
    core = CoreUnderTest(secured(everything))
    with pytest.raises(NotAuthorized, match="'manage' on address 'activemq"):
        asked(question, core, ADA)
    core = CoreUnderTest(secured(MANAGE))
    core.send("/queue/box", "a")
    core.settle()
    assert asked(question, core, ADA) in (b"[1]", b'[["box"]]')
    for granted in ((MANAGE,), (MANAGE, SecuritySetting(address, {"edit": STAFF}))):
        core = CoreUnderTest(secured(*granted, rbac=True))
        with pytest.raises(NotAuthorized, match=f"'view' on address '{address}'"):
            asked(question, core, ADA)
    core = CoreUnderTest(secured(MANAGE, SecuritySetting(address, {"view": STAFF}), rbac=True))
    core.send("/queue/box", "a")
    core.settle()
    assert asked(question, core, ADA) in (b"[1]", b'[["box"]]')


def test_who_may_not_ask_is_not_told_whether_there_is_such_a_queue() -> None:
    """The permission is what is asked for first."""
    core = CoreUnderTest(secured(MANAGE, rbac=True))
    with pytest.raises(NotAuthorized, match="'view' on"):
        asked(CountMessages("nothing"), core, ADA)
    with pytest.raises(DestinationRefused, match="there is no queue 'nothing'"):
        asked(CountMessages("nothing"), core)


@pytest.mark.parametrize("question", [CountMessages("orders"), GetQueueNames(None)])
def test_a_node_that_stops_answers_nothing(question: Question) -> None:
    """What it would say may not be so any more."""
    core = CoreUnderTest()
    core.send("/queue/orders", "a")
    core.settle()
    core.broker.stop()
    with pytest.raises(NotLive):
        asked(question, core)


def texts() -> Iterator[tuple[str, str, bytes, object]]:
    """Yield requests and what they are read as; None for those that are refused."""
    for none in (b"", b"[]", b" [ ] "):
        yield "queue.a.b", "countMessages", none, CountMessages("a.b")
        yield "broker", "getQueueNames", none, GetQueueNames(None)
    for kind in RoutingType:
        yield "broker", "getQueueNames", b'["%b"]' % kind.value.encode(), GetQueueNames(kind)
    for wrong in (b"null", b"{}", b"3", b'["a > 1"]', b"[null]", b"[", b"[[]]", b'["anycast"]'):
        yield "queue.a", "countMessages", wrong, None
        yield "broker", "getQueueNames", wrong, None
    for resource, operation in (
        ("broker", "countMessages"),
        ("queue.a", "getQueueNames"),
        ("address.a", "countMessages"),
        ("queues.a", "countMessages"),
        ("queue.a", "listMessages"),
    ):
        yield resource, operation, b"", None


@pytest.mark.parametrize(("resource", "operation", "arguments", "meant"), list(texts()))
def test_how_a_question_is_written(
    resource: str, operation: str, arguments: bytes, meant: object
) -> None:
    """As Artemis has it; what is not understood is refused with what would be."""
    if meant is None:
        with pytest.raises(UnknownOperation, match="expected"):
            read_operation(resource, operation, arguments)
    else:
        assert read_operation(resource, operation, arguments) == meant
