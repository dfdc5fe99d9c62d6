# mypyc compiles this module.
"""The head of a message that came by STOMP: its header lines, escaped as STOMP 1.2 does.

They are stored as they came, whatever version the client spoke, and go to STOMP clients as they
are. Other readers get them as ``Fields``; a message that came by another protocol gets its lines
made of its fields.
"""

from collections.abc import Iterator, Mapping
from typing import Final

from orthia.broker.protocols.stomp.frames import (
    ProtocolError,
    Version,
    escape,
    is_whole_number,
    unescape,
)
from orthia.config.address_settings import RoutingType
from orthia.journal.model.encodings import FIRST_ENCODING, Content, Encoding
from orthia.journal.model.fields import Fields, Property, decode_fields
from orthia.journal.model.message import DEFAULT_PRIORITY, Message

TAG: Final = FIRST_ENCODING
_STANDARD: Final = frozenset(
    {
        *("content-type", "correlation-id", "expires", "persistent", "priority", "reply-to"),
        *("type", "JMSXGroupID", "JMSXGroupSeq"),
    }
)
"""Headers with a meaning in STOMP, or in Artemis' mapping of it to JMS: not properties."""
_BY_JMS: Final = {
    "type": "JMSType",
    "correlation-id": "JMSCorrelationID",
    "reply-to": "JMSReplyTo",
    "content-type": "_AMQ_CONTENT_TYPE",
    "_AMQ_GROUP_ID": "JMSXGroupID",
    "_AMQ_GROUP_SEQUENCE": "JMSXGroupSeq",
    "_AMQ_VALIDATED_USER": "JMSXUserID",
    "ingress-timestamp": "_AMQ_INGRESS_TIMESTAMP",
}
"""The names that Artemis' filters have for a STOMP client's headers; the others are properties."""
_BROKERS_OWN: Final = "_AMQ_"
_OF_A_FRAME: Final = frozenset(
    {
        *("ack", "browser", "content-length", "destination", "message-id", "receipt"),
        *("receipt-id", "redelivered", "subscription", "timestamp", "transaction"),
    }
)
"""What a MESSAGE says itself: a property of such a name would have clients read it as another."""
_NOT_SHOWN: Final = "\0\r\n\t "
"""Around a name these are lost on the way to some clients."""
_STRUCTURES: Final = ("map", "stream", "value")
"""Kinds of bodies that a STOMP client gets as JSON."""
_ROUTING_TYPES: Final = {one.value: one for one in RoutingType}
_DEFAULTS: Final = b"expires:0\npersistent:true\npriority:%d\n" % DEFAULT_PRIORITY


class StompEncoding(Encoding):
    """Reads and changes header lines."""

    @property
    def tag(self) -> int:
        """That of records from before there were tags, which hold such lines."""
        return TAG

    @property
    def is_typed(self) -> bool:
        """Return False: all values are texts."""
        return False

    def fields(self, head: bytes) -> Fields:
        """Return the fields of header lines; every property is a text."""
        return fields_of(headers_map(head))

    def properties(self, head: bytes) -> Mapping[str, Property]:
        """Return the values of header lines as texts, by their own names and those of JMS."""
        said = headers_map(head)
        headers: dict[str, Property] = dict(said)
        if _is_false(said.get("persistent")):
            headers["JMSDeliveryMode"] = "NON_PERSISTENT"
        for name, jms_name in _BY_JMS.items():
            if name in headers:
                headers[jms_name] = headers[name]
        return headers

    def relocated(self, head: bytes, origin: Mapping[str, str]) -> bytes:
        """Return the lines of a message that was moved, those of its origin last."""
        said = (b"_AMQ_ORIG_", b"_AMQ_ACTUAL_EXPIRY:", b"expires:")
        return _not_beginning(head, said) + header_lines(origin)

    def expiring(self, head: bytes, expires_ms: int) -> bytes:
        """Return the lines with a new ``expires``."""
        return b"%bexpires:%d\n" % (_not_beginning(head, (b"expires:",)), expires_ms)

    def prioritized(self, head: bytes, priority: int) -> bytes:
        """Return the lines with a new ``priority``, if they have one."""
        if b"priority:" not in head:
            return head
        return b"%bpriority:%d\n" % (_not_beginning(head, (b"priority:",)), priority)

    def may_name_group(self, head: bytes) -> bool:
        """Return whether lines may have ``JMSXGroupID`` or ``_AMQ_GROUP_ID``."""
        return head.find(b"ID:") >= 0

    def content(self, head: bytes, body: bytes) -> Content:
        """Return the body as it came: STOMP does not say what it is."""
        del head
        return Content("", body)

    def stamped(self, head: bytes, ingress_ms: int) -> bytes:
        """Return the lines with ``ingress-timestamp``, which no sender may set."""
        return b"%bingress-timestamp:%d\n" % (head, ingress_ms)


def fields_of(headers: Mapping[str, str]) -> Fields:
    """Return the fields of a STOMP client's headers; every property is a text."""
    get = headers.get
    return Fields(
        routing_type=_ROUTING_TYPES.get(get("destination-type", "").upper()),
        durable=not _is_false(get("persistent")),
        group=get("_AMQ_GROUP_ID", get("JMSXGroupID")),
        duplicate_id=get("_AMQ_DUPL_ID"),
        correlation_id=get("correlation-id"),
        reply_to=get("reply-to"),
        content_type=get("content-type"),
        user_id=get("_AMQ_VALIDATED_USER", get("JMSXUserID")),
        subject=get("type"),
        group_sequence=_sequence(get("_AMQ_GROUP_SEQUENCE", get("JMSXGroupSeq"))),
        properties={
            name: value
            for name, value in headers.items()
            if name not in _STANDARD and not name.startswith(_BROKERS_OWN)
        },
    )


def head_for(message: Message) -> bytes:
    """Return a message's header lines for a STOMP client: as they came, if it came by STOMP.

    Raises ValueError if it came by another protocol, and cannot be read.
    """
    if message.encoding == TAG:
        if not message.stated:
            return message.head
        stated = decode_fields(message.stated).properties
        return _without(message.head, stated) + header_lines(dict(property_texts(stated)))
    return header_lines(dict(_headers_of(message)))


def parts_for(message: Message) -> tuple[bytes, bytes]:
    """Return a message's header lines and its body for a STOMP client; no body of a large one.

    A head of another protocol that cannot be read has no lines, and a body is as it came.
    """
    if message.encoding == TAG:
        return head_for(message), message.body
    try:
        head = head_for(message)
    except ValueError:
        return b"", message.body
    if message.large is not None:
        return head, b""
    try:
        kind, body = message.content()
    except ValueError:
        return head, message.body
    if kind in _STRUCTURES and b"content-type:" not in head:
        head += b"content-type:application/json\n"
    return head, body


def default_lines(routing_type: RoutingType) -> bytes:
    """Return the header lines that Artemis adds to a MESSAGE whose sender set none of them."""
    return b"destination-type:%b\n%b" % (routing_type.value.encode(), _DEFAULTS)


def may_say_defaults(head: bytes) -> bool:
    """Return whether header lines may have any header of ``default_lines``.

    Asked for every MESSAGE that has lines: ``find`` takes half as long as ``in``, or a pattern.
    """
    find = head.find
    return (
        find(b"persistent:") >= 0
        or find(b"priority:") >= 0
        or find(b"expires:") >= 0
        or find(b"destination-type:") >= 0
    )


def defaults_not_said(head: bytes, lines: bytes) -> bytes:
    """Return those of the default ``lines`` whose headers the head does not have."""
    said = {line.partition(b":")[0] for line in head.split(b"\n")}
    kept = (line for line in lines.splitlines(keepends=True) if line.partition(b":")[0] not in said)
    return b"".join(kept)


def header_lines(headers: Mapping[str, str]) -> bytes:
    """Return ``headers`` as lines; a NUL, which STOMP cannot express, becomes a space."""
    return b"".join(
        b"%b:%b\n"
        % (escape(name.encode(), Version.V1_2, is_key=True), escape(value.encode(), Version.V1_2))
        for name, value in headers.items()
    )


def headers_map(head: bytes) -> dict[str, str]:
    """Return header lines as a mapping; the first of repeated headers counts.

    Raises ValueError if a line has no colon, an escape STOMP 1.2 does not know, or is no UTF-8.
    """
    text = head.decode()
    decoded: dict[str, str] = {}
    if "\\" not in text:  # nothing is escaped, as in most
        for written in text.split("\n"):
            name, separator, said = written.partition(":")
            if separator:
                decoded.setdefault(name, said)
            elif written:
                raise ValueError(f"the header line {written!r} has no colon")
        return decoded
    for line in head.split(b"\n"):
        if line:
            key, colon, value = line.partition(b":")
            if not colon:
                raise ValueError(f"the header line {line.decode()!r} has no colon")
            decoded.setdefault(_text(key), _text(value))
    return decoded


def _sequence(text: str | None) -> int | None:
    """Return a group sequence that is a number of 32 bits; None for anything else."""
    if text is None:
        return None
    digits = text.removeprefix("-")
    if not is_whole_number(digits) or not -(2**31) <= int(text) < 2**31:
        return None
    return int(text)


def _is_false(text: str | None) -> bool:
    """Return whether a ``persistent`` that was accepted is false."""
    return text is not None and text.strip().lower() == "false"


def _text(raw: bytes) -> str:
    try:
        return unescape(raw, Version.V1_2).decode()
    except ProtocolError as error:
        raise ValueError(f"{error}, in {raw.decode()!r}") from None


def _not_beginning(head: bytes, beginnings: tuple[bytes, ...]) -> bytes:
    return b"".join(
        line + b"\n" for line in head.split(b"\n") if line and not line.startswith(beginnings)
    )


def _without(head: bytes, names: Mapping[str, object]) -> bytes:
    keys = {escape(name.encode(), Version.V1_2, is_key=True) for name in names}
    lines = (line for line in head.split(b"\n") if line and line.partition(b":")[0] not in keys)
    return b"".join(line + b"\n" for line in lines)


def _headers_of(message: Message) -> Iterator[tuple[str, str]]:
    """Yield the headers of a message that came by another protocol, the standard ones last."""
    fields = message.fields()
    for name, value in property_texts(fields.properties):
        if name.strip(_NOT_SHOWN) not in _OF_A_FRAME:
            yield name, value
    said = {
        "content-type": fields.content_type,
        "correlation-id": fields.correlation_id,
        "reply-to": fields.reply_to,
        "type": fields.subject,
        "JMSXGroupID": fields.group,
        "JMSXGroupSeq": None if fields.group_sequence is None else str(fields.group_sequence),
        "_AMQ_DUPL_ID": fields.duplicate_id,
        "JMSXUserID": fields.user_id,
        "destination-type": None if fields.routing_type is None else fields.routing_type.value,
        "persistent": "false" if fields.durable is False else None,
        "expires": str(message.expires_ms) if message.expires_ms else None,
        "priority": str(message.priority) if message.priority != DEFAULT_PRIORITY else None,
        "_AMQ_SCHED_DELIVERY": None if fields.delivery_ms is None else str(fields.delivery_ms),
        "JMSMessageID": fields.id,
    }
    yield from ((name, value) for name, value in said.items() if value is not None)


def property_texts(properties: Mapping[str, Property]) -> Iterator[tuple[str, str]]:
    """Yield properties as header texts; bytes in hexadecimal."""
    for name, value in properties.items():
        if isinstance(value, bytes):
            yield name, value.hex()
        elif isinstance(value, bool):
            yield name, str(value).lower()
        else:
            yield name, str(value)
