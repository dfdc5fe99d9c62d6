"""Duplicate ids: a message that was stored is not stored again, whoever sends it once more.

Each address keeps the newest of its ids, as rows of MESSAGES that are written with the message in
one transaction. So the next live node knows them, also those of whose commit no client was told.
What the writer knows of an address it reads at the first id it meets, and then keeps.

A batch never has two messages of one id: the second waits for what becomes of the first, and is
dropped only if that is stored. The sender of what is dropped is told that it is stored, which is
true.
"""

import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from itertools import islice

from orthia.journal.changes import Guarded
from orthia.journal.codec import decode_duplicate_id
from orthia.journal.engine.batch import Batch, batch_of
from orthia.journal.errors import CorruptRecord
from orthia.journal.unit import Appended, Unit

LOGGER = logging.getLogger("orthia.journal")
MOST_IDS = 1_000_000
"""Ids in memory, of all addresses together; beyond it those of addresses not sent to for longest
are read again when they are needed. About 150 MB."""

StoredIds = Iterable[tuple[int, bytes]]
"""The rows of an id cache, each its seq and its record, in the order of seq."""


class DuplicateIds:
    """What the writer knows of duplicate ids; its thread only."""

    def __init__(self, load: Callable[[int], StoredIds], most: int = MOST_IDS) -> None:
        """``load`` reads the rows of a cache from the store; it may raise StoreError."""
        self._load = load
        self._most = most
        self._caches: OrderedDict[int, OrderedDict[bytes, int]] = OrderedDict()
        """By the id of the cache, those used last at the end: seqs by digest, oldest first."""
        self._count = 0

    def screen(self, batch: Batch) -> Batch:
        """Return a batch without its duplicates; raises what loading raises.

        Of it nothing may have been stored yet, nor may two of its messages have one id.
        """
        forgotten: list[int] = []
        keep: dict[int, int] = {}
        is_changed = False
        for unit in batch.guarded:
            if unit.ended_cache is not None:
                keep[unit.ended_cache] = 0
            dropped = frozenset(n for one in self._duplicates(unit) for n in one.messages)
            is_changed |= dropped != unit.dropped
            unit.dropped = dropped
            keep.update((one.duplicate_id.cache_id, one.duplicate_id.keep) for one in unit.guarded)
        for cache_id, most in keep.items():
            cache = self._cache(cache_id)
            forgotten += islice(cache.values(), max(len(cache) - most, 0))
        screened = batch_of(batch.items) if is_changed else batch
        screened.forgotten = forgotten
        return screened

    def stored(self, batch: Batch) -> None:
        """Know the ids of a batch that was stored."""
        forgotten = frozenset(batch.forgotten)
        for unit in batch.guarded:
            if unit.ended_cache is not None:
                self._count -= len(self._caches.pop(unit.ended_cache, ()))
            for one in unit.guarded:
                cache = self._caches.get(one.duplicate_id.cache_id)
                if cache is None:
                    continue  # it is read again when it is needed again
                if one.messages[0] not in unit.dropped:
                    cache[one.duplicate_id.digest] = one.last_seq
                    self._count += 1
                while forgotten and next(iter(cache.values()), 0) in forgotten:
                    cache.popitem(last=False)
                    self._count -= 1

    def _duplicates(self, unit: Unit) -> Iterable[Guarded]:
        """Return what of a unit is stored, or has the id of something before it in the unit."""
        seen: set[tuple[int, bytes]] = set()
        for one in unit.guarded:
            cache_id, digest, _ = one.duplicate_id
            if digest in self._cache(cache_id) or (cache_id, digest) in seen:
                yield one
            seen.add((cache_id, digest))

    def _cache(self, cache_id: int) -> OrderedDict[bytes, int]:
        cache = self._caches.get(cache_id)
        if cache is None:
            cache = OrderedDict(_read(self._load(cache_id)))
            self._caches[cache_id] = cache
            self._count += len(cache)
        self._caches.move_to_end(cache_id)
        while self._count > self._most and len(self._caches) > 1:
            _, gone = self._caches.popitem(last=False)
            self._count -= len(gone)
        return cache


def _read(rows: StoredIds) -> Iterator[tuple[bytes, int]]:
    for seq, record in rows:
        try:
            yield decode_duplicate_id(record, seq), seq
        except CorruptRecord as error:
            LOGGER.error(  # noqa: TRY400 - the reason is all there is to say
                "a message of this duplicate id is not recognised if it is sent again: %s", error
            )


def without_conflicts(batch: Batch) -> list[Batch]:
    """Return batches, in order, of the units of this one, in none of which two have one id.

    Nor is any before a unit that ends an id cache.
    """
    parts: list[list[Appended]] = [[]]
    seen: set[tuple[int, bytes]] = set()
    for item in batch.items:
        keys = _keys(item.guarded) if isinstance(item, Unit) and item.guarded else set()
        ends = isinstance(item, Unit) and item.ended_cache is not None
        if ends or not keys.isdisjoint(seen):
            parts.append([])
            seen = set()
        seen |= keys
        parts[-1].append(item)
    return [batch] if len(parts) == 1 else [batch_of(part) for part in parts]


def _keys(guarded: Iterable[Guarded]) -> set[tuple[int, bytes]]:
    return {one.duplicate_id[:2] for one in guarded}
