"""How a batch reaches a database: one transaction, whose steps come in one order.

==========  ==============================================================================
step        what it does
==========  ==============================================================================
fence       locks the fence's row for sharing, if its token is this node's
outbox      deletes rows of the outbox, every one of which must be there
insert      rows of MESSAGES
keep        with retention, a copy of what is deleted next in the history
delete      rows of MESSAGES
moved       looks whether an application has acknowledged one of them that goes on as a copy
forget      rows of MESSAGES that are duplicate ids, which no history keeps
bodies      rows of MESSAGES that lost their last reference
times       rows of MESSAGE_TIMES, then the end of rows
links       references to large bodies, then the end of references
bindings    rows of BINDINGS, then the end of rows
counter     up to where ids are given out
commit      after which callers are told
==========  ==============================================================================

In this order a unit can delete a row that an earlier one of its batch inserts, and the history
reads a row before its deletion. ``moved`` comes after the deletion, which waits for whoever has
locked the row: an application that acknowledges a message has, until the end of its transaction. So
either that is committed by then, and found, or it waits for this transaction in turn, and then
fails, for its message is gone. A module beside this one has each step in the SQL of its DBMS, and
may have a faster way for the most frequent batches: one statement with the fence in it, which
commits itself.
"""

import contextlib
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.pool import PoolProxiedConnection
from typing_extensions import override

from orthia.database import StoreUnavailable, translate_errors
from orthia.journal.engine.abc import BatchStore
from orthia.journal.engine.batch import Batch, Marker
from orthia.journal.errors import AcknowledgedBefore, OutboxRowsGone
from orthia.journal.model.changes import Body, Row
from orthia.journal.model.moments import MessageTime
from orthia.journal.model.records import RemovalReason
from orthia.journal.model.unit import AppendedMessage
from orthia.journal.sql.statements import Statements, TableNames

Values = Sequence[object] | Mapping[str, object]


class SqlStore(BatchStore):
    """Writes batches through one connection of a driver, in autocommit but for its transactions."""

    driver_error: ClassVar[type[Exception]]
    """The root of the driver's errors."""
    loses_commits: ClassVar[bool] = True
    """Whether a connection lost during COMMIT leaves the outcome unknown."""

    def __init__(
        self, engine: Engine, names: TableNames, token: int, statements: Statements
    ) -> None:
        self._engine = engine
        self._names = names
        self._token = token
        self._sql = statements
        self._proxy: PoolProxiedConnection | None = None
        self._opened: Any = None
        """The driver's cursor of that connection; ``_use`` sets it."""

    @property
    def _cursor(self) -> Any:
        if self._opened is None:
            raise StoreUnavailable("the journal writer is not connected")
        return self._opened

    @override
    def connect(self) -> None:
        self._disconnect()
        try:
            with translate_errors("connect the journal writer"):
                self._proxy = self._engine.raw_connection()
                self._use(self._proxy.driver_connection)
        except BaseException:
            self._disconnect()  # the pool has one connection, which others may need next
            raise

    @override
    def store(self, batch: Batch) -> None:
        if not self._store_at_once(batch):
            self._in_transaction("journal batch", partial(self._change, batch))

    @override
    def is_stored(self, marker: Marker) -> bool:
        statement = self._sql.find[marker.table]
        with translate_errors("look for a row of a journal batch"):
            self._execute(statement, (marker.seq, self._token))
            return bool(self._cursor.fetchall())

    @override
    def duplicate_ids(self, cache_id: int) -> Iterable[tuple[int, bytes]]:
        with translate_errors("read the duplicate ids of an address"):
            self._execute(self._sql.duplicate_ids, (cache_id,))
            rows = self._cursor.fetchall()
        return [(int(seq), bytes(record)) for seq, record in rows]

    @override
    def confirm(self) -> None:
        self._in_transaction("journal confirmation", partial(self._execute, self._sql.confirm))

    @override
    def close(self) -> None:
        self._disconnect()

    def _disconnect(self) -> None:
        if self._proxy is not None:
            with contextlib.suppress(SQLAlchemyError, self.driver_error):
                self._proxy.invalidate()
            self._proxy = self._opened = None

    def _in_transaction(self, what: str, work: Callable[[], None]) -> None:
        """Prove the fence, do ``work``, and commit it; raises Fenced."""
        try:
            with translate_errors(f"store a {what}"):
                self._begin()
                work()
            with translate_errors(f"commit a {what}", during_commit=self.loses_commits):
                self._commit()
        except BaseException:
            self._roll_back()
            raise

    def _change(self, batch: Batch) -> None:
        """Make the changes of a batch, in the order of the module's table."""
        names = self._names
        if batch.outbox_rows:
            self._take_from_outbox(batch.outbox_rows)
        if batch.messages or batch.rows:
            self._insert(names.messages, batch.messages, batch.rows, batch.payload_bytes)
            if batch.only_messages:
                return  # most batches have no further steps
        if batch.deletes:
            if names.history is not None:
                self._keep(batch.deletes_by_reason())
            self._delete(names.messages, batch.deletes)
        if batch.moved:
            acknowledged = self._acknowledged(batch.moved)
            if acknowledged:
                raise AcknowledgedBefore(acknowledged)
        if batch.forgotten:
            self._delete(names.messages, batch.forgotten)
        if batch.bodies:
            self._delete_bodies(set(batch.bodies))
        if batch.timed:
            self._put_times(batch.timed)
        if batch.untimed:
            self._delete(names.times, batch.untimed)
        if batch.linked:
            self._execute_each(self._sql.link, batch.linked)
        if batch.unlinked:
            self._execute_each(self._sql.unlink, [one._asdict() for one in batch.unlinked])
        if batch.binding_rows:
            self._insert(names.bindings, (), batch.binding_rows, batch.payload_bytes)
        if batch.unbound:
            self._delete(names.bindings, batch.unbound)
        if batch.id_limit:
            self._execute(self._sql.reserve, (batch.id_limit, batch.id_limit))

    def _take_from_outbox(self, ids: Sequence[int]) -> None:
        """Delete rows of the outbox; raises OutboxRowsGone if one is not there."""
        there = self._take(ids)
        if there < len(ids):
            raise OutboxRowsGone(all_of_them=not there)

    # --- steps in the SQL of each DBMS

    @abstractmethod
    def _use(self, connection: Any) -> None:
        """Prepare a new driver connection for batches."""

    def _store_at_once(self, batch: Batch) -> bool:  # noqa: ARG002 - a default: not at all
        """Store a batch by one statement, if possible; return whether it did. Raises Fenced."""
        return False

    @abstractmethod
    def _begin(self) -> None:
        """Begin a transaction and prove the fence; raises Fenced."""

    @abstractmethod
    def _insert(
        self,
        table: str,
        messages: Sequence[AppendedMessage],
        rows: Sequence[Row],
        payload_bytes: int,
    ) -> None:
        """Insert messages of one queue each, and rows, of at most this many bytes."""

    @abstractmethod
    def _keep(self, seqs_by_reason: Mapping[RemovalReason, list[int]]) -> None:
        """Copy messages into the history; an existing row stays unchanged."""

    @abstractmethod
    def _delete(self, table: str, seqs: Sequence[int]) -> None:
        """Delete rows by their keys."""

    @abstractmethod
    def _take(self, ids: Sequence[int]) -> int:
        """Delete rows of the outbox; return how many were there."""

    def _acknowledged(self, seqs: Sequence[int]) -> Collection[int]:  # noqa: ARG002 - a default
        """Return which messages applications have acknowledged by a commit before this moment.

        The rows of the messages are deleted by this transaction. Without locking any row of
        ORTHIA_ACKS: whoever has inserted one waits for this transaction.
        """
        return ()

    @abstractmethod
    def _delete_bodies(self, bodies: Collection[Body]) -> None:
        """Delete the bodies that have no reference left."""

    @abstractmethod
    def _put_times(self, times: Sequence[MessageTime]) -> None:
        """Insert or replace rows of MESSAGE_TIMES, the last one of each seq."""

    # --- the driver's cursor

    def _execute(self, statement: str, values: Values = ()) -> None:
        """Execute one statement."""
        self._cursor.execute(statement, values)

    def _execute_each(self, statement: str, values: Iterable[Values]) -> None:
        """Execute one statement for each of ``values``."""
        self._cursor.executemany(statement, values)

    def _commit(self) -> None:
        """Commit."""
        self._execute("COMMIT")

    def _roll_back(self) -> None:
        """Roll back an open transaction; never raises a driver's error."""
        with contextlib.suppress(self.driver_error):
            self._execute("ROLLBACK")
