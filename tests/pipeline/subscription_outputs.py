"""Where a trial streams a queue to, and what of that counts: Parquet, Delta, Iceberg.

Delta needs its package, as ``io.delta:delta-spark_4.2_2.13:4.4.0`` for PySpark 4.2; Iceberg is
written as docs/pipeline.md says, by PyIceberg.
"""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

import pyarrow.parquet as pq
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

Row = tuple[int, bytes]
FORMATS: Final = ("parquet", "delta", "iceberg")
_PAGE: Final = Path(__file__).parents[2] / "docs/pipeline.md"
_WAREHOUSE: Final = "/data/lake"


def settings(format_: str, packages: str | None) -> dict[str, str]:
    """Return what a session needs beside its own settings."""
    found = {} if packages is None else {"spark.jars.packages": packages}
    if format_ == "delta":
        found["spark.sql.extensions"] = "io.delta.sql.DeltaSparkSessionExtension"
        catalog = "org.apache.spark.sql.delta.catalog.DeltaCatalog"
        found["spark.sql.catalog.spark_catalog"] = catalog
    return found


def started(writer: "DataStreamWriter", format_: str, output: Path) -> StreamingQuery:
    """Start a query that writes to ``output``."""
    if format_ != "iceberg":
        return writer.format(format_).start(str(output))
    append: Callable[[DataFrame, int], None] = _recipe(output)["append"]
    return writer.foreachBatch(append).start()


def rows(format_: str, output: Path) -> list[Row]:
    """Return seq and body of all that counts."""
    if format_ == "iceberg":
        table = _recipe(output)["lake"].load_table("orthia.orders")
        tables = [table.scan(selected_fields=("seq", "body")).to_arrow()]
    else:
        files = _delta_files(output) if format_ == "delta" else parquet_files(output)
        tables = [pq.read_table(path, columns=["seq", "body"]) for path in files]
    found: list[Row] = []
    for one in tables:
        columns = (one.column(name).to_pylist() for name in ("seq", "body"))
        found += zip(*columns, strict=True)
    return found


def parquet_files(output: Path) -> Iterator[Path]:
    """Yield the files of an output that count, by ``_spark_metadata``."""
    log = output / "_spark_metadata"
    compact = sorted(
        (one for one in log.iterdir() if one.name.endswith(".compact")),
        key=lambda one: int(one.name.split(".")[0]),
    )
    start = int(compact[-1].name.split(".")[0]) if compact else -1
    later = [one for one in log.iterdir() if one.name.isdigit() and int(one.name) > start]
    for path in (*compact[-1:], *later):
        for line in path.read_text().splitlines()[1:]:
            yield Path(json.loads(line)["path"].removeprefix("file://"))


def _delta_files(output: Path) -> set[Path]:
    """Return the files that the commits of a Delta table have added and not removed."""
    found = set[Path]()
    for commit in sorted((output / "_delta_log").glob("*.json")):
        for line in commit.read_text().splitlines():
            action = json.loads(line)
            if "add" in action:
                found.add(output / unquote(action["add"]["path"]))
            if "remove" in action:
                found.discard(output / unquote(action["remove"]["path"]))
    return found


def _recipe(warehouse: Path) -> dict[str, Any]:
    """Run the page's definitions for Iceberg; return their names."""
    (code,) = [
        block
        for block in re.findall(r"```python\n(.*?)```", _PAGE.read_text(), re.DOTALL)
        if "pyiceberg" in block
    ]
    warehouse.mkdir(exist_ok=True)
    names: dict[str, Any] = {}
    definitions = code.partition("\n\norders.writeStream")[0]
    exec(compile(definitions.replace(_WAREHOUSE, str(warehouse)), str(_PAGE), "exec"), names)  # noqa: S102
    return names
