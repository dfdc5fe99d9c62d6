"""Makes a Spark session for Orthia, and registers the data sources in any session.

In a notebook or a ``spark-submit`` of your own, which has a session already::

    from orthia.pipeline.session import register
    register(spark)
    spark.read.format("orthia.journal").option("url", "postgresql://orthia@db/orthia").load()
"""

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from py4j.protocol import Py4JError  # type: ignore[import-untyped]  # it has no types
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from orthia.pipeline.errors import ClusterUnreachable
from orthia.pipeline.masters import check_master, check_reachable
from orthia.pipeline.requirements import java_home, require_names
from orthia.pipeline.sink.source import PASSWORD_VARIABLE as BROKER_PASSWORD_VARIABLE
from orthia.pipeline.sink.source import SPECULATION_VARIABLE, QueueSink
from orthia.pipeline.sources.audit import AuditSource
from orthia.pipeline.sources.failover_log import FailoverLogSource
from orthia.pipeline.sources.journal import JournalSource
from orthia.pipeline.sources.node_manager import NodeManagerSource
from orthia.pipeline.sources.pushdown import install
from orthia.pipeline.sources.store import PASSWORD_VARIABLE

LOCAL: Final = "local[*]"
DATA_SOURCES: Final = (
    JournalSource,
    FailoverLogSource,
    NodeManagerSource,
    AuditSource,
    QueueSink,
)
_LOGGING: Final = Path(__file__).with_name("log4j2.properties")

_NEEDED: Final = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # A batch from Java is in a worker's memory several times.
    "spark.sql.execution.arrow.maxBytesPerBatch": str(16 * 1024 * 1024),
}
"""Settings that the data sources and jobs rely on; set in a user's own session, too."""


def build_session(
    master: str = LOCAL,
    *,
    settings: Mapping[str, str] | None = None,
    passwords: Mapping[str, str] | None = None,
    progress: bool = False,
    verbose: bool = False,
) -> SparkSession:
    """Start Spark, or join an existing session, and register Orthia's data sources in it.

    The rule for filters of DataFrames is not installed: see ``answer_filters``.
    ``settings`` are Spark's own and win; the workers get ``passwords`` as environment variables of
    these names; ``progress`` shows Spark's bar on standard error, ``verbose`` Spark's own warnings
    and errors. Raises MissingRequirement without Java, BadOption for a master that Spark does not
    know, ClusterUnreachable if the cluster does not answer.
    """
    check_master(master)
    check_reachable(master)
    if master.startswith("local"):
        # Java looks up the name of the host otherwise, which may have none.
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    require_names()
    os.environ["JAVA_HOME"] = str(java_home())
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    wanted = {
        **_NEEDED,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": str(progress).lower(),
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={_LOGGING.as_uri()}"
        f" -Dorthia.spark.log={'warn' if verbose else 'off'}",
    }
    if master.startswith("local"):
        # Only this machine has to reach a local session, so only it can.
        wanted |= {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.sql.shuffle.partitions": str(max(2, os.cpu_count() or 2)),
        }
    builder = SparkSession.builder.appName("orthia").master(master)
    for key, value in {**wanted, **(settings or {})}.items():
        builder = builder.config(key, value)
    try:
        spark = builder.getOrCreate()
    except (Py4JError, PySparkException) as error:
        if master.startswith("local"):
            raise
        raise ClusterUnreachable(
            f"Spark does not start on {master}; --verbose shows why"
        ) from error
    if not verbose:
        _quieten(spark)
    _add_sources(spark, passwords)
    return spark


def _quieten(spark: SparkSession) -> None:
    """Keep the accumulator server from printing a traceback when Java ends first."""
    server = getattr(spark.sparkContext, "_accumulatorServer", None)
    if server is not None:
        server.handle_error = lambda *_: None


def register(spark: SparkSession, passwords: Mapping[str, str] | None = None) -> None:
    """Add Orthia's data sources to ``spark``; call it again after a password has changed.

    The workers' environment gets ORTHIA_JDBC_PASSWORD and ORTHIA_PASSWORD of this process, and
    ``passwords`` by the names of variables; no plan, log or web page of Spark shows them.
    """
    _add_sources(spark, passwords)
    answer_filters(spark)


def answer_filters(spark: SparkSession) -> None:
    """Push filters of DataFrames down to the store in this session: ``pipeline.sources.pushdown``.

    This takes up to a second; jobs that select rows by options do not need it.
    """
    install(spark, JournalSource.name())


def _add_sources(spark: SparkSession, passwords: Mapping[str, str] | None) -> None:
    for key, value in _NEEDED.items():
        spark.conf.set(key, value)
    given = dict(passwords or {})
    for variable in (PASSWORD_VARIABLE, BROKER_PASSWORD_VARIABLE):
        if variable in os.environ:
            given.setdefault(variable, os.environ[variable])
    given[SPECULATION_VARIABLE] = spark.sparkContext.getConf().get("spark.speculation", "false")
    spark.sparkContext.environment.update(given)
    for source in DATA_SOURCES:
        spark.dataSource.register(source)
