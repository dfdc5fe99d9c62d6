"""The report on the failover logs of one store and some files, made in this process: no Spark.

It has the rows of ``orthia.pipeline.jobs.failovers``, by the same rules of
``orthia.pipeline.history``. The events are all in memory, about a kilobyte each.
"""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from orthia.config.store_settings import DatabaseStoreSettings
from orthia.database import Database
from orthia.nodemanager.errors import FailoverLogUnreadable
from orthia.pipeline.history.lives import LoggedEvent, life_of
from orthia.pipeline.history.pairs import (
    WHOLE,
    ChapterKey,
    PairNames,
    Period,
    Tables,
    account_rows,
    tables_of,
)
from orthia.pipeline.history.rows import Row
from orthia.pipeline.sources.failover_events import (
    Lives,
    add_file,
    add_table,
    collector_at_rest,
)
from orthia.pipeline.sources.failover_parts import StoreLog, look

_Events = list[tuple[Any, ...]]
_Chapters = list[tuple[ChapterKey, str, _Events]]


def summary(
    store: tuple[Database, DatabaseStoreSettings] | None,
    files: Sequence[Path] = (),
    period: Period = WHOLE,
    *,
    now: int,
) -> Tables:
    """Return the rows of every table, by its name (``TABLES``).

    They end at the database's present time; without a store with the last event of all; or at the
    end of ``period``. ``now`` ends the account of a pair that only files tell of, beside a store.
    Raises StoreError, OSError, FailoverLogUnreadable.
    """
    stores: list[StoreLog] = []
    told: _Chapters = []
    with collector_at_rest():
        if store is not None:
            stores.append(look(*store))
            lives: Lives = {}
            add_table(*store, lives)
            told += _chapters(stores[0].name, lives)
        told += _chapters(None, _of_files(files))
        names = PairNames((key for key, *_ in told), stores)
        last = max((event[1] for *_, said in told for event in said), default=now)
        until = now if stores else last
        rows = _accounts(told, names, stores, period, until)
        return tables_of(rows, stores, {}, period)


def _of_files(files: Iterable[Path]) -> Lives:
    lives: Lives = {}
    for path in files:
        if not add_file(path, lives):
            raise FailoverLogUnreadable(
                f"{path} is no failover log: no line of it is a node's event"
            )
    return lives


def _chapters(pair: str | None, lives: Lives) -> _Chapters:
    return [
        (ChapterKey(pair, chapter.node_id, holder), node, chapter.events)
        for (holder, node), chapter in lives.items()
    ]


def _accounts(
    told: _Chapters, names: PairNames, stores: Sequence[StoreLog], period: Period, until: int
) -> Iterator[tuple[str, Row]]:
    pairs: dict[str, dict[str, tuple[str, list[_Events]]]] = {}
    for key, node, said in told:
        pairs.setdefault(names.of(key), {}).setdefault(key.holder, (node, []))[1].append(said)
    for pair, holders in pairs.items():
        lives = [
            life_of(holder, node, (LoggedEvent._make(one) for said in found for one in said))
            for holder, (node, found) in sorted(holders.items())
        ]
        yield from account_rows(pair, lives, stores, period, until)
