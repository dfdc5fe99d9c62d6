"""What a ``locker`` makes of a store's settings, and the rules its timers must keep.

With K = ``lockKeepAlivePeriod`` and A = ``lockAcquireSleepInterval`` (milliseconds):

* ``lease-database-locker``: K is the renew period and A the expiration of the leases, as in
  Classic, under the rules of both (``orthia.config.rules``). Classic's own defaults, a lease of 10
  s that is renewed every 30 s, break them and are refused.
* every other locker: the holder proves every K that it still has the lock; without such a proof
  within ``jdbc-lock-expiration``, or 3 K if that is longer, it stops. A is how often a waiting node
  tries. With K = 0 nothing is ever proved.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

from orthia.config.dialects import Dialect
from orthia.config.settings import Role
from orthia.config.store_settings import (
    DatabaseLockerSettings,
    DatabaseStoreSettings,
    FileStoreSettings,
    InDatabaseLockerSettings,
    LeaseDatabaseLockerSettings,
    LockerSettings,
    SharedFileLockerSettings,
)

PROOFS_IN_A_VALIDITY: Final = 3
"""Keep-alive periods without a proof after which a lock counts as lost."""
MINIMUM_KEEP_ALIVE: Final = 100
"""Milliseconds: a statement that proves the lock has no more than a period to answer."""
_PATIENT: Final = -1


def keeps_leases(store: DatabaseStoreSettings) -> bool:
    """Return whether leases alone decide who is live: without a locker, or with that of leases."""
    return store.locker is None or isinstance(store.locker, LeaseDatabaseLockerSettings)


def with_locker(store: DatabaseStoreSettings) -> DatabaseStoreSettings:
    """Return ``store`` with the timers and names its locker gives it; done twice it is the same."""
    locker = store.locker
    if locker is None:
        return store
    keep_alive = locker.lock_keep_alive_period
    if keeps_leases(store):
        expiration = locker.lock_acquire_sleep_interval
    else:
        expiration = max(store.jdbc_lock_expiration, PROOFS_IN_A_VALIDITY * keep_alive)
    changed = replace(
        store,
        jdbc_lock_renew_period=keep_alive,
        jdbc_lock_expiration=expiration,
        # Other lockers notice by themselves that a process is gone.
        crash_detection=store.crash_detection and keeps_leases(store) and locker.use_lock,
    )
    if isinstance(locker, InDatabaseLockerSettings):
        if locker.lock_table_name is not None:
            changed = replace(changed, node_manager_store_table_name=locker.lock_table_name)
        if locker.max_allowable_diff_from_db_time > 0:
            allowed = locker.max_allowable_diff_from_db_time
            changed = replace(changed, jdbc_allowed_time_diff=allowed)
    return changed


def lock_database(
    store: DatabaseStoreSettings | FileStoreSettings,
) -> DatabaseStoreSettings | None:
    """Return the database that has the locks of ``store``; None if they are files."""
    if isinstance(store, DatabaseStoreSettings):
        return store
    locker = store.locker
    if not isinstance(locker, InDatabaseLockerSettings) or locker.jdbc_connection_url is None:
        return None
    return with_locker(
        DatabaseStoreSettings(
            locker.jdbc_connection_url,
            locker.jdbc_user,
            locker.jdbc_password,
            jdbc_lock_acquisition_timeout=store.journal_lock_acquisition_timeout or _PATIENT,
            locker=locker,
        )
    )


def lock_directory(store: FileStoreSettings) -> Path:
    """Return the directory that has the locks of ``store``, if no database has them."""
    if isinstance(store.locker, SharedFileLockerSettings) and store.locker.directory is not None:
        return store.locker.directory
    return store.journal_directory


def locker_problems(
    store: DatabaseStoreSettings | FileStoreSettings, role: Role
) -> Iterator[tuple[str, str]]:
    """Yield the attribute and the text of each rule the locker of ``store`` breaks."""
    locker = store.locker
    if locker is None:
        return
    yield from _timers(locker)
    if not locker.use_lock and role is Role.BACKUP:
        yield (
            "useLock",
            "is false for a backup, which would be live at once beside the live node; expected"
            " true, or a live node",
        )
    if isinstance(locker, InDatabaseLockerSettings):
        yield from _in_a_database(store, locker)
    elif isinstance(locker, SharedFileLockerSettings):
        if isinstance(store, DatabaseStoreSettings) and locker.directory is None:
            yield (
                "directory",
                "is missing; with a database-store expected a directory that the nodes share",
            )
    elif isinstance(store, FileStoreSettings):
        yield (
            "name",
            "goes with a database-store, which keeps the token; expected one, or another locker",
        )


def _timers(locker: LockerSettings) -> Iterator[tuple[str, str]]:
    keep_alive, interval = locker.lock_keep_alive_period, locker.lock_acquire_sleep_interval
    if interval < 1:
        yield "lockAcquireSleepInterval", f"is {interval} ms; expected 1 or more"
    if isinstance(locker, LeaseDatabaseLockerSettings):
        least = 2 * keep_alive + MINIMUM_KEEP_ALIVE
        if keep_alive < 1:
            yield (
                "lockKeepAlivePeriod",
                f"is {keep_alive} ms: the lease would never be renewed and end after"
                f" lockAcquireSleepInterval ({interval} ms); expected more than 0",
            )
        elif interval < least:
            yield (
                "lockKeepAlivePeriod",
                f"is {keep_alive} ms, and lockAcquireSleepInterval, how long the lease lasts, is"
                f" {interval} ms: the lease could end before it is renewed, and another node be"
                " live beside this one. Classic's defaults, 30000 and 10000, are so. Expected"
                f" lockAcquireSleepInterval of at least 2 x {keep_alive} + {MINIMUM_KEEP_ALIVE} ="
                f" {least} ms, or a shorter period, as lockKeepAlivePeriod 2000 with 10000",
            )
    elif keep_alive != 0 and keep_alive < MINIMUM_KEEP_ALIVE:
        yield (
            "lockKeepAlivePeriod",
            f"is {keep_alive} ms; expected at least {MINIMUM_KEEP_ALIVE} ms, or 0 for never",
        )


def _in_a_database(
    store: DatabaseStoreSettings | FileStoreSettings, locker: InDatabaseLockerSettings
) -> Iterator[tuple[str, str]]:
    if isinstance(store, DatabaseStoreSettings):
        if locker.jdbc_connection_url is not None:
            yield (
                "jdbcConnectionUrl",
                "is given beside a database-store; the locks and the fence are in one database, so"
                " that one can guard the other; expected none",
            )
    elif locker.jdbc_connection_url is None:
        yield (
            "jdbcConnectionUrl",
            "is missing; with the file journal expected the database that has the locks",
        )
    database = lock_database(store)
    if database is None:
        return
    sqlite = database.jdbc_connection_url.dialect is Dialect.SQLITE
    if isinstance(locker, DatabaseLockerSettings) and sqlite:
        yield (
            "database-locker",
            "cannot be used on SQLite: it locks the whole database and not a row, so that a"
            " transaction held open would lock out the node's own journal; expected"
            " <lease-database-locker> or <shared-file-locker>",
        )
    most = with_locker(database).jdbc_lock_expiration - 2 * locker.lock_keep_alive_period
    if locker.query_timeout * 1000 > most > 0:
        yield (
            "queryTimeout",
            f"is {locker.query_timeout} s, and the timers leave a statement {most} ms; expected no"
            " more than that, or -1",
        )
    if locker.max_allowable_diff_from_db_time < 0:
        yield (
            "maxAllowableDiffFromDBTime",
            f"is {locker.max_allowable_diff_from_db_time} ms; expected 0 or more",
        )


def locker_warnings(store: DatabaseStoreSettings | FileStoreSettings) -> list[str]:
    """Return warnings about the locker, to be logged at every start."""
    locker = store.locker
    if locker is None:
        return []
    found = []
    if not locker.use_lock:
        found.append(
            "useLock is false: NO LOCK IS TAKEN. For development only: a second node that starts on"
            " this store takes it away from the first, which then stops with exit code 74"
        )
    elif locker.lock_keep_alive_period == 0:
        found.append(
            "lockKeepAlivePeriod is 0: this node never looks whether it still holds its lock. If it"
            " loses it, two nodes deliver messages until this one next writes; the fence then"
            " refuses the write, and it stops with exit code 74"
        )
    if (
        isinstance(locker, DatabaseLockerSettings)
        and isinstance(store, DatabaseStoreSettings)
        and store.jdbc_connection_url.dialect is Dialect.POSTGRESQL
    ):
        found.append(
            "database-locker: on PostgreSQL a transaction that stays open keeps VACUUM from"
            " removing what was deleted since it began, so that the table of messages grows"
            " until this node is restarted; lease-database-locker has no such cost"
        )
    if isinstance(locker, InDatabaseLockerSettings) and locker.max_allowable_diff_from_db_time > 0:
        found.append(
            "maxAllowableDiffFromDBTime only says from which difference of the clocks on there is a"
            " warning: leases here never use the clock of a node"
        )
    return found
