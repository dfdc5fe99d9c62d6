# mypyc compiles this module.
"""The bytes in the ``record`` column of what is no message, versioned.

``orthia.journal.model.message`` has the messages. Everything else is small and rare::

    version u8 | CRC-32 of the document, u32 | JSON document

A document is written in version 1 unless a node that knows no other would do something else than it
says. That is so of a queue with options, or without its owner's own messages, which is version 2:
an older node refuses the journal, and does not take the queue for a plain one. Version 3 are last
value queues, and the bindings of messages of one priority, which are kept by themselves: nodes that
read version 2 did not know what to do with either. Version 4 are non-destructive queues. Fields of
version 1 that older nodes pass over change nothing of what is in a queue.

A decoder takes the row's ``seq`` only to name it in the ``CorruptRecord`` it raises.
"""

import struct
import zlib
from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import Any, Final, NamedTuple

from orthia.config.address_settings import RoutingType
from orthia.config.queues import PLAIN, QueueOptions
from orthia.journal.errors import CorruptRecord
from orthia.journal.model.document import (
    FIRST_VERSION,
    Document,
    encode_document,
    read_document,
    seal,
)
from orthia.journal.model.message import NEWEST_VERSION
from orthia.journal.model.records import ID_COUNTER_SEQ, UserRecordType
from orthia.journal.model.xid import Xid

_WITH_OPTIONS: Final = 2
"""Of a queue's binding that older nodes would take for that of a plain queue."""
_OF_VALUES_OR_PRIORITY: Final = 3
"""Of one whose messages replace one another, which nodes that know the option did nothing for; and
of one that is a part of a queue, which they would take for a queue of its own."""
_NON_DESTRUCTIVE: Final = 4
"""Of one whose messages stay when they are acknowledged: nodes that know the option delete them."""
_CRC = struct.Struct(">I")
_ATTEMPTS = struct.Struct(">Iq")


class ReferenceRecord(NamedTuple):
    """One queue's share of a message whose body row is ``id`` of the reference's row."""

    position: int
    """1 for the first reference; the reference's row is body seq + position."""
    total: int
    """How many references the body has; their rows follow it without a gap."""


@dataclass(frozen=True)
class QueueBinding:
    """A queue that outlives its node."""

    queue_id: int
    name: str
    address: str
    routing_type: RoutingType
    durable: bool = True
    max_consumers: int = -1
    auto_created: bool = False
    user: str | None = None
    """Which user created it; None for the broker, the configuration, or an unknown user."""
    subscription: "DurableSubscription | None" = None
    """Whose durable subscription it is; None for any other queue."""
    auto_delete: bool = False
    """Whether it is deleted once unused, whatever its address is configured with."""
    options: QueueOptions = PLAIN
    priority: int | None = None
    """Which messages of the queue that has this name are kept under this id; None for those of no
    such binding."""


@dataclass(frozen=True)
class DurableSubscription:
    """Which durable subscription a queue is, and what it was asked for."""

    client_id: str
    name: str
    no_local: bool = False
    """Whether it leaves out what connections of the same client id send."""


@dataclass(frozen=True)
class AddressBinding:
    """An address that outlives its node."""

    address_id: int
    name: str
    routing_types: frozenset[RoutingType]
    auto_created: bool = False


@dataclass(frozen=True)
class RecordVersion:
    """Says that messages may be in the journal whose records are of a version, and none above."""

    binding_id: int
    version: int


@dataclass(frozen=True)
class IdCacheBinding:
    """The duplicate ids of an address that are kept: rows of MESSAGES with its id as queue id."""

    cache_id: int
    address: str
    user: str | None = None
    """Who counts for it as for a queue, as an address without a queue needs one; empty for somebody
    whom nobody knows, None where it counts for nobody."""


@dataclass(frozen=True)
class OperatorRecord:
    """What an operator asked for that outlives its node."""

    record_id: int
    kind: str
    """What is said by it; ``orthia.broker.core.upkeep.operators`` knows of what."""
    name: str
    """The queue or the address that it is of."""
    details: dict[str, Any] = field(default_factory=dict)
    """A JSON object, whose fields whoever knows the kind reads."""


@dataclass(frozen=True)
class PreparedTransaction:
    """A transaction in doubt: what it will do if it is committed."""

    transaction_id: int
    xid: Xid
    prepared_ms: int
    """When, by the node's clock, milliseconds since 1970 UTC."""
    messages: tuple[tuple[tuple[int, ...], bytes], ...]
    """For each message its queues and the encoded record."""
    deletes: tuple[tuple[int, tuple[int, int] | None, int | None], ...]
    """For each acknowledged message its seq, its body's seq and number of references, and the id of
    its large body."""


def encode_reference(reference: ReferenceRecord) -> bytes:
    """Return the stored form of ``reference``."""
    # Without a dictionary: there is one of these for each copy of a message.
    return seal(b'{"position":%d,"total":%d}' % (reference.position, reference.total))


def decode_reference(data: bytes, seq: int) -> ReferenceRecord:
    """Return the reference stored as ``data`` in row ``seq``; raise CorruptRecord."""
    document = read_document(data, seq)
    return ReferenceRecord(document.integer("position"), document.integer("total"))


def encode_queue_binding(binding: QueueBinding) -> bytes:
    """Return the stored form of ``binding``; its id is the row's ``id`` column."""
    document: dict[str, object] = {
        "name": binding.name,
        "address": binding.address,
        "routing-type": binding.routing_type.value,
        "durable": binding.durable,
        "max-consumers": binding.max_consumers,
        "auto-created": binding.auto_created,
    }
    # Older nodes leave the next three alone, and bindings of theirs are without them.
    if binding.user is not None:
        document["user"] = binding.user
    if binding.subscription is not None:
        document["client-id"] = binding.subscription.client_id
        document["subscription-name"] = binding.subscription.name
        if binding.subscription.no_local:
            document["no-local"] = True
    if binding.auto_delete:
        document["auto-delete"] = True
    options = {
        name: getattr(binding.options, name)
        for name, default in _OPTIONS.items()
        if getattr(binding.options, name) != default
    }
    if options:
        document["options"] = {name.replace("_", "-"): value for name, value in options.items()}
    if binding.options.non_destructive:
        return encode_document(document, _NON_DESTRUCTIVE)
    if binding.priority is not None:
        return encode_document({**document, "priority": binding.priority}, _OF_VALUES_OR_PRIORITY)
    if binding.options.last_value_key is not None:
        return encode_document(document, _OF_VALUES_OR_PRIORITY)
    is_plain = document.keys().isdisjoint(("options", "no-local"))
    return encode_document(document, FIRST_VERSION if is_plain else _WITH_OPTIONS)


def decode_queue_binding(data: bytes, queue_id: int) -> QueueBinding:
    """Return the queue stored as ``data`` in row ``queue_id``; raise CorruptRecord."""
    document = read_document(data, queue_id, newest=_NON_DESTRUCTIVE)
    return QueueBinding(
        queue_id,
        name=document.text("name"),
        address=document.text("address"),
        routing_type=document.routing_type(document.text("routing-type")),
        durable=document.flag("durable"),
        max_consumers=document.integer("max-consumers"),
        auto_created=document.flag("auto-created"),
        user=document.text("user") if document.has("user") else None,
        subscription=(
            DurableSubscription(
                document.text("client-id"),
                document.text("subscription-name"),
                document.has("no-local") and document.flag("no-local"),
            )
            if document.has("client-id")
            else None
        ),
        auto_delete=document.has("auto-delete") and document.flag("auto-delete"),
        options=_options(document) if document.has("options") else PLAIN,
        priority=document.integer("priority") if document.has("priority") else None,
    )


def _options(document: Document) -> QueueOptions:
    """Return a queue's options, all of which this node must know; raise CorruptRecord."""
    stored = document.inner("options")
    readers = {bool: stored.flag, int: stored.integer}
    given: dict[str, Any] = {}
    for key in stored.names:
        name = key.replace("-", "_")
        if name not in _OPTIONS:
            raise CorruptRecord(
                stored.seq, f"its option {key!r} is not one this node knows: a newer one wrote it"
            )
        given[name] = readers.get(type(_OPTIONS[name]), stored.text)(key)
    return QueueOptions(**given)


def encode_address_binding(binding: AddressBinding) -> bytes:
    """Return the stored form of ``binding``; its id is the row's ``id`` column."""
    return encode_document(
        {
            "name": binding.name,
            "routing-types": sorted(kind.value for kind in binding.routing_types),
            "auto-created": binding.auto_created,
        }
    )


def decode_address_binding(data: bytes, address_id: int) -> AddressBinding:
    """Return the address stored as ``data`` in row ``address_id``; raise CorruptRecord."""
    document = read_document(data, address_id)
    return AddressBinding(
        address_id,
        name=document.text("name"),
        routing_types=frozenset(map(document.routing_type, document.texts("routing-types"))),
        auto_created=document.flag("auto-created"),
    )


def encode_record_version(binding: RecordVersion) -> bytes:
    """Return the stored form of ``binding``; its id is the row's ``id`` column."""
    return encode_document({"record-version": binding.version})


def decode_record_version(data: bytes, binding_id: int) -> RecordVersion:
    """Return the version stored as ``data`` in row ``binding_id``.

    Raises CorruptRecord, also for one that this node does not read.
    """
    version = read_document(data, binding_id).integer("record-version")
    if version > NEWEST_VERSION:
        raise CorruptRecord(
            binding_id,
            f"messages are stored in record version {version} and this node reads 1 to"
            f" {NEWEST_VERSION}: install the version of Orthia that wrote them, or a newer one",
        )
    return RecordVersion(binding_id, version)


def encode_id_cache(binding: IdCacheBinding) -> bytes:
    """Return the stored form of ``binding``; its id is the row's ``id`` column."""
    document: dict[str, object] = {"address": binding.address}
    if binding.user is not None:
        document["user"] = binding.user
    return encode_document(document)


def decode_id_cache(data: bytes, cache_id: int) -> IdCacheBinding:
    """Return the id cache stored as ``data`` in row ``cache_id``; raise CorruptRecord."""
    document = read_document(data, cache_id)
    user = document.text("user") if document.has("user") else None
    return IdCacheBinding(cache_id, document.text("address"), user)


def encode_operator_record(record: OperatorRecord) -> bytes:
    """Return the stored form of ``record``; its id is the row's ``id`` column."""
    return encode_document({"kind": record.kind, "name": record.name, "details": record.details})


def decode_operator_record(data: bytes, record_id: int) -> OperatorRecord:
    """Return the record stored as ``data`` in row ``record_id``; raise CorruptRecord."""
    document = read_document(data, record_id)
    return OperatorRecord(
        record_id, document.text("kind"), document.text("name"), document.plain("details")
    )


def encode_duplicate_id(digest: bytes) -> bytes:
    """Return the record of a duplicate id, of which its digest is kept."""
    return encode_document({"duplicate-id": digest.hex()})


def decode_duplicate_id(data: bytes, seq: int) -> bytes:
    """Return the digest stored as ``data`` in row ``seq``; raise CorruptRecord."""
    text = read_document(data, seq).text("duplicate-id")
    try:
        return bytes.fromhex(text)
    except ValueError:
        raise CorruptRecord(seq, f"{text!r:.80} is no digest of a duplicate id") from None


def encode_pruned_through(instant: datetime) -> bytes:
    """Return the record of the counter's row: up to when the history was pruned."""
    return encode_document({"history-pruned-through": instant.isoformat()})


def decode_pruned_through(data: bytes) -> datetime | None:
    """Return up to when the history was pruned; None if it never was. Raises CorruptRecord."""
    if not data:
        return None
    text = read_document(data, ID_COUNTER_SEQ).text("history-pruned-through")
    try:
        return datetime.fromisoformat(text)
    except ValueError as error:
        raise CorruptRecord(ID_COUNTER_SEQ, f"{text!r} is no time") from error


def encode_prepared_transaction(prepared: PreparedTransaction) -> bytes:
    """Return the transaction as stored: a document, and the messages' records after it."""
    document = encode_document(
        {
            "xid": str(prepared.xid),
            "prepared-ms": prepared.prepared_ms,
            "messages": [[list(queues), len(payload)] for queues, payload in prepared.messages],
            "deletes": [
                [seq, list(body) if body else None, large] for seq, body, large in prepared.deletes
            ],
        }
    )
    payloads = b"".join(payload for _, payload in prepared.messages)
    checked = _CRC.pack(len(document)) + document + payloads
    return checked + _CRC.pack(zlib.crc32(checked))


def decode_prepared_transaction(data: bytes, transaction_id: int) -> PreparedTransaction:
    """Return the transaction stored as ``data`` in row ``transaction_id``; raise CorruptRecord."""
    if (
        len(data) < 2 * _CRC.size
        or zlib.crc32(data[: -_CRC.size]) != _CRC.unpack(data[-_CRC.size :])[0]
    ):
        raise CorruptRecord(transaction_id, "its checksum does not match")
    at = _CRC.size + _CRC.unpack_from(data)[0]
    document = read_document(data[_CRC.size : at], transaction_id)
    messages = []
    try:
        for queues, size in document.rows("messages"):
            messages.append((tuple(map(int, queues)), data[at : at + size]))
            at += size
        deletes = tuple(_prepared_delete(*row) for row in document.rows("deletes"))
        xid = Xid.parse(document.text("xid"))
    except (TypeError, ValueError, IndexError) as error:
        raise CorruptRecord(transaction_id, f"it is no transaction: {error}") from None
    if at != len(data) - _CRC.size:
        raise CorruptRecord(transaction_id, "its messages are not as long as it says")
    return PreparedTransaction(
        transaction_id, xid, document.integer("prepared-ms"), tuple(messages), deletes
    )


def _prepared_delete(
    seq: object, body: Any, large: object = None
) -> tuple[int, tuple[int, int] | None, int | None]:
    """Return a delete as it was prepared; an older Orthia's has no large body."""
    return (
        int(str(seq)),
        (int(body[0]), int(body[1])) if body else None,
        None if large is None else int(str(large)),
    )


def decode_binding(
    user_record_type: int, data: bytes, binding_id: int
) -> (
    QueueBinding
    | AddressBinding
    | PreparedTransaction
    | RecordVersion
    | IdCacheBinding
    | OperatorRecord
):
    """Return what is in row ``binding_id`` of BINDINGS; raise CorruptRecord."""
    if user_record_type == UserRecordType.QUEUE_BINDING:
        return decode_queue_binding(data, binding_id)
    if user_record_type == UserRecordType.ADDRESS_BINDING:
        return decode_address_binding(data, binding_id)
    if user_record_type == UserRecordType.PREPARED_TRANSACTION:
        return decode_prepared_transaction(data, binding_id)
    if user_record_type == UserRecordType.RECORD_VERSION:
        return decode_record_version(data, binding_id)
    if user_record_type == UserRecordType.ID_CACHE:
        return decode_id_cache(data, binding_id)
    if user_record_type == UserRecordType.OPERATOR_RECORD:
        return decode_operator_record(data, binding_id)
    raise CorruptRecord(binding_id, f"its type {user_record_type} is not one this node knows")


_OPTIONS: Final = {one.name: one.default for one in fields(QueueOptions)}


def encode_attempts(attempts: int, retry_ms: int) -> bytes:
    """Return how often delivery of a message failed, and when it may be retried."""
    body = _ATTEMPTS.pack(attempts, retry_ms)
    return body + _CRC.pack(zlib.crc32(body))


def decode_attempts(data: bytes) -> tuple[int, int]:
    """Return what ``encode_attempts`` took; raises ValueError."""
    body = data[: _ATTEMPTS.size]
    if len(data) != _ATTEMPTS.size + _CRC.size or data[_ATTEMPTS.size :] != _CRC.pack(
        zlib.crc32(body)
    ):
        raise ValueError("what it says of attempts cannot be read")
    attempts, retry_ms = _ATTEMPTS.unpack(body)
    return attempts, retry_ms
