"""The checksum of rows that ``jobs.migrate.checksum`` has Spark make, made in this process.

For a small table Spark's start of a job costs more than the rows. The hash of a row is Spark's
``xxhash64`` of its columns: each column is hashed by XXH64 with the hash of those before it as its
seed, 42 at first, and NULL leaves it as it is. Numbers are hashed as their little-endian bytes.
"""

import struct
from collections.abc import Callable, Iterable
from functools import reduce
from operator import xor
from typing import Final

import pyarrow as pa
from xxhash import xxh64_intdigest

from orthia.pipeline.jobs.contents import TableDigest

_SEED: Final = 42
_LONG: Final = struct.Struct("<q")
_INT: Final = struct.Struct("<i")
_NEGATIVE: Final = 1 << 63
_BEYOND: Final = 1 << 64


def digest_of(batches: Iterable[pa.RecordBatch]) -> TableDigest:
    """Return the number of rows and the checksum of all their columns, in the order they have.

    Columns are integers, times in microseconds, texts and bytes; raises TypeError for another.
    """
    rows = total = bits = 0
    for batch in batches:
        hashes = _row_hashes(batch)
        rows += len(hashes)
        total += sum(hashes)
        bits = reduce(xor, hashes, bits)
    return TableDigest(rows, str(total), bits)


def _row_hashes(batch: pa.RecordBatch) -> list[int]:
    """Return the hash of each row, which has a sign."""
    hashes = [_SEED] * batch.num_rows
    for column in batch.columns:
        values, encode = _hashed(column)
        hashes = [
            seed if value is None else xxh64_intdigest(encode(value), seed)
            for value, seed in zip(values.to_pylist(), hashes, strict=True)
        ]
    return [one - _BEYOND if one >= _NEGATIVE else one for one in hashes]


def _hashed(column: pa.Array) -> tuple[pa.Array, Callable[..., bytes]]:
    """Return what is hashed of a column, and how a value of that is made bytes."""
    kind = column.type
    if pa.types.is_int64(kind) or kind in (pa.timestamp("us"), pa.timestamp("us", tz="UTC")):
        return column.cast(pa.int64()), _LONG.pack
    if pa.types.is_int16(kind) or pa.types.is_int32(kind):
        return column, _INT.pack
    if pa.types.is_binary(kind) or pa.types.is_string(kind):
        return column.cast(pa.binary()), bytes
    raise TypeError(f"no checksum is made of a column of {kind}")
