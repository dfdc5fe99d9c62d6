"""Makes a Spark session for Orthia, and registers the data sources in any session.

In a notebook or a ``spark-submit`` of your own, which has a session already::

    from orthia.pipeline.session import register
    register(spark)
    spark.read.format("orthia.journal").option("url", "postgresql://orthia@db/orthia").load()
"""

import os
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Final
from weakref import WeakSet

from py4j.protocol import Py4JError  # type: ignore[import-untyped]  # it has no types
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from orthia.pipeline.errors import BadOption, ClusterUnreachable
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
from orthia.pipeline.subscription.source import SubscriptionSource

LOCAL: Final = "local[*]"
DATA_SOURCES: Final = (
    JournalSource,
    FailoverLogSource,
    NodeManagerSource,
    AuditSource,
    QueueSink,
    SubscriptionSource,
)
_EXISTS: Final = "DATA_SOURCE_ALREADY_EXISTS"
_REGISTERED: Final = WeakSet[SparkSession]()
"""The sessions that have the data sources, with the passwords of now."""
_LOGGING: Final = Path(__file__).with_name("log4j2.properties")

_NEEDED: Final = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # A batch from Java is in a worker's memory several times.
    "spark.sql.execution.arrow.maxBytesPerBatch": str(16 * 1024 * 1024),
}
"""Settings that the data sources and jobs rely on; set in a user's own session, too."""


_QUICK_JAVA: Final = (
    # The second compiler, and threads that collect garbage, pay only in hours; with the first one
    # alone the cache of code is small unless a size is given.
    "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ReservedCodeCacheSize=160m -XX:-UsePerfData"
    # Java warns on standard output, which is a program's, of archives of classes, say.
    " -Xlog:disable -Xlog:all=error:stderr"
)
_QUICK_SPARK: Final = (
    # To verify 15,000 classes of Spark's jars, as they were built, takes a sixth of a small job; a
    # Java that cannot leave it out ignores this. Their number is no reason to collect garbage.
    "-XX:+IgnoreUnrecognizedVMOptions -XX:+UnlockDiagnosticVMOptions"
    " -XX:-BytecodeVerificationRemote -XX:MetaspaceSize=200m"
)
_LOCAL_SETTINGS: Final = {
    # Only this machine has to reach a local session, so only it can.
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    # How many rows its tasks have read is known as often.
    "spark.executor.heartbeatInterval": "1s",
    "spark.sql.shuffle.partitions": str(max(2, os.cpu_count() or 2)),
}


def build_session(
    master: str = LOCAL,
    *,
    settings: Mapping[str, str] | None = None,
    passwords: Mapping[str, str] | None = None,
    verbose: bool = False,
    sources: bool = True,
) -> SparkSession:
    """Start Spark, or join an existing session, and register Orthia's data sources in it.

    Without ``sources`` ``register_sources`` does that, once they are needed: Spark takes two
    seconds of processor time for the first one.

    The rule for filters of DataFrames is not installed: see ``answer_filters``.
    ``settings`` are Spark's own and win; the workers get ``passwords`` as environment variables of
    these names; ``verbose`` shows Spark's own warnings and errors. Raises MissingRequirement
    without Java, BadOption for a master that Spark does not know, ClusterUnreachable if the cluster
    does not answer.
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
        "spark.ui.showConsoleProgress": "false",
    }
    java = f"-Dlog4j2.configurationFile={_LOGGING.as_uri()}"
    java += f" -Dorthia.spark.log={'warn' if verbose else 'off'}"
    if master.startswith("local"):
        # For the little Java that looks up how Spark's is to be started.
        os.environ.setdefault("SPARK_LAUNCHER_OPTS", _QUICK_JAVA)
        wanted |= _LOCAL_SETTINGS
        java += f" {_QUICK_JAVA} {_QUICK_SPARK}"
    wanted["spark.driver.extraJavaOptions"] = java
    builder = SparkSession.builder.appName("orthia").master(master)
    for key, value in {**wanted, **(settings or {})}.items():
        builder = builder.config(key, value)
    try:
        with nullcontext() if verbose else _without_incubator_warning():
            spark = builder.getOrCreate()
    except (Py4JError, PySparkException) as error:
        if master.startswith("local"):
            raise
        raise ClusterUnreachable(
            f"Spark does not start on {master}; --verbose shows why"
        ) from error
    if not verbose:
        _quieten(spark)
    _configure(spark, passwords)
    if sources:
        register_sources(spark)
    return spark


_FOR_SMALL_DATA: Final = {
    # All in one partition: nothing is shuffled, nor broadcast by a job of its own.
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.autoBroadcastJoinThreshold": "-1",
    "spark.sql.optimizer.disableHints": "true",
    # Compiling what to do with some thousand rows takes longer than doing it.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}


@contextmanager
def small_data(spark: SparkSession) -> Iterator[None]:
    """Suit the session to some thousand rows, each table in one partition, within the block."""
    before = {key: spark.conf.get(key) for key in _FOR_SMALL_DATA}
    try:
        for key, value in _FOR_SMALL_DATA.items():
            spark.conf.set(key, value)
        yield
    finally:
        for key, old in before.items():
            spark.conf.set(key, str(old))


_WARNING: Final = b"WARNING: Using incubator modules: jdk.incubator.vector\n"
"""What Java says of a module that Spark asks it for."""


@contextmanager
def _without_incubator_warning() -> Iterator[None]:
    """Start Java with a standard error that is passed on, but for one warning of its own."""
    ours = os.dup(2)
    from_java, to_us = os.pipe()
    os.dup2(to_us, 2)
    os.close(to_us)
    threading.Thread(
        target=_pass_on, args=(from_java, os.dup(ours)), name="orthia-java-errors", daemon=True
    ).start()
    try:
        yield
    finally:
        os.dup2(ours, 2)
        os.close(ours)


def _pass_on(source: int, target: int) -> None:
    """Copy what Java writes until it ends, without the first ``_WARNING``."""
    held = b""
    is_done = False
    while chunk := os.read(source, 65_536):
        held += chunk
        if not is_done:
            before, found, after = held.partition(_WARNING)
            held, is_done = before + after, bool(found)
        # What may be the beginning of the warning waits for the rest.
        kept = 0 if is_done else _overlap(held)
        with suppress(OSError):
            os.write(target, held[: len(held) - kept])
        held = held[len(held) - kept :]
    with suppress(OSError):
        os.write(target, held)
    os.close(source)
    os.close(target)


def _overlap(text: bytes) -> int:
    """Return how many of the last bytes of ``text`` begin the warning."""
    lengths = range(min(len(text), len(_WARNING) - 1), 0, -1)
    return next((length for length in lengths if text.endswith(_WARNING[:length])), 0)


def _quieten(spark: SparkSession) -> None:
    """Keep the accumulator server from printing a traceback when Java ends first."""
    server = getattr(spark.sparkContext, "_accumulatorServer", None)
    if server is not None:
        server.handle_error = lambda *_: None


def register(spark: SparkSession, passwords: Mapping[str, str] | None = None) -> None:
    """Add Orthia's data sources to ``spark``; call it again after a password has changed.

    The workers' environment gets ORTHIA_JDBC_PASSWORD and ORTHIA_PASSWORD of this process, and
    ``passwords`` by the names of variables; no plan, log or web page of Spark shows them. Over
    Spark Connect they come from the server's environment: ``passwords`` raise BadOption.
    """
    if is_remote(spark):
        _add_sources_remotely(spark, passwords)
        return
    _configure(spark, passwords)
    _register(spark)
    answer_filters(spark)


def is_remote(spark: SparkSession) -> bool:
    """Return whether a session is one of Spark Connect, which has no Java in this process."""
    return type(spark).__module__.startswith("pyspark.sql.connect.")


def answer_filters(spark: SparkSession) -> None:
    """Push filters of DataFrames down to the store in this session: ``pipeline.sources.pushdown``.

    This takes up to a second; jobs that select rows by options do not need it.
    """
    install(spark, JournalSource.name())


def register_sources(spark: SparkSession) -> None:
    """Register the data sources in a session of ``build_session``, unless they are there."""
    if spark not in _REGISTERED:
        _register(spark)


def _configure(spark: SparkSession, passwords: Mapping[str, str] | None) -> None:
    """Set what the data sources rely on, and give the workers their passwords."""
    for key, value in _NEEDED.items():
        spark.conf.set(key, value)
    given = dict(passwords or {})
    for variable in (PASSWORD_VARIABLE, BROKER_PASSWORD_VARIABLE):
        if variable in os.environ:
            given.setdefault(variable, os.environ[variable])
    given[SPECULATION_VARIABLE] = spark.sparkContext.getConf().get("spark.speculation", "false")
    spark.sparkContext.environment.update(given)
    # Spark keeps the environment that there was when a source was registered.
    _REGISTERED.discard(spark)


def _add_sources_remotely(spark: SparkSession, passwords: Mapping[str, str] | None) -> None:
    if passwords:
        raise BadOption(
            f"Spark Connect passes no passwords to workers: set {', '.join(sorted(passwords))} in"
            " the environment of the server and its workers"
        )
    for key, value in _NEEDED.items():
        spark.conf.set(key, value)
    _register(spark)


def _register(spark: SparkSession) -> None:
    for source in DATA_SOURCES:
        try:
            spark.dataSource.register(source)
        except PySparkException as error:
            # An older Spark does not replace what it found itself, which is the same.
            if _EXISTS not in str(error):
                raise
    _REGISTERED.add(spark)
