"""What is stored or deleted atomically, and where a stored message lives.

A message of one queue is one row. A message of n queues is a body row ``b`` and the reference rows
``b+1`` to ``b+n``: because they have no gaps, whether a body is still needed is answered by the
primary key alone. The writer deletes a body in the transaction that deletes its last reference.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple, TypeVar

from orthia.config.errors import OrthiaError
from orthia.journal.codec import (
    AddressBinding,
    IdCacheBinding,
    PreparedTransaction,
    QueueBinding,
    RecordVersion,
    ReferenceRecord,
    encode_address_binding,
    encode_attempts,
    encode_duplicate_id,
    encode_id_cache,
    encode_prepared_transaction,
    encode_queue_binding,
    encode_record_version,
    encode_reference,
)
from orthia.journal.message import large_body_id, moment, record_version
from orthia.journal.moments import MessageTime
from orthia.journal.records import RemovalReason, UserRecordType

Done = Callable[[], None]
Refused = Callable[[OrthiaError], None]
"""Gets the reason why a unit is not stored, and never will be, though others are."""
Binding = QueueBinding | AddressBinding | PreparedTransaction | RecordVersion | IdCacheBinding


class Body(NamedTuple):
    """The body row several references share, and how many references it was written with."""

    seq: int
    references: int


class MessageLocation(NamedTuple):
    """What is deleted when a queue is done with a message."""

    seq: int
    body: Body | None = None
    large_id: int | None = None
    """The large body it refers to."""
    is_timed: bool = False
    """Whether the store keeps a time of it: see ``orthia.journal.moments``."""


class LargeReference(NamedTuple):
    """Something that needs a large body: a message in a queue, or a transaction in doubt."""

    large_id: int
    seq: int
    """Of the message in its queue; the id of the transaction."""


class DuplicateId(NamedTuple):
    """By what a message is known that is sent a second time."""

    cache_id: int
    """Of the binding of its address' id cache."""
    digest: bytes
    keep: int
    """How many ids of the address are kept, the newest: ``id-cache-size``."""


class Guarded(NamedTuple):
    """Messages of a unit that are stored unless their duplicate id is, and their rows.

    One that is sent becomes several where diverts copy it.
    """

    duplicate_id: DuplicateId
    messages: range
    """Which of the unit's messages they are, counted from 0."""
    first_seq: int
    last_seq: int
    """Of the row of the duplicate id."""


class Row(NamedTuple):
    """A row of MESSAGES or BINDINGS that is to be inserted."""

    seq: int
    id: int
    user_record_type: int
    queue_id: int | None
    record: bytes


class Sender:
    """Somebody whose units are stored in the order they came: one for each connection of a client.

    See ``orthia.journal.engine.senders``.
    """

    __slots__ = ("refusal",)

    def __init__(self) -> None:
        self.refusal: OrthiaError | None = None
        """Why what it sent behind a refused unit is refused, too; the writer's thread only."""


_NO_REASONS: Final[dict[int, RemovalReason]] = {}
"""Of every unit to which none was given yet; nobody writes into it."""
_One = TypeVar("_One")


def extended(these: Sequence[_One], more: Iterable[_One]) -> list[_One]:
    """Return what is in ``these`` and then ``more``; a list is its own."""
    if not isinstance(these, list):
        return list(more)  # it was never given anything
    these.extend(more)
    return these


class Changes:
    """What a transaction changes, as lists the bulk statements take.

    They are made in the order of the fields: inserts come first, then deletes, then the bodies that
    lost their last reference. So what is changed may be of several units, of which one deletes
    what an earlier one inserted.
    """

    __slots__ = (
        "binding_rows",
        "bodies",
        "counted",
        "deletes",
        "id_limit",
        "linked",
        "payload_bytes",
        "reasons",
        "rows",
        "timed",
        "unbound",
        "unlinked",
        "untimed",
    )

    def __init__(self) -> None:
        # Most units are an acknowledgement, which needs one list: the others are made when needed.
        self.deletes: list[int] = []
        self.rows: Sequence[Row] = ()
        self.reasons = _NO_REASONS
        """By seq, of deletes that are no acknowledgements."""
        self.bodies: Sequence[Body] = ()
        """To be deleted if nothing refers to them any more; one may be in here several times."""
        self.linked: Sequence[LargeReference] = ()
        self.unlinked: Sequence[LargeReference] = ()
        """After ``linked``: what one unit links, a later one may unlink."""
        self.timed: Sequence[MessageTime] = ()
        self.counted: Sequence[Row] = ()
        """Records of attempts, by which the file journal keeps what messages do not say."""
        self.untimed: Sequence[int] = ()
        """The seqs of messages of which no time is kept any more; after ``timed``."""
        self.binding_rows: Sequence[Row] = ()
        self.unbound: Sequence[int] = ()
        self.id_limit = 0
        """Reserves all ids up to this one; 0 reserves none."""
        self.payload_bytes = 0

    def merge(self, other: "Changes") -> None:
        """Make the changes of ``other`` behind these."""
        self.deletes += other.deletes  # all there is of most
        if other.rows:
            self.rows = extended(self.rows, other.rows)
        if other.reasons:
            if self.reasons is _NO_REASONS:
                self.reasons = {}
            self.reasons.update(other.reasons)
        if other.bodies:
            self.bodies = extended(self.bodies, other.bodies)
        if other.linked:
            self.linked = extended(self.linked, other.linked)
        if other.unlinked:
            self.unlinked = extended(self.unlinked, other.unlinked)
        if other.timed:
            self.timed = extended(self.timed, other.timed)
        if other.counted:
            self.counted = extended(self.counted, other.counted)
        if other.untimed:
            self.untimed = extended(self.untimed, other.untimed)
        if other.binding_rows or other.unbound or other.id_limit:
            self.binding_rows = extended(self.binding_rows, other.binding_rows)
            self.unbound = extended(self.unbound, other.unbound)
            self.id_limit = max(self.id_limit, other.id_limit)
        self.payload_bytes += other.payload_bytes

    def add_deletes(self, locations: Iterable[MessageLocation]) -> None:
        """Delete the rows at ``locations``, and each body that then has no reference."""
        for seq, body, large_id, is_timed in locations:
            self.deletes.append(seq)
            if body is not None:
                self.bodies = extended(self.bodies, (body,))
            if large_id is not None:
                self.unlinked = extended(self.unlinked, (LargeReference(large_id, seq),))
            if is_timed:
                self.forget_times((seq,))

    def add_rows(self, rows: Iterable[Row]) -> None:
        """Insert rows of MESSAGES."""
        self.rows = extended(self.rows, rows)

    def add_links(self, references: Iterable[LargeReference]) -> None:
        """Refer to large bodies."""
        self.linked = extended(self.linked, references)

    def add_times(self, times: Iterable[MessageTime]) -> None:
        """Keep the times of messages."""
        self.timed = extended(self.timed, times)

    def forget_times(self, seqs: Iterable[int]) -> None:
        """Keep the times of messages no more."""
        self.untimed = extended(self.untimed, seqs)

    @property
    def touches_bindings(self) -> bool:
        """True if anything of BINDINGS changes."""
        return bool(self.binding_rows or self.unbound or self.id_limit)

    @property
    def touches_large_bodies(self) -> bool:
        """True if a large body is referred to, or no more."""
        return bool(self.linked or self.unlinked)

    @property
    def touches_times(self) -> bool:
        """True if a message gets a time, or has none any more."""
        return bool(self.timed or self.untimed)

    def deletes_by_reason(self) -> dict[RemovalReason, list[int]]:
        """Return each reason there is with the rows that are deleted for it, but for ``DUE``."""
        grouped: dict[RemovalReason, list[int]] = {}
        for seq in self.deletes:
            reason = self.reasons.get(seq, RemovalReason.ACKNOWLEDGED)
            if reason is RemovalReason.DUE:
                continue  # it did not leave: it came to the queue that it was sent to
            grouped.setdefault(reason, []).append(seq)
        return grouped


class Unit(Changes):
    """Changes that are stored all together or not at all; filled once, then appended once."""

    __slots__ = (
        *("attempted", "deleted", "done", "dropped", "duplicate_ids", "ended_cache", "guarded"),
        *("last_seq", "messages", "only_deletes", "record_version"),
        *("refused", "replaced", "sender"),
    )

    def __init__(self, done: Done | None = None, last_seq: int = 0) -> None:
        Changes.__init__(self)  # as ``super()`` would, in fewer steps: one for each unit
        self.messages: Sequence[tuple[Sequence[int], bytes]] = ()
        """Those to be stored, each with its queues, and ..."""
        self.deleted: Sequence[MessageLocation] = ()
        """... those to be deleted, which ``place`` makes changes of."""
        self.replaced: Sequence[tuple[int, MessageLocation]] = ()
        """Those of ``deleted`` that go for one of ``messages``, each with which that is."""
        self.attempted: Sequence[MessageTime] = ()
        """Messages that were delivered in vain, which ``place`` makes changes of."""
        self.duplicate_ids: tuple[tuple[range, DuplicateId], ...] = ()
        """Of ``messages``, each with which they are, in order, which ``place`` makes ..."""
        self.guarded: tuple[Guarded, ...] = ()
        """... these of."""
        self.ended_cache: int | None = None
        """An id cache that ends, with all of its ids; its binding is deleted by the unit, too."""
        self.dropped: frozenset[int] = frozenset()
        """Those of ``messages`` that turned out to be duplicates, once the unit is stored."""
        self.only_deletes = False
        """Whether it deletes messages and changes nothing else, as most units do; so says whoever
        has filled it."""
        self.record_version = 0
        """The highest of its messages' records, those of a prepared transaction included."""
        self.last_seq = last_seq
        """The highest seq of all that was appended up to and with this unit."""
        self.done = done
        self.refused: Refused | None = None
        """Called instead of ``done`` if the store takes others and not this; without it, and for
        a unit that stores no message, that ends the journal."""
        self.sender: Sender | None = None
        """Whose it is, of a unit that may be ``refused``; None for the broker's own."""

    @property
    def cost_rows(self) -> int:
        """How many rows the unit counts for where rows are bounded; at least one."""
        if self.only_deletes:
            return len(self.deletes) or 1
        changes = len(self.rows) + len(self.deletes) + len(self.binding_rows) + len(self.unbound)
        return (changes + len(self.timed)) or 1

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
            if self.reasons is _NO_REASONS:
                self.reasons = {}
            self.reasons[location.seq] = reason

    def replace(self, location: MessageLocation, by: int) -> None:
        """Delete a queue's message if one of ``messages``, which has that number, is stored."""
        self.delete(location, RemovalReason.DELETED)
        self.replaced = extended(self.replaced, ((by, location),))

    def count_attempts(self, time: MessageTime) -> None:
        """Store how often a message was delivered in vain, with all that is kept of its time."""
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
        self.ended_cache = cache_id
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
    address_id = binding.address_id
    record = encode_address_binding(binding)
    return Row(address_id, address_id, UserRecordType.ADDRESS_BINDING, None, record)
