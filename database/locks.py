"""Locks a transaction or a migration takes in the database."""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import Connection, Select, text
from sqlalchemy.exc import DBAPIError

from orthia.config.dialects import Dialect
from orthia.database.errors import StoreUnavailable
from orthia.database.file_lock import try_lock
from orthia.database.sessions import user_lock_name

_POLL_SECONDS = 0.05

_Rows = TypeVar("_Rows", bound=Select[Any])

_STATEMENTS = {
    "postgresql": ("SELECT pg_try_advisory_lock(:key)", "SELECT pg_advisory_unlock(:key)"),
    "mysql": ("SELECT GET_LOCK(:key, 0)", "SELECT RELEASE_LOCK(:key)"),
}


def for_share(select: _Rows, dialect: Dialect) -> _Rows:
    """Return the SELECT that also locks its rows against change until the transaction ends.

    SQLite has no row locks: there the transaction must have begun with BEGIN IMMEDIATE.
    """
    if dialect is Dialect.SQLITE:
        return select
    return select.with_for_update(read=True)


@contextmanager
def named_lock(connection: Connection, name: str, timeout_seconds: float) -> Iterator[None]:
    """Hold the lock of this name; one connection, of all processes, can hold it at a time.

    It belongs to the connection, not to a transaction: the block may commit as often as it
    likes, and a connection that is lost gives the lock up. ``connection`` must be outside of a
    transaction, and is so in the block and after it. Raises StoreUnavailable after
    ``timeout_seconds``.
    """
    if connection.dialect.name == "sqlite":
        with _file_lock(connection, name, timeout_seconds):
            yield
        return
    take, give_back = _STATEMENTS[connection.dialect.name]
    key = lock_key(connection, name)

    def ask(statement: str) -> bool:
        with connection.begin():
            return bool(connection.execute(text(statement), {"key": key}).scalar())

    _wait_for(lambda: ask(take), name, timeout_seconds)
    try:
        yield
    finally:
        connection.rollback()
        try:
            ask(give_back)
        except DBAPIError:
            connection.invalidate()  # the server frees the locks of a closed session


def lock_key(connection: Connection, name: str) -> int | str:
    """Return what stands for ``name`` in the lock functions of PostgreSQL or MySQL."""
    if connection.dialect.name == "postgresql":
        # Advisory locks are numbered, within one database.
        return int.from_bytes(sha256(name.encode()).digest()[:8], "big", signed=True)
    return user_lock_name(connection.engine.url.database, name)


@contextmanager
def _file_lock(connection: Connection, name: str, timeout_seconds: float) -> Iterator[None]:
    database = Path(str(connection.engine.url.database))
    path = database.with_name(f"{database.name}-{name}.lock")
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o660)

    try:
        _wait_for(lambda: try_lock(descriptor), name, timeout_seconds)
        yield
    finally:
        os.close(descriptor)


def _wait_for(take: Callable[[], bool], name: str, timeout_seconds: float) -> None:
    give_up_seconds = time.monotonic() + timeout_seconds
    while not take():
        if time.monotonic() >= give_up_seconds:
            raise StoreUnavailable(
                f"the lock {name!r} was not free within {timeout_seconds:g} s:"
                " another node holds it; try again when it is done"
            )
        time.sleep(_POLL_SECONDS)
