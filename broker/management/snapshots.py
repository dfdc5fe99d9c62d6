"""Lists of all queues: made in slices on the loop, kept for a while, searched on any thread.

A node may have 50,000 queues. So that many who watch cost the loop no more than one does, a list is
shared by all who ask while it is made, and as long as it is fresh: a second, or longer where making
it took long, so that no more than a small part of the loop's time goes to it.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from typing import Any, Final, Generic, NamedTuple, TypeVar

from orthia.broker.core.slices import Finding
from orthia.broker.management.errors import WrongArgument
from orthia.broker.management.views import QueueView
from orthia.broker.quoting import quoted

KEPT_MS: Final = 1_000
"""How long a list is kept at least."""
_SHARE: Final = 30
"""It is kept so many times as long as it took to make."""
MOST_OF_A_PAGE: Final = 1_000


class Snapshot(NamedTuple):
    """All queues as they were at one moment, or nearly: each is as it was when its turn came."""

    made_ms: int
    queues: tuple[QueueView, ...]


_Item = TypeVar("_Item")


class Page(NamedTuple, Generic[_Item]):
    """A part of a list."""

    items: Sequence[_Item]
    total: int
    """How many there are in all that match."""


class Snapshots:
    """Makes lists of queues; on the loop's thread."""

    def __init__(
        self,
        make: Callable[[], Finding[tuple[QueueView, ...]]],
        run: Callable[[Finding[tuple[QueueView, ...]]], "asyncio.Future[tuple[QueueView, ...]]"],
        time_ms: Callable[[], int],
    ) -> None:
        """``make`` returns the steps that make a list, and ``run`` has them done."""
        self._make = make
        self._run = run
        self._time_ms = time_ms
        self._last: Snapshot | None = None
        self._kept_until_ms = 0
        self._making: asyncio.Future[tuple[QueueView, ...]] | None = None

    async def queues(self) -> Snapshot:
        """Return all queues, as they were a moment ago at most."""
        began_ms = self._time_ms()
        if self._last is not None and began_ms < self._kept_until_ms:
            return self._last
        making = self._making
        if making is None or making.done():
            making = self._making = self._run(self._make())
        queues = await asyncio.shield(making)
        if self._making is making:
            self._making = None
            now_ms = self._time_ms()
            self._last = Snapshot(now_ms, queues)
            self._kept_until_ms = now_ms + max(KEPT_MS, _SHARE * (now_ms - began_ms))
        return self._last or Snapshot(self._time_ms(), queues)

    def forget(self) -> None:
        """Make a new list for whoever asks next: something was changed that they want to see."""
        self._kept_until_ms = 0


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
    if offset < 0:
        raise WrongArgument("offset", f"a page begins at 0 or later, not at {offset}")
    if not 0 < limit <= MOST_OF_A_PAGE:
        raise WrongArgument(
            "limit", f"a page has 1 to {MOST_OF_A_PAGE} queues; {limit} were asked for"
        )
    wanted = dict(where or {})
    for name in wanted:
        if name not in QueueView._fields:
            raise WrongArgument("where", f"a queue has no {quoted(name)}")
    part = search.casefold()
    found = [
        one
        for one in queues
        if (not part or part in one.name.casefold() or part in one.address.casefold())
        and all(getattr(one, name) == value for name, value in wanted.items())
    ]
    place = QueueView._fields.index(sort)

    def key(view: QueueView) -> Any:
        value = view[place]
        return value.value if isinstance(value, Enum) else value

    has = [one for one in found if one[place] is not None]
    has.sort(key=lambda one: one.name)
    has.sort(key=key, reverse=descending)
    rest = [one for one in found if one[place] is None]
    ordered = [*has, *sorted(rest, key=lambda one: one.name)]
    return Page(ordered[offset : offset + limit], len(ordered))
