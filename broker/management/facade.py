"""Everything an operator sees of a live node and does to it: each a method, and one way in.

The HTTP API, Jolokia, ``activemq.management`` and the commands call these; none of them touches the
core beside. Every method is called on the loop's thread. It checks the caller's permission by the
names that Artemis' management has for what it does, writes one line to the audit log, and raises a
``BrokerError`` that says what is refused and why; then nothing has happened.

| raises            | what is the case                                                         |
|-------------------|--------------------------------------------------------------------------|
| ``NotAuthorized`` | the permission that the text names is missing                            |
| ``NotFound``      | there is no such thing; asked for only by who may know                   |
| others            | see ``orthia.broker.management.errors`` and ``core.errors``              |
"""

import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict
from enum import Enum
from math import isfinite
from typing import Any, Final, TypeVar

from orthia.broker.core.api import OutgoingMessage
from orthia.broker.core.broker import Broker
from orthia.broker.core.destinations import QUALIFIED, is_name, is_schedule
from orthia.broker.core.errors import LimitExceeded
from orthia.broker.core.identity import Principal
from orthia.broker.core.queue.queue import Queue
from orthia.broker.core.queue.seen import selector_of
from orthia.broker.core.queue.subscriptions import Subscription
from orthia.broker.core.routing.address import Address
from orthia.broker.core.routing.addresses import refuse_if_leaving
from orthia.broker.core.routing.router import origin_of
from orthia.broker.core.selectors import Selector
from orthia.broker.core.selectors import parse as parse_selector
from orthia.broker.core.slices import GO_ON, Finding
from orthia.broker.core.upkeep.streams import AttachedStream
from orthia.broker.management.abc import ConnectedClients, Handover
from orthia.broker.management.connection_lists import ConnectionLists
from orthia.broker.management.errors import AlreadyThere, NotFound, NotPossible, WrongArgument
from orthia.broker.management.in_doubt import InDoubt
from orthia.broker.management.job import Job, Order
from orthia.broker.management.jobs import MOST_IDS, Jobs
from orthia.broker.management.kept import Kept
from orthia.broker.management.listing import FIRST, Asked, Page
from orthia.broker.management.messages import (
    RETURNS,
    Found,
    Messages,
    Place,
    content_of,
    returns_of,
    shown_properties_of,
)
from orthia.broker.management.options import (
    changed,
    check_max_consumers,
    checked,
    refuse_conflict,
)
from orthia.broker.management.queue_lists import QueueLists
from orthia.broker.management.scheduled import Scheduled
from orthia.broker.management.views import (
    AddressView,
    BindingView,
    ConnectionView,
    ConsumerView,
    HandoverView,
    JobKind,
    JobState,
    JobView,
    MemoryView,
    MessagePage,
    MessageView,
    OverviewView,
    QueueView,
    ScheduledPage,
    StreamView,
    TransactionView,
)
from orthia.broker.management.waiting import Waiting
from orthia.broker.quoting import quoted
from orthia.config.address_settings import RoutingType
from orthia.config.addresses import options_of
from orthia.config.clock import monotonic_seconds
from orthia.config.errors import OrthiaError
from orthia.config.outbox import REFUSED_HEADERS, RESERVED_PREFIXES
from orthia.config.queues import QueueOptions
from orthia.journal.model.encodings import NO_HEAD
from orthia.journal.model.fields import Fields, Property, decode_fields, encode_fields
from orthia.journal.model.message import DEFAULT_PRIORITY

MOST_MESSAGES_OF_A_PAGE: Final = 500
MOST_BODY_BYTES: Final = 1024 * 1024
"""Of a body that is shown; a longer one is consumed by a client, not looked at."""
MOST_PROPERTIES: Final = 256
_ACTING: Final = frozenset(
    ("JMSXGroupID", "JMSXGroupSeq", "_AMQ_GROUP_ID", "_AMQ_GROUP_SEQUENCE", "_AMQ_LVQ_NAME")
)
"""Properties of reserved names that a queue goes by."""
LONGEST_PROPERTIES: Final = 65_536
"""Characters of all that a message says beside its body, as clients' headers have by default."""
_LOOKED_AT: Final = 64
"""Queues or addresses that are asked for their consumers in one step."""
_BROKER: Final = "broker"
_OPERATIONS: Final = {
    JobKind.PURGE: "removeAllMessages",
    JobKind.DELETE: "removeMessages",
    JobKind.MOVE: "moveMessages",
    JobKind.COPY: "copyMessages",
    JobKind.RETRY: "retryMessages",
    JobKind.EXPIRE: "expireMessages",
    JobKind.CANCEL: "cancelScheduledMessages",
    JobKind.PRIORITY: "changeMessagesPriority",
    JobKind.ACKNOWLEDGE: "acknowledgeMessages",
}
"""What Artemis' management calls them, by which permissions are given."""
_PRIORITIES: Final = range(10)
_LAST_MS: Final = (1 << 63) - 1
_LOGGERS: Final = "orthia"
_LEVELS: Final = ("DEBUG", "INFO", "WARNING", "ERROR")
LOGGER = logging.getLogger("orthia.broker")
_Result = TypeVar("_Result")


class Management:
    """What operators do with a live node; on the loop's thread."""

    def __init__(
        self,
        broker: Broker,
        clients: ConnectedClients,
        name: str,
        handover: Handover | None = None,
        node_id: str | None = None,
        ha_policy: str = "Shared Store Primary",
        processor: Callable[[], float] = time.thread_time,
    ) -> None:
        """``name`` is the node's, ``node_id`` what all nodes of a store have in common.

        Without a ``handover`` it has no backup. ``ha_policy`` is what the node is configured to
        be, by Artemis' name. ``processor`` returns the processor time of the loop's thread, in
        seconds, by which steps of jobs end.
        """
        self.ha_policy = ha_policy
        self._handover = handover
        self._broker = broker
        self._parts = parts = broker.parts
        self._book = parts.book
        self._security = broker.security
        self._clients = clients
        self._name = name
        self._node_id = node_id
        self._live_since_ms = broker.time_ms()
        self._waiting = Waiting(broker.slices)
        self._messages = Messages(parts.journal, self._waiting)
        self._scheduled = Scheduled(parts, self._waiting)
        self._in_doubt = InDoubt(parts, self._waiting)
        self._jobs = Jobs(parts, self._waiting, self._scheduled, processor)
        self._queues = QueueLists(parts, self._scheduled, self._waiting, broker.time_ms)
        self._connected = ConnectionLists(
            clients, self._counting_consumers, self._waiting, broker.time_ms
        )
        self._addressed = Kept(self._all_addresses, self._waiting.begin, monotonic_seconds)
        self._consuming = Kept(self._all_consumers, self._waiting.begin, monotonic_seconds)

    async def in_steps(self, finding: Finding[_Result]) -> _Result:
        """Do steps in turn with all other work of the loop, and return their result."""
        return await self._waiting.steps(finding)

    @property
    def name(self) -> str:
        """The node's name. Any thread."""
        return self._name

    def end(self) -> None:
        """End whatever is under way: the node is stopping."""
        self._waiting.end()

    def _forget_lists(self) -> None:
        """Make new lists of queues and addresses for whoever asks next: something changed."""
        self._queues.forget()
        self._addressed.forget()

    def _allow(
        self, principal: Principal, resource: str, operation: str, *arguments: object
    ) -> None:
        """Raise NotLive or NotAuthorized, or note that a user does something."""
        self._parts.gate.refuse_if_stopped()
        self._security.check_management(principal, resource, operation, arguments)

    # --- queues and addresses, seen

    async def overview(self, principal: Principal, *, followed: bool = False) -> OverviewView:
        """Return the node in a few numbers; ``followed`` pages are content with older ones."""
        self._allow(principal, _BROKER, "getStatus")
        totals = await self._queues.totals(followed=followed)
        counters = totals.counters
        return OverviewView(
            name=self._name,
            node_id=self._node_id,
            uptime_ms=self._broker.time_ms() - self._live_since_ms,
            queues=totals.queues,
            addresses=totals.addresses,
            consumers=totals.consumers,
            connections=self._clients.number,
            messages=totals.messages,
            delivering=totals.delivering,
            added=counters.added,
            acknowledged=counters.acknowledged,
            expired=counters.expired,
            killed=counters.dead_lettered,
            redelivered=counters.redelivered,
            jobs=self._jobs.running,
            journal_full=self._parts.journal.is_full,
            last_seq=self._parts.journal.last_committed_seq,
        )

    async def queues(self, principal: Principal, asked: Asked = FIRST) -> Page[QueueView]:
        """Return a page of the queues but those of scheduled messages; raises WrongArgument.

        They are shown as they are now, in the order of a moment ago.
        """
        self._allow(principal, _BROKER, "listQueues")
        return await self._queues.page(asked)

    async def all_queues(self, principal: Principal) -> tuple[QueueView, ...]:
        """Return all queues but those of scheduled messages, as they were a moment ago."""
        self._allow(principal, _BROKER, "listQueues")
        return await self._queues.all()

    async def queue_names(
        self, principal: Principal, routing_type: RoutingType | None = None
    ) -> list[str]:
        """Return the names of all queues but those of scheduled messages, or of those of a type."""
        said = () if routing_type is None else (routing_type.value,)
        self._allow(principal, _BROKER, "getQueueNames", *said)
        return await self._waiting.steps(self._queues.names(routing_type))

    async def queue(self, principal: Principal, name: str) -> QueueView:
        """Return one queue; its oldest message is looked for in the store, too."""
        self._allow(principal, f"queue.{name}", "getAttributes")
        queue = self._queue(name)
        view = self._queues.view(queue)
        if view.oldest_ms is None and view.messages:
            page = await self._messages.page(queue, None, None, 1, self._shown(queue, 0))
            if page.messages:
                return view._replace(oldest_ms=page.messages[0].timestamp_ms)
        return view

    async def dead_letter_queues(self, principal: Principal) -> tuple[QueueView, ...]:
        """Return the queues of all addresses that dead letters or expired messages go to."""
        self._allow(principal, _BROKER, "listQueues")
        return await self._waiting.steps(self._all_dead_letter_queues())

    def _all_dead_letter_queues(self) -> Finding[tuple[QueueView, ...]]:
        targets: set[str | None] = set()
        for one in list(self._book.known.values()):
            targets |= {one.settings.dead_letter_address, one.settings.expiry_address}
            yield GO_ON
        found: list[QueueView] = []
        for name in sorted(one for one in targets if one):
            address = self._book.known.get(name)
            if address is not None:
                queues = (*address.anycast_queues, *address.multicast_queues)
                found += [self._queues.view(one) for one in queues]
            yield GO_ON
        return tuple(found)

    async def addresses(self, principal: Principal) -> tuple[AddressView, ...]:
        """Return all addresses in use, as they were a moment ago, in no order."""
        self._allow(principal, _BROKER, "listAddresses")
        return await self._addressed.latest()

    def _all_addresses(self) -> Finding[tuple[AddressView, ...]]:
        found: list[AddressView] = []
        for name, address in list(self._book.known.items()):
            if address.is_used:
                found.append(self._view_of_address(name, address))
            yield GO_ON
        return tuple(found)

    async def address(self, principal: Principal, name: str) -> AddressView:
        """Return one address."""
        self._allow(principal, f"address.{name}", "getAttributes")
        return self._view_of_address(name, self._address(name))

    async def settings(self, principal: Principal, address: str) -> Mapping[str, Any]:
        """Return the settings in effect of an address, which may not exist yet, by their names."""
        self._allow(principal, _BROKER, "getAddressSettingsAsJSON", address)
        if not is_name(address):
            raise WrongArgument("address", f"{quoted(address[:300])} is no name of an address")
        resolved = asdict(self._book.rules.settings_of(address))
        return {
            name.replace("_", "-"): value.value if isinstance(value, Enum) else value
            for name, value in resolved.items()
        }

    async def bindings(self, principal: Principal, address: str) -> tuple[BindingView, ...]:
        """Return what of an address goes to which of its queues."""
        self._allow(principal, _BROKER, "listBindingsForAddress", address)
        known = self._address(address)
        found: list[BindingView] = []
        for queue in (*known.anycast_queues, *known.multicast_queues):
            options = self._book.bindings[queue.name].options
            found.append(
                BindingView(
                    address, queue.name, queue.routing_type, options.filter, options.enabled
                )
            )
        return tuple(found)

    def _queue(self, name: str) -> Queue:
        queue = self._book.queues.get(name)
        if queue is None:
            raise NotFound("queue", name)
        return queue

    def _address(self, name: str) -> Address:
        address = self._book.known.get(name)
        if address is None or not address.is_used:
            raise NotFound("address", name)
        return address

    def _view_of_address(self, name: str, address: Address) -> AddressView:
        queues = (*address.anycast_queues, *address.multicast_queues)
        settings, topic = address.settings, address.topic
        return AddressView(
            name=name,
            routing_types=tuple(sorted(address.types, key=lambda one: one.value)),
            configured=name in self._book.rules.addresses,
            created=bool(address.created),
            temporary=name in self._book.temporary,
            paused=address.is_paused,
            queues=tuple(sorted(one.name for one in queues)),
            messages=sum(one.depth for one in queues),
            bytes=address.use.used + address.use.uploading,
            max_size_bytes=settings.max_size_bytes,
            max_size_messages=settings.max_size_messages,
            page_limit_bytes=settings.page_limit_bytes,
            page_limit_messages=settings.page_limit_messages,
            address_full_policy=settings.address_full_policy.value,
            page_full_policy=settings.page_full_policy.value,
            subscribers=0 if topic is None else len(topic.subscribers),
            durable_consumers=sum(one.consumers for one in address.multicast_queues),
            published=max(
                0 if topic is None else topic.published,
                *(one.counters.added for one in address.multicast_queues),
                0,
            ),
            added=sum(one.counters.added for one in queues),
            diverts=tuple(one.address for one in address.diverts),
        )

    # --- consumers and connections

    async def consumers(
        self, principal: Principal, queue: str | None = None
    ) -> tuple[ConsumerView, ...]:
        """Return the consumers of a queue; or of all queues and topics, a moment ago."""
        if queue is None:
            self._allow(principal, _BROKER, "listAllConsumersAsJSON")
            return await self._consuming.latest()
        self._allow(principal, f"queue.{queue}", "listConsumersAsJSON")
        return await self._waiting.steps(self._consumers_of(self._queue(queue)))

    def _all_consumers(self) -> Finding[tuple[ConsumerView, ...]]:
        found: list[ConsumerView] = []
        for queue in list(self._book.queues.values()):
            found += yield from self._consumers_of(queue)
            yield GO_ON
        for name, address in list(self._book.known.items()):
            for one in [] if address.topic is None else list(address.topic.subscribers):
                if one.subscription is not None and not one.subscription.is_closed:
                    found.append(_consumer(one.subscription, None, name, one.selector_text))
                yield GO_ON
            yield GO_ON
        return tuple(found)

    @staticmethod
    def _consumers_of(queue: Queue) -> Finding[tuple[ConsumerView, ...]]:
        found: list[ConsumerView] = []
        for one in queue.subscriptions:
            if not one.is_closed:
                selector = selector_of(one.view)
                found.append(_consumer(one, queue.name, queue.address, selector))
            yield GO_ON
        return tuple(found)

    async def connections(self, principal: Principal, asked: Asked = FIRST) -> Page[ConnectionView]:
        """Return a page of the connections of clients that have logged in, a moment ago."""
        self._allow(principal, _BROKER, "listConnectionsAsJSON")
        return await self._connected.page(asked)

    def _counting_consumers(self) -> Finding[dict[str, int]]:
        """Return how many consumers each connection has that has any."""
        found: dict[str, int] = {}
        queues = list(self._book.queues.values())
        for start in range(0, len(queues), _LOOKED_AT):
            for queue in queues[start : start + _LOOKED_AT]:
                if queue.consumers:
                    for one in queue.subscriptions:
                        _count(found, one)
                    yield GO_ON
            yield GO_ON
        addresses = list(self._book.known.values())
        for start in range(0, len(addresses), _LOOKED_AT):
            for address in addresses[start : start + _LOOKED_AT]:
                if address.topic is not None:
                    for subscriber in list(address.topic.subscribers):
                        if subscriber.subscription is not None:
                            _count(found, subscriber.subscription)
                        yield GO_ON
            yield GO_ON
        return found

    async def close_connection(
        self, principal: Principal, connection: str, reason: str = ""
    ) -> None:
        """Disconnect a client, which is told the ``reason``; what it had goes back."""
        self._allow(principal, _BROKER, "closeConnectionWithID", connection)
        if not self._clients.end(connection, _told(principal, "connection", reason)):
            raise NotFound("connection", connection, ": perhaps its client has left by now")
        self._connected.forget()
        self._consuming.forget()

    async def close_consumer(self, principal: Principal, consumer: str, reason: str = "") -> None:
        """Disconnect the client of a consumer, which is told the ``reason``.

        With all that the connection does, as no protocol tells a client of one consumer alone.
        """
        self._allow(principal, _BROKER, "closeConsumerWithID", consumer)
        for one in await self._waiting.steps(self._all_consumers()):
            if one.id == consumer:
                if not self._clients.end(one.connection, _told(principal, "consumer", reason)):
                    break
                return
        raise NotFound("consumer", consumer, ": perhaps its client has left by now")

    async def close_connections(
        self,
        principal: Principal,
        *,
        user: str | None = None,
        address: str | None = None,
        reason: str = "",
    ) -> int:
        """Disconnect all clients of a user, or at an IP address; return how many there were."""
        if (user is None) == (address is None):
            raise WrongArgument("user", "say whose connections: those of a user, or of an address")
        if user is not None:
            self._allow(principal, _BROKER, "closeConnectionsForUser", user)
        else:
            self._allow(principal, _BROKER, "closeConnectionsForAddress", address)
        told = _told(principal, "connection", reason)
        number = await self._waiting.steps(self._end_connections(user, address, told))
        self._connected.forget()
        self._consuming.forget()
        return number

    def _end_connections(self, user: str | None, address: str | None, told: str) -> Finding[int]:
        number = 0
        for one in self._clients.connections():
            if user == one.user or (address is not None and address == one.address):
                number += self._clients.end(one.id, told)
            yield GO_ON
        return number

    # --- messages

    async def browse(
        self,
        principal: Principal,
        queue: str,
        selector: str | None = None,
        after: str | None = None,
        limit: int = 100,
        *,
        body_bytes: int = 0,
    ) -> MessagePage:
        """Return a page of a queue's messages, which stay; ``after`` is ``next`` of a page.

        Bodies of up to ``body_bytes`` are shown.
        """
        self._allow(principal, f"queue.{queue}", "browse", selector or "")
        found = self._queue(queue)
        _check_limit(limit, body_bytes)
        wanted = _selector(selector)
        place = None if after is None else Place.parse(after, found)
        return await self._messages.page(
            found, wanted, place, limit, self._shown(found, body_bytes)
        )

    async def message(
        self, principal: Principal, queue: str, message: int, *, body_bytes: int = MOST_BODY_BYTES
    ) -> MessageView:
        """Return one message by its id."""
        self._allow(principal, f"queue.{queue}", "getMessage", message)
        found = self._queue(queue)
        _check_limit(1, body_bytes)
        one = await self._messages.one(found, message)
        if one is None:
            raise NotFound("message", str(message), f" in queue {quoted(queue)} any more")
        return self._shown(found, body_bytes)(one)

    async def count(self, principal: Principal, queue: str, selector: str | None = None) -> int:
        """Return how many messages a queue has, or how many of them a selector matches."""
        self._allow(principal, f"queue.{queue}", "countMessages", selector or "")
        found = self._queue(queue)
        wanted = _selector(selector)
        if wanted is None:
            return found.depth
        return await self._messages.count(found, wanted)

    async def scheduled(
        self,
        principal: Principal,
        queue: str | None = None,
        selector: str | None = None,
        after: str | None = None,
        limit: int = 100,
    ) -> ScheduledPage:
        """Return a page of what is to be delivered later, to a queue or anywhere, earliest first.

        ``after`` is ``next`` of a page.
        """
        resource = _BROKER if queue is None else f"queue.{queue}"
        self._allow(principal, resource, "listScheduledMessages", selector or "")
        schedules = None if queue is None else self._scheduled.of_queue(self._queue(queue))
        _check_limit(limit, 0)
        return await self._scheduled.page(schedules, _selector(selector), after, limit)

    async def cancel_scheduled(self, principal: Principal, message: int) -> None:
        """Delete a message that is to be delivered later, by its id.

        Of many, start a job that cancels.
        """
        self._allow(principal, _BROKER, "cancelScheduledMessage", message)
        await self._scheduled.cancel(message)
        self._forget_lists()

    def _shown(self, queue: Queue, body_bytes: int) -> Callable[[Found], MessageView]:
        """Return what makes views of a queue's messages as they are at this moment."""
        delivered: set[int] = set()
        if queue.unsettled.delivered:
            for subscription in queue.subscriptions:
                delivered.update(one.seq for one in subscription.held())

        def show(found: Found) -> MessageView:
            record = found.record
            properties = shown_properties_of(record)
            content = content_of(record, body_bytes) if body_bytes else None
            due_ms = decode_fields(record.stated).delivery_ms if record.stated else None
            return MessageView(
                id=found.seq,
                queue=queue.name,
                address=record.address,
                priority=record.priority,
                timestamp_ms=record.timestamp_ms,
                expires_ms=record.expires_ms,
                durable=found.is_stored,
                large=record.large is not None,
                size=len(record.head) + len(record.stated) + record.body_size,
                body_size=record.body_size,
                attempts=found.attempts,
                delivering=found.seq in delivered,
                due_ms=due_ms,
                origin_queue=_text(properties.get("_AMQ_ORIG_QUEUE")),
                origin_address=_text(properties.get("_AMQ_ORIG_ADDRESS")),
                returns=returns_of(properties),
                properties=properties,
                body=None if content is None else content.body,
                body_kind="" if content is None else content.kind,
            )

        return show

    async def send(
        self,
        principal: Principal,
        destination: str,
        body: bytes,
        *,
        properties: Mapping[str, Property] | None = None,
        content_type: str | None = None,
        correlation_id: str | None = None,
        reply_to: str | None = None,
        priority: int = DEFAULT_PRIORITY,
        durable: bool = True,
        expires_ms: int = 0,
        delivery_ms: int | None = None,
    ) -> int | None:
        """Send a message to ``/queue/NAME``, ``/topic/NAME`` or a name; back once it is stored.

        Returns its id in the first of its queues; None if no queue takes it. The user needs the
        permission ``send`` for it, too. ``expires_ms`` and ``delivery_ms`` are milliseconds since
        1970 UTC.
        """
        self._allow(principal, f"address.{destination}", "sendMessage")
        _check_priority(priority)
        for name, moment in (("expires-ms", expires_ms), ("delivery-ms", delivery_ms)):
            if moment is not None and not 0 <= moment <= _LAST_MS:
                raise WrongArgument(name, f"{name} {moment} is no moment: milliseconds since 1970")
        if len(body) > self._broker.parts.max_body_bytes:
            raise LimitExceeded(
                f"a body of {len(body)} bytes is longer than max-body-bytes"
                f" {self._broker.parts.max_body_bytes}: send it by a client"
            )
        _check_properties(properties or {}, content_type, correlation_id, reply_to)
        fields = Fields(
            durable=durable,
            delivery_ms=delivery_ms,
            correlation_id=correlation_id,
            reply_to=reply_to,
            content_type=content_type,
            user_id=principal.validated_user,
            properties=properties or {},
        )
        try:
            stated = encode_fields(fields)
        except ValueError as error:
            raise WrongArgument("properties", f"the message cannot be stored: {error}") from None
        message = OutgoingMessage(
            b"", body, durable, expires_ms, priority, encoding=NO_HEAD, stated=stated
        )
        answer = self._waiting.answer(bool)

        def refused(error: OrthiaError, _: object) -> None:
            answer.fail(error)

        sending = self._broker.placing(
            principal, destination, message, lambda: answer.set(True), refused
        )
        seq = await self._waiting.steps(sending)
        await answer
        return seq

    # --- queues and addresses, changed

    async def create_queue(
        self,
        principal: Principal,
        name: str,
        *,
        address: str | None = None,
        routing_type: RoutingType | None = None,
        durable: bool = True,
        max_consumers: int | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> QueueView:
        """Create a queue, of the address of its name unless another is named.

        ``options`` are by their names in broker.xml, ``filter`` among them; what is left out is
        as the settings of its address say. The user needs what it needs to create it as a client,
        too.
        """
        where = name if address is None else address
        self._allow(principal, _BROKER, "createQueue", name, where)
        check_max_consumers(max_consumers)
        kind, chosen = self._new_queue(principal, name, where, routing_type, options or {})
        permission = "createDurableQueue" if durable else "createNonDurableQueue"
        self._security.check_new_queue(principal, where, name, permission)
        creations = self._parts.creations
        creations.refuse_if_too_many(principal, quoted(name))
        self._parts.store_use.refuse_if_closed()
        queue = self._book.create_queue(
            name,
            where,
            kind,
            auto_created=False,
            max_consumers=max_consumers,
            user=creations.user_of(principal),
            options=chosen,
            durable=durable,
        )
        await self._bound()
        return self._queues.view(queue)

    def _new_queue(
        self,
        principal: Principal,
        name: str,
        address: str,
        routing_type: RoutingType | None,
        given: Mapping[str, Any],
    ) -> tuple[RoutingType, QueueOptions]:
        """Return type and options of a new queue; raises BrokerError if there must be none."""
        _check_name("name", name)
        _check_name("address", address)
        if name in self._book.queues:
            raise AlreadyThere(f"there is a queue {quoted(name)} already")
        self._parts.creation.refuse_reserved(name, address)
        if is_schedule(name) or address in self._book.temporary:
            raise WrongArgument("name", f"queue {quoted(name)} would be one of the broker's own")
        known = self._book.address(address)
        kind = routing_type or known.type_of_new_queue
        if kind not in known.types:
            if known.configured:
                has = ", ".join(sorted(one.value for one in known.types))
                raise NotPossible(
                    f"address {quoted(address)} is {has}, and a {kind.value} queue was asked for"
                )
            self._security.check(principal, "createAddress", address)
        options = options_of(known.settings, checked(given))
        refuse_conflict(name, options)
        return kind, options

    async def _bound(self) -> None:
        answer = self._waiting.answer(bool)
        self._parts.bindings.when_bound(lambda: answer.set(True))
        await answer
        self._forget_lists()

    async def change_queue(
        self,
        principal: Principal,
        name: str,
        *,
        max_consumers: int | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> QueueView:
        """Change options of a queue, at once and on nodes to come; an empty text is none.

        Messages that are there stay, but for those that a smaller ring has no room for, and those
        that nobody consumes if it is to purge these. Raises NotPossible for what cannot change, or
        is said elsewhere.
        """
        given = options or {}
        said = [f"{one}={value}" for one, value in sorted(given.items())]
        if max_consumers is not None:
            said.append(f"max-consumers={max_consumers}")
        self._allow(principal, _BROKER, "updateQueue", name, *said)
        queue = self._queue(name)
        check_max_consumers(max_consumers)
        self._refuse_if_said_elsewhere(queue, given)
        binding = self._book.bindings[name]
        after = changed(name, binding.options, given, queue.consumers)
        most = binding.max_consumers if max_consumers is None else max_consumers
        answer = self._waiting.answer(bool)
        self._parts.administered.change_queue(queue, after, most, lambda: answer.set(True))
        await answer
        self._forget_lists()
        return self._queues.view(queue)

    def _refuse_if_said_elsewhere(self, queue: Queue, given: Mapping[str, Any]) -> None:
        """Raise NotPossible for a queue that follows somebody else's options."""
        name = quoted(queue.name)
        refuse_if_leaving(queue)
        if queue.name in self._book.rules.queues:
            raise NotPossible(f"queue {name} is declared in broker.xml: change its options there")
        if is_schedule(queue.name):
            raise NotPossible(f"queue {name} holds what is delivered later, and has no options")
        binding = self._book.bindings[queue.name]
        if "filter" in given and (binding.subscription is not None or origin_of(binding)):
            who = "its subscriber" if binding.subscription is not None else "its address"
            raise NotPossible(f"the filter of queue {name} is what {who} says: it cannot change")

    async def delete_queue(self, principal: Principal, name: str, *, force: bool = False) -> int:
        """Delete a queue; with ``force`` also one with messages or consumers.

        Return how many messages went with it.
        """
        answer = self._waiting.future(int)
        self._parts.gate.refuse_if_stopped()
        if name not in self._book.queues:
            self._allow(principal, _BROKER, "destroyQueue", name, force)
            raise NotFound("queue", name)
        self._broker.delete_queue(principal, name, answer.set, force=force)
        number = await answer
        self._forget_lists()
        return number

    async def create_address(
        self, principal: Principal, name: str, routing_types: Collection[RoutingType]
    ) -> AddressView:
        """Create an address, or give one that an operator created other routing types."""
        types = frozenset(routing_types)
        self._allow(
            principal, _BROKER, "createAddress", name, ",".join(sorted(one.value for one in types))
        )
        _check_name("name", name)
        if not types:
            raise WrongArgument("routing-types", "an address is ANYCAST, MULTICAST or both")
        if name in self._book.rules.addresses:
            raise AlreadyThere(f"address {quoted(name)} is declared in broker.xml")
        if name in self._book.temporary:
            raise AlreadyThere(f"address {quoted(name)} is a connection's own")
        self._security.check(principal, "createAddress", name)
        known = self._book.address(name)
        needed = {one.routing_type for one in (*known.anycast_queues, *known.multicast_queues)}
        if not needed <= types:
            left = ", ".join(sorted(one.value for one in needed - types))
            raise NotPossible(f"address {quoted(name)} has queues that are {left}")
        answer = self._waiting.answer(bool)
        self._parts.administered.create(name, types, lambda: answer.set(True))
        await answer
        self._forget_lists()
        return self._view_of_address(name, known)

    async def delete_address(self, principal: Principal, name: str) -> None:
        """Delete an address that has no queue."""
        self._allow(principal, _BROKER, "deleteAddress", name)
        known = self._address(name)
        self._security.check(principal, "deleteAddress", name)
        if name in self._book.rules.addresses:
            raise NotPossible(
                f"address {quoted(name)} is declared in broker.xml, and would be there again at"
                " once: remove it first from broker.xml of every node, which they notice by"
                " themselves (configuration-file-refresh-period)"
            )
        queues = sorted(one.name for one in (*known.anycast_queues, *known.multicast_queues))
        if queues:
            more = f" and {len(queues) - 1} more" if len(queues) > 1 else ""
            raise NotPossible(
                f"address {quoted(name)} has queue {quoted(queues[0])}{more}: delete these first"
            )
        answer = self._waiting.answer(bool)
        self._parts.administered.delete(name, lambda: answer.set(True))
        await answer
        self._forget_lists()

    async def pause_queue(
        self, principal: Principal, name: str, *, persist: bool = True
    ) -> QueueView:
        """Deliver nothing from a queue; unless ``persist``, only until this node ends."""
        self._allow(principal, f"queue.{name}", "pause", persist)
        queue = self._queue(name)
        refuse_if_leaving(queue)
        is_stored = persist and queue.durable
        answer = self._waiting.answer(bool)
        self._parts.administered.pause_queue(queue, lambda: answer.set(True), is_stored=is_stored)
        await answer
        self._forget_lists()
        return self._queues.view(queue)

    async def resume_queue(self, principal: Principal, name: str) -> QueueView:
        """Deliver from a queue again, unless its address is paused, too."""
        self._allow(principal, f"queue.{name}", "resume")
        queue = self._queue(name)
        answer = self._waiting.answer(bool)
        self._parts.administered.resume_queue(queue, lambda: answer.set(True))
        await answer
        self._forget_lists()
        return self._queues.view(queue)

    async def pause_address(
        self, principal: Principal, name: str, *, persist: bool = True
    ) -> AddressView:
        """Deliver nothing from the queues of an address, those to come too."""
        self._allow(principal, f"address.{name}", "pause", persist)
        known = self._address(name)
        is_stored = persist and name not in self._book.temporary
        answer = self._waiting.answer(bool)
        self._parts.administered.pause_address(name, lambda: answer.set(True), is_stored=is_stored)
        await answer
        self._forget_lists()
        return self._view_of_address(name, known)

    async def resume_address(self, principal: Principal, name: str) -> AddressView:
        """Deliver from the queues of an address again, but for those paused by themselves."""
        self._allow(principal, f"address.{name}", "resume")
        known = self._address(name)
        answer = self._waiting.answer(bool)
        self._parts.administered.resume_address(name, lambda: answer.set(True))
        await answer
        self._forget_lists()
        return self._view_of_address(name, known)

    # --- jobs

    async def start_job(
        self,
        principal: Principal,
        kind: JobKind,
        *,
        queue: str | None = None,
        address: str | None = None,
        selector: str | None = None,
        ids: Sequence[int] | None = None,
        target: str | None = None,
        priority: int | None = None,
        stream: str | None = None,
        up_to: int | None = None,
    ) -> JobView:
        """Begin an operation on many messages of a queue; ``finished`` waits for its end.

        On all of the queue, or those that a ``selector`` matches, or those with some ``ids``; a
        purge, or a cancel of what is scheduled, may be of an ``address``: of all of its queues.
        ``target`` is the queue that messages are moved or copied to, ``priority`` what they get.
        The attached ``stream`` acknowledges the stored messages ``up_to`` a seq. Messages that
        come while it runs are left as they are, and so are those that consumers have.
        """
        resource = f"queue.{queue}" if address is None else f"address.{address}"
        named = None if ids is None else ",".join(map(str, ids[:MOST_IDS]))
        said = [one for one in (selector, named, target, priority, up_to) if one is not None]
        self._allow(principal, resource, _OPERATIONS[kind], *said)
        if ids is not None and not 0 < len(ids) <= MOST_IDS:
            raise WrongArgument("ids", f"a job has 1 to {MOST_IDS} ids, not {len(ids)}")
        if kind is JobKind.ACKNOWLEDGE and queue is not None:
            self._check_consume(principal, self._queue(queue))
        order = Order(
            kind,
            self._subject(kind, queue, address),
            of_address=address is not None,
            selector=None if _selector(selector) is None else selector,
            ids=None if ids is None else tuple(dict.fromkeys(ids)),
            target=target,
            priority=priority,
            stream=stream,
            up_to=up_to,
        )
        self._check_order(order)
        queues = self._queues_of(order)
        if order.ids is not None:
            for one in order.ids:
                if not await self._has(queues, one):
                    raise NotFound(
                        "message",
                        str(one),
                        f" in queue {quoted(order.name)} any more: nothing was done",
                    )
            self._parts.gate.refuse_if_stopped()
            queues = self._queues_of(order)  # it may have been deleted meanwhile
            self._check_order(order)
        return self._begin(principal, order, queues).view()

    def _begin(self, principal: Principal, order: Order, queues: Sequence[Queue]) -> Job:
        """Begin a job; raises LimitExceeded, and NotPossible if another works on its queues."""
        self._jobs.refuse_if_busy(queues)
        job = self._jobs.start(order, principal.name)
        self._forget_lists()
        return job

    async def remove_message(self, principal: Principal, queue: str, message: int) -> bool:
        """Delete one message of a queue, or one that is to be delivered to it later, by its id.

        Return whether it was there, and nobody had it.
        """
        self._allow(principal, f"queue.{queue}", "removeMessage", message)
        found = self._queue(queue)
        if is_schedule(queue) or await self._messages.one(found, message) is None:
            schedules = self._scheduled.of_queue(found)
            try:
                await self._scheduled.cancel(message, among=schedules)
            except NotFound:
                return False
            self._forget_lists()
            return True
        self._parts.gate.refuse_if_stopped()
        order = Order(JobKind.DELETE, queue, ids=(message,))
        self._check_order(order)
        queues = self._queues_of(order)  # it may have been deleted meanwhile
        job = self._begin(principal, order, queues)
        await self._jobs.finished(job)
        self._forget_lists()
        if job.state is not JobState.DONE:
            raise NotPossible(f"message {message} is not deleted: {job.reason or job.state.value}")
        return job.done == 1

    async def _has(self, queues: Sequence[Queue], message: int) -> bool:
        for queue in queues:
            if await self._messages.one(queue, message) is not None:
                return True
        return False

    @staticmethod
    def _subject(kind: JobKind, queue: str | None, address: str | None) -> str:
        """Return the name of what a job works on; raises WrongArgument."""
        if address is not None and kind not in (JobKind.PURGE, JobKind.CANCEL):
            raise WrongArgument("address", f"{kind.value} is of one queue, not of an address")
        name = queue if address is None else address
        if name is None or (queue is not None and address is not None):
            raise WrongArgument("queue", "name one queue, or, of a purge or cancel, one address")
        return name

    def _queues_of(self, order: Order) -> list[Queue]:
        """Return the queues of a job; raises NotFound, NotPossible."""
        if order.of_address:
            self._address(order.name)
        else:
            self._queue(order.name)
        queues = self._jobs.queues_of(order)
        for one in queues:
            self._jobs.check_source(order.kind, one, order.stream)
        return queues

    def _check_order(self, order: Order) -> None:
        """Raise WrongArgument or NotFound for what makes no sense."""
        kind = order.kind
        if order.ids is not None and order.selector is not None:
            raise WrongArgument("ids", "choose messages by ids or by a selector, not by both")
        chooses = order.ids is not None or order.selector is not None
        if kind is JobKind.PURGE and chooses:
            raise WrongArgument("selector", "a purge deletes all: delete some by a delete")
        if kind is JobKind.DELETE and not chooses:
            raise WrongArgument(
                "ids", "say which messages, by ids or a selector; a purge deletes all of a queue"
            )
        goes = kind in (JobKind.MOVE, JobKind.COPY)
        if goes and not order.target:
            raise WrongArgument("target", f"a {kind.value} needs a target, a queue: none was named")
        if order.target and not goes:
            raise WrongArgument("target", f"a {kind.value} has no target")
        if order.target:
            if not order.of_address:
                self._queue(order.name)
            if order.target == order.name:
                raise WrongArgument(
                    "target", f"queue {quoted(order.name)} cannot be the target of its own messages"
                )
            target = self._queue(order.target)
            refuse_if_leaving(target)
            if is_schedule(target.name):
                raise WrongArgument(
                    "target", f"queue {quoted(target.name)} holds what is delivered later"
                )
        if (order.priority is None) == (kind is JobKind.PRIORITY):
            raise WrongArgument("priority", "the priority is for, and needed by, a priority job")
        if order.priority is not None:
            _check_priority(order.priority)

        self._check_acknowledge(order)

    @staticmethod
    def _check_acknowledge(order: Order) -> None:
        acknowledges = order.kind is JobKind.ACKNOWLEDGE
        for name, given in (("stream", order.stream), ("up-to", order.up_to)):
            if (given is not None) is not acknowledges:
                raise WrongArgument(name, f"{name} is for, and needed by, an acknowledge job")
        if acknowledges and (order.ids is not None or order.selector is not None):
            raise WrongArgument("selector", "a stream acknowledges all up to a message")

    # --- streams

    def _check_consume(self, principal: Principal, queue: Queue) -> None:
        self._security.check(principal, "consume", queue.address, queue.name)

    async def attach_stream(self, principal: Principal, name: str, stream: str) -> StreamView:
        """Let a stream alone read a queue, by an id that it keeps; it may be attached already.

        Back once everything acknowledged before is stored: from then on whatever is in the store
        stays there until the stream acknowledges it. The user needs the permission ``consume``.
        """
        self._allow(principal, f"queue.{name}", "attachStream", stream)
        queue = self._queue(name)
        self._check_consume(principal, queue)
        _check_name("stream", stream)
        streams = self._parts.streams
        self._jobs.refuse_if_busy([queue])
        answer = self._waiting.answer(bool)
        asked = AttachedStream(stream, principal.name, self._broker.time_ms())
        streams.attach(queue, asked, lambda: answer.set(True))
        await answer
        self._forget_lists()
        found = streams.of(queue) or asked
        return StreamView(name, found.id, found.user, found.since_ms)

    async def stream(self, principal: Principal, name: str) -> StreamView:
        """Return which stream reads a queue."""
        self._allow(principal, f"queue.{name}", "getStream")
        found = self._parts.streams.of(self._queue(name))
        if found is None:
            raise NotFound("stream of queue", name, ": its consumers have it")
        return StreamView(name, found.id, found.user, found.since_ms)

    async def detach_stream(
        self, principal: Principal, name: str, stream: str | None = None
    ) -> StreamView:
        """Let consumers have a queue again that a stream reads; of this id, if one is given.

        They get what the stream did not acknowledge, though it may have written it already.
        """
        self._allow(principal, f"queue.{name}", "detachStream", stream or "")
        queue = self._queue(name)
        found = self._parts.streams.of(queue)
        if found is None:
            raise NotFound("stream of queue", name, ": its consumers have it")
        if stream is not None and stream != found.id:
            raise NotFound("stream", stream, f": it does not read queue {quoted(name)}")
        answer = self._waiting.answer(bool)
        self._parts.streams.detach(queue, lambda: answer.set(True))
        await answer
        self._forget_lists()
        return StreamView(name, found.id, found.user, found.since_ms)

    async def jobs(self, principal: Principal) -> tuple[JobView, ...]:
        """Return the jobs that run, the last ones that are over, and interrupted ones."""
        self._allow(principal, _BROKER, "listJobs")
        return tuple(one.view() for one in self._jobs.all())

    async def job(self, principal: Principal, job: int) -> JobView:
        """Return one job."""
        self._allow(principal, _BROKER, "getJob", job)
        return self._jobs.get(job).view()

    async def finished(self, principal: Principal, job: int) -> JobView:
        """Wait until a job is over, and return it."""
        self._allow(principal, _BROKER, "getJob", job)
        found = self._jobs.get(job)
        await self._jobs.finished(found)
        return found.view()

    async def stop_job(self, principal: Principal, job: int) -> JobView:
        """Stop a job after the step it is at; forget an interrupted one."""
        self._allow(principal, _BROKER, "stopJob", job)
        found = self._jobs.get(job)
        self._jobs.stop(found)
        return found.view()

    async def continue_job(self, principal: Principal, job: int) -> JobView:
        """Start an interrupted job again, for the rest."""
        self._allow(principal, _BROKER, "continueJob", job)
        found = self._jobs.get(job)
        if found.state is not JobState.INTERRUPTED:
            raise NotPossible(f"job {job} is {found.state.value}: an interrupted one is continued")
        if found.number_of_ids is not None:
            raise NotPossible(
                f"job {job} was of {found.number_of_ids} messages by id, of which"
                f" {found.done} are done: name the rest of them anew"
            )
        self._check_order(found.order)
        self._jobs.refuse_if_busy(self._queues_of(found.order))
        return self._jobs.start(found.order, principal.name, again=found).view()

    # --- the node

    async def hand_over(self, principal: Principal) -> HandoverView:
        """Hand over to the backup in good order, and wait until it serves.

        What was read is done and answered, then clients are disconnected. This node is a backup
        afterwards; with ``restart-backup`` false it ends. Raises NotPossible if no backup waits,
        or if this node has none.
        """
        self._allow(principal, _BROKER, "forceFailover")
        if self._handover is None:
            raise NotPossible("this node has no backup to hand over to")
        return await self._handover.hand_over()

    async def set_log_level(self, principal: Principal, logger: str, level: str) -> None:
        """Log more or less, until this node ends; ``level`` is DEBUG, INFO, WARNING or ERROR."""
        self._allow(principal, _BROKER, "setLogLevel", logger, level)
        if logger != _LOGGERS and not logger.startswith(f"{_LOGGERS}."):
            raise WrongArgument(
                "logger", f"{quoted(logger[:80])} is no logger of Orthia: {_LOGGERS}, or below it"
            )
        if level not in _LEVELS:
            raise WrongArgument("level", f"a level is {', '.join(_LEVELS)}, not {level[:80]!r}")
        logging.getLogger(logger).setLevel(level)
        LOGGER.warning(
            "user %s set the log level of %s to %s until this node ends",
            quoted(principal.name),
            logger,
            level,
        )

    # --- memory, journal, transactions

    async def memory(self, principal: Principal) -> MemoryView:
        """Return what the node holds, against its limits."""
        self._allow(principal, _BROKER, "getAddressMemoryUsage")
        budget, store = self._parts.factory.services.budget, self._broker.store_use.shown
        return MemoryView(
            messages_bytes=budget.used,
            messages_limit=budget.limit,
            store_bytes=store.used,
            store_limit=store.limit,
            store_closed_by=tuple(sorted(store.closed_by)),
            delivering_bytes=budget.claimed,
            clients_bytes=self._clients.held_bytes,
            clients_limit=self._clients.limit_bytes,
        )

    async def transactions(self, principal: Principal) -> tuple[TransactionView, ...]:
        """Return the open transactions of clients, and prepared ones that are not resolved.

        The oldest first.
        """
        self._allow(principal, _BROKER, "listTransactions")
        found = [*self._clients.transactions(), *self._in_doubt.views()]
        return tuple(sorted(found, key=lambda one: (one.since_ms, one.id)))

    async def commit_transaction(self, principal: Principal, transaction: str) -> TransactionView:
        """Commit a prepared transaction by its XID; back once that is stored.

        What it sends enters its queues whatever their limits, as it was accepted when prepared.
        """
        self._allow(principal, _BROKER, "commitPreparedTransaction", transaction)
        done = await self._in_doubt.commit(transaction)
        self._forget_lists()
        return done

    async def roll_back_transaction(
        self, principal: Principal, transaction: str
    ) -> TransactionView:
        """Roll a prepared transaction back by its XID; back once that is stored.

        What it acknowledges is delivered again: of a last value queue, by the next node.
        """
        self._allow(principal, _BROKER, "rollbackPreparedTransaction", transaction)
        done = await self._in_doubt.rollback(transaction)
        self._forget_lists()
        return done


def _count(consumers: dict[str, int], subscription: Subscription[Any]) -> None:
    if not subscription.is_closed:
        connection = subscription.principal.origin.connection
        consumers[connection] = consumers.get(connection, 0) + 1


def _consumer(
    subscription: Subscription[Any], queue: str | None, address: str, selector: str | None
) -> ConsumerView:
    principal = subscription.principal
    connection = principal.origin.connection
    return ConsumerView(
        id=f"{connection}.{subscription.number}",
        connection=connection,
        user=principal.name,
        client_id=principal.client_id,
        queue=queue,
        address=address,
        selector=selector,
        prefetch=subscription.prefetch or None,
        delivering=subscription.delivering,
        delivering_bytes=subscription.delivering_bytes,
        settled=subscription.taken,
        writable=subscription.is_writable,
    )


def _told(principal: Principal, what: str, reason: str) -> str:
    """Return what a client is told whose connection an operator ends."""
    because = f": {reason[:500]}" if reason else ""
    return f"an operator, user {quoted(principal.name)}, closed this {what}{because}"


def _selector(text: str | None) -> Selector | None:
    return None if text is None or not text.strip() else parse_selector(text)


def _check_name(argument: str, name: str) -> None:
    if not is_name(name) or QUALIFIED in name:
        raise WrongArgument(
            argument,
            f"{quoted(name[:300])} is no name: it has 1 to 255 printable characters, no space at"
            f" either end, and no {QUALIFIED}",
        )


def _check_properties(properties: Mapping[str, Property], *headers: str | None) -> None:
    if len(properties) > MOST_PROPERTIES:
        raise LimitExceeded(
            f"a message has {len(properties)} properties, more than {MOST_PROPERTIES}"
        )
    size = sum(len(one) for one in headers if one is not None)
    for name, value in properties.items():
        shown = f"property {quoted(name[:100])}"
        if name != name.strip() or not name.isprintable() or not name:
            raise WrongArgument(
                "properties", f"{shown}: a name is printable, without a space at either end"
            )
        is_reserved = name.startswith(RESERVED_PREFIXES) and name not in _ACTING
        if is_reserved or name in (*REFUSED_HEADERS, RETURNS):
            raise WrongArgument("properties", f"{shown} is what the broker says, or a protocol")
        if not isinstance(value, str | int | float | bytes):
            raise WrongArgument("properties", f"{shown} is neither a text, a number, nor a flag")
        if isinstance(value, float) and not isfinite(value):
            raise WrongArgument("properties", f"{shown} is no finite number")
        size += len(name) + len(value if isinstance(value, str | bytes) else str(value))
    if size > LONGEST_PROPERTIES:
        raise LimitExceeded(
            f"properties and headers have {size} characters, more than {LONGEST_PROPERTIES}"
        )


def _check_priority(priority: int) -> None:
    if priority not in _PRIORITIES:
        raise WrongArgument("priority", f"a priority is 0 to 9, not {priority}")


def _check_limit(limit: int, body_bytes: int) -> None:
    if not 0 < limit <= MOST_MESSAGES_OF_A_PAGE:
        raise WrongArgument(
            "limit",
            f"a page has 1 to {MOST_MESSAGES_OF_A_PAGE} messages; {limit} were asked for",
        )
    if not 0 <= body_bytes <= MOST_BODY_BYTES:
        raise WrongArgument(
            "body-bytes", f"bodies of 0 to {MOST_BODY_BYTES} bytes are shown, not {body_bytes}"
        )


def _text(value: Property | None) -> str | None:
    return None if value is None else str(value)
