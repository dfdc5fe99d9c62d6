"""Whether the sessions of the database are Orthia's own, or lent from one transaction to the next.

A pooler between a node and its database can give each transaction another session of the server:
PgBouncer does with ``pool_mode = transaction`` or ``statement``. Locks and settings of sessions,
prepared statements and everything by which the nodes tell each other's sessions are then somebody
else's a moment later. So a node that finds this does not begin.
"""

from collections.abc import Callable

from sqlalchemy import Connection, text

from orthia.config.dialects import Dialect
from orthia.config.errors import ConfigurationError
from orthia.database.engine import Database
from orthia.database.errors import PermanentStoreError, translate_errors

_ROUNDS = 3
"""Others may use the same pool between two questions, and hide in one round what it does."""
_PGBOUNCER_STATEMENT = "transaction blocks not allowed in statement pooling mode"
# Not alone: ProxySQL answers a bare CONNECTION_ID() by itself.
_ASK = {
    Dialect.POSTGRESQL: "SELECT pg_backend_pid()",
    Dialect.MYSQL: "SELECT 0 + CONNECTION_ID()",
}
_ADVICE = {
    Dialect.POSTGRESQL: (
        "set pool_mode = session in PgBouncer, for this database at least, or connect to"
        " PostgreSQL itself"
    ),
    Dialect.MYSQL: (
        "have the router give each connection a session of its own (MySQL Router:"
        " connection_sharing=0; ProxySQL: multiplexing off), or connect to the server itself"
    ),
}


def refuse_lent_sessions(database: Database) -> None:
    """Raise ConfigurationError if one connection's transactions are in several sessions.

    Or several connections' in one, while both are open: a pool with nothing else to do lends the
    session that it got back last. Raises StoreError.
    """
    ask = _ASK.get(database.dialect)
    if ask is None:
        return  # SQLite has no sessions
    engines = [
        database.dedicated_engine(f"pool-check-{number}", query_timeout_ms=database.timeout_ms)
        for number in (1, 2)
    ]
    what = "see whether a pooler lends sessions"
    try:
        with translate_errors(what), engines[0].connect() as one, engines[1].connect() as another:
            _compare(one, another, ask, lambda why: _refuse(database.dialect, "transaction", why))
    except PermanentStoreError as error:
        if _PGBOUNCER_STATEMENT in str(error):
            _refuse(database.dialect, "statement", str(error))
        raise
    finally:
        for engine in engines:
            engine.dispose()


def _compare(one: Connection, another: Connection, ask: str, refuse: Callable[[str], None]) -> None:
    seen: set[int] = set()
    for _ in range(_ROUNDS):
        for _ in range(2):
            with one.begin():
                seen.add(int(one.execute(text(ask)).scalar_one()))
        if len(seen) > 1:
            refuse("the transactions of one connection were in different sessions")
        with another.begin():  # open, while the first connection asks again
            if int(another.execute(text(ask)).scalar_one()) in seen:
                refuse("two connections were given one session")
            with one.begin():
                seen.add(int(one.execute(text(ask)).scalar_one()))


def _refuse(dialect: Dialect, mode: str, why: str) -> None:
    raise ConfigurationError(
        f"the database is behind a pooler in {mode} mode (PgBouncer: pool_mode = {mode}): {why}."
        " Locks, settings and prepared statements of a session do not last there, on which a node"
        f" relies: {_ADVICE[dialect]}"
        if dialect is Dialect.POSTGRESQL
        else f"the database is behind a router that lends sessions: {why}. Locks and settings of a"
        f" session do not last there, on which a node relies: {_ADVICE[dialect]}"
    )
