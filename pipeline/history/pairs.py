"""The report on pairs: which events are whose, and the rows of all pairs' accounts as tables.

Pure: Spark's tasks and a single process make the same rows with it.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from orthia.pipeline.history.account import account_of
from orthia.pipeline.history.intervals import Interval
from orthia.pipeline.history.lives import Life
from orthia.pipeline.history.outages import LiveLock
from orthia.pipeline.history.rows import TABLES, Row, rows_of, unread

UNKNOWN: Final = "unknown"
"""The pair of events that name none."""
Tables = dict[str, list[Row]]


@dataclass(frozen=True)
class Period:
    """The requested period, in microseconds since 1970 UTC; None is as far as is known."""

    since: int | None = None
    until: int | None = None
    planned: Sequence[Interval] = ()
    """Times for which it was planned that nobody need serve."""

    def end(self, known: int) -> int:
        """Return its end, not later than ``known``, the last moment anything is known of."""
        return known if self.until is None else min(self.until, known)


WHOLE: Final = Period()
"""All that is known."""


class KnownPair(Protocol):
    """What a pair's store says of it, or why it says nothing."""

    @property
    def name(self) -> str:
        """The name given to the pair, else its node id."""

    @property
    def node_id(self) -> str | None:
        """Its node id, if it is known."""

    @property
    def live_lock(self) -> LiveLock | None:
        """Its live lock; None if that is not known."""

    @property
    def error(self) -> str | None:
        """Why its store could not be read."""


@dataclass(frozen=True)
class ChapterKey:
    """Whose a chapter is: the events of one life in one source."""

    pair: str | None
    """The name that its reader was given."""
    node_id: str | None
    """The node id in its events; a node's first ones may precede it."""
    holder: str

    @property
    def said(self) -> str | None:
        """The pair, as the chapter alone names it."""
        return self.pair if self.pair is not None else self.node_id


class PairNames:
    """The name of each chapter's pair, wherever its events were read.

    It is the name the pair was given, else its node id. A chapter that names neither goes with the
    rest of its life.
    """

    def __init__(self, chapters: Iterable[ChapterKey], stores: Sequence[KnownPair]) -> None:
        self._called = {one.node_id: one.name for one in stores if one.node_id is not None}
        self._of_holder: dict[str, str] = {}
        for key in chapters:
            name = self._named(key)
            if name is not None:
                self._of_holder[key.holder] = max(name, self._of_holder.get(key.holder, name))

    def of(self, key: ChapterKey) -> str:
        """Return the pair of a chapter."""
        name = self._named(key)
        return self._of_holder.get(key.holder, UNKNOWN) if name is None else name

    def _named(self, key: ChapterKey) -> str | None:
        said = key.said
        return said if said is None else self._called.get(said, said)


def account_rows(
    pair: str,
    lives: Sequence[Life],
    stores: Sequence[KnownPair],
    period: Period,
    until: int,
) -> list[tuple[str, Row]]:
    """Return the rows of a pair's account, each with the name of its table.

    It ends at the present time of the pair's store, without one at ``until``; or at the end of
    ``period``, if that is earlier.
    """
    locks = (one.live_lock for one in stores if one.name == pair and one.live_lock is not None)
    live_lock = next(locks, None)
    end = period.end(until if live_lock is None else live_lock.now)
    account = account_of(lives, live_lock, period.since, end, period.planned)
    return list(rows_of(pair, account, lives))


def tables_of(
    accounts: Iterable[tuple[str, Row]],
    stores: Sequence[KnownPair],
    errors: Mapping[str, str],
    period: Period,
) -> Tables:
    """Return the rows of every table by its name: of the pairs' accounts, and of all others.

    A pair whose log is empty has a row, and one that could not be read, by ``errors`` or by its
    store, has one with its error.
    """
    tables: Tables = {name: [] for name in TABLES}
    for name, row in sorted(accounts, key=lambda one: str(one[1]["pair"])):
        tables[name].append(row)
    told = {row["pair"] for row in tables["availability"]}
    for store in stores:
        if store.live_lock is not None and store.name not in told:
            for name, row in _without_events(store.name, store.live_lock, period):
                tables[name].append(row)
            told.add(store.name)
    failed = {store.name: store.error for store in stores if store.error is not None}
    for name, error in (failed | dict(errors)).items():
        if name in told:
            _note_error(tables["availability"], name, error)
        else:
            tables["availability"].append(unread(name, error))
    tables["availability"].sort(key=_importance)
    tables["outages"].sort(
        key=lambda row: (row["planned"], not row["open"], not row["known"], -row["out_ms"])
    )
    return tables


def _without_events(name: str, live_lock: LiveLock, period: Period) -> Iterator[tuple[str, Row]]:
    end = period.end(live_lock.now)
    return rows_of(name, account_of([], live_lock, period.since, end, period.planned), [])


def _importance(row: Row) -> tuple[bool, bool, float, str]:
    """Sort key: pairs that are out, then those that could not be read, then by outages."""
    return (row["now"] != "OUT", row["error"] is None, -(row["out_ms"] or 0.0), row["pair"])


def _note_error(rows: Sequence[Row], name: str, error: str) -> None:
    for row in rows:
        if row["pair"] == name:
            row["error"] = error
