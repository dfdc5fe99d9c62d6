"""Pages of very long lists: what they cost, what they share, and when they are made anew."""

import asyncio
from typing import Any, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orthia.broker.core.slices import GO_ON, Finding, found
from orthia.broker.management.errors import WrongArgument
from orthia.broker.management.kept import (
    FOLLOWED_SHARE,
    KEPT_SECONDS,
    SHARE,
    Freshness,
    Kept,
    Stopwatch,
)
from orthia.broker.management.listing import Asked, Kind, Listing, Page, sorting

_Result = TypeVar("_Result")


class Thing:
    """A member of a list."""

    def __init__(self, name: str, number: int | None) -> None:
        self.name = name
        self.number = number


class Scene:
    """A list of things, whose time the test moves."""

    def __init__(self, *things: Thing) -> None:
        self.things = list(things)
        self.version = 0
        self.now = 100.0
        self.read = 0
        kind: Kind[Thing, str] = Kind(
            "things",
            self._members,
            lambda: self.version,
            "name",
            {"name": lambda one: one.name, "number": self._number},
            lambda one: (one.name,),
            lambda one: f"{one.name}={one.number}" if one in self.things else None,
        )
        self.listing = Listing(kind, run, lambda: self.now, lambda: int(self.now * 1_000))

    def _members(self) -> Finding[list[Thing]]:
        yield GO_ON
        return list(self.things)

    def _number(self, one: Thing) -> int | None:
        self.read += 1
        return one.number

    def add(self, name: str, number: int | None) -> None:
        """Add a thing."""
        self.things.append(Thing(name, number))
        self.version += 1

    def page(self, **asked: Any) -> Page[str]:
        """Return a page."""
        return asyncio.run(self.listing.page(Asked(**asked)))


def run(finding: Finding[_Result]) -> "asyncio.Future[_Result]":
    """Do steps one after the other, each in a turn of the loop."""

    async def done() -> _Result:
        while True:
            try:
                next(finding)
            except StopIteration as end:
                result: _Result = end.value
                return result
            await asyncio.sleep(0)

    return asyncio.ensure_future(done())


def things(*numbers: int | None) -> list[Thing]:
    """Return things that are named in their order."""
    return [Thing(f"t{place}", number) for place, number in enumerate(numbers)]


@given(st.lists(st.integers(0, 50), max_size=5_000), st.booleans())
def test_a_list_is_sorted_in_steps_as_in_one(values: list[int], reverse: bool) -> None:
    """Equals stay in their order, too."""
    places = range(len(values))
    in_steps = found(sorting(places, values.__getitem__, reverse=reverse))
    assert in_steps == sorted(places, key=values.__getitem__, reverse=reverse)


def test_a_list_of_more_than_a_run_is_sorted() -> None:
    """Also if the last run is left over in one of the merges."""
    values = [(7 * place) % 1_003 for place in range(13_000)]
    places = found(sorting(range(len(values)), values.__getitem__))
    assert [values[one] for one in places] == sorted(values)


def test_what_has_no_value_comes_last_and_equals_by_name() -> None:
    """Whether numbers go up or down."""
    scene = Scene(*things(3, None, 1, 3, None))
    assert scene.page(sort="number").items == ("t2=1", "t0=3", "t3=3", "t1=None", "t4=None")
    down = scene.page(sort="number", descending=True, offset=1, limit=3)
    assert down.items == ("t3=3", "t2=1", "t1=None")
    assert down.total == 5


def test_who_looks_within_a_moment_shares_a_page() -> None:
    """Also while it is made; and whoever looks later sees what is shown as it is then."""
    scene = Scene(*things(1, 2))

    async def both() -> tuple[Page[str], Page[str]]:
        asked = Asked(sort="number")
        return await asyncio.gather(scene.listing.page(asked), scene.listing.page(asked))

    one, other = asyncio.run(both())
    assert one is other
    assert scene.page(sort="number") is one
    assert scene.read == 2
    scene.now += KEPT_SECONDS
    scene.things[0].number = 9
    assert set(scene.page(sort="number").items) == {"t0=9", "t1=2"}


def test_an_order_costs_a_bounded_share_of_the_time() -> None:
    """One that took long to make stays for longer; what is shown in it is of now."""
    scene = Scene(*things(1, 2))
    scene.page(sort="number")
    scene.listing._freshness.took(1.0, scene.now)
    scene.things[0].number = 9
    scene.now += 0.9 / SHARE
    assert scene.page(sort="number").items == ("t0=9", "t1=2")
    scene.now += 0.2 / SHARE
    assert scene.page(sort="number").items == ("t1=2", "t0=9")


def test_an_order_stays_where_nothing_has_changed() -> None:
    """It is read anew, and not sorted: the list is then as of that moment."""
    scene = Scene(*things(2, 1))
    first = scene.page(sort="number")
    (shown,) = scene.listing._pages.values()
    scene.now += 2 * KEPT_SECONDS
    again = scene.page(sort="number")
    (later,) = scene.listing._pages.values()
    assert again.items == first.items
    assert again.made_ms - first.made_ms == 2_000 * KEPT_SECONDS
    assert (scene.read, later.basis) == (4, shown.basis)


def test_what_an_operator_changed_is_seen_at_once() -> None:
    """Whatever making the list anew takes."""
    scene = Scene(*things(1, 2))
    scene.page()
    scene.listing._freshness.took(1_000.0, scene.now)
    scene.add("new", 0)
    assert scene.page().total == 2
    scene.listing.forget()
    assert scene.page(sort="number").items == ("new=0", "t0=1", "t1=2")


def test_what_changes_while_a_page_is_made_is_seen_by_who_asks_then() -> None:
    """They do not share the page that was begun before."""
    scene = Scene(*things(1, 2))

    async def looked() -> tuple[Page[str], Page[str]]:
        before = asyncio.ensure_future(scene.listing.page(Asked(sort="number")))
        while not scene.read:  # noqa: ASYNC110 - steps have no events
            await asyncio.sleep(0)
        scene.add("new", 0)
        scene.listing.forget()
        after = await scene.listing.page(Asked(sort="number"))
        return await before, after

    before, after = asyncio.run(looked())
    assert before.items == ("t0=1", "t1=2")
    assert after.items == ("new=0", "t0=1", "t1=2")


def test_what_is_gone_is_not_shown() -> None:
    """Though it is in the order of a moment ago."""
    scene = Scene(*things(1, 2))
    scene.page()
    scene.now += KEPT_SECONDS
    del scene.things[0]
    assert scene.page().items == ("t1=2",)


def test_a_page_that_cannot_be_is_refused_by_name() -> None:
    """And the list goes on."""
    scene = Scene(*things(1))
    for asked in ({"sort": "colour"}, {"limit": 1_001}, {"where": (("colour", 1),)}):
        with pytest.raises(WrongArgument):
            scene.page(**asked)
    assert scene.page(where=(("number", 1),), search="T").items == ("t0=1",)


def test_things_are_made_anew_by_what_making_takes() -> None:
    """Not within a second; and never more than their share of the time."""
    freshness = Freshness()
    assert not freshness.is_due(100.0, 100.0 + KEPT_SECONDS / 2)
    assert freshness.is_due(100.0, 100.0 + KEPT_SECONDS)
    freshness.took(0.5, 100.0)
    assert not freshness.is_due(100.0, 100.0 + 0.4 / SHARE)
    assert freshness.is_due(100.0, 100.0 + 0.5 / SHARE)


def test_for_pages_that_follow_things_are_made_anew_less_often() -> None:
    """Somebody who asks gets the list sorted again; pages that follow see it then, too."""
    scene = Scene(*things(1, 2))
    scene.listing._freshness.took(0.05, scene.now)
    assert scene.page(sort="number", followed=True).items == ("t0=1", "t1=2")
    scene.things[0].number = 3
    scene.now += 0.06 / SHARE
    assert scene.page(sort="number", followed=True).items == ("t0=3", "t1=2")
    assert scene.page(sort="number").items == ("t1=2", "t0=3")
    scene.now += KEPT_SECONDS
    assert scene.page(sort="number", followed=True).items == ("t1=2", "t0=3")
    scene.things[0].number = 1
    scene.now += 0.06 / FOLLOWED_SHARE
    assert scene.page(sort="number", followed=True).items == ("t0=1", "t1=2")


def test_steps_are_timed_without_what_others_do_between_them() -> None:
    """Two steps of a second each, and a break."""
    now = [0.0]

    def steps() -> Finding[str]:
        now[0] += 1
        yield GO_ON
        now[0] += 1
        return "done"

    watch = Stopwatch(lambda: now[0])
    timed = watch.of(steps())
    next(timed)
    now[0] += 50
    assert found(timed) == "done"
    assert watch.seconds == 2


def test_what_is_kept_is_made_once_for_all_until_it_is_forgotten() -> None:
    """What was being made when it was forgotten is not what is kept."""
    made: list[int] = []

    def make() -> Finding[int]:
        made.append(len(made))
        number = made[-1]
        yield GO_ON
        return number

    async def scenario() -> None:
        kept = Kept(make, run, lambda: 5.0)
        assert list(await asyncio.gather(kept.latest(), kept.latest())) == [0, 0]
        assert await kept.latest() == 0
        kept.forget()
        slow = asyncio.ensure_future(kept.latest())
        await asyncio.sleep(0)
        kept.forget()
        assert await kept.latest() == 2
        assert await slow == 1
        assert await kept.latest() == 2

    asyncio.run(scenario())


def test_what_was_forgotten_while_it_was_made_is_not_kept() -> None:
    """However late it is done."""

    async def scenario() -> list[str]:
        making: list[asyncio.Future[str]] = []

        def begin(finding: Finding[str]) -> "asyncio.Future[str]":
            finding.close()
            making.append(asyncio.get_running_loop().create_future())
            return making[-1]

        def nothing() -> Finding[str]:
            yield GO_ON
            return ""

        kept = Kept(nothing, begin, lambda: 5.0)
        before = asyncio.ensure_future(kept.latest())
        await asyncio.sleep(0)
        kept.forget()
        after = asyncio.ensure_future(kept.latest())
        await asyncio.sleep(0)
        for future, result in zip(reversed(making), ("new", "old"), strict=True):
            future.set_result(result)
            await asyncio.sleep(0)
        return [await before, await after, await kept.latest()]

    assert asyncio.run(scenario()) == ["old", "new", "new"]


def test_an_error_is_told_to_all_who_wait_and_is_not_kept() -> None:
    """The next who asks gets the list."""
    scene = Scene(*things(1))
    failing = True
    whole = scene.listing._run

    def once(finding: Finding[Page[str]]) -> "asyncio.Future[Page[str]]":
        nonlocal failing
        if failing:
            failing = False
            finding.close()
            raise RuntimeError("the node has ended")
        return whole(finding)

    scene.listing._run = once
    with pytest.raises(RuntimeError):
        scene.page()
    assert scene.page().total == 1
