"""Stretches of queues as they are read back, and how a row becomes a message."""

from collections.abc import Sequence
from typing import Final, NamedTuple

from orthia.journal.errors import CorruptRecord
from orthia.journal.model.changes import Body, MessageLocation
from orthia.journal.model.codec import decode_reference
from orthia.journal.model.message import Message, decode_message
from orthia.journal.model.moments import MomentPlace
from orthia.journal.model.records import UserRecordType


class StoredMessage(NamedTuple):
    """A message as a window shows it."""

    seq: int
    epoch: int
    """The fencing token it was written under; an earlier one means it may have been delivered."""
    record: Message
    location: MessageLocation
    attempts: int = 0
    """How often its delivery failed."""
    retry_ms: int = 0
    """When it may be delivered again, milliseconds since 1970 UTC."""


class Window(NamedTuple):
    """A stretch of a queue read from the store, in order."""

    messages: list[StoredMessage]
    corrupt: list[CorruptRecord]
    """Records of the stretch that cannot be read: to be reported; their rows stay in the table."""
    next_after_seq: int
    """Where to go on: everything of the queue up to this seq is in here."""
    exhausted: bool
    """True if nothing of the queue is left up to the ``up_to_seq`` that was asked for."""


class TimedMessage(NamedTuple):
    """A message whose moment has come."""

    queue_id: int
    at_ms: int
    message: StoredMessage


class QueuedMessage(NamedTuple):
    """A message, and what it is stored under."""

    queue_id: int
    message: StoredMessage


class Reached(NamedTuple):
    """Messages whose moment has come, in the order of the moments."""

    messages: list[TimedMessage]
    corrupt: list[CorruptRecord]
    """Of messages that cannot be read; their rows stay."""
    gone: list[int]
    """The seqs of moments whose messages are gone: nobody else tells the store to forget them."""
    next_after: MomentPlace | None
    """Where to go on; None if there are no more whose moment has come."""
    next_at_ms: int | None
    """The first moment that has not come; None if there is none."""
    now_ms: int
    """The store's clock."""


class QueuePlace(NamedTuple):
    """A place in all queues, one after the other in the order of their ids."""

    queue_id: int
    seq: int


BEGINNING = QueuePlace(0, 0)
"""Before the first message of the first queue."""


class QueueCounts(NamedTuple):
    """How many messages a stretch of the queues holds."""

    messages: dict[int, int]
    """By queue id, in order; a queue that is not in here has none in the stretch."""
    next_after: QueuePlace | None
    """Where to go on, with a queue that may have more; None if every queue is counted."""
    payload_bytes: dict[int, int]
    """By queue id: the encoded messages' size, with the bodies of large ones."""


def fitting(sizes: Sequence[int], max_messages: int, max_bytes: int) -> int:
    """Return how many of the first messages of these sizes fit; the first one always does."""
    total = 0
    for index, size in enumerate(sizes[:max_messages]):
        total += size
        if total > max_bytes and index:
            return index
    return min(len(sizes), max_messages)


_WHOLE: Final = (UserRecordType.ADD_MESSAGE, UserRecordType.ADD_LARGE_MESSAGE)


def stored_message(
    seq: int, row_id: int, user_record_type: int, epoch: int, record: bytes, body: bytes | None
) -> StoredMessage:
    """Decode the row of a queue; ``body`` is the payload: the record, or a reference's body row.

    Raises CorruptRecord.
    """
    if user_record_type in _WHOLE:
        message, shared = decode_message(record, seq), None
    elif user_record_type != UserRecordType.ADD_REF:
        raise CorruptRecord(seq, f"its type {user_record_type} is not one of a message")
    else:
        reference = decode_reference(record, seq)
        if row_id + reference.position != seq or not 0 < reference.position <= reference.total:
            raise CorruptRecord(seq, f"it says it is reference {reference} of body {row_id}")
        if body is None:
            raise CorruptRecord(seq, f"its body, the row with seq {row_id}, is missing")
        message, shared = decode_message(body, seq), Body(row_id, reference.total)
    large_id = None if message.large is None else message.large.id
    is_timed = bool(message.expires_ms or (message.stated and message.moment() is not None))
    location = MessageLocation(seq, shared, large_id, is_timed)
    return StoredMessage(seq, epoch, message, location)
