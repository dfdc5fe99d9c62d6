"""The pipeline's readers and jobs, each beside its comparison, in one run.

    python -m benchmarks.pipeline --rows 1000000 5000000 --jdbc-jar /usr/share/java/postgresql.jar

Rows have 208 bytes of payload. The readers read the nine columns of MESSAGES from a private
PostgreSQL into Spark's ``noop`` sink: Orthia's, and Spark's own JDBC reader with the same ranges of
``seq``; and into Parquet, beside bare loops of ADBC and pyarrow, and a bare COPY, without Spark.
They take turns in every round; the median is printed. The JDBC driver is Debian's
libpostgresql-jdbc-java.

Beside the seconds of the clock stand those of the processor, of this process, Spark's and its
workers' together, but not PostgreSQL's: on a machine that does other work, too, these can be
compared. The memory is the most that any of Spark's Python workers had resident in the last round.
"""

import argparse
import json
import os
import re
import shutil
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import adbc_driver_postgresql.dbapi
import click
import psycopg2
import pyarrow as pa
import pyarrow.parquet as pq
from click.testing import CliRunner
from psycopg2.extensions import make_dsn
from pyspark.sql import DataFrame, SparkSession

from benchmarks.pipeline_data import QUEUES, fill_journal, write_logs
from orthia import migrations
from orthia.broker.cli.pipeline.export import export
from orthia.broker.cli.pipeline.traffic import traffic
from orthia.config.store_settings import DatabaseStoreSettings
from orthia.database import Database
from orthia.pipeline.jobs import audit, failovers
from orthia.pipeline.jobs.export import exported
from orthia.pipeline.session import LOCAL, build_session
from orthia.pipeline.sources.inputs import ExportInputs, StoreInputs
from orthia.pipeline.sources.schemas import RAW
from orthia.pipeline.sources.store import PASSWORD_VARIABLE, StoreReference
from tests.support.servers import PASSWORD, USER, PostgresqlServer

PARTITIONS = 8
BARE = ("bare", "floor")
AUDIT = "audit on Parquet"
_MIB = 1024
_TICKS = os.sysconf("SC_CLK_TCK")


class Cost:
    """What Spark's process and its workers use of processors and memory."""

    def __init__(self, spark: SparkSession) -> None:
        jvm = spark.sparkContext._jvm  # noqa: SLF001 - there is no other way to ask for its id
        assert jvm is not None  # noqa: S101
        self._java: int = jvm.java.lang.ProcessHandle.current().pid()
        self._ticks: dict[int, int] = {}

    def processor_seconds(self) -> float:
        """Return processor seconds used so far by the processes and by this one."""
        # Spark ends idle workers, and nobody else keeps count of what they used.
        for pid, fields in self._processes().items():
            self._ticks[pid] = sum(map(int, fields[11:13]))
        return time.process_time() + sum(self._ticks.values()) / _TICKS

    def forget_peaks(self) -> None:
        """Reset the memory peak of every worker."""
        for pid in self._workers():
            with suppress(OSError):
                Path(f"/proc/{pid}/clear_refs").write_text("5")

    def worker_mib(self) -> float:
        """Return the largest peak of a Python worker's resident memory."""
        return max((_peak_mib(pid) for pid in self._workers() if not _is_java(pid)), default=0.0)

    def executor_mib(self) -> float:
        """Return the largest peak of an executor of a cluster; 0 if Spark is one process."""
        return max((_peak_mib(pid) for pid in self._workers() if _is_java(pid)), default=0.0)

    def driver_mib(self) -> float:
        """Return the peak of Spark's own process."""
        return _peak_mib(self._java)

    def _workers(self) -> list[int]:
        return [pid for pid in self._processes() if pid != self._java]

    def _processes(self) -> Mapping[int, list[str]]:
        """Return Spark's process and its descendants, with ``/proc/PID/stat`` from field 3 on."""
        found = {}
        for place in Path("/proc").glob("[0-9]*/stat"):
            with suppress(OSError):
                found[int(place.parent.name)] = place.read_text().rpartition(")")[2].split()
        mine = {self._java}
        size = 0
        while size != len(mine):
            size = len(mine)
            mine |= {pid for pid, fields in found.items() if int(fields[1]) in mine}
        return {pid: fields for pid, fields in found.items() if pid in mine}


def _is_java(pid: int) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().strip() == "java"
    return False


def _peak_mib(pid: int) -> float:
    with suppress(OSError):
        found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
        return int(found[1]) / _MIB if found else 0.0
    return 0.0


@dataclass
class Measured:
    """The cost of a job, round by round."""

    seconds: list[float] = field(default_factory=list)
    processor: list[float] = field(default_factory=list)
    worker_mib: float = 0.0
    executor_mib: float = 0.0


class Bench:
    """One store with a number of rows, and the measurements on it."""

    def __init__(
        self, spark: SparkSession, settings: DatabaseStoreSettings, jar: Path | None, scratch: Path
    ) -> None:
        self._spark = spark
        self._settings = settings
        self._jar = jar
        self._scratch = scratch
        reference, _ = StoreReference.of(settings)
        self._store = StoreInputs(spark, reference, PARTITIONS)
        self._url = settings.jdbc_connection_url.sqlalchemy_url

    def readers(self) -> dict[str, Callable[[], object]]:
        """Return the readers by name."""
        found: dict[str, Callable[[], object]] = {
            "orthia.journal, nine columns": lambda: _drain(self._store.messages(RAW)),
            "orthia.journal to Parquet": lambda: self._to_parquet(self._store.messages(RAW)),
            "bare ADBC loop to Parquet": self._bare_loop_to_parquet,
            "bare ADBC loop, nine columns": self._bare_loop,
            "bare COPY, nine columns": self._bare_copy,
        }
        if self._jar is not None:
            found["Spark JDBC, nine columns"] = lambda: _drain(self._jdbc())
            found["Spark JDBC to Parquet"] = lambda: self._to_parquet(self._jdbc())
        found["orthia.journal, decoded"] = lambda: _drain(self._store.messages())
        found["orthia pipeline export"] = self._whole_export
        found["orthia pipeline traffic"] = self._traffic
        return found

    def _whole_export(self) -> None:
        out = self._scratch / "whole"
        self._run(export, "--to", str(out))
        shutil.rmtree(out)

    def _traffic(self) -> None:
        self._run(traffic)

    def _run(self, command: click.Command, *more: str) -> None:
        """Run a command, in this session."""
        url = str(self._url.render_as_string(hide_password=False))
        given = ["--url", url, "--jdbc-user", USER, *more, "--json", "-q"]
        result = CliRunner().invoke(command, given, catch_exceptions=False)
        assert result.exit_code == 0, result.output  # noqa: S101

    def export(self) -> None:
        """Write the export that the audit reads."""
        directory = self._scratch / "export"
        exported(self._store.messages()).write.parquet(f"{directory}/messages")
        self._store.bindings().write.parquet(f"{directory}/bindings")
        self._store.node_manager().write.parquet(f"{directory}/node_manager")

    def audit(self) -> None:
        """Look for faults in the export."""
        inputs = ExportInputs(self._spark, str(self._scratch / "export"))
        counts = audit.examined(inputs).counts
        assert not counts, f"{counts} in a sound journal"  # noqa: S101

    def _jdbc(self) -> DataFrame:
        ends = self._store.messages(["seq"]).selectExpr("min(seq)", "max(seq)").first()
        assert ends is not None  # noqa: S101
        return self._spark.read.jdbc(
            f"jdbc:postgresql://{self._url.host}:{self._url.port}/{self._url.database}",
            f"(SELECT {', '.join(RAW)} FROM messages) AS m",
            column="seq",
            lowerBound=ends[0],
            upperBound=ends[1],
            numPartitions=PARTITIONS,
            properties={
                "driver": "org.postgresql.Driver",
                "user": USER,
                "password": PASSWORD,
                "fetchsize": "10000",
            },
        )

    def _to_parquet(self, frame: DataFrame) -> None:
        path = self._scratch / "parquet"
        frame.write.parquet(str(path))
        shutil.rmtree(path)

    @property
    def _dsn(self) -> str:
        url = self._url
        return make_dsn(
            host=url.host, port=url.port, dbname=url.database, user=USER, password=PASSWORD
        )

    @contextmanager
    def _batches(self) -> Iterator[pa.RecordBatchReader]:
        with (
            adbc_driver_postgresql.dbapi.connect(self._dsn) as connection,
            connection.cursor() as cursor,
        ):
            cursor.execute(f"SELECT {', '.join(RAW)} FROM messages")
            yield cursor.fetch_record_batch()

    def _bare_loop(self) -> None:
        with self._batches() as batches:
            for _ in batches:
                pass

    def _bare_loop_to_parquet(self) -> None:
        path = self._scratch / "bare.parquet"
        with self._batches() as batches, pq.ParquetWriter(path, batches.schema) as writer:
            for batch in batches:
                writer.write_batch(batch)
        path.unlink()

    def _bare_copy(self) -> None:
        connection = psycopg2.connect(self._dsn)
        try:
            with connection.cursor() as cursor, Path(os.devnull).open("wb") as nowhere:
                columns = ", ".join(RAW)
                cursor.copy_expert(f"COPY messages ({columns}) TO STDOUT (FORMAT binary)", nowhere)
        finally:
            connection.close()


def _drain(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


def measure(
    cost: Cost, jobs: Mapping[str, Callable[[], object]], rounds: int, *, warm_up: bool
) -> dict[str, Measured]:
    """Run every job in turn, ``rounds`` times, and once before that to ``warm_up``."""
    found: dict[str, Measured] = defaultdict(Measured)
    for number in range(0 if warm_up else 1, rounds + 1):
        for name, job in jobs.items():
            cost.forget_peaks()
            used, began = cost.processor_seconds(), time.perf_counter()
            job()
            if number:
                found[name].seconds.append(time.perf_counter() - began)
                found[name].processor.append(cost.processor_seconds() - used)
                found[name].worker_mib = cost.worker_mib()
                found[name].executor_mib = cost.executor_mib()
                last = found[name]
                print(
                    f"{name}: {last.seconds[-1]:.2f} s, {last.processor[-1]:.2f} s of processor"
                    f" time, {last.worker_mib:.0f} MiB",
                    file=sys.stderr,
                    flush=True,
                )
    return found


def show(title: str, measured: Mapping[str, Measured], rows: int) -> None:
    """Print one table."""
    print(f"\n{title}")
    for name, one in measured.items():
        memory = "" if name.startswith(BARE) else f"{one.worker_mib:5.0f} MiB a worker"
        if one.executor_mib and memory:
            memory += f", {one.executor_mib:.0f} an executor"
        median = statistics.median(one.seconds)
        every = " ".join(f"{seconds:.2f}" for seconds in one.seconds)
        print(
            f"  {name:40} {median:7.2f} s {rows / median:11,.0f} a second"
            f" {statistics.median(one.processor):8.2f} s of processor time,"
            f" {statistics.median(one.processor) / rows * 1e6:6.2f} us a row"
            f" {memory}  ({every})",
            flush=True,
        )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, nargs="+", default=[1_000_000])
    parser.add_argument("--queues", type=int, choices=range(1, QUEUES + 1), default=QUEUES)
    parser.add_argument("--events", type=int, default=250_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="*", help="what has one of these in its name")
    parser.add_argument("--master", default=LOCAL, help="as local-cluster[2,1,1024]")
    parser.add_argument("--jdbc-jar", type=Path, help="PostgreSQL's JDBC driver")
    arguments = parser.parse_args()

    def chosen(jobs: Mapping[str, Callable[[], object]]) -> dict[str, Callable[[], object]]:
        return {
            name: job
            for name, job in jobs.items()
            if not arguments.only or any(part in name for part in arguments.only)
        }

    conf = {} if arguments.jdbc_jar is None else {"spark.jars": str(arguments.jdbc_jar)}
    os.environ[PASSWORD_VARIABLE] = PASSWORD
    spark = build_session(arguments.master, settings=conf, passwords={PASSWORD_VARIABLE: PASSWORD})
    cost = Cost(spark)
    with tempfile.TemporaryDirectory() as directory, PostgresqlServer() as server:
        for number, rows in enumerate(arguments.rows):
            name = server.create_database()
            settings = server.settings(name, jdbc_network_timeout=60_000)
            database = Database.from_settings(settings)
            migrations.upgrade(database, settings)
            fill_journal(database, settings, rows, arguments.queues)
            with database.engine.connect().execution_options(
                isolation_level="AUTOCOMMIT"
            ) as connection:
                connection.exec_driver_sql("VACUUM ANALYZE messages")
            database.dispose()
            scratch = Path(directory) / str(rows)
            scratch.mkdir()
            bench = Bench(spark, settings, arguments.jdbc_jar, scratch)
            rounds, warm_up = arguments.rounds, number == 0
            readers = measure(cost, chosen(bench.readers()), rounds, warm_up=warm_up)
            show(f"Reading {rows:,} rows", readers, rows)
            if chosen({AUDIT: print}):
                bench.export()
                audits = measure(cost, {AUDIT: bench.audit}, rounds, warm_up=warm_up)
                show(f"Auditing {rows:,} rows", audits, rows)
            print(f"  peak memory of Spark's process so far: {cost.driver_mib():.0f} MiB")
            server.drop_database(name)
            shutil.rmtree(scratch)
        jobs = chosen(_of_logs(spark, Path(directory) / "logs", arguments.events))
        if jobs:
            measured = measure(cost, jobs, arguments.rounds, warm_up=True)
            show(f"{arguments.events:,} events of 200 pairs", measured, arguments.events)
    spark.stop()


def _of_logs(spark: SparkSession, directory: Path, events: int) -> dict[str, Callable[[], object]]:
    """Return by name the jobs that only read failover logs."""
    write_logs(directory, events)
    files = sorted(str(path) for path in directory.glob("*.jsonl"))

    def read_lines() -> None:
        for file in files:
            with Path(file).open(encoding="utf-8") as lines:
                for line in lines:
                    json.loads(line)

    return {
        "failover analysis": lambda: failovers.analyse(spark, [], files, now=0),
        "floor: each line parsed, in one process": read_lines,
    }


if __name__ == "__main__":
    main()
