# mypyc compiles this module.
"""Makes the queues and topics of a node, of what all of them share: memory, the gate, the journal.

Whoever was held back, for want of memory or because the journal was full, is asked again from here.
"""

import logging
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Final

from orthia.broker.core.api import Done
from orthia.broker.core.destinations import is_schedule
from orthia.broker.core.errors import NotLive
from orthia.broker.core.limits.creations import QueueCreations
from orthia.broker.core.limits.memory import MemoryBudget, Waiters
from orthia.broker.core.limits.quota import StoreUse
from orthia.broker.core.queue.gate import DeliveryGate
from orthia.broker.core.queue.last_value import LastValues
from orthia.broker.core.queue.newest import ValueCount
from orthia.broker.core.queue.policy import Policy
from orthia.broker.core.queue.queue import Queue
from orthia.broker.core.queue.reader import ReadTurns
from orthia.broker.core.queue.retention import Retention
from orthia.broker.core.queue.services import QueueServices
from orthia.broker.core.routing.address import Address
from orthia.broker.core.sending.schedule_queues import Scheduling
from orthia.broker.core.sending.undeliverable import Undeliverable
from orthia.broker.core.slices import Slices
from orthia.broker.core.timers import Timers
from orthia.broker.core.topics.topic import Topic
from orthia.broker.core.topics.topic_memory import TopicMemory
from orthia.config.queues import QueueOptions
from orthia.config.settings import Settings
from orthia.journal.errors import JournalClosed
from orthia.journal.journal import MessageJournal
from orthia.journal.model.codec import QueueBinding

LOGGER = logging.getLogger("orthia.broker")
RELIEF_MS: Final = 100
"""How long after memory is free again consumers that were held back for it are asked."""


class QueueFactory:
    """Makes them; on the loop's thread."""

    def __init__(
        self,
        settings: Settings,
        journal: MessageJournal,
        timers: Timers,
        gate: DeliveryGate,
        slices: Slices,
        disposal: Undeliverable,
        values: ValueCount,
        creations: QueueCreations,
        next_id: Callable[[], int],
        scheduled: Callable[[int], None],
        store_use: StoreUse,
        withheld: Collection[int],
    ) -> None:
        """``next_id`` numbers queues, as it does messages.

        ``scheduled`` hears when each message is due that is to be delivered later; messages with
        the seqs ``withheld`` stay in the table.
        """
        self.budget = MemoryBudget(settings.global_max_size, self._relieved)
        self.topic_memory = TopicMemory(
            settings.global_max_size,
            settings.stomp_limits.max_unacknowledged_bytes,
            journal.large,
            store_use.add,
        )
        self.services = QueueServices(
            journal,
            self.budget,
            gate,
            slices,
            timers,
            disposal,
            creations,
            Waiters(),
            ReadTurns(),
            withheld,
        )
        self._max_behind_bytes = settings.stomp_limits.max_behind_bytes
        self._journal = journal
        self._timers = timers
        self._gate = gate
        self._slices = slices
        self._values = values
        self._next_id = next_id
        self._scheduled = scheduled
        self._is_relief_due = False
        self._unstored: dict[int, list[Done]] = {}
        """The bindings on their way to the store, in order, and who waits for which of them."""
        journal.register_room_listener(self._room)

    def bind(self, unnumbered: QueueBinding) -> QueueBinding:
        """Store the binding of a new queue, and return it with its id; raises NotLive."""
        binding = replace(unnumbered, queue_id=self._next_id())
        queue_id = binding.queue_id
        try:
            self._journal.add_binding(binding, lambda: self._stored(queue_id))
        except JournalClosed as error:
            raise NotLive(str(error)) from None
        self._unstored[queue_id] = []
        return binding

    def _stored(self, queue_id: int) -> None:
        for done in self._unstored.pop(queue_id, ()):
            done()

    def when_bound(self, done: Done) -> None:
        """Call ``done`` once the bindings of all queues are stored.

        Which may be later than what was given to the journal behind them: see its ``retry``.
        """
        if not self._unstored:
            done()
        else:
            self._unstored[next(reversed(self._unstored))].append(done)

    def queue(self, binding: QueueBinding, address: Address, unread_up_to: int) -> Queue:
        """Return the queue of a binding; messages up to the seq are in the table only."""
        services, options = self.services, binding.options
        waits = is_schedule(binding.name)
        queue = Queue(
            binding,
            address.settings,
            address.use,
            services,
            unread_up_to=unread_up_to,
            is_schedule=waits,
        )
        policies: list[Policy] = [Scheduling(queue.name, self._scheduled)] if waits else []
        if options.ring_size >= 0 or options.purge_on_no_consumers:
            policies.append(Retention(queue, services))
        key = options.last_value_key
        values = None if key is None else LastValues(queue, key, self._values, services)
        queue.follow(*policies, replaces=values)
        return queue

    def change(self, queue: Queue, options: QueueOptions) -> None:
        """Apply changed options to a queue at once."""
        queue.change(options)
        for policy in queue.policies:
            if isinstance(policy, Retention):
                policy.configure()
                return
        if options.ring_size >= 0 or options.purge_on_no_consumers:
            retention = Retention(queue, self.services)
            queue.also_follow(retention)
            retention.opened()

    def topic(self) -> Topic:
        """Return a topic that nobody hears yet."""
        return Topic(
            self.topic_memory, self._slices, self._gate.may_deliver, self._max_behind_bytes
        )

    def _room(self) -> None:
        """Resume the queues that stopped reading because the journal was full."""
        self.services.journal_full.relieve(
            lambda: not self._journal.is_full, lambda queue: queue.resume()
        )

    def _relieved(self) -> None:
        """Soon, and once for many acknowledgements, have consumers asked that got no more."""
        if not self._is_relief_due:
            self._is_relief_due = True
            self._timers.call_later(RELIEF_MS, self._relieve)

    def _relieve(self) -> None:
        self._is_relief_due = False
        self.budget.relieve()
