"""Tails of a journal and a failover log: every row once, through crashes and takeovers."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TypeVar

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from sqlalchemy import MetaData, insert, select, update

from orthia.config.store_settings import DatabaseStoreSettings
from orthia.config.urls import DatabaseUrl
from orthia.database import Database
from orthia.journal.model.message import encode_message
from orthia.journal.model.unit import Unit
from orthia.journal.sql.tables import messages_table
from orthia.nodemanager.failover_log import FailoverLogTable
from orthia.nodemanager.tables import failover_log
from orthia.pipeline.errors import BadOption, WrongInput
from orthia.pipeline.jobs.checkpoint import Purpose, claim
from orthia.pipeline.jobs.stream import to_directory
from orthia.pipeline.sources.failover_log import FailoverLogSource
from orthia.pipeline.sources.journal import JournalSource, conditions_of
from orthia.pipeline.sources.kafka_schema import KAFKA
from orthia.pipeline.sources.micro_batches import Limits, MicroBatches, starting_at
from orthia.pipeline.sources.schemas import arrow_schema
from orthia.pipeline.sources.spark_versions import ReadMaxRows
from orthia.pipeline.sources.store import StoreReference
from orthia.pipeline.sources.streams import FailoverLogStreamReader, JournalStreamReader
from tests.cli.test_failover_log import NOON, entry
from tests.journal.support import OTHER_QUEUE, QUEUE, SqlJournalStore, record
from tests.pipeline.conftest import QUICK_ENVIRONMENT, QUICK_START
from tests.pipeline.support import ALL_AVAILABLE, tail, with_queues
from tests.process.clients import Producer
from tests.process.nodes import cluster
from tests.support.waiting import wait_until

pytestmark = pytest.mark.extended

_Result = TypeVar("_Result")


def test_the_tail_goes_on_after_a_takeover(
    store: SqlJournalStore, reference: StoreReference
) -> None:
    """What was read is not read again, and what the next writer stores comes next."""
    reader = JournalStreamReader(reference, ["seq"])
    first = store.open()
    stored = store.append(first, "one", "two")
    seqs, place = tail(reader, reader.initialOffset())
    assert seqs == stored
    assert tail(reader, place) == ([], place)
    store.advance_fence(2)
    stored = store.append(store.open(token=2), "three")
    assert tail(reader, place)[0] == stored


def test_acknowledged_messages_do_not_set_the_tail_back(
    store: SqlJournalStore, reference: StoreReference
) -> None:
    """An empty table's highest seq is 0; the stream's place stays where it was."""
    reader = JournalStreamReader(reference, ["seq"])
    (seq,) = store.append(store.open(), "one")
    place = tail(reader, {"seq": 0})[1]
    store.remove(seq)
    assert reader.latestOffset(place, ALL_AVAILABLE) == place == {"seq": seq}


def test_a_micro_batch_takes_so_many_rows(
    store: SqlJournalStore, reference: StoreReference
) -> None:
    """``maxRowsPerBatch`` cuts; the parts together are everything."""
    reader = JournalStreamReader(reference, ["seq"], limits=Limits(max_rows=3))
    stored = store.append(store.open(), *"abcdefgh")
    place, parts = reader.initialOffset(), []
    for _ in range(3):
        seqs, place = tail(reader, place, reader.getDefaultReadLimit())
        parts.append(seqs)
    assert [len(part) for part in parts] == [3, 3, 2]
    assert [seq for part in parts for seq in part] == stored
    assert reader.getDefaultReadLimit() == ReadMaxRows(3)


def test_a_micro_batch_takes_so_many_bytes(
    store: SqlJournalStore, reference: StoreReference
) -> None:
    """``maxBytesPerBatch`` counts stored bytes; a message that is larger is one by itself."""
    stored = store.append(store.open(), *(letter * 1_000 for letter in "abcd"), "e" * 9_000, "f")
    reader = JournalStreamReader(reference, ["seq"], limits=Limits(max_bytes=2_500))
    place, parts = reader.initialOffset(), []
    for _ in range(4):
        seqs, place = tail(reader, place, reader.getDefaultReadLimit())
        parts.append(seqs)
    assert parts == [stored[:2], stored[2:4], stored[4:5], stored[5:]]
    # A trigger that wants all gets all.
    assert tail(reader, {"seq": 0})[0] == stored


def test_a_micro_batch_waits_for_enough_rows_but_not_for_ever(
    store: SqlJournalStore, reference: StoreReference
) -> None:
    """``minRowsPerBatch`` up to ``maxTriggerDelay``; a run that ends does not wait."""
    now = 0.0
    limits = Limits.from_options({"minrowsperbatch": "3", "maxtriggerdelay": "2m"})
    reader = JournalStreamReader(reference, ["seq"], limits=limits)
    reader._micro_batches = MicroBatches(limits, lambda: now)
    journal = store.open()
    stored = store.append(journal, "one", "two")
    assert reader.latestOffset({"seq": 0}, ALL_AVAILABLE) == {"seq": 0}
    now = 119.0
    stored += store.append(journal, "three")
    assert tail(reader, {"seq": 0}) == (stored, {"seq": stored[-1]})
    stored += store.append(journal, "four")
    now = 200.0
    place = {"seq": stored[2]}
    assert reader.latestOffset(place, ALL_AVAILABLE) == place
    now = 240.0
    assert tail(reader, place)[0] == stored[3:]
    ends = JournalStreamReader(reference, ["seq"], limits=limits)
    ends.prepareForTriggerAvailableNow()
    assert tail(ends, place)[0] == stored[3:]


def test_a_new_stream_begins_at_a_time(store: SqlJournalStore, reference: StoreReference) -> None:
    """``startingTimestamp``, in Kafka's milliseconds or as a time; later than all, at the end."""
    stored = store.append(store.open(), *"abc")
    late = datetime.now(UTC).replace(microsecond=0) + timedelta(days=1)
    with store.database.engine.begin() as connection:
        one = store.messages.c.seq == stored[1]
        connection.execute(update(store.messages).where(one).values(written_at=late))
    texts = (late.isoformat(), str(int(late.timestamp() * 1_000)))
    for text in texts:
        starting = starting_at({"startingtimestamp": text})
        reader = JournalStreamReader(reference, ["seq"], starting=starting)
        assert tail(reader, reader.initialOffset())[0] == stored[1:]
    never = JournalStreamReader(reference, ["seq"], starting=late + timedelta(days=1))
    assert never.initialOffset() == {"seq": stored[-1]}


def test_messages_have_kafkas_columns_if_they_are_wanted(
    store: SqlJournalStore, reference: StoreReference
) -> None:
    """The group is the key; bodies of several queues and duplicate ids are no messages."""
    journal = with_queues(store, "prices")
    unit = Unit()
    sent = record("1.10")._replace(address="prices", head=b"JMSXGroupID:eur\nx:1\n")
    unit.add_message([QUEUE, OTHER_QUEUE], encode_message(sent))
    journal.append_unit(unit)
    store.settle(journal)
    seqs = store.append(journal, "plain")
    reader = JournalStreamReader(reference, [], kafka=True)
    end = reader.latestOffset({"seq": 0}, ALL_AVAILABLE)
    batches = [batch for part in reader.partitions({"seq": 0}, end) for batch in reader.read(part)]
    assert all(batch.schema == arrow_schema(KAFKA) for batch in batches)
    first, second, plain = [row for batch in batches for row in batch.to_pylist()]
    for one in (first, second):
        assert (one["key"], one["value"], one["topic"]) == (b"eur", b"1.10", "prices")
        assert {"key": "x", "value": b"1"} in one["headers"]
        assert (one["partition"], one["timestampType"]) == (0, 0)
    assert (plain["key"], plain["value"], plain["offset"]) == (None, b"plain", seqs[0])


def test_an_option_that_cannot_be_meant_is_refused_by_name() -> None:
    """Rather than be passed over."""
    store = {"url": "sqlite:///none.db"}
    for options, said in (
        ({"maxTriggerDelay": "5m"}, "minRowsPerBatch"),
        ({"minRowsPerBatch": "5", "maxTriggerDelay": "soon"}, "30s or 15m"),
        ({"minRowsPerBatch": "5", "maxRowsPerBatch": "4"}, "more than maxRowsPerBatch"),
        ({"startingTimestamp": "yesterday"}, "milliseconds since 1970"),
        ({"schema": "avro"}, "neither orthia nor kafka"),
        ({"schema": "kafka", "columns": "seq"}, "columns of its own"),
        ({"schema": "kafka", "table": "bindings"}, "messages and the history alone"),
    ):
        given = {name.lower(): value for name, value in (store | options).items()}
        with pytest.raises(BadOption, match=said):
            JournalSource(given)
    with pytest.raises(BadOption, match="maxRowsPerBatch"):
        FailoverLogSource({**store, "maxbytesperbatch": "5"})


def test_available_now_ends_where_it_began_to_look(
    store: SqlJournalStore, reference: StoreReference
) -> None:
    """A busy pair does not keep an available-now stream from its end."""
    reader = JournalStreamReader(reference, ["seq"])
    journal = store.open()
    stored = store.append(journal, "one")
    reader.prepareForTriggerAvailableNow()
    store.append(journal, "two")
    assert tail(reader, {"seq": 0})[0] == stored


def test_a_stream_stands_still_before_what_is_too_new(
    store: SqlJournalStore, reference: StoreReference
) -> None:
    """A later run with a later time goes on there: nothing was passed over."""
    stored = store.append(store.open(), *"abcd")
    late = datetime.now(UTC) + timedelta(days=1)
    with store.database.engine.begin() as connection:
        # The last one is older again: the database's clock was set back.
        newer = store.messages.c.seq.in_([stored[1], stored[2]])
        connection.execute(
            update(store.messages).where(newer).values(written_at=late + timedelta(hours=1))
        )

    def until(time: datetime) -> JournalStreamReader:
        conditions = conditions_of({"until": time.isoformat()})
        return JournalStreamReader(reference, ["seq"], conditions=conditions)

    seqs, place = tail(until(late), {"seq": 0})
    assert seqs == stored[:1]
    assert tail(until(late), place) == ([], place)
    assert tail(until(late + timedelta(days=1)), place)[0] == stored[1:]


def test_a_checkpoint_is_of_what_it_began_with(spark: SparkSession, tmp_path: Path) -> None:
    """Rows of another queue, table or output would be missing for ever, without a word."""
    mine, old, to = str(tmp_path / "mine"), tmp_path / "old", str(tmp_path / "out")
    purpose = Purpose("messages", ("b", "a"), to, "parquet")
    for queues in (("b", "a"), ("a", "b")):
        claim(spark, mine, replace(purpose, queues=queues))
    for change, said in (
        ({"queues": ()}, "is of a, b, and not of all queues"),
        ({"to": str(tmp_path / "elsewhere")}, 'if it was moved, say so in the field "to"'),
        ({"table": "history"}, "is of messages, and not of history"),
        ({"form": "delta"}, "is of parquet, and not of delta"),
    ):
        with pytest.raises(BadOption, match=said):
            claim(spark, mine, replace(purpose, **change))
    # An older version noted the queues alone, and one before it nothing.
    (Path(mine) / "orthia.json").write_text('{"queues": ["a", "b"]}')
    (Path(mine) / ".orthia.json.crc").unlink()
    claim(spark, mine, purpose)
    (old / "offsets").mkdir(parents=True)
    (old / "offsets" / "0").write_text("v1")
    with pytest.raises(BadOption, match="is of all queues"):
        claim(spark, str(old), purpose)
    claim(spark, str(old), replace(purpose, queues=()))


@pytest.mark.parametrize("server", ["sqlite"], indirect=True)
def test_a_checkpoint_goes_on_with_its_own_output_only(
    spark: SparkSession, store: SqlJournalStore, reference: StoreReference, tmp_path: Path
) -> None:
    """One that is gone, or another's, or ahead, is refused; Spark would leave rows out."""
    output, checkpoint = tmp_path / "out", tmp_path / "checkpoint"
    purpose = Purpose("messages", (), str(output), "parquet")
    log = output / "_spark_metadata"
    journal = store.open()
    stored: list[int] = []

    def run() -> list[int]:
        claim(spark, str(checkpoint), purpose)
        stored.extend(store.append(journal, "one"))
        frame = stream_of(spark, reference)

        def finish() -> None:
            to_directory(frame, str(output), str(checkpoint), every_seconds=None).awaitTermination()

        whatever_python_takes_to_start(finish)
        return seqs_in(spark, output)

    def refused(kind: type[Exception], said: str) -> str:
        with pytest.raises(kind, match=said) as found:
            claim(spark, str(checkpoint), purpose)
        return str(found.value)

    assert run() == stored
    assert run() == stored
    output.rename(tmp_path / "gone")
    refused(BadOption, "does not have them: bring it back")
    (tmp_path / "gone").rename(output)
    with pytest.raises(BadOption, match="new rows would be left out"):
        claim(spark, str(tmp_path / "new"), purpose)
    # The machine stopped, and the newest file of a log is empty: what is said mends it.
    for directory in (checkpoint / "offsets", checkpoint / "commits", log):
        newest = str(max(int(one.name) for one in directory.iterdir() if one.name.isdigit()))
        (directory / newest).write_bytes(b"")
        (directory / f".{newest}.crc").unlink()
        said = refused(WrongInput, f"{newest} is empty: the machine stopped")
        named = re.search(r"Remove (.*), each with", said)
        assert named is not None
        for name in named[1].split(", "):
            Path(name).unlink()
            Path(name).with_name(f".{Path(name).name}.crc").unlink(missing_ok=True)
        assert run() == stored


def test_an_event_with_a_lower_id_that_comes_late_is_not_missed(
    store: SqlJournalStore, reference: StoreReference
) -> None:
    """Rows of several nodes are not committed in the order of their ids."""
    database, settings = store.database, store.settings
    log = FailoverLogTable(database, settings)
    reader = FailoverLogStreamReader(reference)

    def new(start: dict[str, int]) -> tuple[list[tuple[str, int]], dict[str, int]]:
        end = reader.latestOffset(start, ALL_AVAILABLE)
        rows = [
            (row["node_name"], row["event_seq"])
            for partition in reader.partitions(start, end)
            for batch in reader.read(partition)
            for row in batch.to_pylist()
        ]
        return sorted(rows), json.loads(json.dumps(end))

    log.insert(entry("a", 1, 1))
    log.insert(entry("a", 2, 2))
    seen, place = new(reader.initialOffset())
    assert seen == [("a", 1), ("a", 2)]
    late = entry("b's", 1, 1)
    table = failover_log(MetaData(), settings.failover_log_table_name, database.dialect)
    row = {
        **{name: getattr(late, name) for name in ("node_id", "node_name", "holder_id", "role")},
        **{name: getattr(late, name) for name in ("code", "level", "event", "token", "event_seq")},
        "id": -5,
        "db_time": NOON,
        "node_time": NOON.isoformat(),
        "detail": late.to_json(),
    }
    with database.engine.begin() as connection:
        connection.execute(insert(table).values(row))
    log.insert(entry("a", 3, 3))
    seen, place = new(place)
    assert seen == [("a", 3), ("b's", 1)]
    assert new(place) == ([], place)
    # In parts, and from a time on.
    reader = FailoverLogStreamReader(reference, limits=Limits(max_rows=3))
    parts, place = [], reader.initialOffset()
    for _ in range(2):
        end = reader.latestOffset(place, reader.getDefaultReadLimit())
        parts.append(end)
        place = end
    assert [sum(one.values()) for one in parts] == [3, 4]
    after = FailoverLogStreamReader(reference, starting=NOON + timedelta(seconds=1))
    assert after.initialOffset()[late.holder_id] == 1


def stream_of(spark: SparkSession, reference: StoreReference) -> DataFrame:
    """Return the stream of a journal's messages."""
    options = reference.to_options()
    source = spark.readStream.format("orthia.journal").options(
        **options, columns="seq,address,body"
    )
    return source.load()


def forget(log: Path, batch: int) -> None:
    """Undo that a micro-batch was noted in one of Spark's logs."""
    (log / str(batch)).unlink()
    (log / f".{batch}.crc").unlink()


def whatever_python_takes_to_start(run: Callable[[], _Result]) -> _Result:
    """Run a query, anew if Spark gave a Python worker up that took 10 s to start.

    Spark's limit is no setting, and a busy machine needs longer.
    """
    while True:
        try:
            return run()
        except StreamingQueryException as error:
            if "Python worker failed to connect back" not in str(error):
                raise


def seqs_in(spark: SparkSession, directory: Path) -> list[int]:
    """Return every seq the Parquet has, read through Spark."""
    return sorted(row["seq"] for row in spark.read.parquet(str(directory)).select("seq").collect())


@pytest.mark.parametrize("server", ["sqlite"], indirect=True)
def test_a_stream_that_died_anywhere_writes_each_row_once(
    spark: SparkSession, store: SqlJournalStore, reference: StoreReference, tmp_path: Path
) -> None:
    """Whatever of a micro-batch was on the disk when the stream died, doing it again is right."""
    output, checkpoint = tmp_path / "out", tmp_path / "checkpoint"

    def run() -> list[int]:
        def finish() -> None:
            query = to_directory(
                stream_of(spark, reference), str(output), str(checkpoint), every_seconds=None
            )
            query.awaitTermination()

        whatever_python_takes_to_start(finish)
        return seqs_in(spark, output)

    journal = store.open()
    stored = store.append(journal, "one", "two")
    assert run() == stored
    # It died when the output was logged, and before the checkpoint said so.
    forget(checkpoint / "commits", 0)
    stored += store.append(journal, "three")
    assert run() == stored
    # It died with files written that no log has: the last micro-batch is done again.
    newest = max(int(one.name) for one in (checkpoint / "commits").iterdir() if one.suffix == "")
    forget(checkpoint / "commits", newest)
    shutil.copy(next(output.glob("*.parquet")), output / "part-99999-orphan.snappy.parquet")
    forget(output / "_spark_metadata", newest)
    store.advance_fence(2)
    stored += store.append(store.open(token=2), "four")
    assert run() == stored


def table_seqs(url: str) -> list[int]:
    """Return every seq of MESSAGES."""
    settings = DatabaseStoreSettings(DatabaseUrl.parse(url))
    database = Database.from_settings(settings)
    table = messages_table(MetaData(), settings.message_table_name, database.dialect)
    try:
        with database.engine.connect() as connection:
            return sorted(connection.execute(select(table.c.seq)).scalars())
    finally:
        database.dispose()


def produce(
    ports: list[int], address: str, meanwhile: Callable[[], object]
) -> set[tuple[str, str]]:
    """Send to ``address`` before, during and after ``meanwhile``; return what has a receipt."""
    with Producer(ports, f"/queue/{address}") as producer:
        producer.wait_receipts(50)
        meanwhile()
        producer.wait_receipts(50)
        return {(address, f"message {number}") for number in producer.finish()}


def test_killing_writer_and_stream_loses_and_repeats_nothing(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Kill -9 of the stream and the live node at once, then of the next: each message once."""
    url = f"sqlite:///{tmp_path / 'orthia.db'}"
    output, checkpoint = tmp_path / "out", tmp_path / "checkpoint"
    reference = StoreReference(url=url)
    with cluster(url, tmp_path) as nodes:
        live, backup = nodes.pair()
        third = nodes.backup("third").wait_log("AMQ221032")
        ports = [live.port, backup.port, third.port]
        log = tmp_path / "stream.log"

        def start_stream() -> subprocess.Popen[bytes]:
            with log.open("wb") as opened:
                return subprocess.Popen(
                    [
                        *(sys.executable, "-m", "orthia.broker.cli", "pipeline", "stream"),
                        *("--url", url),
                        *("--to", str(output), "--checkpoint", str(checkpoint)),
                        *("--every", "0.2", "--master", "local[1]"),
                        *(f"--conf={name}={value}" for name, value in QUICK_START.items()),
                    ],
                    env={**os.environ, **QUICK_ENVIRONMENT},
                    stdin=subprocess.DEVNULL,
                    stdout=opened,
                    stderr=opened,
                    start_new_session=True,
                )

        stream = start_stream()
        try:
            receipted = produce(ports, "first", lambda: None)
            commits = checkpoint / "commits"

            def has_committed() -> bool:
                nonlocal stream
                if stream.poll() is not None:
                    # Spark gives its Python 10 s to start, which a busy machine exceeds.
                    assert "did not start in 10 s" in log.read_text(), log.read_text()
                    stream = start_stream()
                return commits.is_dir() and any(commits.iterdir())

            wait_until(
                has_committed, timeout_seconds=900, what="the stream has committed a micro-batch"
            )

            def kill_both() -> None:
                live.signal(signal.SIGKILL)
                os.killpg(stream.pid, signal.SIGKILL)
                backup.wait_serving()

            receipted |= produce(ports, "second", kill_both)
        finally:
            os.killpg(stream.pid, signal.SIGKILL)
            stream.wait(120)
        third.wait_log("AMQ221031")

        def kill_backup() -> None:
            backup.kill()
            third.wait_serving()

        def go_on() -> StreamingQuery:
            query = to_directory(
                stream_of(spark, reference), str(output), str(checkpoint), every_seconds=0.1
            )

            def has_read() -> bool:
                if (error := query.exception()) is not None:
                    raise error
                return any(one["numInputRows"] for one in query.recentProgress)

            wait_until(has_read, timeout_seconds=900, what="the stream goes on")
            return query

        query = whatever_python_takes_to_start(go_on)
        receipted |= produce(ports, "third", kill_backup)
        query.stop()
        third.terminate()
    whatever_python_takes_to_start(
        lambda: to_directory(
            stream_of(spark, reference), str(output), str(checkpoint), every_seconds=None
        ).awaitTermination()
    )
    columns = ("seq", "address", "string(body) AS text")
    found = spark.read.parquet(str(output)).selectExpr(*columns).collect()
    assert [seq for seq, times in Counter(row["seq"] for row in found).items() if times > 1] == []
    assert sorted(row["seq"] for row in found) == table_seqs(url)
    assert receipted <= {(row["address"], row["text"]) for row in found}
