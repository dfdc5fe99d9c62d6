"""The tables of the journal and those that applications write; created by migrations only."""

from sqlalchemy import (
    BigInteger,
    Column,
    Identity,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    SmallInteger,
    String,
    Table,
    Text,
    text,
)
from sqlalchemy.dialects.mysql import LONGBLOB, LONGTEXT

from orthia.config.urls import Dialect
from orthia.database.sqltime import UtcTimestamp, db_now
from orthia.database.tables import fold_table_name

# SQLite keeps a table in the order of its INTEGER PRIMARY KEY; any other spelling of the type
# costs a second b-tree and a second write for every row.
_SEQ = BigInteger().with_variant(Integer(), "sqlite")
_RECORD = LargeBinary().with_variant(LONGBLOB(), "mysql", "mariadb")


def queue_index_name(table_name: str, dialect: Dialect) -> str:
    """Return the name of the index on (queue_id, seq) of the journal table ``table_name``."""
    return fold_table_name(dialect, f"{table_name}_QUEUE_SEQ")


def messages_table(metadata: MetaData, name: str, dialect: Dialect) -> Table:
    """Declare MESSAGES under the configured ``name``, which is folded as ``dialect`` does."""
    return _journal_table(metadata, name, dialect)


def bindings_table(metadata: MetaData, name: str, dialect: Dialect) -> Table:
    """Declare BINDINGS under the configured ``name``, which is folded as ``dialect`` does."""
    return _journal_table(metadata, name, dialect)


def history_index_name(table_name: str, dialect: Dialect) -> str:
    """Return the name of the index a history is pruned and counted by, given its table's name."""
    return fold_table_name(dialect, f"{table_name}_TIME")


def history_table(metadata: MetaData, name: str, dialect: Dialect) -> Table:
    """Declare the history under the configured ``name``: messages that left their queue."""
    return Table(
        fold_table_name(dialect, name),
        metadata,
        Column("seq", _SEQ, primary_key=True, autoincrement=False),
        Column("id", BigInteger, nullable=False),
        Column("queue_id", BigInteger, nullable=False),
        Column("epoch", BigInteger, nullable=False),
        Column("written_at", UtcTimestamp(), nullable=False),
        Column("removed_at", UtcTimestamp(), nullable=False, server_default=db_now()),
        Column("reason", String(16), nullable=False),
        Column("size", BigInteger, nullable=False),
        Column("record", _RECORD, nullable=False),
        # The index includes the size, so that counting reads no message.
        Index(history_index_name(name, dialect), "removed_at", "size"),
        mysql_engine="InnoDB",
    )


def large_messages_table(metadata: MetaData, name: str, dialect: Dialect) -> Table:
    """Declare LARGE_MESSAGES under the configured ``name``; see ``orthia.journal.sql.bodies``."""
    return Table(
        fold_table_name(dialect, name),
        metadata,
        Column("id", BigInteger, primary_key=True, autoincrement=False),
        Column("position", BigInteger, primary_key=True, autoincrement=False),
        Column("epoch", BigInteger, nullable=False),
        Column("written_at", UtcTimestamp(), nullable=False, server_default=db_now()),
        Column("piece", _RECORD, nullable=False),
        mysql_engine="InnoDB",
    )


def times_index_name(table_name: str, dialect: Dialect) -> str:
    """Return the name of the index on the moments of MESSAGE_TIMES, given its table's name."""
    return fold_table_name(dialect, f"{table_name}_KIND_AT")


def times_table(metadata: MetaData, name: str, dialect: Dialect) -> Table:
    """Declare MESSAGE_TIMES under the configured ``name``; see ``orthia.journal.model.moments``."""
    return Table(
        fold_table_name(dialect, name),
        metadata,
        Column("seq", _SEQ, primary_key=True, autoincrement=False),
        Column("queue_id", BigInteger, nullable=False),
        Column("kind", SmallInteger, nullable=False),
        Column("at_ms", BigInteger, nullable=False),
        Column("attempts", Integer, nullable=False),
        Column("retry_ms", BigInteger, nullable=False),
        Index(times_index_name(name, dialect), "kind", "at_ms", "seq"),
        mysql_engine="InnoDB",
    )


def outbox_table(metadata: MetaData, name: str, dialect: Dialect) -> Table:
    """Declare the outbox under the configured ``name``; see ``orthia.journal.sql.outbox``."""
    table = Table(
        fold_table_name(dialect, name),
        metadata,
        Column("id", _SEQ, Identity(always=True, cache=1), primary_key=True),
        *_transaction(dialect),
        Column("destination", String(1024), nullable=False),
        Column("headers", Text().with_variant(LONGTEXT(), "mysql", "mariadb"), nullable=True),
        Column("body", _RECORD, nullable=False),
        Column("created_at", UtcTimestamp(), nullable=False, server_default=db_now()),
        mysql_engine="InnoDB",
        sqlite_autoincrement=True,
    )
    if dialect is Dialect.POSTGRESQL:
        Index(fold_table_name(dialect, f"{name}_TXID"), table.c.txid, table.c.id)
    return table


def acks_table(metadata: MetaData, name: str, dialect: Dialect) -> Table:
    """Declare the acknowledgements of applications under the configured ``name``."""
    table = Table(
        fold_table_name(dialect, name),
        metadata,
        Column("message_id", _SEQ, primary_key=True, autoincrement=False),
        *_transaction(dialect),
        Column("acked_at", UtcTimestamp(), nullable=False, server_default=db_now()),
        mysql_engine="InnoDB",
    )
    if dialect is Dialect.POSTGRESQL:
        Index(fold_table_name(dialect, f"{name}_TXID"), table.c.txid, table.c.message_id)
    return table


def _transaction(dialect: Dialect) -> list[Column[int]]:
    """Return the column of the transaction that inserted a row, where snapshots tell of it."""
    if dialect is not Dialect.POSTGRESQL:
        return []
    inserted_by = text("(pg_current_xact_id()::text::bigint)")
    return [Column("txid", BigInteger, nullable=False, server_default=inserted_by)]


def _journal_table(metadata: MetaData, name: str, dialect: Dialect) -> Table:
    return Table(
        fold_table_name(dialect, name),
        metadata,
        Column("seq", _SEQ, primary_key=True, autoincrement=False),
        Column("id", BigInteger, nullable=False),
        Column("record_type", SmallInteger, nullable=False),
        Column("user_record_type", SmallInteger, nullable=False),
        Column("tx_id", BigInteger, nullable=True),
        Column("queue_id", BigInteger, nullable=True),
        Column("epoch", BigInteger, nullable=False),
        Column("written_at", UtcTimestamp(), nullable=False, server_default=db_now()),
        Column("record", _RECORD, nullable=False),
        Index(queue_index_name(name, dialect), "queue_id", "seq"),
        mysql_engine="InnoDB",
    )
