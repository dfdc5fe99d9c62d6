"""The core of a live node: routes messages to queues and topics, through the journal.

All on the event loop's thread. Whatever a client is told is done is committed first; whatever is
delivered is delivered under a valid lease.
"""

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

from orthia.broker.core.addresses import Address, AddressBook, at_most
from orthia.broker.core.api import (
    BrokerError,
    Consumer,
    DestinationRefused,
    Done,
    FanOut,
    LimitExceeded,
    MessageReference,
    NotLive,
    OnRefused,
    OutgoingMessage,
    Principal,
    Settlement,
    Subscription,
    TransactionWork,
    unheard,
)
from orthia.broker.core.backlog import BacklogCount
from orthia.broker.core.counters import QueueCounters
from orthia.broker.core.deletion import Deletions
from orthia.broker.core.destinations import MANAGEMENT_ADDRESS, REPLAYS, parse
from orthia.broker.core.gate import Deliverer, DeliveryGate
from orthia.broker.core.memory import MemoryBudget, Refused, size_in_memory, size_in_store
from orthia.broker.core.publication import Publication
from orthia.broker.core.queue import Queue
from orthia.broker.core.quota import Charges, StoreUse
from orthia.broker.core.slices import GO_ON, REST, Slices, Steps
from orthia.broker.core.topic import Topic
from orthia.broker.core.topic_memory import TopicMemory
from orthia.broker.core.undeliverable import Undeliverable
from orthia.broker.quoting import quoted
from orthia.broker.security.permissions import Security
from orthia.config.clock import monotonic_seconds
from orthia.config.errors import OrthiaError
from orthia.config.settings import RoutingType, Settings
from orthia.journal.abc import MessageJournal
from orthia.journal.codec import QueueBinding
from orthia.journal.engine.large import Upload
from orthia.journal.errors import JournalClosed, RecordTooLarge, SentBehindRefused, StoreFull
from orthia.journal.message import LargeBody, Message, encode_message
from orthia.journal.records import RemovalReason
from orthia.journal.unit import MessageLocation, Sender, Unit
from orthia.journal.xa import XaTransactions

LOGGER = logging.getLogger("orthia.broker")
_AT_ONCE = 32
"""How many messages of a transaction are made ready before others have a turn."""
RELIEF_MS = 100
"""How long after memory is free again consumers that were held back for it are asked."""


class Broker:
    """A live node's addresses; made when the journal is open, gone when it is closed."""

    def __init__(
        self,
        settings: Settings,
        journal: MessageJournal,
        *,
        lease_valid: Callable[[], bool],
        call_later: Callable[[float, Callable[[], None]], object],
        time_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        clock: Callable[[], float] = monotonic_seconds,
    ) -> None:
        """Open the queues that the journal's bindings and the configuration name.

        ``lease_valid`` is asked before each delivery; ``call_later`` takes seconds; ``time_ms``,
        milliseconds since 1970 UTC, is when messages are sent and expire; ``clock``, in seconds,
        says how long the loop has been at work.
        """
        self._settings = settings
        self._journal = journal
        self._call_later = call_later
        self.slices = Slices(partial(call_later, 0), clock)
        self._gate = DeliveryGate(lease_valid, self.slices)
        self.time_ms = time_ms
        self._persistent = settings.persistence_enabled
        self._security = Security(settings)
        self._limits = settings.stomp_limits
        self._budget = MemoryBudget(settings.global_max_size, self._relieved)
        self.store_use = StoreUse(settings.store_limit)
        """What is stored, against the limits of all addresses together."""
        self.large = journal.large
        self._topic_memory = TopicMemory(
            settings.global_max_size, self._limits.max_unacknowledged_bytes, journal.large
        )
        self._is_relief_due = False
        self._journal_full: Refused[Deliverer] = Refused()
        self._addresses = AddressBook(
            settings,
            self._security,
            bind=self._bind,
            make_queue=self._make_queue,
            store_use=self.store_use,
            make_topic=self._make_topic,
        )
        self._deletions = Deletions(journal, self._addresses, self)
        self._undeliverable = Undeliverable(
            is_running=lambda: self._gate.is_running,
            ensure_queues=self._addresses.ensure_queues,
            relocate=self._relocate,
        )
        self._withheld = self._withheld_by_transactions()
        for binding in journal.bindings:
            if isinstance(binding, QueueBinding):
                self._addresses.open_queue(binding, unread_up_to=journal.recovery_horizon)
        self._addresses.create_configured()
        journal.register_room_listener(self._room)
        journal.register_full_listener(self._store_is_full)

    def _withheld_by_transactions(self) -> frozenset[int]:
        in_doubt = XaTransactions(self._journal).in_doubt
        if in_doubt:
            LOGGER.warning(
                "%d transactions are in doubt, prepared and not resolved; see `orthia data"
                " transactions`",
                len(in_doubt),
            )
        return frozenset(seq for prepared in in_doubt for seq, *_ in prepared.deletes)

    # --- the life of the core

    def stop(self) -> None:
        """Deliver nothing and accept nothing any more."""
        self._gate.is_running = False

    def count_backlogs(self) -> None:
        """Count, in the background, what earlier epochs left."""
        BacklogCount(self._addresses.queues.values(), self._journal, self).start()

    def queues(self) -> Mapping[str, Queue]:
        """Return the queues by name."""
        return self._addresses.queues

    def depths(self) -> dict[str, int]:
        """Return how many messages each queue has, as far as counted; may be called anywhere."""
        queues = list(self._addresses.queues.items())  # at once, whatever the loop does meanwhile
        return {name: queue.depth for name, queue in queues}

    def counters(self) -> QueueCounters:
        """Return what happened to the messages of all queues together; may be called anywhere."""
        total = QueueCounters()
        for queue in list(self._addresses.queues.values()):  # at once, as above
            total.add(queue.counters)
        return total

    @property
    def bytes_in_memory(self) -> int:
        """What messages in memory count for against ``global-max-size``."""
        return self._budget.used

    def go_on(self) -> None:
        """Deliver again, if deliveries were held back for want of a lease that is now valid."""
        self._gate.go_on()

    def _store_is_full(self, error: OrthiaError | None) -> None:
        self.store_use.close_or_reopen("database", None if error is None else str(error))

    def _room(self) -> None:
        """Have queues read on that held back because the journal was full."""
        self._journal_full.relieve(lambda: not self._journal.is_full, lambda queue: queue.resume())

    def _relieved(self) -> None:
        """Soon, and once for many acknowledgements, have consumers asked that got no more."""
        if not self._is_relief_due:
            self._is_relief_due = True
            self.call_later(RELIEF_MS, self._relieve)

    def _relieve(self) -> None:
        self._is_relief_due = False
        self._budget.relieve()

    def call_later(self, delay_ms: int, callback: Callable[[], None]) -> None:
        """Call back on the loop, unless the core was stopped by then."""
        self._call_later(delay_ms / 1000, lambda: callback() if self._gate.is_running else None)

    # --- what sessions call

    def authenticate(self, login: str | None, passcode: str | None) -> Principal:
        """Return who this is; raises AuthenticationFailed."""
        return self._security.authenticate(login, passcode)

    def send(
        self,
        principal: Principal,
        destination: str,
        message: OutgoingMessage,
        on_stored: Done | None,
        on_refused: OnRefused = unheard,
    ) -> FanOut | None:
        """Route a message; ``on_stored`` follows its commit, or at once if none is needed.

        Returns what the sender is to wait for before it sends more, if its topic is behind.
        """
        self._refuse_if_stopped()
        address, queues, topic = self._addresses.route(principal, destination)
        record = self._record(address, message)
        if not self._persistent:
            self._refuse_if_full(queues, record)
        done = on_stored
        if record.large is not None:
            self._taken_over([record.large])
            done = self._unpinning(record.large, done)
        if topic is not None:
            done = self._publishing(topic, record, done)
        if not queues:
            if done is not None:
                done()
        elif len(queues) == 1 and record.large is None:
            if topic is not None:
                on_refused = _naming(on_stored, on_refused)
            self._send_to_one(queues[0], record, message, done, on_refused, principal.sender)
        else:
            charges = Charges()

            def refused(error: OrthiaError) -> None:
                charges.take_back()
                if record.large is not None:
                    self._unpin([record.large])
                on_refused(error, on_stored)

            with charges.unless_refused():
                self._charge(charges, queues, record)
                unit = Unit()
                unit.sender = principal.sender
                unit.add_message([queue.id for queue in queues], self._encoded(record))
                self._append(unit, [(queues, record)], done, refused)
        return None if topic is None else topic.behind()

    def check_send(self, principal: Principal, destination: str) -> None:
        """Raise BrokerError if a SEND to ``destination`` would be refused at this moment."""
        self._refuse_if_stopped()
        _, queues, _ = self._addresses.route(principal, destination)
        for queue in queues:
            queue.use.refuse_if_full(0)

    def check_upload(self, destination: str, size: int, missing: int) -> None:
        """Raise BrokerError if the store has no room for a body that is on its way.

        Of ``size`` bytes, of which ``missing`` have not come.
        """
        self.store_use.refuse_if_full(missing)
        self._addresses.use_of(destination).refuse_if_over(size, missing)

    def upload(
        self,
        principal: Principal,
        destination: str,
        room: Done,
        done: Callable[[LargeBody | OrthiaError], None],
    ) -> Upload:
        """Begin to store the body of a message for ``destination``; raises BrokerError."""
        self.check_send(principal, destination)
        if self.large is None:
            raise LimitExceeded("this broker stores no large messages")
        try:
            return self.large.upload(room, done, self._addresses.use_of(destination).uploaded)
        except JournalClosed as error:
            raise NotLive(str(error)) from None

    def may_replay(self, principal: Principal) -> bool:
        """Return whether a user may say of messages that a replay sent them."""
        return self._security.allows(principal, "manage", REPLAYS)

    def subscribe(
        self,
        principal: Principal,
        destination: str,
        consumer: Consumer,
        *,
        prefetch: int,
        window: int | None = None,
    ) -> Subscription:
        """Attach a consumer to a queue or a topic; creates it where that is allowed."""
        self._refuse_if_stopped()
        max_bytes = self._limits.max_unacknowledged_bytes
        if window is not None:
            max_bytes = min(window, max_bytes)
        source = self._addresses.to_consume(principal, parse(destination))
        return source.attach(consumer, prefetch, max_bytes)

    def commit(
        self,
        principal: Principal,
        work: TransactionWork,
        done: Done,
        on_refused: OnRefused = unheard,
    ) -> Steps:
        """Do all sends and acknowledgements of a transaction in one unit of the journal.

        They are made ready in steps, and done in the last one.
        """
        self._refuse_if_stopped()
        unit = Unit()
        unit.sender = principal.sender
        bodies = [message.large for _, message in work.sends if message.large is not None]
        stored: list[tuple[list[Queue], Message]] = []
        heard: list[tuple[Topic, Message]] = []
        for index, (destination, message) in enumerate(work.sends, 1):
            address, queues, topic = self._route(principal, destination)
            record = self._record(address, message)
            if not self._persistent:
                self._refuse_if_full(queues, record)
            if queues:
                unit.add_message([queue.id for queue in queues], self._encoded(record))
                stored.append((list(queues), record))  # the address' own may change meanwhile
            if topic is not None:
                heard.append((topic, record))
            if not index % _AT_ONCE:
                yield GO_ON
        for topic in {topic: None for topic, _ in heard}:
            behind = topic.behind()
            while behind is not None and behind.is_behind:
                yield REST
        for subscription, references in work.acknowledgements.items():
            unit.deleted += subscription.deletes(references)
            yield GO_ON
        # Others had their turn meanwhile; from here on nobody has.
        self._refuse_if_stopped()
        self._refuse_if_gone(stored)
        charges = Charges()
        published = [(topic, record, self._next_id()) for topic, record in heard]
        settled: list[Settlement] = []

        def refused(error: OrthiaError) -> None:
            charges.take_back()
            self._unpin(bodies)
            # Before anything goes back: nothing of it is to be delivered to its client once more.
            on_refused(error, done)
            # For want of room, or for what was refused before, nobody tried anything in vain.
            in_vain = not isinstance(error, StoreFull | SentBehindRefused)
            for settlement in settled:
                settlement.refused(in_vain=in_vain)

        def committed() -> None:
            for topic, record, seq in published:
                topic.publish(Publication(seq, record, size_in_memory(record)))
            self._unpin(bodies)
            for settlement in settled:
                settlement.committed()
            done()

        self._taken_over(bodies)
        with charges.unless_refused():
            for queues, record in stored:
                self._charge(charges, queues, record)
            self._append(unit, stored, committed, refused)
        for subscription, references in work.acknowledgements.items():
            settled.append(subscription.settle(references))
        for subscription, references in work.rejections.items():
            # They are no more the subscription's, which may be closed before the commit.
            settled.append(subscription.settle(references, rejected=True))

    @staticmethod
    def _refuse_if_gone(messages: Iterable[tuple[list[Queue], Message]]) -> None:
        for queue in {queue: None for queues, _ in messages for queue in queues}:
            if queue.is_leaving:
                raise DestinationRefused(
                    f"queue {quoted(queue.name)} was deleted during the COMMIT: nothing of the"
                    " transaction was done"
                )

    def delete_queue(
        self, principal: Principal, name: str, done: Callable[[int], None], *, force: bool
    ) -> None:
        """Delete a queue; ``done`` gets the number of its messages, once they are gone with it.

        Raises BrokerError if it stays: without ``force`` one that has messages or consumers does.
        """
        self._refuse_if_stopped()
        self._security.check(principal, "manage", MANAGEMENT_ADDRESS)
        self._deletions.delete(principal, name, force=force, done=done)

    def _route(
        self, principal: Principal, destination: str
    ) -> tuple[str, list[Queue], Topic | None]:
        """Route a SEND of a transaction; a refusal says which, since the client sees the COMMIT."""
        try:
            return self._addresses.route(principal, destination)
        except BrokerError as error:
            raise type(error)(
                f"SEND to {quoted(destination)} in the transaction: {error}"
            ) from None

    # --- storing

    def _send_to_one(
        self,
        queue: Queue,
        record: Message,
        message: OutgoingMessage,
        done: Done | None,
        on_refused: OnRefused,
        sender: Sender,
    ) -> None:
        size = size_in_memory(record)
        queue.use.charge(size)
        # What is not persistent is stored all the same where memory has no room for it, or where
        # it would overtake a message before it that is on its way to the store.
        stores = message.persistent and self._persistent
        if not stores and not queue.in_flight and queue.takes_in_memory(size):
            seq = self._next_id()
            queue.add(MessageReference(seq, record, None, size, redelivered=False))
            if done is not None:
                done()
            return
        queue.in_flight += 1
        payload = self._encoded(record)
        seq = 0

        # One for both, since there is one for each message.
        def answered(refusal: OrthiaError | None = None) -> None:
            queue.in_flight -= 1
            if refusal is not None:
                queue.use.release(size)
                on_refused(refusal, done)
                return
            location = MessageLocation(seq)
            queue.add(MessageReference(seq, record, location, size, redelivered=False))
            if done is not None:
                done()

        try:
            seq = self._journal.append_message(queue.id, payload, answered, answered, sender)
        except (RecordTooLarge, JournalClosed) as error:
            queue.in_flight -= 1
            queue.use.release(size)
            raise _refusal(error) from None

    def _refuse_if_full(self, queues: Iterable[Queue], record: Message) -> None:
        """Without persistence memory is all there is: raise LimitExceeded when it is full."""
        size = size_in_memory(record)
        for queue in queues:
            if not queue.takes_in_memory(size):
                raise LimitExceeded(
                    f"queue {queue.name} has no room for this message: nothing is stored"
                    " (persistence-enabled is false), and max-size or global-max-size is reached"
                )

    def _append(
        self,
        unit: Unit,
        messages: list[tuple[list[Queue], Message]],
        done: Done | None,
        on_refused: Callable[[OrthiaError], None],
    ) -> None:
        """Append ``unit``; once it is stored, its messages go into their queues in order."""
        placed: list[tuple[Queue, Message, MessageLocation]] = []

        def stored() -> None:
            for queue, record, location in placed:
                queue.in_flight -= 1
                size = size_in_memory(record)
                reference = MessageReference(
                    location.seq, record, location, size, redelivered=False
                )
                queue.place(reference)
            # All of a unit is in its queues before any of it is delivered.
            for queue in {queue: None for queue, _, _ in placed}:
                queue.dispatch()
            if done is not None:
                done()

        def refused(error: OrthiaError) -> None:
            for queue, _, _ in placed:
                queue.in_flight -= 1
            on_refused(error)

        unit.done, unit.refused = stored, refused
        try:
            locations = iter(self._journal.append_unit(unit))
        except (RecordTooLarge, JournalClosed) as error:
            raise _refusal(error) from None
        for queues, record in messages:
            for queue in queues:
                queue.in_flight += 1
                placed.append((queue, record, next(locations)))

    def _next_id(self) -> int:
        try:
            return self._journal.next_id()
        except JournalClosed as error:
            raise NotLive(str(error)) from None

    def _record(self, address: str, message: OutgoingMessage) -> Message:
        return Message(
            address,
            message.head,
            message.body,
            self.time_ms(),
            message.expires_ms,
            message.priority,
            message.large,
            message.encoding,
            message.stated,
        )

    def _unpinning(self, body: LargeBody, done: Done | None) -> Done:
        """Return what lets go of a body, once its message is stored and published."""

        def unpin() -> None:
            self._unpin([body])
            if done is not None:
                done()

        return unpin

    def _taken_over(self, bodies: Iterable[LargeBody]) -> None:
        """Have bodies counted with their messages from here on, and not as uploads any more."""
        if self.large is not None:
            for body in bodies:
                self.large.taken_over(body.id)

    def _charge(self, charges: Charges, queues: Iterable[Queue], record: Message) -> None:
        size = size_in_store(record)
        for queue in queues:
            charges.charge(queue.use, size)

    def _unpin(self, bodies: Iterable[LargeBody]) -> None:
        if self.large is not None:
            for body in bodies:
                self.large.unpin(body.id)

    def _encoded(self, record: Message) -> bytes:
        try:
            return encode_message(record)
        except ValueError as error:
            raise LimitExceeded(str(error)) from None

    def _publishing(self, topic: Topic, record: Message, done: Done | None) -> Done:
        """Return what publishes to a topic, once its queues have the message, and is ``done``."""
        seq = self._next_id()

        def publish() -> None:
            topic.publish(Publication(seq, record, size_in_memory(record)))
            if done is not None:
                done()

        return publish

    def _relocate(
        self,
        queue: Queue,
        reference: MessageReference,
        reason: RemovalReason,
        to: Sequence[Queue],
        record: Message,
        refused: Callable[[], None],
    ) -> None:
        """Take a message out of ``queue`` for ``reason``, into others if there are any."""
        unit = Unit()
        if reference.location is not None:
            unit.delete(reference.location, reason)
        messages: list[tuple[list[Queue], Message]] = []
        if to:
            unit.add_message([queue.id for queue in to], self._encoded(record))
            messages.append((list(to), record))

        size = size_in_store(record)

        def not_stored(error: OrthiaError) -> None:
            queue.undecided -= 1
            for target in to:
                target.use.release(size)
            if not isinstance(error, StoreFull):  # which is told once, and not for each message
                LOGGER.error(
                    "message %d is %s, and cannot be moved to %s; it stays in its queue: %s",
                    reference.seq,
                    reason.value,
                    ", ".join(f"queue {target.name}" for target in to) or "nowhere",
                    error,
                )
            refused()

        def stored() -> None:
            queue.undecided -= 1

        self._append(unit, messages, stored, not_stored)
        queue.undecided += 1
        for target in to:
            target.use.add(size)  # whatever its limits are: nothing stored is lost for them

    # --- queues

    def _bind(
        self,
        name: str,
        address: str,
        routing_type: RoutingType,
        *,
        auto_created: bool,
        max_consumers: int,
        user: str | None,
    ) -> QueueBinding:
        binding = QueueBinding(
            self._next_id(),
            name,
            address,
            routing_type,
            auto_created=auto_created,
            max_consumers=max_consumers,
            user=user,
        )
        try:
            self._journal.add_binding(binding)
        except JournalClosed as error:
            raise NotLive(str(error)) from None
        return binding

    def _make_queue(self, binding: QueueBinding, address: Address, unread_up_to: int) -> Queue:
        return Queue(
            binding.queue_id,
            binding.name,
            binding.address,
            binding.routing_type,
            durable=binding.durable,
            settings=address.settings,
            use=address.use,
            journal=self._journal,
            budget=self._budget,
            disposal=self._undeliverable,
            timers=self,
            gate=self._gate,
            slices=self.slices,
            journal_full=self._journal_full,
            unread_up_to=unread_up_to,
            withheld=self._withheld,
            max_consumers=at_most(binding.max_consumers),
            user=binding.user,
        )

    def _make_topic(self) -> Topic:
        return Topic(
            self._topic_memory,
            self.slices,
            self._gate.may_deliver,
            self._limits.max_behind_bytes,
        )

    def _refuse_if_stopped(self) -> None:
        if not self._gate.is_running:
            raise NotLive("this node is stopping or is live no more; connect to the other node")


def _naming(on_stored: Done | None, on_refused: OnRefused) -> OnRefused:
    """Return what refuses with the callback that was given, whatever was made of it."""
    return lambda error, _: on_refused(error, on_stored)


def _refusal(error: RecordTooLarge | JournalClosed) -> BrokerError:
    return LimitExceeded(str(error)) if isinstance(error, RecordTooLarge) else NotLive(str(error))
