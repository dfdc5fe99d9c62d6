"""``orthia.queue``: ``df.write`` and ``df.writeStream`` into queues, each row once.

Each partition is a replay of its own (``orthia.broker.client.replay``): it sends its rows in STOMP
transactions, each with a progress marker to the queue ``orthia.replay.NAME.PARTITION``. So a task
that Spark repeats after its executor, the live node or both died resumes after the last marker. The
places of rows come from micro-batch, partition and row number: see ``feed``.

Columns: ``body`` (binary or string), and if wanted ``headers`` (a map of strings) and
``destination`` (a string). Options: ``broker`` (``HOST:PORT``, both nodes, by commas), ``name``,
``destination`` for rows without one, ``user`` and ``passwordVariable``, ``checkpoint``, ``chunk``
and ``reconnectTimeout``.
"""

import logging
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Final

from pyspark import TaskContext
from pyspark.sql import Row
from pyspark.sql.datasource import (
    DataSource,
    DataSourceStreamWriter,
    DataSourceWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import BinaryType, DataType, MapType, StringType, StructType

from orthia.broker.client.checkpoint import Checkpoint, Proofs, default_checkpoint
from orthia.broker.client.connection import BrokerAddress, Login
from orthia.broker.client.failover import FailoverLink
from orthia.broker.client.replay import Replay
from orthia.broker.protocols.stomp.headers import resendable
from orthia.pipeline.errors import BadOption, RowRefused
from orthia.pipeline.sink.feed import Feed, Outgoing
from orthia.pipeline.sources.options import check_options, positive

LOGGER: Final = logging.getLogger("orthia.pipeline")
PASSWORD_VARIABLE: Final = "ORTHIA_PASSWORD"  # noqa: S105 - the name of a variable
SPECULATION_VARIABLE: Final = "ORTHIA_SPARK_SPECULATION"
"""Whether Spark runs speculative copies of tasks; ``register`` sets it for the data source."""
_BATCH_ID: Final = "streaming.sql.batchId"
_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,100}")
_OPTIONS: Final = frozenset(
    {"broker", "name", "destination", "user", "passwordvariable", "checkpoint", "chunk"}
    | {"reconnecttimeout"}
)
_OF_SPARK: Final = "checkpointlocation"
"""The option with a stream's checkpoint directory; Spark passes it on."""
_COLUMNS: Final[Mapping[str, tuple[DataType, ...]]] = {
    "body": (BinaryType(), StringType()),
    "headers": (MapType(StringType(), StringType()),),
    "destination": (StringType(),),
}
_OURS: Final = frozenset(
    {"content-length", "destination", "orthia-sink-id", "receipt", "transaction"}
)
"""Headers that this sink sets itself, or whose replies nobody would read."""
_CHUNK: Final = 100
_PATIENCE_SECONDS: Final = 60


class QueueSink(DataSource):
    """The data source; made anew in the driver for each write."""

    @classmethod
    def name(cls) -> str:
        """Return the name for ``df.write.format``."""
        return "orthia.queue"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:  # noqa: FBT001
        """Return the writer of a batch; raises BadOption."""
        return BatchWriter(self._sender(schema, overwrite=overwrite))

    def streamWriter(  # noqa: N802 - Spark's name
        self,
        schema: StructType,
        overwrite: bool,  # noqa: FBT001 - Spark's signature
    ) -> DataSourceStreamWriter:
        """Return the writer of micro-batches; raises BadOption."""
        return StreamWriter(self._sender(schema, overwrite=overwrite))

    def _sender(self, schema: StructType, *, overwrite: bool) -> "Sender":
        if overwrite:
            raise BadOption("a queue cannot be overwritten: write with .mode('append')")
        speculates = os.environ.get(SPECULATION_VARIABLE)
        if speculates is None:
            raise BadOption(
                "nobody said whether Spark runs slow tasks twice at a time, and both would send:"
                " call orthia.pipeline.session.register(spark) first; over Spark Connect, which"
                " does not tell, rows cannot be sent"
            )
        if speculates.lower() == "true":
            raise BadOption(
                "Spark runs slow tasks twice at a time (spark.speculation), and both would send:"
                " turn it off for this session"
            )
        return Sender.of(self.options, schema)


@dataclass(frozen=True)
class Sent(WriterCommitMessage):
    """The result of a task."""

    messages: int
    """The number of rows that this attempt stored."""


@dataclass(frozen=True)
class Sender:
    """The configuration of a task without the password; pickled to the workers."""

    brokers: tuple[BrokerAddress, ...]
    name: str
    destination: str | None
    user: str | None
    password_variable: str
    chunk: int
    patience_seconds: int
    proofs: Proofs

    @classmethod
    def of(cls, options: Mapping[str, str], schema: StructType) -> "Sender":
        """Check the options and columns, in the driver; raises BadOption.

        In the driver, the first write of a name makes the secret that proves the markers.
        """
        check_options(options, {*_OPTIONS, _OF_SPARK})
        _check_columns(schema, destination=options.get("destination"))
        name = options.get("name", "")
        if not _NAME.fullmatch(name):
            raise BadOption(
                "option name: say a name of letters, digits, '.', '_' and '-': the same for a"
                " write that goes on, another for one that sends everything"
            )
        try:
            brokers = tuple(
                BrokerAddress.parse(one.strip()) for one in options.get("broker", "").split(",")
            )
        except ValueError as error:
            raise BadOption(f"option broker: {error}") from None
        file = options.get("checkpoint")
        checkpoint = Checkpoint(Path(file) if file else default_checkpoint(name), name)
        # Before ``keep``: only the first write refuses markers without proof.
        proofs = Proofs(checkpoint.file, name, checkpoint.secret, is_new=checkpoint.is_new)
        checkpoint.keep()
        return cls(
            brokers,
            name,
            options.get("destination"),
            options.get("user"),
            options.get("passwordvariable", PASSWORD_VARIABLE),
            positive(options, "chunk") or _CHUNK,
            positive(options, "reconnecttimeout") or _PATIENCE_SECONDS,
            proofs,
        )

    def send(self, rows: Iterator[Row], batch: int) -> Sent:
        """Send a partition's rows; raises OrthiaError."""
        first = next(rows, None)
        if first is None:
            return Sent(0)
        partition = _context().partitionId()
        outgoing = (self._outgoing(row) for row in chain((first,), rows))
        feed = Feed(outgoing, f"{self.name}/{partition}", batch)
        engine = Replay(
            FailoverLink(
                self.brokers,
                self._login(),
                patience_seconds=self.patience_seconds,
                say=lambda text: LOGGER.info("partition %d: %s", partition, text),
            ),
            f"{self.name}.{partition}",
            feed,
            checkpoint=self.proofs.of(f"{partition}"),
            notes=feed,
            chunk=self.chunk,
            on_sent=lambda _: feed.forget(engine.report.through),
            say=lambda text: LOGGER.warning("partition %d: %s", partition, text),
        )
        return Sent(engine.run().sent)

    def _login(self) -> Login | None:
        if self.user is None:
            return None
        return Login(self.user, os.environ.get(self.password_variable, ""))

    def _outgoing(self, row: Row) -> Outgoing:
        values: dict[str, Any] = row.asDict()
        destination = values.get("destination") or self.destination
        if not destination:
            raise RowRefused("a row has no destination, and there is no option destination")
        headers: dict[str, str] = {
            name: "" if value is None else value
            for name, value in (values.get("headers") or {}).items()
        }
        refused = (headers.keys() & _OURS) | (headers.keys() - resendable(headers).keys())
        if refused:
            raise RowRefused(
                f"a row has the header {min(refused)!r}, which a message cannot have; see"
                " `orthia docs stomp-headers`"
            )
        body = values["body"]
        if body is None:
            body = b""
        return Outgoing(
            destination, headers, body.encode() if isinstance(body, str) else bytes(body)
        )


class BatchWriter(DataSourceWriter):
    """Writes a DataFrame; every task has sent its rows before it reports to Spark."""

    def __init__(self, sender: Sender) -> None:
        self._sender = sender

    def write(self, iterator: Iterator[Row]) -> WriterCommitMessage:
        """Send a partition."""
        return self._sender.send(iterator, 0)


class StreamWriter(DataSourceStreamWriter):
    """Writes a stream's micro-batches."""

    def __init__(self, sender: Sender) -> None:
        self._sender = sender

    def write(self, iterator: Iterator[Row]) -> WriterCommitMessage:
        """Send a partition of a micro-batch."""
        batch = _context().getLocalProperty(_BATCH_ID)
        if batch is None:
            raise RowRefused("Spark does not say which micro-batch this is: nothing was sent")
        # Plus one: place 0 means that nothing is stored.
        return self._sender.send(iterator, int(batch) + 1)

    def commit(
        self,
        messages: Sequence[WriterCommitMessage | None],
        batchId: int,  # noqa: N803 - Spark's name
    ) -> None:
        """Do nothing: the rows are stored already."""

    def abort(
        self,
        messages: Sequence[WriterCommitMessage | None],
        batchId: int,  # noqa: N803 - Spark's name
    ) -> None:
        """Do nothing: stored rows stay, and the next attempt resumes after them."""


def _context() -> TaskContext:
    context = TaskContext.get()
    if context is None:
        raise RowRefused("rows are sent by Spark's tasks only")
    return context


def _check_columns(schema: StructType, *, destination: str | None) -> None:
    for field in schema.fields:
        kinds = _COLUMNS.get(field.name)
        if kinds is None:
            raise BadOption(
                f"there is nothing to do with the column {field.name}: a message has"
                f" {', '.join(_COLUMNS)}"
            )
        if not any(isinstance(field.dataType, type(kind)) for kind in kinds):
            expected = " or ".join(kind.simpleString() for kind in kinds)
            raise BadOption(
                f"the column {field.name} is {field.dataType.simpleString()}; expected {expected}"
            )
    if "body" not in schema.fieldNames():
        raise BadOption("there is no column body")
    if destination is None and "destination" not in schema.fieldNames():
        raise BadOption("say where to: the option destination, or a column of that name")
