"""Reading a queue's table for the views of consumers that select.

Windows are read for the views that are furthest behind, and all views look at them that are within:
views that read the same stretch at the same time cost one read. A queue reads one window at a time.
"""

import logging
from collections.abc import Callable
from functools import partial
from typing import Final

from orthia.broker.core.api import MessageReference
from orthia.broker.core.cursor import Cursor
from orthia.broker.core.groups import is_grouped
from orthia.broker.core.matched import Matched
from orthia.broker.core.memory import size_in_memory
from orthia.broker.core.selectors import Said
from orthia.broker.core.slices import GO_ON, Slices, Steps
from orthia.broker.core.taken import Taken
from orthia.broker.core.timers import Timers
from orthia.broker.core.views import CHARACTERS_AT_COST, MATCH_COST, View
from orthia.config.errors import OrthiaError
from orthia.journal.abc import MessageJournal
from orthia.journal.errors import JournalClosed
from orthia.journal.windows import StoredMessage, Window

LOGGER = logging.getLogger("orthia.broker")
_MATCHED_AT_ONCE: Final = 32
"""How many selectors a new message is matched against at once, fewer of those that search much."""
_RETRY_MS: Final = 1_000


class ViewReads:
    """Reads windows, and has the views look at them; all calls on the loop's thread."""

    def __init__(
        self,
        queue: Matched,
        cursor: Cursor,
        journal: MessageJournal,
        timers: Timers,
        slices: Slices,
        taken: Taken,
        views: dict[object, View],
        active: dict[View, None],
        swept: Callable[[], None],
        *,
        window_messages: int,
    ) -> None:
        """Of all ``views`` those that looked at a window are put among the ``active``.

        ``swept`` is called when messages among the ``taken`` may be forgotten.
        """
        self.waiting: dict[View, None] = {}
        """Views that need a window."""
        self.knows_groups = False
        self._queue = queue
        self._cursor = cursor
        self._journal = journal
        self._timers = timers
        self._slices = slices
        self._taken = taken
        self._views = views
        self._active = active
        self._swept = swept
        self._window_messages = window_messages
        self._asked = 0
        """How many windows were asked for, and how many were looked at; they come in order."""
        self._looked_at = 0
        self._next: tuple[int, Window] | None = None
        """One that came while another is looked at, and where it begins."""
        self._is_sparse = False
        """Whether there was nothing in the last window that anybody waited for."""

    @property
    def under_way(self) -> list[object]:
        """What names the window to ``Taken`` that was asked for last, if it is not done with."""
        return [self._asked] if self.is_reading else []

    @property
    def is_reading(self) -> bool:
        """Whether a window is on its way, or is looked at."""
        return self._looked_at < self._asked

    def ask(self) -> None:
        """Have the next window read, if a view waits for one and none is under way."""
        if self.is_reading or self._queue.is_leaving:
            return
        waiting = [one for one in self.waiting if one.turns.is_wanted and one.has_unread]
        self.waiting = dict.fromkeys(waiting)
        if not waiting:
            return
        if self._journal.is_full:
            self._queue.note_journal_full()
            return
        self._ask_behind(min(one.horizon for one in waiting))

    def _ask_behind(self, after: int) -> None:
        up_to = min(self._cursor.tail_seq, self._journal.last_committed_seq)
        uncounted = self._cursor.uncounted_after
        if uncounted is not None:
            up_to = min(up_to, uncounted)  # what is taken out before it is counted is counted wrong
        if up_to <= after:
            return  # and it is asked again, once it is counted
        self._asked += 1
        try:
            self._journal.read_window(
                self._queue.id,
                after,
                up_to,
                self._window_messages,
                self._queue.window_bytes(),
                partial(self._window_read, after),
            )
        except JournalClosed:
            self._asked -= 1  # this node is ending: the table is left to the next

    def _window_read(self, after: int, window: Window | OrthiaError) -> None:
        if isinstance(window, OrthiaError):
            LOGGER.error(
                "queue %s cannot be read on: %s; it is tried again", self._queue.name, window
            )
            self._timers.call_later(_RETRY_MS, self._queue.resume)
            if self._asked > self._looked_at + 1:
                # Windows are done with in order: the one before is still looked at.
                self._next = (after, Window([], [], after, exhausted=False))
            else:
                self._looked()
            return
        for corrupt in window.corrupt:
            LOGGER.error("queue %s: %s; its row stays in the table", self._queue.name, corrupt)
        if self._asked > self._looked_at + 1:
            self._next = (after, window)
            return
        self._look_at(after, window)

    def _look_at(self, after: int, window: Window) -> None:
        last = window.next_after_seq
        if not any(after <= view.horizon < last for view in self.waiting):
            self._looked()  # it was asked for early, and nobody waits for it any more
            self._swept()
            self._queue.resume()
            return
        if self._is_sparse and not self._journal.is_full and not self._queue.is_leaving:
            self._ask_behind(last)  # it is read while this one is looked at
        self._slices.run(self._matching(after, window))

    def _looked(self) -> None:
        """Note that one more window was looked at."""
        self._looked_at += 1
        self._taken.answered(self._looked_at)

    def _matching(self, after: int, window: Window) -> Steps:
        """Have the views look at a window that are within it."""
        last = window.next_after_seq
        try:
            views = [one for one in self.waiting if after <= one.horizon < last]
            begins = {view: (view.horizon, view.beginnings) for view in views}
            for message in window.messages:
                seq = message.seq
                if not self.knows_groups and is_grouped(message.record):
                    self._queue.has_groups()  # which has all views begin anew, without these
                if seq not in self._taken and not self._cursor.is_withheld(seq):
                    said = Said(message.record)
                    for view, (begin, beginning) in begins.items():
                        if seq <= begin or view.is_gone or view.beginnings != beginning:
                            continue
                        if view.may_have(said):
                            view.keep(message)
                            self._queue.hold()
                        yield GO_ON
        finally:
            self._looked()
        self._is_sparse = not any(view.found for view in views)
        for view in views:
            if not view.is_gone:
                self.waiting.pop(view, None)
                self._active[view] = None
                if view.beginnings != begins[view][1]:
                    continue  # it forgot something of this window meanwhile, and reads it again
                view.read_to = max(view.read_to, last)
                if view.takes_all and not view.found:
                    self._cursor.pass_to(last)
        self._swept()
        self._queue.resume()
        self._go_on_with_next()

    def _go_on_with_next(self) -> None:
        """Look at the window that came meanwhile."""
        if self._next is not None:
            after, window = self._next
            self._next = None
            self._look_at(after, window)

    def left(self, reference: MessageReference, tail_before: int) -> None:
        """Look at a new message that is left to the table, whose tail was at a place before.

        Views that have read all of it need no window for this one.
        """
        location = reference.location
        if location is None:
            return
        message = StoredMessage(reference.seq, 0, reference.record, location)
        said = Said(reference.record)
        work = _MATCHED_AT_ONCE
        for view in self._views.values():
            if not view.turns.is_wanted:
                continue  # it reads the message, when it comes to that
            self._active[view] = None
            if view.horizon < tail_before:
                continue
            work -= 1
            if work < 0:
                continue  # it reads the message, too: others have their turns meanwhile
            is_wanted = view.may_have(said)
            work -= said.searched // (CHARACTERS_AT_COST * MATCH_COST)
            if is_wanted:
                size = view.bytes + size_in_memory(reference.record)
                if view.found and size > self._queue.window_bytes():
                    continue
                view.keep(message)
                self._queue.hold()
            view.read_to = max(view.read_to, reference.seq)
