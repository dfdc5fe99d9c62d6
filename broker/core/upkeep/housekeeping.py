"""What a node does about its queues without being asked, from its start on."""

from collections.abc import Iterable

from orthia.broker.core.queue.taken import ExpiryLook
from orthia.broker.core.routing.addresses import AddressBook
from orthia.broker.core.sending.duplicates import DuplicateIds
from orthia.broker.core.slices import GO_ON, Slices, Steps
from orthia.broker.core.timers import Timers
from orthia.broker.core.upkeep.backlog import BacklogCount
from orthia.broker.core.upkeep.deletion import Deletions
from orthia.broker.core.upkeep.expiry import ExpiryScan
from orthia.broker.core.upkeep.reaper import Reaper
from orthia.broker.core.upkeep.slow import SlowConsumers
from orthia.config.address_settings import AddressSettings
from orthia.config.addresses import ResolvedAddressSettings
from orthia.config.settings import Settings
from orthia.journal.journal import MessageJournal


class Housekeeping:
    """Starts the periodic and background work; on the loop's thread."""

    def __init__(
        self,
        settings: Settings,
        journal: MessageJournal,
        addresses: AddressBook,
        deletions: Deletions,
        duplicates: DuplicateIds,
        timers: Timers,
        slices: Slices,
        look: ExpiryLook,
    ) -> None:
        self._settings = settings
        self._journal = journal
        self._addresses = addresses
        self._timers = timers
        self._slices = slices
        self._look = look
        self._slow = SlowConsumers(addresses, timers, slices)
        self._reaper = Reaper(
            addresses,
            deletions,
            duplicates,
            timers,
            slices,
            settings.address_queue_scan_period,
        )
        self._is_started = False

    def starting(self) -> Steps:
        """Trim and count what earlier nodes left; look for unused queues and slow consumers."""
        yield from self._addresses.trimming()
        self._is_started = True
        self.configure(self._settings)
        if self._settings.address_queue_scan_period > 0:
            self._reaper.start()
        count = BacklogCount(self._journal, self._timers)
        for queue in self._addresses.consumable_queues():
            count.add(queue)
            yield GO_ON
        count.start()

    def configure(self, settings: Settings) -> None:
        """Apply the address settings to the scans; they begin with ``start``."""
        self._settings = settings
        self._reaper.deletes_queues = any(
            one.auto_delete_queues for one in settings.address_settings
        )
        if self._is_started:
            self._slow.start(_slow_consumer_periods(settings.address_settings))

    def start_expiry_scan(self) -> None:
        """Begin to scan for expired messages."""
        period = self._settings.message_expiry_scan_period
        if period > 0:
            scan = ExpiryScan(
                self._journal, self._addresses, self._timers, self._slices, period, self._look
            )
            scan.start()


def _slow_consumer_periods(settings: Iterable[AddressSettings]) -> set[int]:
    """Return the different check periods for slow consumers, in seconds."""
    if all((one.slow_consumer_threshold or -1) < 0 for one in settings):
        return set()
    default = ResolvedAddressSettings().slow_consumer_check_period
    return {default, *(one.slow_consumer_check_period or default for one in settings)}
