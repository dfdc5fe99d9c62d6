"""Delivery out of the middle of a queue: to consumers that do not want every message.

A queue delivers with this machine while it has such a consumer, and with the plain one otherwise.
Consumers with the same selector share a *view*, which goes through the queue on its own, however
long the queue is and whatever other views do: so a message that one does not want is in nobody's
way. What a view takes out is *taken*, and no other view gets it; given back, it is offered to every
view again. Each gets what it wants in the order of the queue.
How windows are read for them is in ``orthia.broker.core.view_reads``.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from orthia.broker.core.api import MessageReference
from orthia.broker.core.cursor import Cursor
from orthia.broker.core.dispatcher import AT_ONCE
from orthia.broker.core.groups import Groups
from orthia.broker.core.matched import Matched
from orthia.broker.core.memory import MemoryBudget
from orthia.broker.core.resident import Resident
from orthia.broker.core.selectors import Said, Selector
from orthia.broker.core.slices import Slices
from orthia.broker.core.subscriptions import Subscription
from orthia.broker.core.taken import Taken
from orthia.broker.core.timers import Timers
from orthia.broker.core.view_reads import ViewReads
from orthia.broker.core.views import CHARACTERS_AT_COST, MATCH_COST, View
from orthia.journal.abc import MessageJournal
from orthia.journal.errors import JournalClosed
from orthia.journal.unit import Unit
from orthia.journal.windows import StoredMessage

_PLAIN_WINDOW: Final = "plain window"
QueueSubscription = Subscription[MessageReference]


class Matching:
    """The views of a queue; all calls on the loop's thread."""

    def __init__(
        self,
        queue: Matched,
        cursor: Cursor,
        journal: MessageJournal,
        budget: MemoryBudget,
        timers: Timers,
        slices: Slices,
        *,
        window_messages: int,
    ) -> None:
        """Begin with no view, and with nothing: ``dispatch`` takes over what the queue has."""
        self._queue = queue
        self._cursor = cursor
        self._journal = journal
        self._budget = budget
        self._views: dict[object, View] = {}
        self._active: dict[View, None] = {}
        """Views that may have something to do, in turn."""
        self._taken = Taken()
        self._here = Resident()
        self._returned = Resident()
        self._work = 0
        self._groups: Groups | None = None
        self._is_over = False
        self._reads = ViewReads(
            queue,
            cursor,
            journal,
            timers,
            slices,
            self._taken,
            self._views,
            self._active,
            self._forget_swept,
            window_messages=window_messages,
        )

    # --- what the queue asks

    @property
    def in_memory(self) -> int:
        """How many messages are in memory that nobody has."""
        return len(self._here) + len(self._returned)

    def is_taken(self, seq: int) -> bool:
        """Return whether a message in the table is somebody's, or was."""
        return seq in self._taken

    def attach(self, subscription: QueueSubscription, selector: Selector | None) -> None:
        """Have a consumer get what its selector wants."""
        self._add(subscription, selector)
        if self._groups is not None and self._groups.came():
            self._look_again()

    def _add(self, subscription: QueueSubscription, selector: Selector | None) -> None:
        # Where there are groups each has messages that are for it alone.
        key = selector if self._groups is None else subscription
        view = self._views.get(key)
        if view is None:
            turns = self._queue.make_turns()
            view = self._views[key] = View(
                key, selector, turns, self._cursor, self._budget, self._groups
            )
        subscription.view = view
        view.subscriptions[subscription] = None
        self.join(subscription)

    def group(self, groups: Groups) -> None:
        """Have groups from here on, of which no consumer has a message yet."""
        if self._groups is not None:
            return
        self._groups = groups
        self._reads.knows_groups = True
        views = list(self._views.values())
        self._views.clear()
        self._active.clear()
        self._reads.waiting.clear()
        for view in views:
            view.is_gone = True
            view.forget()
            for subscription in view.subscriptions:
                subscription.has_turn = False
                self._add(subscription, view.selector)

    @property
    def has_groups(self) -> bool:
        """Whether it knows of groups."""
        return self._groups is not None

    def _look_again(self) -> None:
        """Have all views begin anew: what was not for one may be now."""
        for view in self._views.values():
            view.look_again()
        self.resume()

    def left(self, reference: MessageReference, tail_before: int) -> None:
        """Look at a new message that is left to the table, whose tail was at a place before."""
        self._reads.left(reference, tail_before)

    def expire(self, message: StoredMessage) -> None:
        """Move a message away that has expired, unless somebody has it."""
        seq = message.seq
        reference = self._returned.take(seq)
        if reference is not None:
            self._budget.unclaim(reference.size)
        else:
            reference = self._here.take(seq)
        if reference is None:
            cursor = self._cursor
            if seq in self._taken or not cursor.read_seq < seq <= cursor.tail_seq:
                return  # somebody has it, or it waits to be delivered again
            if cursor.is_withheld(seq) or not cursor.is_counted(seq):
                return
            reference = self._queue.loaded(message)
        self._taken.take(seq)
        self._queue.move_expired(reference)

    def detach(self, subscription: QueueSubscription) -> None:
        """Have a consumer get nothing any more."""
        view = self._view_of(subscription)
        view.subscriptions.pop(subscription, None)
        view.turns.leave(subscription)
        subscription.view = None
        if not view.subscriptions:
            view.is_gone = True
            view.forget()
            self._active.pop(view, None)
            self._reads.waiting.pop(view, None)
            del self._views[view.key]
        if self._groups is not None and self._groups.left(subscription):
            self._look_again()

    def join(self, subscription: QueueSubscription) -> None:
        """Have a consumer asked again."""
        view = self._view_of(subscription)
        view.turns.join(subscription)
        self._active[view] = None

    @staticmethod
    def _view_of(subscription: QueueSubscription) -> View:
        view = subscription.view
        if not isinstance(view, View):
            raise TypeError(f"a subscription without a view: {view!r}")
        return view

    def resume(self) -> None:
        """Have every view look again."""
        self._active.update(dict.fromkeys(self._views.values()))

    def acknowledged(self, references: Sequence[MessageReference]) -> None:
        """Note that messages are deleted, or moved away."""
        self._taken.acknowledged([one.seq for one in references])
        self.answered(references)

    def answered(self, references: Sequence[MessageReference]) -> None:
        """Note that consumers have messages no more: they are deleted, or come back."""
        if self._groups is None:
            return
        self._queue.unmark(references)
        if self._groups.answered([one.seq for one in references]):
            self._look_again()

    def restored(self, references: Iterable[MessageReference]) -> None:
        """Note that messages are not deleted after all."""
        self._taken.restored([one.seq for one in references])

    def shed(self, size: int) -> int:
        """Forget what views found, up to ``size`` bytes or a little more; it is read again.

        Return how many bytes are missing.
        """
        for view in self._views.values():
            if size > 0 and view.bytes and not view.turns.is_wanted:
                size -= view.bytes
                view.forget()
        return size

    @property
    def holds(self) -> bool:
        """Whether it has anything in memory."""
        return bool(self.in_memory) or any(view.bytes for view in self._views.values())

    def all_in_memory(self) -> Iterable[MessageReference]:
        """Return the messages in memory that nobody has."""
        return (*self._here.all(), *self._returned.all())

    def newest(self) -> MessageReference | None:
        """Return the newest message in memory that was never delivered."""
        return self._here.newest()

    def leave(self, reference: MessageReference) -> None:
        """Leave the newest message to the table again."""
        self._here.take(reference.seq)

    def dissolve(self) -> tuple[list[MessageReference], list[MessageReference]]:
        """Return what is in memory and what was given back, and forget both."""
        for view in self._views.values():
            view.forget()
            view.is_gone = True
        self._active.clear()
        self._reads.waiting.clear()
        self._is_over = True  # what is still on its way to it means nothing
        return self._here.take_all(), self._returned.take_all()

    # --- delivering

    def dispatch(self) -> bool:
        """Deliver while a view finds something, and a consumer of it takes more.

        Return whether nothing is left to do but to wait.
        """
        self._work = AT_ONCE * MATCH_COST
        self.take_in()
        active = self._active
        while active and self._queue.may_go_on():
            if self._work <= 0:
                self._queue.go_on_later()
                return False
            view = next(iter(active))
            del active[view]
            if self._serve(view):
                active[view] = None
        self._reads.ask()
        return True

    def take_in(self) -> None:
        """Take what came to the queue."""
        came, returned = self._queue.take_in()
        for reference in came:
            self._here.add(reference)
        for reference in returned:
            self._returned.add(reference)
        if returned:
            before = min(one.seq for one in returned) - 1
            for view in self._views.values():
                view.returned_to = min(view.returned_to, before)
        if came or returned:
            self.resume()

    def _serve(self, view: View) -> bool:
        """Deliver one message of a view; return whether it is to have another turn."""
        if view.is_gone or not view.turns.is_wanted:
            return False
        seq = self._find(view)
        if seq is None:
            return self._work <= 0 and view not in self._reads.waiting
        subscription = view.turns.next()
        if subscription is None:
            return False
        self._views[view.key] = self._views.pop(view.key)  # others are asked first the next time
        reference = self._take(view, seq)
        self._work -= 1
        if reference is None:
            return True
        if self._groups is not None:
            said = Said(reference.record)
            if self._groups.delivered(said, seq, subscription):
                self._queue.mark_first(reference)
        subscription.deliver(reference)
        return True

    def _find(self, view: View) -> int | None:
        """Return the first message that a view wants; None if it has to wait, or to go on later."""
        returned, view.returned_to = self._look(view, self._returned, view.returned_to)
        here, view.in_memory_to = self._look(view, self._here, view.in_memory_to)
        if self._work <= 0:
            return None
        found = view.first_found(self._taken)
        nearest = min([one for one in (returned, here, found) if one is not None], default=None)
        if found is None and (nearest is None or nearest > view.horizon) and view.has_unread:
            self._reads.waiting[view] = None
            return None
        return nearest

    def _look(self, view: View, where: Resident, after: int) -> tuple[int | None, int]:
        """Return the first that a view wants, and up to where there is none."""
        for reference in where.behind(after):
            if view.takes_all:
                return reference.seq, after
            if self._work <= 0:
                break
            self._work -= MATCH_COST
            said = Said(reference.record)
            is_wanted = view.may_have(said)
            self._work -= said.searched // CHARACTERS_AT_COST
            if is_wanted:
                return reference.seq, after
            after = reference.seq
        return None, after

    def _take(self, view: View, seq: int) -> MessageReference | None:
        reference = self._returned.take(seq)
        if reference is not None:
            self._budget.unclaim(reference.size)
        else:
            reference = self._here.take(seq)
        if reference is None:
            reference = self._queue.loaded(view.let_go(seq))
            if view.takes_all:
                self._cursor.pass_to(seq)  # all before it was taken by this view or another
            if not self._cursor.unread and self._cursor.is_counted_whole:
                self._cursor.pass_to(self._cursor.tail_seq)  # and so was all behind it
        self._taken.take(seq)
        return self._queue.hand_out(reference)

    def plain_window_answered(self) -> None:
        """Note that a window came that the plain machine had asked for."""
        self._taken.answered(_PLAIN_WINDOW)
        self._forget_swept()

    # --- forgetting what was taken, and going back

    @property
    def _selects(self) -> bool:
        """Whether the plain machine could not do it."""
        if self._groups is not None:
            is_empty = not self._here and not self._returned and not self._cursor.unread
            return not (is_empty and self._groups.are_idle and not self._views)
        return any(view.selector is not None for view in self._views.values())

    def tidy(self) -> None:
        """Begin to forget what was acknowledged, if that is much, or all that is in the way.

        After whatever deletes it was appended.
        """
        if self._taken.may_sweep(soon=not self._selects):
            self._taken.begin_sweep()
            try:
                self._journal.append_unit(Unit(self._committed))
            except JournalClosed:
                return  # this node is ending
        elif not self._selects:
            self._go_back()

    def _committed(self) -> None:
        under_way: list[object] = self._reads.under_way
        if self._queue.reads_window():
            under_way.append(_PLAIN_WINDOW)
        self._taken.committed(under_way)
        self._forget_swept()

    def _forget_swept(self) -> None:
        gone = self._taken.swept()
        if gone:
            for view in self._views.values():
                for seq in view.found.keys() & gone:
                    view.let_go(seq)
        if not self._selects:
            self._go_back()

    def _go_back(self) -> None:
        """Go back to the plain machine, if all that was taken is where that looks for it."""
        if self._is_over:
            return
        first = self._here.first_seq
        last = self._taken.last_seq
        is_before = last <= self._cursor.read_seq or not self._cursor.is_paged
        if is_before and (first is None or last < first) and not self._reads.is_reading:
            self._queue.match_no_more()
