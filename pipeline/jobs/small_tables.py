"""Small tables of an export, read by one job of Spark and written by the driver.

Spark writes each directory in a job of its own, which costs more than the few rows of a small
table. So tasks return what is to be in each file, and the driver writes it, by Spark's own client
of file systems.
"""

from collections.abc import Iterable, Iterator, Mapping
from functools import partial, reduce
from io import BytesIO
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name everybody gives it
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from orthia.pipeline.jobs.export import CSV_OPTIONS, for_format
from orthia.pipeline.jobs.outputs import Files
from orthia.pipeline.sources.schemas import arrow_schema

_PARTS: Final = StructType([StructField("name", StringType()), StructField("part", BinaryType())])
"""A part of a table's file: all of a Parquet file, or one line."""


def write_together(
    tables: Mapping[str, DataFrame], form: str, files: Files, directory: str
) -> None:
    """Write each table into one file, in a directory of its name in ``directory``.

    ``form`` is ``parquet``, ``json`` or ``csv``, as ``jobs.export.writer`` writes them.
    """
    parts = [_parts(name, table, form) for name, table in tables.items()]
    found: dict[str, list[bytes]] = {name: _heading(tables[name], form) for name in tables}
    whole = reduce(lambda one, other: one.unionAll(other), parts)
    for name, part in whole.coalesce(1).collect():
        found[name].append(bytes(part))
    for name, content in found.items():
        files.write_bytes(f"{directory}/{name}/part-00000.{form}", b"".join(content))


def _parts(name: str, table: DataFrame, form: str) -> DataFrame:
    if form == "parquet":
        schema = arrow_schema(table.schema)
        return table.coalesce(1).mapInArrow(partial(_as_parquet, name, schema), _PARTS)
    prepared = for_format(table, form)
    row = F.struct(*prepared.columns)
    line = F.to_json(row) if form == "json" else F.to_csv(row, CSV_OPTIONS)
    ended = F.concat(line, F.lit("\n"))
    return prepared.select(F.lit(name).alias("name"), ended.cast("binary").alias("part"))


def _heading(table: DataFrame, form: str) -> list[bytes]:
    return [f"{','.join(table.columns)}\n".encode()] if form == "csv" else []


def _as_parquet(
    name: str, schema: pa.Schema, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Yield one row: the file that has all batches."""
    file = BytesIO()
    with pq.ParquetWriter(file, schema) as writer:
        for batch in batches:
            writer.write_batch(batch.cast(schema))
    yield pa.RecordBatch.from_pylist(
        [{"name": name, "part": file.getvalue()}], schema=arrow_schema(_PARTS)
    )
