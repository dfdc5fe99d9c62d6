"""The SQL that reads and prunes what applications acknowledged in their own transactions.

A row is deleted once its message is gone, and not before. That needs no fence: ``orthia_ack``
inserts a row only together with a lock on its message, so that no transaction, of whatever age,
acknowledges what is gone.

A reader must not begin at the front of the table: somebody's long query keeps dead rows there.

- On PostgreSQL each row tells the transaction that inserted it. A *round* of reads begins with a
  snapshot, and an index finds what is committed in it and was not in that of the round before:
  rows of transactions that began since, and of those that were open then.
- On MySQL and MariaDB a round goes through the table by its key, from the lowest message on that
  was acknowledged lately. Now and then it begins at the front, as often as that costs little.
"""

import time
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from sqlalchemy import Connection, MetaData, delete, select, text
from typing_extensions import override

from orthia.config.dialects import Dialect
from orthia.config.store_settings import DatabaseStoreSettings
from orthia.database import Database, translate_errors
from orthia.journal.engine.abc import ApplicationAck, ApplicationAcks
from orthia.journal.sql.postgresql_keys import by_key, one_by_key
from orthia.journal.sql.tables import acks_table, messages_table

_PLANS: Final = {
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "enable_sort": "off",
    "jit": "off",
}
"""Settings of PostgreSQL: the table is empty at one moment and full at the next."""
_LATELY_SECONDS: Final = 2.0
_SWEEP_SHARE: Final = 20
"""The part of the time, one in so many, that rounds from the front of the table may take."""


def open_acks(database: Database, s: DatabaseStoreSettings) -> ApplicationAcks | None:
    """Return the acknowledgements of a database; None where applications cannot make any."""
    match database.dialect:
        case Dialect.POSTGRESQL:
            return _PostgresqlAcks(database, s)
        case Dialect.MYSQL:
            return _MysqlAcks(database, s)
        case Dialect.SQLITE:
            return None


class _SqlAcks(ApplicationAcks):
    """What is the same for every DBMS."""

    def __init__(self, database: Database, s: DatabaseStoreSettings) -> None:
        self._acks = acks_table(MetaData(), s.acks_table_name, database.dialect)
        self._messages = messages_table(MetaData(), s.message_table_name, database.dialect)
        self._engine = database.reading_engine(
            "acknowledgements",
            query_timeout_ms=s.jdbc_network_timeout,
            postgresql_settings=_PLANS,
        )

    @override
    def read(self, limit: int) -> Sequence[ApplicationAck]:
        with translate_errors("read acknowledgements"), self._engine.connect() as connection:
            return self._read(connection, limit)

    @abstractmethod
    def _read(self, connection: Connection, limit: int) -> Sequence[ApplicationAck]:
        """Do what ``read`` says."""

    @override
    def prune(self, seqs: Sequence[int]) -> set[int]:
        column = self._messages.c.seq
        with translate_errors("prune acknowledgements"), self._engine.connect() as connection:
            ask = select(column).where(column.in_(seqs)).order_by(column)
            gone = set(seqs).difference(connection.execute(ask).scalars())
            if gone:
                self._delete(connection, sorted(gone))
        return gone

    def _delete(self, connection: Connection, ids: Sequence[int]) -> None:
        """Delete acknowledgements."""
        connection.execute(delete(self._acks).where(self._acks.c.message_id.in_(ids)))

    @override
    def close(self) -> None:
        self._engine.dispose()


class _Snapshot(NamedTuple):
    """Which transactions are over: those below ``xmax``, but for those that were open."""

    xmax: int
    open: list[int]

    @classmethod
    def parse(cls, written: str) -> "_Snapshot":
        _, xmax, listed = written.split(":")
        return cls(int(xmax), [int(one) for one in listed.split(",") if one])


class _Position(NamedTuple):
    """Up to where a round has come, in the order of the index."""

    txid: int
    message_id: int


_BEGINNING: Final = _Position(-1, -1)
_LAST_ID: Final = 2**63 - 1


class _PostgresqlAcks(_SqlAcks):
    def __init__(self, database: Database, s: DatabaseStoreSettings) -> None:
        super().__init__(database, s)
        self._before: _Snapshot
        """That of the round before."""
        self._now: _Snapshot | None
        """That of a round which is not over."""
        self._position: _Position
        self.start_over()
        acks, messages = (f'"{table.name}"' for table in (self._acks, self._messages))
        queue_id = one_by_key("m.queue_id", f"{messages} AS m", "m.seq", "taken.message_id")
        in_order = "ORDER BY txid, message_id LIMIT :limit"
        # Of two lower bounds PostgreSQL begins at that of the rows' comparison: there is one only.
        self._statement = text(
            f"""
            WITH began_since AS (
                SELECT txid, message_id FROM {acks}
                WHERE (txid, message_id) > (:after_txid, :after_id) {in_order}
            ), open_then AS (
                SELECT txid, message_id FROM {acks}
                WHERE txid = ANY(CAST(:open AS bigint[]))
                    AND (txid, message_id) > (:txid, :message_id) {in_order}
            ), taken AS (
                SELECT * FROM began_since UNION ALL SELECT * FROM open_then
                ORDER BY txid, message_id LIMIT :limit
            )
            SELECT CAST(pg_current_snapshot() AS text), taken.txid, taken.message_id,
                {queue_id} AS queue_id
            FROM (SELECT 1) AS always LEFT JOIN taken ON true
            ORDER BY taken.txid, taken.message_id
            """  # noqa: S608 - names of tables, which are validated
        )

        condition = by_key(acks, "message_id", "CAST(:ids AS bigint[])")
        self._delete_statement = text(
            f"DELETE FROM {acks} WHERE {condition}"  # noqa: S608 - the same
        )

    @override
    def _delete(self, connection: Connection, ids: Sequence[int]) -> None:
        connection.execute(self._delete_statement, {"ids": list(ids)})

    @override
    def start_over(self) -> None:
        self._before, self._now, self._position = _Snapshot(0, []), None, _BEGINNING

    @override
    def _read(self, connection: Connection, limit: int) -> Sequence[ApplicationAck]:
        after = max(_Position(self._before.xmax - 1, _LAST_ID), self._position)
        asked = {
            "after_txid": after.txid,
            "after_id": after.message_id,
            "open": self._before.open,
            "limit": limit,
            **self._position._asdict(),
        }
        rows = connection.execute(self._statement, asked).all()
        now = self._now or _Snapshot.parse(rows[0][0])
        found = [row for row in rows if row.message_id is not None]
        if len(found) < limit:
            self._before, self._now, self._position = now, None, _BEGINNING
        else:
            self._now, self._position = now, _Position(found[-1].txid, found[-1].message_id)
        return [ApplicationAck(row.message_id, row.queue_id) for row in found]


class _MysqlAcks(_SqlAcks):
    def __init__(
        self,
        database: Database,
        s: DatabaseStoreSettings,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(database, s)
        self._clock = clock
        self._after = 0
        """Up to where the round has come."""
        self._is_sweeping = True
        self._sweep_again = 0.0
        self._lowest: int | None = None
        """Of the messages that were acknowledged lately, of which the first part is over."""
        self._lowest_before: int | None = None
        self._lately_until = 0.0

    @override
    def start_over(self) -> None:
        self._after, self._is_sweeping, self._sweep_again = 0, True, 0.0

    @override
    def _read(self, connection: Connection, limit: int) -> Sequence[ApplicationAck]:
        ids, messages = self._acks.c.message_id, self._messages
        began = self._clock()
        joined = self._acks.outerjoin(messages, messages.c.seq == ids)
        ask = select(ids, messages.c.queue_id).select_from(joined).where(ids > self._after)
        rows = connection.execute(ask.order_by(ids).limit(limit)).all()
        now = self._clock()
        if rows:
            self._note(rows[0][0], now)
        if self._is_sweeping:
            self._sweep_again = max(self._sweep_again, began) + _SWEEP_SHARE * (now - began)
        if len(rows) == limit:
            self._after = rows[-1][0]
        else:
            low = min(
                (one for one in (self._lowest, self._lowest_before) if one is not None), default=1
            )
            self._is_sweeping = now >= self._sweep_again
            self._after = 0 if self._is_sweeping else low - 1
        return [ApplicationAck(*row) for row in rows]

    def _note(self, message_id: int, now: float) -> None:
        """Remember a message that was acknowledged, for as long as "lately" is."""
        if now >= self._lately_until:
            self._lately_until = now + _LATELY_SECONDS
            self._lowest_before, self._lowest = self._lowest, message_id
        elif self._lowest is None or message_id < self._lowest:
            self._lowest = message_id
