# mypyc compiles this module.
"""The core of a live node: routes messages to queues and topics, through the journal.

All on the event loop's thread. Nothing is confirmed before its commit, nor delivered without lease.
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
    OnRefused,
    OutgoingMessage,
    SubscriptionHandle,
    TransactionWork,
    unheard,
)
from orthia.broker.core.destinations import parse
from orthia.broker.core.errors import LimitExceeded, NotLive
from orthia.broker.core.identity import Principal
from orthia.broker.core.limits.creations import QueueCreations
from orthia.broker.core.limits.quota import StoreUse
from orthia.broker.core.queue.browsing import Browsing
from orthia.broker.core.queue.counters import QueueCounters
from orthia.broker.core.queue.factory import QueueFactory
from orthia.broker.core.queue.gate import DeliveryGate
from orthia.broker.core.queue.queue import Queue
from orthia.broker.core.queue.relocation import Relocation
from orthia.broker.core.routing.addresses import AddressBook
from orthia.broker.core.routing.auto_creation import AutoCreation
from orthia.broker.core.routing.resources import UndeliverableQueues
from orthia.broker.core.routing.router import routed_by, send_routed
from orthia.broker.core.routing.sources import Sources
from orthia.broker.core.routing.targets import Targets
from orthia.broker.core.selectors import parse as parse_selector
from orthia.broker.core.sending.commit import commit
from orthia.broker.core.sending.duplicates import DuplicateIds
from orthia.broker.core.sending.publisher import Publisher
from orthia.broker.core.sending.schedule import Schedule
from orthia.broker.core.sending.schedule_queues import ScheduleQueues
from orthia.broker.core.sending.undeliverable import Undeliverable
from orthia.broker.core.slices import Slices, Steps
from orthia.broker.core.topics.durable import DurableSubscriptions
from orthia.broker.core.topics.temporary import TemporaryDestinations
from orthia.broker.core.upkeep.deletion import Deletions
from orthia.broker.core.upkeep.housekeeping import Housekeeping
from orthia.broker.core.upkeep.inspection import QueueInspection
from orthia.broker.core.upkeep.opening import open_queues
from orthia.broker.core.upkeep.reconfiguration import NewRules, Reconfiguration, expiry_of
from orthia.broker.security.audit import Write
from orthia.broker.security.permissions import Security
from orthia.config.address_settings import RoutingType
from orthia.config.clock import monotonic_seconds
from orthia.config.errors import OrthiaError
from orthia.config.queues import QueueOptions
from orthia.config.settings import Settings
from orthia.journal.abc import MessageJournal
from orthia.journal.engine.large import Upload
from orthia.journal.errors import JournalClosed
from orthia.journal.model.message import LargeBody

LOGGER = logging.getLogger("orthia.broker")


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
        clock: Callable[[], float] | None = None,
        audit: Write | None = None,
    ) -> None:
        """Make the broker of a journal; ``open`` follows.

        ``lease_valid`` is asked before each delivery; ``call_later`` takes seconds; ``time_ms``,
        milliseconds since 1970 UTC, is when messages are sent and expire; ``clock``, in seconds,
        says how long the loop has been at work. ``audit`` takes the lines of the audit log.
        """
        self._settings = settings
        self._journal = journal
        self._call_later = call_later
        self.slices = Slices(partial(call_later, 0), clock or time.monotonic)
        self._gate = DeliveryGate(lease_valid, self.slices)
        self.time_ms = time_ms
        creations = QueueCreations(settings.stomp_limits, settings.resource_limit_settings)
        duplicates = DuplicateIds(journal, journal.bindings, lambda: self._addresses, creations)
        persistent = settings.persistence_enabled
        self._publisher = Publisher(journal, time_ms, duplicates, persistent=persistent)
        self.security = Security(settings, clock or monotonic_seconds, audit)
        """Who may connect, and who may do what."""
        self._limits = settings.stomp_limits
        self.store_use = StoreUse(settings.store_limit)
        """What is stored, against the limits of all addresses together."""
        self.large = journal.large
        undeliverable = Undeliverable(
            is_running=lambda: self._gate.is_running,
            places_for=lambda *message: self._undeliverable_queues.places_for(*message),
            relocate=Relocation(self._publisher).relocate,
        )
        factory = QueueFactory(
            settings,
            journal,
            self,
            self._gate,
            self.slices,
            undeliverable,
            self._publisher.values,
            creations,
            self._publisher.next_id,
            lambda at_ms: self._schedule.placed(at_ms),
        )
        self.when_bound: Callable[[Done], None] = factory.when_bound
        """Calls what it gets once all queues that were created are stored; raises NotLive."""
        self._budget = factory.budget
        self._topic_memory = factory.topic_memory
        self._topic_memory.count_bodies = self.store_use.add
        self._showing = factory.showing
        book = self._addresses = AddressBook(
            settings,
            creations,
            bind=factory.bind,
            make_queue=factory.queue,
            store_use=self.store_use,
        )
        creation = AutoCreation(settings, self._addresses, self.security, creations, self.store_use)
        self._targets = Targets(self._addresses, creation, self.security)
        self._sources = Sources(self._addresses, creation, self.security, factory.topic)
        self._deletions = Deletions(journal, self._addresses, self.security, duplicates, self)
        self._temporaries = TemporaryDestinations(
            self._addresses, self._deletions, self.security, creations, self.store_use
        )
        self.inspection = QueueInspection(self._addresses, self.security, self._refuse_if_stopped)
        """What is known of queues."""
        self._durable = DurableSubscriptions(self._addresses, self._sources)
        self._undeliverable_queues = UndeliverableQueues(self._addresses, creations)
        self._schedule_queues = ScheduleQueues(book, creations, self, is_persistent=persistent)
        self._schedule = Schedule(
            journal, self._publisher, self._schedule_queues, self, self.slices
        )
        self._housekeeping = Housekeeping(
            settings,
            journal,
            self._addresses,
            self._deletions,
            duplicates,
            self,
            self.slices,
            undeliverable.look,
        )
        self._reconfiguration = Reconfiguration(
            book,
            creation,
            self.security,
            self._sources,
            self._housekeeping,
            expiry_of(book, self._publisher, time_ms),
        )

    # --- the life of the core

    def open(self) -> Steps:
        """Open the queues that the journal's bindings and the configuration name."""
        yield from open_queues(self._addresses, self._journal)
        yield from self._reconfiguration.beginning(self._settings)
        self._journal.register_full_listener(self._store_is_full)
        self._journal.complete_in_steps(self.slices.run)

    def stop(self) -> None:
        """Deliver nothing and accept nothing any more."""
        self._gate.is_running = False

    def reconfigure(self, rules: NewRules, done: Done) -> None:
        """Be as other rules say, in later turns of the loop; ``done`` follows."""
        self.slices.run(self._reconfiguration.steps(rules, done))

    def count_backlogs(self) -> None:
        """Count, in the background, what earlier epochs left; delete what nobody has any more."""
        self.slices.run(self._counting())

    def _counting(self) -> Steps:
        yield from self._temporaries.deleting_left()
        yield from self._housekeeping.starting()

    def start_schedule(self) -> None:
        """Begin to deliver what was to be delivered later, and to look for what has expired.

        What is due is delivered now.
        """
        self._schedule.start()
        self._housekeeping.start_expiry_scan()

    def queues(self) -> Mapping[str, Queue]:
        """Return the queues by name."""
        return self._addresses.queues

    def depths(self) -> dict[str, int]:
        """Return how many messages each queue has, as far as counted; may be called anywhere."""
        return self._addresses.depths()

    def counters(self) -> QueueCounters:
        """Return what happened to the messages of all queues together; may be called anywhere."""
        return self._addresses.counters()

    def go_on(self) -> None:
        """Deliver again, if deliveries were held back for want of a lease that is now valid."""
        self._gate.go_on()

    def _store_is_full(self, error: OrthiaError | None) -> None:
        self.store_use.close_or_reopen("database", None if error is None else str(error))

    def call_later(self, delay_ms: int, callback: Callable[[], None]) -> None:
        """Call back on the loop, unless the core was stopped by then."""
        self._call_later(delay_ms / 1000, lambda: callback() if self._gate.is_running else None)

    # --- what sessions call

    def send(
        self,
        principal: Principal,
        destination: str,
        message: OutgoingMessage,
        on_stored: Done | None,
        on_refused: OnRefused = unheard,
    ) -> FanOut | Steps | None:
        """Route a message; see ``BrokerCore.send``."""
        self._refuse_if_stopped()
        address, queues, topic, router = self._targets.route(principal, destination)
        if message.stated:
            message, schedule = self._schedule_queues.put_off(principal, destination, message)
            if schedule is not None:
                queues, topic, router = [schedule], None, None
        if router is not None or message.duplicate_id is not None:
            record = self._publisher.record(address, message)
            routing = routed_by(router, record, principal, queues, topic)
            send = self._publisher.send_routed
            if message.duplicate_id is not None:
                send = partial(self._publisher.send_once, principal, address, message.duplicate_id)
            return send_routed(
                routing,
                lambda routed: send(routed, message, on_stored, on_refused, principal.sender),
                self._refuse_if_stopped,
            )
        return self._publisher.send(
            address, queues, topic, message, on_stored, on_refused, principal.sender
        )

    def cancel_scheduled(
        self, principal: Principal, name: str, seq: int, done: Callable[[int], None]
    ) -> None:
        """Delete a message of queue ``name`` that is not due yet; ``done`` gets how many are gone.

        Raises BrokerError.
        """
        self._refuse_if_stopped()
        self.security.check_management(principal, f"queue.{name}", "removeMessage", (seq,))
        self._schedule.cancel(self._schedule_queues.schedule_named(name), seq, done)

    def check_send(self, principal: Principal, destination: str) -> None:
        """Raise BrokerError if a message to ``destination`` would be refused at this moment."""
        self._refuse_if_stopped()
        _, queues, _, _ = self._targets.route(principal, destination)
        for queue in queues:
            if not queue.use.drops(0):
                queue.use.refuse_if_full(0)

    def check_upload(self, destination: str, size: int, missing: int) -> None:
        """Raise BrokerError if the store has no room for a body that is on its way.

        Of ``size`` bytes, of which ``missing`` have not come.
        """
        self.store_use.refuse_if_full(missing)
        use = self._addresses.use_of(destination)
        if not use.drops(missing):
            use.refuse_if_over(size, missing)

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
    ) -> SubscriptionHandle:
        """Attach a consumer to a queue or a topic; creates it where that is allowed."""
        self._refuse_if_stopped()
        max_bytes = self._limits.max_unacknowledged_bytes
        if window is not None:
            max_bytes = min(window, max_bytes)
        where = parse(destination)
        wanted = None if selector is None else parse_selector(selector)
        if durable is not None:
            options = QueueOptions(filter=selector)
            queue = self._durable.to_consume(
                principal, where, durable, no_local=no_local, options=options
            )
            return queue.attach(consumer, prefetch, max_bytes)
        if no_local:
            topic = self._sources.topic_without_own(principal, where)
            own = principal.sender
            return topic.attach(consumer, prefetch, max_bytes, without=own, selector=wanted)
        source = self._sources.to_consume(principal, where)
        return source.attach(consumer, prefetch, max_bytes, selector=wanted)

    def browse(
        self,
        principal: Principal,
        destination: str,
        browser: Browser,
        *,
        prefetch: int,
        window: int | None = None,
        selector: str | None = None,
    ) -> SubscriptionHandle:
        """Show the messages of a queue, which stay where they are; raises BrokerError."""
        self._refuse_if_stopped()
        wanted = None if selector is None else parse_selector(selector)
        queue = self._sources.to_browse(principal, parse(destination))
        browsing = Browsing(queue, browser, wanted, self._showing)
        most = self._limits.max_unacknowledged_bytes
        return browsing.attach(prefetch, most if window is None else min(window, most))

    def hears_many(self, destination: str) -> str | None:
        """Return the name in a destination that stands for many; None if it stands for itself."""
        where = parse(destination)
        return where.name if self._addresses.hears_many(where.address) else None

    def create_temporary(self, principal: Principal, kind: RoutingType, name: str) -> str:
        """Return the destination of a new one of the principal's own; raises BrokerError."""
        self._refuse_if_stopped()
        return self._temporaries.create(principal, kind, name)

    def end_temporaries(self, principal: Principal) -> None:
        """End those of a connection that is over."""
        self._temporaries.end(principal)

    def end_durable(self, principal: Principal, name: str, done: Done) -> None:
        """Delete a durable subscription with its messages; raises BrokerError if it stays."""
        self._refuse_if_stopped()
        queue = self._durable.to_delete(principal, name)
        self._deletions.end_subscription(principal, queue, lambda _: done())

    def commit(
        self,
        principal: Principal,
        work: TransactionWork,
        done: Done,
        on_refused: OnRefused = unheard,
    ) -> Steps:
        """Do all sends and acknowledgements of a transaction in one unit of the journal."""
        return commit(
            self._publisher,
            self._targets.route,
            self._schedule_queues.put_off,
            self._refuse_if_stopped,
            principal,
            work,
            done,
            on_refused,
        )

    def delete_queue(
        self, principal: Principal, name: str, done: Callable[[int], None], *, force: bool
    ) -> None:
        """Delete a queue; ``done`` gets the number of its messages, once they are gone with it.

        Raises BrokerError if it stays: without ``force`` one that has messages or consumers does.
        """
        self._refuse_if_stopped()
        self.security.check_management(principal, "broker", "destroyQueue", (name, force))
        self._deletions.delete(principal, name, force=force, done=done)

    def _refuse_if_stopped(self) -> None:
        if not self._gate.is_running:
            raise NotLive("this node is stopping or is live no more; connect to the other node")
