"""Messages that are to be delivered later, as operators see and cancel them.

They are read from the store in the order in which they are due, some of all destinations at a time.
A page ends at a *place*, where the next one begins, whatever was delivered or sent meanwhile.
"""

from typing import Final

from orthia.broker.core.assembly import CoreParts
from orthia.broker.core.destinations import QUALIFIED, SCHEDULES, is_schedule
from orthia.broker.core.queue.queue import Queue
from orthia.broker.core.selectors import Selector
from orthia.broker.core.slices import GO_ON, Finding
from orthia.broker.management.errors import NotFound, NotPossible, WrongArgument
from orthia.broker.management.messages import shown_properties_of
from orthia.broker.management.views import ScheduledPage, ScheduledView
from orthia.broker.management.waiting import Waiting
from orthia.broker.quoting import quoted
from orthia.config.address_settings import RoutingType
from orthia.config.errors import OrthiaError
from orthia.journal.model.fields import decode_fields
from orthia.journal.model.moments import FIRST_MOMENT, MomentKind, MomentPlace
from orthia.journal.model.windows import Reached, TimedMessage

_LOOKED_AT_ONCE: Final = 500
_BYTES_AT_ONCE: Final = 1024 * 1024
_PREFIXES: Final = {RoutingType.ANYCAST: "/queue/", RoutingType.MULTICAST: "/topic/"}


class Scheduled:
    """Reads and cancels what is scheduled; on the loop's thread."""

    def __init__(self, parts: CoreParts, waiting: Waiting) -> None:
        self._journal = parts.journal
        self._book = parts.book
        self._schedule = parts.schedule
        self._schedule_queues = parts.schedule_queues
        self._waiting = waiting

    def of_queue(self, queue: Queue) -> list[Queue]:
        """Return the schedules of what goes to a queue, as it is now; or the one that it is."""
        if is_schedule(queue.name):
            return [queue]
        own = f"{QUALIFIED}{queue.name}"
        return [
            one
            for one in self._book.known[queue.address].schedules
            if (QUALIFIED not in one.name and one.routing_type is queue.routing_type)
            or one.name.endswith(own)
        ]

    def of_address(self, name: str) -> list[Queue]:
        """Return the schedules of an address."""
        known = self._book.known.get(name)
        return [] if known is None else list(known.schedules)

    async def page(
        self,
        schedules: list[Queue] | None,
        selector: Selector | None,
        after: str | None,
        limit: int,
    ) -> ScheduledPage:
        """Return a page of what waits in ``schedules``, or in all; raises BrokerError."""
        place: MomentPlace | None = FIRST_MOMENT if after is None else _place(after)
        among = self._schedule_queues.schedules() if schedules is None else schedules
        names = {one.id: one for one in among}
        found: list[ScheduledView] = []
        last = place
        while place is not None and names:
            answer = self._waiting.future(Reached)

            def read(reached: Reached | OrthiaError) -> None:
                if isinstance(reached, OrthiaError):
                    answer.fail(NotPossible(f"the store cannot be read at this moment: {reached}"))  # noqa: B023
                else:
                    answer.set(reached)  # noqa: B023

            self._journal.read_timed(
                MomentKind.DUE,
                place,
                None if schedules is None else names.keys(),
                _LOOKED_AT_ONCE,
                _BYTES_AT_ONCE,
                read,
            )
            reached = await answer
            some = [one for one in reached.messages if one.queue_id in names]
            are_wanted = await self._waiting.steps(_matching(some, selector))
            for one, is_wanted in zip(some, are_wanted, strict=True):
                if is_wanted and len(found) == limit:
                    return ScheduledPage(tuple(found), None if last is None else _text(last))
                last = MomentPlace(one.at_ms, one.message.seq)
                if is_wanted:
                    found.append(_view(one, names[one.queue_id]))
            place = reached.next_after
        return ScheduledPage(tuple(found), None)

    async def cancel(self, message: int, *, among: list[Queue] | None = None) -> None:
        """Delete one message, of all or of those ``among`` which it is looked for.

        Raises NotFound if there is none such, or if it is just delivered.
        """
        answer = self._waiting.answer(int)
        self._journal.find_queue(
            message, lambda found: answer.set(found if isinstance(found, int) else None)
        )
        queue_id = await answer
        of = self._schedule_queues.schedules() if among is None else among
        schedules = {one.id: one for one in of}
        queue = schedules.get(queue_id or 0)
        cancelled = 0
        if queue is not None:
            ended = self._waiting.future(int)
            self._schedule.cancel(queue, message, ended.set)
            cancelled = await ended
        if not cancelled:
            raise NotFound(
                "scheduled message", str(message), ": it was delivered or cancelled, or never there"
            )


def _matching(messages: list[TimedMessage], selector: Selector | None) -> Finding[list[bool]]:
    found: list[bool] = []
    for one in messages:
        found.append(selector is None or selector.matches(one.message.record))
        yield GO_ON
    return found


def _view(timed: TimedMessage, queue: Queue) -> ScheduledView:
    record = timed.message.record
    fields = decode_fields(record.stated)
    prefix = f"{SCHEDULES}{queue.routing_type.value.lower()}."
    return ScheduledView(
        id=timed.message.seq,
        queue=queue.name,
        destination=_PREFIXES[queue.routing_type] + queue.name.removeprefix(prefix),
        address=record.address,
        due_ms=timed.at_ms,
        recurring=fields.recurrence is not None,
        priority=record.priority,
        timestamp_ms=record.timestamp_ms,
        expires_ms=record.expires_ms,
        size=len(record.head) + len(record.stated) + record.body_size,
        body_size=record.body_size,
        properties=shown_properties_of(record),
    )


def _text(place: MomentPlace) -> str:
    return f"{place.at_ms}.{place.seq}"


def _place(text: str) -> MomentPlace:
    at_ms, dot, seq = text.partition(".")
    for one in (at_ms, seq):
        if not (dot and one.isascii() and one.isdecimal() and len(one) < 19):
            raise WrongArgument(
                "after",
                f"{quoted(text[:80])} is no place in a list: give what the page before said as"
                " its next",
            )
    return MomentPlace(int(at_ms), int(seq))
