"""Walks a queue in the order of its index, (queue_id, seq), whatever the planner estimates.

A broker's tables fill and empty faster than a DBMS gathers statistics. A planner that takes a queue
for tiny fetches and sorts all of it for the first hundred rows; one that takes it for most of the
table walks the primary key through all other queues. So hints force the index.
"""

from collections.abc import Callable
from typing import Any, TypeVar

from sqlalchemy import (
    Case,
    ColumnElement,
    Connection,
    FromClause,
    Select,
    Table,
    case,
    func,
    select,
    text,
    tuple_,
)

from orthia.config.dialects import Dialect
from orthia.journal.errors import CorruptRecord
from orthia.journal.model.records import UserRecordType
from orthia.journal.model.windows import StoredMessage, stored_message
from orthia.journal.sql.tables import queue_index_name

WALK_SETTINGS = {
    "enable_bitmapscan": "off",
    "enable_seqscan": "off",
    "enable_sort": "off",
    # Compiling a statement would cost a hundred times as much as running it.
    "jit": "off",
}
"""Settings of PostgreSQL for a walk."""
LAST_SEQ = 2**63 - 1
"""An ``up_to_seq`` above every row."""

_Value = TypeVar("_Value")
_Rows = TypeVar("_Rows", bound=Select[Any])


class QueueWalk:
    """Builds the statements that walk queues of one MESSAGES table."""

    def __init__(self, messages: Table, dialect: Dialect) -> None:
        self.messages = messages
        self._dialect = dialect
        self._index = queue_index_name(messages.name, dialect)

    def prepare(self, connection: Connection) -> None:
        """Prepare a transaction of the shared pool for a walk."""
        if self._dialect is Dialect.POSTGRESQL:
            settings = (f"SET LOCAL {name} = {value}" for name, value in WALK_SETTINGS.items())
            connection.execute(text("; ".join(settings)))

    def stretch(self, statement: _Rows, queue_id: int, after_seq: int, up_to_seq: int) -> _Rows:
        """Restrict ``statement`` to a queue's ``after_seq < seq <= up_to_seq``, oldest first."""
        columns = self.messages.c
        match self._dialect:
            case Dialect.POSTGRESQL:
                # A row-value comparison, unlike one of columns, is a range of this index only.
                place = tuple_(columns.queue_id, columns.seq)
                statement = statement.where(
                    place > tuple_(queue_id, after_seq), place <= tuple_(queue_id, up_to_seq)
                )
            case Dialect.MYSQL | Dialect.SQLITE:
                statement = statement.where(
                    columns.queue_id == queue_id, columns.seq > after_seq, columns.seq <= up_to_seq
                )
                statement = statement.with_hint(
                    self.messages, f"FORCE INDEX ({self._index})", "mysql"
                ).with_hint(self.messages, f"INDEXED BY {self._index}", "sqlite")
        return statement.order_by(columns.queue_id, columns.seq)

    def beyond(self, statement: _Rows, queue_id: int, seq: int) -> _Rows:
        """Restrict ``statement`` to rows of queues after a position, in the order of the index."""
        columns = self.messages.c
        place = tuple_(columns.queue_id, columns.seq)
        match self._dialect:
            case Dialect.POSTGRESQL:
                # The upper bound excludes rows without a queue, which come last.
                last = tuple_(LAST_SEQ, LAST_SEQ)
                statement = statement.where(place > tuple_(queue_id, seq), place <= last)
            case Dialect.SQLITE:
                statement = statement.where(place > tuple_(queue_id, seq)).with_hint(
                    self.messages, f"INDEXED BY {self._index}", "sqlite"
                )
            case Dialect.MYSQL:
                # A row-value comparison is no range of the index here.
                rest = (columns.queue_id == queue_id) & (columns.seq > seq)
                statement = statement.where(rest | (columns.queue_id > queue_id)).with_hint(
                    self.messages, f"FORCE INDEX ({self._index})", "mysql"
                )
        return statement.order_by(columns.queue_id, columns.seq)

    def whole(self) -> Select[Any]:
        """Select the columns that ``read_messages`` needs, without a condition."""
        columns = self.messages.c
        return select(
            columns.seq,
            columns.id,
            columns.user_record_type,
            columns.epoch,
            columns.record,
            self.of_body(lambda body: body.c.record),
        )

    def payload_size(self) -> ColumnElement[int]:
        """Return the size of a message's payload: of its record, or of the body it refers to."""
        body_size = self.of_body(lambda body: func.length(body.c.record))
        return func.coalesce(body_size, func.length(self.messages.c.record))

    def large_record(self) -> Case[bytes]:
        """Return the record, or that of the body referred to, of a large message; else NULL."""
        columns = self.messages.c
        is_large = columns.user_record_type == int(UserRecordType.ADD_LARGE_MESSAGE)
        body = self.messages.alias("body")
        found = self._of_key(select(body.c.record), body, columns.id).where(
            body.c.user_record_type == int(UserRecordType.ADD_LARGE_MESSAGE)
        )
        is_reference = columns.user_record_type == int(UserRecordType.ADD_REF)
        return case(
            (is_large, columns.record),
            (is_reference, found.correlate(self.messages).scalar_subquery()),
        )

    def of_body(self, value: Callable[[FromClause], ColumnElement[_Value]]) -> Case[_Value]:
        """Return ``value`` of a reference's body row; NULL for a row that is no reference.

        A scalar subquery under CASE: every DBMS looks the body up by its key, row by row, and only
        for references. A join could be planned as a hash of the whole table.
        """
        body = self.messages.alias("body")
        found = self._of_key(select(value(body)), body, self.messages.c.id)
        is_reference = self.messages.c.user_record_type == int(UserRecordType.ADD_REF)
        return case((is_reference, found.correlate(self.messages).scalar_subquery()))

    def _of_key(self, statement: _Rows, body: FromClause, seq: ColumnElement[int]) -> _Rows:
        """Restrict ``statement`` to the row of this key, whatever a planner believes."""
        if self._dialect is not Dialect.POSTGRESQL:
            return statement.where(body.c.seq == seq)
        return statement.where(body.c.seq.between(seq, seq)).order_by(body.c.seq).limit(1)


def read_messages(
    connection: Connection, ask: Select[Any]
) -> tuple[list[StoredMessage], list[CorruptRecord]]:
    """Return the messages that ``QueueWalk.whole`` selects, and the errors of corrupt ones."""
    messages: list[StoredMessage] = []
    corrupt: list[CorruptRecord] = []
    for seq, row_id, kind, epoch, record, body in connection.execute(ask):
        try:
            payload = None if body is None else bytes(body)
            messages.append(stored_message(seq, row_id, kind, epoch, bytes(record), payload))
        except CorruptRecord as error:
            corrupt.append(error)
    return messages, corrupt
