"""What operators see of the messages of a queue; nothing is changed, and nothing is read."""

from collections.abc import Iterator
from itertools import islice
from typing import Final

from orthia.broker.core.api import MessageReference
from orthia.broker.core.queue.queue import Queue
from orthia.broker.core.selectors import Selector

_CONSUMERS_ASKED: Final = 64
"""How many consumers are asked for their oldest message, to bound what one queue costs."""


def oldest_ms(queue: Queue) -> int | None:
    """Return when the oldest message in memory was accepted; None if none is in memory."""
    found = [one.record.timestamp_ms for one in _first_ones(queue)]
    return min(found) if found else None


def _first_ones(queue: Queue) -> Iterator[MessageReference]:
    ready, unsettled, selecting = queue.log.ready, queue.unsettled, queue.selecting
    if ready:
        yield ready[0]
    if unsettled.returned:
        yield unsettled.returned[0][1]
    yield from islice(unsettled.delayed, 1)
    if selecting is not None:
        yield from selecting.first_ones()
    if unsettled.delivered:
        for subscription in islice(queue.subscriptions, _CONSUMERS_ASKED):
            yield from islice(subscription.held(), 1)


def selector_of(view: object) -> str | None:
    """Return the text of the selector that consumers of a view share; None without one."""
    selector = getattr(view, "selector", None)
    return selector.text if isinstance(selector, Selector) else None
