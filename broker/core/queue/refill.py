# mypyc compiles this module.
"""Reading on: what is in the table only comes into memory, as the consumers of the head need it.

A window is asked for when little is left in memory, while there is a consumer.
"""

from orthia.broker.core.limits.memory import LENT_WINDOW_BYTES
from orthia.broker.core.queue.delivery import DeliveringQueue
from orthia.broker.core.queue.groups import is_grouped
from orthia.broker.core.queue.head import HeadDelivery
from orthia.broker.core.queue.left_over import pass_over
from orthia.broker.core.queue.reader import Span
from orthia.config.addresses import ResolvedAddressSettings
from orthia.journal.model.windows import Window

WINDOW_MESSAGES = 1_000
"""Messages one read of the table brings at most."""
MIN_WINDOW_BYTES = 65_536
"""What a queue may always read, however full the memory is: it must be able to go on."""
MAX_WINDOW_BYTES = 4 * 1024 * 1024


class Refill:
    """One window on its way into the log at most; all calls on the loop's thread."""

    __slots__ = (
        "_head", "_is_stale", "_log", "_queue", "_reader", "_services", "_unsettled",
        "_window_bytes", "is_reading",
    )  # fmt: skip

    def __init__(self, queue: DeliveringQueue, head: HeadDelivery) -> None:
        self._queue = queue
        self._log = queue.log
        self._unsettled = queue.unsettled
        self._head = head
        self._reader = queue.reader
        self._services = queue.services
        self.is_reading = False
        """Whether a window is on its way, or none may be read: see ``hold``."""
        self._is_stale = False
        """Whether what is being read was asked for before others took from the table."""
        self._window_bytes: int = MAX_WINDOW_BYTES

    def configure(self, settings: ResolvedAddressSettings) -> None:
        """Take the size of windows from the settings of the queue's address."""
        self._window_bytes = min(MAX_WINDOW_BYTES, max(MIN_WINDOW_BYTES, settings.page_size_bytes))

    def window_bytes(self) -> int:
        """Return how many bytes a window may have, with the memory there is."""
        budget = self._services.budget
        budget.make_room(self._window_bytes)
        return min(self._window_bytes, max(MIN_WINDOW_BYTES, budget.room))

    def lent_window_bytes(self) -> int:
        """Return how many bytes a window may have of which little is kept."""
        return min(self._window_bytes, LENT_WINDOW_BYTES)

    def refill(self) -> None:
        """Read on, if there is anything to read, and anybody who wants it."""
        log = self._log
        if self.is_reading or not log.cursor.is_paged or not self._queue.reads_at_head:
            return
        if len(log.ready) > WINDOW_MESSAGES // 4:
            return
        journal, budget = self._services.journal, self._services.budget
        if journal.is_full:
            # What leaves the queue is work for the journal.
            self._services.journal_full.note(self._queue)
            return
        if not log.ready:
            budget.make_room(self._window_bytes)
        room = budget.room
        if log.max_bytes is not None:
            room = min(room, log.max_bytes - log.bytes_in_memory)
        if room < MIN_WINDOW_BYTES and (log.ready or not self._head.is_wanted):
            return  # read on once what is in memory is delivered and a consumer wants more
        self.is_reading = True
        up_to = min(log.cursor.tail_seq, journal.last_committed_seq)
        if not self._reader.read(
            Span(log.id, log.cursor.read_seq, up_to),
            WINDOW_MESSAGES,
            min(self._window_bytes, max(MIN_WINDOW_BYTES, room)),
            self._window_read,
            self._queue.resume,
        ):
            self.is_reading = False

    def _window_read(self, window: Window | None) -> None:
        self.is_reading = False
        queue, log = self._queue, self._log
        if self._is_stale:
            self._is_stale = False
            queue.window_answered()
            queue.dispatch()
            return
        if window is None or queue.is_leaving:
            return
        self._reader.report_corrupt(window)
        has_groups = False
        for message in window.messages:
            if not log.cursor.is_withheld(message.seq):
                log.ready.append(self._unsettled.load(message, log.cursor))
                if not has_groups and is_grouped(message.record):
                    has_groups = True
        pass_over(window, log.cursor, log)
        log.cursor.pass_to(window.next_after_seq)
        if has_groups:
            queue.keep_groups()
        queue.dispatch()

    def outdate(self) -> None:
        """Make nothing of the window that is on its way: others take from the table meanwhile."""
        self._is_stale = self.is_reading

    def hold(self) -> bool:
        """Read no window until ``release``; return False if one is on its way."""
        if self.is_reading:
            return False
        self.is_reading = True
        return True

    def release(self) -> None:
        """Read on after ``hold``."""
        self.is_reading = False
        self._queue.window_answered()
        self.refill()
