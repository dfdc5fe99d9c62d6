"""Write down the columns that exports and streams of this version have, for later versions.

    python -m tests.pipeline.freeze_columns 0.1.0

Run once for each version that is released, on its code; the file is committed and never changed
again. ``test_columns`` reads all of them for ever: whoever reads exports relies on these columns.
"""

import json
import sys
from pathlib import Path
from typing import Any, Final

from pyspark.sql.types import StringType, StructField, StructType

from orthia.pipeline.sources.inputs import EXPORTED, EXPORTED_HISTORY
from orthia.pipeline.sources.schemas import (
    BINDINGS,
    BODIES,
    FAILOVER_LOG,
    HISTORY,
    JOURNAL,
    NODE_MANAGER,
)

FROZEN: Final = Path(__file__).with_name("frozen_columns")

_QUEUE_NAME: Final = StructField("queue_name", StringType())
TABLES: Final = {
    "export/messages": StructType([*EXPORTED.fields, _QUEUE_NAME]),
    "export/history": StructType([*EXPORTED_HISTORY.fields, _QUEUE_NAME]),
    "export/bodies": BODIES,
    "export/bindings": BINDINGS,
    "export/failover_log": FAILOVER_LOG,
    "export/node_manager": NODE_MANAGER,
    "stream/messages": JOURNAL,
    "stream/history": HISTORY,
    "stream/failovers": FAILOVER_LOG,
}


def columns() -> dict[str, dict[str, Any]]:
    """Return each table's columns and their types, as Spark writes them."""
    return {
        table: {field.name: field.dataType.jsonValue() for field in schema}
        for table, schema in TABLES.items()
    }


def main(version: str) -> None:
    """Write the columns of this code down as those of ``version``."""
    path = FROZEN / f"{version}.json"
    if path.exists():
        raise SystemExit(f"{path} is there already: what was released does not change")
    FROZEN.mkdir(exist_ok=True)
    path.write_text(json.dumps(columns(), indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
