# mypyc compiles this module.
"""A queue whose consumers do not all want every message, or whose messages are of groups.

It delivers with ``Matching`` as long as that is so, and goes over to it and back by itself. What
``Matching`` asks of its queue is here.
"""

import heapq
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from typing import ClassVar

from typing_extensions import override

from orthia.broker.core.api import MessageReference
from orthia.broker.core.limits.memory import LENT_WINDOW_BYTES, size_in_store
from orthia.broker.core.queue import window
from orthia.broker.core.queue.groups import Groups
from orthia.broker.core.queue.levels import Level
from orthia.broker.core.queue.matching import Matching
from orthia.broker.core.queue.taken import ExpiryLook
from orthia.broker.core.queue.turns import InTurn
from orthia.broker.core.queue.window import WindowedQueue
from orthia.config.queues import QueueOptions
from orthia.journal.model.message import DEFAULT_PRIORITY, with_property, without_property
from orthia.journal.model.windows import StoredMessage


class SelectiveQueue(WindowedQueue):
    """A stored queue as far as its consumers select; all calls on the loop's thread."""

    __slots__ = ()

    machine: ClassVar[type[Matching]] = Matching

    def match(self) -> Matching:
        """Return what delivers to them, from here on to all consumers."""
        if self._matching is None:
            self._is_stale = self._reading
            levels = self._levels
            own = Level(self.id, DEFAULT_PRIORITY, self._cursor)
            self._matching = self.machine(
                self,
                (own,) if levels is None else levels.highest_first,
                self._journal,
                self._budget,
                self._slices,
                window_messages=window.WINDOW_MESSAGES,
            )
            for subscription in self._subscriptions:
                subscription.has_turn = False
                self._matching.attach(subscription, None)
            self._turns = InTurn()
        return self._matching

    def make_turns(self) -> InTurn:
        """Return what asks consumers that want the same messages, with none of them yet."""
        return InTurn()

    @override
    def has_groups(self) -> None:
        if self._may_group:
            self._may_group = False
            self.match().group(Groups(self._options, self._budget.groups))

    def mark_first(self, reference: MessageReference) -> None:
        """Mark a group's first message to a consumer, if that is wanted, until it has answered."""
        key = self._options.group_first_key
        if key is not None:
            reference.record = with_property(reference.record, key, "true")

    def unmark(self, references: Iterable[MessageReference]) -> None:
        """Undo ``mark_first``."""
        key = self._options.group_first_key
        if key is not None:
            for reference in references:
                reference.record = without_property(reference.record, key)

    def match_no_more(self) -> None:
        """Deliver in the plain way: all consumers want every message."""
        matching = self._matching
        if matching is None:
            return
        ready, returned = matching.dissolve()
        self._matching = None
        self._may_group = self._options.has_groups
        self._ready.extendleft(reversed(ready))
        for reference in returned:
            heapq.heappush(self._returned, (reference.seq, reference))
        self._turns = self.make_turns()
        for subscription in self._subscriptions:
            subscription.view = None
            subscription.has_turn = False
            self._turns.join(subscription)

    @override
    def _dispatch_matched(self, matching: Matching) -> bool:
        if self._dispatching or self._held or (self._is_going_on and self._has_task()):
            return False
        self._dispatching = True
        try:
            is_done = matching.dispatch()
        finally:
            self._dispatching = False
        matching.tidy()
        return is_done if self._matching is not None else self.dispatch()

    def take_in(self) -> tuple[list[MessageReference], list[MessageReference]]:
        """Return what came into memory, in order, and what was given back, and forget both."""
        came, returned = list(self._ready), [reference for _, reference in self._returned]
        self._ready.clear()
        self._returned.clear()
        return came, returned

    @abstractmethod
    def hand_out(self, reference: MessageReference) -> MessageReference | None:
        """Count a message as delivered; None if it is not to be."""

    @abstractmethod
    def move_expired(self, reference: MessageReference) -> None:
        """Have a message no more that has expired."""

    def may_go_on(self) -> bool:
        """Return whether a delivery is allowed at this moment."""
        return self._may_deliver(self)

    def go_on_later(self) -> None:
        """Have ``dispatch`` called in a later turn of the loop."""
        self._go_on_later()

    def note_journal_full(self) -> None:
        """Have ``resume`` called once the journal is full no more."""
        self._journal_full.note(self)

    def window_bytes(self) -> int:
        """Return how many bytes a window may have, with the memory there is."""
        self._budget.make_room(self._window_bytes)
        return min(self._window_bytes, max(window.MIN_WINDOW_BYTES, self._budget.room))

    def lent_window_bytes(self) -> int:
        """Return how many bytes a window may have of which little is kept."""
        return min(self._window_bytes, LENT_WINDOW_BYTES)

    @property
    @abstractmethod
    def expiry_look(self) -> ExpiryLook:
        """How far messages that have expired are looked for."""

    def reads_window(self) -> bool:
        """Return whether a window that the plain delivery asked for is under way."""
        return self._reading

    def expire(self, messages: Sequence[StoredMessage], queue_id: int) -> None:
        """Move messages away that have expired, wherever in the queue they are.

        They are stored under ``queue_id``. All but those that a consumer has, that wait to be
        delivered again, or that are not counted.
        """
        if self.is_leaving or self._held or self._dispatching:
            return
        now_ms = self._timers.time_ms()
        matching = self.match()
        matching.take_in()
        for message in messages:
            if message.record.expires_ms <= now_ms:
                matching.expire(message, queue_id)
        self.dispatch()

    def forget_memory(self) -> int:
        """Forget what is in memory; return how many messages were nowhere else."""
        self._is_forgotten = True  # what clients that are ended still have is given back later
        self.match_no_more()
        claimed = [*(one for _, one in self._returned), *self._delayed]
        references = [*self._ready, *claimed]
        self._ready.clear()
        self._returned.clear()
        self._delayed.clear()
        self._budget.used -= self.bytes_in_memory
        self.bytes_in_memory = 0
        self._forget_unread()
        self._budget.unclaim(sum([one.size for one in claimed]))
        lost = [one for one in references if one.location is None]
        for one in lost:
            self.use.release(size_in_store(one.record))
        return len(lost)

    @abstractmethod
    def _forget_unread(self) -> None:
        """Have nothing more that is in the table only."""

    @override
    def _shed_matched(self, matching: Matching, size: int) -> bool:
        size = matching.shed(size)
        matching.take_in()
        while size > 0 and not self._subscriptions:
            newest = matching.leave_newest()
            if newest is None:
                break
            self._let_go(newest)
            size -= newest.size
        self._is_holder = self.in_memory > 0 or matching.holds
        return self._is_holder

    def in_memory_only(self) -> list[MessageReference]:
        """Return the messages that are not stored and that no consumer has, in order."""
        matching = self._matching
        everywhere = (
            self._ready,
            (reference for _, reference in self._returned),
            self._delayed,
            () if matching is None else matching.all_in_memory(),
        )
        found = [one for some in everywhere for one in some if one.location is None]
        found.sort(key=lambda one: one.seq)
        return found

    def group_as(self, options: QueueOptions) -> None:
        """Have groups given out as ``options`` say; before there is any message."""
        self._options = options
        self._may_group = options.has_groups or options.ring_size >= 0  # where that is told, once

    @property
    def is_matching(self) -> bool:
        """Whether some consumer does not want every message, or one did a moment ago."""
        return self._matching is not None
