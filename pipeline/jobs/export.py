"""The rows of an export: a journal's messages with their day, in formats of other programs."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Final

from pyspark.sql import DataFrame, DataFrameWriter, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name everybody gives it

PARTITIONED_BY: Final = ("day", "queue")

_FILE_NAME_BYTES: Final = 255 - len("queue=")
_ESCAPED_BY_SPARK: Final = r"""[\x01-\x1f"#%'*/:=?\\\x7f{\[\]^]"""
"""Characters that take three bytes in a partition's directory name, as ``%3A`` for a colon."""
NO_VALUE: Final = "__HIVE_DEFAULT_PARTITION__"
"""What Spark calls the directory of rows without a queue, or a day."""
_BEGIN_OF_A_FORMULA: Final = "^['=+\\-@\uff1d\uff0b\uff0d\uff20\t\r\n]"
"""First characters of a formula in a spreadsheet, East Asian ones included; and the apostrophe."""
CSV_OPTIONS: Final = {"escape": '"'}
"""Follow RFC 4180."""


def exported(messages: DataFrame, day_of: str = "written_at") -> DataFrame:
    """Return decoded messages with ``day``; day and queue partition the output.

    ``day_of`` is ``removed_at`` for a history. A file journal does not record when a row was
    written: there ``day`` is the day of acceptance. ``queue`` is a valid directory name: for a name
    that is too long, or Spark's own for no queue, its beginning and its SHA-256. ``queue_name`` is
    always the whole name.
    """
    written = F.regexp_replace("queue", _ESCAPED_BY_SPARK, "%XX")
    is_unfit = (F.octet_length(written) > _FILE_NAME_BYTES) | (F.col("queue") == NO_VALUE)
    short = F.concat(F.substring("queue", 1, 20), F.lit("~"), F.sha2("queue", 256))
    return (
        messages.withColumn("day", F.to_date(F.coalesce(day_of, "timestamp")))
        .withColumn("queue_name", F.col("queue"))
        .withColumn("queue", F.when(is_unfit, short).otherwise(F.col("queue")))
    )


def for_format(messages: DataFrame, name: str) -> DataFrame:
    """Return messages as ``json`` or ``csv`` can hold them; Parquet holds everything.

    Bodies are base64. CSV has neither maps nor lists: there these are JSON, and a text that a
    spreadsheet would take for a formula gets an apostrophe before it, since any client may choose
    headers and names. So does one that begins with an apostrophe; removing one restores the text.
    """
    if name == "parquet":
        return messages
    kinds = {field.name: field.dataType.typeName() for field in messages.schema}
    changed = {one: F.base64(one) for one, kind in kinds.items() if kind == "binary"}
    if name == "csv":
        nested = [one for one, kind in kinds.items() if kind in ("map", "array")]
        changed |= {one: F.to_json(one) for one in nested}
        # Neither base64 nor JSON is a formula: base64 may begin with "+", but calls no function.
        texts = [one for one, kind in kinds.items() if kind == "string" and one != "queue"]
        changed |= {
            one: F.when(F.col(one).rlike(_BEGIN_OF_A_FORMULA), F.concat(F.lit("'"), one)).otherwise(
                F.col(one)
            )
            for one in texts
        }
    return messages.withColumns(changed)


def writer(frame: DataFrame, name: str) -> DataFrameWriter:
    """Return a writer of ``frame`` in a format; CSV follows RFC 4180."""
    prepared = for_format(frame, name).write.format(name)
    if name == "csv":
        prepared = prepared.option("header", "true").options(**CSV_OPTIONS)
    return prepared


@dataclass(frozen=True)
class FileSize:
    """How large the files of an export are to be; without either, as the tasks that read them."""

    rows: int | None = None
    """So many rows at most."""
    mib: int | None = None
    """About so many MiB, as far as a day and queue has them."""


def save_partitioned(
    rows: DataFrame, format_: str, directory: str, size: FileSize, *, is_small: bool
) -> None:
    """Write rows of ``exported`` by day and queue."""
    # What is small is read by one task, which writes one file a day and queue anyway.
    gathers = size.mib is not None and not is_small
    with _gathering(rows.sparkSession, size.mib) if gathers else nullcontext():
        # Spark drops the hint at once where it does not adapt its plans.
        gathered = rows.hint("rebalance", *PARTITIONED_BY) if gathers else rows
        prepared = writer(gathered, format_).partitionBy(*PARTITIONED_BY)
        if size.rows is not None:
            prepared = prepared.option("maxRecordsPerFile", size.rows)
        prepared.save(directory)


@contextmanager
def _gathering(spark: SparkSession, mib: int | None) -> Iterator[None]:
    """Let Spark cut what it gathers into parts of about ``mib`` within the block."""
    wanted = {
        "spark.sql.adaptive.enabled": "true",
        "spark.sql.adaptive.advisoryPartitionSizeInBytes": f"{mib}m",
    }
    before = {key: spark.conf.get(key) for key in wanted}
    try:
        for key, value in wanted.items():
            spark.conf.set(key, value)
        yield
    finally:
        for key, old in before.items():
            spark.conf.set(key, str(old))


def summary(messages: DataFrame) -> DataFrame:
    """Return the number of messages and bytes of each day and queue."""
    return (
        messages.where("kind IN ('message', 'reference')")
        .groupBy("day", "queue")
        .agg(F.count("*").alias("messages"), F.sum("body_size").alias("body_bytes"))
        .orderBy("day", "queue")
    )


def of_queues(queues: Sequence[str]) -> dict[str, str]:
    """Return the options of ``orthia.journal`` that read these queues; all without any."""
    return {"queue": json.dumps(list(queues))} if queues else {}


def absent(bindings: DataFrame, queues: Sequence[str]) -> list[str]:
    """Return the names that no queue has now."""
    if not queues:
        return []
    bound = bindings.where((F.col("type") == "queue") & F.col("name").isin(list(queues)))
    found = {row["name"] for row in bound.select("name").collect()}
    return [name for name in queues if name not in found]
