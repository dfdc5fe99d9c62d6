"""Sessions of Spark that Orthia did not make, and executors on which it is not installed."""

import importlib.util
import json
import os
import subprocess
import sys
import venv
from collections.abc import Sequence
from pathlib import Path
from textwrap import dedent
from typing import Any

import pyspark
import pytest

from orthia.pipeline.sources.spark_versions import HAS_STREAMS
from tests.cli.conftest import Run, run
from tests.journal.support import SqlJournalStore
from tests.pipeline.conftest import QUICK_ENVIRONMENT, QUICK_START
from tests.pipeline.support import with_queues

__all__ = ["run"]

pytestmark = [
    pytest.mark.extended,
    pytest.mark.parametrize("server", ["sqlite"], indirect=True),
]

HERE = {"PYTHONPATH": str(Path(__file__).parents[2]), "PYSPARK_PYTHON": sys.executable}
"""What is on Python's path is found as what pip installs is; workers are this Python."""
SUBMIT = Path(pyspark.__file__).parent / "bin" / "spark-submit"
CLUSTER = "local-cluster[2,1,1024]"
QUIET = [f"--conf={name}={value}" for name, value in QUICK_START.items()]


@pytest.fixture
def url(store: SqlJournalStore) -> str:
    """Give a store with three messages in one queue and one in another."""
    journal = with_queues(store)
    store.append(journal, "one", "two", "three")
    return store.settings.jdbc_connection_url.display


@pytest.fixture
def bare_python(tmp_path: Path) -> Path:
    """Give a Python with all packages of this one but Orthia, as an executor's host may have it."""
    where = tmp_path / "bare"
    venv.create(where, symlinks=True)
    (packages,) = where.glob("lib/python3.*/site-packages")
    # A plain line is a place to look in, whose own lines, that of Orthia among them, do not count.
    mine = [path for path in sys.path if path.endswith("site-packages")]
    (packages / "packages.pth").write_text("\n".join(mine) + "\n")
    return where / "bin" / "python"


def told(program: str, command: Sequence[str | Path], directory: Path, **environment: str) -> Any:
    """Run a program as a process of its own; return what it printed last, as JSON."""
    (directory / "job.py").write_text(dedent(program))
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [*command, directory / "job.py"],
        capture_output=True,
        text=True,
        timeout=800,
        cwd=directory,
        env=kept | {"JDK_JAVA_OPTIONS": QUICK_ENVIRONMENT["JDK_JAVA_OPTIONS"]} | environment,
    )
    lines = [line for line in done.stderr.splitlines() if " INFO " not in line]
    assert done.returncode == 0, "\n".join(lines[-40:])
    return json.loads(done.stdout.splitlines()[-1])


def test_spark_finds_what_is_installed(url: str, tmp_path: Path) -> None:
    """Where Orthia is on Python's path Spark knows its data sources, and nobody registers any."""
    program = f"""
        import json
        from pyspark.sql import SparkSession
        builder = SparkSession.builder.master("local[1]")
        for name, value in {QUICK_START!r}.items():
            builder = builder.config(name, value)
        spark = builder.getOrCreate()
        read = spark.read.option("url", {url!r})
        rows = read.format("orthia.journal").load().where("queue = 'orders'").count()
        locks = read.format("orthia.node_manager").load().count()
        events = read.format("orthia.failover_log").load().count()
        try:
            spark.readStream.format("orthia.subscription").option("url", {url!r}).load()
            said = ""
        except Exception as error:
            said = str(error)
        print(json.dumps([rows, locks, events, said]))
    """
    *counts, said = told(program, [sys.executable], tmp_path, **HERE)
    assert counts == [3, 2, 0]
    assert "option queue: say which queue the stream reads" in said


def test_an_archive_brings_orthia_to_a_cluster(
    run: Run, url: str, bare_python: Path, tmp_path: Path
) -> None:
    """Executors on which it is not installed, and a driver, which gets it by spark-submit."""
    archive = tmp_path / "orthia.zip"
    assert run("pipeline", "py-files", archive).exit_code == 0
    missing = subprocess.run(
        [bare_python, "-c", "import orthia"], capture_output=True, cwd=tmp_path
    )
    assert b"No module named 'orthia'" in missing.stderr
    program = f"""
        import json
        from pyspark.sql import SparkSession
        from orthia.pipeline.session import register
        spark = SparkSession.builder.getOrCreate()
        register(spark)
        numbers = spark.sparkContext.range(2, numSlices=2)
        places = numbers.map(lambda _: __import__("orthia").__file__)
        options = {{"url": {url!r}, "numPartitions": "2"}}
        found = spark.read.format("orthia.journal").options(**options).load()
        print(json.dumps([sorted(set(places.collect())), found.where("body_size > 0").count()]))
    """
    places, rows = told(
        program,
        [SUBMIT, "--master", CLUSTER, *QUIET, "--py-files", archive],
        tmp_path,
        PYSPARK_PYTHON=str(bare_python),
        SPARK_LOCAL_IP="127.0.0.1",
    )
    assert rows == 3
    assert all("orthia.zip/" in place for place in places)


def test_a_command_brings_its_archive_along(url: str, bare_python: Path, tmp_path: Path) -> None:
    """The driver has Orthia, and the executors have what --conf names."""
    archive = tmp_path / "orthia.zip"
    orthia = (sys.executable, "-m", "orthia.broker.cli", "pipeline")
    subprocess.run([*orthia, "py-files", archive], check=True, stdout=subprocess.DEVNULL)
    done = subprocess.run(
        [
            *(*orthia, "traffic", "--url", url, "--json", "-q", "--partitions", "2"),
            *("--master", CLUSTER, *QUIET, f"--conf=spark.submit.pyFiles={archive}"),
        ],
        capture_output=True,
        text=True,
        timeout=800,
        env=os.environ | {"PYSPARK_PYTHON": str(bare_python)},
    )
    assert done.returncode == 0, done.stderr[-4_000:]
    assert [row["messages"] for row in json.loads(done.stdout)["queues"]] == [3]


@pytest.mark.skipif(importlib.util.find_spec("grpc") is None, reason="pyspark[connect] is missing")
def test_over_spark_connect(url: str, tmp_path: Path) -> None:
    """Tables are read, as batches and streams; what does not work there says so in one line."""
    program = f"""
        import json
        from pyspark.sql import SparkSession
        from orthia.pipeline.session import register
        builder = SparkSession.builder.remote("local[2]")
        for name, value in {QUICK_START!r}.items():
            builder = builder.config(name, value)
        spark = builder.getOrCreate()
        register(spark)
        options = {{"url": {url!r}}}
        journal = spark.read.format("orthia.journal").options(**options).load()
        found = [journal.where("queue = 'orders'").count()]
        found.append(spark.read.format("orthia.node_manager").options(**options).load().count())

        def said(act):
            try:
                return act()
            except Exception as error:
                return str(error)

        def stream():
            rows = spark.readStream.format("orthia.journal").options(**options).load()
            where = {str(tmp_path)!r}
            query = rows.writeStream.format("parquet").trigger(availableNow=True)
            query = query.option("checkpointLocation", where + "/checkpoint")
            query.start(where + "/out").awaitTermination()
            return spark.read.parquet(where + "/out").count()

        def patient(act):
            # Spark waits 10 s for a Python worker to start, and a busy machine needs longer.
            while "Python worker failed to connect back" in str(found := said(act)):
                pass
            return found

        def send():
            rows = journal.select("body").write.format("orthia.queue").mode("append")
            rows.options(broker="a:1", name="n", destination="/queue/q").save()

        found += [patient(stream), said(send), said(lambda: register(spark, {{"MINE": "secret"}}))]
        print(json.dumps(found))
    """
    rows, locks, streamed, sent, registered = told(program, [sys.executable], tmp_path, **HERE)
    assert (rows, locks) == (3, 2)
    if HAS_STREAMS:
        assert streamed == 3, streamed
    else:
        assert "streams need PySpark 4.2 or newer" in streamed
    assert "over Spark Connect, which does not tell, rows cannot be sent" in sent
    assert registered.startswith("Spark Connect passes no passwords to workers: set MINE in")


def test_a_command_is_of_a_session_of_its_own(run: Run, url: str) -> None:
    """A master that is a server of Spark Connect is refused in one line."""
    refused = run("pipeline", "audit", "--url", url, "--master", "sc://spark.example:15002")
    assert refused.exit_code == 64
    assert "commands cannot use Spark Connect" in refused.stderr
    assert len(refused.stderr.splitlines()) == 1


def test_a_stream_needs_what_spark_has(url: str, spark: pyspark.sql.SparkSession) -> None:
    """Before PySpark 4.2 there are no streams, which is said in one line."""
    read = spark.readStream.format("orthia.journal").option("url", url)
    if HAS_STREAMS:
        assert "seq" in read.load().columns
        return
    with pytest.raises(Exception, match=r"streams need PySpark 4\.2 or newer, and this is 4\."):
        read.load().writeStream.format("memory").queryName("none").start().awaitTermination()
