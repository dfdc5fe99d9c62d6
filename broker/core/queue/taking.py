"""Taking messages out of a queue wherever they are, for operators and acknowledging applications.

What consumers have stays with them. Not of rings: these are trimmed from the front alone.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from orthia.broker.core.api import MessageReference
from orthia.broker.core.limits.memory import size_in_store
from orthia.broker.core.queue.cursor import Cursor
from orthia.broker.core.queue.left_over import pass_one_over
from orthia.broker.core.queue.queue import Queue
from orthia.broker.core.slices import GO_ON, Finding
from orthia.journal.model.windows import StoredMessage

_SHED_BYTES: Final = 65_536
"""What is left to the table in one step."""


def may_take(queue: Queue) -> bool:
    """Return whether messages may be taken out at this moment."""
    return not (queue.pace.held or queue.pace.is_delivering)


def is_known(queue: Queue) -> bool:
    """Return whether it is known what the queue has: not before earlier messages are counted."""
    values = queue.last_values
    return queue.is_counted and (values is None or values.is_ready)


def shedding(queue: Queue) -> Finding[None]:
    """Leave to the table what is there too, unless somebody consumes.

    So that nothing has to be sorted at once that may be taken out of the middle.
    """
    while not queue.subscriptions and queue.selecting is None and len(queue.log.ready) > 0:
        before = len(queue.log.ready)
        queue.shed(_SHED_BYTES)
        if len(queue.log.ready) == before:
            return
        yield GO_ON


def take(queue: Queue, queue_id: int, message: StoredMessage) -> MessageReference | None:
    """Take out a message that a window showed; None if somebody has it, or it is gone."""
    reference = _take(queue, queue_id, message)
    if reference is not None:
        queue.remove_by_operator(reference)
    return reference


def take_acknowledged(queue: Queue, queue_id: int, message: StoredMessage) -> bool:
    """Take out a message that an application acknowledged; False if somebody has it."""
    reference = _take(queue, queue_id, message)
    if reference is not None:
        queue.remove_acknowledged(reference)
    return reference is not None


def _take(queue: Queue, queue_id: int, message: StoredMessage) -> MessageReference | None:
    selecting = queue.deliver_selectively()
    selecting.take_in()
    reference = selecting.take_stored(message, queue_id)
    if reference is None:
        reference = queue.unsettled.delayed.with_seq(message.seq)
        if reference is None:
            return None
        queue.unsettled.stop_waiting(reference)
    return reference


def take_unstored(queue: Queue, seq: int) -> MessageReference | None:
    """Take out a message that is in memory only; None if somebody has it, or it is gone."""
    selecting = queue.deliver_selectively()
    selecting.take_in()
    reference = selecting.take_from_memory(seq)
    if reference is None:
        reference = queue.unsettled.delayed.with_seq(seq)
        if reference is None:
            return None
        queue.unsettled.stop_waiting(reference)
    queue.remove_by_operator(reference)
    return reference


def taken(queue: Queue) -> None:
    """Go on after some were taken out."""
    selecting = queue.selecting
    if selecting is not None:
        selecting.skip_read()
    queue.dispatch()
    selecting = queue.selecting
    if selecting is not None and not queue.delivers:
        selecting.tidy()  # which is done with every delivery, where there are any


@contextmanager
def picking(queue: Queue) -> Iterator[None]:
    """Keep what is in memory sorted during the block, which takes messages out again and again.

    Sorting it takes as long as it is much.
    """
    queue.picking += 1
    try:
        yield
    finally:
        queue.picking -= 1
        if not (queue.is_leaving or queue.is_forgotten):
            taken(queue)


def hold_back(queue: Queue, queue_id: int, message: StoredMessage) -> None:
    """Stop counting a message that a transaction in doubt acknowledges, if it is met only later.

    Call it while it is withheld, and all of the queue is counted.
    """
    pass_one_over(message.seq, size_in_store(message.record), _cursor(queue, queue_id), queue.log)


def acknowledged_in_doubt(queue: Queue, queue_id: int, message: StoredMessage) -> None:
    """Discount a message that was held back and is deleted."""
    _cursor(queue, queue_id).stays_no_more(message.seq)
    queue.log.release(size_in_store(message.record))
    queue.counters.acknowledged += 1


def free(queue: Queue, queue_id: int, message: StoredMessage) -> None:
    """Deliver a message that was held back, and is withheld no more.

    Consumers that have copies of all messages do not get it: whoever comes anew does.
    """
    cursor = _cursor(queue, queue_id)
    cursor.is_free(message.seq)
    if queue.options.non_destructive:
        return
    reference = None
    if message.seq <= cursor.read_seq:
        reference = queue.unsettled.load(message, cursor)
        if queue.selecting is not None:
            queue.selecting.note_taken(queue_id, message.seq)
    elif queue.selecting is not None:
        reference = queue.selecting.take_stored(message, queue_id)
    if reference is not None:
        queue.unsettled.came_back(reference)
    queue.resume()


def _cursor(queue: Queue, queue_id: int) -> Cursor:
    return next(cursor for one, cursor in queue.log.cursors() if one == queue_id)
