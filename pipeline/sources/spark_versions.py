"""What differs among the versions of PySpark that Orthia runs on, 4.0 to 4.3.

Tables are read as batches, and rows are sent, on all of them. A stream's limits came with 4.2.
"""

from typing import Final

import pyarrow as pa
import pyspark
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from orthia.pipeline.errors import BadOption

try:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )
except ImportError:
    HAS_STREAMS = False

    class ReadLimit:  # type: ignore[no-redef]
        """Stands for Spark's class where it has none, and no stream is made."""

    class ReadAllAvailable(ReadLimit):  # type: ignore[no-redef]
        """As ``ReadLimit``."""

    class ReadMaxRows(ReadLimit):  # type: ignore[no-redef]
        """As ``ReadLimit``."""

    class SupportsTriggerAvailableNow:  # type: ignore[no-redef]
        """As ``ReadLimit``."""
else:
    HAS_STREAMS = True

__all__ = [
    "HAS_STREAMS",
    "ReadAllAvailable",
    "ReadLimit",
    "ReadMaxRows",
    "SupportsTriggerAvailableNow",
    "require_streams",
    "schema_in_utc",
]

_VERSION: Final = tuple(map(int, pyspark.__version__.split(".")[:2]))


def require_streams() -> None:
    """Raise BadOption if this PySpark cannot read a stream of Orthia's."""
    if not HAS_STREAMS:
        raise BadOption(
            f"streams need PySpark 4.2 or newer, and this is {pyspark.__version__}: read a batch"
            " (spark.read), or install a newer one"
        )


def schema_in_utc(schema: StructType) -> pa.Schema:
    """Return the Arrow schema of ``schema``, its times in UTC."""
    if _VERSION < (4, 2):
        return to_arrow_schema(schema, timestamp_utc=True)  # type: ignore[call-arg]
    return to_arrow_schema(schema, timezone="UTC")
