"""Where messages go that an operator moves, and what is said of them there."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from orthia.broker.core.destinations import is_schedule
from orthia.broker.core.queue.queue import Queue
from orthia.broker.core.routing.addresses import AddressBook, refuse_if_leaving
from orthia.broker.core.routing.resources import UndeliverableQueues
from orthia.broker.management.errors import NotFound
from orthia.broker.management.messages import RETURNS, properties_of, returns_of
from orthia.broker.management.views import JobKind
from orthia.config.addresses import DROP
from orthia.journal.model.fields import decode_fields, encode_fields
from orthia.journal.model.message import Message, with_property
from orthia.journal.model.records import RemovalReason

_ORIGINS = ("_AMQ_ORIG_ADDRESS", "_AMQ_ORIG_QUEUE", "_AMQ_ORIG_MESSAGE_ID", "_AMQ_ACTUAL_EXPIRY")


class _Order(Protocol):
    """What an operator asks for."""

    @property
    def kind(self) -> JobKind:
        """What is done."""

    @property
    def target(self) -> str | None:
        """Where messages go."""

    @property
    def priority(self) -> int | None:
        """What they get."""


class Placed(NamedTuple):
    """What becomes of one message."""

    to: Sequence[tuple[Sequence[Queue], Message]]
    """Which queues get which message; nobody of one that is deleted."""
    reason: RemovalReason


_DELETED = Placed((), RemovalReason.DELETED)
_ACKNOWLEDGED = Placed((), RemovalReason.ACKNOWLEDGED)


class Placing:
    """Finds where messages go; on the loop's thread."""

    def __init__(self, book: AddressBook, undeliverable: UndeliverableQueues) -> None:
        self._book = book
        self._undeliverable = undeliverable

    def of(self, order: _Order, queue: Queue, seq: int, record: Message) -> Placed | None:
        """Return what becomes of a message of a queue; None if it stays. Raises BrokerError."""
        match order.kind:
            case JobKind.PURGE | JobKind.DELETE | JobKind.CANCEL:
                return _DELETED
            case JobKind.ACKNOWLEDGE:
                return _ACKNOWLEDGED
            case JobKind.MOVE | JobKind.COPY:
                return self._to(self._target(order.target or ""), queue, seq, record)
            case JobKind.RETRY:
                return self._back(queue, record)
            case JobKind.EXPIRE:
                return self._expired(queue, seq, record)
            case JobKind.PRIORITY:
                return _with_priority(queue, record, order.priority or 0)

    def holds(self, placed: Placed) -> bool:
        """Return whether messages may go where they were to go a while ago."""
        known = self._book.queues
        return all(
            known.get(one.name) is one and not one.is_leaving
            for queues, _ in placed.to
            for one in queues
        )

    def _target(self, name: str) -> Queue:
        """Return where messages go; raises BrokerError if it is deleted meanwhile, or will be."""
        target = self._book.queues.get(name)
        if target is None:
            raise NotFound("queue", name, " any more")
        refuse_if_leaving(target)
        return target

    @staticmethod
    def _to(target: Queue, queue: Queue, seq: int, record: Message) -> Placed:
        record = _not_put_off(record)
        moved = record.relocated(target.address, _origin(queue, seq, record))
        if record.expires_ms:
            moved = moved.expiring(record.expires_ms)
        return Placed([([target], moved)], RemovalReason.DELETED)

    def _back(self, queue: Queue, record: Message) -> Placed | None:
        said = properties_of(record)
        name, address = said.get("_AMQ_ORIG_QUEUE"), said.get("_AMQ_ORIG_ADDRESS")
        targets = self._origins(name, address)
        if not targets or queue in targets:
            return None
        back = _without_origin(record.relocated(targets[0].address, {}))
        returns = 1 + returns_of(said)
        return Placed(
            [(targets, with_property(back, RETURNS, str(returns)))], RemovalReason.DELETED
        )

    def _origins(self, name: object, address: object) -> Sequence[Queue]:
        """Return the queue a message was in; or those of its address that take it."""
        queue = self._book.queues.get(name) if isinstance(name, str) else None
        if queue is not None and is_schedule(queue.name):
            queue = None  # anybody may state an origin, and there it would never be due
        if queue is None and isinstance(address, str):
            known = self._book.known.get(address)
            queue = None if known is None else known.anycast()
        return [] if queue is None or queue.is_leaving else [queue]

    def _expired(self, queue: Queue, seq: int, record: Message) -> Placed:
        target = queue.settings.expiry_address
        record = _not_put_off(record)
        origin = _origin(queue, seq, record)
        origin["_AMQ_ACTUAL_EXPIRY"] = str(record.expires_ms)
        moved = record.relocated(target, origin)
        reason = RemovalReason.EXPIRED
        if target == DROP:
            return Placed((), reason)
        routed = self._undeliverable.route(queue, target, reason, moved)
        return Placed([(one.queues, one.record) for one in routed if one.queues], reason)


def _origin(queue: Queue, seq: int, record: Message) -> dict[str, str]:
    origin = {"_AMQ_ORIG_ADDRESS": record.address, "_AMQ_ORIG_MESSAGE_ID": str(seq)}
    if not is_schedule(queue.name):
        origin["_AMQ_ORIG_QUEUE"] = queue.name
    return origin


def _not_put_off(record: Message) -> Message:
    """Return a message that is delivered at once, and once."""
    if not record.stated:
        return record
    fields = decode_fields(record.stated)
    if fields.delivery_ms is None and fields.recurrence is None:
        return record
    fields = fields._replace(delivery_ms=None, recurrence=None, client_id=None)
    return record._replace(stated=encode_fields(fields))


def _without_origin(record: Message) -> Message:
    """Return a message that states no origin; a head says none once it was relocated."""
    if not record.stated:
        return record
    fields = decode_fields(record.stated)
    properties = {name: one for name, one in fields.properties.items() if name not in _ORIGINS}
    return record._replace(stated=encode_fields(fields._replace(properties=properties)))


def _with_priority(queue: Queue, record: Message, priority: int) -> Placed | None:
    if record.priority == priority:
        return None
    return Placed([([queue], record.prioritized(priority))], RemovalReason.DELETED)
