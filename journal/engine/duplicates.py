"""Duplicate ids: a message that was stored is not stored again when it is sent again.

Each address keeps the newest of its ids, as rows of MESSAGES that are written with the message in
one transaction. So the next live node knows them, also those of whose commit no client was told.
The writer reads the ids of an address when it meets the first one, and then keeps them. Each new id
beyond the limit evicts the oldest, in the order in which messages were sent: so what is known does
not depend on how they were batched.

A batch never has two messages of one id: the second waits for the outcome of the first, and is
dropped only if that is stored. The sender of a dropped message is told that it is stored, which is
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
"""How many ids are in memory, of all addresses together (about 150 MB). Beyond it the addresses
not sent to for longest are evicted, and read again when they are needed."""

StoredIds = Iterable[tuple[int, bytes]]
"""The rows of an id cache, each its seq and its record, in the order of seq."""


class DuplicateIds:
    """The duplicate ids that the writer knows; used on its thread only."""

    def __init__(self, load: Callable[[int], StoredIds], most: int = MOST_IDS) -> None:
        """``load`` reads the rows of a cache from the store; it may raise StoreError."""
        self._load = load
        self._most = most
        self._caches: OrderedDict[int, _IdCache] = OrderedDict()
        """By the id of the cache, those used last at the end."""
        self._count = 0

    def screen(self, batch: Batch) -> Batch:
        """Return a batch without its duplicates; raises what loading raises.

        Nothing of the batch may be stored yet, and no two of its messages may have one id.
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
        # Only after the last call that may raise: the same batch is then screened again.
        is_changed = any(unit.dropped != dropped for unit, dropped in found)
        for unit, dropped in found:
            unit.dropped = dropped
        screened = batch_of(batch.items) if is_changed else batch
        screened.forgotten = [seq for view in views.values() for seq in view.forgotten]
        return screened

    def stored(self, batch: Batch) -> None:
        """Remember the ids of a batch that was stored."""
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
        """Forget these rows, as far as they are the oldest."""
        if self.superseded:
            self.superseded = [seq for seq in self.superseded if seq not in seqs]
        while next(iter(self.seqs.values()), 0) in seqs:
            self.seqs.popitem(last=False)


class _Screening:
    """An id cache as it will be after the ids of a batch that were screened so far."""

    def __init__(self, cache: _IdCache) -> None:
        self._cache = cache.seqs
        self._oldest: Iterator[tuple[bytes | None, int]] = chain(
            ((None, seq) for seq in cache.superseded), cache.seqs.items()
        )
        self._left = len(cache)
        self._gone: set[bytes] = set()
        """The ids of the cache that are in ``forgotten``."""
        self._taken: OrderedDict[bytes, int] = OrderedDict()
        """The ids of the batch that are not in ``forgotten``."""
        self.forgotten: list[int] = []
        """Rows of evicted ids, oldest first; some may be of the batch itself."""

    def takes(self, one: Guarded) -> bool:
        """Add the id of a message, evicting the oldest; return False if the id is known."""
        _, digest, keep = one.duplicate_id
        self.trim(keep)
        if digest in self._taken or (digest in self._cache and digest not in self._gone):
            return False
        self._taken[digest] = one.last_seq
        self.trim(keep)
        return True

    def trim(self, keep: int) -> None:
        """Keep the newest ``keep`` ids."""
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
                "reading a duplicate id failed: %s; a message sent again with it is stored again",
                error,
            )


def without_conflicts(batch: Batch) -> list[Batch]:
    """Split a batch, in order, so that no part has two units with one id.

    Nor does any part have a unit with an id before one that ends an id cache.
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
