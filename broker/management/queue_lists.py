"""The queues of a live node as operators see them: one, a page of all, all, and all in numbers."""

from collections.abc import Callable
from operator import attrgetter
from typing import Any, Final, NamedTuple

from orthia.broker.core.assembly import CoreParts
from orthia.broker.core.destinations import is_schedule
from orthia.broker.core.limits.memory import at_most
from orthia.broker.core.queue.counters import QueueCounters
from orthia.broker.core.queue.queue import Queue
from orthia.broker.core.queue.seen import oldest_ms
from orthia.broker.core.slices import GO_ON, Finding
from orthia.broker.management.kept import Kept
from orthia.broker.management.listing import Asked, Kind, Listing, Page, keeping, sorting, values_of
from orthia.broker.management.scheduled import Scheduled
from orthia.broker.management.views import QueueView
from orthia.broker.management.waiting import Waiting
from orthia.config.address_settings import RoutingType
from orthia.config.clock import monotonic_seconds

_STEP: Final = 64
"""Queues that are looked at in one step."""


class QueueTotals(NamedTuple):
    """All queues together."""

    queues: int
    consumers: int
    messages: int
    delivering: int
    addresses: int
    """Those in use."""
    counters: QueueCounters
    """Of the queues of scheduled messages, too."""


class QueueLists:
    """Shows queues; on the loop's thread."""

    def __init__(
        self,
        parts: CoreParts,
        scheduled: Scheduled,
        waiting: Waiting,
        time_ms: Callable[[], int],
        clock: Callable[[], float] = monotonic_seconds,
    ) -> None:
        """``time_ms`` returns the time of day; ``clock`` seconds."""
        self._book = parts.book
        self._scheduled = scheduled
        begin, readers = waiting.begin, self._readers()
        self._in_order = tuple(readers[name] for name in QueueView._fields)
        self._all = Kept(self._all_views, begin, clock)
        self._totals = Kept(self._counting, begin, clock)
        kind: Kind[Queue, QueueView] = Kind(
            "queues",
            self._consumable,
            lambda: self._book.version,
            "name",
            readers,
            lambda queue: (queue.name, queue.address),
            lambda queue: self.view(queue) if self._is_there(queue) else None,
        )
        self._listing = Listing(kind, begin, clock, time_ms)

    def forget(self) -> None:
        """Show whoever asks next what was changed."""
        self._listing.forget()
        self._all.forget()
        self._totals.forget()

    async def page(self, asked: Asked) -> Page[QueueView]:
        """Return a page of all queues but those of scheduled messages; raises WrongArgument."""
        return await self._listing.page(asked)

    async def all(self) -> tuple[QueueView, ...]:
        """Return all queues but those of scheduled messages, as they were a moment ago."""
        return await self._all.latest()

    async def totals(self, *, followed: bool = False) -> QueueTotals:
        """Return all queues together, as they were a moment ago, or a page's last look."""
        return await self._totals.latest(followed=followed)

    def names(self, routing_type: RoutingType | None) -> Finding[list[str]]:
        """Return the names of all queues but those of scheduled messages, or of one type, sorted.

        In steps.
        """
        queues = yield from self._consumable()
        if routing_type is not None:
            queues = yield from keeping(queues, lambda one: one.routing_type is routing_type)
        names = yield from values_of(queues, attrgetter("name"))
        return (yield from sorting(names, str))

    def view(self, queue: Queue) -> QueueView:
        """Return one queue as it is now."""
        return QueueView._make([read(queue) for read in self._in_order])

    def _is_there(self, queue: Queue) -> bool:
        return self._book.queues.get(queue.name) is queue

    def _consumable(self) -> Finding[list[Queue]]:
        known = list(self._book.queues.values())
        return (yield from keeping(known, lambda one: not is_schedule(one.name)))

    def _all_views(self) -> Finding[tuple[QueueView, ...]]:
        found: list[QueueView] = []
        for queue in (yield from self._consumable()):
            if self._is_there(queue):
                found.append(self.view(queue))
            yield GO_ON
        return tuple(found)

    def _counting(self) -> Finding[QueueTotals]:
        queues = yield from self._consumable()
        consumers = messages = delivering = 0
        for start in range(0, len(queues), _STEP):
            for one in queues[start : start + _STEP]:
                consumers += one.consumers
                messages += one.depth
                delivering += one.unsettled.delivered
            yield GO_ON
        counters = QueueCounters()
        every = list(self._book.queues.values())
        for start in range(0, len(every), _STEP):
            for one in every[start : start + _STEP]:
                counters.add(one.counters)
            yield GO_ON
        used = yield from keeping(list(self._book.known.values()), lambda one: one.is_used)
        return QueueTotals(len(queues), consumers, messages, delivering, len(used), counters)

    def _scheduled_for(self, queue: Queue) -> int:
        """Return how many messages are not due yet that go to a queue, as it is now."""
        if not self._book.known[queue.address].schedules:
            return 0
        return sum(one.depth for one in self._scheduled.of_queue(queue))

    def _readers(self) -> dict[str, Callable[[Queue], Any]]:
        """Return what reads each field of a view; those that lists are sorted by are quick."""
        bindings, temporary, rules = self._book.bindings, self._book.temporary, self._book.rules

        def option(name: str) -> Callable[[Queue], Any]:
            read = attrgetter(f"options.{name}")
            return lambda queue: read(bindings[queue.name])

        ring_size = option("ring_size")
        return {
            "name": attrgetter("name"),
            "address": attrgetter("address"),
            "routing_type": attrgetter("routing_type"),
            "durable": attrgetter("durable"),
            "temporary": lambda queue: queue.address in temporary,
            "configured": lambda queue: queue.name in rules.queues,
            "auto_created": lambda queue: bindings[queue.name].auto_created,
            "user": attrgetter("user"),
            "filter": option("filter"),
            "exclusive": option("exclusive"),
            "last_value_key": option("last_value_key"),
            "non_destructive": option("non_destructive"),
            "ring_size": lambda queue: at_most(ring_size(queue)),
            "max_consumers": attrgetter("max_consumers"),
            "paused": attrgetter("is_paused"),
            "messages": attrgetter("depth"),
            "counted": attrgetter("is_counted"),
            "bytes": lambda queue: queue.log.stored_bytes if queue.depth else 0,
            "oldest_ms": lambda queue: oldest_ms(queue) if queue.depth else None,
            "consumers": attrgetter("consumers"),
            "delivering": attrgetter("unsettled.delivered"),
            "waiting_for_redelivery": lambda queue: len(queue.unsettled.delayed),
            "scheduled": self._scheduled_for,
            "added": attrgetter("counters.added"),
            "acknowledged": attrgetter("counters.acknowledged"),
            "expired": attrgetter("counters.expired"),
            "killed": attrgetter("counters.dead_lettered"),
            "redelivered": attrgetter("counters.redelivered"),
            "removed": attrgetter("counters.removed"),
        }
