"""How Orthia talks to each DBMS: connections, time-outs, time, locks and what errors mean.

- ``Database.from_settings(s)``: the shared pool and dedicated one-connection engines.
- ``write_transaction(engine, what)``: a transaction that writes; ``translate_errors(what)`` around
  anything else.
- ``UtcTimestamp``, ``db_now()``, ``db_now_plus_ms(ms)``, ``seconds_until(column)``: the database's
  clock.
"""

from orthia.config.dialects import Dialect
from orthia.database.abc import PresenceLock, Turnstile
from orthia.database.clock import DatabaseClock
from orthia.database.connecting import SQLITE_BEGIN
from orthia.database.engine import Database, write_transaction
from orthia.database.errors import (
    DuplicateKey,
    Locked,
    NoRoom,
    PermanentStoreError,
    RefusedForNow,
    StoreError,
    StoreUnavailable,
    TransientStoreError,
    UnknownOutcome,
    UnreadableTime,
    classify,
    translate_errors,
)
from orthia.database.locks import for_share, named_lock
from orthia.database.presence import presence_lock
from orthia.database.sessions import Blocker
from orthia.database.sqlite_turnstile import OpenTurnstile, SqliteTurnstile
from orthia.database.sqltime import UtcTimestamp, db_now, db_now_plus_ms, seconds_until
from orthia.database.tables import fold_table_name

__all__ = [
    "SQLITE_BEGIN",
    "Blocker",
    "Database",
    "DatabaseClock",
    "Dialect",
    "DuplicateKey",
    "Locked",
    "NoRoom",
    "OpenTurnstile",
    "PermanentStoreError",
    "PresenceLock",
    "RefusedForNow",
    "SqliteTurnstile",
    "StoreError",
    "StoreUnavailable",
    "TransientStoreError",
    "Turnstile",
    "UnknownOutcome",
    "UnreadableTime",
    "UtcTimestamp",
    "classify",
    "db_now",
    "db_now_plus_ms",
    "fold_table_name",
    "for_share",
    "named_lock",
    "presence_lock",
    "seconds_until",
    "translate_errors",
    "write_transaction",
]
