"""What makes an export a backup: the bodies of its large messages, and contents that are counted.

The manifest, which is written last, says how many rows of each table there are and their checksums,
so that whoever brings the export back knows that it is whole, and if a node served meanwhile. A
large message may leave its queue after it was read, and its body with it: such messages are listed,
and so are those that are still there without their body, which are damaged.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name everybody gives it

from orthia.journal.model.records import ID_COUNTER_SEQ
from orthia.pipeline.jobs.contents import Contents, TableDigest
from orthia.pipeline.jobs.migrate import checksum
from orthia.pipeline.sources.inputs import ExportInputs, Inputs

MESSAGES: Final = ("seq", "id", "record_type", "user_record_type", "queue_id", "record")
BINDINGS: Final = ("seq", "id", "user_record_type", "record")
BODIES: Final = ("large_id", "position", "piece")
HISTORY: Final = (
    *("seq", "id", "queue_id", "epoch", "written_at", "removed_at", "reason", "size", "record"),
)
"""The columns of each table that are brought back, and compared then."""
LARGE: Final = ("large", "large_id")
"""The columns that say which bodies are needed."""


def counted(rows: DataFrame, columns: Sequence[str]) -> TableDigest:
    """Count the rows of a table, by these columns."""
    (row,) = checksum(rows.select(*columns)).collect()
    return TableDigest(row["rows"], str(row["sum"] or 0), row["xor"] or 0)


def changed_tables(
    export: ExportInputs, contents: Contents, *, bodies: bool = True
) -> Iterator[tuple[str, str]]:
    """Yield each table whose files are not what was exported, and what is said of it.

    Without ``bodies`` those of large messages are not looked at. Raises WrongInput for a table that
    is gone altogether.
    """
    tables: dict[str, tuple[Callable[[], DataFrame], Sequence[str]]] = {
        "messages": (export.messages, MESSAGES),
        "bindings": (lambda: without_counter(export.bindings()), BINDINGS),
        "bodies": (export.bodies, BODIES),
        "history": (export.history, HISTORY),
    }
    for name, expected in contents.tables.items():
        if name == "bodies" and not bodies:
            continue
        read, columns = tables[name]
        found = counted(read(), columns)
        if found != expected:
            yield (
                name,
                f"the files of {name} are not what was exported: {found.rows} rows, and there were"
                f" {expected.rows}; or they were changed since",
            )


def without_counter(bindings: DataFrame) -> DataFrame:
    """Return queues, addresses and transactions: the counter's row is of its own store."""
    return bindings.where(F.col("seq") != ID_COUNTER_SEQ)


def needed_bodies(*messages: DataFrame) -> DataFrame:
    """Return ``large_id`` of every body that messages, or rows of the history, need, each once."""
    needed = [rows.where("large").select("large_id") for rows in messages]
    found = needed[0]
    for more in needed[1:]:
        found = found.union(more)
    return found.distinct()


def only_needed(bodies: DataFrame, needed: DataFrame) -> DataFrame:
    """Return the pieces that are needed: not those of uploads under way, or left over."""
    return bodies.join(F.broadcast(needed), "large_id", "left_semi")


def without_body(messages: DataFrame, bodies: DataFrame) -> DataFrame:
    """Return ``seq`` of the messages, one a queue, whose large body is not whole."""
    sizes = bodies.groupBy("large_id").agg(F.sum(F.length("piece")).alias("there"))
    large = messages.where("large AND kind <> 'body'").select("seq", "large_id", "body_size")
    there = F.coalesce("there", F.lit(0))
    return large.join(sizes, "large_id", "left").where(there != F.col("body_size")).select("seq")


def still_there(seqs: Sequence[int], messages: DataFrame) -> list[int]:
    """Return those of ``seqs`` that are messages of the store by now, of which that has ``seq``."""
    wanted = messages.sparkSession.createDataFrame([(seq,) for seq in seqs], "seq long")
    found = messages.select("seq").join(F.broadcast(wanted), "seq", "left_semi").collect()
    return sorted(row["seq"] for row in found)


def is_at_rest(before: DataFrame, after: DataFrame) -> bool:
    """Return whether nobody held a lock, by NODE_MANAGER_STORE as it was before and after."""
    old, new = before.collect(), after.collect()
    tokens = [sorted((row["lock"], row["token"]) for row in rows) for rows in (old, new)]
    return tokens[0] == tokens[1] and not any(row["held"] is not False for row in [*old, *new])


def contents_of(
    written: ExportInputs, store: Inputs, *, beside_a_node: bool, with_history: bool
) -> Contents:
    """Return what the files of an export hold, and which large messages have no body there."""
    tables = {
        "messages": counted(written.messages(), MESSAGES),
        "bindings": counted(without_counter(written.bindings()), BINDINGS),
        "bodies": counted(written.bodies(), BODIES),
    }
    absent = [row["seq"] for row in without_body(written.messages(), written.bodies()).collect()]
    damaged = still_there(absent, store.messages(["seq"])) if absent else []
    if with_history:
        tables["history"] = counted(written.history(), HISTORY)
        kept = without_body(written.history(), written.bodies()).collect()
        damaged += [row["seq"] for row in kept]
    return Contents(
        beside_a_node=beside_a_node,
        tables=tables,
        left=sorted(set(absent) - set(damaged)),
        damaged=sorted(damaged),
    )
