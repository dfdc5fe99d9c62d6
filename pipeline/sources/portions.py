"""Rows in portions that fit into memory, whatever the size of a row.

A portion becomes an Arrow batch, which is in a worker's memory several times: fetched, decoded, and
on its way to Spark. So a portion is bounded in bytes, and in rows for their own overhead. A single
row that is larger is a portion of its own.
"""

import gc
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

ROWS: Final = 10_000
"""Rows of one portion, at most."""
BYTES: Final = 2 * 1024 * 1024
"""Bytes of one portion, at most, unless it is a single row; a worker needs some ten times more."""

Row = tuple[Any, ...]


def portions(rows: Iterable[Row], sized: Sequence[int], *, most: int = ROWS) -> Iterator[list[Row]]:
    """Yield ``rows`` in lists of at most ``most``.

    Values of the columns at the indexes ``sized`` count in bytes.
    """
    source = iter(rows)
    left_over: list[Row] = []
    while True:
        portion, left_over = _portion(source, sized, left_over, most)
        if not portion:
            return
        yield portion


def _portion(
    source: Iterator[Row], sized: Sequence[int], begun: list[Row], most: int
) -> tuple[list[Row], list[Row]]:
    """Return the next portion, and the row that did not fit.

    Garbage collection is off meanwhile: it would scan all new tuples repeatedly in vain.
    """
    portion = begun
    size = sum(_bytes(row, sized) for row in portion)
    enabled = gc.isenabled()
    gc.disable()
    try:
        while len(portion) < most and size < BYTES:
            row = next(source, None)
            if row is None:
                break
            size += _bytes(row, sized)
            if size > BYTES and portion:
                return portion, [row]
            portion.append(row)
    finally:
        if enabled:
            gc.enable()
    return portion, []


def _bytes(row: Row, sized: Sequence[int]) -> int:
    size = 0
    for at in sized:
        value = row[at]
        # SQLite may hold numbers in a column of bytes.
        if isinstance(value, bytes | str):
            size += len(value)
    return size
