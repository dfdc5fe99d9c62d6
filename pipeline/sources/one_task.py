"""Reads a data source in one task, without Spark's planning of one.

Before Spark reads a data source in Python it starts a process that looks sources up, one that asks
for the columns and one that asks for the partitions, and each loads this package anew: seconds of
processor time, however few rows there are. Here the driver makes the reader, and the task calls it.
"""

from collections.abc import Mapping
from typing import Final

from pyspark.sql.datasource import CaseInsensitiveDict, DataSource
from pyspark.sql.types import StructType

from orthia.pipeline.sources.audit import AuditSource
from orthia.pipeline.sources.failover_log import FailoverLogSource
from orthia.pipeline.sources.journal import JournalSource
from orthia.pipeline.sources.node_manager import NodeManagerSource
from orthia.pipeline.sources.whole_table import WholeTable

_SOURCES: Final[Mapping[str, type[DataSource]]] = {
    source.name(): source
    for source in (JournalSource, FailoverLogSource, NodeManagerSource, AuditSource)
}


def whole_table(source: str, options: Mapping[str, str]) -> WholeTable:
    """Return what a data source reads with these options; raises BadOption."""
    found = _SOURCES[source](CaseInsensitiveDict(options))
    schema = found.schema()
    if not isinstance(schema, StructType):
        raise TypeError(f"{source} names its columns by a text")
    return WholeTable(found.reader(schema), schema)
