"""Deletes that wait because another session of the database has locked their rows.

A GUI with an open DELETE, a backup tool, a ``SELECT ... FOR UPDATE``: a session that holds a row of
the journal's tables delays its delete and, in one transaction, everything else. So the writer waits
for a lock only briefly. Then it looks for the rows that are locked:

==============================  ========================================================
a unit that                     what happens to it
==============================  ========================================================
deletes none of them            stored, as if there were no lock
only deletes                    put aside as a whole, and retried until it is stored
stores a message, too           refused: its client is told, and can send again. Its messages
                                have their place in the order already, which is not for
                                later: whoever reads on in the order of seq has passed it
changes a queue, nobody is told waits, and everything behind it: as for a locked table
is ``behind_all``               put aside behind what is put aside
deletes what one of these does  as if that row was locked
==============================  ========================================================

A unit put aside is not confirmed, counts apart from what waits (see ``JournalLimits``), and keeps
its order among units that change the same rows. Rows of evicted duplicate ids stay until they are
free; until then the ids count as evicted.
"""

from bisect import insort
from collections import Counter
from collections.abc import Collection, Iterable, KeysView, Sequence
from enum import IntEnum
from typing import NamedTuple

from orthia.database.lock_holders import SessionWithLock
from orthia.journal.engine.batch import Batch, batch_of
from orthia.journal.model.unit import Appended, AppendedMessage, Unit


class RowKind(IntEnum):
    """In which table a row is."""

    MESSAGE = 0
    TIME = 1
    LARGE_REFERENCE = 2
    OUTBOX = 3
    """``seq`` is its id."""


class RowKey(NamedTuple):
    """A row that a unit deletes or overwrites."""

    kind: RowKind
    seq: int
    large_id: int = 0
    """Of the body, of a reference to one."""


class LocksSeen(NamedTuple):
    """Locks of other sessions that hold the journal up now."""

    seconds: float
    """For how long; 0 if there is none."""
    put_aside: int
    """How many units wait for one."""
    sessions: Sequence[SessionWithLock]
    """Which sessions hold them, as far as the database tells."""


NO_LOCKS = LocksSeen(0.0, 0, ())


class Sifted(NamedTuple):
    """What is done with the units of a batch."""

    stored: Batch
    refused: Sequence[Appended]
    """Before anything of ``stored``."""
    waiting: Sequence[Unit] = ()
    """Those put aside that were not before."""
    left: Batch | None = None
    """The rest, whose first unit is refused once ``stored`` is: callers are told in order."""


class _Waiting(NamedTuple):
    place: int
    """Its position among all that was submitted while anything waited."""
    unit: Unit
    rows: frozenset[RowKey]
    unresolved: bool
    """Whether an earlier attempt may have stored it."""


def rows_of(item: Appended) -> list[RowKey]:
    """Return the rows that a unit deletes or overwrites, but for those of BINDINGS."""
    if isinstance(item, AppendedMessage):
        return [RowKey(RowKind.OUTBOX, item.outbox_row)] if item.outbox_row else []
    rows = [RowKey(RowKind.MESSAGE, seq) for seq in item.deletes]
    if item.only_deletes:
        return rows
    rows += [RowKey(RowKind.MESSAGE, body.seq) for body in item.bodies]
    rows += [RowKey(RowKind.TIME, seq) for seq in item.untimed]
    rows += [RowKey(RowKind.OUTBOX, row_id) for row_id in item.outbox_rows]
    if item.timed:
        own = {row.seq for row in item.rows}
        rows += [RowKey(RowKind.TIME, time.seq) for time in item.timed if time.seq not in own]
    rows += [RowKey(RowKind.LARGE_REFERENCE, seq, large_id) for large_id, seq in item.unlinked]
    return rows


class PutAside:
    """The units that wait for locks of others, in order, and the rows known to be locked."""

    def __init__(self) -> None:
        self._waiting: list[_Waiting] = []
        self._touched: Counter[RowKey] = Counter()
        """How many waiting units delete each row."""
        self._locked: dict[RowKey, None] = {}
        """In the order in which they are checked again."""
        self._unforgotten: set[int] = set()
        self._put_back: list[_Waiting] = []
        """What ``sift_again`` put back since ``take_free``."""
        self._items: Sequence[Appended] = ()
        self._first_place = 0
        """Of ``_items``."""
        self._places: dict[int, int] | None = {}
        """Of each unit, by its identity; None until they are asked for."""

    def __bool__(self) -> bool:
        return bool(self._locked or self._waiting or self._unforgotten)

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def locked(self) -> KeysView[RowKey]:
        """The rows that are known to be locked."""
        return self._locked.keys()

    def are_locked(self, rows: Iterable[RowKey]) -> None:
        """Record that rows are locked."""
        self._locked.update(dict.fromkeys(rows))

    def begin(self, batch: Batch) -> None:
        """Record the batch that is stored next, and with it the order of its units."""
        self._first_place += len(self._items)
        self._items = batch.items
        self._places = None

    def stands_back(self, batch: Batch) -> bool:
        """Return whether some of a batch cannot be stored as it is."""
        return any(not self._passes(item) for item in batch.items) or any(
            RowKey(RowKind.MESSAGE, seq) in self._locked for seq in batch.forgotten
        )

    def sift(self, batch: Batch, *, unresolved: bool = False) -> Sifted:
        """Put aside the units that must wait; return those to store and those to refuse.

        ``unresolved`` says that an earlier attempt may have stored the batch.
        """
        stored: list[Appended] = []
        refused: list[Appended] = []
        waiting: list[Unit] = []
        for place, item in enumerate(batch.items):
            if self._passes(item):
                stored.append(item)
            elif isinstance(item, Unit) and can_wait(item):
                self._wait(item, unresolved=unresolved)
                waiting.append(item)
            elif stored:
                return Sifted(batch_of(stored), refused, waiting, batch_of(batch.items[place:]))
            else:
                refused.append(item)
        left = batch if len(stored) == len(batch.items) else batch_of(stored)
        return Sifted(left, refused, waiting)

    def sift_again(self, batch: Batch, *, unresolved: bool) -> Sifted:
        """Sift units that ``take_free`` returned; those that must wait again keep their place."""
        stored: list[Appended] = []
        back = self._put_back
        rows = {row for one in back for row in one.rows}
        for item in batch.items:
            if isinstance(item, AppendedMessage):
                stored.append(item)
            elif (back and item.behind_all) or any(
                row in self._locked or row in rows for row in rows_of(item)
            ):
                back.append(self._wait(item, unresolved=unresolved))
                rows |= back[-1].rows
            else:
                stored.append(item)
        return Sifted(batch if len(stored) == len(batch.items) else batch_of(stored), ())

    def _wait(self, unit: Unit, *, unresolved: bool) -> _Waiting:
        if self._places is None:
            self._places = {id(one): n for n, one in enumerate(self._items, self._first_place)}
        place = self._places.get(id(unit), self._first_place)
        waiting = _Waiting(place, unit, frozenset(rows_of(unit)), unresolved)
        # Not at the end: a unit behind it may have met a lock first.
        insort(self._waiting, waiting, key=_place_of)
        self._touched.update(waiting.rows)
        return waiting

    def _passes(self, item: Appended) -> bool:
        if isinstance(item, AppendedMessage):
            # Nothing that waits deletes a row of the outbox that a message is.
            return (
                not item.outbox_row or RowKey(RowKind.OUTBOX, item.outbox_row) not in self._locked
            )
        if item.behind_all and self._waiting and can_wait(item):
            return False
        rows = rows_of(item)
        if not any(row in self._locked or row in self._touched for row in rows):
            return True
        return not can_wait(item) and item.refused is None

    def keep_forgotten(self, batch: Batch, *, locked_only: bool = True) -> None:
        """Postpone the deletion of evicted ids: of all, or of those whose rows are locked."""
        locked = self._locked
        left = [seq for seq in batch.forgotten if RowKey(RowKind.MESSAGE, seq) not in locked]
        if not locked_only:
            left = []
        if len(left) < len(batch.forgotten):
            self._unforgotten.update(set(batch.forgotten).difference(left))
            batch.forgotten = left

    def to_look_at(self, most: int) -> list[RowKey]:
        """Return rows to check again, those first that have been locked for longest."""
        return list(self._locked)[:most]

    def looked(self, rows: Sequence[RowKey], locked: Collection[RowKey]) -> int:
        """Record which of these ``rows`` are still locked; return how many are free."""
        for row in rows:
            self._locked.pop(row, None)
        self.are_locked(row for row in rows if row in locked)
        return sum(row not in locked for row in rows)

    def take_free(self, most_rows: int) -> tuple[Batch, bool]:
        """Take the units that need not wait any longer, up to a bound; say if any is unresolved."""
        free: list[_Waiting] = []
        left: list[_Waiting] = []
        before: set[RowKey] = set()
        size = 0
        for one in self._waiting:
            is_free = size < most_rows and not any(
                row in self._locked or row in before for row in one.rows
            )
            if is_free and not (one.unit.behind_all and left):
                free.append(one)
                size += one.unit.cost_rows
            else:
                left.append(one)
                before |= one.rows
        self._waiting = left
        self._put_back = []
        self._places = {id(one.unit): one.place for one in free}
        self._touched.subtract(row for one in free for row in one.rows)
        self._touched += Counter()  # drops zero counts
        return batch_of(one.unit for one in free), any(one.unresolved for one in free)

    def take_forgotten(self) -> Batch:
        """Return a batch that deletes the evicted ids whose rows are free by now."""
        batch = batch_of([Unit()])
        batch.forgotten = [
            seq for seq in self._unforgotten if RowKey(RowKind.MESSAGE, seq) not in self._locked
        ]
        self._unforgotten.difference_update(batch.forgotten)
        return batch


def _place_of(waiting: _Waiting) -> int:
    return waiting.place


def can_wait(unit: Unit) -> bool:
    """Return whether a unit may be stored behind later ones."""
    return unit.only_frees and not unit.touches_bindings and not unit.ended_caches
