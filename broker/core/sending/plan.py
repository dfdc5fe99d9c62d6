# mypyc compiles this module.
"""The plan of a send: everything one unit of the journal sends, and how all of it is undone.

One message to one queue, which is nearly every message, needs none: ``send_plain`` does the same
with a closure in place of the objects here. Whatever else sends makes a plan: to several queues, a
transaction, a message that is due, expired or a dead letter. A plan goes through these steps, in
this order:

| step    | what happens                                                                           |
|---------|----------------------------------------------------------------------------------------|
| fill    | ``send``, ``move``, ``take_out``, ``delete`` say what the unit contains                |
| admit   | each message is charged to its addresses and encoded; raises what the client is told   |
| apply   | the unit is appended: the journal says where each message will be                      |
| stored  | messages enter their queues, subscribers of topics get theirs, bodies are unpinned     |
| refused | everything above is undone; the sender is told why                                     |

A plan is a context manager: leaving it before ``apply`` has succeeded undoes what it has charged,
whatever the reason, also when the steps that fill it are abandoned.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from types import TracebackType
from typing import Final, NamedTuple

from orthia.broker.core.api import Done, MessageReference, OnRefused, OutgoingMessage
from orthia.broker.core.errors import BrokerError, DestinationRefused, LimitExceeded, NotLive
from orthia.broker.core.identity import Principal
from orthia.broker.core.limits.memory import size_in_memory, size_in_store
from orthia.broker.core.limits.quota import AddressUse, Charges
from orthia.broker.core.queue.policy import ReplacementPolicy
from orthia.broker.core.queue.queue import Queue
from orthia.broker.core.routing.router import Routed
from orthia.broker.core.sending.context import SendContext
from orthia.broker.core.slices import GO_ON
from orthia.broker.core.topics.publication import Publication
from orthia.broker.core.topics.topic import Topic
from orthia.broker.quoting import quoted
from orthia.config.errors import OrthiaError
from orthia.journal.errors import JournalClosed, RecordTooLarge
from orthia.journal.model.changes import MessageLocation, extended
from orthia.journal.model.codec import PreparedTransaction
from orthia.journal.model.message import DEFAULT_PRIORITY, LargeBody, Message
from orthia.journal.model.records import RemovalReason
from orthia.journal.model.unit import Binding, Sender, Unit

_AT_ONCE: Final = 16
"""How many messages enter their queues before others have a turn."""

Place = tuple[int, Queue]
"""One message of the unit, by its number, in one of its queues."""
_Copy = tuple[int, Queue, Message, MessageLocation]
"""The number of a message, one of its queues, the message, and where it is stored."""


class _Heard(NamedTuple):
    """What the subscribers of topics get of one message."""

    copies: Sequence[tuple[Topic, Message]]
    guarded: int | None
    """A message of the unit: if the store drops that as a duplicate, nothing is published."""
    known_by: tuple[str, str] | None
    """Its address and duplicate id, if nothing is stored of it."""


class _Publishing(NamedTuple):
    """A message that is on its way to the subscribers of a topic."""

    topic: Topic
    record: Message
    seq: int
    guarded: int | None


_NO_UNIT: Final = Unit()
"""The unit of a plan that is stored or undone."""


class SendPlan:
    """What one unit sends; filled, applied once, then stored or undone. On the loop's thread."""

    __slots__ = (
        *("_bodies", "_caches", "_charges", "_context", "_copies", "_done", "_heard", "_held"),
        *("_ids", "_is_applied", "_messages", "_on_refused", "_publishing", "_sources", "_taken"),
        *("_unit", "_values", "copies"),
    )

    def __init__(self, context: SendContext, sender: Sender | None = None) -> None:
        """Begin empty; the journal stores the units of one ``sender`` in their order."""
        self._context = context
        self._unit = Unit()
        self._unit.sender = sender
        self._messages: list[tuple[Sequence[Queue], Message]] = []
        self.copies = 0
        """How many messages enter queues: one for each message and queue."""
        self._heard: list[_Heard] = []
        self._ids: set[tuple[str, str]] = set()
        """Addresses and duplicate ids of the messages of which nothing is stored."""
        self._publishing: list[_Publishing] = []
        self._charges = Charges()
        self._held: set[str] = set()
        """Addresses whose duplicate ids are kept while the plan is filled."""
        self._caches: set[tuple[str, int]] = set()
        self._bodies: list[LargeBody] = []
        """Bodies that clients uploaded, pinned until the plan ends."""
        self._taken: list[LargeBody] = []
        """Bodies of messages that are taken out of a queue; pinned once the plan is applied."""
        self._sources: list[Queue] = []
        """The queues that messages are taken out of."""
        self._values: dict[Place, _SentValue] = {}
        self._copies: list[_Copy] = []
        self._is_applied = False
        self._done: Done | None = None
        self._on_refused: Callable[[OrthiaError], None] = _nobody

    def __enter__(self) -> "SendPlan":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        del kind, error, traceback
        for address in self._held:
            self._context.duplicates.release(address)
        if not self._is_applied:
            self._charges.undo()

    # --- fill

    def send(
        self, principal: Principal, address: str, message: OutgoingMessage, routed: Sequence[Routed]
    ) -> None:
        """Add a client's message, which goes to all that is ``routed``; raises BrokerError.

        Admission follows. A message that was sent before, as its duplicate id says, is not added.
        """
        context = self._context
        if message.large is not None:
            self._bodies.append(message.large)
        if message.outbox_row:
            self._unit.take_from_outbox(message.outbox_row)
        first, known_by = len(self._messages), None
        duplicate_id = message.duplicate_id
        is_stored = context.persistent and any(one.queues for one in routed)
        if duplicate_id is not None and not is_stored:
            known_by = address, duplicate_id
            if known_by in self._ids or context.duplicates.is_known(*known_by):
                return
            self._ids.add(known_by)
        for one in routed:
            if one.queues:
                context.refuse_if_full(one.queues, one.record)
                # A copy: the list of the address may change before the unit is stored.
                self._add(list(one.queues), one.record)
        guarded = None
        if (
            duplicate_id is not None
            and is_stored
            and self._guard(principal, address, duplicate_id, first)
        ):
            guarded = first
        copies = [(topic, one.record) for one in routed for topic in one.topics]
        if copies or known_by is not None:
            self._heard.append(_Heard(copies, guarded, known_by))

    def move(
        self,
        queues: Sequence[Queue],
        record: Message,
        topics: Iterable[Topic] = (),
        *,
        is_limited: bool = False,
    ) -> None:
        """Add a message that the broker itself sends, and admit it.

        Unless ``is_limited`` no limit refuses it: nothing that is stored gets lost for a limit.
        """
        if queues:
            self._add(queues, record)
            self._encode(queues, record, is_limited=False)
            size = size_in_store(record)
            for queue in queues:
                if is_limited:
                    self._charges.charge(queue.use, size)
                else:
                    self._charges.add(queue.use, size)
        copies = [(topic, record) for topic in topics]
        if copies:
            self._heard.append(_Heard(copies, None, None))

    def take_from_outbox(self, row_id: int) -> None:
        """Delete a row of the outbox with what the plan sends."""
        self._unit.take_from_outbox(row_id)

    def take_out(
        self,
        queue: Queue,
        location: MessageLocation | None,
        reason: RemovalReason,
        body: LargeBody | None,
    ) -> None:
        """Take a message out of a queue for good, with its large ``body`` if it has one.

        A plan that sends anything is refused by AcknowledgedBefore if an application has
        acknowledged the message in its own transaction: it is not to be in two places.
        """
        if location is not None:
            if reason is RemovalReason.ACKNOWLEDGED or self._context.journal.acks is None:
                self._unit.delete(location, reason)
            else:
                self._unit.move(location, reason)
        if body is not None:
            self._taken.append(body)
        self._sources.append(queue)

    def record(self, binding: Binding, replaces: int | None) -> None:
        """Store a binding with the plan, in the place of another one."""
        self._unit.add_binding(binding)
        if replaces is not None:
            self._unit.delete_binding(replaces)

    def resolve(self, prepared: PreparedTransaction) -> None:
        """Forget a prepared transaction, which the plan commits."""
        self._unit.delete_transaction(prepared)

    def delete(self, locations: Sequence[MessageLocation]) -> None:
        """Delete messages that were acknowledged."""
        self._unit.deleted = extended(self._unit.deleted, locations)

    def _add(self, queues: Sequence[Queue], record: Message) -> None:
        self._messages.append((queues, record))
        self.copies += len(queues)

    def _guard(self, principal: Principal, address: str, duplicate_id: str, first: int) -> bool:
        """Store the messages from ``first`` on only if the journal does not know their id."""
        duplicates = self._context.duplicates
        known_as = duplicates.to_store(principal, address, duplicate_id)
        if known_as is None:
            return False
        self._unit.guard(known_as, range(first, len(self._messages)))
        if address not in self._held:
            self._held.add(address)
            duplicates.hold(address)
        self._caches.add((address, known_as.cache_id))
        return True

    # --- what is in it

    def __len__(self) -> int:
        return len(self._messages)

    def record_of(self, number: int) -> Message:
        """Return one message."""
        return self._messages[number][1]

    def plain(self) -> Queue | None:
        """Return the queue if the plan is one message that ``send_plain`` can send to it."""
        if len(self._messages) != 1 or self._caches:
            return None
        ((queues, record),) = self._messages
        is_plain = len(queues) == 1 and record.large is None and not record.stated
        return queues[0] if is_plain and queues[0].last_values is None else None

    def uses(self) -> Iterable[AddressUse]:
        """Return the limits of the addresses that messages go to, each once."""
        return {queue.use: None for queues, _ in self._messages for queue in queues}

    def topics(self) -> Iterable[Topic]:
        """Return the topics that messages go to, each once."""
        return {topic: None for heard in self._heard for topic, _ in heard.copies}

    # --- admit

    def take_over_bodies(self) -> None:
        """Count the bodies that clients uploaded with their messages from now on."""
        if self._bodies:
            self._context.taken_over(self._bodies)

    def admit(self, number: int, *, is_transaction: bool = False) -> None:
        """Charge one message to its addresses, and encode it; raises BrokerError.

        A message that an address would drop is refused in a transaction, which is done as a whole.
        """
        queues, record = self._messages[number]
        size = size_in_store(record)
        if is_transaction:
            _refuse_if_deleted(queues)  # before a level of it is stored, which nobody would delete
            for queue in queues:
                queue.use.refuse_if_dropped(size)
        for queue in queues:
            self._charges.charge(queue.use, size)
        self._encode(queues, record, is_limited=True)

    def _encode(self, queues: Sequence[Queue], record: Message, *, is_limited: bool) -> None:
        priority = record.priority
        if priority == DEFAULT_PRIORITY:
            ids = [queue.id for queue in queues]
        elif is_limited:
            ids = [queue.id_for_client(priority) for queue in queues]
        else:
            ids = [queue.id_for(priority) for queue in queues]
        self._unit.add_message(ids, self._context.encoded(record))

    def refuse_if_gone(self) -> None:
        """Raise DestinationRefused if something is gone that the plan had found: it took steps."""
        _refuse_if_deleted({queue: None for queues, _ in self._messages for queue in queues})
        for address, cache_id in self._caches:
            if not self._context.duplicates.holds(address, cache_id):
                raise DestinationRefused(
                    f"the duplicate ids of address {quoted(address)} were deleted during the"
                    " commit: nothing of the transaction was done"
                )

    # --- apply

    def apply(self, done: Done | None, on_refused: Callable[[OrthiaError], None]) -> None:
        """Append the unit; raises LimitExceeded, NotLive.

        ``done`` follows when everything is stored and placed. Or ``on_refused``, when the store
        refuses the unit and everything is undone.
        """
        unit, context = self._unit, self._context
        self._done, self._on_refused = done, on_refused
        if context.values.is_used:
            self._values = _replaced_values(unit, self._messages)
        if not (self._messages or self._heard):
            unit.moved = ()
        if self._heard:
            self._number()
        unit.done, unit.refused = self._stored, self._refused
        if self.copies > _AT_ONCE:
            unit.completes = self._stored_in_steps
        try:
            locations = iter(context.journal.append_unit(unit))
        except (RecordTooLarge, JournalClosed) as error:
            raise _refusal_by_journal(error) from None
        self._is_applied = True
        if not context.persistent:
            self.note_ids()  # no store can refuse the unit
        values = self._values
        for number, (queues, record) in enumerate(self._messages):
            for queue in queues:
                queue.in_flight += 1
                location = next(locations)
                self._copies.append((number, queue, record, location))
                if values and (number, queue) in values:
                    values[number, queue].sent(record, location)
        for queue in self._sources:
            queue.undecided += 1
        if self._taken:
            context.pin(self._taken)

    def first_seq(self) -> int | None:
        """Return the seq of the first message in its first queue, once the plan is applied."""
        return self._copies[0][3].seq if self._copies else None

    def publish(self, done: Done | None, on_refused: Callable[[OrthiaError], None]) -> None:
        """Apply a plan that stores nothing: publish it behind what is on its way to the store.

        If it takes a row of the outbox it is published once that is deleted, and ``on_refused`` is
        called if the row is gone. Raises NotLive.
        """
        if self._unit.outbox_rows:
            self.apply(done, on_refused)
            return
        is_first = all(topic.has_published_all for topic in self.topics())
        publish = self.publishing(done)
        self._is_applied = True
        if is_first:
            publish()
            return
        try:
            self._context.journal.append_unit(Unit(publish))
        except JournalClosed as error:
            raise NotLive(str(error)) from None

    def publishing(self, done: Done | None) -> Done:
        """Return what publishes to the topics, unpins the bodies and calls ``done``.

        For a plan whose message is stored otherwise, or not at all. Raises NotLive.
        """
        self._done = done
        self._number()
        return self._finish

    def note_ids(self) -> None:
        """Remember the duplicate ids of messages of which nothing is stored."""
        for heard in self._heard:
            if heard.known_by is not None:
                self._context.duplicates.note(*heard.known_by)

    def _number(self) -> None:
        """Give what is published its place in the order of its topics."""
        context = self._context
        for copies, guarded, known_by in self._heard:
            if known_by is not None and context.duplicates.is_known(*known_by):
                continue  # it was published while the plan was filled
            for topic, record in copies:
                topic.sent_seq = seq = context.next_id()
                self._publishing.append(_Publishing(topic, record, seq, guarded))

    # --- stored

    def _stored(self) -> None:
        self._decide()
        for copy in self._copies:
            self._place(copy)
        for queue in self._queues():
            queue.dispatch()
        self._finish()

    def _stored_in_steps(self) -> Iterator[bool]:
        """Do the same in steps; no queue delivers any message before all are placed."""
        self._decide()
        queues = self._queues()
        for queue in queues:
            queue.pace.suspend()
        try:
            for count, copy in enumerate(self._copies, 1):
                self._place(copy)
                if not count % _AT_ONCE:
                    yield GO_ON
        finally:
            for queue in queues:
                queue.pace.unsuspend()
        for queue in queues:
            queue.dispatch()
            yield GO_ON
        self._finish()

    def _decide(self) -> None:
        for queue in self._sources:
            queue.undecided -= 1

    def _queues(self) -> list[Queue]:
        return [*{queue: None for _, queue, _, _ in self._copies}]

    def _place(self, copy: _Copy) -> None:
        number, queue, record, location = copy
        queue.in_flight -= 1
        if number in self._unit.dropped:  # a duplicate
            queue.use.release(size_in_store(record))
            if (number, queue) in self._values:
                self._values[number, queue].undo()
            return
        size = size_in_memory(record)
        queue.place(MessageReference(location.seq, record, location, size, redelivered=False))

    def _finish(self) -> None:
        """Publish, unpin the bodies, and tell the sender."""
        sender = self._unit.sender
        for topic, record, seq, guarded in self._publishing:  # perhaps thousands: one a pattern
            topic.published_seq = seq
            if guarded is None or guarded not in self._unit.dropped:
                topic.publish(Publication(seq, record, size_in_memory(record), sender))
        if self._heard:
            self.note_ids()
        if self._bodies or self._taken:
            self._unpin()
        # Which refers back to this plan: with its messages that would be a cycle.
        self._unit = _NO_UNIT
        if self._done is not None:
            self._done()

    def _unpin(self) -> None:
        self._context.unpin(self._bodies)
        self._context.unpin(self._taken)

    # --- refused

    def _refused(self, error: OrthiaError) -> None:
        self._decide()
        for _, queue, _, _ in self._copies:
            queue.in_flight -= 1
        for value in self._values.values():
            value.undo()
        self._charges.undo()
        self._unpin()
        self._unit = _NO_UNIT
        self._on_refused(error)


def _nobody(error: OrthiaError) -> None:
    del error


def _refuse_if_deleted(queues: Iterable[Queue]) -> None:
    for queue in queues:
        if queue.is_leaving:
            raise DestinationRefused(
                f"queue {quoted(queue.name)} was deleted during the commit: nothing of the"
                " transaction was done"
            )


def send_plain(
    context: SendContext,
    queue: Queue,
    record: Message,
    done: Done | None,
    on_refused: OnRefused,
    sender: Sender,
    *,
    persistent: bool,
    outbox_row: int = 0,
) -> int:
    """Send one message to one queue: charge, append, place, and undo; raises BrokerError.

    Returns its seq. Unless it is ``persistent`` it is stored only if memory has no room for it, or
    if it would overtake a message that is on its way to the store, or if it is a row of the outbox.
    """
    size, queue_id = size_in_memory(record), queue.id
    if record.priority != DEFAULT_PRIORITY:
        queue_id = queue.id_for_client(record.priority)
    queue.use.charge(size)
    stores = persistent and context.persistent and queue.durable
    if not (stores or queue.in_flight or outbox_row) and queue.log.takes_in_memory(size):
        seq = context.next_id()
        queue.add(MessageReference(seq, record, None, size, redelivered=False))
        if done is not None:
            done()
        return seq
    payload = context.encoded(record)
    queue.in_flight += 1
    expires = record.expires_ms != 0
    seq = 0

    # One function for both outcomes: it is made for every message.
    def answered(refusal: OrthiaError | None = None) -> None:
        queue.in_flight -= 1
        if refusal is not None:
            queue.use.release(size)
            on_refused(refusal, done)
            return
        location = MessageLocation(seq, None, None, expires)
        queue.add(MessageReference(seq, record, location, size, redelivered=False))
        if done is not None:
            done()

    try:
        if expires:
            unit = Unit(answered)
            unit.refused, unit.sender = answered, sender
            unit.add_message([queue_id], payload)
            if outbox_row:
                unit.take_from_outbox(outbox_row)
            seq = context.journal.append_unit(unit)[0].seq
        else:
            seq = context.journal.append_message(
                queue_id, payload, answered, answered, sender, outbox_row
            )
    except (RecordTooLarge, JournalClosed) as error:
        queue.in_flight -= 1
        queue.use.release(size)
        raise _refusal_by_journal(error) from None
    return seq


def _refusal_by_journal(error: RecordTooLarge | JournalClosed) -> BrokerError:
    """Return what it means to a client that the journal does not take a message."""
    return NotLive(str(error)) if isinstance(error, JournalClosed) else LimitExceeded(str(error))


# --- last values


class _SentValue:
    """A message on its way to a last value queue."""

    __slots__ = ("_key", "_location", "_replaces", "_values")

    def __init__(
        self, values: ReplacementPolicy, key: bytes, replaces: MessageLocation | None
    ) -> None:
        self._values = values
        self._key = key
        self._replaces = replaces
        self._location: MessageLocation | None = None

    def sent(self, record: Message, location: MessageLocation) -> None:
        """Tell the queue where the message will be."""
        self._location = location
        self._values.sent(self._key, record, location, self._replaces)

    def undo(self) -> None:
        """Tell the queue that the message was not stored."""
        if self._location is not None:
            self._values.not_sent(self._key, self._location)
            self._location = None


def _replaced_values(
    unit: Unit, messages: Sequence[tuple[Sequence[Queue], Message]]
) -> dict[Place, _SentValue]:
    """Let a unit delete what its ``messages`` replace; return those that have a value, by place.

    Raises LimitExceeded.
    """
    found: dict[Place, _SentValue] = {}
    seen: set[tuple[Queue, bytes]] = set()
    for number, (queues, record) in enumerate(messages):
        for queue in queues:
            values = queue.last_values
            if values is None:
                continue
            key, location = values.replaced_by(record)
            if key is None:
                continue
            if location is not None and (queue, key) not in seen:
                unit.replace(location, number)
            else:
                location = None  # an earlier message of the unit replaces it
            seen.add((queue, key))
            found[number, queue] = _SentValue(values, key, location)
    return found
