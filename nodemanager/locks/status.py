"""The locks of a pair for a command beside its nodes: seen, and taken, as their locker does.

A row that has not expired says who holds the lock, as long as its holder renews it. One that has
expired says nothing where something else is the lock: a holder with ``lockKeepAlivePeriod`` 0 never
renews its row. The lock itself is asked then.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final, Self

from orthia.config.clock import monotonic_seconds
from orthia.config.lockers import with_locker
from orthia.config.settings import DatabaseStoreSettings
from orthia.database import Database, PermanentStoreError, StoreError, StoreUnavailable
from orthia.nodemanager.locks.abc import Locker
from orthia.nodemanager.locks.holder_id import HolderId
from orthia.nodemanager.locks.lease import Lease, Lock, LockStatus, NodeManagerStatus
from orthia.nodemanager.locks.lockers import NO_LOCK, LockHolder, kind_of, lockers_of
from orthia.nodemanager.locks.sql_store import SqlNodeManagerStore

_ROW_IS_ALL: Final = frozenset({"", NO_LOCK})
"""Kinds of lockers with nothing to ask beside the row."""


class LockUnknown(PermanentStoreError):  # noqa: N818 - named for what is the case
    """Whether somebody holds a lock cannot be told with the settings that were given."""


class ToolLocks:
    """Both locks of the pair on ``database``; a context manager that lets go of what it asked by.

    ``lease_ms`` is for how long a lock that is taken is held at least.
    """

    def __init__(
        self, database: Database, settings: DatabaseStoreSettings, name: str, *, lease_ms: int = 0
    ) -> None:
        store = with_locker(settings)
        store = replace(store, jdbc_lock_expiration=max(store.jdbc_lock_expiration, lease_ms))
        self.rows = SqlNodeManagerStore(database, store, database.engine)
        """What the database says, without asking anything else."""
        holder_id = HolderId.new(name, crash_detection=False, kind=kind_of(store))
        self._kind = holder_id.kind
        holder = LockHolder(name, holder_id, monotonic_seconds)
        stores = dict.fromkeys(Lock, self.rows)
        make = lockers_of(store, database, stores, holder)
        self._lockers: Mapping[Lock, Locker] = make(lambda *_: None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of what was asked by."""
        for locker in self._lockers.values():
            locker.close()

    def status(self) -> NodeManagerStatus:
        """Read everything; raises StoreError, LockUnknown among them."""
        found = self.rows.status()
        return replace(found, live=self._as_seen(found.live), backup=self._as_seen(found.backup))

    def look(self) -> tuple[NodeManagerStatus, StoreError | None]:
        """Read everything, and the rows alone where a lock cannot be asked from here, and why.

        Raises StoreError if the database does not answer.
        """
        try:
            return self.status(), None
        except (StoreUnavailable, LockUnknown) as error:
            return self.rows.status(), error

    def try_acquire_live(self) -> Lease | None:
        """Take the live lock as a node would, if nobody holds it; raises StoreError."""
        if self._as_seen(self.rows.lock_status(Lock.LIVE)).is_held:
            return None
        return self._lockers[Lock.LIVE].try_acquire()

    def renew(self, lease: Lease) -> Lease:
        """Keep a lock that was taken for as long again; raises LockLost, StoreError."""
        return self._lockers[lease.lock].renew(lease)

    def release(self, lease: Lease) -> None:
        """Give a lock back that was taken; raises StoreError."""
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
