"""Messages of a queue as operators see them: one page at a time, none is taken out or changed.

They are read from the store by windows, in the order in which they are delivered: by priority, and
within one by ``seq``; what is in memory only has its place among them. A page ends at a *place*,
where the next one begins, whatever came and went meanwhile.
"""

import heapq
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from math import isfinite
from typing import Final, NamedTuple

from orthia.broker.core.api import MessageReference
from orthia.broker.core.queue.queue import Queue
from orthia.broker.core.queue.reader import Span
from orthia.broker.core.selectors import Selector
from orthia.broker.core.slices import GO_ON, Finding
from orthia.broker.management.errors import WrongArgument
from orthia.broker.management.views import MessagePage, MessageView
from orthia.broker.management.waiting import Waiting
from orthia.broker.quoting import quoted
from orthia.journal.journal import MessageJournal
from orthia.journal.model.encodings import Content
from orthia.journal.model.fields import Property
from orthia.journal.model.message import Message
from orthia.journal.model.windows import Window

WINDOW_MESSAGES: Final = 500
WINDOW_BYTES: Final = 1024 * 1024
RETURNS: Final = "_ORTHIA_RETURNS"
"""The property that says how often a message was retried."""
_LOOKED_AT_ONCE: Final = 64
_LONGEST_NUMBER: Final = 18


class Place(NamedTuple):
    """Behind one message of a queue: by the id of its priority's messages, and by seq."""

    level: int
    seq: int

    def __str__(self) -> str:
        return f"{self.level}.{self.seq}"

    @classmethod
    def parse(cls, text: str, queue: Queue) -> "Place":
        """Return the place that a page gave; raises WrongArgument."""
        level, dot, seq = text.partition(".")
        if dot and _is_number(level) and _is_number(seq) and int(level) in queue.log.ids:
            return cls(int(level), int(seq))
        raise WrongArgument(
            "after",
            f"{quoted(text[:80])} is no place in queue {quoted(queue.name)}: give what the page"
            " before it said as its next",
        )


class Found(NamedTuple):
    """A message of a queue as it was found: in the store, or in memory only."""

    level: int
    seq: int
    record: Message
    attempts: int
    is_stored: bool


class Messages:
    """Reads messages of queues; on the loop's thread."""

    def __init__(self, journal: MessageJournal, waiting: Waiting) -> None:
        self._journal = journal
        self._waiting = waiting

    async def page(
        self,
        queue: Queue,
        selector: Selector | None,
        after: Place | None,
        limit: int,
        show: Callable[[Found], MessageView],
    ) -> MessagePage:
        """Return a page of at most ``limit`` messages, made by ``show``."""
        found: list[MessageView] = []
        last: Place | None = None
        async for some in self.all(queue, after):
            are_wanted = await self._waiting.steps(_matching(some, selector))
            for message, is_wanted in zip(some, are_wanted, strict=True):
                if is_wanted and len(found) == limit:
                    return MessagePage(tuple(found), None if last is None else str(last))
                last = Place(message.level, message.seq)
                if is_wanted:
                    found.append(show(message))
        return MessagePage(tuple(found), None)

    async def count(self, queue: Queue, selector: Selector) -> int:
        """Return how many messages match, of those there are as each is looked at."""
        number = 0
        async for some in self.all(queue, None):
            number += sum(await self._waiting.steps(_matching(some, selector)))
        return number

    async def one(self, queue: Queue, seq: int) -> Found | None:
        """Return the message of a seq; None if the queue has no such."""
        up_to = min(seq, self._journal.last_committed_seq)
        for level in queue.log.ids:
            if up_to == seq:
                window = await self._window(queue, Span(level, seq - 1, seq), 1)
                for stored in window.messages:
                    if stored.seq == seq and queue.shows(stored.record, seq):
                        return Found(level, seq, stored.record, stored.attempts, is_stored=True)
        for level, references in queue.shown_in_memory():
            for one in references:
                if one.seq == seq:
                    return _in_memory(level, one)
        return None

    async def all(self, queue: Queue, after: Place | None) -> AsyncIterator[list[Found]]:
        """Yield the messages behind a place, a window at a time."""
        up_to = self._journal.last_committed_seq
        unstored = queue.shown_in_memory()
        levels = [level for level, _ in unstored]
        if after is not None and after.level in levels:
            unstored = unstored[levels.index(after.level) :]
        for level, references in unstored:
            begin = after.seq if after is not None and after.level == level else 0
            here = [_in_memory(level, one) for one in references if one.seq > begin]
            while True:
                window = await self._window(queue, Span(level, begin, up_to), WINDOW_MESSAGES)
                end = window.next_after_seq
                stored = [
                    Found(level, one.seq, one.record, one.attempts, is_stored=True)
                    for one in window.messages
                    if queue.shows(one.record, one.seq)
                ]
                before = [one for one in here if window.exhausted or one.seq <= end]
                here = here[len(before) :]
                merged = list(heapq.merge(stored, before, key=lambda one: one.seq))
                for first in range(0, len(merged), _LOOKED_AT_ONCE):
                    yield merged[first : first + _LOOKED_AT_ONCE]
                if window.exhausted:
                    break
                begin = end

    async def _window(self, queue: Queue, span: Span, most: int) -> Window:
        """Return a window; an exhausted one if the store cannot be read at this moment."""
        answer = self._waiting.answer(Window)
        if not queue.reader.read(span, most, WINDOW_BYTES, answer.set):
            self._waiting.refuse_if_over()
        return await answer or Window([], [], span.up_to, exhausted=True)


def _matching(messages: Sequence[Found], selector: Selector | None) -> Finding[list[bool]]:
    """Return of each message whether a selector matches it."""
    found: list[bool] = []
    for one in messages:
        found.append(selector is None or selector.matches(one.record))
        yield GO_ON
    return found


def _in_memory(level: int, reference: MessageReference) -> Found:
    return Found(level, reference.seq, reference.record, reference.attempts, is_stored=False)


def properties_of(record: Message) -> dict[str, Property]:
    """Return what a message says of itself; nothing if that cannot be read."""
    try:
        return dict(record.properties())
    except ValueError:
        return {}


def shown_properties_of(record: Message) -> dict[str, Property]:
    """Return the same as JSON can say it, which has no number that is not finite."""
    return {
        name: json.dumps(value) if isinstance(value, float) and not isfinite(value) else value
        for name, value in properties_of(record).items()
    }


def returns_of(properties: Mapping[str, Property]) -> int:
    """Return how often a message was retried, as it says; its sender may have said anything."""
    said = str(properties.get(RETURNS, ""))
    return int(said) if _is_number(said) else 0


def _is_number(text: str) -> bool:
    """Return whether a text is a number that a place in the journal may have."""
    return 0 < len(text) <= _LONGEST_NUMBER and text.isascii() and text.isdecimal()


def content_of(record: Message, most: int) -> Content | None:
    """Return the body of a message that has its own, of so many bytes at most."""
    if record.large is not None or len(record.body) > most:
        return None
    try:
        return record.content()
    except ValueError:
        return Content("", record.body)
