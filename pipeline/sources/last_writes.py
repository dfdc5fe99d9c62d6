"""The last writes of nodes to a journal: a later sign of life than the renewals of their leases.

A node renews every few seconds; one that serves commits all the time. Each row has its epoch
(fencing token) and time; the history has the time at which a message left its queue. Deleted rows
prove nothing: if all messages were consumed and there is no history, no write of an earlier node is
left, and only its renewals bound its end.

Both are looked up by index, for the newest epochs only: a few dozen small statements for each
takeover, whatever the size of the journal.
"""

from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa

from orthia.config.store_settings import DatabaseStoreSettings
from orthia.nodemanager.events import LiveLockObtained
from orthia.pipeline.sources.fetching import TIME, Column, Source
from orthia.pipeline.times import instant_at

_EPOCHS: Final = 8
"""The number of newest epochs that are looked up."""


def last_writes(source: Source, settings: DatabaseStoreSettings) -> dict[int, int]:
    """Return the last write of each of the newest epochs, in microseconds since 1970 UTC.

    By epoch, without epochs of which no row is left. Raises StoreError.
    """
    found: dict[int, int] = {}
    for epoch, at in [*_stored(source, settings), *_removed(source, settings)]:
        found[epoch] = max(at, found.get(epoch, at))
    return found


def _stored(source: Source, settings: DatabaseStoreSettings) -> Iterator[tuple[int, int]]:
    """Yield epochs, the newest first, and the time of the last row of each."""
    table = source.table(settings.message_table_name)
    columns = [Column("seq", pa.int64()), Column("epoch", pa.int64()), Column("written_at", TIME)]

    def row(where: str) -> tuple[int, int, int] | None:
        found: tuple[int, int, int] | None = _first(
            source, columns, f"FROM {table} WHERE {where} LIMIT 1"
        )
        return found

    last = row("seq > 0 ORDER BY seq DESC")
    for _ in range(_EPOCHS):
        if last is None:
            return
        seq, epoch, at = last
        yield epoch, at
        # The last row of an earlier epoch is not below `low`, and not above `high`.
        low, high = 0, seq
        while low < high:
            middle = (low + high) // 2
            following = row(f"seq > {middle:d} ORDER BY seq")
            if following is None or following[1] >= epoch:
                high = middle
            else:
                low = following[0]
        last = row(f"seq > 0 AND seq <= {low:d} ORDER BY seq DESC")
        if last is not None and last[1] >= epoch:
            return  # epochs are out of order, which an audit reports


def _removed(source: Source, settings: DatabaseStoreSettings) -> Iterator[tuple[int, int]]:
    """Yield epochs, and the time at which the last message left its queue under each."""
    log = source.table(settings.failover_log_table_name)
    history = source.table(settings.message_history_table_name)
    begun = source.batches(
        [Column("token", pa.int64()), Column("db_time", TIME)],
        f"FROM {log} WHERE event = '{LiveLockObtained.__name__}' AND db_time IS NOT NULL"
        f" AND token IS NOT NULL ORDER BY id DESC LIMIT {_EPOCHS:d}",
    )
    starts = sorted((row for batch in list(begun) for row in _rows(batch)), reverse=True)
    asked = [(token, ">=", at) for token, at in starts[:1]]
    asked += [(token - 1, "<", at) for token, at in starts]
    for epoch, operator, at in asked:
        rest = f"FROM {history} WHERE removed_at {operator} {source.time(instant_at(at))}"
        found = _first(source, [Column("at", TIME, "MAX(removed_at)")], rest)
        if found is not None and found[0] is not None:
            yield epoch, found[0]


def _first(source: Source, columns: list[Column], rest: str) -> Any:
    # Read to the end: the rest of a result would block the next statement.
    rows = [row for batch in list(source.batches(columns, rest)) for row in _rows(batch)]
    return rows[0] if rows else None


def _rows(batch: pa.RecordBatch) -> Iterator[tuple[Any, ...]]:
    columns = [
        (column.cast(pa.int64()) if column.type == TIME else column).to_pylist()
        for column in batch.columns
    ]
    return zip(*columns, strict=True)
