"""What can go wrong between Orthia and its database, in the classes callers act on.

Every driver reports trouble in its own way; this module is the one place that knows them:
psycopg2 by SQLSTATE (or by none at all when the connection is gone), PyMySQL by error number,
sqlite3 by extended result code. The text of an error is the server's own, never SQL parameters
and never a password.
"""

import re
import sqlite3
import sys
from types import TracebackType
from typing import TYPE_CHECKING

import psycopg2
import sqlalchemy.exc
from typing_extensions import TypeIs

from orthia.config.errors import OrthiaError

if TYPE_CHECKING:
    # Loads cryptography: only for connections to MySQL or MariaDB.
    import pymysql


class StoreError(OrthiaError):
    """The database could not do what was asked."""


class StoreUnavailable(StoreError):  # noqa: N818 - named for what is the case
    """The database did not answer in time, or the connection to it is lost or refused."""


class RefusedForNow(StoreUnavailable):
    """The database refused for now: it lacks resources or time, or the user lacks rights."""


class Locked(RefusedForNow):
    """The database refused: another session keeps a lock on what was to be changed."""


class NoRoom(RefusedForNow):
    """The database has no disk space or table space left, for this or for anything."""


class UnknownOutcome(StoreUnavailable):
    """The connection was lost at a commit: the transaction may have happened or not."""


class TransientStoreError(StoreError):
    """A deadlock or serialization failure: the transaction was undone and may be repeated."""


class PermanentStoreError(StoreError):
    """The database refused, and would refuse again: wrong password, missing table, bad value."""


class DuplicateKey(PermanentStoreError):  # noqa: N818 - named for what is the case
    """A row with this key exists already."""


class UnreadableTime(PermanentStoreError):  # noqa: N818 - named for what is the case
    """A column that holds an instant holds something else: somebody wrote it by hand."""


# SQLSTATEs and classes (their first two characters), from PostgreSQL's appendix of error codes.
_PG_DUPLICATE = {"23505"}
_PG_TRANSIENT = {"40001", "40P01"}
_PG_LOCKED = {"55P03"}  # lock not available: lock_timeout, NOWAIT
_PG_REFUSED_FOR_NOW = {
    "25006",  # read-only transaction: this server is a standby, or was made read-only
    "57014",  # statement time-out
}
_PG_NO_ROOM = {"53100"}
_PG_REFUSED_FOR_NOW_CLASSES = {"53"}  # insufficient resources: connections, memory
_PG_LOST = {"25P03", "25P04", "40003", "57P01", "57P02", "57P03", "57P05"}
_PG_LOST_CLASSES = {"08", "58", "XX"}
# What psycopg2 says without asking the server; of a cursor too if its connection is closed.
_PG_CLOSED = ("connection", "cursor already closed")
_PG_WITHOUT_TLS = "server does not support SSL, but SSL was required"
# libpq gives no SQLSTATE for a refused login, only the server's text, nor for files of the URL.
_PG_LOGIN_REFUSED = (
    "password authentication failed",
    "authentication failed for user",
    "no pg_hba.conf entry",
    "no password supplied",
    "is not permitted to log in",
    "root certificate file",  # does not exist, or has no certificate
    _PG_WITHOUT_TLS,
)

_MYSQL_WITHOUT_TLS = "SSL is required but the server doesn't support it"
"""What PyMySQL says, with the number of any trouble with TLS."""

_TRIED = "what was tried is ORTHIA_JDBC_PASSWORD if that is set, else jdbc-password or the URL's"
_ADVICE = (
    (
        # A server that wants a password and got none: libpq's words, and MySQL's.
        ("no password supplied", "(using password: NO)"),
        "give the password in the environment, as ORTHIA_JDBC_PASSWORD, or in jdbc-password",
    ),
    (("password authentication failed",), _TRIED),
    (
        # MariaDB has no words of its own for an account, or any, that it demands TLS of.
        ("(using password: YES)",),
        f"{_TRIED}; without TLS (sslMode=DISABLED, useSSL=false) a server that demands it of the"
        " account, or of all (require_secure_transport), says the same",
    ),
    (
        # libpq's words, and those of Python's ssl.
        ("certificate verify failed", "does not match host name"),
        "the server's certificate has expired, is for another host than the URL's, or is signed by"
        " somebody whom the file does not have that sslrootcert (PostgreSQL), serverSslCert or"
        " ssl_ca (MySQL, MariaDB) names",
    ),
    (
        ("(SQLSTATE 42501)", "(error 1044)", "(error 1142)"),
        "which rights are needed, and how the owner makes the tables: `orthia docs databases`",
    ),
    (
        (_MYSQL_WITHOUT_TLS, _PG_WITHOUT_TLS),
        "the URL asks for TLS, so the login was not sent: have the server offer TLS, or take that"
        " out of the URL (sslMode, sslmode, useSSL, ssl, ssl_...) where the network is trusted",
    ),
)
"""What to do about what a server says, where its words alone do not tell."""

# As is what libpq says of a server that is not the primary, or is made read-only.
_PG_READ_ONLY = ("session is read-only", "server is in hot standby mode")

# Error numbers from the MySQL and MariaDB error references; 2000 to 2999 are the client's.
_MYSQL_DUPLICATE = {1022, 1062, 1586}
_MYSQL_TRANSIENT = {
    *(1020, 1213, 1614),  # changed since it was read, deadlock
    *(1297, 1412),  # temporary error, table definition changed
    3101,  # a plugin had the transaction rolled back: group replication certified another's
}
_MYSQL_NO_ROOM = {
    *(20, 1021),  # no disk left, for a temporary file or any
    *(1114, 3675),  # a table or its space is full
}
_MYSQL_TEMPORARY_FILE = {1, 3}
"""It cannot be made, or written; MySQL has one for each transaction beyond binlog_cache_size."""
_NO_SPACE_LEFT = re.compile(r"(?i)\berr(?:no|code):? (?:28|122)\b")
"""As MySQL ("OS errno 28"; "errno: 28") and MariaDB ("Errcode: 28") tell Linux' ENOSPC, EDQUOT."""
_MYSQL_LOCKED = {1205, 3572}  # lock wait time-out, of rows and of tables; NOWAIT
_MYSQL_REFUSED_FOR_NOW = {
    *(1, 3, 5, 23),  # a temporary file: neither made nor written, no memory or descriptors left
    *(1037, 1041, 1135, 1206),  # memory, threads, locks
    *(1040, 1129, 1203, 1226, 1637),  # too many connections, errors of a host, transactions
    *(1317, 1969, 3024),  # statement interrupted or over its time limit
    *(1036, 1290, 1792, 1836, 1874, 1881, 3989),  # server, tables or schema are read-only
    *(3032, 3168),  # offline_mode, which group replication sets too as it leaves; unavailable
    1047,  # Galera: this node is not part of the primary component
    *(3781, 3782, 3783, 3796, 3799, 4094),  # group replication: held back, in error, stopping
}
_MYSQL_LOST = {
    0,
    1043,
    1053,
    1077,
    1079,
    1080,
    1152,
    1158,
    1159,
    1160,
    1161,
    1184,
    1927,
    3169,
    4031,
}
_MYSQL_COMMIT_FAILED = {
    *(1026, 1180),  # writing a file, or the commit itself, failed
    3100,  # a plugin could not do its part of the commit: group replication, without its group
}
_MYSQL_CLIENT_PROGRAM_ERRORS = {2014, 2030, 2031, 2034, 2036}  # out of sync, parameters

_SQLITE_DUPLICATE = {
    sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY,
    sqlite3.SQLITE_CONSTRAINT_UNIQUE,
    sqlite3.SQLITE_CONSTRAINT_ROWID,
}
_SQLITE_TRANSIENT = {sqlite3.SQLITE_BUSY_SNAPSHOT}
_SQLITE_REFUSED_FOR_NOW = {
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_INTERRUPT,
    sqlite3.SQLITE_NOMEM,
    sqlite3.SQLITE_PROTOCOL,
}
_SQLITE_LOST = {sqlite3.SQLITE_IOERR}

_GIVEN_UP = "This connection is closed"
"""What SQLAlchemy's pool says that lost two connections in one checkout."""

_FROM_DATABASE = (sqlalchemy.exc.SQLAlchemyError, psycopg2.Error, sqlite3.Error)


def is_mysql_error(error: BaseException | None) -> "TypeIs[pymysql.Error]":
    """Return whether PyMySQL raised it; a driver that is not loaded raises nothing."""
    driver = sys.modules.get("pymysql.err")
    return driver is not None and isinstance(error, driver.Error)


def classify(error: BaseException, *, during_commit: bool = False) -> StoreError:
    """Return the typed error for what a driver or SQLAlchemy raised.

    ``during_commit`` says that the statement that failed was a COMMIT, or a statement that
    commits itself: a connection lost there is UnknownOutcome. The result is to be raised
    ``from`` the original. A StoreError is returned as it is.
    """
    if isinstance(error, StoreError):
        return error
    kind, reason = _kind_and_reason(error)
    for said, advice in _ADVICE:
        if any(text in reason for text in said):
            reason += f"; {advice}"
            break
    if kind is _Lost:
        if during_commit:
            return UnknownOutcome(f"connection lost during commit, outcome unknown: {reason}")
        return StoreUnavailable(f"the database is not reachable or did not answer: {reason}")
    if kind is _CommitFailed:
        if during_commit:
            return UnknownOutcome(f"the commit failed, outcome unknown: {reason}")
        return StoreUnavailable(reason)
    return kind(reason)


class translate_errors:  # noqa: N801 - used as a function is
    """Raise whatever the database raises inside as a StoreError whose text begins with ``what``.

    Other exceptions pass unchanged, a StoreError too: it was told once. A class, since it is around
    every batch: a context manager made of a generator takes several times as long.
    """

    __slots__ = ("_during_commit", "_what")

    def __init__(self, what: str, *, during_commit: bool = False) -> None:
        self._what = what
        self._during_commit = during_commit

    def __enter__(self) -> None:
        """Begin."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Raise the typed error for what a driver raised."""
        if error is None:
            return
        if isinstance(error, _FROM_DATABASE) or is_mysql_error(error):
            typed = classify(error, during_commit=self._during_commit)
            raise type(typed)(f"{self._what}: {typed}") from error


class _Lost(StoreUnavailable):
    """A mark inside this module: no answer; in a commit UnknownOutcome, else StoreUnavailable."""


class _CommitFailed(StoreUnavailable):
    """A mark inside this module: the server answers, and cannot say what a commit came to."""


_Verdict = tuple[type[StoreError], str]


def _kind_and_reason(error: BaseException) -> _Verdict:
    if isinstance(error, sqlalchemy.exc.DBAPIError) and error.orig is not None:
        return _kind_and_reason(error.orig)
    if isinstance(error, sqlalchemy.exc.InvalidRequestError) and str(error) == _GIVEN_UP:
        return _Lost, "the connection broke twice as it was to be used"
    if isinstance(error, sqlalchemy.exc.TimeoutError):
        return StoreUnavailable, "every connection of the pool stayed busy; raise its maxTotal"
    if isinstance(error, psycopg2.Error):
        return _postgresql(error)
    if is_mysql_error(error):
        return _mysql(error)
    if isinstance(error, sqlite3.Error):
        return _sqlite(error)
    if isinstance(error, OSError):
        return _Lost, str(error)
    return PermanentStoreError, f"{type(error).__name__}: {error}"


def _postgresql(error: psycopg2.Error) -> _Verdict:
    code = error.pgcode
    # libpq says the same twice where it tried with and without TLS.
    lines = dict.fromkeys(" ".join(line.split()) for line in str(error).splitlines())
    reason = " ".join(filter(None, lines)) or type(error).__name__
    if code is None and reason.endswith(_PG_READ_ONLY):
        return StoreUnavailable, f"{reason}: it is a standby, or the primary of before"
    if code is None:
        return _postgresql_without_code(error, reason), reason
    # Not the whole text: it quotes the line of the statement, values included.
    reason = f"{error.diag.message_primary or reason} (SQLSTATE {code})"
    if code in _PG_DUPLICATE:
        return DuplicateKey, reason
    if code in _PG_TRANSIENT:
        return TransientStoreError, reason
    if code in _PG_NO_ROOM:
        return NoRoom, reason
    if code in _PG_LOCKED:
        return Locked, reason
    if code in _PG_REFUSED_FOR_NOW or code[:2] in _PG_REFUSED_FOR_NOW_CLASSES:
        return RefusedForNow, reason
    if code in _PG_LOST or code[:2] in _PG_LOST_CLASSES:
        return _Lost, reason
    return PermanentStoreError, reason


def _postgresql_without_code(error: psycopg2.Error, reason: str) -> type[StoreError]:
    if any(text in reason for text in _PG_LOGIN_REFUSED):
        return PermanentStoreError
    if "FATAL:" in reason and reason.endswith("does not exist"):
        return PermanentStoreError
    if isinstance(error, psycopg2.InterfaceError):
        return _Lost if any(text in reason for text in _PG_CLOSED) else PermanentStoreError
    # A connection that breaks in the middle of a COPY is a bare DatabaseError.
    if isinstance(error, psycopg2.OperationalError) or type(error) is psycopg2.DatabaseError:
        return _Lost
    return PermanentStoreError


def _mysql(error: "pymysql.Error") -> _Verdict:
    code = error.args[0] if error.args and isinstance(error.args[0], int) else None
    text = str(error.args[1]) if len(error.args) > 1 else str(error)
    if code is None:
        # PyMySQL's own, which closes the connection: it lost its place in what the server says.
        lost = text.startswith("Packet sequence number wrong")
        return (_Lost if lost else PermanentStoreError), text
    if code == 0 and not text:
        return _Lost, "the connection is closed"
    reason = f"{text} (error {code})"
    if code in _MYSQL_DUPLICATE:
        return DuplicateKey, reason
    if code in _MYSQL_TRANSIENT:
        return TransientStoreError, reason
    if code in _MYSQL_NO_ROOM or _finds_no_space(code, text):
        return NoRoom, reason
    if code in _MYSQL_LOCKED:
        return Locked, reason
    if code in _MYSQL_REFUSED_FOR_NOW:
        return RefusedForNow, reason
    if code in _MYSQL_COMMIT_FAILED:
        return _CommitFailed, reason
    if _MYSQL_WITHOUT_TLS in text:
        return PermanentStoreError, reason
    client_side = 2000 <= code < 3000 and code not in _MYSQL_CLIENT_PROGRAM_ERRORS
    if code in _MYSQL_LOST or client_side:
        return _Lost, reason
    return PermanentStoreError, reason


def _finds_no_space(code: int, text: str) -> bool:
    return code in _MYSQL_TEMPORARY_FILE and _NO_SPACE_LEFT.search(text) is not None


def _sqlite(error: sqlite3.Error) -> _Verdict:
    code: int | None = getattr(error, "sqlite_errorcode", None)
    if code is None:
        return PermanentStoreError, str(error)
    reason = f"{error} ({error.sqlite_errorname})"
    primary = code & 0xFF
    if primary == sqlite3.SQLITE_FULL or code == sqlite3.SQLITE_IOERR_SHMSIZE:
        return NoRoom, f"no room is left on the disk of the SQLite database: make some ({reason})"
    if code in _SQLITE_DUPLICATE:
        return DuplicateKey, reason
    if code in _SQLITE_TRANSIENT:
        return TransientStoreError, reason
    if primary in _SQLITE_REFUSED_FOR_NOW:
        return RefusedForNow, reason
    if primary in _SQLITE_LOST:
        return _Lost, reason
    return PermanentStoreError, reason
