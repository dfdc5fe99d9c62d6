"""The checksum of rows that ``jobs.migrate.checksum`` has Spark make, made in this process.

For a small table Spark's start of a job costs more than the rows. The hash of a row is Spark's
``xxhash64`` of its columns: each column is hashed by XXH64 with the hash of those before it as its
seed, 42 at first, and NULL leaves it as it is.
"""

from collections.abc import Iterable
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from orthia.pipeline.jobs.contents import TableDigest

_Hashes = npt.NDArray[np.uint64]
_Places = npt.NDArray[np.int64]

_SEED: Final = np.uint64(42)
_P1, _P2, _P3, _P4, _P5 = (
    np.uint64(prime)
    for prime in (
        0x9E3779B185EBCA87,
        0xC2B2AE3D27D4EB4F,
        0x165667B19E3779F9,
        0x85EBCA77C2B2AE63,
        0x27D4EB2F165667C5,
    )
)
_STRIPE: Final = 32
_WORD: Final = 8
_HALF: Final = np.uint64(32)
_LOW: Final = np.uint64(0xFFFFFFFF)


def digest_of(batches: Iterable[pa.RecordBatch]) -> TableDigest:
    """Return the number of rows and the checksum of all their columns, in the order they have.

    Columns are integers, times in microseconds, texts and bytes; raises TypeError for another.
    """
    rows = total = xor = 0
    for batch in batches:
        hashes = row_hashes(batch)
        rows += len(hashes)
        signed = hashes.view(np.int64)
        # Each half is summed by itself: as many rows as this would take do not fit into memory.
        total += (int((signed >> 32).sum()) << 32) + int((hashes & _LOW).sum())
        xor ^= int(np.bitwise_xor.reduce(signed, initial=0))
    return TableDigest(rows, str(total), xor)


def row_hashes(batch: pa.RecordBatch) -> _Hashes:
    """Return the hash of each row; raises TypeError for a column of another type."""
    hashes = np.full(batch.num_rows, _SEED)
    for column in batch.columns:
        found = _hashed(column, hashes)
        is_valid = column.is_valid().to_numpy(zero_copy_only=False)
        hashes = np.where(is_valid, found, hashes)
    return hashes


def _hashed(column: pa.Array, seeds: _Hashes) -> _Hashes:
    kind = column.type
    if pa.types.is_int64(kind) or kind in (pa.timestamp("us"), pa.timestamp("us", tz="UTC")):
        values = column.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
        return _finished(_with_word(seeds + _P5 + np.uint64(_WORD), values.view(np.uint64)))
    if pa.types.is_int16(kind) or pa.types.is_int32(kind):
        values = column.cast(pa.int32()).fill_null(0).to_numpy(zero_copy_only=False)
        low = values.astype(np.int64).view(np.uint64) & _LOW
        return _finished(_with_half_word(seeds + _P5 + np.uint64(_WORD // 2), low))
    if pa.types.is_binary(kind) or pa.types.is_string(kind):
        return _of_bytes(column, seeds)
    raise TypeError(f"no checksum is made of a column of {kind}")


def _of_bytes(column: pa.Array, seeds: _Hashes) -> _Hashes:
    _, offsets, data = column.buffers()
    ends = np.frombuffer(offsets, np.int32)[column.offset :][: len(column) + 1].astype(np.int64)
    content = np.frombuffer(data if data is not None else b"", np.uint8)
    starts, lengths = ends[:-1], np.diff(ends)
    hashes = _of_stripes(content, starts, lengths, seeds) + lengths.astype(np.uint64)
    places = starts + lengths // _STRIPE * _STRIPE
    left = lengths % _STRIPE
    while (some := np.flatnonzero(left >= _WORD)).size:
        hashes[some] = _with_word(hashes[some], _words(content, places[some], _WORD))
        places[some] += _WORD
        left[some] -= _WORD
    some = np.flatnonzero(left >= _WORD // 2)
    hashes[some] = _with_half_word(hashes[some], _words(content, places[some], _WORD // 2))
    places[some] += _WORD // 2
    left[some] -= _WORD // 2
    while (some := np.flatnonzero(left)).size:
        byte = content[places[some]].astype(np.uint64)
        hashes[some] = _rotated(hashes[some] ^ (byte * _P5), 11) * _P1
        places[some] += 1
        left[some] -= 1
    return _finished(hashes)


def _of_stripes(
    content: npt.NDArray[np.uint8], starts: _Places, lengths: _Places, seeds: _Hashes
) -> _Hashes:
    """Return the state after all whole stripes, before the length is added."""
    hashes = seeds + _P5
    long = np.flatnonzero(lengths >= _STRIPE)
    if not long.size:
        return hashes
    seed = seeds[long]
    lanes = [seed + _P1 + _P2, seed + _P2, seed.copy(), seed - _P1]
    stripes = lengths[long] // _STRIPE
    for number in range(int(stripes.max())):
        has_more = np.flatnonzero(stripes > number)
        places = starts[long[has_more]] + number * _STRIPE
        for at, lane in enumerate(lanes):
            lane[has_more] = _round(lane[has_more], _words(content, places + at * _WORD, _WORD))
    turns = (1, 7, 12, 18)
    mixed = sum(
        (_rotated(lane, turn) for lane, turn in zip(lanes, turns, strict=True)),
        start=np.zeros_like(seed),
    )
    for lane in lanes:
        mixed = (mixed ^ _round(np.zeros_like(lane), lane)) * _P1 + _P4
    hashes[long] = mixed
    return hashes


def _words(content: npt.NDArray[np.uint8], places: _Places, size: int) -> _Hashes:
    """Return the little-endian numbers of ``size`` bytes at ``places``."""
    found = content[places[:, np.newaxis] + np.arange(size)]
    words: _Hashes = found.view(f"<u{size}").ravel().astype(np.uint64)
    return words


def _round(lane: _Hashes, words: _Hashes) -> _Hashes:
    return _rotated(lane + words * _P2, 31) * _P1


def _with_word(hashes: _Hashes, words: _Hashes) -> _Hashes:
    mixed = hashes ^ _round(np.zeros_like(hashes), words)
    return _rotated(mixed, 27) * _P1 + _P4


def _with_half_word(hashes: _Hashes, words: _Hashes) -> _Hashes:
    return _rotated(hashes ^ (words * _P1), 23) * _P2 + _P3


def _finished(hashes: _Hashes) -> _Hashes:
    hashes = (hashes ^ (hashes >> np.uint64(33))) * _P2
    hashes = (hashes ^ (hashes >> np.uint64(29))) * _P3
    return hashes ^ (hashes >> _HALF)


def _rotated(values: _Hashes, by: int) -> _Hashes:
    return (values << np.uint64(by)) | (values >> np.uint64(64 - by))
