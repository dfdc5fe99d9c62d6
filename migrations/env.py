"""Run by alembic: applies revisions to the given connection or script.

``migrations`` passes its parameters in the attributes of alembic's Config object.
"""

from alembic import context

from orthia.database import Dialect
from orthia.migrations.names import TableNames

attributes = context.config.attributes
names: TableNames = attributes["names"]

if context.is_offline_mode():
    context.configure(
        dialect_name=names.dialect.value,
        dialect_opts={"paramstyle": "named"},
        literal_binds=True,
        version_table=names.version,
        transactional_ddl=names.dialect is not Dialect.MYSQL,
    )
else:
    context.configure(
        connection=attributes["connection"],
        version_table=names.version,
        transactional_ddl=names.dialect is not Dialect.MYSQL,
    )

with context.begin_transaction():
    context.run_migrations()
