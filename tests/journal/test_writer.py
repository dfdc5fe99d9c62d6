"""What the writer does with units that a store does not take, as a table.

Of a unit: ``m`` a message, ``p`` a poisonous one, ``w`` another that is refused, ``o`` a poisonous
one of the broker's own, ``d`` a deletion, ``t`` a transaction (``/`` what it deletes), ``e`` the
end of an id cache, ``l`` what goes behind all; then its seq and its sender.
Of what is told: ``+`` stored; refused are ``!`` what the store does not take, ``-`` for want of
room, ``#`` for a lock, ``~`` what its sender sent behind a refused one.
"""

import re
from collections.abc import Callable
from typing import NamedTuple

import pytest

from orthia.config.errors import OrthiaError
from orthia.database import NoRoom, PermanentStoreError, RefusedForNow, StoreUnavailable
from orthia.database import UnknownOutcome as Unknown
from orthia.journal.engine.batch import Batch
from orthia.journal.engine.retry import ATTEMPTS, UNANSWERED
from orthia.journal.errors import (
    Fenced,
    HeldElsewhere,
    JournalError,
    SentBehindRefused,
    StoreFull,
    UnitRefused,
)
from orthia.journal.limits import JournalLimits
from orthia.journal.model.unit import Appended, AppendedMessage, Sender, Unit
from tests.journal.scripted import (
    POISON,
    QUEUE,
    Committed,
    Full,
    Rule,
    ScriptedStore,
    Writing,
    deletion,
    end_of_ids,
    failing,
    grows,
    message,
    poison,
    transaction,
    write,
)

_SIGNS: dict[type[OrthiaError], str] = {
    UnitRefused: "!",
    StoreFull: "-",
    HeldElsewhere: "#",
    SentBehindRefused: "~",
}
LOST, CUT_OFF = StoreUnavailable("lost"), Unknown("lost")
FOREVER = "no such"
POISONOUS = poison(PermanentStoreError(FOREVER))


class Row(NamedTuple):
    """A store, units that all wait when the writer begins, and what it tells of them."""

    rules: list[Rule]
    units: str
    told: str
    failure: tuple[type[Exception], str] | None = None
    stored: list[int] | None = None
    deleted: list[int] | None = None
    forgotten: list[int] | None = None
    locked: list[set[int]] = []  # noqa: RUF012 - never changed
    stays_locked: bool = False
    rows_at_once: int = 5_000


def full(*errors: Exception) -> Rule:
    """Have no room for the first attempts that store anything."""
    return failing(*errors, when=grows)


def many(kind: str, count: int, first: int = 1) -> str:
    """Return so many units of a kind."""
    return " ".join(f"{kind}{seq}" for seq in range(first, first + count))


FULL = NoRoom("disk full")
TABLE: dict[str, Callable[[], Row]] = {
    # No room
    "a batch that was looked for is done without room too": lambda: Row(
        [failing(CUT_OFF), Full()], "m1 d9", "-1 +9"
    ),
    "an id cache ends without room with all of its ids": lambda: Row(
        [Full()], "m11 e5", "-11 +19", forgotten=[8, 9]
    ),
    # A unit that the store does not take
    "a store that takes nothing refuses nobody": lambda: Row(
        [lambda _: PermanentStoreError("no table")], "m1 m2", "", (JournalError, "no table")
    ),
    "what is the broker's own is not refused: nobody could be told": lambda: Row(
        [POISONOUS], "o1", "", (JournalError, FOREVER)
    ),
    "many in a row without an answer are the link's fault": lambda: Row(
        [poison(LOST)], many("p", 10), many("!", UNANSWERED), (JournalError, "lost")
    ),
    "so are those of unknown outcome": lambda: Row(
        [poison(CUT_OFF)], many("p", 10), many("!", UNANSWERED), (JournalError, "lost")
    ),
    "what the database refuses for good ends no journal": lambda: Row(
        [POISONOUS], many("p", UNANSWERED + 2) + " m6", many("!", UNANSWERED + 2) + " +6"
    ),
    "nor does what it refuses for now": lambda: Row(
        [poison(RefusedForNow("not now"))],
        many("p", UNANSWERED + 2) + " m6",
        many("!", UNANSWERED + 2) + " +6",
    ),
    "what a lost commit stored is not refused: its client would send it once more": lambda: Row(
        [full(*[CUT_OFF] * (ATTEMPTS - 1), Committed(CUT_OFF))], "m1", "+1", stored=[1]
    ),
    "an answer of the database shows that its link carries": lambda: Row(
        [poison(PermanentStoreError(FOREVER), b"wrong"), poison(LOST)],
        f"{many('p', UNANSWERED)} w4 {many('p', UNANSWERED, 5)}",
        many("!", 2 * UNANSWERED + 1),
    ),
    "any number is refused if others are stored in between": lambda: Row(
        [poison(LOST)],
        " ".join(f"p{seq} m{seq + 1}" for seq in range(1, 4 * UNANSWERED, 2)),
        " ".join(f"!{seq} +{seq + 1}" for seq in range(1, 4 * UNANSWERED, 2)),
    ),
    "a probe that meets the fence refuses nobody": lambda: Row(
        [full(PermanentStoreError("no")), lambda _: Fenced(1)], "m1", "", (Fenced, "")
    ),
    # Locks of other sessions
    "what was sent before a transaction that meets a lock is stored": lambda: Row(
        [],
        "m1a m2b t3a/99 m4a m5b t6b/99 m7",
        "+1 +2 #3 ~4 +5 #6 +7",
        stored=[1, 2, 5, 7],
        locked=[{99}],
        stays_locked=True,
    ),
    "what meets a lock late keeps its place before others": lambda: Row(
        [], "d1 d2 l13", "+1 +2 +13", locked=[{2}, set(), {1, 2}]
    ),
    "what is put aside is looked at once more at the end": lambda: Row(
        [], "d1", "+1", deleted=[1], locked=[{1}, {1}]
    ),
    # Behind a refused one
    "what follows in a later batch is refused though there is room again": lambda: Row(
        [full(FULL)], "m1a m2b m3a m4", "-1 +2 ~3 +4", stored=[2, 4], rows_at_once=1
    ),
    "what follows a poisonous message in its batch is refused": lambda: Row(
        [POISONOUS],
        "m1a m2b p3a m4b m5a m6b m7a m8b m9a",
        "+1 +2 !3 +4 ~5 +6 ~7 +8 ~9",
        stored=[1, 2, 4, 6, 8],
    ),
    "a transaction that follows is refused as a whole": lambda: Row(
        [full(FULL)],
        "m11a t12a/1 d2",
        "-11 ~12 +2",
        stored=[],
        deleted=[2],
        rows_at_once=1,
    ),
    "what follows a refused transaction is refused": lambda: Row(
        [full(FULL)], "t1a m2a", "-1 ~2", rows_at_once=1
    ),
    "what follows is refused while there is no room for others either": lambda: Row(
        [full(FULL, FULL)], "m1a m2a m3b d9 m4a", "-1 ~2 -3 +9 ~4", rows_at_once=3
    ),
}


def unit(word: str, senders: dict[str, Sender]) -> Appended:
    """Return the unit that a word of the table names."""
    matched = re.fullmatch(r"(\w)(\d+)([ab]?)(?:/(\d+))?", word)
    assert matched is not None, word
    kind, seq, name, deletes = matched[1], int(matched[2]), matched[3], matched[4]
    sender = senders.setdefault(name, Sender()) if name else None
    if kind == "t":
        assert sender is not None
        return transaction(seq, sender, deletes=None if deletes is None else int(deletes))
    if kind in "de":
        return deletion(seq) if kind == "d" else end_of_ids(seq)
    if kind == "l":
        return Unit(None, seq, behind_all=True)
    data = {"p": POISON, "o": POISON, "w": b"wrong"}.get(kind, b"x")
    if kind == "o":
        return AppendedMessage(seq, QUEUE, data, None)
    return message(seq, sender, data)


@pytest.mark.parametrize("name", TABLE)
def test_what_becomes_of_units(name: str) -> None:
    """Each is told of once, in its turn; what is refused is not stored, and says why."""
    row = TABLE[name]()
    store = ScriptedStore(
        *row.rules, ids={5: [8, 9]}, locked=row.locked, stays_locked=row.stays_locked
    )
    senders: dict[str, Sender] = {}
    units = [unit(word, senders) for word in row.units.split()]
    writing = write(store, *units, limits=JournalLimits(max_batch_rows=row.rows_at_once))
    told = [
        f"{'+' if what == 'stored' else _SIGNS[type(writing.reasons[seq])]}{seq}"
        for what, seq in writing.told
    ]
    assert told == row.told.split()
    said = [str(one) for one in writing.reasons.values()]
    for reason in writing.reasons.values():
        if isinstance(reason, SentBehindRefused):  # and why that was refused
            assert any(one != str(reason) and one in str(reason) for one in said)
    if row.failure is None:
        assert writing.failures == []
        assert writing.writer.drained
    else:
        ((kind, text), (failure,)) = (row.failure, writing.failures)
        assert (type(failure), text in str(failure)) == (kind, True)
    for expected, found in (
        (row.stored, store.stored),
        (row.deleted, store.deleted),
        (row.forgotten, store.forgotten),
    ):
        assert expected is None or expected == found
    assert not any(store.locks) or row.stays_locked


def test_a_batch_is_as_long_as_its_rows_take() -> None:
    """Whoever sends one message waits for the batch under way: in seconds, not in rows."""
    now = 0.0

    def slow(batch: Batch) -> None:
        nonlocal now
        now += (0.001 if batch.items[0].last_seq < 9_000 else 1e-6) * len(batch.items)

    limits = JournalLimits(max_batch_rows=2_000, batch_seconds=0.8)
    writing = Writing(ScriptedStore(slow), limits, clock=lambda: now)
    writing.submit(*(message(seq) for seq in range(1, 20_001)))
    writing.writer.finish()
    writing.writer.start()
    assert writing.writer.join(120)
    assert writing.sizes[0] == 2_000
    assert all(700 < size < 900 for size in writing.sizes[5:9])
    assert writing.sizes[-2] > 1_900  # it is fast again
    assert [seq for _, seq in writing.told] == [*range(1, 20_001)]


def test_what_is_put_aside_is_told_of_once() -> None:
    """However often its row is looked at: until it is stored it is counted apart."""
    store = ScriptedStore(locked=[{1}, {1}, {1}])
    writing = write(store, deletion(1), message(2), deletion(3))
    assert writing.aside == [1]
    assert sorted(writing.told) == [("stored", 1), ("stored", 2), ("stored", 3)]
