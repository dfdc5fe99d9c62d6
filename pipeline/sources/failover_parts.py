"""The parts of pairs' failover logs, and the present live lock of their stores.

The driver queries many stores at once. A store that does not answer is an error of its pair.
"""

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from sqlalchemy import MetaData, func, select

from orthia.config.errors import OrthiaError
from orthia.config.store_settings import DatabaseStoreSettings
from orthia.database import Database, translate_errors
from orthia.nodemanager.locks.lease import Lock, NodeManagerStatus
from orthia.nodemanager.locks.status import DatabaseLocks
from orthia.nodemanager.tables import failover_log
from orthia.pipeline.history.outages import LiveLock
from orthia.pipeline.sources.failover_events import LogPart
from orthia.pipeline.sources.failover_files import in_groups
from orthia.pipeline.sources.last_writes import last_writes
from orthia.pipeline.sources.store import StoreReference
from orthia.pipeline.times import microseconds

LOGGER: Final = logging.getLogger("orthia.pipeline")
_AT_ONCE: Final = 16
_ROWS_A_PART: Final = 100_000
_MAX_PARTS: Final = 32
Opened = Callable[[DatabaseStoreSettings], AbstractContextManager[Database]]


@dataclass(frozen=True)
class StoreLog:
    """The failover log of one pair, as it was when its store was queried."""

    name: str
    """The name given to the pair, else its node id."""
    node_id: str | None = None
    parts: Sequence[LogPart] = ()
    live_lock: LiveLock | None = None
    error: str | None = None


@dataclass(frozen=True)
class NamedStore:
    """A store to query."""

    name: str | None
    settings: DatabaseStoreSettings
    reference: StoreReference


def ask_all(stores: Sequence[NamedStore], opened: Opened) -> list[StoreLog]:
    """Return the answer of each store; ``opened`` opens one, and raises OrthiaError on failure."""
    if not stores:
        return []
    with ThreadPoolExecutor(min(_AT_ONCE, len(stores))) as pool:
        return list(pool.map(lambda one: _ask(one, opened), stores))


def _ask(store: NamedStore, opened: Opened) -> StoreLog:
    try:
        with opened(store.settings) as database:
            found = look(database, store.settings, store.name)
            ranges = _ranges(database, store.settings)
    except OrthiaError as error:
        called = store.name or str(store.settings.jdbc_connection_url)
        return StoreLog(called, error=" ".join(str(error).split()))
    options = store.reference.to_options()
    return replace(found, parts=[LogPart(found.name, options, *ids) for ids in ranges])


def look(database: Database, settings: DatabaseStoreSettings, name: str | None = None) -> StoreLog:
    """Return the pair of a store and its live lock, without the parts of its log.

    Raises StoreError.
    """
    with DatabaseLocks(database, settings, "orthia-pipeline") as locks:
        seen = locks.look()
    status = seen.status
    found = StoreLog(name or status.node_id or str(settings.jdbc_connection_url), status.node_id)
    # If the lock cannot be checked from here, its state is unknown: its node may well serve.
    if Lock.LIVE in seen.unknown:
        return found
    writes = _writes(database, settings)
    return replace(found, live_lock=replace(live_lock_of(status), writes=writes))


def _ranges(database: Database, settings: DatabaseStoreSettings) -> list[tuple[int, int]]:
    """Return the ranges of ids, ``first <= id < end``, that a task each reads."""
    row = failover_log(MetaData(), settings.failover_log_table_name, database.dialect).c.id
    with translate_errors("read the failover log"), database.engine.connect() as connection:
        first, last = connection.execute(select(func.min(row), func.max(row))).one()
    if first is None:
        return []
    parts = min(_MAX_PARTS, 1 + (last - first + 1) // _ROWS_A_PART)
    step = -(-(last - first + 1) // parts)
    return [(start, min(start + step, last + 1)) for start in range(first, last + 1, step)]


def _writes(database: Database, settings: DatabaseStoreSettings) -> dict[int, int]:
    """Return the last writes to the journal; none if they cannot be read."""
    try:
        return last_writes(database, settings)
    except OrthiaError as error:
        # The user may have rights on the log alone: ranges are wider then, and still correct.
        LOGGER.info("the last writes of %s are not known: %s", settings.jdbc_connection_url, error)
        return {}


def live_lock_of(status: NodeManagerStatus) -> LiveLock:
    """Return the live lock of a store, for the history."""
    live = status.live
    expires = live.expiration_time
    return LiveLock(
        now=microseconds(status.database_time),
        holder=live.holder_id,
        token=live.token,
        is_held=live.is_held,
        expires_at=None if expires is None else microseconds(expires),
        state=status.state,
    )


def file_parts(files: Sequence[str]) -> list[LogPart]:
    """Return the parts of existing files; one task reads many small ones."""
    return [LogPart(files=group) for group in in_groups(map(Path, files))]
