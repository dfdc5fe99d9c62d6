"""An audit of an export finds what is wrong with its bodies and files, and blames nothing else."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from orthia.pipeline.jobs import audit
from orthia.pipeline.jobs.audit_limits import Fault
from orthia.pipeline.sources.inputs import ExportInputs
from tests.cli.conftest import Run, run
from tests.journal.large_support import DATA, put, upload
from tests.journal.support import OTHER_QUEUE, QUEUE, SqlJournalStore
from tests.pipeline.freeze_columns import FROZEN
from tests.pipeline.support import with_queues

pytestmark = pytest.mark.extended

__all__ = ["run"]


def changed(directory: Path, change: Callable[[list[dict[str, Any]]], None]) -> None:
    """Change the rows of a table of an export, as a program that writes good Parquet may do."""
    for path in directory.rglob("*.parquet"):
        table = pq.ParquetFile(path).read()
        rows = table.to_pylist()
        change(rows)
        pq.write_table(pa.Table.from_pylist(rows, schema=table.schema), path)
        path.with_name(f".{path.name}.crc").unlink(missing_ok=True)


def audited(spark: SparkSession, out: Path) -> list[Fault]:
    """Return what an audit of an export lists."""
    found = audit.examined(ExportInputs(spark, str(out)))
    assert sum(found.counts.values()) == len(found.listed)
    assert found.unneeded == []
    return found.listed


@pytest.mark.parametrize("server", ["sqlite"], indirect=True)
def test_what_is_wrong_with_an_export_is_found(
    run: Run, spark: SparkSession, store: SqlJournalStore, tmp_path: Path
) -> None:
    """Flipped, swapped and missing pieces, and a lost file; a sound one has nothing."""
    journal = with_queues(store, "orders")
    store.append(journal, "no large one")
    bodies = [upload(store, journal, bytes([number]) + DATA) for number in range(4)]
    seqs = [put(store, journal, body)[0].seq for body in bodies[:3]]
    shared = [one.seq for one in put(store, journal, bodies[3], (QUEUE, OTHER_QUEUE))]
    url = store.settings.jdbc_connection_url.display
    out = tmp_path / "exported"
    result = run("pipeline", "export", "--url", url, "--to", out, "-q", "--json")
    assert result.exit_code == 0, result.stderr
    columns_are_kept(out)
    assert audited(spark, out) == []

    flipped, swapped, missing, other = bodies

    def spoil(rows: list[dict[str, Any]]) -> None:
        kept = [row for row in rows if (row["large_id"], row["position"]) != (missing.id, 1)]
        rows[:] = kept
        for row in rows:
            if row["large_id"] == swapped.id and row["position"] in (0, 1):
                row["position"] = 1 - row["position"]
            if (row["large_id"], row["position"]) in ((flipped.id, 2), (other.id, 0)):
                row["piece"] = bytes([row["piece"][0] ^ 1]) + row["piece"][1:]

    spoiled = tmp_path / "spoiled"
    shutil.copytree(out, spoiled)
    changed(spoiled / "bodies", spoil)
    listed = audited(spark, spoiled)
    assert {(one.fault, one.table, one.id) for one in listed} == {
        ("changed-export", "bodies", None),
        ("large-body-corrupt", "large", flipped.id),
        ("large-body-corrupt", "large", swapped.id),
        ("large-body-corrupt", "large", other.id),
        ("large-piece-missing", "large", missing.id),
    }
    assert {one.seq for one in listed if one.seq is not None} <= {*seqs, *shared}
    shutil.rmtree(spoiled / "bodies")
    gone = run("pipeline", "audit", "--from", spoiled, "-q")
    assert (gone.exit_code, "no bodies of large messages" in gone.stderr) == (65, True)


def columns_are_kept(out: Path) -> None:
    """Check that the files have the columns that are written down as this version's."""
    (frozen,) = FROZEN.glob("*.json")
    for table, columns in json.loads(frozen.read_text(encoding="utf-8")).items():
        kind, _, name = table.partition("/")
        if kind == "export" and name != "history":
            path = next((out / name).rglob("*.parquet"))
            of_directories = {part.split("=")[0] for part in path.parts if "=" in part}
            assert {*pq.read_schema(path).names, *of_directories} >= set(columns), table
