"""Which messages are sent again, in which order, and where to."""

from collections.abc import Sequence
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name everybody gives it

COLUMNS: Final = (
    *("seq", "id", "kind", "queue", "address", "written_at", "size"),
    *(
        "headers",
        "properties",
        "body",
        "body_size",
        "large",
        "large_id",
        "large_crc32",
        "priority",
        "timestamp",
        "corrupt",
    ),
)
"""What a replay reads of MESSAGES."""

HISTORY_COLUMNS: Final = (*COLUMNS, "removed_at", "reason")
"""What a replay reads of the history."""

_ORIGINAL_ADDRESS: Final = "_AMQ_ORIG_ADDRESS"
_NOT_SENT: Final = ("expires", "_AMQ_ORIG_ADDRESS", "_AMQ_ORIG_QUEUE")
"""Headers of the first sending that would be wrong in the second."""


_SENT: Final = ("headers", "body", "body_size", "large", "large_id", "large_crc32")

_REPLAYED_FROM: Final = "orthia-replayed-from"
"""The header by which a consumer recognises a replayed message: the id it had."""


def candidates(
    messages: DataFrame, *conditions: Column, of_keys: Sequence[Column] = ()
) -> DataFrame:
    """Return the messages for which all ``conditions`` hold, and those that cannot be read.

    ``of_keys`` are conditions on what is stored beside the record, which hold or not of a record
    that cannot be read, too: a database and the directories of an export answer them.
    """
    found = messages.where("kind IN ('message', 'reference')")
    for condition in of_keys:
        found = found.where(condition)
    for condition in conditions:
        # NULL is what a condition says of a column that could not be read.
        found = found.where(F.coalesce(condition, F.col("corrupt").isNotNull()))
    return found


def selected(messages: DataFrame, *conditions: Column, to_origin: bool = False) -> DataFrame:
    """Return the messages for which all ``conditions`` hold, each once, with its ``place``.

    A message of several queues is one row a queue; it was sent once, and is sent again once. With
    ``to_origin`` a dead letter goes back to the address it was first sent to.
    """
    found = candidates(messages, *conditions).where("corrupt IS NULL")
    if to_origin:
        origin = F.element_at("headers", _ORIGINAL_ADDRESS)
        found = found.withColumn("address", F.coalesce(origin, "address"))
    kept = F.map_filter("headers", lambda key, _: ~key.isin(*_NOT_SENT, _REPLAYED_FROM))
    source = F.create_map(F.lit(_REPLAYED_FROM), F.col("id").cast("string"))
    return (
        found.dropDuplicates(["id"])
        .withColumn("headers", F.map_concat(kept, source))
        .withColumnRenamed("id", "place")
    )


def first_sent(history: DataFrame) -> DataFrame:
    """Return the messages that no replay sent: its own would come again with the next one."""
    return history.where(F.element_at("headers", _REPLAYED_FROM).isNull() | F.isnull("headers"))


def addressed(rows: DataFrame, bindings: DataFrame, to: str | None = None) -> DataFrame:
    """Return each message's ``place`` and ``destination``, and what is sent of it.

    Without ``to`` that is the message's own address, as a queue if all the address' queues are
    ANYCAST, else as a topic.
    """
    if to is not None:
        return rows.select("place", F.lit(to).alias("destination"), *_SENT)
    kinds = (
        bindings.where("type = 'queue'")
        .groupBy(F.col("address").alias("bound"))
        .agg(F.max(F.array_contains("routing_types", "MULTICAST")).alias("is_topic"))
    )
    prefix = F.when(F.col("is_topic"), "/topic/").otherwise("/queue/")
    return rows.join(F.broadcast(kinds), rows["address"] == kinds["bound"], "left").select(
        "place", F.concat(prefix, "address").alias("destination"), *_SENT
    )


def summary(addressed_rows: DataFrame) -> DataFrame:
    """Return how much goes to each destination."""
    return (
        addressed_rows.groupBy("destination")
        .agg(
            F.count("*").alias("messages"),
            F.sum("body_size").alias("body_bytes"),
            F.count_if("large").alias("large"),
            F.min("place").alias("first"),
            F.max("place").alias("last"),
        )
        .orderBy("destination")
    )
