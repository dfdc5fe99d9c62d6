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

from orthia.config.errors import OrthiaError
from orthia.config.store_settings import DatabaseStoreSettings
from orthia.database import Database
from orthia.nodemanager.locks.lease import Lock, NodeManagerStatus
from orthia.nodemanager.locks.status import DatabaseLocks
from orthia.pipeline.history.outages import LiveLock
from orthia.pipeline.sources.failover_chapters import LogPart
from orthia.pipeline.sources.failover_log import in_groups, ranges_of
from orthia.pipeline.sources.fetching import open_source
from orthia.pipeline.sources.last_writes import last_writes
from orthia.pipeline.sources.store import StoreReference
from orthia.pipeline.times import microseconds

LOGGER: Final = logging.getLogger("orthia.pipeline")
_AT_ONCE: Final = 16
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
    name = store.name
    try:
        with (
            opened(store.settings) as database,
            DatabaseLocks(database, store.settings, "orthia-pipeline") as locks,
        ):
            seen = locks.look()
        status = seen.status
        found = name or status.node_id or str(store.settings.jdbc_connection_url)
        with open_source(store.settings) as source:
            parts = [
                LogPart(found, store.reference.to_options(), one.first, one.end)
                for one in ranges_of(source, store.settings)
            ]
    except OrthiaError as error:
        called = name or str(store.settings.jdbc_connection_url)
        return StoreLog(called, error=" ".join(str(error).split()))
    live_lock = None
    # If the lock cannot be checked from here, its state is unknown: its node may well serve.
    if Lock.LIVE not in seen.unknown:
        live_lock = replace(live_lock_of(status), writes=_writes(store.settings))
    return StoreLog(found, status.node_id, parts, live_lock)


def _writes(settings: DatabaseStoreSettings) -> dict[int, int]:
    """Return the last writes to the journal; none if they cannot be read."""
    try:
        with open_source(settings) as source:
            return last_writes(source, settings)
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
    return [LogPart(files=group.paths) for group in in_groups(map(Path, files))]
