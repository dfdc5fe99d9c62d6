"""What the writer does after a batch failed: one pure rule, stated as a table.

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
anything else               give up: it would be refused again
==========================  ============================================================
"""

from enum import Enum

from config.errors import OrthiaError
from database import DuplicateKey, StoreUnavailable, TransientStoreError, UnknownOutcome

FIRST_PAUSE_SECONDS = 0.02
LONGEST_PAUSE_SECONDS = 1.0


class NextStep(Enum):
    """What the writer does with a batch that failed."""

    REPEAT = "repeat"
    RECONNECT = "reconnect"
    RECONNECT_AND_RESOLVE = "reconnect and resolve"
    GIVE_UP = "give up"


def after_failure(error: OrthiaError, *, unresolved: bool, lease_valid: bool) -> NextStep:
    """Decide about a batch that failed with ``error``.

    ``unresolved`` says that an earlier attempt of the same batch had an unknown outcome.
    """
    if not lease_valid:
        return NextStep.GIVE_UP
    if isinstance(error, UnknownOutcome) or (unresolved and isinstance(error, DuplicateKey)):
        return NextStep.RECONNECT_AND_RESOLVE
    if isinstance(error, StoreUnavailable):
        return NextStep.RECONNECT_AND_RESOLVE if unresolved else NextStep.RECONNECT
    if isinstance(error, TransientStoreError):
        return NextStep.REPEAT
    return NextStep.GIVE_UP


def pause_seconds(failures: int) -> float:
    """Return how long to wait after the ``failures``-th failure of a batch in a row."""
    doubled: float = FIRST_PAUSE_SECONDS * 2 ** min(failures - 1, 10)
    return min(doubled, LONGEST_PAUSE_SECONDS)
