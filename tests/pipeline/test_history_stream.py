"""The history as a stream: all that left its queue, once, in the order of leaving."""

import logging
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from sqlalchemy import MetaData, select, update

from orthia.database import Database
from orthia.journal import MessageLocation
from orthia.journal.sql.tables import history_table
from orthia.pipeline.errors import BadOption, HistoryPruned
from orthia.pipeline.sources.history_stream import HistoryStreamReader
from orthia.pipeline.sources.journal import JournalSource, conditions_of
from orthia.pipeline.sources.micro_batches import Limits
from orthia.pipeline.sources.schemas import HISTORY, arrow_schema
from orthia.pipeline.sources.spark_versions import ReadMaxRows
from orthia.pipeline.sources.store import StoreReference
from tests.cli.conftest import Run, run
from tests.journal.keeping import KeepingStore
from tests.pipeline.conftest import reference_to
from tests.pipeline.support import ALL_AVAILABLE, tail
from tests.pipeline.test_streams import produce
from tests.process.clients import take_all
from tests.process.file_nodes import file_cluster
from tests.process.locker_stores import store
from tests.support.servers import SqliteServer

pytestmark = pytest.mark.extended

__all__ = ["run"]

COLUMNS = ["seq", "body", "reason", "removed_at"]


@pytest.fixture
def reference(keeping: KeepingStore, monkeypatch: pytest.MonkeyPatch) -> StoreReference:
    """Give the name of ``keeping`` as a reader takes it."""
    return reference_to(keeping.settings, monkeypatch)


def test_what_left_comes_once_and_in_the_order_of_leaving(
    keeping: KeepingStore, reference: StoreReference
) -> None:
    """Not in the order of ``seq``: the last to come may be the first to leave."""
    reader = HistoryStreamReader(reference, COLUMNS)
    assert tail(reader, reader.initialOffset()) == ([], reader.initialOffset())
    for first in (50, 30, 40):
        keeping.keep(b"x", first=first)
    seqs, place = tail(reader, reader.initialOffset())
    assert seqs == [50, 30, 40]
    keeping.keep(b"x", first=10)
    keeping.keep(b"x", first=60)
    seqs, place = tail(reader, place)
    assert seqs == [10, 60]
    assert tail(reader, place) == ([], place)


def test_a_node_that_took_over_goes_on_with_the_history(
    keeping: KeepingStore, reference: StoreReference
) -> None:
    """Also when the clock of the database stepped back with the takeover."""
    reader = HistoryStreamReader(reference, COLUMNS)
    keeping.keep(b"x", first=70)
    with keeping.database.engine.begin() as connection:
        (at,) = connection.execute(select(keeping.history.c.removed_at)).one()
        ahead = at + timedelta(hours=1)
        connection.execute(update(keeping.history).values(removed_at=ahead))
    seqs, place = tail(reader, reader.initialOffset())
    keeping.advance_fence(2)
    journal = keeping.open(token=2)
    (seq,) = keeping.append(journal, "later")
    journal.delete([MessageLocation(seq)])
    keeping.settle(journal)
    assert (seqs, tail(reader, place)[0]) == ([70], [seq])


def test_micro_batches_and_tasks_cut_where_nothing_left_at_once(
    keeping: KeepingStore, reference: StoreReference
) -> None:
    """``maxRowsPerBatch`` and ``numPartitions``: the parts together are everything, in order."""
    order = [9, 3, 7, 1, 5]
    for first in order:
        keeping.keep(b"x", b"y", first=10 * first)
    expected = [10 * first + more for first in order for more in (0, 1)]
    reader = HistoryStreamReader(reference, COLUMNS, 3, limits=Limits(max_rows=4))
    assert reader.getDefaultReadLimit() == ReadMaxRows(4)
    place, found = reader.initialOffset(), []
    for _ in range(10):
        seqs, place = tail(reader, place, reader.getDefaultReadLimit())
        found += sorted_pairs(seqs)
    assert found == expected
    reader.prepareForTriggerAvailableNow()
    keeping.keep(b"x", first=999)
    assert sorted_pairs(tail(reader, reader.initialOffset())[0]) == expected


def sorted_pairs(seqs: list[int]) -> list[int]:
    """Return seqs with those of one tens, which left together, in order."""
    tens = list(dict.fromkeys(seq // 10 for seq in seqs))
    return [seq for ten in tens for seq in sorted(one for one in seqs if one // 10 == ten)]


def test_the_rows_are_those_of_the_history(
    keeping: KeepingStore, reference: StoreReference
) -> None:
    """All columns, and conditions, as a batch has them."""
    keeping.keep(b"x", b"y", first=5)
    reader = HistoryStreamReader(
        reference, HISTORY.fieldNames(), conditions=conditions_of({"minseq": "6"})
    )
    start = reader.initialOffset()
    (partition,) = reader.partitions(start, reader.latestOffset(start, ALL_AVAILABLE))
    (batch,) = reader.read(partition)
    found: Any = batch
    assert found.schema.equals(arrow_schema(HISTORY))
    (row,) = found.to_pylist()
    assert (row["seq"], row["reason"], row["kind"]) == (6, "acknowledged", "message")
    assert row["removed_at"] == keeping.removed()[6]


def test_a_stream_that_pruning_overtook_says_so(
    keeping: KeepingStore, reference: StoreReference, caplog: pytest.LogCaptureFixture
) -> None:
    """It fails, or goes on and warns; one that had read what was pruned does neither."""
    reader = HistoryStreamReader(reference, COLUMNS)
    careless = HistoryStreamReader(reference, COLUMNS, fail_on_pruned=False)
    keeping.keep(b"read", first=1)
    keeping.age(days=9)
    _, place = tail(reader, reader.initialOffset())
    keeping.keep(b"missed", first=2)
    later = reader.latestOffset(place, ALL_AVAILABLE)
    keeping.pruner().prune()
    assert tail(reader, place)[0] == [2]
    (stretch,) = reader.partitions(place, later)
    keeping.age(days=9)
    keeping.keep(b"there", first=3)
    assert keeping.pruner().prune() == 1
    with pytest.raises(HistoryPruned, match="may be missing from the stream"):
        reader.latestOffset(place, ALL_AVAILABLE)
    with pytest.raises(HistoryPruned):
        list(reader.read(stretch))
    caplog.set_level(logging.WARNING, "orthia.pipeline")
    assert tail(careless, place)[0] == [3]
    assert "may be missing from the stream" in caplog.text
    # A new stream begins with what is kept.
    assert tail(reader, reader.initialOffset())[0] == [3]


def test_the_first_micro_batch_is_overtaken_by_nothing(
    keeping: KeepingStore, reference: StoreReference
) -> None:
    """It begins where pruning goes on: what goes meanwhile, nobody was to have."""
    reader = HistoryStreamReader(reference, COLUMNS)
    keeping.keep(b"old", first=1)
    keeping.age(days=9)
    keeping.keep(b"there", first=2)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ALL_AVAILABLE)
    (stretch,) = reader.partitions(start, end)
    assert keeping.pruner().prune() == 1
    (batch,) = reader.read(stretch)
    found: Any = batch
    assert [row["seq"] for row in found.to_pylist()] == [2]
    assert reader.latestOffset(start, ALL_AVAILABLE) == end
    # With nothing there it has not begun yet.
    keeping.age(days=9)
    assert keeping.pruner().prune() == 1
    assert reader.latestOffset(start, ALL_AVAILABLE) == start
    keeping.keep(b"first", first=3)
    assert tail(reader, start)[0] == [3]


def test_an_option_for_pruning_is_one_of_two() -> None:
    """What is neither is refused by name, and so is a stream of queues."""
    with pytest.raises(BadOption, match="neither fail nor continue"):
        JournalSource({"url": "sqlite:///x.db", "onpruned": "ignore"})
    with pytest.raises(BadOption, match="must not be bindings"):
        JournalSource({"url": "sqlite:///x.db", "table": "bindings"}).streamReader(HISTORY)


# --- as an operator runs it, beside a real pair

RETENTION = '<journal-retention xmlns="urn:orthia" period="1"/>'


def test_all_that_passed_a_pair_is_in_the_stream_once(
    run: Run, spark: SparkSession, tmp_path: Path
) -> None:
    """Sent and consumed through a kill -9 and a failback; one run of the stream has both."""
    server = SqliteServer(tmp_path)
    settings = server.settings(server.create_database())
    out, checkpoint = tmp_path / "passed", tmp_path / "checkpoint"
    received: list[bytes] = []

    def stream(config: Path) -> None:
        where = ("--config", config, "--to", out, "--checkpoint", checkpoint)
        arguments = ("--table", "history", "--available-now", "-q")
        while (done := run("pipeline", "stream", *where, *arguments)).exit_code:
            # Spark waits 10 s for a Python worker to start, and a busy machine needs longer.
            assert "a worker of Spark did not start in 10 s" in done.output

    with file_cluster(tmp_path, store(tmp_path, settings, "lease", more=RETENTION)) as nodes:
        live, backup = nodes.pair()
        config = nodes.nodes[1].config_path
        ports = [live.port, backup.port]

        def kill() -> None:
            live.kill()
            backup.wait_serving()

        produce(ports, "orders", lambda: None)
        received += [frame.body for frame in take_all(live.port, "/queue/orders")]
        stream(config)
        produce(ports, "orders", kill)
        received += [frame.body for frame in take_all(backup.port, "/queue/orders")]
        live.start().wait_serving()
        produce(ports, "orders", lambda: None)
        received += [frame.body for frame in take_all(live.port, "/queue/orders")]
        stream(config)
        stream(config)
        live.terminate()
        backup.terminate()
    found = spark.read.parquet(str(out)).orderBy("removed_at").collect()
    database = Database.from_settings(settings)
    table = history_table(MetaData(), settings.message_history_table_name, database.dialect)
    with database.engine.connect() as connection:
        kept = connection.execute(select(table.c.seq)).scalars().all()
    database.dispose()
    assert sorted(row["seq"] for row in found) == sorted(kept)
    assert {row["reason"] for row in found} == {"acknowledged"}
    # The end that take_all sends is stored if it would overtake what is being stored.
    assert {bytes(row["body"]) for row in found} - {b""} == set(received)
    assert len(received) >= 300


@pytest.mark.usefixtures("spark")
def test_a_format_without_its_package_is_refused(run: Run, tmp_path: Path) -> None:
    """Delta is the user's own package: without it one line says how to give it."""
    opened = KeepingStore(SqliteServer(tmp_path).settings("here.sqlite"))
    opened.close()
    arguments = ("--to", tmp_path / "out", "--checkpoint", tmp_path / "checkpoint")
    url = f"sqlite:///{tmp_path / 'here.sqlite'}"
    refused = run(
        *("pipeline", "stream", "--url", url, "--table", "history", "--format", "delta"),
        *arguments,
    )
    assert refused.exit_code == 69
    assert "no format delta" in refused.stderr
    assert "spark.jars.packages=io.delta" in refused.stderr
    wrong = run("pipeline", "stream", "--url", url, "--on-pruned", "continue", *arguments)
    assert wrong.exit_code == 64
