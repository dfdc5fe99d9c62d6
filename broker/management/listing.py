"""Pages of very long lists: of 50,000 queues, of thousands of connections.

A page shows few of them, and what orders it is one field. So no list of rows is made: a *listing*
keeps the members by name, reads the one field that is asked for into a *column*, orders that, and
has only the members of the page shown, as they are now. All of it is done in short steps on the
loop's thread, and shared: an order that was made stays until ``Freshness`` has it made anew, and a
page for a moment. So many who look at a list cost little more than one.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import chain
from typing import Any, Final, Generic, NamedTuple, TypeVar

from orthia.broker.core.slices import GO_ON, Finding
from orthia.broker.management.errors import WrongArgument
from orthia.broker.management.kept import KEPT_SECONDS, Freshness, Stopwatch
from orthia.broker.quoting import quoted

MOST_OF_A_PAGE: Final = 1_000
_MOST_PAGES: Final = 64
"""Pages that are kept."""
_STEP: Final = 256
"""Members that are read in one step."""
_VIEWS: Final = 16
"""Members that are shown in one step."""
_RUN: Final = 2_048
"""Values that are sorted in one step."""
_Item = TypeVar("_Item")
_View = TypeVar("_View")
_Result = TypeVar("_Result")


class Page(NamedTuple, Generic[_View]):
    """A part of a list."""

    items: Sequence[_View]
    total: int
    """How many there are in all that match."""
    made_ms: int
    """As of when they are in this order."""


class Asked(NamedTuple):
    """Which page of a list is asked for."""

    search: str = ""
    """A part of one of a member's texts, in any case of letters."""
    where: tuple[tuple[str, object], ...] = ()
    """What fields are to be."""
    sort: str = ""
    """The field to sort by, "" for the name; what has none comes last."""
    descending: bool = False
    offset: int = 0
    limit: int = 100
    followed: bool = False
    """Whether it is for a page that follows what happens, which is content with an older order."""


FIRST: Final = Asked()
"""The first page, by name."""


def check_page(offset: int, limit: int) -> None:
    """Raise WrongArgument for a page that cannot be."""
    if offset < 0:
        raise WrongArgument("offset", f"a page begins at 0 or later, not at {offset}")
    if not 0 < limit <= MOST_OF_A_PAGE:
        raise WrongArgument("limit", f"a page has 1 to {MOST_OF_A_PAGE}; {limit} were asked for")


def sorting(
    items: Sequence[_Item], key: Callable[[_Item], Any], *, reverse: bool = False
) -> Finding[list[_Item]]:
    """Return items as ``sorted`` does, in short steps: runs, which are merged by two."""
    runs: list[list[_Item]] = []
    for start in range(0, len(items), _RUN):
        runs.append(sorted(items[start : start + _RUN], key=key, reverse=reverse))
        yield GO_ON
    while len(runs) > 1:
        merged = []
        for at in range(0, len(runs), 2):
            # Of two runs ``sorted`` is a merge, which keeps the order of equals.
            merged.append(sorted(chain(*runs[at : at + 2]), key=key, reverse=reverse))
            yield GO_ON
        runs = merged
    return runs[0] if runs else []


@dataclass(frozen=True)
class Kind(Generic[_Item, _View]):
    """What is listed, and how it is read."""

    what: str
    """What the list is of, in the plural."""
    members: Callable[[], Finding[list[_Item]]]
    """Returns all there are, in no order."""
    version: Callable[[], object]
    """Returns what is another once there are other members."""
    name: str
    """The field that is the name of a member."""
    readers: Mapping[str, Callable[[_Item], Any]]
    """What returns a field of a member as it is now, by the name of the field."""
    texts: Callable[[_Item], tuple[str, ...]]
    """Returns the texts of a member that are searched."""
    view: Callable[[_Item], _View | None]
    """Returns how a member is shown; None if it is gone."""


@dataclass(eq=False)
class _Column:
    """One field of all members at one moment."""

    values: list[Any]
    made: float = 0.0
    made_ms: int = 0
    orders: dict[bool, Sequence[int]] = field(default_factory=dict)
    """Places of members in the order of the values, ascending and descending."""


class _Index(Generic[_Item]):
    """All members by name."""

    def __init__(self, items: list[_Item], version: object, made: float) -> None:
        self.items = items
        self.version = version
        self.made = made
        self.texts: list[str] | None = None
        """What is searched of each, once somebody has searched."""
        self.columns: dict[str, _Column] = {}


@dataclass
class _Shown(Generic[_Item, _View]):
    """A page that was shown."""

    basis: tuple[object, ...]
    """The index and columns it was made of."""
    items: list[_Item]
    page: Page[_View]
    shown: float


class Listing(Generic[_Item, _View]):
    """A very long list; on the loop's thread."""

    def __init__(
        self,
        kind: Kind[_Item, _View],
        run: Callable[[Finding[Page[_View]]], "asyncio.Future[Page[_View]]"],
        clock: Callable[[], float],
        time_ms: Callable[[], int],
    ) -> None:
        """``run`` has steps done; ``clock`` returns seconds, and ``time_ms`` the time of day."""
        self._kind = kind
        self._run = run
        self._clock = clock
        self._time_ms = time_ms
        self._freshness = Freshness()
        self._index: _Index[_Item] | None = None
        self._is_forgotten = False
        self._pages: dict[Asked, _Shown[_Item, _View]] = {}
        """Those that were shown last at the end."""
        self._making: dict[Asked, asyncio.Future[Page[_View]]] = {}
        self._turn = asyncio.Lock()

    async def page(self, asked: Asked) -> Page[_View]:
        """Return a page; who asks for the same while it is made shares it. Raises WrongArgument."""
        check_page(asked.offset, asked.limit)
        for what, name in (("sort", asked.sort), *(("where", one) for one, _ in asked.where)):
            if name and name not in self._kind.readers:
                raise WrongArgument(what, f"{self._kind.what} have no {quoted(name[:100])}")
        shown = self._pages.get(asked)
        if (
            shown is not None
            and not self._is_forgotten
            and self._clock() - shown.shown < KEPT_SECONDS
        ):
            return shown.page
        making = self._making.get(asked)
        if making is None:
            making = self._making[asked] = asyncio.ensure_future(self._make(asked))
            making.add_done_callback(lambda made: self._made(asked, made))
        return await asyncio.shield(making)

    def _made(self, asked: Asked, made: "asyncio.Future[Page[_View]]") -> None:
        if self._making.get(asked) is made:
            del self._making[asked]
        if not made.cancelled():
            made.exception()  # nobody may wait any more

    def forget(self) -> None:
        """Make all anew for whoever asks next: something was changed that they want to see."""
        self._is_forgotten = True
        self._making.clear()

    async def _make(self, asked: Asked) -> Page[_View]:
        async with self._turn:  # so that two who ask share columns
            return await self._run(self._making_page(asked))

    def _timed(self, finding: Finding[_Result]) -> Finding[_Result]:
        """Count what steps take against how often they may be taken."""
        watch = Stopwatch()
        result = yield from watch.of(finding)
        self._freshness.took(watch.seconds, self._clock())
        return result

    def _making_page(self, asked: Asked) -> Finding[Page[_View]]:
        index = yield from self._indexed(asked)
        named = [one for one, _ in asked.where]
        if asked.sort and asked.sort != self._kind.name:
            named.append(asked.sort)
        columns: dict[str, _Column] = {}
        for one in named:
            columns[one] = yield from self._column(index, one, asked)
        basis = (index, *columns.values())
        shown = self._pages.pop(asked, None)
        if shown is not None and shown.basis == basis:
            items, total = shown.items, shown.page.total
        else:
            places = yield from self._places(index, asked, columns)
            items = [index.items[one] for one in places[asked.offset : asked.offset + asked.limit]]
            total = len(places)
        views: list[_View] = []
        for start in range(0, len(items), _VIEWS):
            for item in items[start : start + _VIEWS]:
                view = self._kind.view(item)
                if view is not None:
                    views.append(view)
            yield GO_ON
        made_ms = min((one.made_ms for one in columns.values()), default=self._time_ms())
        page = Page(tuple(views), total, made_ms)
        if len(self._pages) >= _MOST_PAGES:
            del self._pages[next(iter(self._pages))]
        self._pages[asked] = _Shown(basis, items, page, self._clock())
        return page

    def _is_due(self, made: float, now: float, asked: Asked) -> bool:
        return self._freshness.is_due(made, now, followed=asked.followed)

    def _indexed(self, asked: Asked) -> Finding[_Index[_Item]]:
        """Return the members by name; other ones than before are seen when that may be made."""
        index, now = self._index, self._clock()
        if self._is_forgotten or index is None or self._is_due(index.made, now, asked):
            if self._is_forgotten and index is not None:
                index.columns.clear()
            self._is_forgotten = False
            version = self._kind.version()
            if index is None or index.version != version:
                index = self._index = yield from self._timed(self._indexing(version, now))
        return index

    def _indexing(self, version: object, now: float) -> Finding[_Index[_Item]]:
        members = yield from self._kind.members()
        names = yield from values_of(members, self._kind.readers[self._kind.name])
        order = yield from sorting(range(len(members)), names.__getitem__)
        return _Index([members[one] for one in order], version, now)

    def _column(self, index: _Index[_Item], name: str, asked: Asked) -> Finding[_Column]:
        """Return a field of all members, made anew where that is due."""
        column, now = index.columns.get(name), self._clock()
        if column is None or self._is_due(column.made, now, asked):
            values = yield from self._timed(values_of(index.items, self._kind.readers[name]))
            if column is None or values != column.values:
                column = index.columns[name] = _Column(values)
            column.made, column.made_ms = now, self._time_ms()
        return column

    def _places(
        self, index: _Index[_Item], asked: Asked, columns: Mapping[str, _Column]
    ) -> Finding[Sequence[int]]:
        """Return the places in the index of all that match, in the order that is asked for."""
        every = range(len(index.items))
        order: Sequence[int] = every[::-1] if asked.descending else every
        if asked.sort and asked.sort != self._kind.name:
            column = columns[asked.sort]
            order = yield from self._timed(_ordering(column, descending=asked.descending))
        if asked.search:
            texts = yield from self._texts(index)
            part = asked.search.casefold()
            order = yield from keeping(order, lambda one: part in texts[one])
        for name, value in asked.where:
            values, wanted = columns[name].values, _plain(value)
            order = yield from keeping(order, lambda one, v=values, w=wanted: v[one] == w)  # type: ignore[misc]
        return order

    def _texts(self, index: _Index[_Item]) -> Finding[list[str]]:
        if index.texts is None:
            texts: list[str] = []
            for start in range(0, len(index.items), _STEP):
                some = index.items[start : start + _STEP]
                texts += ["\0".join(self._kind.texts(one)).casefold() for one in some]
                yield GO_ON
            index.texts = texts
        return index.texts


def values_of(items: Sequence[_Item], read: Callable[[_Item], Any]) -> Finding[list[Any]]:
    """Return what is read of each item, in short steps."""
    values: list[Any] = []
    for start in range(0, len(items), _STEP):
        values += map(read, items[start : start + _STEP])
        yield GO_ON
    if values and isinstance(values[0], Enum):
        values = [_plain(one) for one in values]
    return values


def _plain(value: Any) -> Any:
    """Return what a value is sorted and compared by."""
    return value.value if isinstance(value, Enum) else value


def _ordering(column: _Column, *, descending: bool) -> Finding[Sequence[int]]:
    """Return places in the order of a column; equals by name, those without a value last."""
    order = column.orders.get(descending)
    if order is None:
        values = column.values
        some: Sequence[int] = range(len(values))
        rest: Sequence[int] = ()
        if None in values:
            rest = yield from keeping(some, lambda one: values[one] is None)
            some = yield from keeping(some, lambda one: values[one] is not None)
        ordered = yield from sorting(some, values.__getitem__, reverse=descending)
        order = column.orders[descending] = [*ordered, *rest]
    return order


def keeping(items: Sequence[_Item], keeps: Callable[[_Item], bool]) -> Finding[list[_Item]]:
    """Return those of some items that are kept, in short steps."""
    found: list[_Item] = []
    for start in range(0, len(items), _STEP):
        found += [one for one in items[start : start + _STEP] if keeps(one)]
        yield GO_ON
    return found
