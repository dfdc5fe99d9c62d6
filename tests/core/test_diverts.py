"""Diverts: what is sent to one address goes to another, too or instead, or nowhere at all."""

from dataclasses import replace

import pytest

from orthia.broker.core.api import OutgoingMessage, TransactionWork
from orthia.broker.protocols.stomp.encoding import headers_map
from orthia.config.address_settings import (
    AddressConfiguration,
    AddressSettings,
    DivertRoutingType,
    DivertSettings,
    RoutingType,
)
from orthia.config.errors import ConfigurationError
from orthia.config.settings import Settings
from tests.core.support import SETTINGS, CoreUnderTest, anyone, message


def diverting(*diverts: DivertSettings, **settings: object) -> Settings:
    """Return settings with diverts."""
    return replace(SETTINGS, diverts=diverts, **settings)  # type: ignore[arg-type]


def audit(**options: object) -> DivertSettings:
    """Return a divert from orders to audit."""
    return replace(DivertSettings("d", "orders", "audit"), **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("sends_to", ["/queue/orders", "/topic/orders"])
def test_a_copy_goes_to_the_other_address(sends_to: str) -> None:
    """Beside the message; it is stored, says where it was sent, and survives a takeover."""
    core = CoreUnderTest(diverting(audit()))
    subscriber = core.consume(sends_to)
    core.send(
        sends_to, "1", headers=b"colour:red\nexpires:99999999999999\n", expires_ms=99999999999999
    )
    assert subscriber.texts == ["1"]
    successor = core.takeover()
    consumer = successor.consume("/queue/audit")
    assert consumer.texts == ["1"]
    record = consumer.received[0].record
    assert record.address == "audit"
    assert record.expires_ms == 99999999999999
    assert sorted(record.head.splitlines()) == [
        b"_AMQ_ORIG_ADDRESS:orders",
        b"colour:red",
        b"expires:99999999999999",
    ]


def test_an_exclusive_divert_takes_the_message() -> None:
    """From its queue, from subscribers, and from the diverts that are not exclusive."""
    core = CoreUnderTest(
        diverting(
            audit(exclusive=True), DivertSettings("other", "orders", "copies"), filterless("second")
        )
    )
    for kind in ("queue", "topic"):
        consumer = core.consume(f"/{kind}/orders")
        core.send(f"/{kind}/orders", "1")
        assert consumer.texts == []
    assert core.consume("/queue/audit").texts == ["1", "1"]
    assert core.consume("/queue/second").texts == ["1", "1"]
    assert core.consume("/queue/copies").texts == []


def filterless(to: str) -> DivertSettings:
    """Return another exclusive divert."""
    return DivertSettings("s", "orders", to, exclusive=True)


def test_a_filter_says_which() -> None:
    """A selector; what it does not match goes where it was sent."""
    core = CoreUnderTest(diverting(audit(filter="colour = 'red'", exclusive=True)))
    core.send("/queue/orders", "1", headers=b"colour:red\n")
    core.send("/queue/orders", "2", headers=b"colour:blue\n")
    assert core.consume("/queue/audit").texts == ["1"]
    assert core.consume("/queue/orders").texts == ["2"]


def test_a_filter_that_cannot_be_read_is_refused() -> None:
    """With the divert's name."""
    with pytest.raises(ConfigurationError, match="divert 'd': its filter 'a =' is refused"):
        CoreUnderTest(diverting(audit(filter="a =")))


@pytest.mark.parametrize(
    ("routing_type", "sent_to", "queue", "topic"),
    [
        (DivertRoutingType.STRIP, "/queue/orders", 1, 1),
        (DivertRoutingType.STRIP, "/topic/orders", 1, 1),
        (DivertRoutingType.PASS, "/queue/orders", 1, 0),
        (DivertRoutingType.PASS, "/topic/orders", 0, 1),
        (DivertRoutingType.ANYCAST, "/topic/orders", 1, 0),
        (DivertRoutingType.MULTICAST, "/queue/orders", 0, 1),
    ],
)
def test_the_routing_type(
    routing_type: DivertRoutingType, sent_to: str, queue: int, topic: int
) -> None:
    """At an address that has both types."""
    both = AddressConfiguration("audit", frozenset(RoutingType))
    core = CoreUnderTest(diverting(audit(routing_type=routing_type), addresses=(both,)))
    consumer, subscriber = core.consume("/queue/audit"), core.consume("/topic/audit")
    core.send(sent_to, "1")
    assert (len(consumer.texts), len(subscriber.texts)) == (queue, topic)


def test_a_chain_of_diverts_ends() -> None:
    """Each is passed once, also where they lead in a circle."""
    core = CoreUnderTest(
        diverting(
            DivertSettings("1", "a", "b"),
            DivertSettings("2", "b", "c", exclusive=True),
            DivertSettings("3", "c", "a"),
        )
    )
    core.send("/queue/a", "1")
    assert core.consume("/queue/a").texts == ["1", "1"]
    assert core.consume("/queue/b").texts == []
    assert core.consume("/queue/c").texts == ["1"]


def test_wildcards_in_the_address() -> None:
    """Whatever matches is diverted, also addresses that come later."""
    core = CoreUnderTest(diverting(DivertSettings("d", "orders.#", "audit")))
    core.send("/queue/orders.eu", "1")
    core.send("/queue/orders.us", "2")
    core.send("/queue/other", "3")
    assert core.consume("/queue/audit").texts == ["1", "2"]


def test_copies_are_stored_with_the_message_or_not_at_all() -> None:
    """In one unit of the journal; for a transaction in its one."""
    core = CoreUnderTest(diverting(audit()), auto_commit=False)
    core.broker.send(anyone(), "/queue/orders", message("1"), None)
    bound = len(core.journal.store.messages)
    assert bound == 0
    core.journal.commit()
    core.settle()
    assert len(core.journal.store.messages) == 2
    work = TransactionWork()
    work.sends += [("/queue/orders", message("2")), ("/queue/orders", message("3"))]
    done: list[None] = []
    core.commit(work, lambda: done.append(None))
    assert len(core.journal.store.messages) == 2
    core.journal.commit()
    core.settle()
    assert done
    assert core.consume("/queue/orders").texts == ["1", "2", "3"]
    assert core.consume("/queue/audit").texts == ["1", "2", "3"]


def test_a_message_that_is_not_persistent_is_diverted() -> None:
    """What is not stored is not stored as a copy either, if both have room."""
    core = CoreUnderTest(diverting(audit(exclusive=True)))
    plain: OutgoingMessage = message("1", persistent=False)
    core.broker.send(anyone(), "/queue/orders", plain, None)
    core.settle()
    assert core.consume("/queue/audit").texts == ["1"]


@pytest.mark.parametrize("is_exclusive", [False, True])
def test_dead_letters_are_diverted_as_what_is_sent_there(is_exclusive: bool) -> None:
    """In the unit that takes the message out of its queue: after a takeover it is there once."""
    options = diverting(
        DivertSettings("d", "dead", "alarms", "colour = 'red'", is_exclusive),
        address_settings=(
            AddressSettings("#", max_delivery_attempts=1, dead_letter_address="dead"),
        ),
    )
    core = CoreUnderTest(options)
    core.send("/queue/orders", "1", headers=b"colour:red\n")
    core.send("/queue/orders", "2")
    core.consume("/queue/orders").reject("1", "2")
    core.settle()
    successor = core.takeover(options)
    dead = successor.consume("/queue/dead").texts
    assert dead == (["2"] if is_exclusive else ["1", "2"])
    (copy,) = successor.consume("/queue/alarms").received
    assert headers_map(copy.record.head) == {"colour": "red", "_AMQ_ORIG_ADDRESS": "dead"}
    assert successor.consume("/queue/orders").texts == []


def test_what_expires_is_diverted_and_never_lost() -> None:
    """An exclusive divert to where nobody listens leaves it at the expiry address."""
    options = diverting(
        DivertSettings(
            "d", "ExpiryQueue", "gone", exclusive=True, routing_type=DivertRoutingType.MULTICAST
        ),
    )
    core = CoreUnderTest(options)
    core.send("/queue/orders", "1", expires_ms=1)
    assert core.consume("/queue/orders").texts == []
    assert core.consume("/queue/ExpiryQueue").texts == ["1"]
