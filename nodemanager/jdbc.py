"""The node manager of a database store, as its settings ask for it."""

from collections.abc import Callable
from pathlib import Path

from orthia.config.clock import monotonic_seconds
from orthia.config.lockers import with_locker
from orthia.config.settings import Role
from orthia.config.store_settings import DatabaseStoreSettings
from orthia.database import Database
from orthia.nodemanager.events import Event
from orthia.nodemanager.failover_log import FailoverLog, FailoverLogTable
from orthia.nodemanager.locks.lease import Lock
from orthia.nodemanager.locks.lockers import LockHolder, lockers_of
from orthia.nodemanager.locks.reports import SqlReportStore
from orthia.nodemanager.manager import JdbcNodeManager
from orthia.nodemanager.stores import Stores, new_holder_id, presence_lock_of


def jdbc_node_manager(
    store: DatabaseStoreSettings,
    *,
    name: str,
    role: Role = Role.LIVE,
    listener: Callable[[Event], None] | None = None,
    clock: Callable[[], float] = monotonic_seconds,
    database: Database | None = None,
    log_path: Path | None = None,
    newest_token: Callable[[], int] = lambda: 0,
) -> JdbcNodeManager:
    """Make the node manager of this ``database-store``; connects nowhere yet.

    Raises ConfigurationError if its locker is not available. ``newest_token`` says which token a
    journal outside of this database was last opened under: the next is above it.

    ``listener`` hears every event, on the thread it happens on. ``log_path`` is the failover log's
    file. Without ``database`` the node manager opens one of its own, which ``stop`` closes.
    """
    store = with_locker(store)
    own_database = database is None
    if database is None:
        database = Database.from_settings(store)
    stores = Stores.of(database, store)
    holder_id = new_holder_id(store, name)
    lockers = lockers_of(
        store,
        database,
        {Lock.LIVE: stores.live, Lock.BACKUP: stores.backup},
        LockHolder(name, holder_id, clock, newest_token),
    )
    log = FailoverLog(
        node_name=name,
        holder_id=holder_id,
        role=role.value,
        path=log_path,
        table=FailoverLogTable(database, store),
        listener=listener,
    )
    return JdbcNodeManager(
        stores,
        store,
        lockers,
        log=log,
        holder_id=holder_id,
        presence=presence_lock_of(database, store),
        reports=SqlReportStore(database, store),
        clock=clock,
        on_stopped=database.dispose if own_database else lambda: None,
    )
