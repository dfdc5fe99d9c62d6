"""Small tables of an export, read by one job of Spark and written by the driver.

Spark writes each directory in a job of its own, which costs more than the few rows of a small
table. So tasks return what is to be in each file, and the driver writes it, by Spark's own client
of file systems.
"""

from collections.abc import Iterator, Mapping
from functools import partial, reduce
from io import BytesIO
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name everybody gives it
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from orthia.pipeline.jobs.export import CSV_OPTIONS, for_format
from orthia.pipeline.jobs.outputs import Files
from orthia.pipeline.sources.schemas import arrow_schema
from orthia.pipeline.sources.whole_table import WholeTable

_PARTS: Final = StructType([StructField("name", StringType()), StructField("part", BinaryType())])
"""A part of a table's file: all of a Parquet file, or one line."""


def write_together(
    spark: SparkSession, tables: Mapping[str, WholeTable], form: str, files: Files, directory: str
) -> None:
    """Write each table into one file, in a directory of its name in ``directory``.

    ``form`` is ``parquet``, ``json`` or ``csv``, as ``jobs.export.writer`` writes them.
    """
    found: dict[str, list[bytes]] = {name: _heading(tables[name], form) for name in tables}
    for name, part in _parts(spark, tables, form).collect():
        found[name].append(bytes(part))
    for name, content in found.items():
        files.write_bytes(f"{directory}/{name}/part-00000.{form}", b"".join(content))


def _parts(spark: SparkSession, tables: Mapping[str, WholeTable], form: str) -> DataFrame:
    if form == "parquet":
        return spark.range(0, 1, 1, 1).mapInArrow(partial(_as_parquet, dict(tables)), _PARTS)
    lines = [_lines(name, table.frame(spark), form) for name, table in tables.items()]
    return reduce(lambda one, other: one.unionAll(other), lines).coalesce(1)


def _lines(name: str, table: DataFrame, form: str) -> DataFrame:
    prepared = for_format(table, form)
    row = F.struct(*prepared.columns)
    line = F.to_json(row) if form == "json" else F.to_csv(row, CSV_OPTIONS)
    ended = F.concat(line, F.lit("\n"))
    return prepared.select(F.lit(name).alias("name"), ended.cast("binary").alias("part"))


def _heading(table: WholeTable, form: str) -> list[bytes]:
    return [f"{','.join(table.schema.fieldNames())}\n".encode()] if form == "csv" else []


def _as_parquet(
    tables: Mapping[str, WholeTable], once: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Yield a row for each table: the file that has all of it."""
    for _ in once:
        for name, table in tables.items():
            file = BytesIO()
            schema = arrow_schema(table.schema)
            with pq.ParquetWriter(file, schema) as writer:
                for batch in table.batches():
                    writer.write_batch(batch.cast(schema))
            row = {"name": name, "part": file.getvalue()}
            yield pa.RecordBatch.from_pylist([row], schema=arrow_schema(_PARTS))
