"""Delivery out of the middle of a queue: to consumers that do not want every message.

A queue delivers by this module while it has such a consumer, and otherwise in the plain way: by
``dispatcher``, from the head.
Consumers with the same selector share a *view*, which goes through the queue on its own, however
long the queue is and whatever other views do: so a message that one does not want is in nobody's
way. What a view takes out is *taken*, and no other view gets it; given back, it is offered to every
view again. Each gets what it wants in the order of the queue: what it wants of a higher priority
before all of a lower one, and within one by seq.

A queue with messages of several priorities delivers with it, too. A view looks at its levels one
after the other, and at the next only when it has found out that there is nothing for it in those
above.
"""

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Final

from orthia.broker.core.api import MessageReference
from orthia.broker.core.limits.memory import MemoryBudget
from orthia.broker.core.queue.dispatcher import AT_ONCE
from orthia.broker.core.queue.groups import Groups
from orthia.broker.core.queue.levels import Level
from orthia.broker.core.queue.matched import Matched
from orthia.broker.core.queue.matched_levels import MATCH_COST, MatchedLevels, cost_of_match
from orthia.broker.core.queue.matching_reads import MatchingReads
from orthia.broker.core.queue.resident import Resident
from orthia.broker.core.queue.subscriptions import Subscription
from orthia.broker.core.queue.views import Look, Stretch, View
from orthia.broker.core.selectors import Said, Selector
from orthia.broker.core.slices import Slices
from orthia.journal.abc import MessageJournal
from orthia.journal.errors import JournalClosed
from orthia.journal.model.unit import Unit

_PLAIN_WINDOW: Final = "plain window"
_EXPIRY_LOOK: Final = "expiry look"
QueueSubscription = Subscription[MessageReference]


class Matching(MatchedLevels):
    """The views of a queue; all calls on the loop's thread."""

    def __init__(
        self,
        queue: Matched,
        levels: Iterable[Level],
        journal: MessageJournal,
        budget: MemoryBudget,
        slices: Slices,
        *,
        window_messages: int,
    ) -> None:
        """Begin with no view, and with nothing: ``dispatch`` takes over what the queue has.

        One of the ``levels`` is the queue's own.
        """
        super().__init__(queue, levels, budget)
        self._journal = journal
        self._reads = MatchingReads(
            queue, self, journal, budget, slices, window_messages=window_messages
        )
        self._work = 0
        self._is_over = False

    # --- what the queue asks

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
            view = self._views[key] = View(key, selector, turns, self._stretches, self._budget)
        subscription.view = view
        view.subscriptions[subscription] = None
        self.join(subscription)

    def group(self, groups: Groups) -> None:
        """Have groups from here on, of which no consumer has a message yet."""
        if self._groups is not None:
            return
        self._groups = groups
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
        else:
            self._active[view] = None  # another consumer may be the one that is asked
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

    def acknowledged(self, references: Sequence[MessageReference]) -> None:
        """Note that messages are deleted, or moved away."""
        seqs = [one.seq for one in references]
        for stretch in self._stretches:
            stretch.taken.acknowledged(seqs)
        self.answered(references)

    def answered(self, references: Sequence[MessageReference]) -> None:
        """Note that consumers have messages no more: they are deleted, or come back."""
        if self._groups is None:
            return
        self._queue.unmark(references)
        if self._groups.answered([one.seq for one in references]):
            self._look_again()

    def dissolve(self) -> tuple[list[MessageReference], list[MessageReference]]:
        """Return what is in memory and what was given back, and forget both."""
        for view in self._views.values():
            view.forget()
            view.is_gone = True
        self._active.clear()
        self._reads.waiting.clear()
        self._is_over = True  # what is still on its way to it means nothing
        here = [one for stretch in self._stretches for one in stretch.here.take_all()]
        return here, [one for stretch in self._stretches for one in stretch.returned.take_all()]

    # --- delivering

    def dispatch(self) -> bool:
        """Deliver while a view finds something, and a consumer of it takes more.

        Return whether nothing is left to do but to wait.
        """
        self._work = AT_ONCE * MATCH_COST
        self.take_in()
        active = self._active
        while True:
            while active and self._queue.may_go_on():
                if self._work <= 0:
                    self._queue.go_on_later()
                    return False
                view = next(iter(active))
                del active[view]
                if self._serve(view):
                    active[view] = None
            self._reads.ask()  # after which views may look at their next levels
            if not active or not self._queue.may_go_on():
                return True

    def _serve(self, view: View) -> bool:
        """Deliver one message of a view; return whether it is to have another turn."""
        if view.is_gone or not view.turns.is_wanted:
            return False
        found = self._find(view)
        if found is None:
            return self._work <= 0
        subscription = view.turns.next()
        if subscription is None:
            return False
        self._views[view.key] = self._views.pop(view.key)  # others are asked first the next time
        look, seq = found
        reference = self._take(view, look, seq)
        self._work -= 1
        if reference is None:
            return True
        if self._groups is not None:
            said = Said(reference.record)
            if self._groups.delivered(said, seq, subscription):
                self._queue.mark_first(reference)
        subscription.deliver(reference)
        return True

    def _find(self, view: View) -> tuple[Look, int] | None:
        """Return the first message that a view wants; None if it has to wait, or to go on later."""
        waiting = self._reads.waiting
        for look in view.looks:
            seq = self._find_in(view, look)
            if seq is not None:
                return look, seq
            if self._work <= 0:
                return None
            if waiting.get(view) is look:
                if look.has_unread:
                    return None
                del waiting[view]  # what it waited for others took, or there was nothing
        return None

    def _find_in(self, view: View, look: Look) -> int | None:
        stretch = look.stretch
        returned = self._first_again(view, look)
        if returned is None:
            returned, look.returned_to = self._first(view, stretch.returned, look.returned_to)
        here, look.in_memory_to = self._first(view, stretch.here, look.in_memory_to)
        if self._work <= 0:
            return None
        found = self._found(view, look)
        nearest = min([one for one in (returned, here, found) if one is not None], default=None)
        if found is None and (nearest is None or nearest > look.horizon) and look.has_unread:
            self._reads.waiting[view] = look
            return None
        return nearest

    def _first_again(self, view: View, look: Look) -> int | None:
        """Return the first that a view wants of what came back where it had looked already."""
        while self._work > 0 and (reference := look.first_again()) is not None:
            if self._is_wanted(view, reference):
                return reference.seq
            look.is_not_wanted()
        return None

    def _is_wanted(self, view: View, reference: MessageReference) -> bool:
        """Match a message, and count the work."""
        said = Said(reference.record)
        is_wanted = self.is_for(view, said)
        self._work -= cost_of_match(view, said)
        return is_wanted

    def _first(self, view: View, where: Resident, after: int) -> tuple[int | None, int]:
        """Return the first that a view wants, and up to where there is none."""
        last = where.last_seq
        if last is None or last <= after:
            return None, after
        for reference in where.behind(after):
            if self.takes_all(view):
                return reference.seq, reference.seq - 1
            if self._work <= 0:
                break
            if self._is_wanted(view, reference):
                return reference.seq, reference.seq - 1
            after = reference.seq
        else:
            after = last  # also past what others took: that is looked at again if it comes back
        return None, after

    def _found(self, view: View, look: Look) -> int | None:
        while look.found:
            seq, message = next(iter(look.found.items()))
            if seq not in look.stretch.taken and (
                self._groups is None or self.is_for(view, Said(message.record))
            ):
                return seq
            look.let_go(seq)  # another view was first, with this message or with its group
        return None

    def _take(self, view: View, look: Look, seq: int) -> MessageReference | None:
        stretch = look.stretch
        reference = self.take_out(stretch, seq)
        if reference is None:
            cursor = stretch.cursor
            reference = self._queue.loaded(look.let_go(seq), cursor)
            if self.takes_all(view):
                cursor.pass_to(seq)  # all before it was taken by this view or another
            if not cursor.unread and cursor.is_counted_whole:
                cursor.pass_to(cursor.tail_seq)  # and so was all behind it
        stretch.taken.take(seq)
        return self._queue.hand_out(reference)

    # --- what is read

    @property
    def knows_groups(self) -> bool:
        """Whether groups are kept together."""
        return self._groups is not None

    def look(self, view: View) -> None:
        """Have a view look for something to deliver."""
        self._active[view] = None

    def answered_window(self, window: object) -> None:
        """Note that all of a window, or of another read, was looked at."""
        for stretch in self._stretches:
            stretch.taken.answered(window)

    def plain_window_answered(self) -> None:
        """Note that a window came that the plain delivery had asked for."""
        self.answered_window(_PLAIN_WINDOW)
        self.forget_swept()

    # --- forgetting what was taken, and going back

    @property
    def _selects(self) -> bool:
        """Whether the plain delivery could not do it."""
        if any(not one.is_idle for one in self._stretches if one is not self._own):
            return True
        if self._groups is not None:
            own = self._own
            is_empty = not own.here and not own.returned and not own.cursor.unread
            return not (is_empty and self._groups.are_idle and not self._views)
        return any(view.selector is not None for view in self._views.values())

    def tidy(self) -> None:
        """Begin to forget what was acknowledged, if that is much, or all that is in the way.

        After whatever deletes it was appended.
        """
        selects, begun = self._selects, False
        for stretch in self._stretches:
            if stretch.taken.may_sweep(soon=not selects):
                begun = True
                stretch.taken.begin_sweep()
                swept = Unit(partial(self._committed, stretch), behind_all=True)
                try:
                    self._journal.append_unit(swept)
                except JournalClosed:
                    return  # this node is ending
        if not begun and not selects:
            self._go_back()

    def _committed(self, swept: Stretch) -> None:
        if swept is self._own:
            # So much was acknowledged without any message of another priority, if there is none.
            for stretch in self._stretches:
                stretch.is_used = False
        under_way: list[object] = [self._reads.last_asked] if self._reads.is_reading else []
        if self._queue.reads_window():
            under_way.append(_PLAIN_WINDOW)
        look = self._queue.expiry_look
        if look.is_under_way:
            under_way.append(_EXPIRY_LOOK)
            look.after(self._expiry_looked_at)
        swept.taken.committed(under_way)
        self.forget_swept()

    def _expiry_looked_at(self) -> None:
        self.answered_window(_EXPIRY_LOOK)
        self.forget_swept()

    def forget_swept(self) -> None:
        """Forget what was taken and can be met no more."""
        for place, stretch in enumerate(self._stretches):
            gone = stretch.taken.swept()
            if gone:
                for view in self._views.values():
                    look = view.looks[place]
                    for seq in look.found.keys() & gone:
                        look.let_go(seq)
        if not self._selects:
            self._go_back()
        if self._is_over:
            self._queue.resume()  # nobody else tells the plain delivery to begin

    def _go_back(self) -> None:
        """Go back to the plain delivery, if all that was taken is where that looks for it."""
        if self._is_over:
            return
        own = self._own
        first, last = own.here.first_seq, own.taken.last_seq
        # All that was taken is before what that looks at, in the table and in memory.
        is_before = last is None or (
            (last <= own.cursor.read_seq or not own.cursor.is_paged)
            and (first is None or last < first)
        )
        if is_before and not self._reads.is_reading:
            self._queue.match_no_more()
