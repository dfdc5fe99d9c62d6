# mypyc compiles this module.
"""Messages of one unit on their way into their queues: all of them, once the unit is stored."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from orthia.broker.core.api import Done, MessageReference
from orthia.broker.core.limits.memory import size_in_memory, size_in_store
from orthia.broker.core.queue.queue import Queue
from orthia.broker.core.sending.replacing import Place, SentValue
from orthia.broker.core.slices import GO_ON
from orthia.broker.core.topics.publication import refusal_of_journal
from orthia.config.errors import OrthiaError
from orthia.journal.abc import MessageJournal
from orthia.journal.errors import JournalClosed, RecordTooLarge
from orthia.journal.model.changes import MessageLocation
from orthia.journal.model.message import Message
from orthia.journal.model.unit import Unit

_AT_ONCE: Final = 64
"""How many messages go into their queues before others have a turn."""
Placed = tuple[Sequence[Queue], Message]
"""A message, and the queues it is for."""


_Copy = tuple[int, Queue, Message, MessageLocation]
"""Which of a unit's messages it is, one of its queues, the message, and where it is stored."""


class Placing:
    """Has a unit's messages in their queues when it is stored; on the loop's thread.

    But for those that were dropped, since they are duplicates. Of many it is done in steps, during
    which no queue of them delivers: all of a unit is in its queues before any of it is delivered.
    """

    __slots__ = ("_copies", "_done", "_messages", "_on_refused", "_unit", "_values")

    def __init__(
        self,
        unit: Unit,
        messages: Sequence[Placed],
        values: Mapping[Place, SentValue],
        done: Done | None,
        on_refused: Callable[[OrthiaError], None],
    ) -> None:
        """``values`` are those that are replaced; ``done`` follows when all is in its queues."""
        self._unit = unit
        self._messages = messages
        self._values = values
        self._done = done
        self._on_refused = on_refused
        self._copies: list[_Copy] = []

    def append_to(self, journal: MessageJournal) -> None:
        """Append the unit; raises LimitExceeded, NotLive."""
        unit, values = self._unit, self._values
        unit.done, unit.refused = self._stored, self._refused
        if sum([len(queues) for queues, _ in self._messages]) > _AT_ONCE:
            unit.completes = self._stored_in_steps
        try:
            locations = iter(journal.append_unit(unit))
        except (RecordTooLarge, JournalClosed) as error:
            raise refusal_of_journal(error) from None
        for number, (queues, record) in enumerate(self._messages):
            for queue in queues:
                queue.in_flight += 1
                location = next(locations)
                self._copies.append((number, queue, record, location))
                if values and (number, queue) in values:
                    values[number, queue].sent(record, location)

    def _place(self, copy: _Copy) -> None:
        number, queue, record, location = copy
        queue.in_flight -= 1
        if number in self._unit.dropped:
            queue.use.release(size_in_store(record))
            if (number, queue) in self._values:
                self._values[number, queue].refuse()
            return
        size = size_in_memory(record)
        queue.place(MessageReference(location.seq, record, location, size, redelivered=False))

    def _queues(self) -> list[Queue]:
        return [*{queue: None for _, queue, _, _ in self._copies}]

    def _stored(self) -> None:
        for copy in self._copies:
            self._place(copy)
        for queue in self._queues():
            queue.dispatch()
        if self._done is not None:
            self._done()

    def _stored_in_steps(self) -> Iterator[bool]:
        queues = self._queues()
        for queue in queues:
            queue.suspend()
        try:
            for count, copy in enumerate(self._copies, 1):
                self._place(copy)
                if not count % _AT_ONCE:
                    yield GO_ON
        finally:
            for queue in queues:
                queue.unsuspend()
        for queue in queues:
            queue.dispatch()
            yield GO_ON
        if self._done is not None:
            self._done()

    def _refused(self, error: OrthiaError) -> None:
        for _, queue, _, _ in self._copies:
            queue.in_flight -= 1
        for value in self._values.values():
            value.refuse()
        self._on_refused(error)
