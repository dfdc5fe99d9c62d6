# mypyc compiles this module.
"""What a message says of itself beside its body, in the terms that every protocol has."""

import json
import math
import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple, TypeAlias

from orthia.config.address_settings import RoutingType

Property: TypeAlias = str | int | float | bool | bytes
"""A value of an application property; an integer has 64 bits, and a sign."""
_NO_PROPERTIES: Final[Mapping[str, Property]] = {}
_INTEGERS: Final = range(-(2**63), 2**63)
_TEXTS: Final = (
    *("id", "group", "duplicate_id", "correlation_id"),
    *("reply_to", "content_type", "user_id", "recurrence", "client_id", "subject"),
)
_NOT_FINITE: Final = ("nan", "inf", "-inf")
_ONLY_WHEN: Final = re.compile(rb'\{"delivery-ms":(0|[1-9][0-9]{,17})\}')
"""What most messages state that are delivered later: read so, it costs a seventh of JSON."""


class Fields(NamedTuple):
    """None is what a message does not say."""

    id: str | None = None
    """What its sender calls it. The broker's own name for it is its place in the journal."""
    routing_type: RoutingType | None = None
    """The one the sender asked for."""
    durable: bool | None = None
    """False if it need not outlive the node, as its sender said."""
    delivery_ms: int | None = None
    """Before when it is not to be delivered, milliseconds since 1970 UTC."""
    recurrence: str | None = None
    """How often it is delivered again after that, as ``broker.core.sending.recurrence`` writes it.
    """
    client_id: str | None = None
    """Whose connection sent it; kept only of what is delivered later."""
    group: str | None = None
    duplicate_id: str | None = None
    """By which a message that is sent a second time is known."""
    correlation_id: str | None = None
    reply_to: str | None = None
    content_type: str | None = None
    user_id: str | None = None
    """Who sent it."""
    subject: str | None = None
    """What kind of message its sender says it is: JMS' type."""
    group_sequence: int | None = None
    """Its number in its group; -1 says that it is the last of it."""
    properties: Mapping[str, Property] = _NO_PROPERTIES
    """The application's own; not to be changed."""

    def over(self, said: "Fields") -> "Fields":
        """Return these fields, and of ``said`` what they do not say."""
        ours = {name: value for name, value in self._asdict().items() if value is not None}
        return said._replace(**ours | {"properties": {**said.properties, **self.properties}})


NOTHING_SAID: Final = Fields()


def encode_fields(fields: Fields) -> bytes:
    """Return the stored form of ``fields``, a JSON document; empty if they say nothing.

    Raises ValueError for what cannot be stored: half a character, an integer of more than 64 bits.
    """
    document: dict[str, object] = {
        name.replace("_", "-"): value
        for name, value in fields._asdict().items()
        if value is not None and name not in ("routing_type", "properties")
    }
    if fields.routing_type is not None:
        document["routing-type"] = fields.routing_type.value
    for number in (fields.delivery_ms, fields.group_sequence):
        if number is not None:
            _written(number)
    if fields.properties:
        document["properties"] = {
            name: _written(value) for name, value in fields.properties.items()
        }
    if not document:
        return b""
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode()


def decode_fields(stored: bytes) -> Fields:
    """Return the fields stored as ``stored``; raises ValueError for what was never stored."""
    if not stored:
        return NOTHING_SAID
    only_when = _ONLY_WHEN.fullmatch(stored)
    if only_when is not None:
        return Fields(delivery_ms=int(only_when[1]))
    try:
        document = json.loads(stored)
    except (ValueError, RecursionError):
        raise ValueError("its stated fields are not JSON") from None
    if not isinstance(document, dict):
        raise ValueError("its stated fields are not a JSON object")  # noqa: TRY004 - of the record
    routing_type = _of_kind(document, "routing-type", str)
    properties = document.get("properties", {})
    if not isinstance(properties, dict):
        raise ValueError("its stated properties are not a JSON object")  # noqa: TRY004
    delivery_ms = _of_kind(document, "delivery-ms", int)
    group_sequence = _of_kind(document, "group-sequence", int)
    return Fields(
        **{name: _of_kind(document, name.replace("_", "-"), str) for name in _TEXTS},
        routing_type=None if routing_type is None else RoutingType(routing_type),
        durable=_of_kind(document, "durable", bool),
        delivery_ms=None if delivery_ms is None else int(_read(delivery_ms)),
        group_sequence=None if group_sequence is None else int(_read(group_sequence)),
        properties={_text(name): _read(value) for name, value in properties.items()},
    )


def properties_of(fields: Fields) -> Mapping[str, Property]:
    """Return what fields say by the names that ``Encoding.properties`` has."""
    said = {
        "JMSMessageID": fields.id,
        "JMSType": fields.subject,
        "JMSXGroupID": fields.group,
        "JMSXGroupSeq": fields.group_sequence,
        "_AMQ_DUPL_ID": fields.duplicate_id,
        "JMSCorrelationID": fields.correlation_id,
        "JMSReplyTo": fields.reply_to,
        "_AMQ_CONTENT_TYPE": fields.content_type,
        "JMSXUserID": fields.user_id,
        "JMSDeliveryMode": "NON_PERSISTENT" if fields.durable is False else None,
    }
    known = {name: value for name, value in said.items() if value is not None}
    return {**fields.properties, **known}


def _of_kind(document: Mapping[str, Any], name: str, kind: type) -> Any:
    value = document.get(name)
    if value is None:
        return None
    if type(value) is not kind:
        raise ValueError(f"its stated field {name!r} is {value!r:.80}")
    return _text(value) if isinstance(value, str) else value


def _text(value: str) -> str:
    value.encode()  # JSON can name half a character, which is no text: a ValueError too
    return value


def _written(value: Property) -> object:
    if isinstance(value, bytes):
        return {"bytes": value.hex()}
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": str(value)}
    if isinstance(value, int) and value not in _INTEGERS:
        raise ValueError(f"the integer {value} has more than 64 bits")
    return value


def _read(value: object) -> Property:
    match value:
        case {"bytes": str(digits)}:
            return bytes.fromhex(digits)
        case {"float": str(name)} if name in _NOT_FINITE:
            return float(name)
        case str():
            return _text(value)
        case bool() | float():
            return value
        case int() if value in _INTEGERS:
            return value
    raise ValueError(f"{value!r:.80} is no value of a property")
