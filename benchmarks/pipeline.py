"""The pipeline's reader and jobs, each beside what it is measured against, in one run.

    python -m benchmarks.pipeline --rows 1000000 5000000 --jdbc-jar /usr/share/java/postgresql.jar

Rows have 208 bytes of payload. The readers read the nine columns of MESSAGES from a private
PostgreSQL into Spark's ``noop`` sink: Orthia's, and Spark's own JDBC reader with the same ranges of
``seq``; and into Parquet, beside a bare loop of ADBC and pyarrow without Spark. They take turns in
every round; the median is printed. The JDBC driver is Debian's libpostgresql-jdbc-java.
"""

import argparse
import json
import re
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import adbc_driver_postgresql.dbapi
import pyarrow.parquet as pq
from psycopg2.extensions import make_dsn
from pyspark.sql import DataFrame, SparkSession

from benchmarks.pipeline_data import fill_journal, write_logs
from orthia import migrations
from orthia.config.settings import DatabaseStoreSettings
from orthia.database import Database
from orthia.pipeline.jobs import audit, failovers
from orthia.pipeline.jobs.export import exported
from orthia.pipeline.reading import ExportInputs, StoreInputs
from orthia.pipeline.schemas import RAW
from orthia.pipeline.session import build_session
from orthia.pipeline.store import PASSWORD_VARIABLE, StoreReference
from tests.support.servers import PASSWORD, USER, PostgresqlServer

PARTITIONS = 8


class Bench:
    """One store of so many rows, and what is measured on it."""

    def __init__(
        self, spark: SparkSession, settings: DatabaseStoreSettings, jar: Path | None, scratch: Path
    ) -> None:
        self._spark = spark
        self._settings = settings
        self._jar = jar
        self._scratch = scratch
        self._runs = 0
        reference, _ = StoreReference.of(settings)
        self._store = StoreInputs(spark, reference, PARTITIONS)
        self._url = settings.jdbc_connection_url.sqlalchemy_url

    def readers(self) -> dict[str, Callable[[], object]]:
        """Return what reads, by name."""
        found: dict[str, Callable[[], object]] = {
            "orthia.journal, nine columns": lambda: _drain(self._store.messages(RAW)),
            "orthia.journal, decoded": lambda: _drain(self._store.messages()),
            "orthia.journal to Parquet": lambda: self._to_parquet(self._store.messages(RAW)),
            "bare ADBC loop to Parquet": self._bare_loop,
        }
        if self._jar is not None:
            found["Spark JDBC, nine columns"] = lambda: _drain(self._jdbc())
            found["Spark JDBC to Parquet"] = lambda: self._to_parquet(self._jdbc())
        return found

    def audits(self) -> dict[str, Callable[[], object]]:
        """Return the audit on Parquet, which is written first."""
        directory = self._scratch / "export"
        messages = exported(self._store.messages())
        messages.write.parquet(f"{directory}/messages")
        self._store.bindings().write.parquet(f"{directory}/bindings")
        self._store.node_manager().write.parquet(f"{directory}/node_manager")
        inputs = ExportInputs(self._spark, str(directory))

        def run() -> None:
            with audit.examined(inputs) as found:
                assert not found.counts, f"{found.counts} in a sound journal"  # noqa: S101

        return {"audit on Parquet": run}

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
        self._runs += 1
        frame.write.parquet(str(self._scratch / f"parquet-{self._runs}"))

    def _bare_loop(self) -> None:
        self._runs += 1
        url = self._url
        dsn = make_dsn(
            host=url.host, port=url.port, dbname=url.database, user=USER, password=PASSWORD
        )
        with (
            adbc_driver_postgresql.dbapi.connect(dsn) as connection,
            connection.cursor() as cursor,
        ):
            cursor.execute(f"SELECT {', '.join(RAW)} FROM messages")
            batches = cursor.fetch_record_batch()
            path = self._scratch / f"bare-{self._runs}.parquet"
            with pq.ParquetWriter(path, batches.schema) as writer:
                for batch in batches:
                    writer.write_batch(batch)


def _drain(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


def measure(
    jobs: dict[str, Callable[[], object]], rounds: int
) -> dict[str, tuple[float, list[float]]]:
    """Run every job once to warm up, then in turn; return the median and all seconds of each."""
    seconds: dict[str, list[float]] = defaultdict(list)
    for number in range(rounds + 1):
        for name, job in jobs.items():
            began = time.perf_counter()
            job()
            if number:
                seconds[name].append(time.perf_counter() - began)
    return {name: (statistics.median(times), times) for name, times in seconds.items()}


def driver_peak_mib(spark: SparkSession) -> float:
    """Return the peak resident memory of Spark's process."""
    jvm = spark.sparkContext._jvm  # noqa: SLF001 - there is no other way to ask for its id
    assert jvm is not None  # noqa: S101
    pid = jvm.java.lang.ProcessHandle.current().pid()
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return int(found[1]) / 1024 if found else 0.0


def show(title: str, measured: dict[str, tuple[float, list[float]]], rows: int) -> None:
    """Print one table."""
    print(f"\n{title}")
    for name, (median, times) in measured.items():
        every = " ".join(f"{one:.2f}" for one in times)
        print(f"  {name:32} {median:7.2f} s  {rows / median:12,.0f} a second  ({every})")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, nargs="+", default=[1_000_000])
    parser.add_argument("--events", type=int, default=250_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="*", help="readers whose names have one of these in them")
    parser.add_argument("--jdbc-jar", type=Path, help="PostgreSQL's JDBC driver")
    arguments = parser.parse_args()
    conf = {} if arguments.jdbc_jar is None else {"spark.jars": str(arguments.jdbc_jar)}
    spark = build_session(settings=conf, passwords={PASSWORD_VARIABLE: PASSWORD})
    with tempfile.TemporaryDirectory() as directory, PostgresqlServer() as server:
        for rows in arguments.rows:
            settings = server.settings(server.create_database(), jdbc_network_timeout=60_000)
            database = Database.from_settings(settings)
            migrations.upgrade(database, settings)
            fill_journal(database, settings, rows)
            with database.engine.connect().execution_options(
                isolation_level="AUTOCOMMIT"
            ) as connection:
                connection.exec_driver_sql("VACUUM ANALYZE messages")
            database.dispose()
            scratch = Path(directory) / str(rows)
            bench = Bench(spark, settings, arguments.jdbc_jar, scratch)
            scratch.mkdir()
            readers = {
                name: job
                for name, job in bench.readers().items()
                if not arguments.only or any(part in name for part in arguments.only)
            }
            show(f"Reading {rows:,} rows", measure(readers, arguments.rounds), rows)
            show(f"Auditing {rows:,} rows", measure(bench.audits(), arguments.rounds), rows)
            print(f"  peak memory of Spark's process so far: {driver_peak_mib(spark):.0f} MiB")
        logs = Path(directory) / "logs"
        write_logs(logs, arguments.events)

        files = sorted(str(path) for path in logs.glob("*.jsonl"))

        def tell() -> None:
            failovers.analyse(spark, [], files, now=0)

        def read_lines() -> None:
            for file in files:
                with Path(file).open(encoding="utf-8") as lines:
                    for line in lines:
                        json.loads(line)

        jobs: dict[str, Callable[[], object]] = {
            "failover analysis": tell,
            "floor: each line parsed, in one process": read_lines,
        }
        measured = measure(jobs, arguments.rounds)
        show(f"{arguments.events:,} events of 200 pairs", measured, arguments.events)
    spark.stop()


if __name__ == "__main__":
    main()
