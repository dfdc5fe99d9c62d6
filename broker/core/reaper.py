"""Queues that nobody needs any more: created for a client, unused, and to go by their settings.

Looked for every ``address-queue-scan-period``: a queue goes that is without a consumer and has no
more messages than ``auto-delete-queues-message-count`` in all the looks of its delay. An empty one
goes at once, with its binding, and its name is free the same moment: whoever sends next is not
refused, and has it created again.
"""

from typing import Final

from orthia.broker.core.addresses import AddressBook
from orthia.broker.core.deletion import Deletions
from orthia.broker.core.destinations import is_schedule
from orthia.broker.core.queue import Queue
from orthia.broker.core.slices import GO_ON, Slices, Steps
from orthia.broker.core.timers import Timers

_AT_ONCE: Final = 256


class Reaper:
    """Looks for them; on the loop's thread."""

    def __init__(
        self,
        addresses: AddressBook,
        deletions: Deletions,
        timers: Timers,
        slices: Slices,
        period_ms: int,
    ) -> None:
        self._addresses = addresses
        self._deletions = deletions
        self._timers = timers
        self._slices = slices
        self._period_ms = period_ms
        self._unused: dict[Queue, int] = {}
        """Since which look nobody uses a queue."""
        self._looks = 0

    def start(self) -> None:
        """Look from now on."""
        self._timers.call_later(self._period_ms, self._look)

    def _look(self) -> None:
        self._looks += 1
        self._slices.run(self._looking())

    def _looking(self) -> Steps:
        unused: dict[Queue, int] = {}
        for number, queue in enumerate(list(self._addresses.queues.values()), 1):
            if self._may_go(queue):
                since = unused[queue] = self._unused.get(queue, self._looks)
                waited_ms = (self._looks - since) * self._period_ms
                if waited_ms >= queue.settings.auto_delete_queues_delay:
                    self._deletions.reap(queue, self._may_go)
            if not number % _AT_ONCE:
                yield GO_ON
        self._unused = unused
        self.start()

    def _may_go(self, queue: Queue) -> bool:
        settings = queue.settings
        if not settings.auto_delete_queues or queue.consumers or queue.is_leaving:
            return False
        most = settings.auto_delete_queues_message_count
        if queue.is_expecting or not queue.is_counted or queue.depth > most >= 0:
            return False
        binding = self._addresses.bindings.get(queue.name)
        return (
            binding is not None
            and binding.auto_created
            and binding.durable
            and binding.subscription is None
            and not is_schedule(queue.name)
            and not self._addresses.has_schedules(queue.address)
        )
