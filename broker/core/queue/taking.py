"""Taking messages out of a queue wherever they are, for what operators do with many of them.

What consumers have stays with them. Not of rings: these are trimmed from the front alone.
"""

from typing import Final

from orthia.broker.core.api import MessageReference
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
    selecting = queue.deliver_selectively()
    selecting.take_in()
    reference = selecting.take_stored(message, queue_id)
    if reference is None:
        reference = queue.unsettled.delayed.with_seq(message.seq)
        if reference is None:
            return None
        queue.unsettled.stop_waiting(reference)
    queue.remove_by_operator(reference)
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
