"""What the node manager of a database is made of: connections, timers, holder id, presence lock."""

from dataclasses import dataclass

from orthia.config.store_rules import lease_query_timeout
from orthia.config.store_settings import DatabaseStoreSettings
from orthia.database import Database, PresenceLock, fold_table_name, presence_lock
from orthia.nodemanager.locks.abc import NodeManagerStore
from orthia.nodemanager.locks.holder_id import HolderId, Timers
from orthia.nodemanager.locks.lockers import kind_of
from orthia.nodemanager.locks.sql_store import SqlNodeManagerStore

_MAX_POLL_SECONDS = 0.5
MIN_POLL_SECONDS = 0.02


def poll_seconds(renew_period_ms: int) -> float:
    """Return how often a waiting node looks: a quarter of the renew period, half a second at most.

    An orderly hand-over costs half of it on average.
    """
    return min(_MAX_POLL_SECONDS, max(MIN_POLL_SECONDS, renew_period_ms / 4000))


def idle_limit_ms(expiration_ms: int) -> int:
    """Return for how long a transaction of the node manager may stand still in the server.

    A process that freezes between an UPDATE and its COMMIT holds the row, and whoever waits for
    the row waits with it. The server ends that transaction well before the lease expires, so that
    the successor finds the row free. More than a renew period, so that no idle session is hit
    where the DBMS counts idleness outside of transactions too.
    """
    return expiration_ms // 2


def timers_of(store: DatabaseStoreSettings) -> Timers:
    """Return the timers that a node with these settings publishes with its lease."""
    return Timers(store.jdbc_lock_renew_period, store.jdbc_lock_expiration)


def new_holder_id(store: DatabaseStoreSettings, name: str) -> HolderId:
    """Return who the node ``name`` is in this life of its process."""
    return HolderId.new(
        getattr(store.locker, "lease_holder_id", None) or name,
        crash_detection=store.crash_detection,
        kind=kind_of(store),
        timers=None if kind_of(store) else timers_of(store),
    )


def presence_lock_of(database: Database, store: DatabaseStoreSettings) -> PresenceLock | None:
    """Return the lock that is let go with its process; None without crash detection."""
    if not store.crash_detection:
        return None
    table = fold_table_name(database.dialect, store.node_manager_store_table_name)
    return presence_lock(database, f"{table}-presence", query_timeout_ms=store.jdbc_network_timeout)


@dataclass(frozen=True)
class Stores:
    """The store through the connections that must not wait for each other."""

    live: NodeManagerStore
    backup: NodeManagerStore
    shared: NodeManagerStore
    fence: NodeManagerStore

    @classmethod
    def of(cls, database: Database, store: DatabaseStoreSettings) -> "Stores":
        """Return those of a database; connects nowhere yet."""

        def through(purpose: str, query_timeout_ms: int) -> NodeManagerStore:
            engine = database.dedicated_engine(
                purpose,
                query_timeout_ms=query_timeout_ms,
                idle_in_transaction_ms=idle_limit_ms(store.jdbc_lock_expiration),
            )
            return SqlNodeManagerStore(database, store, engine)

        timeout_ms = lease_query_timeout(store)
        return cls(
            live=through("live-lock", timeout_ms),
            backup=through("backup-lock", timeout_ms),
            shared=through("shared-state", store.jdbc_network_timeout),
            # The fence waits for the batch in flight, or for that to be ended.
            fence=through("fence", store.jdbc_lock_expiration),
        )
