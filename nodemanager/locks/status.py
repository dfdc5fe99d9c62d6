"""The locks of a pair for whoever is no node of it: who holds them, and the live one to be taken.

Everybody who asks "is it held?" asks here, and gets one answer: ``status``, the commands that work
on a store while no node may, the pipeline, and whatever else shows it.

- Locks in a database. A row that has not expired says who holds the lock: even one whose process is
  gone may have written until then. A row that has expired says nothing where something else is the
  lock: a holder with ``lockKeepAlivePeriod`` 0 never renews its row. The lock itself is asked then.
- Locks in a directory are the operating system's, and say it themselves.

A node asks its own locker instead (``Locker.as_seen``): it may find a lock free before its row has
expired, as whatever it takes it fences.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Self

from typing_extensions import override

from orthia.config.clock import monotonic_seconds
from orthia.config.lockers import with_locker
from orthia.config.store_settings import DatabaseStoreSettings
from orthia.database import Database, PermanentStoreError, StoreError, StoreUnavailable
from orthia.nodemanager.errors import LockLost
from orthia.nodemanager.locks.abc import Locker
from orthia.nodemanager.locks.holder_id import HolderId
from orthia.nodemanager.locks.lease import Lease, Lock, LockStatus, NodeManagerStatus
from orthia.nodemanager.locks.lockers import NO_LOCK, LockHolder, kind_of, lockers_of
from orthia.nodemanager.locks.report_files import ReportFiles
from orthia.nodemanager.locks.reports import Published, Report, SqlReportStore
from orthia.nodemanager.locks.server_lock import ServerLock
from orthia.nodemanager.locks.sql_store import SqlNodeManagerStore

LEASE_MS: Final = 60_000
"""For how long at least a lease is taken here, each time."""
_ROW_IS_ALL: Final = frozenset({"", NO_LOCK})
"""Kinds of lockers with nothing to ask beside the row."""


class LockUnknown(PermanentStoreError):  # noqa: N818 - named for what is the case
    """Whether somebody holds a lock cannot be told with the settings that were given."""


@dataclass(frozen=True)
class Seen:
    """What could be told of the locks of a pair."""

    status: NodeManagerStatus
    """Of a lock that is ``unknown`` what its row says, which has expired."""
    unknown: Mapping[Lock, StoreError] = field(default_factory=dict)
    """Why it cannot be told from here whether a lock is held."""


class PairLocks(ABC):
    """Both locks of a pair; a context manager that lets go of what it asked by."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @abstractmethod
    def close(self) -> None:
        """Close what was used to ask."""

    @abstractmethod
    def read_status(self) -> NodeManagerStatus:
        """Return who holds which lock, and the shared state; raises StoreError, as LockUnknown."""

    def look(self) -> Seen:
        """Return what can be told, to be shown and not to be acted on.

        Raises StoreError if the store does not answer.
        """
        return Seen(self.read_status())

    def reports(self) -> Mapping[Lock, Report]:
        """Return what the present holders of the locks report of themselves; raises StoreError."""
        published, status = self.published(), self.look().status
        return {
            lock.lock: published[lock.lock].report
            for lock in (status.live, status.backup)
            if lock.lock in published and published[lock.lock].is_of(lock)
        }

    @abstractmethod
    def published(self) -> Mapping[Lock, Published]:
        """Return what was reported, also by holders that are gone; raises StoreError."""

    @abstractmethod
    def try_acquire_live(self, above: int = 0) -> Lease | None:
        """Take the live lock as a node would, under a token greater than ``above``.

        None if somebody holds it. Raises StoreError.
        """

    @abstractmethod
    def renew(self, lease: Lease) -> Lease:
        """Keep a lock that was taken for as long again; raises LockLost, StoreError."""

    @abstractmethod
    def raise_token(self, lease: Lease, to: int) -> Lease:
        """Give a lock that was taken the greater token ``to``; raises LockLost, StoreError."""

    @abstractmethod
    def release(self, lease: Lease) -> None:
        """Give a lock back that was taken; raises StoreError."""


class DatabaseLocks(PairLocks):
    """The locks in a database, by whatever its settings say that the nodes lock by."""

    def __init__(self, database: Database, settings: DatabaseStoreSettings, name: str) -> None:
        """Ask as ``name``; ``settings`` are those of the nodes."""
        store = with_locker(settings)
        store = replace(store, jdbc_lock_expiration=max(store.jdbc_lock_expiration, LEASE_MS))
        self.rows = SqlNodeManagerStore(database, store, database.engine)
        """What the database says, without asking anything else."""
        holder_id = HolderId.new(name, crash_detection=False, kind=kind_of(store))
        self._kind = holder_id.kind
        self._reports = SqlReportStore(database, store)
        self._above = 0
        holder = LockHolder(name, holder_id, monotonic_seconds, lambda: self._above)
        stores = dict.fromkeys(Lock, self.rows)
        make = lockers_of(store, database, stores, holder)
        self._lockers: Mapping[Lock, Locker] = make(lambda *_: None)

    @override
    def close(self) -> None:
        for locker in self._lockers.values():
            locker.close()

    @override
    def read_status(self) -> NodeManagerStatus:
        """Read the rows in one statement, and ask a lock whose row has expired."""
        found = self.rows.status()
        return replace(found, live=self._as_seen(found.live), backup=self._as_seen(found.backup))

    @override
    def look(self) -> Seen:
        found = self.rows.status()
        unknown: dict[Lock, StoreError] = {}

        def seen(row: LockStatus) -> LockStatus:
            try:
                return self._as_seen(row)
            except (StoreUnavailable, LockUnknown) as error:
                unknown[row.lock] = error
                return row

        return Seen(replace(found, live=seen(found.live), backup=seen(found.backup)), unknown)

    @override
    def published(self) -> Mapping[Lock, Published]:
        return self._reports.read()

    @override
    def try_acquire_live(self, above: int = 0) -> Lease | None:
        if self._as_seen(self.rows.lock_status(Lock.LIVE)).is_held:
            return None
        self._above = above
        return self._lockers[Lock.LIVE].try_acquire()

    @override
    def renew(self, lease: Lease) -> Lease:
        return self._lockers[lease.lock].renew(lease)

    @override
    def raise_token(self, lease: Lease, to: int) -> Lease:
        if not self.rows.raise_token(lease.lock, lease.holder_id, lease.token, to):
            name = lease.lock.name.lower()
            raise LockLost(f"the {name} lock is not held by {lease.holder_id} any more")
        return replace(lease, token=to)

    @override
    def release(self, lease: Lease) -> None:
        self._lockers[lease.lock].release(lease)

    def _as_seen(self, row: LockStatus) -> LockStatus:
        if row.is_held or row.holder_id is None:
            return row
        kind = row.holder_id.kind
        if kind not in {*_ROW_IS_ALL, self._kind}:
            raise LockUnknown(
                f"whether {row.holder_id} still holds the {row.lock.name.lower()} lock cannot be"
                f" told: it takes it by a locker ({kind}) that is not in the settings given here;"
                " name that node's broker.xml by --config"
            )
        return self._lockers[row.lock].as_seen(row)


class DirectoryLocks(PairLocks):
    """The locks in a directory."""

    def __init__(self, directory: Path, name: str) -> None:
        """Ask as ``name``; raises StoreError if the directory cannot be used."""
        self._files = ServerLock(directory)
        self._reports = ReportFiles(directory)
        self._holder_id = HolderId.new(name, crash_detection=False)

    @override
    def close(self) -> None:
        self._files.close()

    @override
    def read_status(self) -> NodeManagerStatus:
        return status_of_files(self._files)

    @override
    def published(self) -> Mapping[Lock, Published]:
        return self._reports.read()

    @override
    def try_acquire_live(self, above: int = 0) -> Lease | None:
        """Take the lock, then the next token."""
        if not self._files.try_acquire(Lock.LIVE, self._holder_id):
            return None
        token = self._files.next_token(self._holder_id, above)
        return Lease(Lock.LIVE, self._holder_id, token, math.inf)

    @override
    def renew(self, lease: Lease) -> Lease:
        """Look whether the files are still in place: the lock has no end of its own."""
        reason = self._files.why_lost(lease.lock)
        if reason is not None:
            raise LockLost(reason)
        return lease

    @override
    def raise_token(self, lease: Lease, to: int) -> Lease:
        """Take the next token that is not below it."""
        return replace(lease, token=self._files.next_token(self._holder_id, to - 1))

    @override
    def release(self, lease: Lease) -> None:
        self._files.release(lease.lock)


def status_of_files(files: ServerLock) -> NodeManagerStatus:
    """Return what a directory's files say, in the words of a database's status.

    A file lock that is held expires never, and its time is this machine's.
    """
    shared, held = files.read_held()

    def status(lock: Lock, holder: str | None, token: int) -> LockStatus:
        if lock not in held:
            return LockStatus(lock, None, token, None)
        return LockStatus(lock, HolderId(holder or "somebody"), token, math.inf)

    return NodeManagerStatus(
        shared.state,
        status(Lock.LIVE, shared.live_holder, shared.token),
        status(Lock.BACKUP, shared.backup_holder, shared.backup_token),
        shared.node_id,
        shared.token,
        datetime.now(UTC),
    )
