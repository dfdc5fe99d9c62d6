"""Create the history of messages that left their queue, empty without journal-retention."""

import sqlalchemy as sa
from alembic import context, op
from sqlalchemy.dialects.mysql import LONGBLOB

from orthia.database import UtcTimestamp, db_now
from orthia.migrations.foreign_tables import refuse_foreign_table
from orthia.migrations.names import TableNames

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

_BIG_KEY = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_RECORD = sa.LargeBinary().with_variant(LONGBLOB(), "mysql", "mariadb")


def upgrade() -> None:
    """Create what is absent: a node may have been killed between the table and its index."""
    names: TableNames = context.config.attributes["names"]
    index = names.suffixed(names.history, "TIME")
    table = sa.Table(
        names.history,
        sa.MetaData(),
        sa.Column("seq", _BIG_KEY, primary_key=True, autoincrement=False),
        sa.Column("id", sa.BigInteger, nullable=False),
        sa.Column("queue_id", sa.BigInteger, nullable=False),
        sa.Column("epoch", sa.BigInteger, nullable=False),
        sa.Column("written_at", UtcTimestamp(), nullable=False),
        sa.Column("removed_at", UtcTimestamp(), nullable=False, server_default=db_now()),
        sa.Column("reason", sa.String(16), nullable=False),
        sa.Column("size", sa.BigInteger, nullable=False),
        sa.Column("record", _RECORD, nullable=False),
        sa.Index(index, "removed_at", "size"),
        mysql_engine="InnoDB",
        mysql_default_charset="utf8mb4",
    )
    there: set[str | None] = set()
    if not context.is_offline_mode() and sa.inspect(op.get_bind()).has_table(table.name):
        inspector = sa.inspect(op.get_bind())
        found = [column["name"] for column in inspector.get_columns(table.name)]
        refuse_foreign_table(table.name, found, [column.name for column in table.columns])
        there = {one["name"] for one in inspector.get_indexes(table.name)}
    else:
        op.execute(sa.schema.CreateTable(table))
    if index not in there:
        for one in table.indexes:
            op.execute(sa.schema.CreateIndex(one))
