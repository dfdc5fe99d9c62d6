"""Versioned changes of the schema, safe for any number of nodes that start at once.

Revisions are alembic's, in ``migrations/versions``; the table names come from the configuration
and the revision in force is noted in ``<node-manager-store-table-name>_VERSION``.
"""

import io
import threading
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection

from config.settings import DatabaseStoreSettings
from database import SQLITE_BEGIN, Database, PermanentStoreError, named_lock, translate_errors
from migrations.names import TableNames

__all__ = ["SchemaTooNew", "TableNames", "check", "current", "ddl", "head", "upgrade"]

_LOCK_NAME = "orthia-migrations"
_LOCK_TIMEOUT_SECONDS = 120
_STATEMENT_TIMEOUT_MS = 60_000
"""At least; a revision may have to build an index over a large table."""

_alembic = threading.Lock()
"""alembic keeps what it works on in module globals: one migration of this process at a time."""


class SchemaTooNew(PermanentStoreError):  # noqa: N818 - named for what is the case
    """The database's schema is of a revision this version of Orthia does not know."""


def upgrade(database: Database, s: DatabaseStoreSettings) -> None:
    """Bring the schema to this version's revision, waiting while another node does so.

    Raises SchemaTooNew, StoreUnavailable when the lock was not free in time, or another
    StoreError.
    """
    if check(database, s) == head():
        return
    names = TableNames.from_settings(s)
    engine = database.dedicated_engine(
        "migration", query_timeout_ms=max(s.jdbc_network_timeout, _STATEMENT_TIMEOUT_MS)
    )
    try:
        with (
            translate_errors("migrate the schema"),
            engine.execution_options(**{SQLITE_BEGIN: "IMMEDIATE"}).connect() as connection,
            named_lock(connection, _LOCK_NAME, _LOCK_TIMEOUT_SECONDS),
            connection.begin(),
        ):
            _refuse_newer(_revision(connection, names), names)
            config = _config(names)
            config.attributes["connection"] = connection
            with _alembic:
                command.upgrade(config, "head")
    finally:
        engine.dispose()


def current(database: Database, s: DatabaseStoreSettings) -> str | None:
    """Return the revision of the database's schema, None if it has none; raises StoreError."""
    names = TableNames.from_settings(s)
    with translate_errors("read the schema's revision"), database.engine.connect() as connection:
        return _revision(connection, names)


def check(database: Database, s: DatabaseStoreSettings) -> str | None:
    """Return ``current()``, or raise SchemaTooNew if this version does not know it."""
    revision = current(database, s)
    _refuse_newer(revision, TableNames.from_settings(s))
    return revision


def head() -> str:
    """Return the revision this version of Orthia works with."""
    revision = _scripts().get_current_head()
    if revision is None:
        raise RuntimeError("the package migrations has no revisions: it is not installed whole")
    return revision


def ddl(s: DatabaseStoreSettings) -> str:
    """Return the SQL that sets up an empty database, rows included; connects nowhere."""
    output = io.StringIO()
    with _alembic:
        command.upgrade(_config(TableNames.from_settings(s), output), "head", sql=True)
    return output.getvalue()


def _config(names: TableNames, output: io.StringIO | None = None) -> Config:
    config = Config(output_buffer=output) if output is not None else Config()
    config.set_main_option("script_location", str(Path(__file__).parent).replace("%", "%%"))
    config.attributes["names"] = names
    return config


def _scripts() -> ScriptDirectory:
    return ScriptDirectory(str(Path(__file__).parent))


def _revision(connection: Connection, names: TableNames) -> str | None:
    context = MigrationContext.configure(connection, opts={"version_table": names.version})
    return context.get_current_revision()


def _refuse_newer(revision: str | None, names: TableNames) -> None:
    known = {script.revision for script in _scripts().walk_revisions()}
    if revision is not None and revision not in known:
        raise SchemaTooNew(
            f"the schema has revision {revision} (table {names.version}), which this version of"
            f" Orthia does not know (it knows {', '.join(sorted(known))}): a newer Orthia has"
            " migrated the database; upgrade this node"
        )
