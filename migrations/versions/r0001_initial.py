"""Create the four tables and the five rows of the node manager.

Whatever is there already is left as it is: MySQL commits every DDL statement by itself, and a node
that was killed between two of them must not leave a database that nobody can set up any more.
"""

from typing import Any

import sqlalchemy as sa
from alembic import context, op
from sqlalchemy.dialects.mysql import LONGBLOB

from orthia.database import UtcTimestamp, db_now
from orthia.migrations.foreign_tables import refuse_foreign_table
from orthia.migrations.names import TableNames
from orthia.migrations.rows import put_back

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

# SQLite keeps a table in the order of its INTEGER PRIMARY KEY only if it is spelt so.
_BIG_KEY = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_RECORD = sa.LargeBinary().with_variant(LONGBLOB(), "mysql", "mariadb")

# Row locks need InnoDB; names and details may be in any script.
_MYSQL_OPTIONS: dict[str, Any] = {"mysql_engine": "InnoDB", "mysql_default_charset": "utf8mb4"}

_ROWS = (
    {"id": 0, "holder_token": 0, "state": "N"},  # the state of the pair: not started
    {"id": 1, "holder_token": 0, "state": None},  # the live lock
    {"id": 2, "holder_token": 0, "state": None},  # the backup lock
    {"id": 3, "holder_token": 0, "state": None},  # the node id
    {"id": 4, "holder_token": 0, "state": None},  # the fence
)
"""Of an empty database, which is what a script is printed for."""


def upgrade() -> None:
    """Create what is absent."""
    names: TableNames = context.config.attributes["names"]
    metadata = sa.MetaData()
    store = _node_manager_store(metadata, names)
    tables = (
        store,
        _failover_log(metadata, names),
        _journal_table(metadata, names, names.messages),
        _journal_table(metadata, names, names.bindings),
    )
    for table in tables:
        _create(table)
    if context.is_offline_mode():
        for row in _ROWS:
            op.execute(sa.insert(store).values(row))
    else:
        put_back(op.get_bind(), names, context.config.attributes["lock_expiration_ms"])


def _node_manager_store(metadata: sa.MetaData, names: TableNames) -> sa.Table:
    return sa.Table(
        names.node_manager_store,
        metadata,
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("holder_id", sa.String(128)),
        sa.Column("holder_expiration_time", UtcTimestamp()),
        sa.Column("holder_token", sa.BigInteger, nullable=False, server_default=sa.text("0")),
        sa.Column("node_id", sa.String(36)),
        sa.Column("state", sa.String(1)),
        **_MYSQL_OPTIONS,
    )


def _failover_log(metadata: sa.MetaData, names: TableNames) -> sa.Table:
    name = names.failover_log
    return sa.Table(
        name,
        metadata,
        sa.Column("id", _BIG_KEY, sa.Identity(), primary_key=True),
        sa.Column("db_time", UtcTimestamp(), nullable=False, server_default=db_now()),
        sa.Column("node_time", sa.String(40), nullable=False),
        sa.Column("node_id", sa.String(36)),
        sa.Column("node_name", sa.String(128), nullable=False),
        sa.Column("holder_id", sa.String(128), nullable=False),
        sa.Column("role", sa.String(16), nullable=False),
        sa.Column("code", sa.String(16), nullable=False),
        sa.Column("level", sa.String(8), nullable=False),
        sa.Column("event", sa.String(64), nullable=False),
        sa.Column("lock_name", sa.String(16)),
        sa.Column("token", sa.BigInteger),
        sa.Column("event_seq", sa.BigInteger, nullable=False),
        sa.Column("detail", sa.Text, nullable=False),
        sa.Index(names.suffixed(name, "EVENT"), "holder_id", "event_seq", unique=True),
        sa.Index(names.suffixed(name, "DB_TIME"), "db_time"),
        **_MYSQL_OPTIONS,
    )


def _journal_table(metadata: sa.MetaData, names: TableNames, name: str) -> sa.Table:
    return sa.Table(
        name,
        metadata,
        sa.Column("seq", _BIG_KEY, primary_key=True, autoincrement=False),
        sa.Column("id", sa.BigInteger, nullable=False),
        sa.Column("record_type", sa.SmallInteger, nullable=False),
        sa.Column("user_record_type", sa.SmallInteger, nullable=False),
        sa.Column("tx_id", sa.BigInteger),
        sa.Column("queue_id", sa.BigInteger),
        sa.Column("epoch", sa.BigInteger, nullable=False),
        sa.Column("written_at", UtcTimestamp(), nullable=False, server_default=db_now()),
        sa.Column("record", _RECORD, nullable=False),
        sa.Index(names.suffixed(name, "QUEUE_SEQ"), "queue_id", "seq"),
        **_MYSQL_OPTIONS,
    )


def _create(table: sa.Table) -> None:
    there: set[str | None] = set()
    if not context.is_offline_mode() and sa.inspect(op.get_bind()).has_table(table.name):
        _refuse_foreign_table(table)
        there = {index["name"] for index in sa.inspect(op.get_bind()).get_indexes(table.name)}
    else:
        op.execute(sa.schema.CreateTable(table))
    for index in sorted(table.indexes, key=lambda index: str(index.name)):
        if index.name not in there:
            op.execute(sa.schema.CreateIndex(index))


def _refuse_foreign_table(table: sa.Table) -> None:
    """Refuse a table of this name that another program made, Artemis for example."""
    there = [column["name"] for column in sa.inspect(op.get_bind()).get_columns(table.name)]
    refuse_foreign_table(table.name, there, [column.name for column in table.columns])
