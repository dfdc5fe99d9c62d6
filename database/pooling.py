"""Whether the sessions of the database are Orthia's own, or lent from one transaction to the next.

A pooler between a node and its database can give each transaction another session of the server:
PgBouncer does with ``pool_mode = transaction``. Session locks and settings, prepared statements and
the marks of sessions then belong to another client a moment later. So a node that finds this
refuses to start.
"""

from sqlalchemy import Connection, text

from orthia.config.dialects import Dialect
from orthia.config.errors import ConfigurationError
from orthia.database.engine import Database
from orthia.database.errors import translate_errors

_ROUNDS = 3
"""Others may use the same pool between two questions, and hide in one round what it does."""
# Not alone: ProxySQL answers a bare CONNECTION_ID() by itself.
_ASK = {
    Dialect.POSTGRESQL: "SELECT pg_backend_pid()",
    Dialect.MYSQL: "SELECT 0 + CONNECTION_ID()",
}
_WHAT = {
    Dialect.POSTGRESQL: (
        "the database is behind a pooler in transaction mode (PgBouncer: pool_mode = transaction)"
    ),
    Dialect.MYSQL: "the database is behind a router that lends its sessions",
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
    try:
        with (
            translate_errors("check for a connection pooler"),
            engines[0].connect() as one,
            engines[1].connect() as another,
        ):
            why = _why_lent(one, another, ask)
    finally:
        for engine in engines:
            engine.dispose()
    if why is not None:
        raise ConfigurationError(
            f"{_WHAT[database.dialect]}: {why}. Locks, settings and prepared statements of a"
            f" session do not last there, and a node relies on them: {_ADVICE[database.dialect]}"
        )


def _why_lent(one: Connection, another: Connection, ask: str) -> str | None:
    """Return the evidence that sessions are lent; None if there is none."""

    def session(connection: Connection) -> int:
        return int(connection.execute(text(ask)).scalar_one())

    seen: set[int] = set()
    for _ in range(_ROUNDS):
        for _ in range(2):
            with one.begin():
                seen.add(session(one))
        with another.begin():  # it is open while the first connection asks again
            if session(another) in seen:
                return "two connections were given one session"
            with one.begin():
                seen.add(session(one))
        if len(seen) > 1:
            return "the transactions of one connection were in different sessions"
    return None
