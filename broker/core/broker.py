# mypyc compiles this module.
"""The core of a live node, as protocols and the node see it: each call goes to one of its parts.

All on the event loop's thread. Nothing is confirmed before its commit, nothing is delivered without
a valid lease. ``orthia.broker.core.assembly`` makes the parts.
"""

import logging
import time
from collections.abc import Callable, Mapping
from functools import partial

from orthia.broker.core.api import (
    Browser,
    Consumer,
    Done,
    FanOut,
    Manager,
    OnRefused,
    OutgoingMessage,
    RowReader,
    SingleSubscription,
    StoredSubscription,
    SubscriptionName,
    TransactionWork,
    unheard,
)
from orthia.broker.core.assembly import CoreParts, LoopTimers
from orthia.broker.core.destinations import parse
from orthia.broker.core.errors import DestinationRefused
from orthia.broker.core.identity import Principal
from orthia.broker.core.queue.browsing import Browsing
from orthia.broker.core.queue.counters import QueueCounters
from orthia.broker.core.queue.gate import DeliveryGate
from orthia.broker.core.queue.queue import Queue
from orthia.broker.core.selectors import parse as parse_selector
from orthia.broker.core.sending.relay import Relay
from orthia.broker.core.sending.transaction import commit
from orthia.broker.core.slices import Finding, Slices, Steps
from orthia.broker.core.sole_clients import SoleClients
from orthia.broker.core.upkeep.opening import open_queues
from orthia.broker.core.upkeep.reconfiguration import NewRules
from orthia.broker.security.audit import Write
from orthia.broker.security.permissions import Security
from orthia.config.address_settings import RoutingType
from orthia.config.clock import monotonic_seconds
from orthia.config.errors import OrthiaError
from orthia.config.queues import QueueOptions
from orthia.config.settings import Settings
from orthia.journal.engine.large import Upload
from orthia.journal.journal import MessageJournal
from orthia.journal.model.message import LargeBody

LOGGER = logging.getLogger("orthia.broker")


class Broker:
    """A live node's core: made when the journal is open, gone when it is closed."""

    def __init__(
        self,
        settings: Settings,
        journal: MessageJournal,
        *,
        lease_valid: Callable[[], bool],
        call_later: Callable[[float, Callable[[], None]], object],
        time_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        clock: Callable[[], float] | None = None,
        audit: Write | None = None,
    ) -> None:
        """Make the core of a journal; ``open`` follows.

        ``lease_valid`` is asked before each delivery. ``call_later`` takes seconds. ``time_ms``,
        milliseconds since 1970 UTC, stamps messages and says when they expire. ``clock``, in
        seconds, measures how long the loop has worked. ``audit`` takes the lines of the audit log.
        """
        self.name = settings.name
        """What the configuration calls the broker: the same for both nodes of a pair."""
        self.sole_clients = SoleClients()
        """The client ids that one connection alone may have."""
        self.slices = Slices(partial(call_later, 0), clock or time.monotonic)
        gate = DeliveryGate(lease_valid, self.slices)
        self.time_ms = time_ms
        """Milliseconds since 1970 UTC, by the clock for due and expired messages."""
        self.security = Security(settings, clock or monotonic_seconds, audit)
        """Who may connect, and who may do what."""
        timers = LoopTimers(gate, call_later, time_ms)
        self.call_later: Callable[[int, Done], None] = timers.call_later
        """Calls back after so many milliseconds, unless the core was stopped by then."""
        parts = CoreParts(settings, journal, self.security, self.slices, gate, timers)
        self.parts = parts
        self.store_use = parts.store_use
        """What is stored, against the limits of all addresses together."""
        self.large = journal.large
        """The bodies of large messages; None if they are not supported."""
        self.when_bound: Callable[[Done], None] = parts.bindings.when_bound
        """Calls back once all queues that were created are stored, and survive a crash."""
        self._gate = gate
        self._office = parts.office
        self._settings = settings
        self.relay: Relay | None = None
        """What sends the outbox; None where that is off."""
        self.manager: Manager | None = None
        """What does what clients ask of the management address; None while nobody does."""

    # --- the life of the core

    def open(self) -> Steps:
        """Open the queues that the journal's bindings and the configuration name."""
        parts = self.parts
        in_doubt = parts.in_doubt.in_doubt
        if in_doubt:
            LOGGER.warning(
                "%d transactions are in doubt, prepared and not resolved: messages that they"
                " acknowledge are held back until an operator commits them or rolls them back",
                len(in_doubt),
            )
        yield from open_queues(parts.book, parts.journal)
        yield from parts.administered.opening()
        yield from parts.streams.opening()
        yield from parts.reconfiguration.beginning()
        parts.journal.register_full_listener(self._store_is_full)
        parts.journal.complete_in_steps(self.slices.end)
        parts.application_acks.start()

    def stop(self) -> None:
        """Deliver nothing and accept nothing from now on."""
        self._gate.is_running = False

    def reconfigure(self, rules: NewRules, done: Done) -> None:
        """Apply changed rules in later turns of the loop, then call ``done``."""
        self.slices.run(self.parts.reconfiguration.steps(rules, done))

    def count_backlogs(self) -> None:
        """Begin to count what earlier epochs left, and to delete what nobody has any more."""
        self.slices.run(self._counting())

    def _counting(self) -> Steps:
        yield from self.parts.temporaries.deleting_left()
        yield from self.parts.housekeeping.starting()

    def start_schedule(self) -> None:
        """Begin to deliver scheduled messages that are due, and to look for expired ones."""
        self.parts.schedule.start()
        self.parts.housekeeping.start_expiry_scan()

    def start_relay(self, rows: RowReader) -> None:
        """Begin to send what applications send by SQL, where that is on."""
        reader = self.parts.journal.outbox
        outbox = self._settings.outbox
        if reader is None or outbox is None:
            return
        user = outbox.user
        self.relay = Relay(
            reader,
            rows,
            self.parts.journal,
            self._office,
            self.parts.book,
            principal=lambda: self.security.acting_for(user),
            user=user,
            gate=self._gate,
            slices=self.slices,
            timers=self.parts.timers,
        )
        self.relay.start()

    def queues(self) -> Mapping[str, Queue]:
        """Return the queues by name."""
        return self.parts.book.queues

    def depths(self) -> dict[str, int]:
        """Return how many messages each queue has, as far as counted; on any thread."""
        return self.parts.book.depths()

    def counters(self) -> QueueCounters:
        """Return what happened to the messages of all queues together; on any thread."""
        return self.parts.book.counters()

    def go_on(self) -> None:
        """Resume deliveries that were held back for want of a lease, which is valid again."""
        self._gate.go_on()

    def _store_is_full(self, error: OrthiaError | None) -> None:
        self.store_use.close_or_reopen("database", None if error is None else str(error))

    # --- what sessions call

    def send(
        self,
        principal: Principal,
        destination: str,
        message: OutgoingMessage,
        on_stored: Done | None,
        on_refused: OnRefused = unheard,
    ) -> FanOut | Steps | None:
        """Route a message; ``on_stored`` follows the commit of a persistent one.

        ``on_refused`` follows instead if the store refuses this message. Unless it raises, the
        core unpins the body of a large message when it no longer needs it. Returns None, a wait
        before the sender may send more, or steps that send the message, raise as this method
        does, and must be done before the sender sends more. Raises BrokerError.
        """
        return self._office.send(principal, destination, message, on_stored, on_refused)

    def placing(
        self,
        principal: Principal,
        destination: str,
        message: OutgoingMessage,
        on_stored: Done,
        on_refused: OnRefused,
    ) -> Finding[int | None]:
        """Send a message in steps, which return its seq in the first of its queues.

        None if no queue takes it. They do what ``send`` does, and raise what it raises, but wait
        for nobody.
        """
        return self._office.placing(principal, destination, message, on_stored, on_refused)

    def commit(
        self,
        principal: Principal,
        work: TransactionWork,
        done: Done,
        on_refused: OnRefused = unheard,
    ) -> Steps:
        """Apply ``work`` atomically; ``done`` follows the commit, or ``on_refused`` instead.

        Only the last step changes anything, and it makes all changes. The steps raise BrokerError.

        After a refusal its messages do not exist, and acknowledged ones are back in their queue.
        Unless it raises, the core unpins the bodies of large messages, as in ``send``.
        """
        return commit(self._office, principal, work, done, on_refused)

    def check_send(self, principal: Principal, destination: str) -> FanOut | None:
        """Raise the BrokerError that a message to ``destination`` would meet now.

        Returns the full address for which its sender should wait, if there is one. Creates an
        address or queue that the message would create.
        """
        return self._office.check_send(principal, destination)

    def check_upload(self, destination: str, size: int, missing: int) -> None:
        """Raise BrokerError if the store has no room for a body of ``size`` bytes.

        ``missing`` bytes of it have not arrived; those that have are counted already.
        """
        self.parts.uploads.check(destination, size, missing)

    def upload(
        self,
        principal: Principal,
        destination: str,
        room: Done,
        done: Callable[[LargeBody | OrthiaError], None],
    ) -> Upload:
        """Begin to store the body of a message for ``destination``.

        Raises the BrokerError that the message would meet now; see ``LargeMessages.upload``.
        """
        return self.parts.uploads.begin(principal, destination, room, done)

    def subscribe(
        self,
        principal: Principal,
        destination: str,
        consumer: Consumer,
        *,
        prefetch: int,
        window: int | None = None,
        durable: str | None = None,
        no_local: bool = False,
        selector: str | None = None,
    ) -> SingleSubscription:
        """Attach a consumer to a queue or a topic, which is created where that is allowed.

        ``prefetch`` 0 does not bound the number of unacknowledged messages, and ``window`` bounds
        their bytes, if it is below the broker's own bound. ``durable`` is the name of a durable
        subscription, which is created if it does not exist; ``no_local`` skips messages from the
        same connection, or for a durable one from the same client id. With a ``selector`` it gets
        only matching messages. Raises BrokerError, SelectorRefused for an invalid selector.
        """
        self._gate.refuse_if_stopped()
        max_bytes = self._window(window)
        where = parse(destination)
        wanted = None if selector is None else parse_selector(selector)
        if durable is not None:
            options = QueueOptions(filter=selector)
            queue = self.parts.durable.to_consume(
                principal, where, durable, no_local=no_local, options=options
            )
            return queue.attach(consumer, prefetch, max_bytes)
        if no_local:
            topic = self.parts.sources.topic_without_own(principal, where)
            own = principal.sender
            return topic.attach(consumer, prefetch, max_bytes, without=own, selector=wanted)
        source = self.parts.sources.to_consume(principal, where)
        return source.attach(consumer, prefetch, max_bytes, selector=wanted)

    def subscribe_by_name(
        self,
        principal: Principal,
        destination: str,
        consumer: Consumer,
        name: SubscriptionName,
        *,
        prefetch: int,
        no_local: bool = False,
        selector: str | None = None,
    ) -> SingleSubscription:
        """Attach a consumer to a subscription of a topic, which is created if it does not exist.

        Raises BrokerError; SubscriptionChanged if it was made otherwise, and ``end_by_name`` is to
        end it first.
        """
        self._gate.refuse_if_stopped()
        where, options = parse(destination), QueueOptions(filter=selector)
        if selector is not None:
            parse_selector(selector)
        if name.is_durable:
            queue = self.parts.durable.to_share(
                principal, where, name, no_local=no_local, options=options
            )
        elif no_local:
            raise DestinationRefused(
                "a shared subscription has the messages of every connection; expected no no-local"
            )
        else:
            queue = self.parts.shared.to_consume(principal, where, name, options=options)
        return queue.attach(consumer, prefetch, self._window(None))

    def find_by_name(self, principal: Principal, name: SubscriptionName) -> StoredSubscription:
        """Return what a durable subscription was asked for; raises BrokerError if there is none."""
        return self.parts.durable.find(principal, name)

    def end_by_name(self, principal: Principal, name: SubscriptionName, done: Done) -> None:
        """Delete a durable subscription with its messages, if nobody consumes it.

        ``done`` follows once it is deleted. Raises BrokerError if it stays.
        """
        self._gate.refuse_if_stopped()
        queue = self.parts.durable.to_end(principal, name)
        self.parts.deletions.end_subscription(principal, queue, lambda _: done())

    def browse(
        self,
        principal: Principal,
        destination: str,
        browser: Browser,
        *,
        prefetch: int,
        window: int | None = None,
        selector: str | None = None,
        creates: bool = False,
    ) -> SingleSubscription:
        """Deliver a queue's messages to a browser, as ``subscribe`` does; they stay in the queue.

        It gets the messages present once all is stored that was done until now;
        ``Browser.browsed`` follows the last one. It ``creates`` a queue that does not exist, where
        that is allowed. Raises BrokerError.
        """
        self._gate.refuse_if_stopped()
        wanted = None if selector is None else parse_selector(selector)
        queue = self.parts.sources.to_browse(principal, parse(destination), creates=creates)
        browsing = Browsing(queue, browser, wanted, self.parts.factory.services)
        return browsing.attach(prefetch, self._window(window))

    def _window(self, window: int | None) -> int:
        most = self.parts.max_unacknowledged_bytes
        return most if window is None else min(window, most)

    def wildcard_of(self, destination: str) -> str | None:
        """Return the wildcard of a destination; None if it names one address."""
        where = parse(destination)
        return where.name if self.parts.book.is_wildcard(where.address) else None

    def is_of_topic(self, destination: str) -> bool:
        """Return whether whoever consumes from a destination gets copies of what is sent there.

        False of a queue, and of one that is named with its address.
        """
        where = parse(destination)
        kind = self.parts.sources.type_to_consume(where)
        return where.queue is None and kind is RoutingType.MULTICAST

    def create_temporary(self, principal: Principal, kind: RoutingType, name: str) -> str:
        """Create a temporary destination that the principal calls ``name``; return its real name.

        Anybody who knows it may send to it; only the principal consumes. Raises BrokerError.
        """
        self._gate.refuse_if_stopped()
        return self.parts.temporaries.create(principal, kind, name)

    def end_temporary(self, principal: Principal, destination: str) -> None:
        """Delete one of the principal's temporary destinations, by its real name."""
        self.parts.temporaries.end_one(principal, parse(destination).address)

    def end_temporaries(self, principal: Principal) -> None:
        """Delete the temporary destinations of a connection that has ended."""
        self.parts.temporaries.end(principal)

    def end_durable(self, principal: Principal, name: str, done: Done) -> None:
        """Delete a durable subscription of the principal's client id, with its messages.

        ``done`` follows once it is deleted. Raises BrokerError if it stays.
        """
        self._gate.refuse_if_stopped()
        queue = self.parts.durable.to_delete(principal, name)
        self.parts.deletions.end_subscription(principal, queue, lambda _: done())

    def delete_queue(
        self, principal: Principal, name: str, done: Callable[[int], None], *, force: bool
    ) -> None:
        """Delete a queue; ``done`` gets the number of its messages, once they are gone with it.

        Raises BrokerError if it stays: without ``force`` one that has messages or consumers does.
        """
        self._gate.refuse_if_stopped()
        self.security.check_management(principal, "broker", "destroyQueue", (name, force))
        self.parts.deletions.delete(principal, name, force=force, done=done)
