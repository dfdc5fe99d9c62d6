# mypyc compiles this module.
"""What is stored or deleted atomically, and where a stored message lives.

A message of one queue is one row. A message of n queues is a body row ``b`` and the reference rows
``b+1`` to ``b+n``: because they have no gaps, whether a body is still needed is answered by the
primary key alone. The writer deletes a body in the transaction that deletes its last reference.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from orthia.config.errors import OrthiaError
from orthia.journal.model.changes import (
    NO_REASONS,
    Body,
    Changes,
    DuplicateId,
    Guarded,
    LargeReference,
    MessageLocation,
    Row,
    extended,
)
from orthia.journal.model.codec import (
    AddressBinding,
    IdCacheBinding,
    OperatorRecord,
    PreparedTransaction,
    QueueBinding,
    RecordVersion,
    ReferenceRecord,
    encode_address_binding,
    encode_attempts,
    encode_duplicate_id,
    encode_id_cache,
    encode_operator_record,
    encode_prepared_transaction,
    encode_queue_binding,
    encode_record_version,
    encode_reference,
)
from orthia.journal.model.message import large_body_id, moment, record_version
from orthia.journal.model.moments import MessageTime
from orthia.journal.model.records import RemovalReason, UserRecordType

Done = Callable[[], None]
Refused = Callable[[OrthiaError], None]
"""Called with the reason why a unit is not stored, and never will be, though others are."""
Binding = (
    QueueBinding
    | AddressBinding
    | PreparedTransaction
    | RecordVersion
    | IdCacheBinding
    | OperatorRecord
)


class Sender:
    """Somebody whose units are stored in the order they came: one for each connection of a client.

    See ``orthia.journal.engine.senders``.
    """

    __slots__ = ("is_answered_singly", "refusal")

    def __init__(self, *, is_answered_singly: bool = False) -> None:
        self.is_answered_singly = is_answered_singly
        """Whether its client learns of each unit whether it is stored, and sends those again that
        are not: then nothing is refused for what was before it."""
        self.refusal: OrthiaError | None = None
        """Why what it sent behind a refused unit is refused, too; the writer's thread only."""


class Unit(Changes):
    """Changes that are stored all together or not at all; filled once, then appended once."""

    __slots__ = (
        *("attempted", "behind_all", "completes", "deleted", "done", "dropped", "duplicate_ids"),
        *("ended_caches", "guarded", "last_seq", "messages", "only_deletes", "record_version"),
        *("refusal", "refused", "replaced", "sender"),
    )

    def __init__(
        self, done: Done | None = None, last_seq: int = 0, *, behind_all: bool = False
    ) -> None:
        Changes.__init__(self)  # as ``super()`` would, in fewer steps: one for each unit
        self.messages: Sequence[tuple[Sequence[int], bytes]] = ()
        """Those to be stored, each with its queues, and ..."""
        self.deleted: Sequence[MessageLocation] = ()
        """... those to be deleted, which ``place`` turns into changes."""
        self.replaced: Sequence[tuple[int, MessageLocation]] = ()
        """Those of ``deleted`` that go for one of ``messages``, each with which that is."""
        self.attempted: Sequence[MessageTime] = ()
        """Messages whose delivery failed, which ``place`` turns into changes."""
        self.duplicate_ids: tuple[tuple[range, DuplicateId], ...] = ()
        """In order: a range of ``messages`` with their duplicate id; ``place`` turns them into
        ``guarded``."""
        self.guarded: tuple[Guarded, ...] = ()
        self.ended_caches: Sequence[int] = ()
        """An id cache that ends, with all of its ids; its binding is deleted by the unit, too."""
        self.dropped: frozenset[int] = frozenset()
        """Those of ``messages`` that turned out to be duplicates, once the unit is stored."""
        self.behind_all = behind_all
        """Whether it waits for all that was appended before it, even for deletes that wait for a
        lock of another session; other units do not wait for those."""
        self.only_deletes = False
        """Whether it deletes messages and changes nothing else, as most units do; so says whoever
        has filled it."""
        self.record_version = 0
        """The highest of its messages' records, those of a prepared transaction included."""
        self.last_seq = last_seq
        """The highest seq of all that was appended up to and with this unit."""
        self.done = done
        self.completes: Callable[[], Iterator[bool]] | None = None
        """Called in place of ``done``, where that would take long: what it returns is done in
        steps, and no caller of a later unit is completed before the last of them."""
        self.refused: Refused | None = None
        """Called instead of ``done`` if the store takes others and not this; without it, and for
        a unit that stores no message, that ends the journal."""
        self.refusal: OrthiaError | None = None
        """Why it is refused, once the store has said that of this unit; the writer's thread only.
        """
        self.sender: Sender | None = None
        """Whose it is, of a unit that may be ``refused``; None for the broker's own."""

    @property
    def cost_rows(self) -> int:
        """How many rows the unit counts for where rows are bounded; at least one."""
        if self.only_deletes:
            return len(self.deletes) or 1
        changes = len(self.rows) + len(self.deletes) + len(self.binding_rows) + len(self.unbound)
        return (changes + len(self.timed) + len(self.outbox_rows)) or 1

    @property
    def only_frees(self) -> bool:
        """Whether it stores nothing: then it takes no room, and may be repeated."""
        return not (self.rows or self.binding_rows or self.timed)

    @property
    def size_in_seqs(self) -> int:
        """How many seqs ``place`` takes."""
        messages = sum([len(ids) + (len(ids) > 1) for ids, _ in self.messages])
        return messages + len(self.duplicate_ids) + len(self.attempted)

    def guard(self, duplicate_id: DuplicateId, messages: range) -> None:
        """Store the latest of ``messages``, one or more, only if the journal knows no such id."""
        self.duplicate_ids = (*self.duplicate_ids, (messages, duplicate_id))

    def add_message(self, queue_ids: Sequence[int], payload: bytes) -> None:
        """Store an encoded message for one or more queues; raise ValueError for none."""
        if not queue_ids:
            raise ValueError("a message is stored for at least one queue")
        self.messages = extended(self.messages, ((queue_ids, payload),))
        self.record_version = max(self.record_version, record_version(payload))

    def delete(
        self, location: MessageLocation, reason: RemovalReason = RemovalReason.ACKNOWLEDGED
    ) -> None:
        """Delete a queue's message, and its body if this was the last reference."""
        self.deleted = extended(self.deleted, (location,))
        if reason is not RemovalReason.ACKNOWLEDGED:
            if self.reasons is NO_REASONS:
                self.reasons = {}
            self.reasons[location.seq] = reason

    def move(self, location: MessageLocation, reason: RemovalReason) -> None:
        """Delete a queue's message that goes on as one of ``messages``, or to a topic.

        The unit is refused by ``AcknowledgedBefore`` if an application has acknowledged it by SQL.
        """
        self.delete(location, reason)
        self.moved = extended(self.moved, (location.seq,))

    def replace(self, location: MessageLocation, by: int) -> None:
        """Delete a queue's message if one of ``messages``, which has that number, is stored."""
        self.delete(location, RemovalReason.DELETED)
        self.replaced = extended(self.replaced, ((by, location),))

    def take_from_outbox(self, row_id: int) -> None:
        """Delete a row of the outbox; the unit is refused if it is not there."""
        self.outbox_rows = extended(self.outbox_rows, (row_id,))

    def count_attempts(self, time: MessageTime) -> None:
        """Store how often delivery of a message failed, with all that is kept of its time."""
        self.attempted = extended(self.attempted, (time,))

    def add_binding(self, binding: Binding) -> None:
        """Store a queue or an address under its id, which came from ``next_id``."""
        row = binding_row(binding)
        self.binding_rows = extended(self.binding_rows, (row,))
        self.payload_bytes += len(row.record)
        if isinstance(binding, PreparedTransaction):
            self.add_links(large_references(binding))
            versions = (record_version(payload) for _, payload in binding.messages)
            self.record_version = max(self.record_version, *versions, 0)

    def delete_binding(self, binding_id: int) -> None:
        """Delete a queue's or an address' binding."""
        self.unbound = extended(self.unbound, (binding_id,))

    def delete_id_cache(self, cache_id: int) -> None:
        """Delete the id cache of an address, and what is in it."""
        self.ended_caches = extended(self.ended_caches, (cache_id,))
        self.unbound = extended(self.unbound, (cache_id,))

    def delete_transaction(self, prepared: PreparedTransaction) -> None:
        """Delete a prepared transaction, and what it needs large bodies for."""
        self.unbound = extended(self.unbound, (prepared.transaction_id,))
        self.unlinked = extended(self.unlinked, large_references(prepared))

    def place(self, first_seq: int) -> list[MessageLocation]:
        """Lay the messages out in rows from ``first_seq`` on.

        Returns the location of each message in each of its queues, in the order added.
        """
        locations: list[MessageLocation] = []
        ends = {messages[-1]: (messages, one) for messages, one in self.duplicate_ids}
        firsts: list[int] = []
        guarded: list[Guarded] = []
        self.last_seq = first_seq - 1
        for index, (queue_ids, payload) in enumerate(self.messages):
            when = moment(payload)
            rows, of_message = _message_rows(
                queue_ids, payload, self.last_seq + 1, is_timed=when is not None
            )
            self.add_rows(rows)
            self.last_seq = rows[-1].seq
            self.payload_bytes += len(payload)
            locations += of_message
            self.add_links(
                LargeReference(large_id, seq) for seq, _, large_id, _ in of_message if large_id
            )
            if when is not None:
                self.add_times(
                    MessageTime(one.seq, queue_id, *when)
                    for one, queue_id in zip(of_message, queue_ids, strict=True)
                )
            firsts.append(rows[0].seq)
            if index in ends:
                messages, duplicate_id = ends[index]
                self.last_seq += 1
                self.add_rows((_duplicate_id_row(duplicate_id, self.last_seq),))
                first = firsts[messages[0]]
                guarded.append(Guarded(duplicate_id, messages, first, self.last_seq))
        self.guarded = tuple(guarded)
        for time in self.attempted:
            self.last_seq += 1
            self.add_times((time,))
            record = encode_attempts(time.attempts, time.retry_ms)
            row = Row(self.last_seq, time.seq, UserRecordType.DELIVERY_ATTEMPTS, None, record)
            self.counted = extended(self.counted, (row,))
        self.add_deletes(self.deleted)
        return locations

    @property
    def stored(self) -> Changes:
        """What is stored of it: itself, without the messages that are ``dropped``.

        The unit stays as it was, by which its caller counts what waits.
        """
        if not self.dropped:
            return self
        left = Changes()
        left.merge(self)
        gone: set[int] = set()
        for one in self.guarded:
            if one.messages[0] in self.dropped:
                gone.update(range(one.first_seq, one.last_seq + 1))
        left.rows = [row for row in left.rows if row.seq not in gone]
        left.linked = [link for link in left.linked if link.seq not in gone]
        left.timed = [time for time in left.timed if time.seq not in gone]
        stays = {one.seq for number, one in self.replaced if number in self.dropped}
        if stays:
            left.deletes = [seq for seq in left.deletes if seq not in stays]
            left.unlinked = [link for link in left.unlinked if link.seq not in stays]
            left.untimed = [seq for seq in left.untimed if seq not in stays]
        return left


class AppendedMessage(NamedTuple):
    """A message of one queue on its way to the store: the hot path's item."""

    last_seq: int
    queue_id: int
    payload: bytes
    done: Done | None
    refused: Refused | None = None
    sender: Sender | None = None
    outbox_row: int = 0
    """The row of the outbox that it is, which is deleted with it; 0 for none."""


Appended = AppendedMessage | Unit
"""What is on its way to the store."""


def _duplicate_id_row(duplicate_id: DuplicateId, seq: int) -> Row:
    record = encode_duplicate_id(duplicate_id.digest)
    return Row(seq, seq, UserRecordType.DUPLICATE_ID, duplicate_id.cache_id, record)


def _message_rows(
    queue_ids: Sequence[int], payload: bytes, first: int, *, is_timed: bool
) -> tuple[list[Row], list[MessageLocation]]:
    large_id = large_body_id(payload)
    is_large = large_id is not None
    kind = UserRecordType.ADD_LARGE_MESSAGE if is_large else UserRecordType.ADD_MESSAGE
    if len(queue_ids) == 1:
        row = Row(first, first, kind, queue_ids[0], payload)
        return [row], [MessageLocation(first, None, large_id, is_timed)]
    body = Body(first, len(queue_ids))
    rows = [Row(first, first, kind, None, payload)]
    for position, queue_id in enumerate(queue_ids, 1):
        record = encode_reference(ReferenceRecord(position, body.references))
        rows.append(Row(first + position, first, UserRecordType.ADD_REF, queue_id, record))
    return rows, [MessageLocation(row.seq, body, large_id, is_timed) for row in rows[1:]]


def large_references(prepared: PreparedTransaction) -> list[LargeReference]:
    """Return the references of a transaction in doubt: to the bodies of what it is to send."""
    ids = (large_body_id(payload) for _, payload in prepared.messages)
    return [LargeReference(one, prepared.transaction_id) for one in ids if one is not None]


def binding_row(binding: Binding) -> Row:
    """Return the row of BINDINGS that holds ``binding``."""
    if isinstance(binding, QueueBinding):
        queue_id = binding.queue_id
        record = encode_queue_binding(binding)
        return Row(queue_id, queue_id, UserRecordType.QUEUE_BINDING, queue_id, record)
    if isinstance(binding, PreparedTransaction):
        transaction_id = binding.transaction_id
        record = encode_prepared_transaction(binding)
        kind = UserRecordType.PREPARED_TRANSACTION
        return Row(transaction_id, transaction_id, kind, None, record)
    if isinstance(binding, RecordVersion):
        binding_id = binding.binding_id
        record = encode_record_version(binding)
        return Row(binding_id, binding_id, UserRecordType.RECORD_VERSION, None, record)
    if isinstance(binding, IdCacheBinding):
        cache_id = binding.cache_id
        record = encode_id_cache(binding)
        return Row(cache_id, cache_id, UserRecordType.ID_CACHE, None, record)
    if isinstance(binding, OperatorRecord):
        record_id = binding.record_id
        record = encode_operator_record(binding)
        return Row(record_id, record_id, UserRecordType.OPERATOR_RECORD, None, record)
    address_id = binding.address_id
    record = encode_address_binding(binding)
    return Row(address_id, address_id, UserRecordType.ADDRESS_BINDING, None, record)
