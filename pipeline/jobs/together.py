"""Several small results from one job of Spark: each job costs planning, whatever it reads."""

import json
from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any, Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name everybody gives it
from pyspark.sql.types import StringType, StructField, StructType, TimestampType

ISO: Final = "yyyy-MM-dd'T'HH:mm:ss.SSS'Z'"
"""In the zone of the session, which is UTC in every session of ours."""
PACKED: Final = StructType([StructField("name", StringType()), StructField("row", StringType())])
"""A row of some result: which, and the row as JSON."""
Rows = list[dict[str, Any]]


def packed(name: str, frame: DataFrame) -> DataFrame:
    """Return the rows of ``frame`` as ``PACKED``, times as ISO text in UTC."""
    values = [
        (
            F.date_format(field.name, ISO)
            if isinstance(field.dataType, TimestampType)
            else F.col(field.name)
        ).alias(field.name)
        for field in frame.schema
    ]
    row = F.to_json(F.struct(*values), {"ignoreNullFields": "false"})
    return frame.select(F.lit(name).alias("name"), row.alias("row"))


def collected(parts: Sequence[DataFrame], *, in_one_task: bool) -> dict[str, Rows]:
    """Return the rows of ``PACKED`` frames by their names, each frame's in its order.

    In one task each part is read to its end before the next one is begun.
    """
    found: dict[str, Rows] = {}
    whole = reduce(lambda one, other: one.unionAll(other), parts)
    for name, text in (whole.coalesce(1) if in_one_task else whole).collect():
        found.setdefault(name, []).append(json.loads(text))
    return found


def collected_together(frames: Mapping[str, DataFrame], *, in_one_task: bool) -> dict[str, Rows]:
    """Return the rows of several results by their names."""
    parts = [packed(name, frame) for name, frame in frames.items()]
    found = collected(parts, in_one_task=in_one_task)
    return {name: found.get(name, []) for name in frames}
