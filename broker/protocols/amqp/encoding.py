# mypyc compiles this module.
"""The head of a message that came by AMQP: its sections before the body, as they came.

They go to AMQP clients as they are. Other readers get them as ``Fields``; a message that came by
another protocol gets sections made of its fields. The table of what becomes of what is in
docs/amqp.md.
"""

import json
import math
from collections.abc import Mapping
from typing import Any, Final
from uuid import UUID

from orthia.broker.protocols.amqp.sections import (
    DATA,
    FOOTER,
    NO_BODY,
    SEQUENCE,
    Header,
    Properties,
    Sections,
    application_properties_of,
    body_sections,
    data_prefix,
    decode_body,
    encode_annotations,
    encode_application_properties,
    encode_header,
    encode_properties,
    header_of,
    message_annotations_of,
    properties_of,
    sections_of,
    text_prefix,
    with_annotations,
    with_application_properties,
    with_header,
    with_properties,
)
from orthia.broker.protocols.amqp.types import (
    LIST_0,
    LIST_8,
    LIST_32,
    MAP_8,
    MAP_32,
    NULL,
    STRING_8,
    STRING_32,
    has_more_values,
)
from orthia.broker.protocols.amqp.values import (
    AmqpError,
    Array,
    Byte,
    Decimal,
    Described,
    Int,
    Symbol,
    Timestamp,
    ULong,
    Value,
    plain_float,
    plain_int,
    plain_text,
)
from orthia.config.address_settings import RoutingType
from orthia.journal.model.encodings import SECOND_ENCODING, Content, Encoding
from orthia.journal.model.fields import Fields, Property, decode_fields
from orthia.journal.model.message import Message

TAG: Final = SECOND_ENCODING
OBJECT_TYPE: Final = "application/x-java-serialized-object"
"""The content type of a serialized object of Java."""
MESSAGE_TYPE: Final = Symbol("x-opt-jms-msg-type")
DESTINATION_TYPE: Final = Symbol("x-opt-jms-dest")
ROUTING_TYPE: Final = Symbol("x-opt-routing-type")
INGRESS_TIME: Final = Symbol("x-opt-ingress-time")
_JMS_OBJECT: Final = 1
_JMS_BYTES: Final = 3
_JMS_TEXT: Final = 5
_BROKERS: Final = "_AMQ_"
_ANNOTATION: Final = "x-opt-"
_ORIGIN: Final = "x-opt-ORIG-"
_ACTUAL_EXPIRY: Final = "x-opt-ACTUAL-EXPIRY"
_ORIGINS_AS_BYTES: Final = (_ORIGIN.encode(), _ACTUAL_EXPIRY.encode())
_ORIGINS: Final = ("_AMQ_ORIG_", "_AMQ_ACTUAL_EXPIRY")
"""What properties begin with that say the same, of a message that came by another protocol."""
_INGRESS: Final = "_AMQ_INGRESS_TIMESTAMP"
_STATED_INGRESS: Final = ("_AMQ_INGRESS_TIMESTAMP", "ingress-timestamp")
_DUPLICATE_ID: Final = "_AMQ_DUPL_ID"
_NUMBERS: Final = frozenset({"_AMQ_ORIG_MESSAGE_ID", "_AMQ_ACTUAL_EXPIRY"})
"""What Artemis writes as numbers of what says where a message was."""
_BY_JMS_DESTINATION: Final = (
    *(RoutingType.ANYCAST, RoutingType.MULTICAST),  # a queue, a topic
    *(RoutingType.ANYCAST, RoutingType.MULTICAST),  # temporary ones
)
_BY_ARTEMIS: Final = (RoutingType.MULTICAST, RoutingType.ANYCAST)
_LARGEST: Final = 2**63
_LARGEST_INT: Final = 2**31
_TEXTUAL: Final = ("text/", "application/json", "application/xml", "application/javascript")
_TEXTUAL_ENDS: Final = ("+json", "+xml")
_STRUCTURES_BYTES: Final = 65_536
"""How long a map or a list may be, encoded, of which its values are shown."""
_STRUCTURES_VALUES: Final = 512
"""How many values it may have then, those in others too: each delivery shows them anew."""
_NOT_PASSED_ON: Final = ("_AMQ_", "JMSX")
_NOT_APPLICATIONS: Final = frozenset(
    {"destination-type", "ingress-timestamp", "original-destination", "priority"}
)
"""Headers of STOMP that say what AMQP says elsewhere, or what the broker alone says."""


class AmqpEncoding(Encoding):
    """Reads and changes sections."""

    @property
    def tag(self) -> int:
        """That of records of version 4."""
        return TAG

    @property
    def is_typed(self) -> bool:
        """Return True: each value has its type."""
        return True

    def fields(self, head: bytes) -> Fields:
        """Return the fields of a head; raises AmqpDecodeError."""
        sections = sections_of(head)
        properties = properties_of(head, sections)
        annotations = message_annotations_of(head, sections)
        applications = _applications(head, sections)
        duplicate_id = applications.get(_DUPLICATE_ID)
        applications = {
            name: value
            for name, value in applications.items()
            if not name.startswith(_NOT_PASSED_ON) and name not in _NOT_APPLICATIONS
        }
        applications.update(_brokers(annotations))
        user, content_type = properties.user_id, properties.content_type
        return Fields(
            id=None if properties.message_id is None else id_text(properties.message_id),
            routing_type=_routing_type(annotations),
            durable=header_of(head, sections).durable,
            group=properties.group_id,
            group_sequence=_sequence(properties),
            duplicate_id=None if duplicate_id is None else str(duplicate_id),
            correlation_id=_correlation_text(properties.correlation_id),
            reply_to=properties.reply_to,
            content_type=None if content_type is None else plain_text(content_type),
            user_id=None if user is None else user.decode(errors="replace"),
            subject=properties.subject,
            properties=applications,
        )

    def properties(self, head: bytes) -> Mapping[str, Property]:
        """Return what a head says by the names of JMS and Artemis; raises AmqpDecodeError.

        Its annotations have ``m.`` before their names, and its creation time is ``JMSTimestamp``.
        """
        sections = sections_of(head)
        properties = properties_of(head, sections)
        said = {
            name: value
            for name, value in _applications(head, sections).items()
            if not name.startswith(_ORIGINS)  # which its annotations say, from the broker
        }
        if sections.message_annotations > sections.delivery_annotations:
            annotations = message_annotations_of(head, sections)
            said.update(_brokers(annotations))
            for name, value in annotations.items():
                shown = _property(value)
                if shown is not None:
                    said[f"m.{name}"] = shown
        if not header_of(head, sections).durable:
            said["JMSDeliveryMode"] = "NON_PERSISTENT"
        if properties.message_id is not None:
            said["JMSMessageID"] = id_text(properties.message_id)
        if properties.correlation_id is not None:
            said["JMSCorrelationID"] = _correlation_text(properties.correlation_id) or ""
        if properties.subject is not None:
            said["JMSType"] = properties.subject
        if properties.reply_to is not None:
            said["JMSReplyTo"] = properties.reply_to
        if properties.group_id is not None:
            said["JMSXGroupID"] = properties.group_id
        sequence = _sequence(properties)
        if sequence is not None:
            said["JMSXGroupSeq"] = sequence
        if properties.user_id is not None:
            said["JMSXUserID"] = properties.user_id.decode(errors="replace")
        if properties.content_type is not None:
            said["_AMQ_CONTENT_TYPE"] = plain_text(properties.content_type)
        if properties.creation_time is not None:
            said["JMSTimestamp"] = plain_int(properties.creation_time)
        return said

    def relocated(self, head: bytes, origin: Mapping[str, str]) -> bytes:
        """Return the head with annotations that say where the message was."""
        try:
            sections = sections_of(head)
            annotations: dict[Symbol, Value] = {
                Symbol(name): None
                for name in map(str, message_annotations_of(head, sections))
                if _is_origin(name)
            }
            for name, value in origin.items():
                annotations[_annotation(name)] = _origin_value(name, value)
            if annotations:
                head = with_annotations(head, sections, annotations)
        except AmqpError:
            return head
        return self.expiring(head, 0)

    def expiring(self, head: bytes, expires_ms: int) -> bytes:
        """Return the head with another absolute expiry time, and without a time to live."""
        try:
            return _expiring(head, expires_ms)
        except AmqpError:
            return head

    def prioritized(self, head: bytes, priority: int) -> bytes:
        """Return the head with another priority in its header."""
        try:
            sections = sections_of(head)
            header = header_of(head, sections)._replace(priority=priority)
            return with_header(head, sections, header)
        except AmqpError:
            return head

    def may_name_group(self, head: bytes) -> bool:
        """Return False: the group of such a message is among what is stated of it, too."""
        del head
        return False

    def content(self, head: bytes, body: bytes) -> Content:
        """Return the body as it is, if it is a text or bytes; all else as JSON.

        A map or a list of more than 64 KiB is left encoded. Raises AmqpDecodeError.
        """
        return _content(head, body)

    def stamped(self, head: bytes, ingress_ms: int) -> bytes:
        """Return the head with the annotation of when the broker took the message."""
        try:
            return with_annotations(head, sections_of(head), {INGRESS_TIME: ingress_ms})
        except AmqpError:
            return head


# --- what a head says


def id_text(value: Value) -> str:
    """Return a message id as JMS clients see it: ``ID:`` and, of what is no text, its type."""
    if isinstance(value, str):
        return plain_text(value) if value.startswith("ID:") else f"ID:AMQP_NO_PREFIX:{value}"
    return _typed_id(value)


def _correlation_text(value: Value) -> str | None:
    if value is None:
        return None
    return plain_text(value) if isinstance(value, str) else _typed_id(value)


def _typed_id(value: Value) -> str:
    if isinstance(value, bytes):
        return f"ID:AMQP_BINARY:{value.hex().upper()}"
    if isinstance(value, UUID):
        return f"ID:AMQP_UUID:{value}"
    if isinstance(value, int):
        return f"ID:AMQP_ULONG:{int(value)}"
    return f"ID:AMQP_NO_PREFIX:{value}"


def id_value(text: str) -> Value:
    """Return what an id is in AMQP that other protocols have as a text; see ``id_text``."""
    if text.startswith("ID:AMQP_"):
        kind, _, rest = text[len("ID:AMQP_") :].partition(":")
        try:
            if kind == "BINARY":
                return bytes.fromhex(rest)
            if kind == "UUID":
                return UUID(rest)
            if kind == "ULONG" and rest.isdecimal() and int(rest) < 2**64:
                return ULong(rest)
        except ValueError:
            return text
        if kind in ("NO_PREFIX", "STRING"):
            return rest
    return text


def _sequence(properties: Properties) -> int | None:
    """Return a group sequence as JMS has it, with a sign."""
    sequence = properties.group_sequence
    if sequence is None:
        return None
    return sequence - 2**32 if sequence >= 2**31 else sequence


def _applications(head: bytes, sections: Sections) -> dict[str, Property]:
    said: dict[str, Property] = {}
    for name, value in application_properties_of(head, sections).items():
        shown = _property(value)
        if shown is not None:
            said[str(name)] = shown
    return said


def _property(value: Value) -> Property | None:
    """Return a value as a property; None for null, and for what no property may be."""
    if isinstance(value, bool):
        return value
    if isinstance(value, int):
        number = plain_int(value)
        return number if -_LARGEST <= number < _LARGEST else float(number)
    if isinstance(value, float):
        return plain_float(value)
    if isinstance(value, str):
        return plain_text(value)
    if isinstance(value, bytes):
        return value
    if isinstance(value, UUID):
        return str(value)
    return value.raw if isinstance(value, Decimal) else None


def _routing_type(annotations: Mapping[object, Value]) -> RoutingType | None:
    said = annotations.get(ROUTING_TYPE)
    if isinstance(said, int) and 0 <= said < len(_BY_ARTEMIS):
        return _BY_ARTEMIS[said]
    said = annotations.get(DESTINATION_TYPE)
    if isinstance(said, int) and 0 <= said < len(_BY_JMS_DESTINATION):
        return _BY_JMS_DESTINATION[said]
    return None


def _brokers(annotations: Mapping[object, Value]) -> dict[str, Property]:
    """Return the annotations that brokers add, by the names that they have as properties."""
    said: dict[str, Property] = {}
    for name, value in annotations.items():
        if isinstance(name, str) and value is not None:
            shown = str(value.hex() if isinstance(value, bytes) else value)
            if _is_origin(name):
                said[_BROKERS + name[len(_ANNOTATION) :].replace("-", "_")] = shown
            elif name == INGRESS_TIME:
                said[_INGRESS] = shown
    return said


def without_origin(head: bytes, sections: Sections) -> bytes:
    """Return a head without annotations that say where the message was: a broker says that.

    What goes back to where it was is checked for no permission. Raises AmqpDecodeError.
    """
    begin, end = sections.delivery_annotations, sections.message_annotations
    if not any(head.find(name, begin, end) >= 0 for name in _ORIGINS_AS_BYTES):
        return head
    there = message_annotations_of(head, sections)
    said = [name for name in there if _is_origin(str(name))]
    return with_annotations(head, sections, {Symbol(name): None for name in said})


def _is_origin(annotation: str) -> bool:
    return annotation.startswith(_ORIGIN) or annotation == _ACTUAL_EXPIRY


def _annotation(name: str) -> Symbol:
    return Symbol(_ANNOTATION + name.removeprefix(_BROKERS).replace("_", "-"))


def _origin_value(name: str, value: str) -> Value:
    return int(value) if name in _NUMBERS and value.isdecimal() else value


def _expiring(head: bytes, expires_ms: int) -> bytes:
    sections = sections_of(head)
    header = header_of(head, sections)
    if header.ttl is not None:
        head = with_header(head, sections, header._replace(ttl=None))
        sections = sections_of(head)
    properties = properties_of(head, sections)
    expires = Timestamp(expires_ms) if expires_ms else None
    if properties.absolute_expiry_time == expires:
        return head
    return with_properties(head, sections, properties._replace(absolute_expiry_time=expires))


# --- bodies


def is_textual(content_type: str) -> bool:
    """Return whether a content type is of a text."""
    kind = content_type.partition(";")[0].strip().lower()
    return kind.startswith(_TEXTUAL) or kind.endswith(_TEXTUAL_ENDS)


def _content(head: bytes, body: bytes) -> Content:
    sections = sections_of(head)
    code, form = sections.body, sections.code
    if code == NO_BODY:
        first = next(body_sections(sections, body), None)
        if first is not None and first.code != FOOTER:
            code, form = first.code, first.form
    if code == NO_BODY:
        return Content("none", b"")
    if code == SEQUENCE or form in (LIST_0, LIST_8, LIST_32):
        return _structure("stream", sections, body)
    if form in (MAP_8, MAP_32):
        return _structure("map", sections, body)
    if form in (STRING_8, STRING_32) or form == NULL:
        return Content("text", _bytes_of(sections, body))
    if sections.first < 0 and code != DATA:
        return _structure("value", sections, body)
    return Content(_kind_of_bytes(head, sections), _bytes_of(sections, body))


def _bytes_of(sections: Sections, body: bytes) -> bytes:
    if sections.first == len(body):
        return body
    value = decode_body(sections, body).value
    if isinstance(value, str):
        return value.encode()
    return value if isinstance(value, bytes) else b""


def _kind_of_bytes(head: bytes, sections: Sections) -> str:
    content_type = properties_of(head, sections).content_type
    if content_type is not None:
        if content_type == OBJECT_TYPE:
            return "object"
        if is_textual(content_type):
            return "text"
    if message_annotations_of(head, sections).get(MESSAGE_TYPE) == _JMS_OBJECT:
        return "object"
    return "bytes"


def _structure(kind: str, sections: Sections, body: bytes) -> Content:
    if len(body) > _STRUCTURES_BYTES or has_more_values(body, 0, len(body), _STRUCTURES_VALUES):
        for _ in body_sections(sections, body):
            pass
        return Content(kind, body)
    shown = _shown(decode_body(sections, body).value)
    return Content(kind, json.dumps(shown, ensure_ascii=False, separators=(",", ":")).encode())


def _shown(value: Any) -> object:
    """Return a value as JSON has it; as properties are stored, what JSON has no type for."""
    if isinstance(value, dict):
        return {str(_shown(key)): _shown(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_shown(one) for one in value]
    if isinstance(value, Array):
        return [_shown(one) for one in value.values]
    if isinstance(value, Described):
        return {"descriptor": _shown(value.descriptor), "value": _shown(value.value)}
    if isinstance(value, Decimal):
        return {"bytes": value.raw.hex()}
    if isinstance(value, bytes):
        return {"bytes": value.hex()}
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": str(float(value))}
    if isinstance(value, UUID):
        return str(value)
    return value


# --- for AMQP clients


def head_for(message: Message, seq: int = 0) -> bytes:
    """Return a message's sections before its body for an AMQP client; raises AmqpError.

    If it came by AMQP they are as they came, with stated properties beside the application's, and a
    stated user in place of the one that its sender says. If not, ``seq`` is what the message is
    called, as STOMP clients see it.
    """
    if message.encoding != TAG:
        return _head_of(message, seq)
    head = message.head
    if not message.stated:
        return head
    fields = decode_fields(message.stated)
    if fields.user_id is not None:
        sections = sections_of(head)
        said = properties_of(head, sections)._replace(user_id=fields.user_id.encode())
        head = with_properties(head, sections, said)
    if fields.properties:
        sections = sections_of(head)
        there = application_properties_of(head, sections)
        for name, value in fields.properties.items():
            there[name] = _value(value)
        head = with_application_properties(head, sections, there)
    return head


def _head_of(message: Message, seq: int) -> bytes:
    """Return the sections of a message that came by another protocol."""
    try:
        fields, said = message.fields(), message.properties()
    except ValueError:
        fields, said = Fields(), {}
    is_text = _is_text(message, fields.content_type)
    annotations: dict[object, Value] = {MESSAGE_TYPE: Byte(_JMS_TEXT if is_text else _JMS_BYTES)}
    for name, value in said.items():
        if name.startswith("_AMQ_ORIG_") or name == "_AMQ_ACTUAL_EXPIRY":
            annotations[_annotation(name)] = _origin_value(name, str(value))
        elif name in _STATED_INGRESS and str(value).isdecimal():
            annotations[INGRESS_TIME] = int(str(value))
    if fields.routing_type is not None:
        is_topic = fields.routing_type is RoutingType.MULTICAST
        annotations[DESTINATION_TYPE] = Byte(1 if is_topic else 0)
    applications = {
        name: _value(value)
        for name, value in fields.properties.items()
        if not name.startswith(_NOT_PASSED_ON) and name not in _NOT_APPLICATIONS
    }
    if fields.duplicate_id is not None:
        applications[_DUPLICATE_ID] = fields.duplicate_id
    header = Header(durable=fields.durable is not False, priority=message.priority)
    prefix = text_prefix(message.body_size) if is_text else data_prefix(message.body_size)
    return b"".join(
        (
            encode_header(header),
            encode_annotations(annotations),
            encode_properties(_properties_of(message, fields, seq)),
            encode_application_properties(applications),
            prefix,
        )
    )


def _properties_of(message: Message, fields: Fields, seq: int) -> Properties:
    content_type = fields.content_type
    sequence = fields.group_sequence
    message_id = fields.id if fields.id is not None else f"ID:{seq}"
    return Properties(
        message_id=id_value(message_id) if message_id != "ID:0" else None,
        user_id=None if fields.user_id is None else fields.user_id.encode(),
        to=message.address,
        subject=fields.subject,
        reply_to=fields.reply_to,
        correlation_id=None if fields.correlation_id is None else id_value(fields.correlation_id),
        content_type=(
            Symbol(content_type) if content_type is not None and content_type.isascii() else None
        ),
        absolute_expiry_time=Timestamp(message.expires_ms) if message.expires_ms else None,
        creation_time=Timestamp(message.timestamp_ms),
        group_id=fields.group,
        group_sequence=None if sequence is None else sequence & 0xFFFFFFFF,
    )


def _is_text(message: Message, content_type: str | None) -> bool:
    """Return whether a body that another protocol brought is a text for JMS."""
    if content_type is not None and not is_textual(content_type):
        return False
    if message.large is not None:
        return False  # whether it is in UTF-8 is seen when it is read only
    try:
        message.body.decode()
    except UnicodeDecodeError:
        return False
    return True


def _value(value: Property) -> Value:
    """Return a property with the type of AMQP that JMS reads it as."""
    if isinstance(value, bool) or not isinstance(value, int):
        return value
    if -_LARGEST_INT <= value < _LARGEST_INT:
        return Int(value)  # not in one expression with the other: compiled, that is a plain int
    return value
