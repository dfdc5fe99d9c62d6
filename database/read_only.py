"""Servers that became read only: a former primary still answers sessions connected to it.

After a switch-over the address of the URL leads to the new primary, and connections that were open
still lead to the former one. Its answers may be out of date, and what it lets a privileged user
write is lost. So such a connection is treated as broken: the next attempt opens another, to
wherever the address leads by then, and checks that server first.
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
"""Asks whether the server takes writes: a number or, on later servers, a word."""


def give_up_read_only(engine: Engine) -> None:
    """Discard connections of ``engine`` on which a server refused to write."""
    event.listen(engine, "handle_error", _lost_if_read_only)


def ask_at_checkout(dialect: Dialect, engine: Engine) -> None:
    """Make each checkout ask whether the server takes writes, in place of a ping.

    A read-only server refuses no reads, and on MySQL and MariaDB no writes of privileged users.
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
    # Like a ping: outside a transaction, which the user of the connection begins.
    connection = cursor.connection
    before = connection.autocommit
    connection.autocommit = True
    cursor.execute("SHOW transaction_read_only")
    (read_only,) = cursor.fetchone()
    connection.autocommit = before
    if read_only == "on":
        raise psycopg2.OperationalError("session is read-only")
