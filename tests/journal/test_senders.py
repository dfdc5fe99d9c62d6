"""Behind a refused message nothing of its sender is stored: it sends both again, in order."""

import gc
from collections.abc import Callable
from functools import partial

from hypothesis import given, settings
from hypothesis import strategies as st

from orthia.database import NoRoom, PermanentStoreError, StoreError, UnknownOutcome
from orthia.journal.errors import StoreFull
from orthia.journal.limits import JournalLimits
from orthia.journal.memory import MemoryJournal
from orthia.journal.model.unit import Appended, Sender
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
from tests.journal.support import QUEUE, MemoryJournalStore, payload


def write(store: ScriptedStore, *items: Appended, rows_at_once: int = 5_000) -> Writing:
    """Let a writer store units that all wait when it begins, so many in a batch at most."""
    outcome = scripted.write(store, *items, limits=JournalLimits(max_batch_rows=rows_at_once))
    assert outcome.failures == []
    return outcome


def fickle(*errors: StoreError | None) -> ScriptedStore:
    """Return a store that fails so at what stores anything, and takes no poison."""
    return ScriptedStore(failing(*errors, when=grows), poison(PermanentStoreError("it is poison")))


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


def test_who_is_answered_singly_has_nothing_refused_for_what_was_before() -> None:
    """It learns what was, and sends just that again."""
    sender = Sender(is_answered_singly=True)
    store = fickle()
    outcome = write(store, message(1, sender, data=POISON), message(2, sender), message(3, sender))
    assert store.stored == [2, 3]
    assert [seq for _, seq in outcome.told] == [1, 2, 3]


def test_the_twin_in_memory_keeps_the_order_of_a_sender_too() -> None:
    """The first of two is refused; both are sent again, and are there once, in order.

    On the other stores clients see it: tests/stomp/test_order_without_room.py.
    """
    store = MemoryJournalStore()
    journal = store.open()
    assert isinstance(journal, MemoryJournal)
    told: list[str] = []

    def append(sender: Sender, name: str) -> None:
        journal.append_message(
            QUEUE,
            payload(name),
            partial(told.append, name),
            lambda error: told.append(f"{name}: {type(error).__name__}"),
            sender,
        )

    ada, bob, again = Sender(), Sender(), Sender()
    journal.auto_commit = False
    append(ada, "first")
    journal.refuse(StoreFull("disk full"))
    journal.auto_commit = True
    append(ada, "second")
    append(bob, "other")
    store.loop.run_until(lambda: len(told) == 3, "all are answered")
    assert told == ["first: StoreFull", "second: SentBehindRefused", "other"]
    for name in ("first", "second"):
        append(again, name)
    store.loop.run_until(lambda: len(told) == 5, "all are stored")
    assert store.bodies(journal) == ["other", "first", "second"]
