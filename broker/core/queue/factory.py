# mypyc compiles this module.
"""Makes the queues and topics of a node, of what all of them share: memory, the gate, the journal.

Queues that stopped reading because the journal was full are resumed from here.
"""

from collections.abc import Callable

from orthia.broker.core.destinations import is_schedule
from orthia.broker.core.queue.last_value import LastValues
from orthia.broker.core.queue.newest import ValueCount
from orthia.broker.core.queue.policy import Policy
from orthia.broker.core.queue.queue import Queue
from orthia.broker.core.queue.retention import Retention
from orthia.broker.core.queue.services import QueueServices
from orthia.broker.core.routing.address import Address
from orthia.broker.core.sending.schedule_queues import Scheduling
from orthia.broker.core.topics.topic import Topic
from orthia.broker.core.topics.topic_memory import TopicMemory
from orthia.config.queues import QueueOptions
from orthia.journal.model.codec import QueueBinding


class QueueFactory:
    """Makes them; on the loop's thread."""

    def __init__(
        self,
        services: QueueServices,
        topic_memory: TopicMemory,
        max_behind_bytes: int,
        values: ValueCount,
        scheduled: Callable[[int], None],
    ) -> None:
        """``scheduled`` hears when each message is due that is to be delivered later."""
        self.services = services
        self.topic_memory = topic_memory
        self._max_behind_bytes = max_behind_bytes
        self._values = values
        self._scheduled = scheduled
        services.journal.register_room_listener(self._room)

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
        services = self.services
        return Topic(
            self.topic_memory,
            services.slices,
            services.gate.may_deliver,
            self._max_behind_bytes,
        )

    def _room(self) -> None:
        """Resume the queues that stopped reading because the journal was full."""
        services = self.services
        services.journal_full.relieve(
            lambda: not services.journal.is_full, lambda queue: queue.resume()
        )
