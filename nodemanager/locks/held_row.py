"""The lock of ``database-locker``: a row, locked by a transaction that stays open.

Rows 5 and 6 of NODE_MANAGER_STORE are for nothing else, so that the renewals of rows 1 and 2, the
fence and the state, in transactions of their own, never wait for it. The server ends the
transaction when its session ends: with the process, or by the idle limit that the connection
carries, so that a node that is frozen loses its lock.
"""

import contextlib
import threading
from typing import Any, Final

from sqlalchemy import Connection, Engine, MetaData, Select, insert, select
from sqlalchemy.exc import DBAPIError
from typing_extensions import override

from orthia.config.store_settings import DatabaseStoreSettings
from orthia.database import Database, DuplicateKey, StoreError, translate_errors, write_transaction
from orthia.nodemanager.errors import LockLost
from orthia.nodemanager.locks.abc import ExclusiveLock
from orthia.nodemanager.locks.lease import Lock
from orthia.nodemanager.tables import node_manager_store

HELD_ROWS: Final = {Lock.LIVE: 5, Lock.BACKUP: 6}

_PG_LOCK_NOT_AVAILABLE: Final = "55P03"
_MYSQL_LOCK_NOT_AVAILABLE: Final = (1205, 3572)


class HeldRowLock(ExclusiveLock):
    """The lock of one row, through an engine with one connection of its own."""

    def __init__(
        self, database: Database, settings: DatabaseStoreSettings, engine: Engine, lock: Lock
    ) -> None:
        self._engine = engine
        name = settings.node_manager_store_table_name
        self._table = node_manager_store(MetaData(), name, database.dialect)
        self._row = HELD_ROWS[lock]
        self._what = f"hold row {self._row} of {self._table.name}"
        self._connection: Connection | None = None
        self._mutex = threading.Lock()

    @override
    def try_acquire(self) -> bool:
        """Begin a transaction and lock the row in it, if nobody has it locked."""
        self.release()
        with self._mutex:
            for _ in range(2):
                found = self._lock()
                if found is not None:
                    return found
                self._create_row()
        raise LockLost(f"{self._what}: somebody removes the row as soon as it is there")

    def _lock(self) -> bool | None:
        """Return whether the row was locked; None if there is none."""
        with translate_errors(self._what):
            connection = self._engine.connect()
            try:
                found = connection.execute(self._select()).first() is not None
            except DBAPIError as error:
                self._close(connection)
                if _is_taken(error):
                    return False
                raise
            except BaseException:
                self._close(connection)
                raise
        if not found:
            self._close(connection)
            return None
        self._connection = connection
        return True

    def _create_row(self) -> None:
        row = insert(self._table).values(id=self._row, holder_token=0)
        with (
            contextlib.suppress(DuplicateKey),
            write_transaction(self._engine, "create the row of the lock") as connection,
        ):
            connection.execute(row)

    def _select(self) -> Select[Any]:
        c = self._table.c
        return select(c.id).where(c.id == self._row).with_for_update(nowait=True)

    @override
    def keep_alive(self) -> None:
        """Lock the row again in the same transaction; only the one that has it can."""
        with self._mutex:
            if self._connection is None:
                raise LockLost(f"{self._what}: no transaction of this node is open")
            try:
                with translate_errors(self._what):
                    found = self._connection.execute(self._select()).first()
            except StoreError:
                self._drop()
                raise
            if found is None:
                self._drop()
                raise LockLost(f"{self._what}: the row was removed by somebody else")

    @override
    def release(self) -> None:
        with self._mutex:
            self._drop()

    @override
    def abandon(self) -> None:
        """Close the connection: the server then ends the transaction, however long that takes."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.invalidate()
            connection.close()

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            self._close(connection)

    def _close(self, connection: Connection) -> None:
        try:
            connection.rollback()
        except DBAPIError:
            connection.invalidate()
        connection.close()


def _is_taken(error: DBAPIError) -> bool:
    """Tell a row that somebody has locked from a database that does not answer."""
    if getattr(error.orig, "pgcode", None) == _PG_LOCK_NOT_AVAILABLE:
        return True
    arguments: tuple[object, ...] = getattr(error.orig, "args", ())
    return any(code in _MYSQL_LOCK_NOT_AVAILABLE for code in arguments[:1])
