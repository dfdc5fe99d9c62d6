"""Schema migrations, safe for any number of nodes that start at once.

Revisions are alembic's, in ``migrations/versions``; the table names come from the configuration,
and the table ``<node-manager-store-table-name>_VERSION`` has the current revision.

Every revision creates what is missing and changes nothing else. So a node killed in the middle of
one does no harm, and a repair runs all of them again.

alembic is loaded only to change or print a schema: a node that takes over finds the schema current,
and serves sooner.
"""

import io
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

import sqlalchemy as sa
from sqlalchemy import Connection

from orthia.config.clock import monotonic_seconds
from orthia.config.store_settings import DatabaseStoreSettings
from orthia.database import (
    SQLITE_BEGIN,
    Database,
    PermanentStoreError,
    named_lock,
    translate_errors,
)
from orthia.migrations.damage import StoreDamaged, find_damage
from orthia.migrations.foreign_tables import refuse_tables_of_artemis
from orthia.migrations.names import TableNames
from orthia.migrations.rights import RightsMissing, missing_rights
from orthia.migrations.routines import altered_routines
from orthia.migrations.rows import raise_tokens, report_rows

if TYPE_CHECKING:
    from alembic.config import Config

__all__ = [
    "Migration",
    "RightsMissing",
    "SchemaTooNew",
    "StoreDamaged",
    "TableNames",
    "altered",
    "check",
    "current",
    "damage",
    "ddl",
    "head",
    "repair",
    "upgrade",
]

_VERSIONS: Final = Path(__file__).with_name("versions")
_LOCK_NAME = "orthia-migrations"
_LOCK_TIMEOUT_SECONDS = 120
_STATEMENT_TIMEOUT_MS = 60_000
"""At least; a revision may have to build an index over a large table."""
_REPAIR_TIMEOUT_MS = 3_600_000
"""Time-out of a statement; a repair may read the whole journal for its newest token."""

_alembic = threading.Lock()
"""alembic keeps its context in module globals: one migration of this process at a time."""


class SchemaTooNew(PermanentStoreError):  # noqa: N818 - named for what is the case
    """The database's schema is of a revision this version of Orthia does not know."""


@dataclass(frozen=True)
class Migration:
    """A change of the schema that this process made."""

    from_revision: str | None
    """None if the database was empty."""
    to_revision: str
    duration_ms: float


def upgrade(database: Database, s: DatabaseStoreSettings) -> Migration | None:
    """Bring the schema to this version's revision, waiting while another node does so.

    Returns the migration; None if there was nothing to do, or another node did it.

    Raises SchemaTooNew, StoreDamaged when the schema is of this revision but not whole,
    RightsMissing when the session's user may not use its tables as a node has to, StoreUnavailable
    when the lock was not free in time, or another StoreError.
    """
    migration = None
    if check(database, s) != head():
        with _alone(database, s, _STATEMENT_TIMEOUT_MS) as connection:
            started_seconds = monotonic_seconds()
            before = _migrate(connection, s)
        if before != head():
            duration_ms = (monotonic_seconds() - started_seconds) * 1000
            migration = Migration(before, head(), duration_ms)
    lost = damage(database, s)
    if lost:
        raise StoreDamaged(s.jdbc_connection_url.display, lost)
    with translate_errors("look for rights"), database.engine.connect() as connection:
        missing = missing_rights(connection, s)
    if missing:
        raise RightsMissing(s.jdbc_connection_url.display, missing)
    return migration


def repair(database: Database, s: DatabaseStoreSettings) -> list[str]:
    """Bring the schema to this version's revision and restore missing parts; return their names.

    Waits as ``upgrade`` does. No token becomes smaller: locks and fence continue above every token
    in the journal and the failover log. Raises SchemaTooNew, StoreError.
    """
    names = TableNames.from_settings(s)
    with _alone(database, s, _REPAIR_TIMEOUT_MS) as connection:
        revision = _revision(connection, names)
        lost = [] if revision is None else find_damage(connection, names, revision)
        if revision == head():
            lost += altered_routines(connection, names)
        if lost:
            from alembic import command

            with _alembic:
                command.stamp(_config(s, connection=connection), "base")
        _migrate(connection, s)
        if find_damage(connection, names, head()):
            raise_tokens(connection, names)
    return lost


def damage(database: Database, s: DatabaseStoreSettings) -> list[str]:
    """Return the missing parts of a migrated store, a sentence for each; raises StoreError.

    Empty for a complete store, even of an older revision, and for a database without a schema.
    """
    names = TableNames.from_settings(s)
    with translate_errors("look for missing tables"), database.engine.connect() as connection:
        revision = _revision(connection, names)
        return [] if revision is None else find_damage(connection, names, revision)


def altered(database: Database, s: DatabaseStoreSettings) -> list[str]:
    """Return the routines that are not what this version makes, a sentence for each.

    Nodes use none of them: a node starts all the same. Raises StoreError.
    """
    names = TableNames.from_settings(s)
    with translate_errors("look for altered routines"), database.engine.connect() as connection:
        is_head = _revision(connection, names) == head()
        return altered_routines(connection, names) if is_head else []


@contextmanager
def _alone(
    database: Database, s: DatabaseStoreSettings, statement_timeout_ms: int
) -> Iterator[Connection]:
    """Give a transaction under the lock of migrations."""
    engine = database.dedicated_engine(
        "migration", query_timeout_ms=max(s.jdbc_network_timeout, statement_timeout_ms)
    )
    try:
        with (
            translate_errors("migrate the schema"),
            engine.execution_options(**{SQLITE_BEGIN: "IMMEDIATE"}).connect() as connection,
            named_lock(connection, _LOCK_NAME, _LOCK_TIMEOUT_SECONDS),
            connection.begin(),
        ):
            yield connection
    finally:
        engine.dispose()


def _migrate(connection: Connection, s: DatabaseStoreSettings) -> str | None:
    """Migrate; return the revision before."""
    names = TableNames.from_settings(s)
    before = _revision(connection, names)
    _refuse_newer(before, names)
    refuse_tables_of_artemis(connection, names)
    from alembic import command

    with _alembic:
        command.upgrade(_config(s, connection=connection), "head")
    for statement in report_rows(names):
        connection.execute(statement)
    return before


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
    return _revisions()[-1]


def ddl(s: DatabaseStoreSettings, since: str | None = None) -> str:
    """Return the SQL that sets up an empty database, rows included; connects nowhere.

    With ``since`` return the SQL that upgrades a database of that revision, empty if it is current.
    Raises ValueError for an unknown revision.
    """
    if since is not None and since not in _revisions():
        raise ValueError(f"revision {since} is not known: {', '.join(_revisions())} are")
    if since == head():
        return ""
    from alembic import command

    output = io.StringIO()
    with _alembic:
        config = _config(s, output=output)
        command.upgrade(config, f"{since}:head" if since is not None else "head", sql=True)
    names = TableNames.from_settings(s)
    dialect = sa.dialects.registry.load(names.dialect.value)()
    for statement in report_rows(names):
        made = statement.compile(dialect=dialect, compile_kwargs={"literal_binds": True})
        output.write(f"{made};\n\n")
    return output.getvalue()


def _config(
    s: DatabaseStoreSettings,
    *,
    connection: Connection | None = None,
    output: io.StringIO | None = None,
) -> "Config":
    from alembic.config import Config

    config = Config(output_buffer=output) if output is not None else Config()
    config.set_main_option("script_location", str(Path(__file__).parent).replace("%", "%%"))
    config.attributes["names"] = TableNames.from_settings(s)
    config.attributes["lock_expiration_ms"] = s.jdbc_lock_expiration
    config.attributes["connection"] = connection
    return config


@cache
def _revisions() -> tuple[str, ...]:
    """Return all revisions, the oldest first, by the names of their files: r0001_initial.py."""
    found = tuple(sorted(path.name[1:5] for path in _VERSIONS.glob("r[0-9][0-9][0-9][0-9]_*.py")))
    if not found:
        raise RuntimeError("the package migrations has no revisions: it is not installed whole")
    return found


def _revision(connection: Connection, names: TableNames) -> str | None:
    if not sa.inspect(connection).has_table(names.version):
        return None
    version = sa.table(names.version, sa.column("version_num", sa.String))
    return connection.execute(sa.select(version.c.version_num)).scalar_one_or_none()


def _refuse_newer(revision: str | None, names: TableNames) -> None:
    known = _revisions()
    if revision is not None and revision not in known:
        raise SchemaTooNew(
            f"the schema has revision {revision} (table {names.version}), which this version of"
            f" Orthia does not know (it knows {', '.join(known)}): a newer Orthia has"
            " migrated the database; upgrade this node"
        )
