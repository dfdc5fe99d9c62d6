"""What a worker of the pipeline does for each row, without Spark: reading, decoding, copying.

    python -m benchmarks.pipeline_workers --rows 250000 1000000 --to postgresql mariadb sqlite

Rows of 208 bytes are read from a private PostgreSQL by one process, beside bare loops of ADBC and
COPY, and copied to other databases as ``orthia pipeline migrate`` does. Printed are microseconds of
this process's processor time a row, and seconds of the clock. The
messages have headers of a thousand kinds.
"""

import argparse
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import adbc_driver_postgresql.dbapi
import psycopg2
import pyarrow as pa

from benchmarks.pipeline_data import fill_journal
from orthia import migrations
from orthia.config.store_settings import DatabaseStoreSettings
from orthia.database import Database
from orthia.journal.sql.tables import messages_table
from orthia.pipeline.jobs.copying import RangeCopier
from orthia.pipeline.sources.fetching import postgresql_dsn
from orthia.pipeline.sources.journal_ranges import RangePartition, read_range
from orthia.pipeline.sources.journal_rows import LAST_SEQ, SeqRange
from orthia.pipeline.sources.schemas import JOURNAL, RAW
from orthia.pipeline.sources.store import PASSWORD_VARIABLE, StoreReference
from tests.support.servers import PASSWORD, SERVER_PROCESSES, SqliteServer, StoreServer

_ALL = SeqRange(0, LAST_SEQ)


def migrated(settings: DatabaseStoreSettings) -> DatabaseStoreSettings:
    """Make the tables of an empty store."""
    with Database.from_settings(settings) as database:
        migrations.upgrade(database, settings)
    return settings


@contextmanager
def emptied(dbms: str) -> Iterator[DatabaseStoreSettings]:
    """Give an empty store with its tables."""
    with tempfile.TemporaryDirectory() as directory, ExitStack() as stack:
        server: StoreServer = SqliteServer(Path(directory))
        if dbms != "sqlite":
            server = stack.enter_context(SERVER_PROCESSES[dbms]())
        yield migrated(server.settings(server.create_database()))


def reading(settings: DatabaseStoreSettings) -> dict[str, Callable[[], object]]:
    """Return the ways to read all rows, by name."""
    reference, _ = StoreReference.of(settings)

    def read(names: list[str]) -> None:
        for _ in read_range(reference, names, RangePartition(_ALL)):
            pass

    def bare_adbc() -> None:
        with (
            adbc_driver_postgresql.dbapi.connect(postgresql_dsn(settings)) as connection,
            connection.cursor() as cursor,
        ):
            cursor.execute(f"SELECT {', '.join(RAW)} FROM messages")
            for _ in cursor.fetch_record_batch():
                pass

    def bare_copy() -> None:
        connection = psycopg2.connect(postgresql_dsn(settings))
        with connection.cursor() as cursor, Path(os.devnull).open("wb") as nowhere:
            what = f"COPY messages ({', '.join(RAW)}) TO STDOUT (FORMAT binary)"
            cursor.copy_expert(what, nowhere)
        connection.close()

    return {
        "bare COPY, nine columns": bare_copy,
        "bare ADBC, nine columns": bare_adbc,
        "nine columns": lambda: read(list(RAW)),
        "all columns, decoded": lambda: read(JOURNAL.names),
    }


def copying(settings: DatabaseStoreSettings, target: DatabaseStoreSettings) -> None:
    """Copy all rows as one task of ``migrate`` does."""
    old, new = (StoreReference.of(one)[0] for one in (settings, target))
    copier = RangeCopier(old, new, RAW, messages_table, [_ALL], history=False)
    (done,) = copier(iter([pa.RecordBatch.from_pydict({"id": [0]})]))
    assert done.num_rows == 1  # noqa: S101


def measure(name: str, rows: int, job: Callable[[], object]) -> None:
    """Run a job once, and print what it cost."""
    began, used = time.perf_counter(), time.process_time()
    job()
    clock, used = time.perf_counter() - began, time.process_time() - used
    print(f"  {name:32} {used / rows * 1e6:7.2f} us a row {clock:8.2f} s", flush=True)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, nargs="+", default=[250_000])
    parser.add_argument("--to", nargs="*", choices=[*SERVER_PROCESSES, "sqlite"], default=[])
    arguments = parser.parse_args()
    os.environ[PASSWORD_VARIABLE] = PASSWORD
    source = SERVER_PROCESSES["postgresql"]()
    source.start()
    try:
        for rows in arguments.rows:
            settings = migrated(source.settings(source.create_database()))
            with Database.from_settings(settings) as database:
                fill_journal(database, settings, rows)
            print(f"{rows:,} rows")
            for name, job in reading(settings).items():
                measure(name, rows, job)
            for dbms in arguments.to:
                with emptied(dbms) as target:
                    measure(f"copied to {dbms}", rows, partial(copying, settings, target))
    finally:
        source.discard()


if __name__ == "__main__":
    main()
