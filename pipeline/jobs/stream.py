"""A stream into Parquet, or another format that Spark has a package for, each row once.

Spark keeps its progress in two places: the checkpoint (the offsets of each micro-batch) and the log
of the output directory, ``_spark_metadata`` (the files of finished micro-batches). Spark repeats an
unfinished micro-batch with the same offsets; its earlier files are not in the log. So the directory
must be read through Spark, which reads that log.
"""

from typing import Any, Final

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name everybody gives it
from pyspark.sql.streaming.query import StreamingQuery

from orthia.pipeline.errors import MissingRequirement

_UNREADABLE: Final = "unreadable"


def to_directory(
    frame: DataFrame,
    directory: str,
    checkpoint: str,
    *,
    every_seconds: float | None,
    form: str = "parquet",
) -> StreamingQuery:
    """Start writing ``frame``, a stream, to ``directory`` in the format ``form``.

    With ``every_seconds`` micro-batches begin at that interval, for ever; with None the stream ends
    when it has written everything that existed when it began. It resumes from ``checkpoint``.
    Raises MissingRequirement if Spark has no such format.
    """
    require_format(frame.sparkSession, form)
    if "corrupt" in frame.columns:
        frame = frame.observe(_UNREADABLE, F.count("corrupt").alias("rows"))
    elif "topic" in frame.columns:
        # In Kafka's columns a message that cannot be read has no topic.
        frame = frame.observe(_UNREADABLE, F.count_if(F.isnull("topic")).alias("rows"))
    writer = frame.writeStream.format(form).option("checkpointLocation", checkpoint)
    if every_seconds is None:
        writer = writer.trigger(availableNow=True)
    else:
        writer = writer.trigger(processingTime=f"{round(every_seconds * 1000)} milliseconds")
    return writer.start(directory)


def require_format(spark: SparkSession, form: str) -> None:
    """Raise MissingRequirement if ``spark`` lacks the package of a format."""
    session: Any = spark
    sources = session._jvm.org.apache.spark.sql.execution.datasources.DataSource  # noqa: SLF001
    try:
        sources.lookupDataSource(form, session._jsparkSession.sessionState().conf())  # noqa: SLF001
    except (Py4JError, PySparkException) as error:
        raise MissingRequirement(
            f"this Spark has no format {form}: give it the package that has it, for Delta with"
            " --conf spark.jars.packages=io.delta:delta-spark_SPARK_2.13:VERSION, where SPARK is"
            " the version of this Spark, as 4.2, and"
            " --conf spark.sql.extensions=io.delta.sql.DeltaSparkSessionExtension"
        ) from error


def unreadable_in(progress: Any) -> int:
    """Return the number of rows of a micro-batch that cannot be read."""
    seen = progress["observedMetrics"].get(_UNREADABLE)
    return 0 if seen is None else int(seen["rows"])
