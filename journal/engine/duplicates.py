"""Duplicate ids: a message that was stored is not stored again, whoever sends it once more.

Each address keeps the newest of its ids, as rows of MESSAGES that are written with the message in
one transaction. So the next live node knows them, also those of whose commit no client was told.
What the writer knows of an address it reads at the first id it meets, and then keeps. The oldest is
kept no more as soon as there is one too many, in the order in which messages were sent: so what is
known does not depend on how they came into batches.

A batch never has two messages of one id: the second waits for what becomes of the first, and is
dropped only if that is stored. The sender of what is dropped is told that it is stored, which is
true.
"""

import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from itertools import chain

from orthia.journal.engine.batch import Batch, batch_of
from orthia.journal.errors import CorruptRecord
from orthia.journal.model.changes import Guarded
from orthia.journal.model.codec import decode_duplicate_id
from orthia.journal.model.unit import Appended, Unit

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
        self._caches: OrderedDict[int, _IdCache] = OrderedDict()
        """By the id of the cache, those used last at the end."""
        self._count = 0

    def screen(self, batch: Batch) -> Batch:
        """Return a batch without its duplicates; raises what loading raises.

        Of it nothing may have been stored yet, nor may two of its messages have one id.
        """
        views: dict[int, _Screening] = {}
        found: list[tuple[Unit, frozenset[int]]] = []
        for unit in batch.guarded:
            for cache_id in unit.ended_caches:
                self._view(views, cache_id).trim(0)
            dropped = frozenset(
                n
                for one in unit.guarded
                if not self._view(views, one.duplicate_id.cache_id).takes(one)
                for n in one.messages
            )
            found.append((unit, dropped))
        # Only now, behind the last that may raise: it is asked again then, about the same batch.
        is_changed = any(unit.dropped != dropped for unit, dropped in found)
        for unit, dropped in found:
            unit.dropped = dropped
        screened = batch_of(batch.items) if is_changed else batch
        screened.forgotten = [seq for view in views.values() for seq in view.forgotten]
        return screened

    def stored(self, batch: Batch) -> None:
        """Know the ids of a batch that was stored."""
        forgotten = frozenset(batch.forgotten)
        for unit in batch.guarded:
            for cache_id in unit.ended_caches:
                ended = self._caches.pop(cache_id, None)
                self._count -= len(ended) if ended is not None else 0
            for one in unit.guarded:
                cache = self._caches.get(one.duplicate_id.cache_id)
                if cache is None:
                    continue  # it is read again when it is needed again
                self._count -= len(cache)
                if one.messages[0] not in unit.dropped:
                    cache.add(one.duplicate_id.digest, one.last_seq)
                if forgotten:
                    cache.forget(forgotten)
                self._count += len(cache)

    def _view(self, views: dict[int, "_Screening"], cache_id: int) -> "_Screening":
        view = views.get(cache_id)
        if view is None:
            view = views[cache_id] = _Screening(self._cache(cache_id))
        return view

    def _cache(self, cache_id: int) -> "_IdCache":
        cache = self._caches.get(cache_id)
        if cache is None:
            cache = _IdCache()
            for digest, seq in _read(self._load(cache_id)):
                cache.add(digest, seq)
            self._caches[cache_id] = cache
            self._count += len(cache)
        self._caches.move_to_end(cache_id)
        while self._count > self._most and len(self._caches) > 1:
            _, gone = self._caches.popitem(last=False)
            self._count -= len(gone)
        return cache


class _IdCache:
    """The ids of an address that are kept, as the rows they have in the store."""

    def __init__(self) -> None:
        self.seqs: OrderedDict[bytes, int] = OrderedDict()
        """By digest, oldest first."""
        self.superseded: list[int] = []
        """Rows of ids that have a newer row, which only a batch that was stored in parts leaves
        behind. They count as the oldest: so they are forgotten next, and no row stays for ever."""

    def __len__(self) -> int:
        return len(self.seqs) + len(self.superseded)

    def add(self, digest: bytes, seq: int) -> None:
        """Add an id as the newest one."""
        before = self.seqs.pop(digest, None)
        self.seqs[digest] = seq
        if before is not None:
            self.superseded.append(before)

    def forget(self, seqs: frozenset[int]) -> None:
        """Forget the rows of these, as far as they are the oldest."""
        if self.superseded:
            self.superseded = [seq for seq in self.superseded if seq not in seqs]
        while next(iter(self.seqs.values()), 0) in seqs:
            self.seqs.popitem(last=False)


class _Screening:
    """An id cache as it is behind those ids of a batch that were looked at."""

    def __init__(self, cache: _IdCache) -> None:
        self._cache = cache.seqs
        self._oldest: Iterator[tuple[bytes | None, int]] = chain(
            ((None, seq) for seq in cache.superseded), cache.seqs.items()
        )
        self._left = len(cache)
        self._gone: set[bytes] = set()
        """Of the cache, those that are in ``forgotten``."""
        self._taken: OrderedDict[bytes, int] = OrderedDict()
        """Of the batch, those that are not in ``forgotten``."""
        self.forgotten: list[int] = []
        """Rows of ids that are kept no more, oldest first; some may be of the batch itself."""

    def takes(self, one: Guarded) -> bool:
        """Take the id of a message, with which the oldest is kept no more; False if it is known."""
        _, digest, keep = one.duplicate_id
        self.trim(keep)
        if digest in self._taken or (digest in self._cache and digest not in self._gone):
            return False
        self._taken[digest] = one.last_seq
        self.trim(keep)
        return True

    def trim(self, keep: int) -> None:
        """Keep so many at most, the newest."""
        while self._left + len(self._taken) > keep:
            if self._left:
                digest, seq = next(self._oldest)
                if digest is not None:
                    self._gone.add(digest)
                self._left -= 1
            else:
                _, seq = self._taken.popitem(last=False)
            self.forgotten.append(seq)


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

    Nor is any that has an id before a unit that ends an id cache.
    """
    parts: list[list[Appended]] = [[]]
    seen: set[tuple[int, bytes]] = set()
    for item in batch.items:
        keys = _keys(item.guarded) if isinstance(item, Unit) and item.guarded else set()
        ends = isinstance(item, Unit) and bool(item.ended_caches)
        if (ends and seen) or not keys.isdisjoint(seen):
            parts.append([])
            seen = set()
        seen |= keys
        parts[-1].append(item)
    return [batch] if len(parts) == 1 else [batch_of(part) for part in parts]


def _keys(guarded: Iterable[Guarded]) -> set[tuple[int, bytes]]:
    return {one.duplicate_id[:2] for one in guarded}
