"""Counts faults as they pass, and keeps the first of each name: one pass, in bounded memory."""

import json
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name everybody gives it

from orthia.pipeline.jobs.audit_limits import Fault
from orthia.pipeline.jobs.together import PACKED

TALLY: Final = "faults"
"""The name of the packed rows."""
_PACKED: Final = pa.schema([("name", pa.string()), ("row", pa.string())])
_BEFORE_ALL: Final = -(2**63)
"""Sorts what has no ``seq`` first."""


def marked(faults: DataFrame, *, is_suspect: bool) -> DataFrame:
    """Return faults, or suspects, which are checked again, with what a tally reads of them."""
    needed_by = F.col("needed_by") if "needed_by" in faults.columns else F.lit(None).cast("string")
    own = faults.select(*Fault._fields, needed_by.alias("needed_by"))
    return own.withColumn("is_suspect", F.lit(is_suspect))


def tallied(faults: DataFrame, listed: int, suspects: int) -> DataFrame:
    """Return, packed, how many ``marked`` faults of each name there are, and the first of them.

    Of each name and each task ``listed`` faults at most, and ``suspects`` suspects.
    """
    return faults.mapInArrow(partial(tally, listed=listed, suspects=suspects), PACKED)


def tally(
    batches: Iterable[pa.RecordBatch], listed: int, suspects: int
) -> Iterator[pa.RecordBatch]:
    """Yield, packed, the counts of ``marked`` faults of one task, and the first of each name."""
    counts: dict[tuple[str, bool], int] = {}
    first: dict[tuple[str, bool], pa.Table] = {}
    for batch in batches:
        rows = pa.Table.from_batches([batch])
        keys = rows.group_by(["fault", "is_suspect"]).aggregate([]).to_pylist()
        for key in keys:
            name, is_suspect = key["fault"], key["is_suspect"]
            mine = rows.filter(
                pc.and_(
                    pc.equal(rows["fault"], name),
                    pc.equal(rows["is_suspect"], is_suspect),
                )
            )
            at = (name, is_suspect)
            counts[at] = counts.get(at, 0) + mine.num_rows
            both = pa.concat_tables([first[at], mine]) if at in first else mine
            order = pc.sort_indices(pc.fill_null(both["seq"], _BEFORE_ALL))
            first[at] = both.take(order[: suspects if is_suspect else listed])
    told = [
        json.dumps({"is_suspect": at[1], "fault": at[0], "rows": counts[at], "first": some})
        for at, some in ((at, first[at].to_pylist()) for at in counts)
    ]
    if told:
        yield pa.RecordBatch.from_arrays([[TALLY] * len(told), told], schema=_PACKED)


class Tally:
    """The tallies of all tasks."""

    def __init__(self, rows: Iterable[dict[str, Any]]) -> None:
        self.counts: dict[str, int] = {}
        """The number of certain faults by name."""
        self.listed: list[Fault] = []
        """The first of them by name and ``seq``, as many of each name as any task kept."""
        self.suspected: list[tuple[Fault, str | None]] = []
        """Suspects, and the table that needs the large body of one."""
        for row in rows:
            found = [(_fault(one), one["needed_by"]) for one in row["first"]]
            if row["is_suspect"]:
                self.suspected += found
            else:
                self.counts[row["fault"]] = self.counts.get(row["fault"], 0) + row["rows"]
                self.listed += [one for one, _ in found]
        self.listed.sort(key=lambda one: (one.fault, one.seq or 0))


def _fault(values: dict[str, Any]) -> Fault:
    return Fault(*(values[name] for name in Fault._fields))
