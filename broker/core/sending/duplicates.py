"""Duplicate ids: a message that is sent a second time is neither stored nor published again.

The id of a message that is stored is stored in the same transaction, so that the next live node
knows it: ``orthia.journal.engine.duplicates``. If nothing of a message is stored, because it is
only published or because this node stores nothing, its id is in memory.
"""

from collections import Counter, OrderedDict
from collections.abc import Iterable
from hashlib import blake2b

from orthia.broker.core.errors import NotLive
from orthia.broker.core.identity import Principal
from orthia.broker.core.limits.creations import QueueCreations
from orthia.broker.core.routing.addresses import AddressBook
from orthia.broker.quoting import quoted
from orthia.journal.errors import JournalClosed
from orthia.journal.journal import MessageJournal
from orthia.journal.model.changes import DuplicateId
from orthia.journal.model.codec import IdCacheBinding
from orthia.journal.model.unit import Binding

MOST_IN_MEMORY = 100_000
"""Ids in memory, of all addresses together."""
_DIGEST_BYTES = 16


class DuplicateIds:
    """The id caches of addresses; on the loop's thread."""

    def __init__(
        self,
        journal: MessageJournal,
        bindings: Iterable[Binding],
        book: AddressBook,
        creations: QueueCreations,
    ) -> None:
        """``creations`` counts id caches of addresses without queues as queues."""
        self._journal = journal
        self._book = book
        self._creations = creations
        self._caches = {one.address: one for one in bindings if isinstance(one, IdCacheBinding)}
        for one in self._caches.values():
            if one.user is not None:
                creations.opened(one.user or None)
        self._inherited = set(self._caches)
        """Addresses for which earlier nodes stored an unknown number of ids."""
        self._stored: Counter[str] = Counter()
        """How many ids of an address this node has stored."""
        self._asked = 0
        self._newest: dict[str, int] = {}
        """By address, the number of the last message with an id that this node got for it."""
        self._held: Counter[str] = Counter()
        """By address, how many plans are being filled that use its ids."""
        self._in_memory: OrderedDict[str, OrderedDict[bytes, None]] = OrderedDict()
        """By address; the address that was sent to last is at the end."""
        self._count = 0

    def _cache_size(self, address: str) -> int:
        return self._book.settings_of(address).id_cache_size

    def to_store(self, principal: Principal, address: str, duplicate_id: str) -> DuplicateId | None:
        """Return the id under which the journal guards a message; None if it keeps no ids.

        The first id of an address without a queue counts as a queue: nothing else bounds how many
        such addresses there are. Raises NotLive, LimitExceeded.
        """
        keep = self._cache_size(address)
        if keep < 1:
            return None
        cache = self._caches.get(address)
        if cache is None:
            cache = self._caches[address] = self._bind(principal, address)
        self._renew(address)
        self._stored[address] += 1
        return DuplicateId(cache.cache_id, _digest(duplicate_id), keep)

    def _renew(self, address: str) -> None:
        if address in self._caches:
            self._asked += 1
            self._newest[address] = self._asked

    def newest(self, address: str) -> int | None:
        """Return a number that grows with each id that is sent to an address, known or new.

        0 while this node got none; None if no ids of the address are stored.
        """
        return self._newest.get(address, 0) if address in self._caches else None

    def hold(self, address: str) -> None:
        """Keep the ids of an address, however old they are, until ``release``."""
        self._held[address] += 1

    def release(self, address: str) -> None:
        """Undo one ``hold``; the ids count as new from now on."""
        self._held[address] -= 1
        if not self._held[address]:
            del self._held[address]
        self._renew(address)

    def is_held(self, address: str) -> bool:
        """Return whether a plan is being filled that uses the ids of an address."""
        return address in self._held

    def addresses(self) -> list[str]:
        """Return the addresses with stored ids."""
        return list(self._caches)

    def holds(self, address: str, cache_id: int) -> bool:
        """Return whether the ids of an address are still in the cache with this id."""
        cache = self._caches.get(address)
        return cache is not None and cache.cache_id == cache_id

    def is_known(self, address: str, duplicate_id: str) -> bool:
        """Return whether a message of which nothing is stored was sent before."""
        return _digest(duplicate_id) in self._in_memory.get(address, ())

    def note(self, address: str, duplicate_id: str) -> None:
        """Remember the id of a message of which nothing is stored."""
        keep = self._cache_size(address)
        if keep < 1:
            return
        known = self._in_memory.setdefault(address, OrderedDict())
        self._in_memory.move_to_end(address)
        self._count -= len(known)
        known[_digest(duplicate_id)] = None
        self._count += len(known)
        while len(known) > keep:
            known.popitem(last=False)
            self._count -= 1
        while self._count > MOST_IN_MEMORY and len(self._in_memory) > 1:
            _, forgotten = self._in_memory.popitem(last=False)
            self._count -= len(forgotten)

    def forget(self, address: str) -> IdCacheBinding | None:
        """Forget the ids of an address; return its stored cache, if it has one."""
        self._newest.pop(address, None)
        self._stored.pop(address, None)
        self._inherited.discard(address)
        cache = self._caches.pop(address, None)
        if cache is not None and cache.user is not None:
            self._creations.deleted(cache.user or None)
            self._creations.gone(cache)
        return cache

    def most_stored(self, address: str) -> int:
        """Return how many ids of an address the store has at most."""
        keep = self._cache_size(address)
        return keep if address in self._inherited else min(keep, self._stored[address])

    def _bind(self, principal: Principal, address: str) -> IdCacheBinding:
        creations = self._creations
        counts = not self._book.has_queues(address)
        if counts:
            named = f"the first duplicate id of {quoted(address)}, which has no queue,"
            creations.refuse_if_too_many(principal, named)
        user = creations.user_of(principal) if counts else None
        try:
            stored_as = (user or "") if counts else None
            binding = IdCacheBinding(self._journal.next_id(), address, stored_as)
            self._journal.add_binding(binding)
        except JournalClosed as error:
            raise NotLive(str(error)) from None
        if counts:
            creations.created(principal, binding)
            creations.opened(user)
        return binding


def _digest(duplicate_id: str) -> bytes:
    return blake2b(duplicate_id.encode(), digest_size=_DIGEST_BYTES).digest()
