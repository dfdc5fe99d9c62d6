"""Create the table of the bodies of large messages."""

import sqlalchemy as sa
from alembic import context, op
from sqlalchemy.dialects.mysql import LONGBLOB

from orthia.database import Dialect, UtcTimestamp, db_now
from orthia.migrations.foreign_tables import refuse_foreign_table
from orthia.migrations.names import TableNames

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

_RECORD = sa.LargeBinary().with_variant(LONGBLOB(), "mysql", "mariadb")


def upgrade() -> None:
    """Create what is absent."""
    names: TableNames = context.config.attributes["names"]
    table = sa.Table(
        names.large_messages,
        sa.MetaData(),
        sa.Column("id", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("position", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("epoch", sa.BigInteger, nullable=False),
        sa.Column("written_at", UtcTimestamp(), nullable=False, server_default=db_now()),
        sa.Column("piece", _RECORD, nullable=False),
        mysql_engine="InnoDB",
        mysql_default_charset="utf8mb4",
    )
    if not context.is_offline_mode() and sa.inspect(op.get_bind()).has_table(table.name):
        found = [column["name"] for column in sa.inspect(op.get_bind()).get_columns(table.name)]
        refuse_foreign_table(table.name, found, [column.name for column in table.columns])
    else:
        op.execute(sa.schema.CreateTable(table))
    if names.dialect is Dialect.POSTGRESQL:
        # Compressing what mostly is compressed already costs more than all the rest.
        quoted = f'"{names.large_messages}"'
        op.execute(f"ALTER TABLE {quoted} ALTER COLUMN piece SET STORAGE EXTERNAL")
