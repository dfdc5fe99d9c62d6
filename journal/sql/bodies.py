"""Large bodies in a table: rows of pieces, and a row for each reference.

A row with a position of 0 or more is that piece of the body. One with a negative position is a
reference: the message, or the transaction in doubt, whose seq is that number without its sign.
References are written and deleted by the journal's batches, see ``orthia.journal.engine.batch``.

Pieces are written under the fence, as batches are: a node that lost the live lock adds none.
"""

from collections.abc import Sequence

from sqlalchemy import Connection, MetaData, Table, and_, delete, exists, literal, or_, select
from sqlalchemy.dialects import mysql, postgresql, sqlite
from sqlalchemy.sql import ColumnElement
from sqlalchemy.sql.dml import Insert
from typing_extensions import override

from orthia.config.dialects import Dialect
from orthia.config.store_settings import DatabaseStoreSettings
from orthia.database import Database, translate_errors, write_transaction
from orthia.journal.engine.abc import BodyStore, Piece
from orthia.journal.errors import LargeBodyError
from orthia.journal.sql.fence import fenced_engine, prove_fence
from orthia.journal.sql.tables import (
    bindings_table,
    history_table,
    large_messages_table,
    messages_table,
)

REMOVED_PIECES = 32
"""Pieces one transaction removes: short enough that neither the writer nor a successor waits."""


class SqlBodies(BodyStore):
    """The bodies of one database, under one token."""

    def __init__(self, database: Database, s: DatabaseStoreSettings, token: int) -> None:
        """Use a connection of its own to write, and another to read."""
        self._database = database
        self._settings = s
        self._token = token
        self._writing = fenced_engine(database, s, "large messages", token)
        self._reading = database.reading_engine(
            "large message reader", query_timeout_ms=s.jdbc_network_timeout
        )
        metadata = MetaData()
        dialect = database.dialect
        self._table = large_messages_table(metadata, s.large_message_table_name, dialect)
        self._messages = messages_table(metadata, s.message_table_name, dialect)
        self._bindings = bindings_table(metadata, s.bindings_table_name, dialect)
        self._history = history_table(metadata, s.message_history_table_name, dialect)

    @override
    def write(self, pieces: Sequence[Piece]) -> None:
        """Write the pieces in one transaction; raises Fenced, StoreError."""
        statement = self._insert()
        self._database.turnstile.give_way()
        with write_transaction(self._writing, "store a large message") as connection:
            self._prove_fence(connection)
            for body_id, position, data in pieces:
                values = {
                    "id": body_id,
                    "position": position,
                    "epoch": self._token,
                    "piece": data,
                }
                connection.execute(statement, values)

    @override
    def finish(self, body_id: int) -> None:
        """Do nothing: every transaction was durable."""

    @override
    def read(self, body_id: int, position: int) -> bytes:
        """Read a piece; raises StoreError, too."""
        columns = self._table.c
        ask = select(columns.piece).where(columns.id == body_id, columns.position == position)
        with translate_errors("read a large message"), self._reading.connect() as reading:
            found = reading.execute(ask).scalar_one_or_none()
        if found is None:
            raise LargeBodyError(f"piece {position} of the large message body {body_id} is missing")
        return bytes(found)

    @override
    def sweep(self, after_id: int, limit: int) -> tuple[list[int], int | None]:
        """Walk the primary keys; raises StoreError."""
        ids = self._table.c.id
        step = select(ids).where(ids > after_id).distinct().order_by(ids).limit(limit)
        with translate_errors("look for large messages"), self._writing.connect() as connection:
            found = connection.execute(step).scalars().all()
            referred = select(ids).where(ids.in_(found), self._is_reference()).distinct()
            needed = set(connection.execute(referred).scalars()) if found else set()
        unneeded = [body_id for body_id in found if body_id not in needed]
        return unneeded, found[-1] if len(found) == limit else None

    @override
    def remove(self, body_id: int) -> bool:
        """Remove a body in one transaction; raises Fenced, StoreError."""
        columns = self._table.c
        of_body = columns.id == body_id
        self._database.turnstile.give_way()
        with write_transaction(self._writing, "remove a large message") as connection:
            self._prove_fence(connection)
            needed = select(literal(1)).where(of_body, self._is_reference()).limit(1)
            if connection.execute(needed).first() is not None:
                return True
            step = select(columns.position).where(of_body).order_by(columns.position)
            positions = connection.execute(step.limit(REMOVED_PIECES)).scalars().all()
            if positions:
                last = columns.position <= positions[-1]
                connection.execute(delete(self._table).where(of_body, last))
        return len(positions) < REMOVED_PIECES

    @override
    def close(self) -> None:
        self._writing.dispose()
        self._reading.dispose()

    def _is_reference(self) -> ColumnElement[bool]:
        return is_needed_reference(self._table, (self._messages, self._bindings, self._history))

    def _prove_fence(self, connection: Connection) -> None:
        prove_fence(connection, self._settings, self._database.dialect, self._token)

    def _insert(self) -> Insert:
        """Return an INSERT that skips an existing piece, which is the same."""
        match self._database.dialect:
            case Dialect.POSTGRESQL:
                return postgresql.insert(self._table).on_conflict_do_nothing()
            case Dialect.SQLITE:
                return sqlite.insert(self._table).on_conflict_do_nothing()
            case Dialect.MYSQL:
                inserting = mysql.insert(self._table)
                return inserting.on_duplicate_key_update(id=inserting.inserted.id)


def is_needed_reference(table: Table, holders: Sequence[Table]) -> ColumnElement[bool]:
    """Return the condition for a row of LARGE_MESSAGES to be a reference whose message still
    exists.

    ``holders`` are MESSAGES, BINDINGS and the history.
    """
    position = table.c.position
    there = [exists().where(holder.c.seq == -position) for holder in holders]
    return and_(position < 0, or_(*there))
