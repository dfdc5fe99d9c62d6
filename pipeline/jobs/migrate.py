"""Copies a stopped pair's store into another database, and compares the two.

Tasks of Spark copy MESSAGES and the history, in ranges; the driver copies the other tables, bodies
of large messages included, a few MiB at a time. Counts and checksums of every table are compared at
the end. The node manager's rows, tokens included, come last: tokens must keep growing, or an old
node's could equal a new one's.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name everybody gives it
from sqlalchemy import (
    Column,
    ColumnElement,
    Connection,
    MetaData,
    RowMapping,
    Table,
    and_,
    func,
    insert,
    or_,
    select,
    update,
)

from orthia import migrations
from orthia.config.dialects import Dialect
from orthia.config.store_settings import DatabaseStoreSettings
from orthia.database import Database, translate_errors, write_transaction
from orthia.journal.sql.tables import (
    acks_table,
    bindings_table,
    history_table,
    large_messages_table,
    messages_table,
    outbox_table,
    times_table,
)
from orthia.nodemanager.locks.lease import Lock, NodeManagerStatus
from orthia.nodemanager.locks.maintenance import is_untouched, refuse_held
from orthia.nodemanager.locks.status import DatabaseLocks
from orthia.nodemanager.tables import failover_log, node_manager_store
from orthia.pipeline.errors import MigrationFailed, MigrationRefused
from orthia.pipeline.jobs.copying import Declare, copied
from orthia.pipeline.sources.inputs import StoreInputs
from orthia.pipeline.sources.schemas import HISTORY_RAW, RAW
from orthia.pipeline.sources.store import Endpoint, StoreReference

_INSERT_ROWS: Final = 1_000
_HASH_BYTES: Final = 8


@dataclass(frozen=True)
class CopiedTable:
    """One table, copied and compared."""

    table: str
    rows: int
    checksum: str


@dataclass(frozen=True)
class SparkTable:
    """A table that goes through Spark."""

    name: str
    source_table: str
    """Its name as an option of ``orthia.journal``."""
    columns: tuple[str, ...]
    declare: Declare
    setting: str

    def read(self, spark: SparkSession, store: StoreReference, partitions: int | None) -> DataFrame:
        """Return its rows in a store."""
        inputs = StoreInputs(spark, store, partitions)
        read = inputs.history if self.source_table == "history" else inputs.messages
        return read(self.columns)

    def copy(
        self,
        spark: SparkSession,
        source: StoreReference,
        target: StoreReference,
        partitions: int | None,
    ) -> None:
        """Copy its rows from one store to another."""
        history = self.source_table == "history"
        copied(
            *(spark, source, target, self.columns, self.declare),
            history=history,
            partitions=partitions,
        )

    def table(self, settings: DatabaseStoreSettings, dialect: Dialect) -> Table:
        """Declare it."""
        return self.declare(MetaData(), getattr(settings, self.setting), dialect)


MESSAGES: Final = SparkTable("MESSAGES", "messages", RAW, messages_table, "message_table_name")
HISTORY: Final = SparkTable(
    "MESSAGES_HISTORY", "history", HISTORY_RAW, history_table, "message_history_table_name"
)


def checksum(rows: DataFrame) -> DataFrame:
    """Return one row with the number of ``rows`` and a checksum of all their bits."""
    row = F.xxhash64(*rows.columns)
    return rows.agg(
        F.count("*").alias("rows"),
        # Independent of the order of rows, and without overflow.
        F.sum(row.cast("decimal(38,0)")).alias("sum"),
        F.bit_xor(row).alias("xor"),
    )


def migrate(
    spark: SparkSession,
    source: Endpoint,
    target: Endpoint,
    *,
    partitions: int | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> list[CopiedTable]:
    """Copy ``source`` to ``target`` and return each table with its checksum.

    Raises StoreInUse if a node holds a lock, MigrationRefused if the target is not empty, and
    MigrationFailed if the copy differs or a node of the source started meanwhile.
    """
    with _Store(source.settings) as old, _Store(target.settings) as new:
        before = _prepare(old, new)
        for large in (MESSAGES, HISTORY):
            say(f"copying {large.name.lower()}")
            large.copy(spark, source.reference, target.reference, partitions)
        say("copying bindings, failover log and large messages")
        for table in _OTHERS:
            old.copy(new, table)
        say("comparing both stores")
        checked = [
            _compare(
                large.name,
                large.read(spark, source.reference, partitions),
                large.read(spark, target.reference, partitions),
            )
            for large in (MESSAGES, HISTORY)
        ]
        checked += [old.compare(new, table) for table in _OTHERS]
        if not is_untouched(before, old.status()):
            raise MigrationFailed(
                "a node of the old store started, or took a lock, while it was copied: stop both"
                " nodes, empty the new database and begin again"
            )
        new.write_locks(before)
    return checked


def _prepare(old: "_Store", new: "_Store") -> NodeManagerStatus:
    if migrations.check(old.database, old.settings) != migrations.head():
        raise MigrationRefused(
            "the old store's schema is not of this version: run `orthia db upgrade` on it first"
        )
    before = old.status()
    refuse_held(before, store="the old store", free=tuple(Lock))
    with contextlib.suppress(migrations.StoreDamaged):
        # A partial copy of an earlier attempt has no tokens yet; the check below reports it.
        migrations.upgrade(new.database, new.settings)
    full = [name for name, rows in new.sizes().items() if rows]
    if full or new.status().node_id is not None:
        raise MigrationRefused(
            f"the new store is not empty ({', '.join(full) or 'a node has started on it'}): give"
            " an empty database"
        )
    return before


def _compare(name: str, sent: DataFrame, arrived: DataFrame) -> CopiedTable:
    (old,), (new,) = checksum(sent).collect(), checksum(arrived).collect()
    if old != new:
        raise MigrationFailed(
            f"{name} differs: {old['rows']} rows with checksum {old['sum']} were sent,"
            f" {new['rows']} with {new['sum']} arrived; empty the new database and begin again"
        )
    return CopiedTable(name, old["rows"], f"{(old['xor'] or 0) & (2**64 - 1):016x}")


@dataclass(frozen=True)
class _DriverTable:
    """A table that the driver copies."""

    name: str
    declare: Declare
    setting: str
    keys: tuple[str, ...]
    """The key that orders the copying."""
    own: frozenset[str] = frozenset()
    """Columns that the new database fills."""
    at_once: int = _INSERT_ROWS
    """Rows in memory at a time."""


_OTHERS: Final = (
    _DriverTable("BINDINGS", bindings_table, "bindings_table_name", ("seq",)),
    _DriverTable(
        "FAILOVER_LOG", failover_log, "failover_log_table_name", ("id",), frozenset({"id"})
    ),
    _DriverTable("MESSAGE_TIMES", times_table, "message_times_table_name", ("seq",)),
    _DriverTable(
        "ORTHIA_OUTBOX",
        outbox_table,
        "outbox_table_name",
        ("id",),
        frozenset({"id", "txid"}),
        at_once=16,
    ),
    _DriverTable(
        "ORTHIA_ACKS", acks_table, "acks_table_name", ("message_id",), frozenset({"txid"})
    ),
    _DriverTable(
        "LARGE_MESSAGES",
        large_messages_table,
        "large_message_table_name",
        ("id", "position"),
        at_once=16,
    ),
)


class _Store:
    """One of the two databases, as the driver sees it."""

    def __init__(self, settings: DatabaseStoreSettings) -> None:
        self.settings = settings
        self.database = Database.from_settings(settings)
        self._locks = DatabaseLocks(self.database, settings, "orthia-migrate")

    def __enter__(self) -> "_Store":
        return self

    def __exit__(self, *found: object) -> None:
        self._locks.close()
        self.database.dispose()

    def status(self) -> NodeManagerStatus:
        """Return the holders of the locks."""
        return self._locks.read_status()

    def table(self, other: _DriverTable) -> Table:
        """Declare a table."""
        name = getattr(self.settings, other.setting)
        return other.declare(MetaData(), name, self.database.dialect)

    def sizes(self) -> dict[str, int]:
        """Return the number of rows of each table."""
        dialect = self.database.dialect
        tables = {other.name: self.table(other) for other in _OTHERS}
        tables |= {one.name: one.table(self.settings, dialect) for one in (MESSAGES, HISTORY)}
        with translate_errors("count rows"), self.database.engine.connect() as connection:
            return {
                name: connection.execute(select(func.count()).select_from(table)).scalar_one()
                for name, table in tables.items()
            }

    def copy(self, target: "_Store", other: _DriverTable) -> None:
        """Copy a table."""
        destination = target.table(other)
        for rows in self._read(other):
            values = [
                {key: value for key, value in row.items() if key not in other.own} for row in rows
            ]
            with write_transaction(target.database.engine, f"copy {other.name}") as connection:
                connection.execute(insert(destination), values)

    def compare(self, target: "_Store", other: _DriverTable) -> CopiedTable:
        """Compare a table with its copy; raises MigrationFailed."""
        mine, copied = self.fingerprint(other), target.fingerprint(other)
        if mine != copied:
            raise MigrationFailed(
                f"{other.name} differs: {mine.rows} rows were sent, {copied.rows} arrived; empty"
                " the new database and begin again"
            )
        return mine

    def write_locks(self, before: NodeManagerStatus) -> None:
        """Write the state, the tokens and the node id; nobody holds a lock.

        Raises MigrationFailed if a node started on this database meanwhile.
        """
        name = self.settings.node_manager_store_table_name
        table = node_manager_store(MetaData(), name, self.database.dialect)
        rows = (
            (0, {"state": before.state.value}),
            (1, {"holder_token": before.live.token}),
            (2, {"holder_token": before.backup.token}),
            (3, {"node_id": before.node_id}),
            (4, {"holder_token": before.fence_token}),
        )
        with write_transaction(self.database.engine, "write the locks") as connection:
            _refuse_a_started_node(connection, table)
            for number, values in rows:
                connection.execute(update(table).where(table.c.id == number).values(values))

    def fingerprint(self, other: _DriverTable) -> CopiedTable:
        """Count a table's rows and sum up their hashes, independent of their order."""
        count = total = 0
        for rows in self._read(other):
            for row in rows:
                values = [
                    bytes(value) if isinstance(value, memoryview) else value
                    for key, value in row.items()
                    if key not in other.own
                ]
                digest = sha256(repr(values).encode()).digest()[:_HASH_BYTES]
                total += int.from_bytes(digest)
                count += 1
        return CopiedTable(other.name, count, f"{total % 2**64:016x}")

    def _read(self, other: _DriverTable) -> Iterator[list[RowMapping]]:
        table = self.table(other)
        keys = [table.c[key] for key in other.keys]
        ask = select(table).order_by(*keys).limit(other.at_once)
        following = ask
        while True:
            with translate_errors(f"read {other.name}"), self.database.engine.connect() as one:
                rows = list(one.execute(following).mappings())
            if not rows:
                return
            yield rows
            following = ask.where(_above(keys, [rows[-1][key] for key in other.keys]))


def _above(keys: Sequence[Column[int]], values: Sequence[int]) -> ColumnElement[bool]:
    """Return the condition for rows after ``values`` in the order of ``keys``."""
    key, value = keys[0], values[0]
    if len(keys) == 1:
        return key > value
    return or_(key > value, and_(key == value, _above(keys[1:], values[1:])))


def _refuse_a_started_node(connection: Connection, table: Table) -> None:
    started = select(table.c.id).where((table.c.holder_token > 0) | table.c.node_id.is_not(None))
    if connection.execute(started).first() is not None:
        raise MigrationFailed(
            "a node started on the new database while it was filled: stop it, empty the database"
            " and begin again"
        )
