# mypyc compiles this module.
"""Removing messages that no consumer has: expired ones, the oldest of a ring, replaced values.

Where they were is forgotten here; the row of one that expires goes with what becomes of it, and the
others' rows are deleted by whoever asked.
"""

from collections.abc import Sequence
from itertools import takewhile

from orthia.broker.core.api import MessageReference
from orthia.broker.core.limits.memory import size_in_store
from orthia.broker.core.queue.queue import Queue
from orthia.journal.model.windows import StoredMessage


def expire(queue: Queue, messages: Sequence[StoredMessage], queue_id: int, now_ms: int) -> None:
    """Move messages away that have expired, wherever in the queue they are.

    They are stored under ``queue_id``. All but those that a consumer has, that wait to be delivered
    again, or that are not counted; none of a queue that a stream reads, which may have read them.
    """
    if queue.is_leaving or queue.stream is not None or queue.pace.held or queue.pace.is_delivering:
        return
    expired = [one for one in messages if one.record.expires_ms <= now_ms]
    if queue.options.ring_size >= 0 and not queue.options.non_destructive:
        _expire_at_front(queue, {one.seq for one in expired})
        return
    selecting = queue.deliver_selectively()
    selecting.take_in()
    for message in expired:
        selecting.expire(message, queue_id)
    queue.dispatch()


def _expire_at_front(queue: Queue, seqs: set[int]) -> None:
    # Nothing is taken out of the middle of a table that is trimmed from the front, nor of the
    # middle of memory, of which the newest may be left to the table: a window would show it again.
    # It is found to have expired when it is the oldest, or in turn.
    ready = list(takewhile(lambda one: one.seq in seqs, queue.log.ready))
    for _ in ready:
        queue.log.ready.popleft()
    for reference in (*ready, *queue.unsettled.take_returned(seqs)):
        queue.move_expired(reference)


def pop_oldest(queue: Queue, *, of_lowest: bool) -> MessageReference | None:
    """Pop the oldest message in memory; None if the oldest is in the table only.

    Of the lowest priority, if it is ``of_lowest``; otherwise all go, in any order.
    """
    unsettled = queue.unsettled
    if of_lowest:
        delayed = unsettled.delayed.lowest_and_oldest()
    else:
        delayed = next(iter(unsettled.delayed), None)
    selecting = queue.selecting
    if selecting is None and of_lowest and queue.log.levels is not None:
        selecting = queue.deliver_selectively()  # what is lower may be in the table only
    if selecting is not None:
        oldest = selecting.take_oldest(delayed)
    else:
        oldest = _oldest_but(queue, delayed)
    if oldest is None:
        return None
    if oldest is delayed:
        unsettled.stop_waiting(oldest)
        queue.drop(oldest)
    else:
        unsettled.retries.pop(oldest.seq, None)
        queue.log.let_go(oldest)
    queue.log.release(size_in_store(oldest.record))
    return oldest


def _oldest_but(queue: Queue, delayed: MessageReference | None) -> MessageReference | None:
    """Take out the oldest message at the head, unless ``delayed`` is older: then return that."""
    ready, returned = queue.log.ready, queue.unsettled.returned
    is_returned = bool(returned) and (not ready or returned[0][0] < ready[0].seq)
    first = returned[0][0] if is_returned else ready[0].seq if ready else None
    if delayed is not None and (first is None or delayed.seq < first):
        return delayed
    if is_returned:
        return queue.unsettled.pop_oldest()
    return ready.popleft() if ready else None


def remove(queue: Queue, seq: int, size: int) -> None:
    """Remove an undelivered message, of ``size`` bytes in the store."""
    selecting, unsettled = queue.deliver_selectively(), queue.unsettled
    selecting.take_in()
    reference = selecting.remove(seq)
    if reference is None and selecting.is_taken(seq):
        reference = unsettled.delayed.with_seq(seq)
        if reference is not None:
            unsettled.stop_waiting(reference)
    if reference is not None:
        unsettled.retries.pop(seq, None)
        queue.let_go(reference)
    elif not selecting.pass_over(seq):
        return
    queue.log.release(size)
    if not queue.delivers:
        selecting.tidy()  # which is done with every delivery, where there are any


def remove_delayed(queue: Queue, reference: MessageReference) -> None:
    """Remove a message that waits for its redelivery, and its row."""
    queue.unsettled.stop_waiting(reference)
    queue.let_go(reference)
    queue.log.release(size_in_store(reference.record))
    queue.delete_rows([] if reference.location is None else [reference.location])
