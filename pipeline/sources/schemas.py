"""The columns of the data sources: one home for their names, types and meaning."""

from typing import Final

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from orthia.pipeline.errors import BadOption
from orthia.pipeline.sources.spark_versions import schema_in_utc

_HEADERS: Final = MapType(StringType(), StringType())

_SAID: Final = (
    StructField("headers", _HEADERS),
    StructField("properties", _HEADERS),
    StructField("property_types", _HEADERS),
    StructField("message_id", StringType()),
    StructField("routing_type", StringType()),
    StructField("durable", BooleanType()),
    StructField("delivery_time", TimestampType()),
    StructField("group_id", StringType()),
    StructField("duplicate_id", StringType()),
    StructField("correlation_id", StringType()),
    StructField("reply_to", StringType()),
    StructField("content_type", StringType()),
    StructField("user_id", StringType()),
)
SAID: Final = tuple(field.name for field in _SAID)
"""Headers and properties of messages, whatever their protocol. ``headers`` are those that a STOMP
client gets; ``properties`` are the application's own, as texts, and ``property_types`` has the
types of those that are no texts: ``integer``, ``float``, ``boolean`` or
``bytes`` (in hex)."""

JOURNAL: Final = StructType(
    [
        StructField("seq", LongType()),
        StructField("id", LongType()),
        StructField("kind", StringType()),
        StructField("queue_id", LongType()),
        StructField("queue", StringType()),
        StructField("epoch", LongType()),
        StructField("written_at", TimestampType()),
        StructField("size", LongType()),
        StructField("address", StringType()),
        *_SAID,
        StructField("body", BinaryType()),
        StructField("body_type", StringType()),
        StructField("body_size", LongType()),
        StructField("large", BooleanType()),
        StructField("large_id", LongType()),
        StructField("large_crc32", LongType()),
        StructField("priority", IntegerType()),
        StructField("timestamp", TimestampType()),
        StructField("expires", TimestampType()),
        StructField("corrupt", StringType()),
        StructField("record_type", ShortType()),
        StructField("user_record_type", ShortType()),
        StructField("tx_id", LongType()),
        StructField("record", BinaryType()),
    ]
)
"""MESSAGES. ``kind`` is ``message`` (of one queue), ``body`` (shared), ``reference`` (one queue's
share of a body), ``duplicate-id`` (that a message of an id was stored) or ``other``; ``size`` is
that of the stored record; ``large`` says that the body
lies outside the journal, where ``large_id`` names it and ``large_crc32`` is its checksum, and
``body`` is NULL then unless ``maxLargeBodyBytes`` asks for it; ``corrupt`` says why a record cannot
be read; ``body_type`` is what the body is, where its protocol says that: ``text``, ``bytes``,
``map``, ``stream``, ``object``, ``value`` or ``none``, and a map, a stream and a value are JSON in
``body``; ``queue`` is NULL for a body, and for a queue that BINDINGS does not know."""

_OF_THE_TABLE: Final = ("record_type", "user_record_type", "tx_id")
HISTORY: Final = StructType(
    [
        *(field for field in JOURNAL.fields if field.name not in _OF_THE_TABLE),
        StructField("removed_at", TimestampType()),
        StructField("reason", StringType()),
    ]
)
"""What journal-retention keeps: as MESSAGES, but each row is a message of one queue, body included
(``kind`` is ``message``). ``removed_at`` says when it left its queue, ``reason`` why:
``acknowledged``, ``expired``, ``dead-lettered`` or ``deleted``. ``id`` is the same for all queues'
shares of a message."""

BINDINGS: Final = StructType(
    [
        StructField("seq", LongType()),
        StructField("id", LongType()),
        StructField("type", StringType()),
        StructField("name", StringType()),
        StructField("address", StringType()),
        StructField("routing_types", ArrayType(StringType())),
        StructField("durable", BooleanType()),
        StructField("max_consumers", IntegerType()),
        StructField("auto_created", BooleanType()),
        StructField("epoch", LongType()),
        StructField("written_at", TimestampType()),
        StructField("corrupt", StringType()),
        StructField("user_record_type", ShortType()),
        StructField("record", BinaryType()),
    ]
)
"""BINDINGS. ``type`` is ``queue``, ``address``, ``transaction`` (prepared and in doubt; ``name`` is
its xid), ``id-cache`` (the duplicate ids of an address), ``record-version`` (the highest that
messages may be stored in; ``name`` is its number), ``operator-record`` (what an operator asked for;
``name`` is what kind of thing), ``other``, or ``counter``: the row whose ``id`` is the highest id
that may have been given out. But for those ``seq`` is the id of the queue, address, transaction or
whatever else it is."""

BODIES: Final = StructType(
    [
        StructField("large_id", LongType()),
        StructField("position", LongType()),
        StructField("piece", BinaryType()),
    ]
)
"""Bodies of large messages, a row for each piece of 256 KiB, the last one shorter. ``large_id`` is
that of the messages that have the body; ``position`` counts from 0."""

FAILOVER_LOG: Final = StructType(
    [
        StructField("pair", StringType()),
        StructField("db_time", TimestampType()),
        StructField("node_time", TimestampType()),
        StructField("node_id", StringType()),
        StructField("node_name", StringType()),
        StructField("holder_id", StringType()),
        StructField("role", StringType()),
        StructField("code", StringType()),
        StructField("level", StringType()),
        StructField("event", StringType()),
        StructField("lock", StringType()),
        StructField("token", LongType()),
        StructField("event_seq", LongType()),
        StructField("message", StringType()),
        StructField("details", StringType()),
    ]
)
"""The failover log, as a node writes it. ``pair`` is what the reader was told to call the pair,
else its node id; ``details`` is JSON."""

NODE_MANAGER: Final = StructType(
    [
        StructField("pair", StringType()),
        StructField("node_id", StringType()),
        StructField("state", StringType()),
        StructField("lock", StringType()),
        StructField("holder_id", StringType()),
        StructField("token", LongType()),
        StructField("expires_at", TimestampType()),
        StructField("held", BooleanType()),
        StructField("fence_token", LongType()),
        StructField("database_time", TimestampType()),
    ]
)
"""NODE_MANAGER_STORE, one row for each lock, as it was at ``database_time``.

``held`` is null where a worker cannot tell it: the lock is not the row, and out of its reach.
"""

RAW: Final = (
    "seq",
    "id",
    "record_type",
    "user_record_type",
    "tx_id",
    "queue_id",
    "epoch",
    "written_at",
    "record",
)
"""The columns of the table MESSAGES itself, which need no decoding."""

HISTORY_RAW: Final = (
    *("seq", "id", "queue_id", "epoch", "written_at", "removed_at", "reason", "size", "record"),
)
"""The columns of the history itself."""


def subset(schema: StructType, columns: str | None) -> StructType:
    """Return the part of ``schema`` an option ``columns`` names; raises BadOption."""
    if columns is None:
        return schema
    names = [name.strip() for name in columns.split(",") if name.strip()]
    unknown = [name for name in names if name not in schema.fieldNames()]
    if unknown or not names:
        raise BadOption(
            f"option columns: {', '.join(unknown) or 'nothing'} is not among the columns"
            f" {', '.join(schema.fieldNames())}"
        )
    return StructType([schema[name] for name in names])


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the Arrow schema that Spark expects of a batch of ``schema``."""
    return schema_in_utc(schema)
