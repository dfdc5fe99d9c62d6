"""What is put aside for a lock keeps its order among units that change the same rows."""

import pytest

from orthia.database import NoRoom, StoreError
from orthia.journal import MessageLocation, Unit
from orthia.journal.engine.attempts import AtFault, MeetsLock, OutOfRoom
from orthia.journal.engine.batch import Batch, batch_of
from orthia.journal.engine.lock_watch import LockWatch
from orthia.journal.engine.locked_rows import LockedRows
from orthia.journal.engine.locks import PutAside, RowKey, RowKind, Sifted
from orthia.journal.model.unit import Appended, AppendedMessage
from tests.journal.scripted import ScriptedStore

MOST = 1_000


def deletion(*seqs: int) -> Unit:
    """Return a unit that deletes messages, and is known by the first."""
    unit = Unit(None, seqs[0])
    unit.add_deletes(map(MessageLocation, seqs))
    unit.only_deletes = True
    return unit


def row(seq: int) -> RowKey:
    """Return the row of a message."""
    return RowKey(RowKind.MESSAGE, seq)


def submit(aside: PutAside, *items: Appended) -> Sifted:
    """Sift what is submitted next."""
    batch = batch_of(items)
    aside.begin(batch)
    return aside.sift(batch)


def seqs_of(batch: Batch) -> list[int]:
    """Return by what the units of a batch are known."""
    return [item.last_seq for item in batch.items]


def test_what_meets_no_lock_passes() -> None:
    """Messages and deletes of other rows."""
    aside = PutAside()
    aside.are_locked([row(1)])
    messages = AppendedMessage(9, 7, b"", None)
    stored, refused, *_ = submit(aside, messages, deletion(1), deletion(2))
    assert seqs_of(stored) == [9, 2]
    assert refused == []
    assert len(aside) == 1
    assert not aside.stands_back(batch_of([deletion(3)]))


def test_what_changes_a_row_of_what_waits_comes_behind_it() -> None:
    """And what changes a row of that behind it again, though none of these rows is locked."""
    aside = PutAside()
    aside.are_locked([row(1)])
    submit(aside, deletion(1, 2), deletion(2, 3), deletion(3), deletion(4))
    assert len(aside) == 3
    assert seqs_of(aside.take_free(MOST)[0]) == []
    assert aside.looked([row(1)], [row(1)]) == 0
    assert aside.looked([row(1)], []) == 1
    assert seqs_of(aside.take_free(MOST)[0]) == [1, 2, 3]
    assert not aside


def test_what_is_locked_again_goes_back_in_front() -> None:
    """Behind it comes what was behind it, in the order of all."""
    aside = PutAside()
    aside.are_locked([row(1), row(5)])
    submit(aside, deletion(1), deletion(1, 2), deletion(5), deletion(1, 3))
    aside.looked([row(1)], [])
    free, unresolved = aside.take_free(MOST)
    assert seqs_of(free) == [1, 1, 1]
    assert not unresolved
    aside.are_locked([row(2)])
    stored, *_ = aside.sift_again(free, unresolved=True)
    assert [item.deletes for item in stored.items if isinstance(item, Unit)] == [[1]]
    aside.looked([row(2), row(5)], [])
    free, unresolved = aside.take_free(MOST)
    assert [item.deletes for item in free.items if isinstance(item, Unit)] == [[1, 2], [5], [1, 3]]
    assert unresolved


def test_what_is_behind_all_goes_back_with_what_is_locked_again() -> None:
    """Though nothing has its rows; what is not behind all passes."""
    aside = PutAside()
    aside.are_locked([row(1)])
    last = deletion(3)
    last.behind_all = True
    submit(aside, deletion(1), deletion(1, 2), last)
    aside.looked([row(1)], [])
    free, _ = aside.take_free(MOST)
    assert seqs_of(free) == [1, 1, 3]
    aside.are_locked([row(2)])
    assert seqs_of(aside.sift_again(free, unresolved=False).stored) == [1]
    aside.looked([row(2)], [])
    assert seqs_of(aside.take_free(MOST)[0]) == [1, 3]


def test_a_part_of_what_is_free_is_not_put_aside_for_the_rest() -> None:
    """A bound on a batch reorders nothing, though the next batch has the same rows."""
    aside = PutAside()
    aside.are_locked([row(1)])
    submit(aside, deletion(1), deletion(1), deletion(1))
    aside.looked([row(1)], [])
    taken = []
    while (free := aside.take_free(1)[0]).items:
        stored, *_ = aside.sift_again(free, unresolved=False)
        taken += seqs_of(stored)
    assert taken == [1, 1, 1]
    assert not aside


def test_what_changes_queues_waits_for_nobody() -> None:
    """It is not put aside, since what comes behind it may need it: it waits as for a table."""
    aside = PutAside()
    aside.are_locked([row(1)])
    unit = deletion(1)
    unit.only_deletes = False
    unit.delete_binding(8)
    assert submit(aside, unit).stored.items == [unit]
    assert not aside.stands_back(batch_of([unit]))


class FailingOnce:
    """Attempts of which the first fails."""

    def __init__(self, failure: Exception) -> None:
        self._failure: Exception | None = failure
        self.forgotten: list[int] = []

    def store(self, batch: Batch, *, unresolved: bool) -> int:
        """Take note of the ids that are forgotten."""
        assert not unresolved
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure
        self.forgotten += batch.forgotten
        return 1


@pytest.mark.parametrize(
    "failure",
    [
        MeetsLock(unresolved=False),
        AtFault(StoreError("refused"), unresolved=False),
        OutOfRoom(NoRoom("full"), unresolved=False),
    ],
)
def test_ids_that_could_not_be_forgotten_are_when_it_is_tried_again(failure: Exception) -> None:
    """Whatever it failed for; else their rows would stay for good."""
    store = ScriptedStore(locked=[{1}])
    rows = LockedRows(store, LockWatch(), lambda: 0.0, lambda *_: None)
    batch = batch_of([deletion(5)])
    batch.forgotten = [1, 2]
    assert rows.meets_lock(batch)
    rows.keep_forgotten(batch)
    assert batch.forgotten == [2]
    rows.look()
    attempts = FailingOnce(failure)
    rows.forget(attempts)  # type: ignore[arg-type]
    rows.looked()
    assert rows.met
    rows.forget(attempts)  # type: ignore[arg-type]
    assert attempts.forgotten == [1]
