"""The messages of a replay, their order and their destinations."""

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
"""The columns of MESSAGES that a replay reads."""

HISTORY_COLUMNS: Final = (*COLUMNS, "removed_at", "reason")
"""The columns of the history that a replay reads."""

_ORIGINAL_ADDRESS: Final = "_AMQ_ORIG_ADDRESS"
_NOT_SENT: Final = ("expires", "_AMQ_ORIG_ADDRESS", "_AMQ_ORIG_QUEUE")
"""Headers of the original message that a replayed one must not have."""


_SENT: Final = ("headers", "body", "body_size", "large", "large_id", "large_crc32")

_REPLAYED_FROM: Final = "orthia-replayed-from"
"""The header of a replayed message with the id of the original."""


def candidates(
    messages: DataFrame, *conditions: Column, of_keys: Sequence[Column] = ()
) -> DataFrame:
    """Return the messages for which all ``conditions`` hold, and those that cannot be read.

    ``of_keys`` are conditions on columns stored beside the record, which a row has even if its
    record cannot be read: a database and the directories of an export evaluate them.
    """
    found = messages.where("kind IN ('message', 'reference')")
    for condition in of_keys:
        found = found.where(condition)
    for condition in conditions:
        # A condition on a column that could not be read is NULL.
        found = found.where(F.coalesce(condition, F.col("corrupt").isNotNull()))
    return found


def selected(messages: DataFrame, *conditions: Column, to_origin: bool = False) -> DataFrame:
    """Return the messages for which all ``conditions`` hold, each once, with its ``place``.

    A message of several queues has a row for each; it is sent again once. With ``to_origin`` a dead
    letter goes back to the address it was first sent to.
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
    """Return the messages that no replay sent, so that none is replayed twice."""
    return history.where(F.element_at("headers", _REPLAYED_FROM).isNull() | F.isnull("headers"))


def addressed(rows: DataFrame, bindings: DataFrame, to: str | None = None) -> DataFrame:
    """Return each message's ``place``, ``destination`` and the columns that are sent.

    Without ``to`` the destination is the message's own address, as a queue if all queues of the
    address are ANYCAST, else as a topic.
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
    """Return the number of messages and bytes for each destination."""
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
