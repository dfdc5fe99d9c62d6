"""Registers ``orthia.failover_log``: Spark looks for a DefaultSource in modules ``pyspark_*``."""

from collections.abc import Mapping
from typing import Any

from pyspark.sql.datasource import DataSource


class DefaultSource(DataSource):
    """Becomes ``FailoverLogSource`` where a query uses it; every session imports this."""

    def __new__(cls, options: Mapping[str, str]) -> Any:
        """Return the data source itself."""
        from orthia.pipeline.requirements import require_extra

        require_extra()
        from orthia.pipeline.sources.failover_log import FailoverLogSource

        return FailoverLogSource(options)

    @classmethod
    def name(cls) -> str:
        """Return the name for ``spark.read.format``."""
        return "orthia.failover_log"
