"""What an export writes: a journal's messages with their day, in forms other programs can read."""

import json
from collections.abc import Sequence
from typing import Final

from pyspark.sql import DataFrame, DataFrameWriter
from pyspark.sql import functions as F  # noqa: N812 - the name everybody gives it

PARTITIONED_BY: Final = ("day", "queue")


def exported(messages: DataFrame, day_of: str = "written_at") -> DataFrame:
    """Return decoded messages with ``day``, by which, with the queue, the output is partitioned.

    ``day_of`` is ``removed_at`` for a history. A file journal does not tell when a row was written:
    there it is the day of acceptance.
    """
    return messages.withColumn("day", F.to_date(F.coalesce(day_of, "timestamp")))


def for_format(messages: DataFrame, name: str) -> DataFrame:
    """Return messages as ``json`` or ``csv`` can hold them; Parquet holds everything.

    Bodies are base64. In CSV, which has neither maps nor lists, these are JSON.
    """
    if name == "parquet":
        return messages
    kinds = {field.name: field.dataType.typeName() for field in messages.schema}
    changed = {one: F.base64(one) for one, kind in kinds.items() if kind == "binary"}
    if name == "csv":
        nested = [one for one, kind in kinds.items() if kind in ("map", "array")]
        changed |= {one: F.to_json(one) for one in nested}
    return messages.withColumns(changed)


def writer(frame: DataFrame, name: str) -> DataFrameWriter:
    """Return what writes ``frame`` in a format, CSV as RFC 4180 has it."""
    prepared = for_format(frame, name).write.format(name)
    if name == "csv":
        prepared = prepared.option("header", "true").option("escape", '"')
    return prepared


def summary(messages: DataFrame) -> DataFrame:
    """Return how many messages and bytes there are of each day and queue."""
    return (
        messages.where("kind IN ('message', 'reference')")
        .groupBy("day", "queue")
        .agg(F.count("*").alias("messages"), F.sum(F.length("body")).alias("body_bytes"))
        .orderBy("day", "queue")
    )


def of_queues(queues: Sequence[str]) -> dict[str, str]:
    """Return the options of ``orthia.journal`` that read these queues only; none read all."""
    return {"queue": json.dumps(list(queues))} if queues else {}
