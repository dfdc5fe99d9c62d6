# mypyc compiles this module.
"""Schedules: the queues of messages that are not due yet, one for each destination."""

from collections.abc import Callable, Sequence

from typing_extensions import override

from orthia.broker.core.api import MessageReference, OutgoingMessage
from orthia.broker.core.destinations import QUALIFIED, is_schedule, parse, schedule_name
from orthia.broker.core.errors import DestinationRefused, LimitExceeded
from orthia.broker.core.identity import Principal
from orthia.broker.core.limits.creations import QueueCreations
from orthia.broker.core.queue.policy import Policy
from orthia.broker.core.queue.queue import Queue
from orthia.broker.core.routing.addresses import AddressBook, refuse_if_leaving
from orthia.broker.core.routing.router import Routed, still_there
from orthia.broker.core.slices import Finding
from orthia.broker.core.timers import Timers
from orthia.broker.core.topics.topic import Topic
from orthia.broker.quoting import quoted
from orthia.config.address_settings import RoutingType
from orthia.config.queues import PLAIN
from orthia.journal.model.fields import Fields, decode_fields, encode_fields
from orthia.journal.model.message import Message


class Scheduling(Policy):
    """The policy of a schedule: nobody consumes from it, and each new message sets a timer."""

    __slots__ = ("_queue_name", "_scheduled")

    def __init__(self, queue_name: str, scheduled: Callable[[int], None]) -> None:
        """``scheduled`` is called with the moment of each new message."""
        self._queue_name = queue_name
        self._scheduled = scheduled

    @override
    def attaching(self) -> None:
        raise DestinationRefused(
            f"queue {quoted(self._queue_name)} holds messages that are delivered later, and is not"
            " to be consumed from: see `orthia scheduled list`"
        )

    @override
    def placed(self, reference: MessageReference) -> None:
        moment = reference.record.moment()
        if moment is not None:
            self._scheduled(moment.at_ms)


class ScheduleQueues:
    """Finds and creates schedules, and routes what is due; on the loop's thread."""

    def __init__(
        self, book: AddressBook, creations: QueueCreations, timers: Timers, *, is_persistent: bool
    ) -> None:
        """A node that is not ``is_persistent`` stores nothing, so it schedules nothing."""
        self._book = book
        self._creations = creations
        self._timers = timers
        self._is_persistent = is_persistent

    def put_off(
        self, principal: Principal, destination: str, message: OutgoingMessage
    ) -> tuple[OutgoingMessage, Queue | None]:
        """Return the schedule of a message that is not due yet; None for one that is."""
        fields = decode_fields(message.stated)
        if not self._is_put_off(fields):
            fields = fields._replace(delivery_ms=None, recurrence=None)
            return message._replace(stated=encode_fields(fields)), None
        if not self._is_persistent:
            raise LimitExceeded(
                "this broker stores nothing (persistence-enabled is false), so that it delivers no"
                " message later"
            )
        stated = message.stated
        if principal.client_id is not None:
            stated = encode_fields(fields._replace(client_id=principal.client_id))
        # A scheduled message is stored, also one that need not survive once it is delivered.
        message = message._replace(stated=stated, persistent=True)
        return message, self.schedule_of(principal, destination)

    def _is_put_off(self, fields: Fields) -> bool:
        """Return whether a message with these fields is not due yet, or recurs."""
        if fields.delivery_ms is None:
            return False
        return fields.recurrence is not None or fields.delivery_ms > self._timers.time_ms()

    def schedule_of(self, principal: Principal, destination: str) -> Queue | None:
        """Return the schedule of a destination, created if there is none; raises BrokerError.

        None for a temporary destination that is gone.
        """
        where = parse(destination)
        if where.is_temporary and not self._book.is_there(where):
            return None
        routing_type = self._book.routing_type(where)
        name = schedule_name(routing_type, where)
        queue = self._book.queues.get(name)
        if queue is not None:
            refuse_if_leaving(queue)
            return queue
        self._creations.refuse_if_too_many(principal, quoted(name))
        self._book.address(where.address).use.refuse_if_full(0)
        user = self._creations.user_of(principal)
        queue = self._book.create_queue(
            name,
            where.address,
            routing_type,
            auto_created=False,
            max_consumers=-1,
            user=user,
            options=PLAIN,
            durable=where.address not in self._book.temporary,
        )
        self._creations.created(principal, name)
        return queue

    def schedules(self) -> list[Queue]:
        """Return all schedules."""
        return [queue for queue in self._book.queues.values() if is_schedule(queue.name)]

    def route_due(
        self, schedule: Queue, record: Message, client_id: str | None
    ) -> Finding[list[Routed]]:
        """Find who gets a message of a schedule, as if the client ``client_id`` sent it now.

        A queue that is gone is created again: its creation was permitted when the message was sent.
        Raises BrokerError.
        """
        name = schedule.address
        _, is_qualified, only = schedule.name.partition(QUALIFIED)
        if is_qualified:
            return [Routed(record, [self._still_there(only)], ())]
        address = self._book.address(name)
        queues: Sequence[Queue] = list(address.multicast_queues)
        topics: tuple[Topic, ...] = ()
        if schedule.routing_type is RoutingType.MULTICAST:
            router = address.router_of_topic(self._book.patterns.newest)
            if address.topic is not None and address.topic.subscribers:
                topics = (address.topic,)
        else:
            first = address.anycast()
            if first is None:
                queues = self._book.ensure_queues(name)
            elif address.router is not None:
                queues = list(address.anycast_queues)
            else:
                queues = [first]
            router = address.router
        if router is None:
            return [Routed(record, queues, topics)]
        sender = Principal("", frozenset(), client_id=client_id)
        routed = yield from router.route(record, sender, queues, topics)
        return still_there(routed)

    def _still_there(self, name: str) -> Queue:
        queue = self._book.queues.get(name)
        if queue is None:
            raise DestinationRefused(f"there is no queue {quoted(name)} any more")
        refuse_if_leaving(queue)
        return queue
