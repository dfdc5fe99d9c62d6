"""A store without room: what is stored can be taken out, and what comes is refused, not held."""

from typing import Any

import pytest

from orthia.database import (
    NoRoom,
    PermanentStoreError,
    StoreError,
    StoreUnavailable,
    UnknownOutcome,
)
from orthia.journal.engine.batch import Batch
from orthia.journal.engine.retry import ATTEMPTS
from orthia.journal.errors import AcknowledgedBefore, JournalError
from orthia.journal.model.changes import DuplicateId, MessageLocation
from orthia.journal.model.unit import Unit
from tests.journal.scripted import (
    QUEUE,
    Committed,
    Full,
    Rule,
    ScriptedStore,
    Writing,
    acknowledged,
    binding,
    deletion,
    end_of_ids,
    failing,
    message,
    move,
    only_frees,
    unbinding,
)
from tests.support.waiting import wait_until


class FullWriting(Writing):
    """A writer on a store without room, and how full that is."""

    def __init__(self, disk: Full | None = None, *rules: Rule, **store: Any) -> None:
        self.disk = Full() if disk is None else disk
        self.store = ScriptedStore(*rules, self.disk, **store)
        super().__init__(self.store)


def test_deletes_are_stored_and_messages_refused_in_order() -> None:
    """Those of one batch, too; who waits is told once that the store is full."""
    writing = FullWriting()
    writing.submit(message(11), deletion(1, 2), deletion(3), message(12), deletion(4))
    writing.writer.start()
    writing.wait(lambda: len(writing.told) == 5)
    assert writing.told == [
        ("refused", 11),
        ("stored", 2),
        ("stored", 3),
        ("refused", 12),
        ("stored", 4),
    ]
    assert writing.store.deleted == [1, 2, 3, 4]
    (told,) = writing.full
    assert told is not None
    assert "free disk space (disk full)" in str(told)
    writing.submit(deletion(5))
    writing.wait(lambda: writing.store.deleted[-1] == 5)
    writing.end()
    assert writing.full == [told], "that a delete is stored says nothing of room"
    assert writing.writer.drained


@pytest.mark.parametrize("first", [[], [11]])
@pytest.mark.parametrize(("lost", "late"), [(0, 0), (1, 0), (0, ATTEMPTS)])
def test_deletes_that_find_no_room_together_are_stored_one_by_one(
    lost: int, late: int, first: list[int]
) -> None:
    """Also if it is not known what became of an attempt before: a delete may be repeated."""
    rules = [
        failing(*[UnknownOutcome("connection lost")] * lost),
        failing(*[StoreUnavailable("time-out")] * late, when=only_frees),
    ]
    writing = FullWriting(Full(most_deletes=1), *rules)
    writing.submit(*map(message, first), *map(deletion, range(1, 6)))
    writing.writer.start()
    writing.wait(lambda: len(writing.told) == len(first) + 5)
    assert writing.told == [
        *(("refused", seq) for seq in first),
        *(("stored", seq) for seq in range(1, 6)),
    ]
    assert writing.store.deleted == [1, 2, 3, 4, 5]
    # Where a message was in the batch that was lost, it told that nothing of that is stored.
    assert bool(writing.store.confirmed) is bool(late or (lost and not first))
    writing.end()


def test_a_unit_that_may_be_stored_is_not_refused_for_want_of_room() -> None:
    """Its message was a duplicate, so that only its acknowledgement is to be stored: and was."""
    store = ScriptedStore(
        failing(Committed(UnknownOutcome("connection lost"))),
        ids={5: [3]},
        confirms=[NoRoom("disk full")] * 3,
    )
    writing = Writing(store)
    unit = Unit(None, 9)
    unit.add_message([QUEUE], b"again")
    unit.guard(DuplicateId(5, b"3", 5), range(1))
    unit.delete(MessageLocation(9))
    unit.refused = lambda _: None
    unit.place(100)
    writing.submit(unit)
    writing.writer.start()
    writing.wait(lambda: writing.told)
    assert [what for what, _ in writing.told] == ["stored"]
    assert store.confirmed == 1
    assert set(store.deleted) == {9}
    writing.end()


def test_what_is_one_unit_waits_for_room_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is tried again and again, ever more slowly; what is smaller went before it."""
    pauses: list[int] = []

    def pause_seconds(failures: int) -> float:
        pauses.append(failures)
        return 0.01

    monkeypatch.setattr("orthia.journal.engine.attempts.pause_seconds", pause_seconds)
    writing = FullWriting(Full(most_deletes=1))
    writing.submit(message(11), *map(deletion, range(1, 6)), deletion(6, 7))
    writing.writer.start()
    writing.wait(lambda: len(writing.told) == 6)
    assert writing.told == [("refused", 11), *(("stored", seq) for seq in range(1, 6))]
    assert writing.store.deleted == [1, 2, 3, 4, 5]
    writing.wait(lambda: len(pauses) >= 3)
    assert pauses[:3] == [1, 2, 3]
    assert len(writing.told) == 6
    writing.disk.is_full = False
    writing.wait(lambda: writing.told[-1] == ("stored", 7))
    assert writing.store.deleted == [1, 2, 3, 4, 5, 6, 7]
    writing.end()


def test_room_for_a_small_message_is_not_room_again() -> None:
    """One that was on its way as a larger one found none; the next of those would find none."""
    writing = FullWriting(Full(most_bytes=1_000))
    writing.submit(message(1, data=bytes(2_000)))
    writing.writer.start()
    writing.wait(lambda: writing.full)
    writing.submit(message(2))
    writing.wait(lambda: writing.told[-1] == ("stored", 2))
    writing.submit(message(3))
    writing.wait(lambda: writing.told[-1] == ("stored", 3))
    assert len(writing.full) == 1
    writing.disk.is_full = False
    writing.wait(lambda: writing.full[-1] is None)
    writing.end()


class WritingOn(FullWriting):
    """One to whom the next acknowledgement comes as soon as one is stored."""

    is_busy = True

    def _stored(self, batch: Batch, _report: object) -> None:
        super()._stored(batch, _report)
        if self.is_busy and batch.deletes:
            self.submit(deletion(batch.deletes[-1] + 1))


def test_it_is_told_of_room_though_acknowledgements_come_all_the_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nobody sends while the store is closed, so that they would be all that comes."""
    monkeypatch.setattr("orthia.journal.engine.full_store.ROOM_SECONDS", 0.2)
    writing = WritingOn()
    writing.submit(message(1), deletion(2))
    writing.writer.start()
    writing.wait(lambda: writing.full)
    writing.disk.is_full = False
    try:
        writing.wait(lambda: writing.full[-1] is None)
    finally:
        writing.is_busy = False
        writing.end()


def test_a_store_is_not_asked_for_room_without_a_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be another node's by now, and to ask is to write."""
    monkeypatch.setattr("orthia.journal.engine.full_store.ROOM_SECONDS", 0.01)
    writing = FullWriting()
    writing.submit(message(1))
    writing.writer.start()
    writing.wait(lambda: writing.full)
    writing.is_valid = False
    writing.wait_asked(2)  # a look that had begun is over then
    writing.disk.is_full = False
    writing.wait_asked(3)
    assert writing.full[-1] is not None
    writing.end()


def test_deletes_that_cannot_be_looked_for_are_confirmed_once_there_is_room_for_them() -> None:
    """Their first commit may have been done, and not be where it has to be before it is told."""
    lost = failing(UnknownOutcome("connection lost"))
    writing = FullWriting(Full(most_deletes=0), lost)
    writing.submit(deletion(9))
    writing.writer.start()
    writing.wait_asked(6)
    assert writing.told == []
    writing.disk.most_deletes = 1_000
    writing.wait(lambda: writing.told == [("stored", 9)])
    assert writing.store.confirmed == 1
    writing.end()


def test_a_move_of_what_an_application_acknowledged_is_refused_without_room_too() -> None:
    """In its turn; one to the subscribers of a topic alone needs no room."""
    writing = FullWriting(None, acknowledged(2, 4))
    moves = [move(20 + seq, moved=seq, copy=seq == 4) for seq in (1, 2, 3, 4)]
    writing.submit(message(11), deletion(8), *moves, deletion(9))
    writing.writer.start()
    writing.wait(lambda: len(writing.told) == 7)
    assert writing.told == [
        *(("refused", 11), ("stored", 8), ("stored", 21), ("refused", 22)),
        *(("stored", 23), ("refused", 24), ("stored", 9)),
    ]
    assert type(writing.reasons[22]) is type(writing.reasons[24]) is AcknowledgedBefore
    assert writing.store.deleted == [8, 1, 3, 9]
    writing.end()


def test_a_queue_that_is_bound_without_room_waits_for_it() -> None:
    """It is in use already; deletes that come later do not wait for it.

    That there is room again is found out though nothing comes.
    """
    writing = FullWriting()
    writing.submit(binding(1), message(2), deletion(9))
    writing.writer.start()
    writing.wait(lambda: len(writing.told) == 2)
    assert writing.told == [("refused", 2), ("stored", 9)]
    writing.disk.is_full = False
    writing.wait(lambda: writing.full[-1] is None)
    assert writing.store.bound == [1]
    writing.end()
    assert writing.writer.drained


def test_no_message_is_stored_before_its_queue() -> None:
    """A node that ended then would leave it where nobody looks, though its client was told."""
    writing = FullWriting()
    writing.submit(binding(1), message(2))
    writing.writer.start()
    writing.wait(lambda: writing.told == [("refused", 2)])
    writing.disk.takes_messages = True
    writing.submit(message(3), deletion(9))
    writing.wait(lambda: len(writing.told) == 3)
    assert writing.told[1:] == [("refused", 3), ("stored", 9)]
    assert (writing.store.stored, writing.store.bound) == ([], [])
    writing.disk.is_full = False
    writing.submit(message(4))
    writing.wait(lambda: ("stored", 4) in writing.told)
    assert writing.told[3:] == [("stored", 1), ("stored", 4)]
    assert writing.store.bound == [1]
    writing.end()
    assert writing.writer.drained


def test_a_queue_that_is_deleted_before_there_was_room_for_it_stays_deleted() -> None:
    """It waits with what binds it; those that were there before are deleted at once."""
    writing = FullWriting()
    writing.submit(binding(1), unbinding(1), unbinding(7))
    writing.writer.start()
    writing.wait(lambda: writing.full)
    writing.submit(unbinding(8))
    writing.wait(lambda: len(writing.told) == 2)
    assert writing.told == [("stored", 7), ("stored", 8)]
    writing.disk.is_full = False
    writing.wait(lambda: writing.full[-1] is None)
    assert writing.told[2:] == [("stored", 1), ("stored", 1)]
    assert writing.store.bound == []
    writing.end()
    assert writing.writer.drained


def test_a_writer_that_ends_without_room_for_a_queue_has_not_stored_all() -> None:
    """So the node says."""
    writing = FullWriting()
    writing.submit(binding(1))
    writing.writer.start()
    writing.wait(lambda: writing.full)
    writing.end()
    assert not writing.writer.drained


@pytest.mark.parametrize(
    ("errors", "confirmed"),
    [
        ([StoreUnavailable("gone")] * ATTEMPTS, 0),
        ([UnknownOutcome("cut off")] * ATTEMPTS, 2),
        ([PermanentStoreError("not this")], 0),
    ],
)
def test_deletes_that_fail_though_a_probe_has_room_are_stored_apart(
    errors: list[StoreError], confirmed: int
) -> None:
    """As they are at other times: the journal goes on, and forgets the ids of a cache that ends."""
    fails = failing(*errors, when=only_frees)
    writing = FullWriting(Full(takes_messages=True), fails, ids={5: [8, 9]})
    writing.submit(binding(1), end_of_ids(5), deletion(21))
    writing.writer.start()
    writing.wait(lambda: len(writing.told) == 2)
    assert writing.told == [("stored", 19), ("stored", 21)]
    assert (writing.store.deleted, writing.store.forgotten) == ([21], [8, 9])
    assert writing.store.confirmed == confirmed
    writing.disk.is_full = False
    writing.wait(lambda: writing.full[-1] is None)
    assert writing.store.bound == [1]
    writing.end()
    assert writing.writer.drained


def test_a_delete_that_is_refused_though_a_probe_has_room_ends_the_journal_clearly() -> None:
    """As at other times: it is confirmed to nobody, and what failed is named."""
    fails = failing(PermanentStoreError("no such table"), when=only_frees)
    writing = FullWriting(Full(takes_messages=True), fails)
    writing.submit(binding(1), deletion(2))
    writing.writer.start()
    wait_until(lambda: writing.failures, what="the journal fails")
    (failure,) = writing.failures
    assert isinstance(failure, JournalError)
    assert str(failure).startswith("a batch of 1 units")
    assert "given up, and not confirmed to any client: no such table" in str(failure)
    assert writing.told == []
    assert writing.writer.join(120)
