"""``orthia.subscription``: a queue, or a durable subscription's, as a stream of its messages.

Each message is read once, from the store, and acknowledged once Spark has written it: see
``reader``. Meanwhile the stream is the one consumer of the queue.

Options: ``queue``; ``url`` or ``config`` say where the store is, as for ``orthia.journal``; ``api``
is ``http://HOST:PORT`` of both nodes, by commas, ``apiUser`` and ``apiPasswordVariable`` (the name
of an environment variable, ORTHIA_PASSWORD if none is given) who asks them; ``columns``,
``numPartitions``, ``maxLargeBodyBytes``, ``schema`` and the bounds of a micro-batch are as for
``orthia.journal``;
``nodeTimeout`` is for how many seconds a live node is asked for, ``onDetached`` what to do where an
operator detached the stream: ``fail`` (default) or ``continue``.
"""

from collections.abc import Mapping
from typing import Final

from pyspark.sql.datasource import DataSource, DataSourceStreamReader
from pyspark.sql.types import StructType

from orthia.broker.client.management import ManagementAddress
from orthia.pipeline.errors import BadOption
from orthia.pipeline.sources import kafka_schema, micro_batches
from orthia.pipeline.sources.options import check_options, positive
from orthia.pipeline.sources.schemas import JOURNAL, subset
from orthia.pipeline.sources.spark_versions import require_streams
from orthia.pipeline.sources.store import OPTIONS, StoreReference
from orthia.pipeline.subscription.node import NodeReference
from orthia.pipeline.subscription.reader import SubscriptionReader

_PASSWORD_VARIABLE: Final = "ORTHIA_PASSWORD"  # noqa: S105 - the name of a variable
_PATIENCE_SECONDS: Final = 120
_OWN_OPTIONS: Final = frozenset(
    {"queue", "api", "apiuser", "apipasswordvariable", "columns", "numpartitions"}
    | {"maxlargebodybytes", "nodetimeout", "ondetached", kafka_schema.OPTION}
)


class SubscriptionSource(DataSource):
    """The data source; every worker makes its own from the options."""

    def __init__(self, options: Mapping[str, str]) -> None:
        """Check the options; raises BadOption."""
        if micro_batches.STARTING in options:
            raise BadOption(
                "option startingTimestamp: a subscription acknowledges up to a message, and so"
                " reads all before it; read the queue with orthia.journal instead"
            )
        check_options(options, {*OPTIONS, *micro_batches.OPTIONS, *_OWN_OPTIONS})
        self._store = StoreReference.from_options(options)
        self._queue = options.get("queue", "")
        if not self._queue:
            raise BadOption("option queue: say which queue the stream reads")
        try:
            addresses = tuple(
                ManagementAddress.parse(one.strip())
                for one in options.get("api", "").split(",")
                if one.strip()
            )
        except ValueError as error:
            raise BadOption(f"option api: {error}") from None
        if not addresses:
            raise BadOption(
                "option api: say where the nodes serve HTTP, as http://a:8161,http://b:8161: the"
                " live one acknowledges what the stream has written"
            )
        self._node = NodeReference(
            addresses,
            options.get("apiuser"),
            options.get("apipasswordvariable", _PASSWORD_VARIABLE),
            positive(options, "nodetimeout") or _PATIENCE_SECONDS,
        )
        self._columns = options.get("columns")
        self._partitions = positive(options, "numpartitions")
        self._limits = micro_batches.Limits.from_options(options)
        self._is_kafka = kafka_schema.is_wanted(options)
        self._max_body = positive(options, "maxlargebodybytes") or 0
        on_detached = options.get("ondetached", "fail")
        if on_detached not in ("fail", "continue"):
            raise BadOption(f"option onDetached: {on_detached!r} is neither fail nor continue")
        self._fail_on_detached = on_detached == "fail"

    @classmethod
    def name(cls) -> str:
        """Return the name for ``spark.readStream.format``."""
        return "orthia.subscription"

    def schema(self) -> StructType:
        """Return the requested columns."""
        return kafka_schema.KAFKA if self._is_kafka else subset(JOURNAL, self._columns)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """Return the reader of the stream."""
        require_streams()
        return SubscriptionReader(
            self._store,
            self._node,
            self._queue,
            schema.fieldNames(),
            self._partitions,
            fail_on_detached=self._fail_on_detached,
            limits=self._limits,
            max_body=self._max_body,
            kafka=self._is_kafka,
        )
