"""Orthia's tables in an empty database, by the SQL that ``orthia db ddl`` prints.

An upgrade makes the same tables, which tests/migrations asserts, but takes alembic several times as
much processor time: more than most tests that want the tables.
"""

from collections.abc import Iterator

import sqlalchemy as sa

from orthia import migrations
from orthia.config.store_settings import DatabaseStoreSettings
from orthia.database import Database, Dialect
from orthia.migrations import TableNames

_scripts: dict[TableNames, str] = {}


def make_tables(database: Database, settings: DatabaseStoreSettings) -> None:
    """Make the tables as an upgrade does; where there are any already, upgrade them."""
    names = TableNames.from_settings(settings)
    if sa.inspect(database.engine).has_table(names.version):
        migrations.upgrade(database, settings)
        return
    if names not in _scripts:
        _scripts[names] = migrations.ddl(settings)
    connection = database.engine.raw_connection()
    try:
        cursor = connection.cursor()
        if database.dialect is Dialect.SQLITE:
            cursor.executescript(_scripts[names])
        elif database.dialect is Dialect.POSTGRESQL:
            cursor.execute(_scripts[names])
        else:
            for statement in mysql_statements(_scripts[names]):
                cursor.execute(statement)
        cursor.close()
        connection.commit()
    finally:
        connection.close()


def mysql_statements(script: str) -> Iterator[str]:
    """Yield the statements of a script for the client of MySQL, which DELIMITER divides."""
    delimiter = ";"
    statement: list[str] = []
    for line in script.splitlines():
        if line.startswith("DELIMITER "):
            delimiter = line.split()[1]
            continue
        statement.append(line.removesuffix(delimiter))
        if line.endswith(delimiter):
            yield "\n".join(statement)
            statement = []
    if any(map(str.strip, statement)):
        raise ValueError(f"a statement has no end: {statement}")
