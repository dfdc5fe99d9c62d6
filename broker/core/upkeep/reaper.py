"""Deletes queues that were created for clients and that nobody needs, as their settings say.

A scan runs every ``address-queue-scan-period``. It deletes a queue that had no consumer, and no
more messages than ``auto-delete-queues-message-count``, in all scans of its delay. An empty queue
goes at once with its binding, and its name is free the same moment: the next client that sends
there is not refused, and creates it again.

With the last queue of an address go its duplicate ids. So that queue waits until nobody has sent an
id to the address for ``IDS_KEPT_MS``, or for its delay if that is longer: a producer that does not
know what became of a message sends it again within that time. The time is counted in scans of this
node, so a clock that is set does not matter, and begins again with a takeover: ids are kept too
long rather than not long enough. Ids of an address without a queue go by themselves after that
time, unless it is configured: an exclusive divert takes its messages, or they are scheduled.
"""

from typing import Final, NamedTuple

from orthia.broker.core.destinations import is_schedule
from orthia.broker.core.failures import by_itself
from orthia.broker.core.queue.queue import Queue
from orthia.broker.core.routing.addresses import AddressBook
from orthia.broker.core.sending.duplicates import DuplicateIds
from orthia.broker.core.slices import GO_ON, Slices, Steps
from orthia.broker.core.timers import Timers
from orthia.broker.core.upkeep.deletion import Deletions
from orthia.broker.quoting import quoted

IDS_KEPT_MS: Final = 300_000
"""How long ids of an address stay without a queue: a client that fails over has sent again, or
given up, long before."""
_AT_ONCE: Final = 256
_ENDED_AT_ONCE: Final = 256
"""Addresses whose ids end in one unit, at most."""
_ROWS_AT_ONCE: Final = 1_000
"""Ids that end in one unit at most, unless a single address has more."""


class _Quiet(NamedTuple):
    """Since when no id was sent to an address."""

    newest: int
    since: int
    """The scan that found it so first."""


class Reaper:
    """Scans for unused queues and old ids; on the loop's thread."""

    def __init__(
        self,
        addresses: AddressBook,
        deletions: Deletions,
        duplicates: DuplicateIds,
        timers: Timers,
        slices: Slices,
        period_ms: int,
    ) -> None:
        self._addresses = addresses
        self._deletions = deletions
        self._duplicates = duplicates
        self._timers = timers
        self._slices = slices
        self._period_ms = period_ms
        self.deletes_queues = False
        """Whether any address-setting has ``auto-delete-queues``."""
        self._unused: dict[Queue, int] = {}
        """For each unused queue, the scan that first found it so."""
        self._quiet: dict[str, _Quiet] = {}
        """By address, for those with ids and no queue, or one that may be deleted."""
        self._old: list[str] = []
        """Addresses whose ids end, a few in each unit, so that others are stored in between."""
        self._is_ending = False
        self._looks = 0

    def start(self) -> None:
        """Begin to scan."""
        self._timers.call_later(self._period_ms, self._look)

    def _look(self) -> None:
        if self._duplicates.addresses():
            # An id counts from when it is stored: nothing becomes old while the store is away.
            self._deletions.when_stored(self._begin)
        else:
            self._begin()

    def _begin(self) -> None:
        self._looks += 1
        self._slices.run(self._looking())

    def _looking(self) -> Steps:
        with by_itself("the scan for unused queues failed; retrying at the next one"):
            yield from self._looking_at_all()
        self.start()

    def _looking_at_all(self) -> Steps:
        unused: dict[Queue, int] = {}
        quiet: dict[str, _Quiet] = {}
        queues = list(self._addresses.queues.values()) if self.deletes_queues else []
        for number, queue in enumerate(queues, 1):
            with by_itself("checking whether queue %s is unused failed", quoted(queue.name)):
                self._look_at(queue, unused, quiet)
            if not number % _AT_ONCE:
                yield GO_ON
        old: list[str] = []
        for number, address in enumerate(self._duplicates.addresses(), 1):
            with by_itself("checking the duplicate ids of address %s failed", quoted(address)):
                if not self._addresses.is_needed(address):
                    self._look_at_ids(address, quiet)
                    if self._are_old(address, quiet.get(address), IDS_KEPT_MS):
                        old.append(address)
            if not number % _AT_ONCE:
                yield GO_ON
        self._unused = unused
        self._quiet = quiet
        self._old = old
        if not self._is_ending:
            self._end_next()

    def _look_at(self, queue: Queue, unused: dict[Queue, int], quiet: dict[str, _Quiet]) -> None:
        if queue.settings.auto_delete_queues:
            self._look_at_ids(queue.address, quiet)
        if self._is_unused(queue):
            since = unused[queue] = self._unused.get(queue, self._looks)
            if self._waited_ms(since) >= queue.settings.auto_delete_queues_delay and (
                self._may_go(queue)
            ):
                self._deletions.reap(queue, self._may_go)

    def _end_next(self) -> None:
        ending: list[str] = []
        rows = 0
        while self._old and len(ending) < _ENDED_AT_ONCE:
            address = self._old[-1]
            if not self._addresses.is_needed(address) and self._are_old(
                address, self._quiet.get(address), IDS_KEPT_MS
            ):
                rows += self._duplicates.most_stored(address)
                if ending and rows > _ROWS_AT_ONCE:
                    break
                ending.append(address)
            self._old.pop()
        if ending:
            self._is_ending = True
            try:
                self._deletions.end_ids(ending, self._ended)
            except BaseException:
                self._is_ending = False
                raise

    def _ended(self) -> None:
        self._is_ending = False
        self._end_next()

    def _look_at_ids(self, address: str, quiet: dict[str, _Quiet]) -> None:
        newest = self._duplicates.newest(address)
        if newest is None:
            return
        before = self._quiet.get(address)
        if before is None or before.newest != newest:
            before = _Quiet(newest, self._looks)
        quiet[address] = before

    def _waited_ms(self, since: int) -> int:
        return (self._looks - since) * self._period_ms

    def _may_go(self, queue: Queue) -> bool:
        return self._is_unused(queue) and self._spares_ids(queue)

    def _spares_ids(self, queue: Queue) -> bool:
        """Return whether a queue can go without ids that may still be needed."""
        newest = self._duplicates.newest(queue.address)
        if newest is None or not self._addresses.is_last(queue):
            return True
        wait_ms = max(queue.settings.auto_delete_queues_delay, IDS_KEPT_MS)
        return self._are_old(queue.address, self._quiet.get(queue.address), wait_ms)

    def _are_old(self, address: str, quiet: _Quiet | None, wait_ms: int) -> bool:
        """Return whether nobody has sent an id to an address for ``wait_ms``."""
        return (
            quiet is not None
            and quiet.newest == self._duplicates.newest(address)
            and not self._duplicates.is_held(address)
            and self._waited_ms(quiet.since) >= wait_ms
        )

    def _is_unused(self, queue: Queue) -> bool:
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
