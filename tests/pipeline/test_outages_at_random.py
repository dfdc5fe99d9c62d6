"""Whatever happens to a pair, and whatever is lost of its logs: the truth is within what is told.

Histories are made of services that end in each way there is. Nodes log what nodes log; the truth is
kept beside it.
"""

from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orthia.nodemanager import events
from orthia.nodemanager.locks.lease import Lock, State
from orthia.pipeline.history.account import Account, account_of
from orthia.pipeline.history.lives import Life, life_of
from orthia.pipeline.history.outages import LiveLock
from tests.pipeline.forging import (
    EXPIRATION_MS,
    OPENING_SECONDS,
    PERIOD_MS,
    SECOND,
    Node,
    lives,
    us,
)

pytestmark = pytest.mark.extended

PERIOD = PERIOD_MS / 1_000
LEASE = EXPIRATION_MS / 1_000
OPEN_SECONDS = OPENING_SECONDS - 0.012
"""When clients are served, after the lock was taken: somewhat before the node says so."""
WAYS = ("killed", "lease", "frozen", "stopped", "cut off", "failed", "wedged")


@dataclass
class World:
    """A pair, and the truth of it."""

    nodes: list[Node] = field(default_factory=list)
    outages: list[tuple[float, float]] = field(default_factory=list)
    now: float = 0.0
    live_lock: LiveLock | None = None

    @property
    def out_seconds(self) -> float:
        """For how long nobody served, in truth."""
        return sum(end - begin for begin, end in self.outages)


@dataclass(frozen=True)
class Ending:
    """How a service ended: when in truth, its last renewal, since when the lock could be had."""

    served_until: float
    renewed: float
    free_at: float
    is_said: bool


def end_service(
    node: Node, way: str, token: int, began: float, share: float, delay: float
) -> Ending:
    """Let a service end after some renewals and ``share`` of a period; return the truth."""
    renewed = began
    until = began + share * PERIOD
    if way == "killed":
        return Ending(until, renewed, until + 0.05 + delay / 10, is_said=False)
    if way in ("lease", "frozen"):
        return Ending(until, renewed, renewed + LEASE, is_said=False)
    if way == "stopped":
        node.says(until, events.ServiceClosing(token))
        node.says(until + delay, events.LockReleased(Lock.LIVE, token))
        node.says(until + delay, events.NodeStopped(0, "stopped"))
        return Ending(until, renewed, until + delay, is_said=True)
    if way == "cut off":
        noticed = renewed + PERIOD + delay
        silent = (noticed - renewed) * 1_000
        node.says(noticed, events.LeaseLost(Lock.LIVE, token, "no answer", silent))
        node.says(noticed, events.CriticalIOError("no answer"))
        node.says(noticed + 0.1, events.NodeStopped(74, "no answer"))
        return Ending(until, renewed, renewed + LEASE, is_said=True)
    if way == "failed":
        node.says(until, events.CriticalIOError("the disk"))
        node.says(until + 0.1, events.NodeStopped(74, "the disk"))
        return Ending(until, renewed, renewed + LEASE, is_said=True)
    noticed = until + 20
    node.says(noticed, events.LoopUnanswered(20_000.0, 20_000, "SHUTDOWN"))
    node.says(noticed, events.CriticalIOError("the loop"))
    node.says(noticed + 0.1, events.NodeStopped(74, "the loop"))
    last = began + PERIOD * ((noticed - began) // PERIOD)
    return Ending(until, last, last + LEASE, is_said=True)


SERVICES = st.lists(
    st.fixed_dictionaries(
        {
            "way": st.sampled_from(WAYS),
            "periods": st.integers(0, 500),
            "slow": st.booleans(),
            "share": st.floats(0, 1),
            "delay": st.floats(0, 3),
            "nobody": st.sampled_from([0.0, 0.0, 0.2, 400.0]),
        }
    ),
    min_size=1,
    max_size=6,
)


@st.composite
def worlds(draw: st.DrawFn) -> World:
    """Draw a history, which goes on at its end or not."""
    world = World()
    services: list[dict[str, Any]] = draw(SERVICES)
    goes_on = draw(st.booleans())
    former: Ending | None = None
    at = 0.0
    for number, service in enumerate(services):
        token = number + 1
        node = Node(
            "ab"[number % 2], f"{'ab'[number % 2]}@host:{token}:uuid/{PERIOD_MS}/{EXPIRATION_MS}"
        )
        if former is None:
            node.becomes_live(at, token)
        else:
            before = world.nodes[-1]
            gone = min(former.free_at, former.renewed + LEASE)
            seen = max(former.renewed, min(at, gone))
            if services[number - 1]["way"] == "killed" and former.free_at < former.renewed + LEASE:
                left_ms = (former.renewed + LEASE - at) * 1_000
                watched_ms = (at - former.free_at) * 1_000
                node.says(at, events.CrashDetected(before.holder, watched_ms, left_ms))
            node.becomes_live(at, token, before.holder, former.renewed, seen)
            world.outages.append((former.served_until, at + OPEN_SECONDS))
            if services[number - 1]["way"] == "frozen":
                silent = (at + 30 - former.renewed) * 1_000
                before.says(at + 30, events.LeaseLost(Lock.LIVE, token - 1, "paused", silent))
                before.says(at + 30, events.NodeStopped(74, "paused"))
        world.nodes.append(node)
        renewed = at + OPENING_SECONDS + 0.01 + service["periods"] * PERIOD
        if service["slow"] and service["periods"]:
            node.says(renewed + 0.5, events.RenewalSlow(Lock.LIVE, token, 2_100.0, PERIOD_MS))
        is_last = number + 1 == len(services)
        if is_last and goes_on:
            world.now = renewed + service["share"] * PERIOD + 0.5
            world.live_lock = _live_lock(world, node.holder, token, renewed)
            return world
        delay, share = service["delay"], service["share"]
        former = end_service(node, service["way"], token, renewed + 0.5, share, delay)
        at = former.free_at + 0.1 + service["nobody"]
    assert former is not None
    said_last = max(one.at for node in world.nodes for one in node.events)
    # Two renewals may be missing before anybody can know.
    overdue = former.renewed + 2 * PERIOD
    world.now = max(at, overdue, (said_last - us(0)) / SECOND)
    world.now += draw(st.floats(0, 500))
    world.outages.append((former.served_until, world.now))
    last = world.nodes[-1]
    if services[-1]["way"] == "stopped":
        world.live_lock = _live_lock(world, None, len(services), None)
    else:
        world.live_lock = _live_lock(world, last.holder, len(services), former.renewed)
    return world


def _live_lock(world: World, holder: str | None, token: int, renewed: float | None) -> LiveLock:
    expires = None if renewed is None else us(renewed + LEASE)
    is_held = expires is not None and expires > us(world.now)
    return LiveLock(us(world.now), holder, token, is_held, expires, State.LIVE)


def account(world: World, of_lives: list[Life]) -> Account:
    """Return what is told of a world."""
    return account_of(of_lives, world.live_lock, None, us(world.now))


ROUNDING = 100
"""Microseconds."""


@settings(max_examples=150, deadline=None)
@given(worlds())
def test_each_outage_is_within_what_is_told(world: World) -> None:
    """When it began, how long it was, and that it goes on."""
    found = account(world, list(lives(*world.nodes)))
    told = sorted(found.outages, key=lambda one: one.begin.lo)
    assert len(told) == len(world.outages)
    for one, (begin, end) in zip(told, world.outages, strict=True):
        assert one.begin.lo - ROUNDING <= us(begin) <= one.begin.hi + ROUNDING, one.cause
        true = us(end) - us(begin)
        assert one.least_us - ROUNDING <= true <= one.most_us + ROUNDING, one.cause
    assert list(found.doubts) == []
    assert not any(one.is_conflict for one in found.overlaps)


def nobody_served(found: Account) -> tuple[int, int]:
    """Return how long nobody served, planned or not, at least and at most."""
    return (
        found.out_least_us + found.planned_least_us,
        found.out_most_us + found.planned_most_us,
    )


def _holds_the_truth(found: Account, world: World) -> None:
    out_us = world.out_seconds * SECOND
    slack = ROUNDING * (1 + len(world.outages))
    least, most = nobody_served(found)
    assert least - slack <= out_us <= most + slack


@settings(max_examples=150, deadline=None)
@given(worlds(), st.sampled_from(["a", "b", "ab"]), st.floats(0.01, 1))
def test_files_alone_hold_the_truth_whosever_they_are(
    world: World, names: str, share: float
) -> None:
    """Also where the other node's file is not here, and where the period ends before the log."""
    known = [node for node in world.nodes if node.name in names]
    until = us(world.now * share)
    found = account_of(lives(*known), None, None, until)
    served = [(max(us(begin), found.begin), min(us(end), until)) for begin, end in world.outages]
    out_us = sum(end - begin for begin, end in served if end > begin)
    slack = ROUNDING * (1 + len(world.outages))
    least, most = nobody_served(found)
    assert least - slack <= out_us <= most + slack


@settings(max_examples=300, deadline=None)
@given(worlds(), st.data())
def test_whatever_rows_are_lost_the_truth_is_within_the_range(
    world: World, data: st.DataObject
) -> None:
    """And the loss is named, if anything was said after it.

    Two things must be told: that the node that holds the lock now serves, for it would be said not
    to; and that one renewed its lease and served nobody, which nobody else can see.
    """
    assert world.live_lock is not None
    for node in world.nodes:
        kept = {events.LoopUnanswered.__name__}
        if world.live_lock.is_held and node is world.nodes[-1]:
            kept.add(events.LiveActive.__name__)
        numbers = [one.seq for one in node.events if one.event not in kept]
        lost = data.draw(st.sets(st.sampled_from(numbers)))
        node.without(*lost)
    found = account(world, [life for life in lives(*world.nodes) if life.events])
    if found.begin <= us(OPENING_SECONDS):
        _holds_the_truth(found, world)
    least, most = found.availability or (0.0, 1.0)
    assert 0 <= least <= most <= 1
    gaps = any(list(life.gaps) for life in lives(*world.nodes))
    assert gaps == any(one.kind == "events missing" for one in found.doubts)


@settings(max_examples=100, deadline=None)
@given(worlds(), st.randoms(use_true_random=False))
def test_the_order_in_which_a_log_is_read_and_what_is_read_twice_change_nothing(
    world: World, chance: Any
) -> None:
    """Files and the table, in any order."""
    shuffled = []
    for node in chance.sample(world.nodes, len(world.nodes)):
        twice = [*node.events, *chance.sample(node.events, len(node.events) // 2)]
        chance.shuffle(twice)
        shuffled.append(life_of(node.holder, node.name, twice))
    one, other = account(world, list(lives(*world.nodes))), account(world, shuffled)
    assert [(o.begin, o.end, o.cause) for o in one.outages] == [
        (o.begin, o.end, o.cause) for o in other.outages
    ]
    assert (one.availability, list(one.doubts)) == (other.availability, list(other.doubts))


@settings(max_examples=150, deadline=None)
@given(
    worlds(),
    st.lists(
        st.tuples(st.integers(0, 5), st.floats(-5_000, 5_000), st.integers(0, 40)), max_size=4
    ),
)
def test_clocks_that_step_never_make_more_than_all_of_it(
    world: World, steps: list[tuple[int, float, int]]
) -> None:
    """Availability is between 0 and 100 %, whatever the times are."""
    for number, by, first in steps:
        node = world.nodes[number % len(world.nodes)]
        node.events = [
            one._replace(at=one.at + round(by * SECOND)) if one.seq > first else one
            for one in node.events
        ]
    found = account(world, list(lives(*world.nodes)))
    least, most = found.availability or (0.0, 1.0)
    assert 0 <= least <= most <= 1
    assert 0 <= found.out_least_us <= found.out_most_us
    assert 0 <= found.planned_least_us <= found.planned_most_us
