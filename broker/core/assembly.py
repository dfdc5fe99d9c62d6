# mypyc compiles this module.
"""How a core is made: its parts, in the order in which they need each other.

Everything is built before anything that uses it, but for one: the address book gets last what
makes queues and stores their bindings. What queues cannot deliver goes to addresses of the book.
"""

from collections.abc import Callable
from functools import partial
from typing import Final

from orthia.broker.core.limits.creations import QueueCreations
from orthia.broker.core.limits.memory import MemoryBudget, Waiters
from orthia.broker.core.limits.quota import StoreUse
from orthia.broker.core.queue.bindings import NewBindings
from orthia.broker.core.queue.factory import QueueFactory
from orthia.broker.core.queue.gate import DeliveryGate
from orthia.broker.core.queue.reader import ReadTurns
from orthia.broker.core.queue.services import QueueServices
from orthia.broker.core.routing.addresses import AddressBook
from orthia.broker.core.routing.administered import Administered
from orthia.broker.core.routing.auto_creation import AutoCreation
from orthia.broker.core.routing.durable import DurableSubscriptions
from orthia.broker.core.routing.resources import UndeliverableQueues
from orthia.broker.core.routing.sources import Sources
from orthia.broker.core.routing.targets import Targets
from orthia.broker.core.sending.context import SendContext
from orthia.broker.core.sending.duplicates import DuplicateIds
from orthia.broker.core.sending.post_office import PostOffice
from orthia.broker.core.sending.schedule import Schedule
from orthia.broker.core.sending.schedule_queues import ScheduleQueues
from orthia.broker.core.sending.undeliverable import Undeliverable
from orthia.broker.core.sending.uploads import Uploads
from orthia.broker.core.slices import Slices
from orthia.broker.core.topics.topic_memory import TopicMemory
from orthia.broker.core.upkeep.application_acks import ApplicationAckUpkeep
from orthia.broker.core.upkeep.deletion import Deletions
from orthia.broker.core.upkeep.housekeeping import Housekeeping
from orthia.broker.core.upkeep.reconfiguration import Reconfiguration
from orthia.broker.core.upkeep.shared import SharedSubscriptions
from orthia.broker.core.upkeep.streams import QueueStreams
from orthia.broker.core.upkeep.temporary import TemporaryDestinations
from orthia.broker.security.permissions import Security
from orthia.config.settings import Settings
from orthia.journal.journal import MessageJournal
from orthia.journal.xa import XaTransactions

RELIEF_MS: Final = 100
"""How long after memory is free again consumers that were held back for it are asked."""


class LoopTimers:
    """The loop's clock and timers; a core that was stopped is not called back."""

    def __init__(
        self,
        gate: DeliveryGate,
        call_later: Callable[[float, Callable[[], None]], object],
        time_ms: Callable[[], int],
    ) -> None:
        """``call_later`` takes seconds."""
        self.time_ms: Final = time_ms
        self._gate = gate
        self._call_later = call_later

    def call_later(self, delay_ms: int, callback: Callable[[], None]) -> None:
        """Call back on the loop, unless the core was stopped by then."""
        self._call_later(delay_ms / 1000, lambda: callback() if self._gate.is_running else None)


class CoreParts:
    """The parts of the core of one node."""

    def __init__(
        self,
        settings: Settings,
        journal: MessageJournal,
        security: Security,
        slices: Slices,
        gate: DeliveryGate,
        timers: LoopTimers,
    ) -> None:
        """Build them; nothing is opened yet."""
        limits = settings.stomp_limits
        self.journal: Final = journal
        self.security: Final = security
        self.slices: Final = slices
        self.gate: Final = gate
        self.timers: Final = timers
        self.max_unacknowledged_bytes: Final = limits.max_unacknowledged_bytes
        self.store_use: Final = StoreUse(settings.store_limit)
        creations = QueueCreations(limits, settings.resource_limit_settings)
        self.book: Final = AddressBook(settings, creations, self.store_use, timers.time_ms)

        duplicates = DuplicateIds(journal, journal.bindings, self.book, creations)
        self.context: Final = SendContext(
            journal, timers.time_ms, self.book, duplicates, persistent=settings.persistence_enabled
        )
        self.undeliverable_queues: Final = UndeliverableQueues(self.book, creations, timers.time_ms)
        undeliverable = Undeliverable(self.undeliverable_queues, self.context, gate)
        self.look: Final = undeliverable.look
        self.schedule_queues: Final = ScheduleQueues(
            self.book, creations, timers, is_persistent=settings.persistence_enabled
        )
        self.schedule: Final = Schedule(journal, self.context, self.schedule_queues, timers, slices)
        self.in_doubt: Final = XaTransactions(journal)
        services = QueueServices(
            journal,
            MemoryBudget(settings.global_max_size, partial(timers.call_later, RELIEF_MS)),
            gate,
            slices,
            timers,
            undeliverable,
            creations,
            Waiters(),
            ReadTurns(),
            self.in_doubt.withheld,
        )
        self.factory: Final = QueueFactory(
            services,
            TopicMemory(
                settings.global_max_size,
                limits.max_unacknowledged_bytes,
                journal.large,
                self.store_use.add,
            ),
            limits.max_behind_bytes,
            self.context.values,
            self.schedule.placed,
        )
        self.bindings: Final = NewBindings(journal, self.context.next_id)
        self.book.factory = self.factory
        self.book.bind = self.bindings.bind

        creation = AutoCreation(settings, self.book, security, creations, self.store_use)
        self.sources: Final = Sources(self.book, creation, security, self.factory.topic)
        self.durable: Final = DurableSubscriptions(self.book, self.sources, creation)
        targets = Targets(self.book, creation, security)
        self.office: Final = PostOffice(targets, self.schedule_queues, self.context, gate)
        self.uploads: Final = Uploads(self.office, self.book, self.store_use, journal.large)

        self.deletions: Final = Deletions(journal, self.book, security, duplicates, self.in_doubt)
        self.temporaries: Final = TemporaryDestinations(
            self.book, self.deletions, security, creations, self.store_use
        )
        self.shared: Final = SharedSubscriptions(
            self.book, self.sources, creation, self.deletions, timers
        )
        self.administered: Final = Administered(journal, self.book)
        self.streams: Final = QueueStreams(journal, self.book)
        self.creation: Final = creation
        self.creations: Final = creations
        self.max_body_bytes: Final = limits.max_body_bytes
        self.housekeeping: Final = Housekeeping(
            settings,
            journal,
            self.book,
            self.deletions,
            duplicates,
            timers,
            slices,
            undeliverable.look,
        )
        self.application_acks: Final = ApplicationAckUpkeep(
            journal, self.book, self.schedule, slices, undeliverable.look
        )
        self.reconfiguration: Final = Reconfiguration(
            self.book,
            creation,
            security,
            self.sources,
            self.housekeeping,
        )
