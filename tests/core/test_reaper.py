"""Queues that nobody needs go, and no others."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from orthia.config.settings import Settings
from tests.core.support import SETTINGS, CoreUnderTest, anyone, declared, message, settings
from tests.stomp.support import Client

PERIOD = 30


def deleting(**more: Any) -> Settings:
    """Return settings that delete queues."""
    return settings(auto_delete_queues=True, **more)


def names(core: CoreUnderTest) -> list[str]:
    """Return the queues there are."""
    return sorted(core.broker.queues())


def test_an_unused_queue_goes_and_comes_again() -> None:
    """With its binding; whoever uses it next has it created, also at the same moment."""
    core = CoreUnderTest(deleting()).counted()
    consumer = core.consume("/queue/a", auto=True)
    core.send("/queue/a", "1")
    core.send("/queue/kept", "stays")
    core.pass_time(PERIOD)
    assert names(core) == ["a", "kept"]
    consumer.end.close()
    core.pass_time(PERIOD)
    assert names(core) == ["kept"]
    assert len(core.journal.store.bindings) == 1
    core.send("/queue/a", "2")
    assert core.consume("/queue/a").texts == ["2"]
    successor = core.takeover(deleting())
    assert names(successor) == ["a", "kept"]


def test_of_a_backlog_of_before() -> None:
    """What an earlier node left is counted first."""
    core = CoreUnderTest(deleting()).counted()
    core.send("/queue/a", "1")
    core.consume("/queue/b").end.close()
    successor = core.takeover(deleting())
    successor.broker.count_backlogs()
    successor.pass_time(PERIOD)
    assert names(successor) == ["a"]


def test_it_waits_for_the_delay() -> None:
    """In which nobody uses it."""
    core = CoreUnderTest(deleting(auto_delete_queues_delay=2 * PERIOD * 1000)).counted()
    core.consume("/queue/a").end.close()
    core.pass_time(PERIOD)
    core.pass_time(PERIOD)
    core.consume("/queue/a").end.close()
    consumer = core.consume("/queue/b")
    assert names(core) == ["a", "b"]
    core.pass_time(PERIOD)
    consumer.end.close()
    assert names(core) == ["b"]
    for _ in range(2):
        core.pass_time(PERIOD)
        assert names(core) == ["b"]
    core.pass_time(PERIOD)
    assert names(core) == []


@pytest.mark.parametrize(("most", "left"), [(0, ["a"]), (1, ["a"]), (2, []), (-1, [])])
def test_a_queue_with_few_messages_may_go(most: int, left: list[str]) -> None:
    """With them, if that is wanted."""
    core = CoreUnderTest(deleting(auto_delete_queues_message_count=most)).counted()
    core.send("/queue/a", "1", "2")
    core.pass_time(PERIOD)
    core.pass_time(1)
    assert names(core) == left
    assert len(core.journal.store.messages) == 2 * len(left)


def test_what_stays() -> None:
    """Declared queues, durable subscriptions, those of others' settings, and with new ids."""
    configured = declared("declared", "declared")
    core = CoreUnderTest(replace(deleting(match="a.#"), addresses=(configured,))).counted()
    core.consume("/queue/b").end.close()
    me = replace(anyone(), client_id="me")
    consumer = core.consume("/queue/a.gone")
    core.broker.subscribe(me, "/topic/a.news", consumer, prefetch=1, durable="paper").close()
    once = message("1")._replace(duplicate_id="x")
    core.broker.send(me, "/queue/a.once", once, None)
    core.settle()
    core.consume("/queue/a.once", auto=True).end.close()
    consumer.end.close()
    core.pass_time(PERIOD)
    assert names(core) == ["a.once", "b", "declared", "me.paper"]


def test_a_queue_that_a_message_is_on_its_way_to_stays() -> None:
    """Its sender is told that it is stored, so it is there."""
    core = CoreUnderTest(deleting()).counted()
    core.consume("/queue/a").end.close()
    core.journal.auto_commit = False
    told: list[int] = []
    core.broker.send(anyone(), "/queue/a", message("1"), lambda: told.append(1))
    core.pass_time(PERIOD)
    core.journal.auto_commit = True
    core.journal.commit()
    core.pass_time(1)
    assert told == [1]
    assert core.consume("/queue/a").texts == ["1"]


def test_a_queue_that_messages_are_to_come_to_stays() -> None:
    """Those that are delivered later: it is theirs when they are due."""
    core = CoreUnderTest(deleting()).counted()
    client = Client(core)
    client.session.receive(b"SEND\ndestination:/queue/a\nAMQ_SCHEDULED_DELAY:3600000\n\n1\0")
    core.settle()
    client.send("SEND", "2", destination="/queue/a")
    core.consume("/queue/a", auto=True).end.close()
    core.pass_time(PERIOD)
    assert "a" in names(core)


def test_nothing_goes_unless_it_is_wanted() -> None:
    """By default, and with no period to look in."""
    for options in (SETTINGS, replace(deleting(), address_queue_scan_period=-1)):
        core = CoreUnderTest(options).counted()
        core.consume("/queue/a").end.close()
        core.pass_time(10 * PERIOD)
        assert names(core) == ["a"]


def test_a_queue_that_fails_keeps_no_other(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The others go, and it goes as well at the next look."""
    core = CoreUnderTest(deleting()).counted()
    for name in "abc":
        core.consume(f"/queue/{name}").end.close()
    read_window: Callable[..., None] = core.journal.read_window
    asked = []

    def fail_once(*arguments: Any) -> None:
        asked.append(arguments)
        if len(asked) == 2:
            raise RuntimeError("a bug")
        read_window(*arguments)

    monkeypatch.setattr(core.journal, "read_window", fail_once)
    core.pass_time(PERIOD)
    assert len(names(core)) == 1
    assert f"checking whether queue '{names(core)[0]}' is unused failed" in caplog.text
    core.pass_time(PERIOD)
    assert names(core) == []


def test_a_look_that_fails_is_not_the_last(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What is unused goes with the next one."""
    core = CoreUnderTest(deleting()).counted()
    core.consume("/queue/a").end.close()

    def fail(_reaper: object) -> None:
        raise RuntimeError("a bug")

    with monkeypatch.context() as patch:
        patch.setattr("orthia.broker.core.upkeep.reaper.Reaper._looking_at_all", fail)
        core.pass_time(PERIOD)
    assert "the scan for unused queues failed; retrying at the next one" in caplog.text
    core.pass_time(PERIOD)
    assert names(core) == []
