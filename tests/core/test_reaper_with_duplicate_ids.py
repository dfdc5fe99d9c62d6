"""Queues of addresses with duplicate ids: they go too, once nobody can need the ids any more."""

from dataclasses import replace
from typing import Any

import pytest

from orthia.broker.core.api import OutgoingMessage, TransactionWork
from orthia.broker.core.errors import DestinationRefused, LimitExceeded
from orthia.broker.core.identity import Principal
from orthia.broker.core.upkeep import reaper
from orthia.broker.core.upkeep.reaper import IDS_KEPT_MS
from orthia.config.address_settings import (
    AddressFullPolicy,
    DivertSettings,
    RoutingType,
)
from orthia.config.security_settings import SecuritySetting
from orthia.config.settings import ClientLimits, Settings
from orthia.journal.model.records import UserRecordType
from tests.core.support import ANYONE, CoreUnderTest, declared, message, settings
from tests.journal.conftest import store as store

PERIOD = 30
LOOKS = IDS_KEPT_MS // 1000 // PERIOD
WITH_IDS, PLAIN = "/queue/auto.d", "/queue/auto.p"


def deleting(**more: Any) -> Settings:
    """Return settings that delete queues."""
    return settings(auto_delete_queues=True, **more)


def once(text: str) -> OutgoingMessage:
    """Return a message that is known by its text."""
    return message(text)._replace(duplicate_id=text)


def send(core: CoreUnderTest, destination: str, *texts: str) -> None:
    """Send messages with ids."""
    for text in texts:
        core.broker.send(ANYONE, destination, once(text), None)
    core.settle()


def consume(core: CoreUnderTest, destination: str) -> list[str]:
    """Take all there is and leave."""
    consumer = core.consume(destination, auto=True)
    core.settle()
    consumer.end.close()
    return consumer.texts


def look(core: CoreUnderTest, times: int) -> list[str]:
    """Have the node look for unused queues; return those there are then."""
    for _ in range(times):
        core.pass_time(PERIOD)
    return sorted(core.broker.queues())


def caches(core: CoreUnderTest) -> int:
    """Return how many id caches are stored."""
    rows = core.journal.store.bindings.values()
    return sum(row.user_record_type == UserRecordType.ID_CACHE for row in rows)


def test_it_goes_with_its_ids_when_they_are_old() -> None:
    """Not before: what is sent again until then is not stored again. Nothing is left of it."""
    core = CoreUnderTest(deleting()).counted()
    send(core, WITH_IDS, "1")
    core.send(PLAIN, "1")
    assert consume(core, WITH_IDS) == consume(core, PLAIN) == ["1"]
    assert look(core, LOOKS) == ["auto.d"]
    send(core, WITH_IDS, "1")
    assert consume(core, WITH_IDS) == []
    assert look(core, LOOKS) == ["auto.d"], "it was sent again, and may be once more"
    assert look(core, 1) == []
    assert not core.journal.store.messages
    assert not core.journal.store.bindings
    send(core, WITH_IDS, "1")
    assert consume(core, WITH_IDS) == ["1"]
    assert caches(core) == 1


def test_a_longer_delay_counts() -> None:
    """Of ids as of the rest."""
    core = CoreUnderTest(deleting(auto_delete_queues_delay=2 * IDS_KEPT_MS)).counted()
    send(core, WITH_IDS, "1")
    consume(core, WITH_IDS)
    assert look(core, 2 * LOOKS) == ["auto.d"]
    assert look(core, 1) == []


def test_ids_stay_while_their_address_has_another_queue() -> None:
    """So a queue that is not the last one waits for none of them."""
    core = CoreUnderTest(deleting()).counted()
    send(core, "/queue/auto.d::one", "1")
    send(core, "/queue/auto.d::two", "2")
    consume(core, "/queue/auto.d::one")
    assert look(core, 1) == ["two"]
    send(core, "/queue/auto.d::one", "1")
    assert consume(core, "/queue/auto.d::one") == []
    assert consume(core, "/queue/auto.d::two") == ["2"]
    assert caches(core) == 1
    look(core, LOOKS + 2)
    assert not core.journal.store.messages
    assert not core.journal.store.bindings


def test_an_id_that_comes_while_the_store_is_asked_keeps_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Though its message was there before, and the queue is as empty as it was."""
    core = CoreUnderTest(deleting()).counted()
    send(core, WITH_IDS, "1")
    consume(core, WITH_IDS)
    look(core, LOOKS)
    read_window = core.journal.read_window

    def after_a_send(*args: Any) -> None:
        core.broker.send(ANYONE, WITH_IDS, once("1"), None)
        core.journal.run_posted()
        read_window(*args)

    with monkeypatch.context() as patched:
        patched.setattr(core.journal, "read_window", after_a_send)
        assert look(core, 1) == ["auto.d"]
    send(core, WITH_IDS, "1")
    assert consume(core, WITH_IDS) == []


def diverting(**more: Any) -> Settings:
    """Return settings with a divert that takes all that is sent to some addresses."""
    return replace(
        deleting(), diverts=(DivertSettings("d", "auto.#", "all", exclusive=True),), **more
    )


def test_ids_of_addresses_without_a_queue_go_when_they_are_old() -> None:
    """An exclusive divert takes what is sent there; clients may name any number of addresses."""
    options = diverting()
    core = CoreUnderTest(options).counted()
    for number in range(5):
        send(core, f"/topic/auto.{number}", "1")
    assert caches(core) == 5
    assert look(core, LOOKS) == ["all"]
    send(core, "/topic/auto.0", "1")
    assert look(core, 1) == ["all"]
    assert caches(core) == 1, "of that address an id was sent again"
    core = core.takeover(options).counted()
    send(core, "/topic/auto.0", "1")
    assert consume(core, "/queue/all") == ["1"] * 5
    look(core, LOOKS + 2)
    assert not core.journal.store.messages
    assert not core.journal.store.bindings
    send(core, "/topic/auto.0", "1")
    assert consume(core, "/queue/all") == ["1"]


def test_ids_of_a_configured_address_stay() -> None:
    """There are as many of these as the operator says."""
    auto = declared("auto.d", kind=RoutingType.MULTICAST)
    core = CoreUnderTest(deleting()).takeover(diverting(addresses=(auto,))).counted()
    send(core, "/topic/auto.d", "1")
    look(core, 2 * LOOKS)
    send(core, "/topic/auto.d", "1")
    assert consume(core, "/queue/all") == ["1"]


def test_a_commit_that_began_before_they_were_deleted_is_refused() -> None:
    """Its ids would be stored where nobody looks for them; nothing of it is done."""
    core = CoreUnderTest(diverting()).counted()
    send(core, "/queue/auto.d", "0")
    work = TransactionWork([("/topic/auto.d", once(str(number))) for number in range(1, 50)])
    done: list[str] = []
    steps = core.broker.commit(ANYONE, work, lambda: done.append("done"))
    next(steps)
    core.broker.delete_queue(ANYONE, "auto.d", lambda _: None, force=True)
    core.settle()
    assert caches(core) == 0
    with pytest.raises(DestinationRefused, match=r"'auto\.d' were deleted during the commit"):
        list(steps)
    core.settle()
    assert done == []
    assert consume(core, "/queue/all") == ["0"]


def test_a_commit_that_waits_keeps_them() -> None:
    """For room, however long that takes, and for as long as ever after it."""
    one = {"address_full_policy": AddressFullPolicy.BLOCK, "max_size_messages": 1}
    core = CoreUnderTest(diverting(address_settings=deleting(**one).address_settings)).counted()
    core.send("/queue/all", "full")
    work = TransactionWork([("/topic/auto.d", once(str(number))) for number in range(4)])
    done: list[str] = []
    steps = core.broker.commit(ANYONE, work, lambda: done.append("done"))
    core.broker.slices.run(steps)
    core.settle()
    look(core, 2 * LOOKS)
    assert done == []
    assert consume(core, "/queue/all") == ["full", "0", "1", "2", "3"]
    assert done == ["done"]
    look(core, LOOKS)
    send(core, "/topic/auto.d", "1")
    assert consume(core, "/queue/all") == []
    look(core, LOOKS + 1)
    assert caches(core) == 0


def test_a_commit_that_is_given_up_keeps_them_no_longer() -> None:
    """Its client is gone."""
    core = CoreUnderTest(diverting()).counted()
    work = TransactionWork([("/topic/auto.d", once(str(number))) for number in range(50)])
    steps = core.broker.commit(ANYONE, work, lambda: None)
    next(steps)
    look(core, LOOKS + 1)
    assert caches(core) == 1
    steps.close()  # type: ignore[attr-defined]
    look(core, LOOKS + 1)
    assert caches(core) == 0


def test_nothing_becomes_old_while_the_store_is_away() -> None:
    """What waits to be stored is not told yet, and may be sent again when it is."""
    core = CoreUnderTest(diverting()).counted()
    core.journal.auto_commit = False
    send(core, "/topic/auto.d", "1")
    look(core, 2 * LOOKS)
    core.journal.auto_commit = True
    core.journal.commit()
    core.settle()  # with the first look at the stored id
    look(core, LOOKS - 1)
    send(core, "/topic/auto.d", "1")
    assert consume(core, "/queue/all") == ["1"]


@pytest.mark.parametrize(
    ("bound", "at_once"),
    [
        ({}, 20),
        ({"_ENDED_AT_ONCE": 8}, 8),
        ({"_ROWS_AT_ONCE": 5}, 4),
        ({"_ROWS_AT_ONCE": 1}, 1),
    ],
    ids=str,
)
def test_ids_of_many_addresses_end_few_in_a_unit(
    bound: dict[str, int], at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many as have few ids together; what clients send is stored between two units."""
    for name, value in bound.items():
        monkeypatch.setattr(reaper, name, value)
    core = CoreUnderTest(diverting()).counted()
    for number in range(20):
        send(core, f"/topic/auto.{number}", "1")
    if at_once == 4:
        send(core, "/topic/auto.19", "2")  # the last of them is the first to end
    look(core, LOOKS)
    core.journal.auto_commit = False
    look(core, 1)
    core.journal.commit()
    core.settle()
    assert caches(core) == 20, "the look waited for what was on its way"
    core.journal.commit()
    core.settle()
    assert caches(core) == 20 - at_once
    core.journal.auto_commit = True
    core.journal.commit()
    core.settle()
    assert caches(core) == 0


def test_ids_of_an_earlier_node_end_one_address_after_the_other() -> None:
    """Nobody counted them, so each may have as many as are kept."""
    core = CoreUnderTest(diverting()).counted()
    for number in range(3):
        send(core, f"/topic/auto.{number}", "1")
    core = core.takeover(diverting()).counted()
    look(core, LOOKS)
    core.journal.auto_commit = False
    look(core, 1)
    for left in (3, 3, 2, 1, 0):  # the look waits for what is on its way, too
        assert caches(core) == left
        core.journal.commit()
        core.settle()


def limited(**limits: int) -> Settings:
    """Return settings with limits of queues, and a divert that takes what is sent with ids."""
    allowed = SecuritySetting("#", {"send": frozenset({"senders"})})
    return diverting(
        stomp_limits=ClientLimits(**limits), security_enabled=True, security_settings=(allowed,)
    )


@pytest.mark.parametrize(
    ("limits", "told"),
    [
        ({"max_queues": 6}, "the broker has max-queues 6 already"),
        ({"max_queues_per_user": 5}, "user 'alice' has created max-queues-per-user 5 already"),
        (
            {"max_queues_per_connection": 5},
            "this connection has created max-queues-per-connection 5 already",
        ),
    ],
)
@pytest.mark.parametrize("in_transaction", [False, True])
def test_ids_of_addresses_without_a_queue_count_as_queues(
    limits: dict[str, int], told: str, *, in_transaction: bool
) -> None:
    """By the sender, whatever node serves, until they are old; nothing of what is refused stays."""
    options = limited(**limits)
    core = CoreUnderTest(options).counted()
    core.consume("/queue/all").end.close()
    alice = Principal("alice", frozenset({"senders"}))

    def send_as_alice(destination: str) -> None:
        if in_transaction:
            work = TransactionWork([(destination, once("1"))], {}, {})
            list(core.broker.commit(alice, work, lambda: None))
        else:
            core.broker.send(alice, destination, once("1"), None)
        core.settle()

    for number in range(5):
        send_as_alice(f"/topic/auto.{number}")
    with pytest.raises(LimitExceeded, match=told) as refused:
        send_as_alice("/topic/auto.5")
    assert "the first duplicate id of 'auto.5', which has no queue, is one more" in str(
        refused.value
    )
    send_as_alice("/topic/auto.4")
    assert caches(core) == 5
    core = core.takeover(options).counted()
    if "max_queues_per_connection" not in limits:
        with pytest.raises(LimitExceeded, match=told):
            send_as_alice("/topic/auto.5")
    look(core, LOOKS + 1)
    assert caches(core) == 0
    if "max_queues_per_connection" not in limits:
        send_as_alice("/topic/auto.5")


def test_ids_of_an_address_with_a_queue_do_not_count() -> None:
    """Its queue does, with which they go."""
    core = CoreUnderTest(replace(deleting(), stomp_limits=ClientLimits(max_queues=2))).counted()
    send(core, "/queue/auto.1", "1")
    send(core, "/queue/auto.2", "1")
    assert caches(core) == 2


def test_they_go_also_where_no_queue_does() -> None:
    """``auto-delete-queues`` says nothing of them."""
    core = CoreUnderTest(replace(diverting(), address_settings=())).counted()
    send(core, "/topic/auto.d", "1")
    look(core, LOOKS + 1)
    assert caches(core) == 0


def test_ids_in_memory_keep_no_queue() -> None:
    """With ``persistence-enabled`` false they are bounded by themselves, and outlive it."""
    core = CoreUnderTest(replace(deleting(), persistence_enabled=False)).counted()
    send(core, WITH_IDS, "1")
    consume(core, WITH_IDS)
    assert look(core, 1) == []
    send(core, WITH_IDS, "1")
    assert consume(core, WITH_IDS) == []
