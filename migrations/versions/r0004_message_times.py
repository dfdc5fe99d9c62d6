"""Create the table of due and expiry times of messages, and of failed deliveries."""

import sqlalchemy as sa
from alembic import context, op

from orthia.migrations.foreign_tables import refuse_foreign_table
from orthia.migrations.names import TableNames

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

_BIG_KEY = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Create what is absent: a node may have been killed between the table and its index."""
    names: TableNames = context.config.attributes["names"]
    index = names.suffixed(names.message_times, "KIND_AT")
    table = sa.Table(
        names.message_times,
        sa.MetaData(),
        sa.Column("seq", _BIG_KEY, primary_key=True, autoincrement=False),
        sa.Column("queue_id", sa.BigInteger, nullable=False),
        sa.Column("kind", sa.SmallInteger, nullable=False),
        sa.Column("at_ms", sa.BigInteger, nullable=False),
        sa.Column("attempts", sa.Integer, nullable=False),
        sa.Column("retry_ms", sa.BigInteger, nullable=False),
        sa.Index(index, "kind", "at_ms", "seq"),
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
