"""Messages in the columns of Spark's source for Kafka, for jobs that were written for that.

| Column          | here                                                                      |
|-----------------|---------------------------------------------------------------------------|
| `key`           | the message group (JMSXGroupID), within which messages keep their order    |
| `value`         | the body                                                                  |
| `topic`         | the address                                                               |
| `partition`     | 0: there is one order                                                     |
| `offset`        | the `seq`                                                                 |
| `timestamp`     | when the broker accepted the message; `timestampType` is 0 (CreateTime)   |
| `headers`       | its headers, in order                                                     |

A message that cannot be read has no value and no topic.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from orthia.pipeline.errors import BadOption
from orthia.pipeline.sources.schemas import arrow_schema

KAFKA: Final = StructType(
    [
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("timestamp", TimestampType()),
        StructField("timestampType", IntegerType()),
        StructField(
            "headers",
            ArrayType(
                StructType([StructField("key", StringType()), StructField("value", BinaryType())])
            ),
        ),
    ]
)
NEEDED: Final[Sequence[str]] = (
    *("seq", "kind", "address", "timestamp", "headers", "group_id", "body"),
)
"""The columns that it is made of."""
OPTION: Final = "schema"


def is_wanted(options: Mapping[str, str]) -> bool:
    """Return whether the option ``schema`` asks for these columns; raises BadOption."""
    text = options.get(OPTION, "orthia").lower()
    if text not in ("orthia", "kafka"):
        raise BadOption(f"option schema: {text!r} is neither orthia nor kafka")
    if text == "kafka" and "columns" in options:
        raise BadOption("option columns: schema=kafka has columns of its own; select some of them")
    return text == "kafka"


def as_kafka(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the messages among rows of NEEDED in the columns of KAFKA."""
    batch = batch.filter(pc.is_in(batch.column("kind"), pa.array(["message", "reference"])))
    schema = arrow_schema(KAFKA)
    zeros = pa.array([0] * batch.num_rows, pa.int32())
    arrays = {
        "key": pc.cast(batch.column("group_id"), pa.binary()),
        "value": batch.column("body"),
        "topic": batch.column("address"),
        "partition": zeros,
        "offset": batch.column("seq"),
        "timestamp": batch.column("timestamp"),
        "timestampType": zeros,
        "headers": _headers(batch.column("headers"), schema.field("headers").type),
    }
    return pa.RecordBatch.from_arrays(
        [arrays[field.name].cast(field.type) for field in schema], schema=schema
    )


def _headers(given: pa.MapArray, wanted: pa.ListType) -> pa.ListArray:
    """Return maps of texts as lists of names and bytes."""
    names, kinds = given.keys, wanted.value_type
    values = pc.cast(given.items, pa.binary())
    pairs = pa.StructArray.from_arrays([names, values], fields=list(kinds))
    return pa.ListArray.from_arrays(given.offsets, pairs, mask=given.is_null())
