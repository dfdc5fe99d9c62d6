"""Servers that take no writes any more: a primary of before still answers those connected to it.

After a switch-over the address of the URL leads to the new primary, and connections that were open
still lead to the former one. What it says may be what was once true, and what it lets a user with
many rights write is lost. So such a connection is given up as one that broke: the next attempt
opens another, to wherever the address leads by then. There the same is asked before anything else.
"""

import contextlib
from typing import TYPE_CHECKING, Any

import psycopg2
from sqlalchemy import Engine, event
from sqlalchemy.engine import ExceptionContext
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.exc import DisconnectionError

from orthia.config.dialects import Dialect
from orthia.database.errors import is_mysql_error

if TYPE_CHECKING:
    import pymysql

_PG_READ_ONLY = "25006"
_MYSQL_READ_ONLY = 1290
_MYSQL_TAKES_NO_WRITES = {
    *(1290, 1792, 1836, 1874, 1881),  # read_only, super_read_only, innodb_read_only
    1047,  # Galera: this node is not part of the primary component
    3032,  # offline_mode, which group replication sets too as it leaves
}

MYSQL_TAKES_WRITES = "CAST(@@GLOBAL.read_only AS CHAR) IN ('0', 'OFF')"
"""Whether the server takes writes: a number or, on later servers, a word."""


def give_up_read_only(engine: Engine) -> None:
    """Have no connection of ``engine`` used again on which a server refused to write."""
    event.listen(engine, "handle_error", _lost_if_read_only)


def ask_at_checkout(dialect: Dialect, engine: Engine) -> None:
    """Have each checkout ask whether the server takes writes, in place of a ping.

    Who only reads is refused nothing, and on MySQL and MariaDB users with the right to write all
    the same are not either.
    """
    refuse = _refuse_postgresql if dialect is Dialect.POSTGRESQL else refuse_read_only_mysql

    def on_checkout(connection: DBAPIConnection, _record: object, _proxy: object) -> None:
        try:
            with contextlib.closing(connection.cursor()) as cursor:
                refuse(cursor)
        except Exception as error:
            if isinstance(error, psycopg2.Error) or is_mysql_error(error):
                raise DisconnectionError(str(error)) from error
            raise

    event.listen(engine, "checkout", on_checkout)


def refuse_read_only_mysql(cursor: Any) -> None:
    """Raise ``read_only_mysql`` if the server takes no writes, whatever the rights of the user."""
    cursor.execute(f"SELECT {MYSQL_TAKES_WRITES}")
    (takes_writes,) = cursor.fetchone()
    if not takes_writes:
        raise read_only_mysql()


def read_only_mysql() -> "pymysql.OperationalError":
    """Return what the server says when it refuses a write."""
    import pymysql

    return pymysql.OperationalError(
        _MYSQL_READ_ONLY, "the server is read-only: it is a replica, or the primary of before"
    )


def _lost_if_read_only(context: ExceptionContext) -> None:
    error = context.original_exception
    refused = False
    if isinstance(error, psycopg2.Error):
        refused = error.pgcode == _PG_READ_ONLY
    elif is_mysql_error(error):
        refused = bool(error.args) and error.args[0] in _MYSQL_TAKES_NO_WRITES
    if refused:
        context.is_disconnect = True


def _refuse_postgresql(cursor: Any) -> None:
    # As a ping: outside of a transaction, which whoever has the connection begins.
    connection = cursor.connection
    before = connection.autocommit
    connection.autocommit = True
    cursor.execute("SHOW transaction_read_only")
    (read_only,) = cursor.fetchone()
    connection.autocommit = before
    if read_only == "on":
        raise psycopg2.OperationalError("session is read-only")
