# mypyc compiles this module.
"""Which messages of a queue are in the table only, and how many: what is still to be read.

That is everything with ``read_seq < seq <= tail_seq``. While there is such a stretch the queue is
*paged*: what comes new only moves the tail, and windows are read on from ``read_seq``. Since none
reaches beyond the tail, nothing is met twice.

A queue of an earlier epoch starts with everything unread up to the recovery horizon, so that
taking over costs nothing for its backlog. ``orthia.broker.core.upkeep.backlog`` counts it later.
"""

from collections.abc import Collection


class Cursor:
    """How far a queue was read, and counted; pure."""

    __slots__ = (
        "_counted_to", "_is_given_up", "_met", "_old_tail", "_passed_over", "_withheld", "read_seq",
        "staying", "tail_seq", "unread",
    )  # fmt: skip

    def __init__(self, unread_up_to: int = 0, withheld: Collection[int] = ()) -> None:
        """Begin before all messages, of which those with the seqs ``withheld`` are passed over."""
        self.read_seq = 0
        self.tail_seq = unread_up_to
        self.unread = 0
        """How many messages lie ahead, as far as they are counted."""
        self.staying = 0
        """How many messages were met that stay where they are."""
        self._passed_over = 0
        self._old_tail = unread_up_to
        self._counted_to = 0
        self._is_given_up = False
        self._withheld = withheld
        self._met: frozenset[int] = frozenset()
        """Those withheld that were met; there are few."""

    @property
    def is_paged(self) -> bool:
        """Whether there is anything to read."""
        return self.read_seq < self.tail_seq

    def leave(self, seq: int) -> None:
        """Leave a new message to the table."""
        if not self.is_paged:
            # Whatever lies before is in memory: only from here on is there something to read.
            self.read_seq = max(self.read_seq, seq - 1)
        self.tail_seq = seq
        self.unread += 1

    def leave_again(self, seq: int) -> None:
        """Leave the newest message in memory to the table."""
        self.read_seq = seq - 1
        self.tail_seq = max(self.tail_seq, seq)
        self.unread += 1

    def is_withheld(self, seq: int) -> bool:
        """Return whether a message is to stay where it is."""
        return seq in self._withheld

    @property
    def withholds(self) -> bool:
        """Whether there is any message that is to stay where it is."""
        return bool(self._withheld)

    def pass_over(self, seq: int) -> bool:
        """Stop counting a message that stays as unread; call it in the order of seq.

        Those withheld may come in any order. Return whether it was met for the first time.
        """
        if seq in self._withheld:
            if seq in self._met:
                return False
            self._met |= {seq}
        elif seq <= self._passed_over:
            return False
        else:
            self._passed_over = seq
        self.staying += 1
        if self.is_counted(seq):
            self.unread -= 1
        return True

    def stays_no_more(self, seq: int) -> None:
        """Note that a message that was passed over is deleted."""
        self.staying -= 1
        self._met -= {seq}

    def is_free(self, seq: int) -> None:
        """Note that a message that was passed over waits to be delivered after all."""
        self.stays_no_more(seq)
        self.unread += 1

    def is_old(self, seq: int) -> bool:
        """Return whether a message is of an earlier epoch."""
        return seq <= self._old_tail

    def is_counted(self, seq: int) -> bool:
        """Return whether a message ahead is among the ``unread``."""
        return seq > self._old_tail or seq <= self._counted_to

    def pass_to(self, seq: int) -> None:
        """Take note that everything up to ``seq`` was read."""
        self.read_seq = max(self.read_seq, seq)
        self._counted_to = max(self._counted_to, self.read_seq)

    @property
    def uncounted_after(self) -> int | None:
        """The seq behind which messages of earlier epochs are not counted; None if all are."""
        after = max(self._counted_to, self.read_seq)
        return after if after < self._old_tail and not self._is_given_up else None

    @property
    def is_counted_whole(self) -> bool:
        """Whether ``unread`` is all there is to read."""
        return max(self._counted_to, self.read_seq) >= self._old_tail

    def give_up_counting(self) -> None:
        """Take note that the rest of earlier epochs' messages is not going to be counted."""
        self._is_given_up = True

    def count(self, messages: int, up_to: int) -> None:
        """Count messages behind ``uncounted_after`` and up to ``up_to``."""
        self.unread += messages
        self._counted_to = min(up_to, self._old_tail)
        if not self.unread and self._counted_to == self._old_tail:
            self.read_seq = max(self.read_seq, self.tail_seq)  # there is nothing to read
