"""Reads a queue's committed messages from the store, each once, and acknowledges what was written.

An offset is a ``seq``, and the id by which the stream is attached: made once for a checkpoint.

| Spark                       | here                                                              |
|-----------------------------|-------------------------------------------------------------------|
| begins                      | the id is made                                                    |
| plans its first micro-batch | the live node attaches the stream: nobody else gets a message     |
| has written a micro-batch   | the live node acknowledges its messages, in fenced transactions   |
| repeats one                 | its messages are in the store: they were not acknowledged         |

Spark tells of a written micro-batch when it plans the next one, or not at all if it dies before.
But a micro-batch that it plans begins where the last one ended that was written: so what lies
before the beginning of each is acknowledged, too.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, Unpack
from uuid import uuid4

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from orthia.pipeline.sources.fetching import open_source
from orthia.pipeline.sources.journal_ranges import RangePartition, read_range
from orthia.pipeline.sources.journal_rows import Condition, SeqRange
from orthia.pipeline.sources.seq_places import SeqPlaces
from orthia.pipeline.sources.spark_versions import ReadLimit
from orthia.pipeline.sources.store import StoreReference
from orthia.pipeline.sources.tailing import TailOptions, TailReader
from orthia.pipeline.subscription.node import LiveNode, NodeReference

Offset = dict[str, Any]


class SubscriptionReader(TailReader):
    """The reader of one queue; on the driver, and pickled to the tasks for ``read``."""

    def __init__(
        self,
        store: StoreReference,
        node: NodeReference,
        queue: str,
        columns: Sequence[str],
        partitions: int | None = None,
        *,
        fail_on_detached: bool = True,
        **options: Unpack[TailOptions],
    ) -> None:
        """Without ``fail_on_detached`` attach anew where an operator detached the stream."""
        super().__init__(
            store, columns, partitions, [Condition("queue", "IN", (queue,))], **options
        )
        self._node = node
        self._queue = queue
        self._fail_on_detached = fail_on_detached
        self._new_id = uuid4().hex
        """Spark asks more than once for the first offset of a new stream."""
        self._is_attached = False
        self._acknowledged = 0

    def initialOffset(self) -> Offset:  # noqa: N802 - Spark's name
        """Return the offset before the first message, with a new id."""
        return {"seq": 0, "stream": self._new_id}

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Fix where this run ends, however much is sent meanwhile."""
        settings = self._store.settings()
        with open_source(settings) as source:
            self._stop_at = SeqPlaces.of_queue(source, settings, self._queue).last()

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802
        """Return where the next micro-batch ends; all before ``start`` is acknowledged first."""
        if start["seq"]:
            self._attach(start["stream"], is_new=False)
            self.commit(start)
        settings = self._store.settings()
        with open_source(settings) as source:
            places = SeqPlaces.of_queue(source, settings, self._queue)
            last = places.last() if self._stop_at is None else self._stop_at
            last = self.end_of_batch(places, start["seq"], last, limit)
        return start | {"seq": last}

    def reportLatestOffset(self) -> Offset | None:  # noqa: N802
        """Return the last message there is, and how many the queue has, if the node says so."""
        settings = self._store.settings()
        with open_source(settings) as source:
            found: Offset = {"seq": SeqPlaces.of_queue(source, settings, self._queue).last()}
        messages = LiveNode(self._node).messages(self._queue)
        return found if messages is None else found | {"messages": messages}

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        """Attach the stream, and split the messages after ``start`` up to ``end``."""
        # The id is in the checkpoint by now, with the end of this micro-batch.
        self._attach(end["stream"], is_new=not start["seq"])
        settings = self._store.settings()
        with open_source(settings) as source:
            places = SeqPlaces.of_queue(source, settings, self._queue)
            cuts = places.cut(start["seq"], end["seq"], self._wanted_partitions)
        return [RangePartition(SeqRange(after + 1, last + 1)) for after, last in pairwise(cuts)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the messages of a range."""
        rows = read_range(
            self._store,
            self._columns,
            partition,
            self._conditions,
            max_body=self._max_body,
            ordered=True,
        )
        return self.shaped(rows)

    def commit(self, end: Offset) -> None:
        """Acknowledge up to ``end`` by the live node, and wait until that is stored."""
        if end["seq"] > self._acknowledged:
            LiveNode(self._node).acknowledge(self._queue, end["stream"], end["seq"])
            self._acknowledged = end["seq"]

    def _attach(self, stream: str, *, is_new: bool) -> None:
        """Make the stream the only reader of the queue; raises StreamDetached, ManagementError.

        One that is not new was attached before the first of its messages was read.
        """
        if self._is_attached:
            return
        node = LiveNode(self._node)
        if is_new or not self._fail_on_detached:
            node.attach(self._queue, stream)
        else:
            node.check(self._queue, stream)
        self._is_attached = True
