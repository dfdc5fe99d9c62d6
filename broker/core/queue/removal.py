"""Delivery of queues that lose messages from their middle, whatever their consumers want."""

from typing_extensions import override

from orthia.broker.core.api import MessageReference
from orthia.broker.core.queue.matching import Matching


class RemovingMatching(Matching):
    """Delivers out of the middle also where all consumers want every message."""

    def remove(self, seq: int) -> MessageReference | None:
        """Return a message in memory that nobody has, and is no more; None if it is not there."""
        own = self._own
        reference = self.take_out(own, seq)
        if reference is not None:
            own.taken.take(seq)
        return reference

    def is_taken(self, seq: int) -> bool:
        """Return whether a message is somebody's, or was."""
        return seq in self._own.taken

    def pass_over(self, seq: int) -> bool:
        """Have a message of the table no more; return whether it was counted there."""
        cursor, taken = self._own.cursor, self._own.taken
        if seq in taken or not cursor.read_seq < seq <= cursor.tail_seq:
            return False
        taken.take(seq)
        taken.acknowledged((seq,))
        if not cursor.is_counted(seq):
            return False
        cursor.unread -= 1
        if not cursor.unread and cursor.is_counted_whole:
            cursor.pass_to(cursor.tail_seq)  # there is nothing to read
        return True

    @property
    @override
    def _selects(self) -> bool:
        return True
