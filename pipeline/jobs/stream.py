"""A stream into Parquet, each row once.

What Spark has done is in two places: the checkpoint (which offsets belong to which micro-batch) and
the log of the output directory, ``_spark_metadata`` (which files belong to a finished one). A
micro-batch that was begun and not finished is done again, with the same offsets; what it had
written is in no log. So the directory must be read through Spark, which reads that log.
"""

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery


def to_parquet(
    frame: DataFrame, directory: str, checkpoint: str, *, every_seconds: float | None
) -> StreamingQuery:
    """Start writing ``frame``, a stream, to ``directory``.

    With ``every_seconds`` a micro-batch begins so often, for ever; with None the stream ends when
    everything is written that was there when it began. ``checkpoint`` is where it goes on.
    """
    writer = frame.writeStream.format("parquet").option("checkpointLocation", checkpoint)
    if every_seconds is None:
        writer = writer.trigger(availableNow=True)
    else:
        writer = writer.trigger(processingTime=f"{round(every_seconds * 1000)} milliseconds")
    return writer.start(directory)
