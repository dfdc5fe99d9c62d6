"""What the writer does after a batch has failed: pure rules, stated as tables.

==========================  ============================================================
what happened               what is done next
==========================  ============================================================
the fence refused           give up: another node is live, the store is not touched again
the lease is over           give up: a commit could no longer be told from a successor's
deadlock, serialization     repeat: the database undid the transaction
connection lost             reconnect and repeat: a lost transaction is undone
connection lost at commit   reconnect, look for a row of the batch, repeat if it is absent
a row of it is found        confirm: a commit of our own has to wait behind the one that was lost
duplicate key after that    look again: the first attempt was slower than our look
duplicate key before that   give up: somebody else has written here
locked by another session   put aside what deletes locked rows, see
                            ``orthia.journal.engine.locks``; repeat the rest, and all of it
                            where none of its rows is locked, as for a locked table
anything else               give up: it would be refused again
==========================  ============================================================

The fault may be the batch's: it may be more than the link carries in time, or hold what the
database cannot store. It is suspect when it fails ``ATTEMPTS`` times in one way, for locks
``LOCKED_ATTEMPTS`` times, or when it would be refused again; but not for want of disk space, which
a probe may find where a batch does not: see the third table. With a suspect batch a *probe* is
stored on a new connection: a row like any other, which is deleted again. Before it the batch is
looked for, so that nothing of it is stored whatever is done with it now.

==========================  ============================================================
a suspect batch             what is done next
==========================  ============================================================
the probe fails             what the table above says: the fault is not the batch's
several units               split: parts are stored by themselves, in order
one that can be refused     refuse: its client is told, everybody else is served; see
                            ``orthia.journal.engine.senders`` for what its client sent behind it
the fourth unanswered one   give up: the fault is this node's link, and another node has its own
one of the broker's own     give up: nobody could be told; for a lock, try on
==========================  ============================================================

==========================  ============================================================
no room, and a unit that    what is done with it, in the order of the batch
==========================  ============================================================
only deletes                store it with its neighbours, with fewer where many find no room;
                            repeat that until it is stored; if it is suspect, and a probe finds
                            room, see the second table
stores a message            refuse: its client is told, and can send again; what it sent
                            behind it is refused too: see ``orthia.journal.engine.senders``
binds a queue               keep it until there is room: its messages are refused meanwhile, and
                            stored with it at the earliest; its end is kept with it
==========================  ============================================================

Unanswered are those of which no error of the database came back, in a row, with nothing stored in
between. What the database itself refuses it would refuse to every node: if that ended the journal,
one client that sends its message again and again would end the nodes one after the other.
"""

from collections.abc import Callable, Collection, Iterable
from enum import Enum

from orthia.config.errors import OrthiaError
from orthia.database import (
    DuplicateKey,
    Locked,
    NoRoom,
    PermanentStoreError,
    RefusedForNow,
    StoreUnavailable,
    TransientStoreError,
    UnknownOutcome,
)
from orthia.journal.model.unit import Appended, Unit

FIRST_PAUSE_SECONDS = 0.02
LONGEST_PAUSE_SECONDS = 1.0
ATTEMPTS = 3
"""Failures of one kind after which a batch is suspect."""
TRANSIENT_ATTEMPTS = 10
"""The same for deadlocks and serialization failures, which others contribute to."""
LOCKED_ATTEMPTS = 20
"""The same for locks of other sessions: about half a minute, since a table may be locked."""
LOCKED_LOOK_SECONDS = 0.25
"""How often locked rows are checked again."""
UNANSWERED = 3
"""How many units in a row are refused without an answer of the database; then the writer ends."""


class NextStep(Enum):
    """What the writer does with a batch that failed."""

    REPEAT = "repeat"
    RECONNECT = "reconnect"
    RECONNECT_AND_RESOLVE = "reconnect and resolve"
    GIVE_UP = "give up"
    SPLIT = "split"
    REFUSE = "refuse"
    WAIT = "wait"


def after_failure(error: OrthiaError, *, unresolved: bool, lease_valid: bool) -> NextStep:
    """Decide about a batch that failed with ``error``.

    ``unresolved`` says that an earlier attempt of the same batch had an unknown outcome.
    """
    if not lease_valid:
        return NextStep.GIVE_UP
    if isinstance(error, UnknownOutcome) or (unresolved and isinstance(error, DuplicateKey)):
        return NextStep.RECONNECT_AND_RESOLVE
    if isinstance(error, Locked) and not unresolved:
        return NextStep.REPEAT  # the session is still usable
    if isinstance(error, StoreUnavailable):
        return NextStep.RECONNECT_AND_RESOLVE if unresolved else NextStep.RECONNECT
    if isinstance(error, TransientStoreError):
        return NextStep.REPEAT
    return NextStep.GIVE_UP


def is_suspect(error: OrthiaError, *, failures: int, lease_valid: bool) -> bool:
    """Decide whether to probe after the ``failures``-th failure of this kind to store a batch."""
    if not lease_valid or isinstance(error, DuplicateKey | NoRoom):
        return False
    if isinstance(error, TransientStoreError):
        return failures >= TRANSIENT_ATTEMPTS
    if isinstance(error, Locked):
        return failures >= LOCKED_ATTEMPTS
    if isinstance(error, StoreUnavailable):
        return failures >= ATTEMPTS
    return isinstance(error, PermanentStoreError)


def is_answer(error: OrthiaError) -> bool:
    """Return whether the database itself refused the request."""
    return isinstance(error, (PermanentStoreError, TransientStoreError, RefusedForNow))


def after_probe(error: OrthiaError, *, units: int, refusable: bool, unanswered: int) -> NextStep:
    """Decide about a suspect batch of so many units that failed with ``error``.

    The probe was stored; ``unanswered`` units were refused in a row before.
    """
    if units > 1:
        return NextStep.SPLIT
    if refusable and (is_answer(error) or unanswered < UNANSWERED):
        return NextStep.REFUSE
    # The session with the lock would block the next node, too.
    return NextStep.WAIT if isinstance(error, Locked) else NextStep.GIVE_UP


class RoomNeeded(Enum):
    """What happens to a unit while the store has no room."""

    NONE = "stored"
    REFUSED = "refused"
    KEPT = "kept"


def room_needed(item: Appended, kept: Iterable[Appended]) -> RoomNeeded:
    """Decide about a unit of a batch for which there is no room; ``kept`` are those before it."""
    if isinstance(item, Unit) and item.only_frees:
        if item.unbound and any(_binds(one, item.unbound) for one in kept):
            return RoomNeeded.KEPT
        return RoomNeeded.NONE  # reserving ids only changes a number in an existing row
    return RoomNeeded.KEPT if item.refused is None else RoomNeeded.REFUSED


def _binds(item: Appended, ids: Collection[int]) -> bool:
    return isinstance(item, Unit) and any(row.seq in ids for row in item.binding_rows)


class Lapses:
    """Whether a lease is lost: it is once two checks in a row found it invalid.

    A renewal that is answered late may make it valid again a moment later.
    """

    def __init__(self, still_valid: Callable[[], bool]) -> None:
        self._still_valid = still_valid
        self._has_lapsed = False

    def is_lost(self) -> bool:
        """Check the lease again."""
        has_lapsed, self._has_lapsed = self._has_lapsed, not self._still_valid()
        return has_lapsed and self._has_lapsed


def pause_seconds(failures: int) -> float:
    """Return how long to wait after the ``failures``-th failure of a batch in a row."""
    doubled: float = FIRST_PAUSE_SECONDS * 2 ** min(failures - 1, 10)
    return min(doubled, LONGEST_PAUSE_SECONDS)


def failure_of(what: str, error: Exception) -> str:
    """Return why reading ``what`` failed, in the words of an error of ours, or of any other."""
    if isinstance(error, OrthiaError):
        return str(error)
    return f"reading {what} failed: {type(error).__name__}: {error}"
