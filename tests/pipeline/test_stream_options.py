"""The bounds and the columns of ``pipeline stream``: each acts, or is refused by name."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from orthia.broker.cli.pipeline.stream_bounds import StreamBounds
from tests.cli.conftest import Run, run
from tests.journal.support import SqlJournalStore
from tests.pipeline.support import with_queues

__all__ = ["run"]

WHERE = ("--url", "sqlite:///nowhere.db", "--to", "out", "--checkpoint", "checkpoint")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("--min-rows 5 --available-now", "--available-now takes those that are there"),
        ("--max-trigger-delay 30s", "bounds the wait for --min-rows"),
        ("--min-rows 5 --max-rows 4", "--min-rows is more than --max-rows"),
        ("--min-rows 5 --max-trigger-delay soon", "'soon' is no duration"),
        ("--table failover-log --max-bytes 9", "--max-bytes is for --table messages and history"),
        ("--table failover-log --schema kafka", "--schema is for --table messages and history"),
    ],
)
def test_what_would_not_act_is_refused(run: Run, arguments: str, said: str) -> None:
    """Before Spark starts, by the name of the option."""
    result = run("pipeline", "stream", *WHERE, *arguments.split())
    assert result.exit_code == 64
    assert said in result.stderr


def test_bounds_are_those_of_the_data_source() -> None:
    """Each option has one of the source's names, and its unit."""
    at = datetime(2026, 1, 31, 12, tzinfo=UTC)
    assert StreamBounds(at, 9, 1_000, 5, timedelta(seconds=1.5)).to_options() == {
        "startingTimestamp": "2026-01-31T12:00:00+00:00",
        "maxRowsPerBatch": "9",
        "maxBytesPerBatch": "1000",
        "minRowsPerBatch": "5",
        "maxTriggerDelay": "1500ms",
    }
    assert StreamBounds(None, None, None, None, None).to_options() == {}


@pytest.mark.extended
@pytest.mark.parametrize("server", ["sqlite"], indirect=True)
def test_a_stream_in_kafkas_columns(
    run: Run, spark: SparkSession, store: SqlJournalStore, tmp_path: Path
) -> None:
    """In micro-batches of two rows; a checkpoint goes on with its own columns only."""
    journal = with_queues(store)
    seqs = store.append(journal, "one", "two", "three")
    url = store.settings.jdbc_connection_url.display
    output = tmp_path / "out"
    where = ("--url", url, "--to", output, "--checkpoint", tmp_path / "checkpoint")
    command = ("pipeline", "stream", *where, "--available-now", "--json", "-q")
    bounds = ("--max-rows", "2", "--starting-timestamp", "1d")
    batches: list[dict[str, Any]] = []
    while True:
        found = run(*command, "--schema", "kafka", *bounds)
        batches += map(json.loads, found.stdout.splitlines())
        if not found.exit_code:
            break
        # Spark waits 10 s for a Python worker to start, and a busy machine needs longer.
        assert "a worker of Spark did not start in 10 s" in found.stderr, found.stderr
    assert [(one["rows"], one["corrupt"]) for one in batches] == [(2, 0), (1, 0)]
    rows = spark.read.parquet(str(output)).orderBy("offset").collect()
    assert [(row["offset"], row["topic"]) for row in rows] == [(seq, "orders") for seq in seqs]
    assert [bytes(row["value"]) for row in rows] == [b"one", b"two", b"three"]
    refused = run(*command)
    assert refused.exit_code == 64
    assert "is of kafka, and not of orthia: give the same --schema" in refused.stderr
