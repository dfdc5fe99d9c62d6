"""A table of a store that one task reads, as a DataFrame or together with others."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType
from typing_extensions import override

from orthia.pipeline.sources.schemas import arrow_schema


@dataclass(frozen=True)
class WholeTable:
    """The reader of a table, and its columns; it can be pickled, as readers can."""

    reader: DataSourceReader
    schema: StructType

    def frame(self, spark: SparkSession) -> DataFrame:
        """Return its rows, in one partition."""
        return spark.range(0, 1, 1, 1).mapInArrow(partial(_rows_of, self), self.schema)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Read it, in a task; raises StoreError."""
        for partition in self.reader.partitions():
            yield from self.reader.read(partition)


def _rows_of(table: WholeTable, once: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for _ in once:
        yield from table.batches()


class GivenRows(DataSourceReader):
    """Reads what the driver knows."""

    def __init__(self, rows: Sequence[Mapping[str, Any]], schema: StructType) -> None:
        self._rows = list(rows)
        self._schema = schema

    @override
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_pylist(self._rows, schema=arrow_schema(self._schema))


def given(rows: Sequence[Mapping[str, Any]], schema: StructType) -> WholeTable:
    """Return a table of ``rows``; a column that a row does not have is NULL."""
    return WholeTable(GivenRows(rows, schema), schema)
