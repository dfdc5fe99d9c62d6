"""Whether a database keeps what it says is committed, also if its host loses power.

A receipt, a lease and a fencing token are as durable as the commit they stand on. A server can be
set up to answer before a commit is on the disk; it says so, and an operator is told.
"""

from typing import Final

from sqlalchemy import Connection, text

from orthia.config.dialects import Dialect
from orthia.database.engine import Database
from orthia.database.errors import translate_errors

_POSTGRESQL: Final = text(
    "SELECT name, setting FROM pg_settings WHERE name IN ('fsync', 'synchronous_commit')"
)
_MYSQL: Final = text(
    "SHOW GLOBAL VARIABLES WHERE Variable_name IN"
    " ('innodb_flush_log_at_trx_commit', 'log_bin', 'sync_binlog')"
)


def lax_settings(database: Database) -> list[str]:
    """Return each setting under which a commit may be undone by a crash, with what it should be.

    Empty for a database that keeps what it commits. Raises StoreError.
    """
    with translate_errors("read how durable commits are"), database.engine.connect() as connection:
        match database.dialect:
            case Dialect.POSTGRESQL:
                return _of_postgresql(connection)
            case Dialect.MYSQL:
                return _of_mysql(connection)
            case Dialect.SQLITE:
                return []  # each connection is opened with synchronous = FULL


def _of_postgresql(connection: Connection) -> list[str]:
    found = {str(name): str(setting) for name, setting in connection.execute(_POSTGRESQL)}
    return [f"{name} = off (should be on)" for name, setting in found.items() if setting == "off"]


def _of_mysql(connection: Connection) -> list[str]:
    found = {str(name).lower(): str(value) for name, value in connection.execute(_MYSQL)}
    wanted = ["innodb_flush_log_at_trx_commit"]
    if found.get("log_bin", "OFF").upper() in ("ON", "1"):
        # A transaction that the binary log has not is rolled back when the server recovers.
        wanted.append("sync_binlog")
    return [
        f"{name} = {found[name]} (should be 1)" for name in wanted if found.get(name, "1") != "1"
    ]
