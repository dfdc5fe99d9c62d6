"""The statements on NODE_MANAGER_STORE; each compares time by the database's clock only."""

from collections.abc import Callable
from datetime import datetime
from typing import Any, TypeVar

from sqlalchemy import (
    ColumnElement,
    Connection,
    Engine,
    MetaData,
    Row,
    Select,
    String,
    Update,
    and_,
    or_,
    select,
    type_coerce,
    update,
)
from typing_extensions import override

from orthia.config.store_settings import DatabaseStoreSettings
from orthia.database import (
    Blocker,
    Database,
    Dialect,
    NoRoom,
    UnreadableTime,
    db_now,
    db_now_plus_ms,
    seconds_until,
    translate_errors,
    write_transaction,
)
from orthia.database.sessions import (
    FENCED_PURPOSES,
    end_marked_mysql_sessions,
    end_postgresql_blockers,
    fenced_mark,
    session_id,
)
from orthia.database.sqlite_reserve import LeaseReserve
from orthia.database.sqltime import read_sqlite_time
from orthia.nodemanager.errors import RowMissing
from orthia.nodemanager.locks.abc import Acquired, NodeManagerStore
from orthia.nodemanager.locks.holder_id import HolderId
from orthia.nodemanager.locks.lease import Lock, LockStatus, NodeManagerStatus, State
from orthia.nodemanager.tables import node_manager_store

_Found = TypeVar("_Found")
_STATE_ROW = 0
_NODE_ID_ROW = 3
_FENCE_ROW = 4
_ROWS = {
    _STATE_ROW: "the shared state",
    int(Lock.LIVE): "the live lock",
    int(Lock.BACKUP): "the backup lock",
    _NODE_ID_ROW: "the node id",
    _FENCE_ROW: "the fence",
}


class SqlNodeManagerStore(NodeManagerStore):
    """NODE_MANAGER_STORE through one engine: what must not wait for others gets one of its own."""

    def __init__(self, database: Database, settings: DatabaseStoreSettings, engine: Engine) -> None:
        self._engine = engine
        self._database = database
        self._fencing_session: int | None = None
        """The session that waits for the fence, while one does."""
        self._urgent = database.turnstile.urgent
        self._reserve: LeaseReserve | None = None
        if database.dialect is Dialect.SQLITE and engine.url.database is not None:
            self._reserve = LeaseReserve(engine.url.database)
        name = settings.node_manager_store_table_name
        self._table = node_manager_store(MetaData(), name, database.dialect)

    def _write(self, what: str, work: Callable[[Connection], _Found]) -> _Found:
        """Do ``work`` in a transaction, before the journal's next batch; return what it returns.

        Where there is no room for it on a disk it takes some that is kept for that.
        """
        try:
            with self._urgent(), write_transaction(self._engine, what) as connection:
                found = work(connection)
        except NoRoom:
            reserve = self._reserve
            if reserve is None:
                raise
            with self._urgent(), write_transaction(self._engine, what) as connection:
                reserve.give()  # by now nobody else writes to the database
                return work(connection)
        return found

    def _held_by(self, lock: Lock, holder_id: str, token: int) -> Any:
        c = self._table.c
        return and_(c.id == int(lock), c.holder_id == holder_id, c.holder_token == token)

    def _update_one(self, connection: Connection, statement: Update) -> bool:
        return connection.execute(statement).rowcount == 1

    @override
    def try_acquire(self, lock: Lock, holder_id: str, expiration_ms: int) -> Acquired | None:
        """Take the lock if it is free or expired, by one UPDATE."""
        c = self._table.c
        return self._take(
            lock,
            holder_id,
            expiration_ms,
            or_(
                c.holder_id.is_(None),
                c.holder_expiration_time.is_(None),
                c.holder_expiration_time <= db_now(),
                c.holder_id == holder_id,
            ),
            f"acquire the {lock.name.lower()} lock",
        )

    @override
    def take_over(
        self, lock: Lock, holder_id: str, expiration_ms: int, *, seen: LockStatus
    ) -> Acquired | None:
        """Take the lock if nothing has changed, by one UPDATE."""
        c = self._table.c
        return self._take(
            lock,
            holder_id,
            expiration_ms,
            and_(
                c.holder_id == seen.holder_id,
                c.holder_token == seen.token,
                c.holder_expiration_time == seen.expiration_time,
            ),
            f"take over the {lock.name.lower()} lock",
        )

    def _take(
        self,
        lock: Lock,
        holder_id: str,
        expiration_ms: int,
        condition: ColumnElement[bool],
        what: str,
    ) -> Acquired | None:
        c = self._table.c
        take = (
            update(self._table)
            .where(c.id == int(lock), condition)
            .values(
                holder_id=holder_id,
                holder_expiration_time=db_now_plus_ms(expiration_ms),
                holder_token=c.holder_token + 1,
            )
        )

        def acquire(connection: Connection) -> Acquired | None:
            self._refuse_unreadable_times(connection)
            if not self._update_one(connection, take):
                return None
            read = select(c.holder_token, db_now()).where(c.id == int(lock))
            token, now = connection.execute(read).one()
            return Acquired(int(token), now)

        return self._write(what, acquire)

    @override
    def renew(self, lock: Lock, holder_id: str, token: int, expiration_ms: int) -> datetime | None:
        """Set the expiry anew, by one UPDATE that matches holder and token."""
        extend = (
            update(self._table)
            .where(self._held_by(lock, holder_id, token))
            .values(holder_expiration_time=db_now_plus_ms(expiration_ms))
        )

        def renew(connection: Connection) -> datetime | None:
            if not self._update_one(connection, extend):
                there = select(self._table.c.id).where(self._table.c.id == int(lock))
                if connection.execute(there).first() is None:
                    raise self._missing(int(lock))
                return None
            now: datetime = connection.execute(select(db_now())).scalar_one()
            return now

        renewed = self._write(f"renew the {lock.name.lower()} lock", renew)
        if self._reserve is not None:
            self._reserve.fill()
        return renewed

    @override
    def raise_token(self, lock: Lock, holder_id: str, token: int, to: int) -> bool:
        """Write the token, by one UPDATE that matches holder and token."""
        change = (
            update(self._table).where(self._held_by(lock, holder_id, token)).values(holder_token=to)
        )
        what = f"raise the token of the {lock.name.lower()} lock"
        return self._write(
            what, lambda connection: token < to and self._update_one(connection, change)
        )

    @override
    def release(self, lock: Lock, holder_id: str, token: int) -> bool:
        """Free the lock, by one UPDATE that matches holder and token."""
        free = (
            update(self._table)
            .where(self._held_by(lock, holder_id, token))
            .values(holder_id=None, holder_expiration_time=None)
        )
        what = f"release the {lock.name.lower()} lock"
        released = self._write(what, lambda connection: self._update_one(connection, free))
        if self._reserve is not None:
            self._reserve.remove()  # the holder of the other lease reserves the space again
        return released

    @override
    def advance_fence(self, holder_id: str, token: int) -> bool:
        """Lock row 4, which waits for journal transactions that share it, check row 1, write.

        The check comes second because the wait may outlast the lease.
        """
        c = self._table.c
        fence = select(c.holder_token).where(c.id == _FENCE_ROW).with_for_update()
        held = select(c.id).where(
            self._held_by(Lock.LIVE, holder_id, token), c.holder_expiration_time > db_now()
        )
        advance = (
            update(self._table)
            .where(c.id == _FENCE_ROW)
            .values(holder_token=token, holder_id=holder_id)
        )

        def advance_it(connection: Connection) -> bool:
            self._fencing_session = session_id(connection)
            try:
                fenced = connection.execute(fence).scalar()
            finally:
                self._fencing_session = None
            if fenced is None:
                raise self._missing(_FENCE_ROW)
            if fenced > token or connection.execute(held).first() is None:
                return False
            return self._update_one(connection, advance)

        return self._write("advance the fence", advance_it)

    @override
    def end_fence_blockers(self, holder_id: str, token: int) -> list[Blocker]:
        """Ask the server who is in the way, by the pool; see ``orthia.database.sessions``."""
        waiting = self._fencing_session
        if waiting is None:
            return []
        c = self._table.c
        held = select(c.id).where(
            self._held_by(Lock.LIVE, holder_id, token), c.holder_expiration_time > db_now()
        )
        what = "end the sessions that keep the fence waiting"
        with translate_errors(what), self._database.engine.connect() as connection:
            if self._database.dialect is Dialect.POSTGRESQL:
                return end_postgresql_blockers(connection, waiting, only_while=held.exists())
            of = select(c.holder_token).where(c.id == _FENCE_ROW, c.holder_token < token)
            former = connection.execute(of.where(held.exists())).scalar()
            if former is None:
                return []
            marks = [fenced_mark(self._table.name, one, former) for one in FENCED_PURPOSES]
            return end_marked_mysql_sessions(connection, marks)

    @override
    def write_state(self, state: State, *, expected: State | None = None) -> bool:
        c = self._table.c
        change = update(self._table).where(c.id == _STATE_ROW).values(state=state.value)
        if expected is not None:
            change = change.where(c.state == expected.value)
        return self._write("write the state", lambda one: self._update_one(one, change))

    @override
    def write_state_as_live(self, state: State, holder_id: str, token: int) -> bool:
        """Write row 0 in the transaction that finds row 1 held, and keeps it so until the end."""
        guard = select(self._table.c.id).where(self._held_by(Lock.LIVE, holder_id, token))
        c = self._table.c
        change = update(self._table).where(c.id == _STATE_ROW).values(state=state.value)

        def write(connection: Connection) -> bool:
            if connection.execute(guard.with_for_update(read=True)).first() is None:
                return False
            if not self._update_one(connection, change):
                raise self._missing(_STATE_ROW)
            return True

        return self._write("write the state", write)

    @override
    def create_node_id(self, candidate: str) -> str:
        """Create the node id by one UPDATE that only the first node's can match."""
        c = self._table.c
        create = (
            update(self._table)
            .where(c.id == _NODE_ID_ROW, c.node_id.is_(None))
            .values(node_id=candidate)
        )
        with self._urgent(), write_transaction(self._engine, "create the node id") as connection:
            connection.execute(create)
            read = select(c.node_id).where(c.id == _NODE_ID_ROW)
            found = connection.execute(read).first()
            if found is None:
                raise self._missing(_NODE_ID_ROW)
            return str(found.node_id)

    @override
    def status(self) -> NodeManagerStatus:
        with (
            translate_errors("read the node manager's store"),
            self._engine.connect() as connection,
        ):
            self._refuse_unreadable_times(connection)
            rows = {row.id: row for row in connection.execute(self._select_all())}
        missing = [row for row in _ROWS if row not in rows]
        if missing:
            raise self._missing(*missing)
        return NodeManagerStatus(
            state=State(rows[_STATE_ROW].state),
            live=_lock_status(Lock.LIVE, rows[Lock.LIVE]),
            backup=_lock_status(Lock.BACKUP, rows[Lock.BACKUP]),
            node_id=rows[_NODE_ID_ROW].node_id,
            fence_token=int(rows[_FENCE_ROW].holder_token),
            database_time=rows[_STATE_ROW].now,
        )

    def _refuse_unreadable_times(self, connection: Connection) -> None:
        """Raise UnreadableTime, naming row, column and value, where one is in another form.

        Only SQLite keeps instants as texts. One that a person wrote in another form compares as
        expired or as valid for ever: a lease is not to be judged by it.
        """
        if self._database.dialect is not Dialect.SQLITE:
            return
        c = self._table.c
        written = type_coerce(c.holder_expiration_time, String)
        read = select(c.id, written.label("written")).where(written.is_not(None))
        for row in connection.execute(read):
            try:
                read_sqlite_time(row.written)
            except UnreadableTime as error:
                raise UnreadableTime(
                    f"table {self._table.name}, row {row.id} ({_ROWS.get(row.id, 'unknown')}),"
                    f" column {c.holder_expiration_time.name}: {error}, or NULL if nobody holds it."
                    " Somebody wrote it by hand; mend it with SQLite's own client"
                ) from None

    def _missing(self, *rows: int) -> RowMissing:
        named = " and ".join(f"row {row} ({_ROWS[row]})" for row in rows)
        return RowMissing(
            f"table {self._table.name} has no {named}: somebody removed it. Stop the nodes, run"
            " `orthia db upgrade`, which puts missing rows back, and start them again"
        )

    def _select_all(self) -> Select[Any]:
        c = self._table.c
        left = seconds_until(c.holder_expiration_time).label("left")
        return select(self._table, left, db_now().label("now")).where(c.id <= _FENCE_ROW)


def _lock_status(lock: Lock, row: Row[Any]) -> LockStatus:
    left = None if row.holder_id is None or row.left is None else float(row.left)
    holder_id = None if row.holder_id is None else HolderId(row.holder_id)
    return LockStatus(lock, holder_id, int(row.holder_token), left, row.holder_expiration_time)
