# mypyc compiles this module.
"""Messages on their way in and out: what a transfer carries, and what the core keeps of it.

The bytes of a message are kept as they came, but for its delivery annotations, which are of one
hop. What the broker acts on is read here: how long it lives, its priority, when it is due, its
group, its duplicate id, and where it goes if its link does not say so.
"""

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple, TypeAlias, TypeVar

from orthia.broker.core.api import MessageReference, OutgoingMessage
from orthia.broker.core.identity import Principal
from orthia.broker.core.sending.recurrence import LATEST_MS
from orthia.broker.protocols.amqp.conditions import INVALID_FIELD, LinkFault
from orthia.broker.protocols.amqp.encoding import (
    DESTINATION_TYPE,
    TAG,
    head_for,
    without_origin,
)
from orthia.broker.protocols.amqp.scanning import (
    APPLICATION_BEGINS,
    NO_ROUTING,
    PROPERTIES_BEGIN,
    PropertiesScanner,
    Routing,
    end_of_plain_map,
    scan_usual,
)
from orthia.broker.protocols.amqp.sections import (
    NO_HEADER,
    VALUE,
    Header,
    Sections,
    body_sections,
    check_application_properties,
    delivered_head,
    encode_application_properties,
    header_of,
    map_in,
    message_annotations_of,
    properties_of,
    sections_of,
)
from orthia.broker.protocols.amqp.values import AmqpDecodeError, AmqpError, Symbol
from orthia.config.address_settings import RoutingType
from orthia.journal.model.fields import Fields, encode_fields

_Found = TypeVar("_Found")
_HEADERS: Final[dict[bytes, Header]] = {}
_ANNOTATIONS: Final[dict[bytes, RoutingType | None]] = {}
"""What sections say that were decoded before: those of one application are nearly all the same."""
_MOST_KNOWN: Final = 256
_LONGEST_KNOWN: Final = 128
"""How many are remembered, and how long they may be, in bytes."""
_DUPLICATE_ID: Final = "_AMQ_DUPL_ID"
_DUPLICATE_AS_BYTES: Final = _DUPLICATE_ID.encode()
_USERS: Final = ("JMSXUserID", "_AMQ_VALIDATED_USER")
"""Properties that say who sent a message."""
_USERS_AS_BYTES: Final = tuple(name.encode() for name in _USERS)
_DELIVERY_TIME: Final = Symbol("x-opt-delivery-time")
_DELIVERY_DELAY: Final = Symbol("x-opt-delivery-delay")
_KINDS: Final = {
    0: RoutingType.ANYCAST,
    1: RoutingType.MULTICAST,
    2: RoutingType.ANYCAST,
    3: RoutingType.MULTICAST,
}
"""What JMS says by a number that a destination is: a queue, a topic, or a temporary one."""
_MOST_PRIORITY: Final = 9


Incoming: TypeAlias = tuple[OutgoingMessage, str | None, RoutingType | None]
"""What a client sent; the address that the message itself says, and what it says that this is."""


class _Beginning(NamedTuple):
    """What a message says before its properties."""

    durable: bool
    priority: int
    ttl: int | None
    """How long it lives, milliseconds."""
    kind: RoutingType | None = None
    """What its annotations say that its address is."""
    delivery_ms: int | None = None
    """When it is due, milliseconds since 1970 UTC."""


class MessageReader:
    """Reads the messages of one link, nearly all of which begin alike.

    A message that begins with the same bytes as one before says the same with them.
    """

    __slots__ = ("_says", "_scanner", "_written")

    def __init__(self) -> None:
        self._written = b""
        """The header and the annotations of a message that came before."""
        self._says = _beginning(NO_HEADER)
        """What they say."""
        self._scanner = PropertiesScanner()

    def read(
        self, data: bytes, begin: int, principal: Principal, time_ms: Callable[[], int]
    ) -> Incoming:
        """Return the message that is all of ``data`` from ``begin`` on.

        ``time_ms`` is the clock of due and expiring messages. Raises AmqpDecodeError and LinkFault.
        """
        written = self._written
        if data.startswith(written, begin):
            usual = scan_usual(data, begin, begin + len(written), self._scanner)
            if usual is not None:
                properties, application, end, routing = usual
                return _incoming(
                    data[begin:end],
                    data[end:],
                    (properties - begin, application - begin),
                    self._says,
                    routing,
                    principal,
                    time_ms,
                )
        payload = data[begin:]
        sections = sections_of(payload)
        body = payload[sections.head :]
        if sections.first != len(body):
            for _ in body_sections(sections, body):
                pass  # a body that is none is refused to who sent it, not to who gets it
        return self._read(payload, body, sections, principal, time_ms)

    def read_head(
        self,
        payload: bytes,
        sections: Sections,
        principal: Principal,
        time_ms: Callable[[], int],
    ) -> Incoming:
        """Return the message that begins with ``payload``, without its body; raises as ``read``."""
        return self._read(payload, b"", sections, principal, time_ms)

    def _read(
        self,
        payload: bytes,
        body: bytes,
        sections: Sections,
        principal: Principal,
        time_ms: Callable[[], int],
    ) -> Incoming:
        head = payload[: sections.head]
        header, routing = _header(head, sections), self._routing(head, sections)
        _check_application_properties(head, sections)
        kind: RoutingType | None = None
        delivery_ms: int | None = None
        if sections.message_annotations > sections.delivery_annotations:
            kind, delivery_ms = _annotated(head, sections, time_ms)
            plain = without_origin(head, sections)
            if len(plain) != len(head):
                head, sections = plain, sections_of(plain)
        says = _beginning(header, kind, delivery_ms)
        properties, application = sections.properties, sections.application_properties
        if sections.delivery_annotations != sections.header:
            whole = len(head)
            head = delivered_head(head, sections, delivery_count=0)
            properties += len(head) - whole
            application += len(head) - whole
        elif delivery_ms is None:
            self._remember(head, sections, says)
        return _incoming(head, body, (properties, application), says, routing, principal, time_ms)

    def _remember(self, head: bytes, sections: Sections, says: _Beginning) -> None:
        if sections.message_annotations <= _LONGEST_KNOWN:
            self._written = head[: sections.message_annotations]
            self._says = says

    def _routing(self, head: bytes, sections: Sections) -> Routing:
        begin, end = sections.message_annotations, sections.properties
        if begin == end:
            return NO_ROUTING
        if head.startswith(PROPERTIES_BEGIN, begin):
            found, found_end = self._scanner.scan(head, begin)
            if found is not None and found_end == end:
                return found
        said = properties_of(head, sections)
        expires = said.absolute_expiry_time
        return Routing(said.to, None if expires is None else int(expires), said.group_id)


def _incoming(
    head: bytes,
    body: bytes,
    application: tuple[int, int],
    says: _Beginning,
    routing: Routing,
    principal: Principal,
    time_ms: Callable[[], int],
) -> Incoming:
    """Return a message; ``application`` is where in its head its application's properties are."""
    durable, priority, ttl, kind, delivery_ms = says
    to, expires_ms, group = routing
    begin, end = application
    user, duplicate_id, stated = principal.validated_user, None, b""
    if begin != end:
        if head.find(_DUPLICATE_AS_BYTES, begin, end) >= 0:
            duplicate_id = _duplicate_id(head, begin, end)
        if user is not None:
            head = _without_users(head, begin, end)
    if group or user is not None or delivery_ms is not None:
        stated = encode_fields(Fields(delivery_ms=delivery_ms, group=group or None, user_id=user))
    if expires_ms is None or expires_ms <= 0:
        expires_ms = time_ms() + ttl if ttl else 0
    message = OutgoingMessage(
        head, body, durable, expires_ms, priority, None, TAG, stated, duplicate_id
    )
    return message, to, kind


def _beginning(
    header: Header, kind: RoutingType | None = None, delivery_ms: int | None = None
) -> _Beginning:
    priority = min(header.priority, _MOST_PRIORITY)
    return _Beginning(header.durable, priority, header.ttl, kind, delivery_ms)


def _check_application_properties(head: bytes, sections: Sections) -> None:
    begin, end = sections.properties, sections.application_properties
    if begin != end:
        is_usual = head.startswith(APPLICATION_BEGINS, begin)
        if not is_usual or end_of_plain_map(head, begin) != end:
            check_application_properties(head, sections)


def _without_users(head: bytes, begin: int, end: int) -> bytes:
    """Return a head without properties by which its sender says who it is: the broker says that.

    They would be in those of the application, from ``begin`` to ``end``.
    """
    if not any(head.find(name, begin, end) >= 0 for name in _USERS_AS_BYTES):
        return head
    said = map_in(head, begin, end)
    others = {name: value for name, value in said.items() if name not in _USERS}
    return b"".join((head[:begin], encode_application_properties(others), head[end:]))


def _header(head: bytes, sections: Sections) -> Header:
    if not sections.header:
        return NO_HEADER
    written = head[: sections.header]
    known = _HEADERS.get(written)
    if known is None:
        known = header_of(head, sections)
        _remember(_HEADERS, written, known)
    return known


def _annotated(
    head: bytes, sections: Sections, time_ms: Callable[[], int]
) -> tuple[RoutingType | None, int | None]:
    """Return what a message's annotations say: what its address is, and when it is due."""
    written = head[sections.delivery_annotations : sections.message_annotations]
    if written in _ANNOTATIONS:
        return _ANNOTATIONS[written], None
    annotations = message_annotations_of(head, sections)
    said = annotations.get(DESTINATION_TYPE)
    kind = _KINDS.get(said) if isinstance(said, int) else None
    delivery_ms = _due(annotations, time_ms)
    if delivery_ms is None:
        _remember(_ANNOTATIONS, written, kind)
    return kind, delivery_ms


def _remember(known: dict[bytes, _Found], written: bytes, found: _Found) -> None:
    """Note what a short section says; with too many of them all are forgotten."""
    if len(written) <= _LONGEST_KNOWN:
        if len(known) >= _MOST_KNOWN:
            known.clear()
        known[written] = found


def _duplicate_id(head: bytes, begin: int, end: int) -> str | None:
    found = map_in(head, begin, end).get(_DUPLICATE_ID)
    if isinstance(found, str) and found:
        return found
    if found is None:
        return None
    raise LinkFault(INVALID_FIELD, f"the property {_DUPLICATE_ID} is no text, or an empty one")


def _due(annotations: Mapping[object, object], time_ms: Callable[[], int]) -> int | None:
    """Return when a message is to be delivered, milliseconds since 1970 UTC; None for at once."""
    at_ms = annotations.get(_DELIVERY_TIME)
    delay_ms = annotations.get(_DELIVERY_DELAY)
    for name, value in ((_DELIVERY_TIME, at_ms), (_DELIVERY_DELAY, delay_ms)):
        if value is not None and (not isinstance(value, int) or value < 0):
            raise LinkFault(INVALID_FIELD, f"the annotation {name} is no number of milliseconds")
    if isinstance(at_ms, int) and at_ms:
        due_ms = int(at_ms)
    elif isinstance(delay_ms, int) and delay_ms:
        due_ms = time_ms() + int(delay_ms)
    else:
        return None
    if due_ms > LATEST_MS:
        raise LinkFault(INVALID_FIELD, "the message asks for a delivery after the year 9999")
    return due_ms


def head_of(reference: MessageReference) -> bytes:
    """Return what precedes the bytes of a message's body as it is delivered.

    One that was delivered before may have been with somebody, also where no attempt is known of:
    JMS learns that by the delivery count.
    """
    record = reference.record
    if record.encoding == TAG and not (record.stated or reference.redelivered):
        return record.head
    try:
        head = head_for(record, reference.seq)
        if reference.redelivered:
            count = max(reference.attempts, 1)
            head = delivered_head(head, sections_of(head), delivery_count=count)
    except AmqpError:
        return record.head  # it goes as it is stored
    return head


def value_of(payload: bytes) -> bytes:
    """Return the one value that a message has, encoded; raises AmqpDecodeError."""
    sections = sections_of(payload)
    if sections.body != VALUE or sections.first >= 0:
        raise AmqpDecodeError(sections.head, "one value as the body")
    body = payload[sections.head :]
    value = next(body_sections(sections, body))
    return body[value.begin : value.end]
