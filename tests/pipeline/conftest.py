"""What the pipeline's tests share: one Spark session, and journals made without a broker."""

import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

from orthia.config.store_settings import DatabaseStoreSettings
from orthia.pipeline.session import answer_filters, build_session
from orthia.pipeline.sources.spark_versions import HAS_STREAMS
from orthia.pipeline.sources.store import PASSWORD_VARIABLE as ORTHIAS_VARIABLE
from orthia.pipeline.sources.store import StoreReference
from tests.journal.keeping import KeepingStore
from tests.journal.support import SqlJournalStore
from tests.support.servers import PASSWORD

QUICK_START = {
    "spark.sql.shuffle.partitions": "2",
    # A test's data is small: compiling what to do with it takes longer than doing it.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
    # Each sort and sum takes one of 8 MB at once otherwise: half of the heap is such garbage.
    "spark.buffer.pageSize": "1m",
    # How long Java and Python wait for each other, 15 s otherwise: a machine may stand still.
    "spark.python.authenticate.socketTimeout": "10m",
}
_WORKERS = str(Path(__file__).with_name("workers"))
QUICK_ENVIRONMENT = {
    # With the first its cache of code is small, and swept over and over, unless a size is said.
    "JDK_JAVA_OPTIONS": ("-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ReservedCodeCacheSize=160m"),
    "PYTHONPATH": os.pathsep.join(filter(None, (_WORKERS, os.environ.get("PYTHONPATH")))),
}
"""What Java is started in, and what Java then starts Python in."""
PASSWORD_VARIABLE = "ORTHIA_TEST_PASSWORD"
OF_STREAMS = frozenset({"test_streams.py", "test_history_stream.py", "test_stream_options.py"})


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave out what reads a stream where PySpark cannot."""
    if not HAS_STREAMS:
        for item in items:
            if item.path.name in OF_STREAMS:
                item.add_marker(pytest.mark.skip(reason="streams need PySpark 4.2"))


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """Give the one local session of all tests."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in QUICK_ENVIRONMENT.items():
            patch.setenv(name, value)
        # All that any test wants: with another environment Spark starts other Python workers.
        passwords = dict.fromkeys(
            (PASSWORD_VARIABLE, ORTHIAS_VARIABLE, f"{ORTHIAS_VARIABLE}_0"), PASSWORD
        )
        session = build_session("local[2]", settings=QUICK_START, passwords=passwords)
        answer_filters(session)
    with pytest.MonkeyPatch.context() as patch:
        # pytest gives its handlers to each logger that does not propagate, and Spark's, which log
        # what is wrong with a query, have all that they get write JSON from then on.
        patch.setattr(PySparkLogger, "addHandler", logging.Logger.addHandler)
        yield session
    session.stop()


@pytest.fixture
def store(store_settings: DatabaseStoreSettings) -> Iterator[SqlJournalStore]:
    """Give an empty migrated database on every DBMS."""
    opened = SqlJournalStore(store_settings)
    yield opened
    opened.close()


@pytest.fixture
def reference(store: SqlJournalStore, monkeypatch: pytest.MonkeyPatch) -> StoreReference:
    """Give the name of ``store`` as a reader takes it; the password is in the environment."""
    return reference_to(store.settings, monkeypatch)


def reference_to(
    settings: DatabaseStoreSettings, monkeypatch: pytest.MonkeyPatch
) -> StoreReference:
    """Return the name of a store as a reader takes it; put the password into the environment."""
    found, password = StoreReference.of(settings, PASSWORD_VARIABLE)
    if password is not None:
        monkeypatch.setenv(PASSWORD_VARIABLE, password)
    return found


@pytest.fixture
def keeping(store_settings: DatabaseStoreSettings) -> Iterator[KeepingStore]:
    """Give a database with retention, on every DBMS."""
    opened = KeepingStore(store_settings)
    opened.open().close(drain=True)
    yield opened
    opened.close()
