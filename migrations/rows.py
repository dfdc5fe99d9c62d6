"""Restores missing rows of NODE_MANAGER_STORE.

A node manager updates these rows and never inserts one, so a pair with a missing row cannot work.
A restored row must not contradict the earlier state:

- A token may never be given out twice. The journal's rows have the token they were written under,
  the failover log the tokens that were taken: a lock and the fence continue above all of them.
- The holder of the live lock when its row was removed may believe to hold it for one more
  expiration. For that time the restored row has a holder that is no node, so that no node takes it.
- A pair is live only if the live lock says so. Otherwise its state is *not started*: backups wait
  one expiration for a live node.
"""

from collections.abc import Iterable
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy import Connection

from orthia.database import UtcTimestamp, db_now, db_now_plus_ms
from orthia.migrations.names import TableNames

STATE, LIVE, BACKUP, NODE_ID, FENCE = range(5)
MEANINGS: Final = {
    STATE: "the shared state",
    LIVE: "the live lock",
    BACKUP: "the backup lock",
    NODE_ID: "the node id",
    FENCE: "the fence",
}
REPORTS: Final = (8, 9, 10, 11, 12)
"""The rows in which the holders of the two locks report to `orthia status` and other commands. They
are optional: a node with the right to insert creates them, others use existing ones."""
REPAIR_HOLDER_ID: Final = "orthia-db-upgrade:lease-only"
"""The holder of a restored live lock, until a former holder has certainly stopped.

Its suffix tells waiting nodes that the lease has no presence lock beside it.
"""


def store_table(names: TableNames) -> sa.TableClause:
    """Return NODE_MANAGER_STORE."""
    return sa.table(
        names.node_manager_store,
        sa.column("id", sa.Integer),
        sa.column("holder_id", sa.String),
        sa.column("holder_expiration_time", UtcTimestamp()),
        sa.column("holder_token", sa.BigInteger),
        sa.column("node_id", sa.String),
        sa.column("state", sa.String),
    )


def missing_rows(connection: Connection, names: TableNames) -> list[int]:
    """Return the ids of missing rows."""
    store = store_table(names)
    there = set(connection.execute(sa.select(store.c.id)).scalars())
    return [row for row in MEANINGS if row not in there]


def report_rows(names: TableNames) -> list[sa.Insert]:
    """Return the INSERTs of missing rows for reports."""
    store = store_table(names)
    made = []
    for row in REPORTS:
        is_there = sa.exists().where(store.c.id == row)
        new = sa.select(sa.literal(row), sa.literal(0)).where(~is_there)
        made.append(sa.insert(store).from_select([store.c.id, store.c.holder_token], new))
    return made


def tokens_behind(connection: Connection, names: TableNames) -> list[tuple[int, int, int]]:
    """Return (row, its token, the journal's newest epoch) for tokens behind the journal.

    Reads the bindings, whose counter every opening of the journal writes, and the newest message:
    the cost does not depend on the backlog.
    """
    # The epochs first: a token is in its row before it is in any other.
    messages = _epochs(names.messages)
    last = sa.select(messages.c.epoch).order_by(messages.c.seq.desc()).limit(1)
    newest = max(
        connection.execute(last).scalar() or 0,
        _greatest(connection, _epochs(names.bindings).c.epoch),
    )
    store = store_table(names)
    rows = connection.execute(
        sa.select(store.c.id, store.c.holder_token)
        .where(store.c.id.in_((LIVE, FENCE)), store.c.holder_token < newest)
        .order_by(store.c.id)
    )
    return [(row.id, row.holder_token, newest) for row in rows]


def put_back(connection: Connection, names: TableNames, expiration_ms: int) -> None:
    """Insert missing rows; in an empty database those of a pair that never started."""
    lost = missing_rows(connection, names)
    if not lost:
        return
    store = store_table(names)
    token = max(
        newest_epoch(connection, names),
        _greatest_logged_token(connection, names),
        _greatest(connection, store.c.holder_token),
    )
    for row in lost:
        values: dict[str, Any] = {"id": row, "holder_token": 0}
        if row in (LIVE, BACKUP, FENCE):
            values["holder_token"] = token
        if row == LIVE and token:
            values["holder_id"] = REPAIR_HOLDER_ID
            values["holder_expiration_time"] = db_now_plus_ms(expiration_ms)
        if row == STATE:
            values["state"] = "L" if LIVE not in lost and _is_live(connection, store) else "N"
        if row == NODE_ID:
            values["node_id"] = _logged_node_id(connection, names)
        connection.execute(sa.insert(store).values(values))


def raise_tokens(connection: Connection, names: TableNames) -> None:
    """Raise the tokens of the live lock and the fence to the journal's newest epoch."""
    newest = newest_epoch(connection, names)
    store = store_table(names)
    for row in (LIVE, FENCE):
        connection.execute(
            sa.update(store)
            .where(store.c.id == row, store.c.holder_token < newest)
            .values(holder_token=newest)
        )


def newest_epoch(connection: Connection, names: TableNames) -> int:
    """Return the greatest token in the journal; reads all of it."""
    inspector = sa.inspect(connection)
    journal = (names.messages, names.bindings, names.history, names.large_messages)
    there: Iterable[str] = filter(inspector.has_table, journal)
    return max((_greatest(connection, _epochs(table).c.epoch) for table in there), default=0)


def _epochs(table: str) -> sa.TableClause:
    return sa.table(table, sa.column("seq", sa.BigInteger), sa.column("epoch", sa.BigInteger))


def _greatest(connection: Connection, column: sa.ColumnElement[Any]) -> int:
    return int(connection.execute(sa.select(sa.func.max(column))).scalar() or 0)


def _is_live(connection: Connection, store: sa.TableClause) -> bool:
    held = sa.select(store.c.id).where(
        store.c.id == LIVE,
        store.c.holder_id.is_not(None),
        store.c.holder_expiration_time > db_now(),
    )
    return connection.execute(held).first() is not None


def _greatest_logged_token(connection: Connection, names: TableNames) -> int:
    log = _failover_log(connection, names)
    return 0 if log is None else _greatest(connection, log.c.token)


def _logged_node_id(connection: Connection, names: TableNames) -> str | None:
    log = _failover_log(connection, names)
    if log is None:
        return None
    latest = sa.select(log.c.node_id).where(log.c.node_id.is_not(None)).order_by(log.c.id.desc())
    found: str | None = connection.execute(latest.limit(1)).scalar()
    return found


def _failover_log(connection: Connection, names: TableNames) -> sa.TableClause | None:
    if not sa.inspect(connection).has_table(names.failover_log):
        return None
    return sa.table(names.failover_log, *map(sa.column, ("id", "token", "node_id")))
