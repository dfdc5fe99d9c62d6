# mypyc compiles this module.
"""Messages that stay in the table and are not delivered: once read, they are not counted any more.

Those are the messages that a transaction in doubt has acknowledged, and rows that cannot be read,
of which nobody knows the size. The store still has them, so they count against its limits until
their queue is deleted.
"""

from orthia.broker.core.limits.memory import size_in_store
from orthia.broker.core.queue.cursor import Cursor
from orthia.broker.core.queue.log import QueueLog
from orthia.journal.model.windows import Window


def pass_over(window: Window, cursor: Cursor, log: QueueLog) -> None:
    """Stop counting what stays of a window; ``cursor`` is before it, or behind all of it."""
    stay = [(corrupt.seq, 0) for corrupt in window.corrupt]
    if cursor.withholds:
        stay += [
            (one.seq, size_in_store(one.record))
            for one in window.messages
            if cursor.is_withheld(one.seq)
        ]
    for seq, size in sorted(stay):
        pass_one_over(seq, size, cursor, log)


def pass_one_over(seq: int, size: int, cursor: Cursor, log: QueueLog) -> None:
    """Stop counting a message of ``size`` bytes; call it in the order of seq."""
    if not cursor.pass_over(seq):
        return
    if not cursor.is_counted(seq):
        log.charge(size)
