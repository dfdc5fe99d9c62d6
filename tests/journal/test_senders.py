"""Behind a refused message nothing of its sender is stored: it sends both again, in order."""

import gc
from collections.abc import Callable
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orthia.database import NoRoom, PermanentStoreError, StoreError, UnknownOutcome
from orthia.journal.abc import MessageJournal
from orthia.journal.engine.batch import Batch
from orthia.journal.errors import HeldElsewhere, SentBehindRefused, StoreFull, UnitRefused
from orthia.journal.limits import JournalLimits
from orthia.journal.memory import MemoryJournal
from orthia.journal.model.unit import Appended, Sender, Unit
from tests.journal import scripted
from tests.journal.scripted import (
    POISON,
    ScriptedStore,
    Writing,
    deletion,
    failing,
    grows,
    message,
    poison,
    transaction,
)
from tests.journal.support import OTHER_QUEUE, QUEUE, JournalStore, payload, threads_of


def write(store: ScriptedStore, *items: Appended, rows_at_once: int = 5_000) -> Writing:
    """Let a writer store units that all wait when it begins, so many in a batch at most."""
    outcome = scripted.write(store, *items, limits=JournalLimits(max_batch_rows=rows_at_once))
    assert outcome.failures == []
    return outcome


def fickle(*errors: StoreError | None) -> ScriptedStore:
    """Return a store that fails so at what stores anything, and takes no poison."""
    return ScriptedStore(failing(*errors, when=grows), poison(PermanentStoreError("it is poison")))


def test_what_was_sent_before_a_transaction_that_meets_a_lock_is_stored() -> None:
    """It is told of first; what is refused is the transaction, and what its sender sent behind."""
    ada, bob = Sender(), Sender()
    store = ScriptedStore(locked=[{99}], stays_locked=True)
    items: list[Appended]
    items = [message(1, ada), message(2, bob), transaction(3, ada, deletes=99), message(4, ada)]
    items += [message(5, bob), transaction(6, bob, deletes=99), message(7, None)]
    outcome = write(store, *items)
    kinds = ["stored", "stored", "refused", "refused", "stored", "refused", "stored"]
    assert outcome.told == list(zip(kinds, range(1, 8), strict=True))
    assert store.stored == [1, 2, 5, 7]
    assert isinstance(outcome.reasons[3], HeldElsewhere)
    assert isinstance(outcome.reasons[4], SentBehindRefused)


def test_what_meets_a_lock_late_keeps_its_place_before_others() -> None:
    """What is to be behind all of it is done last, whichever row was found to be locked first."""
    store = ScriptedStore(locked=[{2}, set(), {1, 2}])
    behind_all = Unit(None, 13, behind_all=True)
    first, second = deletion(1), deletion(2)
    first.last_seq, second.last_seq = 11, 12
    outcome = write(store, first, second, behind_all)
    assert outcome.told == [("stored", 11), ("stored", 12), ("stored", 13)]
    assert not store.locks


def test_what_is_put_aside_is_looked_at_once_more_at_the_end() -> None:
    """It is stored if its lock is gone by then: nobody is told later, nor gets it once more."""
    store = ScriptedStore(locked=[{1}, {1}])
    outcome = write(store, deletion(1))
    assert outcome.told == [("stored", 1)]
    assert store.deleted == [1]


def test_what_follows_in_a_later_batch_is_refused_though_there_is_room_again() -> None:
    """Its sender sends both again: the later one would be there first."""
    ada, bob = Sender(), Sender()
    store = fickle(NoRoom("disk full"))
    items = [message(1, ada), message(2, bob), message(3, ada), message(4, None)]
    outcome = write(store, *items, rows_at_once=1)
    assert outcome.told == [("refused", 1), ("stored", 2), ("refused", 3), ("stored", 4)]
    assert store.stored == [2, 4]
    assert isinstance(outcome.reasons[1], StoreFull)
    assert isinstance(outcome.reasons[3], SentBehindRefused)
    assert "disk full" in str(outcome.reasons[3])


def test_what_follows_a_poisonous_message_in_its_batch_is_refused() -> None:
    """It is told in its turn, and who sent nothing before it is served."""
    ada, bob = Sender(), Sender()
    store = fickle()
    items = [message(1, ada), message(2, bob), message(3, ada, POISON)]
    items += [message(seq, ada if seq % 2 else bob) for seq in range(4, 10)]
    outcome = write(store, *items)
    kinds = ["stored" if seq < 3 or seq % 2 == 0 else "refused" for seq in range(1, 10)]
    assert outcome.told == list(zip(kinds, range(1, 10), strict=True))
    assert store.stored == [1, 2, 4, 6, 8]
    assert isinstance(outcome.reasons[3], UnitRefused)
    assert all(isinstance(outcome.reasons[seq], SentBehindRefused) for seq in (5, 7, 9))


def test_a_transaction_that_follows_is_refused_as_a_whole() -> None:
    """What it acknowledges stays where it is; an acknowledgement by itself is stored."""
    ada = Sender()
    store = fickle(NoRoom("disk full"))
    items = (message(11, ada), transaction(12, ada, deletes=1), deletion(2))
    outcome = write(store, *items, rows_at_once=1)
    assert outcome.told == [("refused", 11), ("refused", 12), ("stored", 2)]
    assert (store.stored, store.deleted) == ([], [2])


def test_what_follows_a_refused_transaction_is_refused() -> None:
    """It is a unit as any other."""
    ada = Sender()
    store = fickle(NoRoom("disk full"))
    outcome = write(store, transaction(1, ada), message(2, ada), rows_at_once=1)
    assert outcome.told == [("refused", 1), ("refused", 2)]


def test_what_follows_is_refused_while_there_is_no_room_for_others_either() -> None:
    """A batch of both is done without room; each unit is told once, in its turn."""
    ada, bob = Sender(), Sender()
    full = NoRoom("disk full")
    store = fickle(full, full)
    items = (message(1, ada), message(2, ada), message(3, bob), deletion(9), message(4, ada))
    outcome = write(store, *items, rows_at_once=3)
    kinds = ["refused", "refused", "refused", "stored", "refused"]
    assert outcome.told == list(zip(kinds, [1, 2, 3, 9, 4], strict=True))


def senders() -> set[Sender]:
    """Return those that are still there; nothing has weak references to one that is compiled."""
    gc.collect()
    return {one for one in gc.get_objects() if isinstance(one, Sender)}


def test_a_sender_is_forgotten_with_its_last_unit() -> None:
    """However many are refused, the writer keeps nothing of them."""
    earlier = senders()
    sender = Sender()
    writing = Writing(fickle(NoRoom("disk full")))
    writing.submit(message(1, sender))
    writing.writer.start()
    writing.wait(lambda: isinstance(writing.reasons.pop(1, None), StoreFull))
    writing.submit(message(2, None))
    writing.end()
    assert senders() - earlier == {sender}
    del sender
    assert not senders() - earlier


KINDS = st.sampled_from(["message", "message", "message", "poison", "transaction", "ack"])
ERRORS = st.sampled_from(
    [None, None, NoRoom("full"), NoRoom("full"), PermanentStoreError("no"), UnknownOutcome("lost")]
)


@settings(max_examples=150)
@given(
    sent=st.lists(st.tuples(st.integers(0, 3), KINDS), max_size=40),
    errors=st.lists(ERRORS, max_size=8),
    rows_at_once=st.integers(1, 12),
)
def test_of_each_sender_is_stored_what_it_sent_up_to_a_place(
    sent: list[tuple[int, str]], errors: list[StoreError | None], rows_at_once: int
) -> None:
    """Whatever the store refuses, and however it is split; each unit is told of once, in turn."""
    senders = [None, Sender(), Sender(), Sender()]
    make: dict[str, Callable[[int, Sender], Appended]] = {
        "message": message,
        "poison": partial(message, data=POISON),
        "transaction": transaction,
        "ack": lambda seq, _: deletion(seq),
    }
    items = []
    for seq, (number, kind) in enumerate(sent, 1):
        sender = senders[number]
        items.append(make[kind](seq, sender) if sender is not None else message(seq, None))
    store = fickle(*errors)
    outcome = write(store, *items, rows_at_once=rows_at_once)
    assert [seq for _, seq in outcome.told] == list(range(1, len(items) + 1))
    assert store.stored == sorted(set(store.stored))
    for number in range(1, 4):
        messages = [
            seq for seq, (one, kind) in enumerate(sent, 1) if one == number and kind != "ack"
        ]
        kept = [seq for seq in messages if seq in set(store.stored)]
        assert kept == messages[: len(kept)]


# --- on each store


class FullAtTimes:
    """Has a journal's store say that it has no room, while it is to."""

    def __init__(self, journal: MessageJournal, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_full = False
        store = threads_of(journal).writer._store
        takes = store.store

        def take(batch: Batch) -> None:
            if self.is_full and (batch.messages or batch.rows or batch.binding_rows):
                raise NoRoom("disk full")
            takes(batch)

        monkeypatch.setattr(store, "store", take)


def test_the_order_of_a_sender_is_kept_on_each_store(
    store: JournalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first of three is refused; all are sent again, and are there once, in order."""
    journal = store.open()
    told: list[str] = []

    def append(sender: Sender, name: str) -> None:
        journal.append_message(
            QUEUE,
            payload(name),
            partial(told.append, name),
            lambda error: told.append(f"{name}: {type(error).__name__}"),
            sender,
        )

    def commit(sender: Sender, name: str) -> None:
        unit = Unit(partial(told.append, name))
        unit.refused = lambda error: told.append(f"{name}: {type(error).__name__}")
        unit.sender = sender
        unit.add_message([QUEUE, OTHER_QUEUE], payload(name))
        journal.append_unit(unit)

    ada, bob = Sender(), Sender()
    if isinstance(journal, MemoryJournal):
        journal.auto_commit = False
        append(ada, "first")
        journal.refuse(StoreFull("disk full"))
        journal.auto_commit = True
    else:
        disk = FullAtTimes(journal, monkeypatch)
        disk.is_full = True
        append(ada, "first")
        store.loop.run_until(lambda: told, "it is refused")
        disk.is_full = False
    append(ada, "second")
    append(bob, "other")
    commit(ada, "third")
    store.loop.run_until(lambda: len(told) == 4, "all are answered")
    assert told == [
        "first: StoreFull",
        "second: SentBehindRefused",
        "other",
        "third: SentBehindRefused",
    ]
    again = Sender()
    append(again, "first")
    append(again, "second")
    commit(again, "third")
    store.loop.run_until(lambda: len(told) == 7, "all are stored")
    assert store.bodies(journal) == ["other", "first", "second", "third"]
    assert store.bodies(journal, OTHER_QUEUE) == ["third"]
    assert journal.last_committed_seq >= max(store.rows())
    assert store.failures == []
