"""The tables a node manager keeps: who is live, and what happened when."""

from sqlalchemy import (
    BigInteger,
    Column,
    Identity,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    text,
)

from orthia.database import Dialect, UtcTimestamp, db_now, fold_table_name


def node_manager_store(metadata: MetaData, name: str, dialect: Dialect) -> Table:
    """Declare NODE_MANAGER_STORE: rows 0 state, 1 live lock, 2 backup lock, 3 node id, 4 fence.

    ``name`` is the configured one, folded as ``dialect`` does. Rows and columns are of Artemis'
    JdbcNodeManager; HOLDER_TOKEN and row 4 are Orthia's, and so are the rows that only some lockers
    need and make: 5 and 6 of ``held_row``, 7 of ``lock_directory``. So are 8 to 12 of ``reports``.
    """
    return Table(
        fold_table_name(dialect, name),
        metadata,
        Column("id", Integer, primary_key=True, autoincrement=False),
        Column("holder_id", String(128)),
        Column("holder_expiration_time", UtcTimestamp()),
        Column("holder_token", BigInteger, nullable=False, server_default=text("0")),
        Column("node_id", String(36)),
        Column("state", String(1)),
        mysql_engine="InnoDB",
    )


def failover_log(metadata: MetaData, name: str, dialect: Dialect) -> Table:
    """Declare FAILOVER_LOG: the events of all nodes; ``holder_id`` and ``event_seq`` name one."""
    return Table(
        fold_table_name(dialect, name),
        metadata,
        Column(
            "id",
            # SQLite numbers rows by itself only in an INTEGER PRIMARY KEY.
            BigInteger().with_variant(Integer(), "sqlite"),
            Identity(),
            primary_key=True,
        ),
        Column("db_time", UtcTimestamp(), nullable=False, server_default=db_now()),
        Column("node_time", String(40), nullable=False),
        Column("node_id", String(36)),
        Column("node_name", String(128), nullable=False),
        Column("holder_id", String(128), nullable=False),
        Column("role", String(16), nullable=False),
        Column("code", String(16), nullable=False),
        Column("level", String(8), nullable=False),
        Column("event", String(64), nullable=False),
        Column("lock_name", String(16)),
        Column("token", BigInteger),
        Column("event_seq", BigInteger, nullable=False),
        Column("detail", Text, nullable=False),
        Index(fold_table_name(dialect, f"{name}_EVENT"), "holder_id", "event_seq", unique=True),
        Index(fold_table_name(dialect, f"{name}_DB_TIME"), "db_time"),
        mysql_engine="InnoDB",
    )
