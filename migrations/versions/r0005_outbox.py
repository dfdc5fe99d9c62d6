"""Create the tables by which applications send and acknowledge in their own transactions."""

import sqlalchemy as sa
from alembic import context, op
from sqlalchemy.dialects.mysql import LONGBLOB, LONGTEXT

from orthia.database import Dialect, UtcTimestamp, db_now
from orthia.migrations.acknowledge import ack_routine_sql
from orthia.migrations.foreign_tables import refuse_foreign_table
from orthia.migrations.names import TableNames
from orthia.migrations.outbox import before_outbox, outbox_checks, outbox_functions
from orthia.migrations.routines import make_procedures, missing_checks

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

_BIG_KEY = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_TEXT = sa.Text().with_variant(LONGTEXT(), "mysql", "mariadb")
_BYTES = sa.LargeBinary().with_variant(LONGBLOB(), "mysql", "mariadb")
_THIS_TRANSACTION = "(pg_current_xact_id()::text::bigint)"


def upgrade() -> None:
    """Create what is absent."""
    names: TableNames = context.config.attributes["names"]
    for statement in before_outbox(names.dialect, names.outbox):
        op.execute(statement)
    _create(names, _outbox(names))
    _create(names, _acks(names))
    routines = [ack_routine_sql(names), *outbox_functions(names.dialect, names.outbox)]
    if names.dialect is Dialect.MYSQL and context.is_offline_mode():
        for statement in routines:
            context.get_context().impl.static_output(f"DELIMITER //\n{statement} //\nDELIMITER ;")
    elif names.dialect is Dialect.MYSQL:
        make_procedures(op.get_bind(), names, routines)
    else:
        for statement in filter(None, routines):
            op.execute(statement)


def _outbox(names: TableNames) -> sa.Table:
    """Return the outbox: the ids of one transaction are in the order of its inserts."""
    table = sa.Table(
        names.outbox,
        sa.MetaData(),
        sa.Column("id", _BIG_KEY, sa.Identity(always=True, cache=1), primary_key=True),
        *_transaction(names),
        sa.Column("destination", sa.String(1024), nullable=False),
        sa.Column("headers", _TEXT, nullable=True),
        sa.Column("body", _BYTES, nullable=False),
        sa.Column("created_at", UtcTimestamp(), nullable=False, server_default=db_now()),
        *(
            sa.CheckConstraint(sa.text(check), name=names.suffixed(names.outbox, what))
            for what, check in outbox_checks(names.dialect, names.outbox).items()
        ),
        mysql_engine="InnoDB",
        mysql_default_charset="utf8mb4",
        sqlite_autoincrement=True,
    )
    if names.dialect is Dialect.POSTGRESQL:
        sa.Index(names.suffixed(names.outbox, "TXID"), table.c.txid, table.c.id)
    return table


def _acks(names: TableNames) -> sa.Table:
    """Return the acknowledgements: the primary key refuses a message that was done before."""
    table = sa.Table(
        names.acks,
        sa.MetaData(),
        sa.Column("message_id", _BIG_KEY, primary_key=True, autoincrement=False),
        *_transaction(names),
        sa.Column("acked_at", UtcTimestamp(), nullable=False, server_default=db_now()),
        mysql_engine="InnoDB",
        mysql_default_charset="utf8mb4",
    )
    if names.dialect is Dialect.POSTGRESQL:
        sa.Index(names.suffixed(names.acks, "TXID"), table.c.txid, table.c.message_id)
    return table


def _add_checks(names: TableNames, table: sa.Table) -> None:
    """Add the constraints that a table lacks."""
    lost = missing_checks(op.get_bind(), names) if table.name == names.outbox else []
    for one in table.constraints:
        if isinstance(one, sa.CheckConstraint) and str(one.name) in lost:
            # Rows that are there already are the relay's to judge.
            later = " NOT VALID" if names.dialect is Dialect.POSTGRESQL else ""
            added = sa.schema.AddConstraint(one).compile(dialect=op.get_bind().dialect)
            op.execute(f"{added}{later}")


def _transaction(names: TableNames) -> list[sa.Column[int]]:
    """Return the column of the transaction that inserted a row, where snapshots tell of it."""
    if names.dialect is not Dialect.POSTGRESQL:
        return []
    inserted_by = sa.text(_THIS_TRANSACTION)
    return [sa.Column("txid", sa.BigInteger, nullable=False, server_default=inserted_by)]


def _create(names: TableNames, table: sa.Table) -> None:
    """Create the table, unless it is there, and its indexes: a node may have died between."""
    there: set[str | None] = set()
    if not context.is_offline_mode() and sa.inspect(op.get_bind()).has_table(table.name):
        inspector = sa.inspect(op.get_bind())
        found = [column["name"] for column in inspector.get_columns(table.name)]
        refuse_foreign_table(table.name, found, [column.name for column in table.columns])
        there = {one["name"] for one in inspector.get_indexes(table.name)}
        _add_checks(names, table)
    else:
        op.execute(sa.schema.CreateTable(table))
    if names.dialect is Dialect.POSTGRESQL and table.name == names.outbox:
        # A body is read once: compressing it costs more than it saves.
        op.execute(f'ALTER TABLE "{table.name}" ALTER COLUMN body SET STORAGE EXTERNAL')
    for index in sorted(table.indexes, key=lambda one: str(one.name)):
        if index.name not in there:
            op.execute(sa.schema.CreateIndex(index))
