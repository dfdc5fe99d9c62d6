"""Whether there was one writer at a time. Pure: changes of rows in, violations out.

Every row has the token it was written under, and each token's rows come before the next one's. Of a
row that is deleted or changed it is the deleting session's token that counts: the one of the last
row that it has inserted.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from tests.chaos.checker import Violations


class Act(StrEnum):
    """What was done with a row."""

    INSERT = "I"
    UPDATE = "U"
    DELETE = "D"


@dataclass(frozen=True, slots=True)
class Change:
    """One row inserted, changed or deleted, as a trigger in the database saw it."""

    number: int
    """Counts changes, in the order in which the database made them."""
    table: str
    act: Act
    seq: int
    token: int
    """That of the writer; 0 where it is not known."""


def check_changes(changes: Iterable[Change], violations: Violations) -> dict[str, int]:
    """Check that nothing of an older token follows anything of a newer one; return what was seen.

    The changes must come in the order in which they were made.
    """
    counts: Counter[Act] = Counter()
    unknown = 0
    newest: Change | None = None
    for change in changes:
        counts[change.act] += 1
        if not change.token:
            unknown += 1
        elif newest is None or change.token > newest.token:
            newest = change
        elif change.token < newest.token:
            violations.add("two writers", f"{change} after {newest}")
    return {
        "rows inserted": counts[Act.INSERT],
        "rows changed": counts[Act.UPDATE],
        "rows deleted": counts[Act.DELETE],
        "of them by a session that had inserted none": unknown,
    }
