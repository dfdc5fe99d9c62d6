"""Reads windows of a queue for the views that are furthest behind, one at a time.

All views look at a window that are within it: views that read the same at the same time cost one
read. Where nothing was in a window that anybody wanted, the next is read while it is looked at; and
where little was, the next may be larger than the memory there is, as little of it stays there.
"""

from functools import partial
from typing import Final, Protocol

from orthia.broker.core.queue import refill as windows
from orthia.broker.core.queue.delivery import DeliveringQueue
from orthia.broker.core.queue.groups import is_grouped
from orthia.broker.core.queue.left_over import pass_over
from orthia.broker.core.queue.reader import Span
from orthia.broker.core.queue.refill import Refill
from orthia.broker.core.queue.views import PriorityLane, ScanPosition, View
from orthia.broker.core.selectors import MessageProperties
from orthia.broker.core.slices import GO_ON, Steps
from orthia.journal.model.windows import StoredMessage, Window

_MOST_KEPT_BYTES: Final = 65_536
"""How much of a window that is lent is kept for a view."""
_THIN: Final = 32
"""Of how many messages of a window one may be wanted for the next to be lent."""


class _Reader(Protocol):
    """Who has the views."""

    @property
    def knows_groups(self) -> bool:
        """Whether groups are kept together."""

    def is_for(self, view: View, properties: MessageProperties) -> bool:
        """Return whether a view wants a message, and may have it."""

    def takes_all(self, view: View) -> bool:
        """Return whether a view wants, and may have, every message."""

    def keep(self, position: ScanPosition, message: StoredMessage) -> None:
        """Keep a message until it is taken."""

    def wake(self, view: View) -> None:
        """Let a view look for something to deliver."""

    def answered_window(self, window: object) -> None:
        """Note that all of a window was looked at."""

    def forget_swept(self) -> None:
        """Forget taken messages that no scan can meet again."""


class SelectingReads:
    """What is read of one queue; all calls on the loop's thread."""

    def __init__(
        self,
        queue: DeliveringQueue,
        reader: _Reader,
        refill: Refill,
    ) -> None:
        self._queue = queue
        self._reader = reader
        self._refill = refill
        services = queue.services
        self._log = queue.log
        self._journal = services.journal
        self._journal_full = services.journal_full
        self._budget = services.budget
        self._slices = services.slices
        self.waiting: dict[View, ScanPosition] = {}
        """Views that need a window, and of what."""
        self._asked = 0
        """How many windows were asked for, and how many were looked at; they come in order."""
        self._looked_at = 0
        self._next: tuple[PriorityLane, int, Window] | None = None
        """One that came while another is looked at, of what it is and where it begins."""
        self._is_sparse = False
        """Whether there was nothing in the last window that anybody waited for."""
        self._is_thin = False
        """Whether there was so little that all of it could be kept of a window that is lent."""
        self._lent: set[int] = set()
        """Which of the windows that were asked for are lent."""

    @property
    def is_reading(self) -> bool:
        """Whether a window is on its way, or is looked at."""
        return self._looked_at < self._asked

    @property
    def last_asked(self) -> object:
        """The window that was asked for last."""
        return self._asked

    def ask(self) -> None:
        """Ask for a window, if a view waits for one."""
        if self.is_reading or self._queue.is_leaving:
            return
        for view, position in list(self.waiting.items()):
            if not position.has_unread:
                del self.waiting[view]
                self._reader.wake(view)  # there may be something of a lower priority
            elif not view.turns.is_wanted:
                del self.waiting[view]
        if not self.waiting:
            return
        if self._journal.is_full:
            self._journal_full.note(self._queue)
            return
        # Who waits longest says of which level, so that each has its turn.
        for lane in dict.fromkeys([position.lane for position in self.waiting.values()]):
            positions = [position for position in self.waiting.values() if position.lane is lane]
            if self._ask_behind(lane, min([position.horizon for position in positions])):
                return

    def _ask_behind(self, lane: PriorityLane, after: int) -> bool:
        """Ask for a window; return whether anything can be read."""
        cursor = lane.cursor
        up_to = min(cursor.tail_seq, self._journal.last_committed_seq)
        uncounted = cursor.uncounted_after
        if uncounted is not None:
            up_to = min(up_to, uncounted)  # what is taken out before it is counted is counted wrong
        if up_to <= after:
            return False  # and it is asked again, once it is counted
        size, most = self._refill.window_bytes(), self._refill.lent_window_bytes()
        self._asked += 1
        if size < most and self._is_thin and self._budget.lend_window():
            self._lent.add(self._asked)
            size = most
        is_asked = self._queue.reader.read(
            Span(lane.id, after, up_to),
            windows.WINDOW_MESSAGES,
            size,
            partial(self._window_read, lane, after),
            self._queue.resume,
        )
        if not is_asked:
            self._give_back(self._asked)
            self._asked -= 1
        return True

    def _window_read(self, lane: PriorityLane, after: int, window: Window | None) -> None:
        if window is None:
            if self._asked > self._looked_at + 1:
                # Windows are done with in order: the one before is still looked at.
                self._next = (lane, after, Window([], [], after, exhausted=False))
            else:
                self._looked()
            return
        self._queue.reader.report_corrupt(window)
        if self._asked > self._looked_at + 1:
            self._next = (lane, after, window)
            return
        self._look_at(lane, after, window)

    def _look_at(self, lane: PriorityLane, after: int, window: Window) -> None:
        last = window.next_after_seq
        if not self._within(lane, after, last):
            self._looked()  # it was asked for early, and nobody waits for it any more
            self._reader.forget_swept()
            self._queue.resume()
            return
        if self._is_sparse and not self._journal.is_full and not self._queue.is_leaving:
            self._ask_behind(lane, last)  # it is read while this one is looked at
        self._slices.run(self._matching(lane, after, window))

    def _within(self, lane: PriorityLane, after: int, last: int) -> dict[View, ScanPosition]:
        """Return who waits for something of what was read."""
        return {
            view: position
            for view, position in self.waiting.items()
            if position.lane is lane and after <= position.horizon < last
        }

    def _looked(self) -> None:
        """Note that one more window was looked at."""
        self._looked_at += 1
        self._give_back(self._looked_at)
        self._reader.answered_window(self._looked_at)

    def _give_back(self, window: int) -> None:
        if window in self._lent:
            self._lent.remove(window)
            self._budget.window_returned()

    def _matching(self, lane: PriorityLane, after: int, window: Window) -> Steps:
        """Let each view look at a window in which it is."""
        last = window.next_after_seq
        reader, cursor, taken = self._reader, lane.cursor, lane.taken
        is_lent, kept = self._looked_at + 1 in self._lent, 0
        full: dict[View, int] = {}
        try:
            positions = self._within(lane, after, last)
            begins = {view: (one.horizon, one.beginnings) for view, one in positions.items()}
            for message in window.messages:
                seq = message.seq
                if not reader.knows_groups and is_grouped(message.record):
                    self._queue.keep_groups()  # which has all views begin anew, without these
                if seq not in taken and not cursor.is_withheld(seq):
                    properties = MessageProperties(message.record)
                    for view, (begin, beginning) in begins.items():
                        position = positions[view]
                        if seq <= begin or view.is_gone or position.beginnings != beginning:
                            continue
                        if view not in full and reader.is_for(view, properties):
                            kept += 1
                            if is_lent and position.found and position.bytes >= _MOST_KEPT_BYTES:
                                full[view] = seq - 1  # it reads on there, in a smaller window
                            else:
                                reader.keep(position, message)
                        yield GO_ON
            pass_over(window, cursor, self._log)
        finally:
            self._looked()
        self._is_sparse = not any(position.found for position in positions.values())
        self._is_thin = kept * _THIN <= len(window.messages)
        for view, position in positions.items():
            if not view.is_gone:
                self.waiting.pop(view, None)
                reader.wake(view)
                if position.beginnings != begins[view][1]:
                    continue  # it forgot something of this window meanwhile, and reads it again
                read_to = full.get(view, last)
                position.read_to = max(position.read_to, read_to)
                if reader.takes_all(view) and not position.found:
                    cursor.pass_to(read_to)
        reader.forget_swept()
        self._queue.resume()
        self._go_on_with_next()

    def _go_on_with_next(self) -> None:
        """Look at the window that came meanwhile."""
        if self._next is not None:
            lane, after, window = self._next
            self._next = None
            self._look_at(lane, after, window)
