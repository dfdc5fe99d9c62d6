"""What is sent to last value queues, in the unit that deletes what it replaces."""

from collections.abc import Sequence

from orthia.broker.core.queue.last_value import LastValueQueue
from orthia.broker.core.queue.queue import Queue
from orthia.journal.model.changes import MessageLocation
from orthia.journal.model.message import Message
from orthia.journal.model.unit import Unit

Place = tuple[int, Queue]
"""One of a unit's messages, by its number, in one of its queues."""


class SentValue:
    """A message on its way to a last value queue."""

    __slots__ = ("_key", "_location", "_queue", "_replaces")

    def __init__(self, queue: LastValueQueue, key: bytes, replaces: MessageLocation | None) -> None:
        self._queue = queue
        self._key = key
        self._replaces = replaces
        self._location: MessageLocation | None = None

    def sent(self, record: Message, location: MessageLocation) -> None:
        """Note where it will be."""
        self._location = location
        self._queue.sent(self._key, record, location, self._replaces)

    def refuse(self) -> None:
        """Note that it was not stored."""
        if self._location is not None:
            self._queue.not_sent(self._key, self._location)
            self._location = None


def replaced_values(
    unit: Unit, messages: Sequence[tuple[Sequence[Queue], Message]]
) -> dict[Place, SentValue]:
    """Have a unit delete what its ``messages`` replace; return those that have a value, by place.

    Raises LimitExceeded.
    """
    found: dict[Place, SentValue] = {}
    seen: set[tuple[Queue, bytes]] = set()
    for number, (queues, record) in enumerate(messages):
        for queue in queues:
            if not isinstance(queue, LastValueQueue):
                continue
            key, location = queue.replaced_by(record)
            if key is None:
                continue
            if location is not None and (queue, key) not in seen:
                unit.replace(location, number)
            else:
                location = None  # it was replaced by a message before it in the unit
            seen.add((queue, key))
            found[number, queue] = SentValue(queue, key, location)
    return found


def is_plain(placed: Sequence[tuple[Sequence[Queue], Message]]) -> bool:
    """Return whether it is one message of one queue, in no index of the store, for none older."""
    ((queues, record), *more) = placed
    return (
        not more
        and len(queues) == 1
        and record.large is None
        and not record.stated
        and not isinstance(queues[0], LastValueQueue)
    )
