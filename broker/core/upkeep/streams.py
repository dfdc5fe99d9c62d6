"""Queues that a stream reads from the store: a pipeline, in place of consumers.

| while a stream is attached | what becomes of the queue's messages                               |
|----------------------------|--------------------------------------------------------------------|
| consumers                  | none is accepted, and nothing is delivered: the stream is the one  |
| expired messages           | stay: the stream may have read them, and says itself when it has   |
| acknowledged ones          | those up to a ``seq`` that the stream names, by a job in steps     |

It is attached by an id that it keeps with its progress. The record of it outlives the node: so no
consumer gets a message in between which the stream has read and not acknowledged.
"""

from dataclasses import dataclass
from typing import Any, Final

from orthia.broker.core.api import Done
from orthia.broker.core.errors import DestinationRefused, QueueInUse
from orthia.broker.core.queue.queue import Queue
from orthia.broker.core.routing.addresses import AddressBook, refuse_if_leaving
from orthia.broker.core.routing.records import OperatorRecords
from orthia.broker.core.slices import GO_ON, Steps
from orthia.broker.quoting import quoted
from orthia.journal.journal import MessageJournal
from orthia.journal.model.codec import OperatorRecord
from orthia.journal.model.unit import Unit

RECORD_KIND: Final = "queue-stream"
_QUEUE: Final = "queue-id"


@dataclass(frozen=True)
class AttachedStream:
    """Who reads a queue."""

    id: str
    user: str
    since_ms: int
    """Milliseconds since 1970 UTC."""


class QueueStreams:
    """Attaches streams to queues; on the loop's thread."""

    def __init__(self, journal: MessageJournal, book: AddressBook) -> None:
        self._journal = journal
        self._stored = OperatorRecords(journal)
        self._book = book
        self._records: dict[int, tuple[int, AttachedStream]] = {}
        """By the queue's id: the id of the record, and who it names."""

    def opening(self) -> Steps:
        """Attach the streams of earlier nodes, once the queues are open; raises NotLive."""
        by_id = {queue.id: queue for queue in self._book.queues.values()}
        left_over = Unit()
        for binding in self._journal.bindings:
            if isinstance(binding, OperatorRecord) and binding.kind == RECORD_KIND:
                queue = by_id.get(binding.details.get(_QUEUE, 0))
                if queue is None:
                    left_over.delete_binding(binding.record_id)  # it was deleted meanwhile
                else:
                    stream = _read(binding.details)
                    self._records[queue.id] = binding.record_id, stream
                    queue.reserve(stream.id)
            yield GO_ON
        if left_over.unbound:
            self._stored.append(left_over)

    def of(self, queue: Queue) -> AttachedStream | None:
        """Return which stream reads a queue."""
        found = self._records.get(queue.id)
        return None if found is None or queue.stream is None else found[1]

    def attach(self, queue: Queue, stream: AttachedStream, done: Done) -> None:
        """Let a stream alone read a queue; ``done`` once stored, with all acknowledged before it.

        Does nothing if it is attached already. Raises BrokerError if anybody else has messages of
        the queue, or may get some, or if the queue is not one that a stream can read.
        """
        before = self.of(queue)
        if before is not None and before.id == stream.id:
            self._stored.append(Unit(done, behind_all=True))
            return
        if before is not None:
            raise QueueInUse(
                f"queue {quoted(queue.name)} is read by stream {quoted(before.id)} of user"
                f" {quoted(before.user)}: if that is over for good, detach it with"
                f" `orthia queue detach {queue.name}`"
            )
        _refuse_kind(queue)
        _refuse_used(queue)
        unit = Unit(done, behind_all=True)
        details = {
            _QUEUE: queue.id,
            "stream": stream.id,
            "user": stream.user,
            "since-ms": stream.since_ms,
        }
        record_id = self._stored.next_id()
        unit.add_binding(OperatorRecord(record_id, RECORD_KIND, queue.name, details))
        self._stored.append(unit)
        self._records[queue.id] = record_id, stream
        queue.reserve(stream.id)

    def detach(self, queue: Queue, done: Done) -> None:
        """Let consumers have a queue again; ``done`` once that is stored. Raises NotLive."""
        unit = Unit(done)
        found = self._records.pop(queue.id, None)
        if found is not None:
            unit.delete_binding(found[0])
        self._stored.append(unit)
        queue.reserve(None)


def _read(details: dict[str, Any]) -> AttachedStream:
    since = details.get("since-ms", 0)
    return AttachedStream(
        str(details.get("stream", "")),
        str(details.get("user", "")),
        since if isinstance(since, int) else 0,
    )


def _refuse_kind(queue: Queue) -> None:
    """Raise DestinationRefused for a queue whose messages go, or stay, without an acknowledgement.

    They would be missing from the stream, or be read for ever.
    """
    refuse_if_leaving(queue)
    options = queue.options
    for is_so, what in (
        (not queue.durable, "is not durable, and is not in the store"),
        (options.non_destructive, "is non-destructive, and keeps what is acknowledged"),
        (options.last_value_key is not None, "replaces its messages by newer ones"),
        (options.ring_size >= 0, "is a ring, which drops its oldest messages"),
    ):
        if is_so:
            raise DestinationRefused(
                f"queue {quoted(queue.name)} {what}: a stream reads queues whose messages wait"
                " until they are acknowledged"
            )


def _refuse_used(queue: Queue) -> None:
    """Raise QueueInUse if somebody has messages of a queue, or may get some."""
    holds = []
    if queue.consumers:
        holds.append(f"{queue.consumers} consumers")
    if queue.unsettled.delivered:
        holds.append(f"{queue.unsettled.delivered} messages that consumers have")
    if queue.undecided:
        holds.append("a message that may come back")
    if any(cursor.withholds for _, cursor in queue.log.cursors()):
        holds.append("messages that a transaction in doubt acknowledges")
    if holds:
        raise QueueInUse(
            f"queue {quoted(queue.name)} has {' and '.join(holds)}: a stream reads a queue alone,"
            " so disconnect them first"
        )


def refuse_other(queue: Queue, stream: str | None) -> None:
    """Raise QueueInUse unless a stream, or nobody if it is None, reads the queue."""
    if queue.stream != stream:
        by = "no stream" if queue.stream is None else f"stream {quoted(queue.stream)}"
        what = "its messages are that one's" if stream is None else f"not by {quoted(stream)}"
        raise QueueInUse(f"queue {quoted(queue.name)} is read by {by}: {what}")
