"""Lists of all queues or connections: made in slices, kept for a while, searched on any thread.

A node may have 50,000 queues. So that many who watch cost the loop no more than one does, a list is
shared by all who ask while it is made, and as long as it is fresh: a second, or longer where making
it took long, so that no more than a small part of the loop's time goes to it. So are its pages.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any, Final, Generic, NamedTuple, TypeVar

from orthia.broker.core.slices import Finding
from orthia.broker.management.errors import WrongArgument
from orthia.broker.management.views import QueueView
from orthia.broker.quoting import quoted

KEPT_MS: Final = 1_000
"""How long a list is kept at least."""
_SHARE: Final = 60
"""It is kept so many times as long as it took to make."""
MOST_OF_A_PAGE: Final = 1_000
_MOST_PAGES: Final = 64
"""Pages of one list that are kept."""
_NAME: Final = QueueView._fields.index("name")
_ENUMS: Final = frozenset({"routing_type"})
"""What is not sorted by itself, but by its value."""
_Item = TypeVar("_Item")


class Page(NamedTuple, Generic[_Item]):
    """A part of a list."""

    items: Sequence[_Item]
    total: int
    """How many there are in all that match."""


class Snapshot(Generic[_Item]):
    """All of a kind as they were at one moment, or nearly: each as it was when its turn came."""

    __slots__ = ("_ordered", "_pages", "items", "made_ms")

    def __init__(self, made_ms: int, items: tuple[_Item, ...]) -> None:
        self.made_ms = made_ms
        self.items = items
        self._ordered: list[_Item] | None = None
        self._pages: dict[object, Page[_Item]] = {}

    def ordered(self, key: Callable[[_Item], Any]) -> list[_Item]:
        """Return all in the order of ``key``, which is the same each time; on any thread."""
        if self._ordered is None:
            self._ordered = sorted(self.items, key=key)
        return self._ordered

    def page(self, asked: object, make: Callable[[], Page[_Item]]) -> Page[_Item]:
        """Return the page that is ``asked`` for, which ``make`` returns once; on any thread."""
        found = self._pages.get(asked)
        if found is None:
            found = make()
            if len(self._pages) < _MOST_PAGES:
                self._pages[asked] = found
        return found


class Snapshots(Generic[_Item]):
    """Makes lists; on the loop's thread."""

    def __init__(
        self,
        make: Callable[[], Finding[tuple[_Item, ...]]],
        run: Callable[[Finding[tuple[_Item, ...]]], "asyncio.Future[tuple[_Item, ...]]"],
        time_ms: Callable[[], int],
    ) -> None:
        """``make`` returns the steps that make a list, and ``run`` has them done."""
        self._make = make
        self._run = run
        self._time_ms = time_ms
        self._last: Snapshot[_Item] | None = None
        self._kept_until_ms = 0
        self._making: asyncio.Future[tuple[_Item, ...]] | None = None

    async def latest(self) -> Snapshot[_Item]:
        """Return all there are, as they were a moment ago at most."""
        began_ms = self._time_ms()
        if self._last is not None and began_ms < self._kept_until_ms:
            return self._last
        making = self._making
        if making is None or making.done():
            making = self._making = self._run(self._make())
        items = await asyncio.shield(making)
        if self._making is making:
            self._making = None
            now_ms = self._time_ms()
            self._last = Snapshot(now_ms, items)
            self._kept_until_ms = now_ms + max(KEPT_MS, _SHARE * (now_ms - began_ms))
        return self._last or Snapshot(self._time_ms(), items)

    def forget(self) -> None:
        """Make a new list for whoever asks next: something was changed that they want to see."""
        self._kept_until_ms = 0


def page_of(
    snapshot: Snapshot[QueueView], where: Mapping[str, object] | None = None, **asked: Any
) -> Page[QueueView]:
    """Return a page as ``page`` does, of a list of which many may ask for the same one."""
    key = tuple(asked.items()), tuple((where or {}).items())
    by_name = snapshot.ordered(itemgetter(_NAME))
    return snapshot.page(key, lambda: page(by_name, where=where, **asked))


def check_page(offset: int, limit: int) -> None:
    """Raise WrongArgument for a page that cannot be."""
    if offset < 0:
        raise WrongArgument("offset", f"a page begins at 0 or later, not at {offset}")
    if not 0 < limit <= MOST_OF_A_PAGE:
        raise WrongArgument("limit", f"a page has 1 to {MOST_OF_A_PAGE}; {limit} were asked for")


def page(
    queues: Iterable[QueueView],
    *,
    search: str = "",
    where: Mapping[str, object] | None = None,
    sort: str = "name",
    descending: bool = False,
    offset: int = 0,
    limit: int = 100,
) -> Page[QueueView]:
    """Return a page of queues; on any thread. Raises WrongArgument.

    ``search`` is a part of a queue's or an address' name, in any case of letters. ``where`` says
    what fields of a view are to be. ``sort`` is such a field; what has none comes last.
    """
    if sort not in QueueView._fields:
        raise WrongArgument("sort", f"a list of queues is not sorted by {quoted(sort)}")
    check_page(offset, limit)
    wanted = dict(where or {})
    for name in wanted:
        if name not in QueueView._fields:
            raise WrongArgument("where", f"a queue has no {quoted(name)}")
    part = search.casefold()
    found = sorted(queues, key=itemgetter(_NAME))
    if part:
        found = [
            one for one in found if part in one.name.casefold() or part in one.address.casefold()
        ]
    for name, value in wanted.items():
        at = QueueView._fields.index(name)
        found = [one for one in found if one[at] == value]
    place = QueueView._fields.index(sort)
    rest = [one for one in found if one[place] is None]
    if rest:
        found = [one for one in found if one[place] is not None]
    key = itemgetter(place)
    if sort in _ENUMS:
        found.sort(key=lambda one: key(one).value, reverse=descending)
    else:
        found.sort(key=key, reverse=descending)
    ordered = [*found, *rest] if rest else found
    return Page(ordered[offset : offset + limit], len(ordered))
