"""DataFrames and streams into queues, each row once, whoever dies in between."""

import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import (
    DataType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
)

from orthia.broker.client.checkpoint import Checkpoint
from orthia.broker.client.replay import Replay
from orthia.config.store_settings import DatabaseStoreSettings
from orthia.pipeline.errors import BadOption, RowsDiffer
from orthia.pipeline.sink.feed import ROWS_OF_A_BATCH, Feed, Outgoing
from orthia.pipeline.sink.source import SPECULATION_VARIABLE, QueueSink
from tests.core.support import CoreUnderTest
from tests.core.test_replay import CoreLink, KilledError
from tests.pipeline.test_streams import forget, whatever_python_takes_to_start
from tests.process.clients import take_all
from tests.process.nodes import cluster
from tests.support.servers import url_with_password
from tests.support.waiting import wait_until

pytestmark = pytest.mark.extended

TARGET = "/queue/from.spark"


def rows(*texts: str) -> Iterator[Outgoing]:
    """Give rows as a task has them."""
    return iter([Outgoing(TARGET, {"colour": "red"}, text.encode()) for text in texts])


class Tasks:
    """Attempts of one task, one after the other, at one broker."""

    def __init__(self, directory: Path) -> None:
        self.core = CoreUnderTest()
        self._file = directory / "sink.secret"

    def run(self, *texts: str, batch: int = 0, dies_after: int = 10**9) -> int:
        """Send rows; after that many the task is killed. Return how many this attempt sent."""
        feed = Feed(rows(*texts), "sink/0", batch)
        sent = 0

        def count(size: int) -> None:
            nonlocal sent
            sent += size
            feed.forget(engine.report.through)
            if sent >= dies_after:
                raise KilledError

        engine = Replay(
            CoreLink(self.core),
            "sink.0",
            feed,
            checkpoint=Checkpoint(self._file, "sink.0"),
            notes=feed,
            chunk=2,
            on_sent=count,
        )
        return engine.run().sent

    def sent(self) -> list[str]:
        """Return the bodies in the queue, in order."""
        return [one.record.body.decode() for one in self.core.consume(TARGET).received]


@pytest.fixture
def tasks(tmp_path: Path) -> Tasks:
    """Give a broker without any marker."""
    return Tasks(tmp_path)


def test_a_task_that_is_done_again_goes_on(tasks: Tasks) -> None:
    """What the attempt before it stored is not sent again, nor by a third one."""
    with pytest.raises(KilledError):
        tasks.run(*"abcde", dies_after=2)
    assert tasks.run(*"abcde") == 3
    assert tasks.run(*"abcde") == 0
    assert tasks.sent() == list("abcde")


@pytest.mark.parametrize("again", ["xbcde", "axcde", "bacde", "a"])
def test_a_task_with_other_rows_sends_nothing(tasks: Tasks, again: str) -> None:
    """Changed, in another order or fewer: what was sent cannot be told, so it ends."""
    with pytest.raises(KilledError):
        tasks.run(*"abcde", dies_after=2)
    with pytest.raises(RowsDiffer, match="2 rows that an earlier attempt has sent"):
        tasks.run(*again)
    assert tasks.sent() == ["a", "b"]


def test_rows_after_those_that_were_sent_may_be_others(tasks: Tasks) -> None:
    """Nobody has them yet."""
    with pytest.raises(KilledError):
        tasks.run(*"abcde", dies_after=2)
    assert tasks.run(*"abXY") == 2
    assert tasks.sent() == list("abXY")


def test_micro_batches_follow_each_other(tasks: Tasks) -> None:
    """One that is done again after it was sent sends nothing; the next sends all of its own."""
    assert tasks.run(*"abc", batch=1) == 3
    assert tasks.run(*"abc", batch=1) == 0
    with pytest.raises(KilledError):
        tasks.run(*"defg", batch=2, dies_after=2)
    assert tasks.run(*"defg", batch=2) == 2
    assert tasks.run(*"abc", batch=1) == 0
    assert tasks.sent() == list("abcdefg")


def test_a_message_says_which_row_it_is() -> None:
    """Partition and place, by which a consumer, too, can tell that it has it already."""
    (one, two) = Feed(rows("a", "b"), "sink/7", 3)(0)
    assert one.headers == {"colour": "red", "orthia-sink-id": f"sink/7:{3 * ROWS_OF_A_BATCH + 1}"}
    assert two.place == one.place + 1


def test_no_more_is_kept_than_is_not_stored() -> None:
    """After a lost connection the feed gives again what may be lost, and only that."""
    feed = Feed(rows(*"abcdef"), "sink/0")
    given = feed(0)
    assert [next(given).place for _ in range(4)] == [1, 2, 3, 4]
    feed.forget(2)
    assert [message.place for message in feed(2)] == [3, 4, 5, 6]
    feed.forget(6)
    assert list(feed(6)) == []
    assert feed.at(6) != ""
    assert feed.at(5) == ""


TEXTS = MapType(StringType(), StringType())
KINDS = {"body": StringType(), "headers": TEXTS, "id": LongType()}


def columns(*names: str, **kinds: DataType) -> StructType:
    """Return a schema of columns of their usual types, or of ``kinds``."""
    found = {name: KINDS[name] for name in names} | kinds
    return StructType([StructField(name, kind) for name, kind in found.items()])


BROKER = {"broker": "127.0.0.1:1", "name": "n", "destination": TARGET}


@pytest.mark.parametrize(
    ("options", "schema", "text"),
    [
        ({**BROKER, "name": ""}, columns("body"), "option name"),
        ({**BROKER, "broker": "here"}, columns("body"), "is not HOST:PORT"),
        ({**BROKER, "chunks": "1"}, columns("body"), "unknown option chunks"),
        (BROKER, columns("body", "id"), "nothing to do with the column id"),
        (BROKER, columns(body=LongType()), "the column body is bigint; expected binary or string"),
        (BROKER, columns("headers"), "no column body"),
        ({"broker": "a:1", "name": "n"}, columns("body"), "say where to"),
    ],
)
def test_what_cannot_be_written_is_explained(
    options: dict[str, str],
    schema: StructType,
    text: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """Before anything is sent: the option or the column, and what was expected."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv(SPECULATION_VARIABLE, "false")
    with pytest.raises(BadOption, match=text):
        QueueSink(options).writer(schema, overwrite=False)


def test_two_attempts_at_a_time_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both would send; so is a session that does not tell."""
    monkeypatch.delenv(SPECULATION_VARIABLE, raising=False)
    with pytest.raises(BadOption, match=r"register\(spark\) first"):
        QueueSink(BROKER).writer(columns("body"), overwrite=False)
    monkeypatch.setenv(SPECULATION_VARIABLE, "true")
    with pytest.raises(BadOption, match=r"spark\.speculation"):
        QueueSink(BROKER).writer(columns("body"), overwrite=False)
    monkeypatch.delenv(SPECULATION_VARIABLE)
    with pytest.raises(BadOption, match="overwritten"):
        QueueSink(BROKER).writer(columns("body"), overwrite=True)


# --- by Spark, to a real pair

COUNT = 300


@pytest.mark.parametrize("server", ["mariadb"], indirect=True)
def test_every_row_arrives_once_though_task_and_node_die(
    spark: SparkSession, store_settings: DatabaseStoreSettings, tmp_path: Path
) -> None:
    """A write fails amid a partition; the same write again meets a kill -9 of the live node."""
    failed, halfway, served = (tmp_path / name for name in ("failed", "halfway", "served"))

    def troubled(batches: Iterator[Any]) -> Iterator[Any]:
        """Fail at the first attempt; at the second wait until another node serves."""
        import time

        for frame in batches:
            for at in range(len(frame)):
                if "row 50 " in frame.body[at]:
                    if not failed.exists():
                        failed.touch()
                        raise RuntimeError("the executor died")
                    halfway.touch()
                    deadline = time.monotonic() + 240
                    while not served.exists() and time.monotonic() < deadline:
                        time.sleep(0.05)
                    if not served.exists():
                        raise TimeoutError("no other node serves")
                yield frame.iloc[at : at + 1]

    texts = [(f"row {number} of Spark", {"number": f"{number}"}) for number in range(COUNT)]
    frame = spark.createDataFrame(texts, "body string, headers map<string,string>")
    with cluster(url_with_password(store_settings), tmp_path) as nodes:
        live, backup = nodes.pair()

        def kill_when_halfway() -> None:
            wait_until(halfway.exists, timeout_seconds=240, what="the second attempt is halfway")
            live.kill()
            backup.wait_serving()
            served.touch()

        def write() -> None:
            options = {
                "broker": f"127.0.0.1:{live.port}, 127.0.0.1:{backup.port}",
                "destination": TARGET,
                "name": "nightly-7",
                "checkpoint": str(tmp_path / "nightly-7.secret"),
                "chunk": "7",
            }
            frame.mapInPandas(troubled, frame.schema).write.format("orthia.queue").options(
                **options
            ).mode("append").save()

        with pytest.raises(PySparkException, match="the executor died"):
            write()
        killer = threading.Thread(target=kill_when_halfway)
        killer.start()
        write()
        killer.join()
        write()
        taken = take_all(backup.port, TARGET)
        backup.terminate()
    times = Counter(one.body.decode() for one in taken)
    assert times == Counter(text for text, _ in texts)
    numbers = {one.headers["number"] for one in taken}
    assert numbers == {f"{number}" for number in range(COUNT)}
    assert len({one.headers["orthia-sink-id"] for one in taken}) == COUNT


def test_a_stream_that_died_sends_no_row_twice(spark: SparkSession, tmp_path: Path) -> None:
    """A micro-batch was sent, and the checkpoint does not say so: it is done again, and silent."""
    source, checkpoint = tmp_path / "in", tmp_path / "checkpoint"
    source.mkdir()

    def more(*texts: str) -> None:
        (source / f"{texts[0]}.txt").write_text("\n".join(texts))

    with cluster(f"sqlite:///{tmp_path / 'orthia.db'}", tmp_path) as nodes:
        node = nodes.live().wait_serving()

        def stream() -> None:
            frame: DataFrame = spark.readStream.schema("body string").text(str(source))
            options = {"broker": f"127.0.0.1:{node.port}", "destination": TARGET}
            options |= {"name": "tail", "checkpoint": str(tmp_path / "tail.secret")}
            writer = frame.writeStream.format("orthia.queue").options(**options)
            writer = writer.option("checkpointLocation", str(checkpoint))
            writer = writer.trigger(availableNow=True)
            whatever_python_takes_to_start(lambda: writer.start().awaitTermination())

        more("a", "b", "c")
        stream()
        forget(checkpoint / "commits", 0)
        more("d", "e")
        stream()
        stream()
        taken = [frame.body.decode() for frame in take_all(node.port, TARGET)]
        node.terminate()
    assert Counter(taken) == Counter("abcde")
