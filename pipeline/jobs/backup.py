"""What makes an export a backup: the bodies of its large messages, and counted contents.

The manifest, written last, has the number of rows and the checksum of each table, so that an import
can verify that the export is whole, and whether a node may have served meanwhile. A large message
may leave its queue after it was read, and its body with it: the manifest lists such messages, and
those that are still stored without their body, which are damaged.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name everybody gives it

from orthia.journal.model.records import ID_COUNTER_SEQ
from orthia.pipeline.jobs.contents import Contents, TableDigest
from orthia.pipeline.jobs.migrate import checksum
from orthia.pipeline.jobs.together import Rows, collected_together
from orthia.pipeline.jobs.written import WrittenTable
from orthia.pipeline.sources.inputs import ExportInputs, Inputs
from orthia.pipeline.sources.schemas import BODIES as SCHEMA
from orthia.pipeline.sources.whole_table import given

MESSAGES: Final = ("seq", "id", "record_type", "user_record_type", "queue_id", "record")
BINDINGS: Final = ("seq", "id", "user_record_type", "record")
BODIES: Final = ("large_id", "position", "piece")
HISTORY: Final = (
    *("seq", "id", "queue_id", "epoch", "written_at", "removed_at", "reason", "size", "record"),
)
"""The columns of each table that an import restores and compares."""
_DIGEST: Final = "digest of "
_ABSENT: Final = "without body"
"""The names of answers."""
NO_BODIES: Final = given([], SCHEMA)
"""The table of bodies without a row."""
LARGE: Final = ("large", "large_id")
"""The columns that name the bodies a message needs."""


def counted(rows: DataFrame, columns: Sequence[str]) -> TableDigest:
    """Return the digest of a table's rows, by these columns."""
    (row,) = checksum(rows.select(*columns)).collect()
    return TableDigest(row["rows"], str(row["sum"] or 0), row["xor"] or 0)


def counted_together(
    tables: Mapping[str, DataFrame], *, in_one_task: bool
) -> dict[str, TableDigest]:
    """Return the digests of several tables' rows, from one job."""
    digests = {name: digest(rows) for name, rows in tables.items()}
    found = collected_together(digests, in_one_task=in_one_task)
    return {name: _digest(*rows) for name, rows in found.items()}


def digest(rows: DataFrame) -> DataFrame:
    """Return the digest of a table's rows, as one row."""
    return checksum(rows).withColumn("sum", F.col("sum").cast("string"))


def _digest(row: dict[str, Any]) -> TableDigest:
    return TableDigest(row["rows"], row["sum"] or "0", row["xor"] or 0)


def changed_tables(
    export: ExportInputs, contents: Contents, *, bodies: bool = True
) -> Iterator[tuple[str, str]]:
    """Yield each table whose files differ from the export, and why.

    Without ``bodies`` the bodies of large messages are skipped. Raises WrongInput for a table that
    is missing.
    """
    tables: Mapping[str, tuple[Callable[[], DataFrame], Sequence[str]]] = {
        "messages": (export.messages, MESSAGES),
        "bindings": (lambda: without_counter(export.bindings()), BINDINGS),
        "bodies": (export.bodies, BODIES),
        "history": (export.history, HISTORY),
    }
    wanted = {name for name in contents.tables if bodies or name != "bodies"}
    rows = {
        name: read().select(*columns) for name, (read, columns) in tables.items() if name in wanted
    }
    for name, found in counted_together(rows, in_one_task=export.is_small).items():
        expected = contents.tables[name]
        if found != expected:
            yield (
                name,
                f"the files of {name} are not what was exported: {found.rows} rows, and there were"
                f" {expected.rows}; or they were changed since",
            )


def without_counter(bindings: DataFrame) -> DataFrame:
    """Return queues, addresses and transactions, without the counter of their store."""
    return bindings.where(F.col("seq") != ID_COUNTER_SEQ)


def needed_bodies(*messages: DataFrame) -> DataFrame:
    """Return the distinct ``large_id`` of bodies that messages, or rows of the history, need."""
    needed = [rows.where("large").select("large_id") for rows in messages]
    found = needed[0]
    for more in needed[1:]:
        found = found.union(more)
    return found.distinct()


def only_needed(bodies: DataFrame, needed: DataFrame) -> DataFrame:
    """Return the needed pieces, without those of running or abandoned uploads."""
    return bodies.join(F.broadcast(needed), "large_id", "left_semi")


def without_body(messages: DataFrame, bodies: DataFrame) -> DataFrame:
    """Return ``seq`` of the messages, one for each queue, whose large body is not whole."""
    sizes = bodies.groupBy("large_id").agg(F.sum(F.length("piece")).alias("there"))
    large = messages.where("large AND kind <> 'body'").select("seq", "large_id", "body_size")
    there = F.coalesce("there", F.lit(0))
    return large.join(sizes, "large_id", "left").where(there != F.col("body_size")).select("seq")


def still_there(seqs: Sequence[int], messages: DataFrame) -> list[int]:
    """Return those of ``seqs`` that the store still has; ``messages`` has their ``seq``."""
    wanted = messages.sparkSession.createDataFrame([(seq,) for seq in seqs], "seq long")
    found = messages.select("seq").join(F.broadcast(wanted), "seq", "left_semi").collect()
    return sorted(row["seq"] for row in found)


def is_at_rest(before: Rows, after: Rows) -> bool:
    """Return whether nobody held a lock, by NODE_MANAGER_STORE as it was before and after."""
    tokens = [sorted((row["lock"], row["token"]) for row in rows) for rows in (before, after)]
    return tokens[0] == tokens[1] and not any(row["held"] is not False for row in [*before, *after])


def questions(written: ExportInputs, *, with_history: bool) -> dict[str, DataFrame]:
    """Return what ``contents_of`` asks of an export's files, to be collected together."""
    rows = {
        "messages": written.messages(MESSAGES),
        "bindings": without_counter(written.bindings()).select(*BINDINGS),
        "bodies": written.bodies().select(*BODIES),
    }
    found = {"locks": written.node_manager()}
    found[_ABSENT] = without_body(written.messages(), written.bodies())
    if with_history:
        rows["history"] = written.history(HISTORY)
        found[f"{_ABSENT} history"] = without_body(written.history(), written.bodies())
    return found | {f"{_DIGEST}{name}": digest(frame) for name, frame in rows.items()}


def answers_of(directory: Path, *, with_history: bool) -> dict[str, Rows]:
    """Return the answers to ``questions`` of an export without large messages on this machine."""
    tables = {name: WrittenTable(directory / name) for name in ("messages", "bindings", "bodies")}
    found: dict[str, Rows] = {
        "locks": WrittenTable(directory / "node_manager").rows(("lock", "token", "held")),
        _ABSENT: [],
    }
    digests = {
        "messages": tables["messages"].digest(MESSAGES),
        "bindings": tables["bindings"].digest(BINDINGS, without_counter=True),
        "bodies": tables["bodies"].digest(BODIES),
    }
    if with_history:
        digests["history"] = WrittenTable(directory / "history").digest(HISTORY)
        found[f"{_ABSENT} history"] = []
    return found | {f"{_DIGEST}{name}": [asdict(one)] for name, one in digests.items()}


def contents_of(answers: Mapping[str, Rows], store: Inputs, locks_before: Rows) -> Contents:
    """Return the contents of an export's files, and the large messages without their body.

    ``answers`` are those to ``questions``.
    """
    tables = {
        name.removeprefix(_DIGEST): _digest(*rows)
        for name, rows in answers.items()
        if name.startswith(_DIGEST)
    }
    absent = [row["seq"] for row in answers[_ABSENT]]
    damaged = still_there(absent, store.messages(["seq"])) if absent else []
    damaged += [row["seq"] for row in answers.get(f"{_ABSENT} history", ())]
    return Contents(
        beside_a_node=not is_at_rest(locks_before, answers["locks"]),
        tables=tables,
        left=sorted(set(absent) - set(damaged)),
        damaged=sorted(damaged),
    )
