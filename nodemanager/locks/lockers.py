"""The lockers that a store's ``locker`` asks for."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from orthia.config.lockers import keeps_leases
from orthia.config.store_rules import lease_query_timeout
from orthia.config.store_settings import (
    CustomLockerSettings,
    DatabaseLockerSettings,
    DatabaseStoreSettings,
    SharedFileLockerSettings,
)
from orthia.database import Database
from orthia.nodemanager.locks.abc import (
    ExclusiveLock,
    Locker,
    LockerContext,
    NodeManagerStore,
    OnDatabaseTime,
)
from orthia.nodemanager.locks.custom import third_party_locker
from orthia.nodemanager.locks.exclusive_locker import ExclusiveLocker, NoLock
from orthia.nodemanager.locks.held_row import HeldRowLock
from orthia.nodemanager.locks.holder_id import HolderId
from orthia.nodemanager.locks.lease import Lock
from orthia.nodemanager.locks.lease_locker import LeaseDatabaseLocker
from orthia.nodemanager.locks.lock_directory import DirectoryRow, LockDirectory
from orthia.nodemanager.locks.shared_file import SharedFileLock

NO_LOCK: Final = "no-lock"
Lockers = Callable[[OnDatabaseTime], Mapping[Lock, Locker]]
"""Makes the two lockers of a node, once there is somebody to hear the database's time."""


@dataclass(frozen=True)
class LockHolder:
    """Who is to hold the locks, and what it measures time with."""

    name: str
    holder_id: HolderId
    clock: Callable[[], float]
    above: Callable[[], int] = lambda: 0
    """The greatest token the journal was ever opened under, as far as it knows."""

    def above_for(self, lock: Lock) -> Callable[[], int]:
        """Return what tokens of ``lock`` are greater than: the journal's, if it is the live one."""
        return self.above if lock is Lock.LIVE else lambda: 0


def kind_of(store: DatabaseStoreSettings) -> str:
    """Return what holder ids say of the locker; nothing of one that keeps leases."""
    locker = store.locker
    if locker is not None and not locker.use_lock:
        return NO_LOCK
    if isinstance(locker, DatabaseLockerSettings):
        return "database-locker"
    if isinstance(locker, SharedFileLockerSettings):
        return "shared-file-locker"
    return locker.name if isinstance(locker, CustomLockerSettings) else ""


def lockers_of(
    store: DatabaseStoreSettings,
    database: Database,
    stores: Mapping[Lock, NodeManagerStore],
    holder: LockHolder,
) -> Lockers:
    """Return the maker of the lockers of ``store``; raises ConfigurationError."""
    if store.locker is None or (store.locker.use_lock and keeps_leases(store)):
        return leases(stores, holder, expiration_ms=store.jdbc_lock_expiration)
    exclusive = {lock: exclusive_lock(store, database, lock, holder) for lock in Lock}

    def make(on_database_time: OnDatabaseTime) -> Mapping[Lock, Locker]:
        return {
            lock: ExclusiveLocker(
                stores[lock],
                lock,
                holder.holder_id,
                exclusive[lock],
                period_ms=store.jdbc_lock_renew_period,
                expiration_ms=store.jdbc_lock_expiration,
                clock=holder.clock,
                on_database_time=on_database_time,
                above=holder.above_for(lock),
            )
            for lock in Lock
        }

    return make


def leases(
    stores: Mapping[Lock, NodeManagerStore], holder: LockHolder, *, expiration_ms: int
) -> Lockers:
    """Return the maker of lockers that keep leases only."""

    def make(on_database_time: OnDatabaseTime) -> Mapping[Lock, Locker]:
        return {
            lock: LeaseDatabaseLocker(
                stores[lock],
                lock,
                holder.holder_id,
                expiration_ms=expiration_ms,
                clock=holder.clock,
                on_database_time=on_database_time,
                above=holder.above_for(lock),
            )
            for lock in Lock
        }

    return make


def exclusive_lock(
    store: DatabaseStoreSettings, database: Database, lock: Lock, holder: LockHolder
) -> ExclusiveLock:
    """Return the exclusive lock of ``store.locker``; raises ConfigurationError."""
    locker = store.locker
    if locker is None or not locker.use_lock:
        return NoLock()
    if isinstance(locker, DatabaseLockerSettings):
        engine = database.dedicated_engine(
            f"held-{lock.name.lower()}-lock",
            query_timeout_ms=lease_query_timeout(store),
            idle_in_transaction_ms=held_idle_limit_ms(store),
        )
        return HeldRowLock(database, store, engine, lock)
    if isinstance(locker, SharedFileLockerSettings) and locker.directory is not None:
        directory = LockDirectory(locker.directory, DirectoryRow(database, store))
        return SharedFileLock(directory, lock, holder.holder_id)
    if isinstance(locker, CustomLockerSettings):
        context = LockerContext(lock, holder.name, holder.holder_id, locker.properties)
        return third_party_locker(locker.name)(context)
    raise NotImplementedError(f"{locker} keeps no exclusive lock")


def held_idle_limit_ms(store: DatabaseStoreSettings) -> int | None:
    """Return after how long the server ends the transaction of a holder that gives no sign.

    As long as the holder trusts its lock without a proof: it stops before the server lets go. In
    whole seconds, as MariaDB counts; none for a holder that never gives a sign.
    """
    if store.jdbc_lock_renew_period == 0:
        return None
    return -(-store.jdbc_lock_expiration // 1000) * 1000
