# mypyc compiles this module.
"""How much a queue keeps.

- ``ring-size``: when there is one too many, the oldest undelivered one of the lowest priority goes.
- ``purge-on-no-consumers``: what is left when the last consumer leaves is deleted.
"""

from collections.abc import Sequence
from functools import partial
from typing import Final

from typing_extensions import override

from orthia.broker.core.api import MessageReference
from orthia.broker.core.limits.memory import size_in_store
from orthia.broker.core.queue.cursor import Cursor
from orthia.broker.core.queue.left_over import pass_one_over
from orthia.broker.core.queue.pace import AT_ONCE
from orthia.broker.core.queue.policy import Policy
from orthia.broker.core.queue.queue import Queue
from orthia.broker.core.queue.reader import Span
from orthia.broker.core.queue.refill import MAX_WINDOW_BYTES, WINDOW_MESSAGES
from orthia.broker.core.queue.removal import pop_oldest
from orthia.broker.core.queue.services import QueueServices
from orthia.journal.model.changes import MessageLocation
from orthia.journal.model.windows import StoredMessage, Window

_AGAIN_MS: Final = 100
"""When a ring that could not be trimmed is looked at again: many messages are being given back."""


class Retention(Policy):
    """Removes the oldest messages of a queue that has too many; on the loop's thread."""

    __slots__ = (
        "_is_due", "_is_trimming", "_journal", "_may_be_too_many", "_purges", "_queue",
        "_ring_size", "_timers",
    )  # fmt: skip

    def __init__(self, queue: Queue, services: QueueServices) -> None:
        self._queue = queue
        self._timers = services.timers
        self._journal = services.journal
        self._ring_size = queue.options.ring_size
        self._purges = queue.options.purge_on_no_consumers
        self._is_trimming = False
        """Whether messages of the table are being removed."""
        self._is_due = False
        """Whether trimming goes on in a later turn of the loop."""
        self._may_be_too_many = False
        """Whether messages came that nobody may have taken."""

    def configure(self) -> None:
        """Follow the options of the queue, which have changed."""
        self._ring_size = self._queue.options.ring_size
        self._purges = self._queue.options.purge_on_no_consumers
        self.opened()

    @property
    def _most(self) -> int | None:
        """How many messages may wait that are not delivered; None for any number."""
        if self._purges and not self._queue.consumers:
            return 0
        return None if self._ring_size < 0 else self._ring_size

    # --- when there may be too many

    @override
    def opened(self) -> None:
        self._trim()

    @override
    def counted(self) -> None:
        if self._queue.is_counted:
            self._trim()  # only now it is known how many an earlier node left

    @override
    def consumers_gone(self) -> None:
        if self._purges:
            # What the consumer had comes back first: it is given back after this.
            self._trim_later(0)

    @override
    def placed(self, reference: MessageReference) -> None:
        if self._most is None:
            return
        if self._queue.has_takers and self._queue.delivers:
            self._may_be_too_many = True  # unless a consumer takes it
        else:
            self._trim()

    @override
    def returned(self, references: Sequence[MessageReference]) -> None:
        self._may_be_too_many = self._most is not None  # unless a consumer takes them again

    @override
    def dispatched(self) -> None:
        if self._may_be_too_many:
            self._may_be_too_many = False
            self._trim()

    # --- removing them

    def _too_many(self, most: int) -> int:
        return self._queue.undelivered - most

    def _trim(self) -> None:
        """Delete the oldest messages while there are too many; what is in the table is read."""
        most, queue = self._most, self._queue
        if most is None or queue.is_leaving or self._is_trimming:
            return
        if queue.pace.held:
            self._trim_later(_AGAIN_MS)
            return
        rows: list[MessageLocation] = []
        removed = 0
        while removed < AT_ONCE and self._too_many(most) > 0:
            oldest = pop_oldest(queue, of_lowest=most > 0)
            if oldest is None:
                break
            removed += 1
            if oldest.location is not None:
                rows.append(oldest.location)
        if rows:
            queue.delete_rows(rows)
        if removed >= AT_ONCE:
            self._trim_later(0)
            return
        is_paged = any(cursor.is_paged for _, cursor in queue.log.cursors())
        if is_paged and (not most or self._too_many(most) > 0):
            self._trim_the_table(most)

    def _trim_later(self, delay_ms: int) -> None:
        """Trim, or continue to, in a later turn of the loop; once, however often it is called."""
        if not self._is_due:
            self._is_due = True
            self._timers.call_later(delay_ms, self._trim_as_due)

    def _trim_as_due(self) -> None:
        self._is_due = False
        self._trim()

    def _trim_the_table(self, most: int) -> None:
        """Delete from the front of what is not in memory."""
        queue = self._queue
        if not queue.refill.hold():
            self._trim_later(_AGAIN_MS)
            return
        self._is_trimming = True
        paged = [one for one in queue.log.cursors() if one[1].is_paged]
        queue_id, cursor = paged[-1] if paged else (queue.id, queue.log.cursor)
        too_many = self._too_many(most) if most else WINDOW_MESSAGES
        up_to = min(cursor.tail_seq, self._journal.last_committed_seq)
        queue.reader.read(
            Span(queue_id, cursor.read_seq, up_to),
            min(WINDOW_MESSAGES, max(1, too_many)),
            MAX_WINDOW_BYTES,
            partial(self._table_read, queue_id, cursor),
            self._end_trimming,
        )

    def _table_read(self, queue_id: int, cursor: Cursor, window: Window | None) -> None:
        if window is None:
            return  # it is read again
        if not self._queue.is_leaving:
            self._remove_from_table(queue_id, cursor, window)
        self._end_trimming()

    def _is_enough(self) -> bool:
        """Return whether no more is to be removed from the table; a purge removes all of it."""
        most = self._most
        return most is None or (most > 0 and self._too_many(most) <= 0)

    def _remove_from_table(self, queue_id: int, cursor: Cursor, window: Window) -> None:
        """Delete what was read, as far as it is still too much; the rest is read again."""
        queue = self._queue
        rows: list[MessageLocation] = []
        passed = window.next_after_seq
        read: dict[int, StoredMessage | None] = {one.seq: one for one in window.messages}
        read.update(dict.fromkeys(corrupt.seq for corrupt in window.corrupt))
        for seq, message in sorted(read.items()):
            if self._is_enough():
                passed = seq - 1
                break
            size = 0 if message is None else size_in_store(message.record)
            if message is None or cursor.is_withheld(seq):
                pass_one_over(seq, size, cursor, queue.log)
            elif queue.selecting is None or queue.selecting.drop(queue_id, seq):
                rows.append(message.location)
                if cursor.is_counted(seq):
                    cursor.unread -= 1
                    queue.log.release(size)
        cursor.pass_to(passed)
        if rows:
            queue.delete_rows(rows)

    def _end_trimming(self) -> None:
        queue = self._queue
        self._is_trimming = False
        queue.refill.release()
        queue.dispatch()
        if queue.selecting is not None:
            queue.selecting.tidy()  # which is done with every delivery, where there are any
        self._trim()
