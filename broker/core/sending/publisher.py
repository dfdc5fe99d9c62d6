# mypyc compiles this module.
"""What is sent goes into the journal, and from there into its queues and to its subscribers.

Whatever a client is told is done is committed first.
"""

from collections.abc import Callable, Iterable, Sequence

from orthia.broker.core.api import Done, FanOut, MessageReference, OnRefused, OutgoingMessage
from orthia.broker.core.errors import LimitExceeded, NotLive
from orthia.broker.core.identity import Principal
from orthia.broker.core.limits.memory import size_in_memory, size_in_store
from orthia.broker.core.limits.quota import Charges
from orthia.broker.core.queue.levels import ids_for
from orthia.broker.core.queue.newest import ValueCount
from orthia.broker.core.queue.queue import Queue
from orthia.broker.core.routing.router import Routed
from orthia.broker.core.sending.duplicates import DuplicateIds
from orthia.broker.core.sending.placing import Placed, Placing
from orthia.broker.core.sending.replacing import is_plain, replaced_values
from orthia.broker.core.topics.publication import Publication, naming, refusal_of_journal
from orthia.broker.core.topics.topic import Topic, first_behind
from orthia.broker.core.upkeep.expiry import AddressExpiry
from orthia.config.errors import OrthiaError
from orthia.journal.abc import MessageJournal
from orthia.journal.errors import JournalClosed, RecordTooLarge
from orthia.journal.model.changes import DuplicateId, MessageLocation
from orthia.journal.model.message import DEFAULT_PRIORITY, LargeBody, Message, encode_message
from orthia.journal.model.unit import Sender, Unit


class Publisher:
    """Stores and places messages; on the loop's thread."""

    def __init__(
        self,
        journal: MessageJournal,
        time_ms: Callable[[], int],
        duplicates: DuplicateIds,
        *,
        persistent: bool,
    ) -> None:
        """``time_ms``, milliseconds since 1970 UTC, is when messages are sent.

        Unless ``persistent`` nothing is stored, whatever senders ask for.
        """
        self.duplicates = duplicates
        self._journal = journal
        self._large = journal.large
        self._time_ms = time_ms
        self.expiry: AddressExpiry | None = None
        """Has messages expire as their addresses say; None where none says so."""
        self._persistent = persistent
        self.values = ValueCount()
        """How many there are in last value queues."""

    def send(
        self,
        address: str,
        queues: Sequence[Queue],
        topic: Topic | None,
        message: OutgoingMessage,
        on_stored: Done | None,
        on_refused: OnRefused,
        sender: Sender,
    ) -> FanOut | None:
        """Send a message to ``queues`` and to ``topic``; see ``BrokerCore.send``."""
        record = self.record(address, message)
        if not self._persistent:
            self.refuse_if_full(queues, record)
        done = on_stored
        if record.large is not None:
            done = self._unpinning(record.large, done)
        is_first = topic is None or topic.has_published_all
        if topic is not None:
            done = self._publishing([(topic, record)], done, sender)
        if not queues:
            self._done_in_turn(done, is_first=is_first)
        elif len(queues) == 1 and record.large is None and not record.stated:
            if topic is not None:
                on_refused = naming(on_stored, on_refused)
            self._send_to_one(queues[0], record, message, done, on_refused, sender)
        else:
            self._send_to_all([(queues, record)], record.large, done, on_stored, on_refused, sender)
        return None if topic is None else topic.behind()

    def send_routed(
        self,
        routed: Sequence[Routed],
        message: OutgoingMessage,
        on_stored: Done | None,
        on_refused: OnRefused,
        sender: Sender,
        known_as: DuplicateId | None = None,
    ) -> FanOut | None:
        """Send what a router made of a message, all of it in one unit; as ``send`` does.

        With ``known_as``, which needs a queue, unless the journal knows such an id.
        """
        done = on_stored
        if message.large is not None:
            done = self._unpinning(message.large, done)
        topics = [(topic, one.record) for one in routed for topic in one.topics]
        is_first = all(topic.has_published_all for topic, _ in topics)
        if topics:
            done = self._publishing(topics, done, sender)
        placed = [(one.queues, one.record) for one in routed if one.queues]
        if not self._persistent:
            for queues, record in placed:
                self.refuse_if_full(queues, record)
        if not placed:
            self._done_in_turn(done, is_first=is_first)
        elif known_as is None and is_plain(placed):
            ((queue,), record) = placed[0]
            refused = naming(on_stored, on_refused) if topics else on_refused
            self._send_to_one(queue, record, message, done, refused, sender)
        else:
            self._send_to_all(placed, message.large, done, on_stored, on_refused, sender, known_as)
        return first_behind(topic for topic, _ in topics)

    def send_once(
        self,
        principal: Principal,
        address: str,
        duplicate_id: str,
        routed: Sequence[Routed],
        message: OutgoingMessage,
        on_stored: Done | None,
        on_refused: OnRefused,
        sender: Sender,
    ) -> FanOut | None:
        """Send as ``send_routed`` does, unless it was sent to ``address`` before."""
        if not self.stores(routed):
            if self.duplicates.is_known(address, duplicate_id):
                if message.large is not None:
                    self.taken_over([message.large])
                self._say_known(message.large, on_stored)
                return None
            behind = self.send_routed(routed, message, on_stored, on_refused, sender)
            self.duplicates.note(address, duplicate_id)
            return behind
        known_as = self.duplicates.to_store(principal, address, duplicate_id)
        return self.send_routed(routed, message, on_stored, on_refused, sender, known_as)

    def stores(self, routed: Iterable[Routed]) -> bool:
        """Return whether anything is stored of a message that has a duplicate id."""
        return self._persistent and any(one.queues for one in routed)

    def _say_known(self, large: LargeBody | None, on_stored: Done | None) -> None:
        """Let go of a duplicate, of which the sender is told that it is done: it was."""
        if large is not None:
            self.unpin([large])
        if on_stored is not None:
            on_stored()

    def _send_to_all(
        self,
        placed: Sequence[Placed],
        large: LargeBody | None,
        done: Done | None,
        on_stored: Done | None,
        on_refused: OnRefused,
        sender: Sender,
        duplicate_id: DuplicateId | None = None,
    ) -> None:
        charges = Charges()

        def refused(error: OrthiaError) -> None:
            charges.take_back()
            if large is not None:
                self.unpin([large])
            on_refused(error, on_stored)

        with charges.unless_refused():
            unit = Unit()
            unit.sender = sender
            for queues, record in placed:
                self.charge(charges, queues, record)
                unit.add_message(ids_for(queues, record, asks=True), self.encoded(record))
            then = done
            if duplicate_id is not None:
                unit.guard(duplicate_id, range(len(placed)))

                def stored() -> None:
                    if unit.dropped:
                        self._say_known(large, on_stored)
                    elif done is not None:
                        done()

                then = stored

            self.append(unit, placed, then, refused)

    def _send_to_one(
        self,
        queue: Queue,
        record: Message,
        message: OutgoingMessage,
        done: Done | None,
        on_refused: OnRefused,
        sender: Sender,
    ) -> None:
        size, queue_id = size_in_memory(record), queue.id
        if record.priority != DEFAULT_PRIORITY:
            queue_id = queue.id_for_client(record.priority)
        queue.use.charge(size)
        # What is not persistent is stored all the same where memory has no room for it, or where
        # it would overtake a message before it that is on its way to the store.
        stores = message.persistent and self._persistent and queue.durable
        if not stores and not queue.in_flight and queue.takes_in_memory(size):
            seq = self.next_id()
            queue.add(MessageReference(seq, record, None, size, redelivered=False))
            if done is not None:
                done()
            return
        payload = self.encoded(record)
        queue.in_flight += 1
        expires = record.expires_ms != 0
        seq = 0

        # One for both, since there is one for each message.
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
                seq = self._journal.append_unit(unit)[0].seq
            else:
                seq = self._journal.append_message(queue_id, payload, answered, answered, sender)
        except (RecordTooLarge, JournalClosed) as error:
            queue.in_flight -= 1
            queue.use.release(size)
            raise refusal_of_journal(error) from None

    def _unpinning(self, body: LargeBody, done: Done | None) -> Done:
        """Return what lets go of a body, once its message is stored and published."""
        self.taken_over([body])

        def unpin() -> None:
            self.unpin([body])
            if done is not None:
                done()

        return unpin

    def _publishing(
        self, topics: Sequence[tuple[Topic, Message]], done: Done | None, sender: Sender
    ) -> Done:
        """Return what publishes to topics, once queues have the message, and is ``done``."""
        numbered = []
        for topic, record in topics:
            topic.sent_seq = seq = self.next_id()
            numbered.append((topic, record, seq))

        def publish() -> None:
            for topic, record, seq in numbered:  # thousands, perhaps: each pattern is one
                topic.published_seq = seq
                topic.publish(Publication(seq, record, size_in_memory(record), sender))
            if done is not None:
                done()

        return publish

    def _done_in_turn(self, done: Done | None, *, is_first: bool) -> None:
        """Call what is done of a message that is not stored, behind those that are on their way."""
        if done is not None and is_first:
            done()
        elif done is not None:
            try:
                self._journal.append_unit(Unit(done))
            except JournalClosed as error:
                raise NotLive(str(error)) from None

    # --- of a transaction, too

    def record(self, address: str, message: OutgoingMessage) -> Message:
        """Return a message as it is stored and delivered, sent at this moment."""
        now_ms = self._time_ms()
        # Unpacked: to look each field of a tuple up by its name takes several times as long.
        head, body, _, expires_ms, priority, large, encoding, stated, _ = message
        record = Message(address, head, body, now_ms, expires_ms, priority, large, encoding, stated)
        return record if self.expiry is None else self.expiry.sent(record)

    def encoded(self, record: Message) -> bytes:
        """Return the bytes of a record; raises LimitExceeded."""
        try:
            return encode_message(record)
        except ValueError as error:
            raise LimitExceeded(str(error)) from None

    def refuse_if_full(self, queues: Iterable[Queue], record: Message) -> None:
        """Raise LimitExceeded when memory is full, and all there is."""
        if self._persistent:
            return
        size = size_in_memory(record)
        for queue in queues:
            if not queue.takes_in_memory(size):
                raise LimitExceeded(
                    f"queue {queue.name} has no room for this message: nothing is stored"
                    " (persistence-enabled is false), and max-size or global-max-size is reached"
                )

    def next_id(self) -> int:
        """Return the seq of a message that is not stored; raises NotLive."""
        try:
            return self._journal.next_id()
        except JournalClosed as error:
            raise NotLive(str(error)) from None

    def charge(self, charges: Charges, queues: Iterable[Queue], record: Message) -> None:
        """Count a message for each of its queues; raises QuotaExceeded, NoRoomInStore."""
        size = size_in_store(record)
        for queue in queues:
            charges.charge(queue.use, size)

    def append(
        self,
        unit: Unit,
        messages: Sequence[Placed],
        done: Done | None,
        on_refused: Callable[[OrthiaError], None],
    ) -> None:
        """Append ``unit``; once it is stored, its messages go into their queues in order.

        But for those that were dropped, since they are duplicates.
        """
        values = replaced_values(unit, messages) if self.values.is_used else {}
        Placing(unit, messages, values, done, on_refused).append_to(self._journal)

    def taken_over(self, bodies: Iterable[LargeBody]) -> None:
        """Have bodies counted with their messages from here on, and not as uploads any more."""
        if self._large is not None:
            for body in bodies:
                self._large.taken_over(body.id)

    def pin(self, bodies: Iterable[LargeBody]) -> None:
        """Keep bodies until they are let go of, whatever needs them meanwhile."""
        if self._large is not None:
            for body in bodies:
                self._large.pin(body.id)

    def unpin(self, bodies: Iterable[LargeBody]) -> None:
        """Let go of bodies: their messages are stored and published, or refused."""
        if self._large is not None:
            for body in bodies:
                self._large.unpin(body.id)
