"""Duplicate ids: of each id one message is stored, and of it nothing is lost."""

from collections.abc import Sequence
from functools import partial

import pytest
from typing_extensions import override

from orthia.config.errors import OrthiaError
from orthia.config.store_settings import DatabaseStoreSettings
from orthia.database import PermanentStoreError, StoreError, StoreUnavailable, UnknownOutcome
from orthia.journal import MessageJournal, MessageLocation, Unit
from orthia.journal.engine import duplicates
from orthia.journal.engine.batch import batch_of
from orthia.journal.engine.duplicates import DuplicateIds
from orthia.journal.memory import MemoryJournal
from orthia.journal.model.changes import DuplicateId
from orthia.journal.model.codec import IdCacheBinding, encode_duplicate_id
from tests.journal.keeping import KeepingStore
from tests.journal.scripted import ScriptedStore, deletion, end_of_ids, failing, write
from tests.journal.support import (
    OTHER_QUEUE,
    QUEUE,
    JournalStore,
    MemoryJournalStore,
    payload,
)

KEEP = 5


def bind(journal: MessageJournal, address: str = "orders") -> int:
    """Return the id of a new id cache."""
    cache_id = journal.next_id()
    journal.add_binding(IdCacheBinding(cache_id, address))
    return cache_id


def known_as(cache_id: int, name: str, keep: int = KEEP) -> DuplicateId:
    """Return a duplicate id."""
    return DuplicateId(cache_id, name.encode().ljust(16), keep)


def guarded(text: str, duplicate_id: DuplicateId) -> Unit:
    """Return a message with a duplicate id on its way."""
    unit = Unit()
    unit.add_message([QUEUE], payload(text))
    unit.guard(duplicate_id, range(1))
    return unit


def send(
    store: JournalStore,
    journal: MessageJournal,
    messages: Sequence[tuple[str, DuplicateId | None]],
    queues: Sequence[int] = (QUEUE,),
) -> frozenset[int]:
    """Store messages by one unit; return which were dropped."""
    told: list[frozenset[int]] = []
    unit = Unit(lambda: told.append(unit.dropped))
    for number, (text, duplicate_id) in enumerate(messages):
        unit.add_message(queues, payload(text))
        if duplicate_id is not None:
            unit.guard(duplicate_id, range(number, number + 1))
    journal.append_unit(unit)
    store.loop.run_until(lambda: told, "the unit is stored")
    return told[0]


def test_of_one_id_one_message_is_stored(store: JournalStore) -> None:
    """The second is not, and its sender is told that it is stored."""
    journal = store.open()
    cache = bind(journal)
    assert send(store, journal, [("first", known_as(cache, "a"))]) == frozenset()
    assert send(store, journal, [("again", known_as(cache, "a"))]) == {0}
    assert send(store, journal, [("other", known_as(cache, "b"))]) == frozenset()
    assert store.bodies(journal) == ["first", "other"]


def test_the_next_node_knows_the_ids(store: JournalStore) -> None:
    """They are stored with their messages, and read by whoever is live next."""
    journal = store.open()
    cache = bind(journal)
    send(store, journal, [("first", known_as(cache, "a")), ("second", known_as(cache, "b"))])
    assert journal.close(drain=True)
    store.advance_fence(2)
    successor = store.open(2)
    bound = [one for one in successor.bindings if isinstance(one, IdCacheBinding)]
    assert bound == [IdCacheBinding(cache, "orders")]
    dropped = send(store, successor, [("x", known_as(cache, "b")), ("third", known_as(cache, "c"))])
    assert dropped == {0}
    assert store.bodies(successor) == ["first", "second", "third"]


def test_a_message_that_was_consumed_is_known(store: JournalStore) -> None:
    """What is acknowledged is gone, and its id is not."""
    journal = store.open()
    cache = bind(journal)
    send(store, journal, [("first", known_as(cache, "a"))])
    ((seq, *_),) = store.window(journal).messages
    journal.delete([MessageLocation(seq)])
    assert send(store, journal, [("again", known_as(cache, "a"))]) == {0}
    assert store.bodies(journal) == []


def test_a_unit_is_stored_without_its_duplicates(store: JournalStore) -> None:
    """All else of it is, and known; of two of its own messages with one id the first."""
    journal = store.open()
    cache = bind(journal)
    send(store, journal, [("first", known_as(cache, "a"))])
    dropped = send(
        store,
        journal,
        [
            ("plain", None),
            ("again", known_as(cache, "a")),
            ("second", known_as(cache, "b")),
            ("second again", known_as(cache, "b")),
        ],
        queues=[QUEUE, OTHER_QUEUE],
    )
    assert dropped == {1, 3}
    assert store.bodies(journal) == ["first", "plain", "second"]
    assert store.bodies(journal, OTHER_QUEUE) == ["plain", "second"]
    assert send(store, journal, [("third time", known_as(cache, "b"))]) == {0}
    assert store.bodies(journal) == ["first", "plain", "second"]


def test_copies_of_a_message_are_stored_all_or_none(store: JournalStore) -> None:
    """What diverts make of one message has one id."""
    journal = store.open()
    cache = bind(journal)
    for expected in (frozenset[int](), frozenset({0, 1})):
        told: list[bool] = []
        unit = Unit(partial(told.append, True))
        unit.add_message([QUEUE, OTHER_QUEUE], payload("one"))
        unit.add_message([OTHER_QUEUE], payload("copy of one"))
        unit.guard(known_as(cache, "a"), range(2))
        unit.add_message([QUEUE], payload("plain"))
        journal.append_unit(unit)
        store.loop.run_until(partial(bool, told), "the unit is stored")
        assert unit.dropped == expected
    assert store.bodies(journal) == ["one", "plain", "plain"]
    assert store.bodies(journal, OTHER_QUEUE) == ["one", "copy of one"]


def test_the_second_of_a_batch_waits_for_the_first(store: JournalStore) -> None:
    """However fast they come: of many units with few ids one of each id is stored, in order."""
    journal = store.open()
    cache = bind(journal)
    told: list[tuple[int, bool]] = []
    for number in range(60):
        unit = guarded(f"message {number}", known_as(cache, f"{number % 4}"))
        unit.done = lambda unit=unit, number=number: told.append((number, bool(unit.dropped)))
        journal.append_unit(unit)
    store.loop.run_until(lambda: len(told) == 60, "all units are stored")
    assert told == [(number, number >= 4) for number in range(60)]
    assert store.bodies(journal) == [f"message {number}" for number in range(4)]


def test_the_newest_ids_are_kept(store: JournalStore) -> None:
    """The oldest go, from memory and from the store: there are never more."""
    journal = store.open()
    cache = bind(journal)
    for number in range(3 * KEEP):
        send(store, journal, [(f"{number}", known_as(cache, f"id {number}"))])
    for _ in range(2):  # the node that sent them, and the next
        for number in range(2 * KEEP, 3 * KEEP):
            assert send(store, journal, [("again", known_as(cache, f"id {number}"))]) == {0}
        journal.close(drain=True)
        store.advance_fence(2)
        journal = store.open(2)
    rows = [seq for seq, (queue_id, _) in store.rows().items() if queue_id == cache]
    assert len(rows) == KEEP
    assert send(store, journal, [("sent long ago", known_as(cache, "id 0"))]) == frozenset()


@pytest.mark.parametrize("is_one_unit", [True, False])
def test_one_too_many_is_forgotten_at_once(store: JournalStore, *, is_one_unit: bool) -> None:
    """In the order in which they were sent, whether a batch has several or one."""
    journal = store.open()
    cache = bind(journal)
    names = ["a", "b", "c", "a", "a", "c", "b"]
    messages = [(f"{n} {name}", known_as(cache, name, 2)) for n, name in enumerate(names)]
    if is_one_unit:
        assert send(store, journal, messages) == {4, 5}
    else:
        units = [guarded(text, duplicate_id) for text, duplicate_id in messages]
        for unit in units:
            journal.append_unit(unit)
        store.settle(journal)
        assert [number for number, unit in enumerate(units) if unit.dropped] == [4, 5]
    assert store.bodies(journal) == ["0 a", "1 b", "2 c", "3 a", "6 b"]
    for token in (2, 3):  # the next node knows those two, and no other
        rows = [seq for seq, (queue_id, _) in store.rows().items() if queue_id == cache]
        assert len(rows) == 2
        journal.close(drain=True)
        store.advance_fence(token)
        journal = store.open(token)
        again = [("again", known_as(cache, name, 2)) for name in "ab"]
        assert send(store, journal, again) == {0, 1}
    assert send(store, journal, [("c again", known_as(cache, "c", 2))]) == frozenset()


def test_an_id_that_a_batch_makes_the_store_forget_is_taken_anew(store: JournalStore) -> None:
    """Though it was stored before the batch: with its new row, and no other."""
    journal = store.open()
    cache = bind(journal)
    first = [(name, known_as(cache, name, 2)) for name in "ab"]
    assert send(store, journal, first) == frozenset()
    second = [(f"{name} later", known_as(cache, name, 2)) for name in "cab"]
    assert send(store, journal, second) == frozenset()
    rows = [seq for seq, (queue_id, _) in store.rows().items() if queue_id == cache]
    assert len(rows) == 2
    assert send(store, journal, second[1:]) == {0, 1}


def test_a_cache_that_ends_leaves_nothing(store: JournalStore) -> None:
    """Its ids go with its binding, those of units on their way too; others stay."""
    journal = store.open()
    cache, other = bind(journal), bind(journal, "invoices")
    send(store, journal, [("a", known_as(cache, "a")), ("b", known_as(other, "b"))])
    for name in "cde":
        journal.append_unit(guarded(name, known_as(cache, name)))
    ended: list[bool] = []
    unit = Unit(partial(ended.append, True))
    unit.delete_id_cache(cache)
    journal.append_unit(unit)
    store.loop.run_until(lambda: ended, "the end of the cache")
    assert [queue for queue, _ in store.rows().values() if queue == cache] == []
    journal.close(drain=True)
    store.advance_fence(2)
    successor = store.open(2)
    bound = [one.cache_id for one in successor.bindings if isinstance(one, IdCacheBinding)]
    assert bound == [other]
    assert send(store, successor, [("again", known_as(other, "b"))]) == {0}
    assert store.bodies(successor) == ["a", "b", "c", "d", "e"]


def test_several_caches_end_in_one_unit(store: JournalStore) -> None:
    """With all their rows; an id that is on its way to one of them is stored, and goes, before."""
    journal = store.open()
    caches = [bind(journal, f"orders.{number}") for number in range(5)]
    for cache in caches:
        send(store, journal, [(name, known_as(cache, name)) for name in "ab"])
    journal.append_unit(guarded("c", known_as(caches[0], "c")))
    ended: list[bool] = []
    for some in (caches[:3], caches[3:4]):
        unit = Unit(partial(ended.append, True))
        for cache in some:
            unit.delete_id_cache(cache)
        journal.append_unit(unit)
    store.loop.run_until(lambda: len(ended) == 2, "the end of the caches")
    left = [queue for queue, _ in store.rows().values() if queue in caches]
    assert left == [caches[4]] * 2
    journal.close(drain=True)
    store.advance_fence(2)
    bound = [one.cache_id for one in store.open(2).bindings if isinstance(one, IdCacheBinding)]
    assert bound == [caches[4]]


def test_addresses_have_ids_of_their_own(store: JournalStore) -> None:
    """The same id at another address is another message."""
    journal = store.open()
    one, other = bind(journal), bind(journal, "invoices")
    assert send(store, journal, [("a", known_as(one, "a"))]) == frozenset()
    assert send(store, journal, [("b", known_as(other, "a"))]) == frozenset()


def test_caches_that_memory_has_no_room_for_are_read_again(
    store: JournalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No id is forgotten for want of memory."""
    monkeypatch.setattr(duplicates.DuplicateIds.__init__, "__defaults__", (2,))
    journal = store.open()
    caches = [bind(journal, f"address {number}") for number in range(4)]
    for name in "ab":
        for cache in caches:
            assert send(store, journal, [(name, known_as(cache, name))]) == frozenset()
    for cache in caches:
        for name in "ab":
            assert send(store, journal, [(name, known_as(cache, name))]) == {0}


def test_an_id_that_cannot_be_read_harms_nothing_else(store: JournalStore) -> None:
    """It is told, and the others are known."""
    journal = store.open()
    cache = bind(journal)
    send(store, journal, [("first", known_as(cache, "a")), ("second", known_as(cache, "b"))])
    spoilt = min(seq for seq, (queue_id, _) in store.rows().items() if queue_id == cache)
    store.spoil(spoilt, b"nonsense")
    journal.close(drain=True)
    store.advance_fence(2)
    successor = store.open(2)
    assert send(store, successor, [("again", known_as(cache, "b"))]) == {0}
    assert send(store, successor, [("again", known_as(cache, "a"))]) == frozenset()


def test_the_second_is_stored_if_the_first_is_refused() -> None:
    """A message is dropped only for one that is there."""
    store = MemoryJournalStore()
    journal = store.open()
    assert isinstance(journal, MemoryJournal)
    cache = bind(journal)
    store.loop.run_posted()
    journal.auto_commit = False
    refused: list[OrthiaError] = []
    stored: list[bool] = []
    first, second = (guarded(text, known_as(cache, "a")) for text in ("first", "second"))
    first.refused = refused.append
    second.done = lambda: stored.append(bool(second.dropped))
    journal.append_unit(first)
    journal.append_unit(second)
    journal.refuse(OrthiaError("no"))
    journal.commit()
    store.loop.run_until(lambda: stored, "the second is stored")
    assert len(refused) == 1
    assert stored == [False]
    assert store.bodies(journal) == ["second"]


def test_a_history_has_no_duplicate_ids(store_settings: DatabaseStoreSettings) -> None:
    """What is forgotten is no message that left its queue."""
    keeping = KeepingStore(store_settings)
    journal = keeping.open()
    cache = bind(journal)
    for number in range(3 * KEEP):
        send(keeping, journal, [(f"{number}", known_as(cache, f"id {number}"))])
    assert keeping.kept() == {}
    keeping.close()


def test_a_batch_is_looked_at_anew_when_a_cache_could_not_be_read() -> None:
    """What was found of the ids before that cache is found again, and nothing of them is stored."""
    failures: list[OrthiaError] = [StoreUnavailable("gone")]
    known = b"known".ljust(16)

    def load(cache_id: int) -> list[tuple[int, bytes]]:
        if cache_id == 2 and failures:
            raise failures.pop()
        return [(5, encode_duplicate_id(known))] if cache_id == 1 else []

    ids = DuplicateIds(load)
    again, new = guarded("x", DuplicateId(1, known, KEEP)), guarded("x", known_as(2, "new"))
    again.place(10)
    new.place(20)
    batch = batch_of([again, new])
    with pytest.raises(StoreUnavailable):
        ids.screen(batch)
    screened = ids.screen(batch)
    assert again.dropped == {0}
    assert {row.seq for row in screened.rows} == set(range(20, 22))


class UnreachableStore(ScriptedStore):
    """Lost its connection, and opens another only after some attempts."""

    def __init__(self, *refusals: StoreError) -> None:
        super().__init__()
        self.connects = 0
        self.refusals = list(refusals)
        self.is_connected = False

    @override
    def connect(self) -> None:
        self.connects += 1
        if self.refusals:
            raise self.refusals.pop(0)
        self.is_connected = True

    @override
    def duplicate_ids(self, cache_id: int) -> list[tuple[int, bytes]]:
        if not self.connects:
            raise StoreUnavailable("gone")
        if not self.is_connected:
            raise PermanentStoreError("there is no connection to ask on")
        return []


def test_a_cache_is_read_only_on_a_connection_that_was_opened() -> None:
    """However often that takes: what a closed one says of itself is no answer of the store."""
    store = UnreachableStore(StoreUnavailable("still gone"), StoreUnavailable("still gone"))
    unit = guarded("x", known_as(1, "a"))
    unit.place(10)
    outcome = write(store, unit)
    assert (outcome.failures, outcome.told) == ([], [("stored", unit.last_seq)])
    assert store.connects == 3


def test_a_cache_is_not_waited_for_where_the_login_is_refused() -> None:
    """Nor is any other batch: the next node may log in, and this one would wait for ever."""
    store = UnreachableStore(StoreUnavailable("still gone"), PermanentStoreError("no such user"))
    unit = guarded("x", known_as(1, "a"))
    unit.place(10)
    outcome = write(store, unit)
    assert outcome.told == []
    assert ["no such user" in str(one) for one in outcome.failures] == [True]
    assert store.connects == 2


def test_a_cache_that_ends_leaves_nothing_though_its_batch_is_split() -> None:
    """After an unknown outcome, as at any time."""
    lost = [UnknownOutcome("cut off"), *[StoreUnavailable("gone")] * 3]
    store = ScriptedStore(failing(*lost, when=lambda batch: not batch.rows), ids={1: [5]})
    outcome = write(store, end_of_ids(1), deletion(31))
    assert (outcome.failures, store.unbound, store.forgotten) == ([], [1], [5])
