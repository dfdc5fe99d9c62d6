"""What stays in the table, and nobody is to get: it waits no more once it was met.

That is what a transaction in doubt has taken, and what cannot be read: nobody can say how large
that is. The store has it all the same, so it counts there until its queue is deleted.
"""

from orthia.broker.core.cursor import Cursor
from orthia.broker.core.memory import size_in_store
from orthia.broker.core.quota import AddressUse
from orthia.journal.windows import Window


def pass_over(window: Window, cursor: Cursor, use: AddressUse) -> None:
    """Have what stays of a window wait no more; ``cursor`` is before it, or behind all of it."""
    stay = [(corrupt.seq, 0) for corrupt in window.corrupt]
    if cursor.withholds:
        stay += [
            (one.seq, size_in_store(one.record))
            for one in window.messages
            if cursor.is_withheld(one.seq)
        ]
    for seq, size in sorted(stay):
        pass_one_over(seq, size, cursor, use)


def pass_one_over(seq: int, size: int, cursor: Cursor, use: AddressUse) -> None:
    """Have a message of ``size`` bytes wait no more, of several in their order."""
    if not cursor.pass_over(seq):
        return
    if not cursor.is_counted(seq):
        use.add(size)
