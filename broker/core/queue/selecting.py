# mypyc compiles this module.
"""Delivery out of the middle of a queue: to consumers that do not want every message.

A queue delivers by this module while it has such a consumer, and otherwise by ``head``.
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

from typing_extensions import override

from orthia.broker.core.api import Consumer, MessageReference
from orthia.broker.core.limits.memory import size_in_memory
from orthia.broker.core.queue.delivery import DeliveringQueue, Delivery
from orthia.broker.core.queue.groups import Groups
from orthia.broker.core.queue.levels import Level
from orthia.broker.core.queue.pace import AT_ONCE
from orthia.broker.core.queue.refill import Refill
from orthia.broker.core.queue.resident import Resident
from orthia.broker.core.queue.selecting_reads import SelectingReads
from orthia.broker.core.queue.subscriptions import QueueSubscription
from orthia.broker.core.queue.views import PriorityLane, ScanPosition, View
from orthia.broker.core.selectors import MessageProperties, Selector
from orthia.journal.errors import JournalClosed
from orthia.journal.model.message import DEFAULT_PRIORITY
from orthia.journal.model.unit import Unit
from orthia.journal.model.windows import StoredMessage

_PLAIN_WINDOW: Final = "plain window"
MATCH_COST: Final = 4
"""How many deliveries matching a message is worth, where work is divided."""
CHARACTERS_AT_COST: Final = 32
"""How many characters that are searched are worth one delivery more."""
OPERATIONS_AT_COST: Final = 32
"""How many operations of a selector are worth one delivery more."""
_MATCHED_AT_ONCE: Final = 32
"""How many selectors a new message is matched against at once, fewer of those that do much."""


def cost_of_match(view: View, properties: MessageProperties) -> int:
    """Return how many deliveries it was worth to match a message for a view."""
    selector = view.selector
    operations = 0 if selector is None else selector.operations
    return MATCH_COST + operations // OPERATIONS_AT_COST + properties.searched // CHARACTERS_AT_COST


class SelectingDelivery(Delivery):
    """The views of a queue; all calls on the loop's thread."""

    __slots__ = (
        "_active", "_budget", "_by_id", "_by_priority", "_consumers", "_gate", "_groups",
        "_is_over", "_is_permanent", "_journal", "_lanes", "_log", "_look", "_own", "_pace",
        "_queue", "_reads", "_refill", "_unsettled", "_views", "_work",
    )  # fmt: skip

    def __init__(
        self,
        queue: DeliveringQueue,
        refill: Refill,
        *,
        is_permanent: bool,
    ) -> None:
        """Begin with no view, and with nothing: ``dispatch`` takes over what the queue has.

        If it ``is_permanent``, messages are removed from the middle whatever consumers want.
        """
        self._queue = queue
        services = queue.services
        self._log = queue.log
        self._unsettled = queue.unsettled
        self._consumers = queue.takers
        self._pace = queue.pace
        self._refill = refill
        self._is_permanent = is_permanent
        self._budget = services.budget
        self._gate = services.gate
        self._journal = services.journal
        self._look = services.disposal.look
        self._views: dict[object, View] = {}
        self._active: dict[View, None] = {}
        """Views that may have something to do, in turn."""
        self._lanes: list[PriorityLane] = []
        """What there is of each level, the highest first."""
        self._by_id: dict[int, PriorityLane] = {}
        self._by_priority: dict[int, PriorityLane] = {}
        for level in queue.log.all_levels():
            self.add_level(level)
        self._own = self._by_priority[DEFAULT_PRIORITY]
        self._groups: Groups | None = None
        self._reads = SelectingReads(queue, self, refill)
        self._work = 0
        self._is_over = False

    # --- the messages that nobody has, by level

    @property
    def in_memory(self) -> int:
        """How many messages are in memory that nobody has."""
        return sum([len(one.here) + len(one.returned) for one in self._lanes])

    def add_level(self, level: Level) -> None:
        """Add the messages of one more priority."""
        lane = PriorityLane(level)
        at = sum(one.priority > level.priority for one in self._lanes)
        self._lanes.insert(at, lane)
        self._by_id[level.id] = self._by_priority[level.priority] = lane
        for view in self._views.values():
            view.add(at, lane)

    def came(self, reference: MessageReference) -> None:
        """Take a new message in memory, of a level that is not the queue's own."""
        lane = self._by_priority[reference.record.priority]
        lane.is_used = True
        lane.here.add(reference)
        self.resume()

    def take_out(self, lane: PriorityLane, seq: int) -> MessageReference | None:
        """Take a message out of memory that nobody has; None if it is not there."""
        reference = lane.returned.take(seq)
        if reference is None:
            return lane.here.take(seq)
        self._budget.unclaim(reference.size)
        return reference

    def expire(self, message: StoredMessage, queue_id: int) -> None:
        """Move a message away that has expired, unless somebody has it."""
        reference = self.take_stored(message, queue_id)
        if reference is not None:
            self._queue.move_expired(reference)

    def take_stored(self, message: StoredMessage, queue_id: int) -> MessageReference | None:
        """Take a message out, wherever it is; None if somebody has it, or had it."""
        seq, lane = message.seq, self._by_id[queue_id]
        reference = self.take_out(lane, seq)
        if reference is None:
            cursor = lane.cursor
            if seq in lane.taken or not cursor.read_seq < seq <= cursor.tail_seq:
                return None  # somebody has it, or it waits to be delivered again
            if cursor.is_withheld(seq) or not cursor.is_counted(seq):
                return None
            reference = self._unsettled.load(message, cursor)
        lane.taken.take(seq)
        return reference

    def note_taken(self, queue_id: int, seq: int) -> None:
        """Leave a message out of windows that comes back beside them."""
        self._by_id[queue_id].taken.take(seq)

    def take_from_memory(self, seq: int) -> MessageReference | None:
        """Take a message out of memory that nobody has; None if it is not there."""
        for lane in self._lanes:
            reference = self.take_out(lane, seq)
            if reference is not None:
                lane.taken.take(seq)
                return reference
        return None

    def skip_read(self) -> None:
        """Pass to the end of each level of which nothing is left in the table."""
        for lane in self._lanes:
            cursor = lane.cursor
            if cursor.is_paged and not cursor.unread and cursor.is_counted_whole:
                cursor.pass_to(cursor.tail_seq)

    @override
    def resume(self) -> None:
        self._active.update(dict.fromkeys(self._views.values()))

    def restored(self, references: Iterable[MessageReference]) -> None:
        """Note that messages are not deleted after all."""
        seqs = [one.seq for one in references]
        for lane in self._lanes:
            lane.taken.restored(seqs)

    def left(self, reference: MessageReference, queue_id: int, tail_before: int) -> None:
        """Look at a new message that is left to the table, whose tail was at a place before.

        Views that have read all of it need no window for this one.
        """
        location = reference.location
        if location is None:
            return
        message = StoredMessage(reference.seq, 0, reference.record, location)
        properties = MessageProperties(reference.record)
        work = _MATCHED_AT_ONCE * MATCH_COST
        lane = self._by_id[queue_id]
        lane.is_used = True
        place = self._lanes.index(lane)
        for view in self._views.values():
            if not view.turns.is_wanted:
                continue  # it reads the message, when it comes to that
            self._active[view] = None
            position = view.positions[place]
            if position.horizon < tail_before:
                continue
            if work <= 0:
                continue  # it reads the message, too: others have their turns meanwhile
            is_wanted = self.is_for(view, properties)
            work -= cost_of_match(view, properties)
            if is_wanted:
                size = position.bytes + size_in_memory(reference.record)
                if position.found and size > self._refill.window_bytes():
                    continue
                self.keep(position, message)
            position.read_to = max(position.read_to, reference.seq)

    def keep(self, position: ScanPosition, message: StoredMessage) -> None:
        """Keep a message of the table that is wanted, until it is taken."""
        position.keep(message)
        self._log.hold()

    def shed(self, size: int) -> int:
        """Forget what views found, up to ``size`` bytes or a little more; it is read again.

        Return how many bytes are missing.
        """
        for view in self._views.values():
            kept = view.bytes
            if size > 0 and kept and not view.turns.is_wanted:
                size -= kept
                view.forget()
        return size

    @property
    def holds(self) -> bool:
        """Whether it has anything in memory."""
        return bool(self.in_memory) or any(view.bytes for view in self._views.values())

    def all_in_memory(self) -> Iterable[MessageReference]:
        """Return the messages in memory that nobody has."""
        return [
            one
            for lane in self._lanes
            for where in (lane.here, lane.returned)
            for one in where.all()
        ]

    def first_ones(self) -> Iterable[MessageReference]:
        """Return the oldest message in memory that nobody has, of each level."""
        found = [
            where.get(where.first_seq)
            for lane in self._lanes
            for where in (lane.here, lane.returned)
            if where.first_seq is not None
        ]
        return [one for one in found if one is not None]

    def leave_newest(self) -> MessageReference | None:
        """Leave a message that was never delivered to the table again, and return it.

        The newest of the lowest level that has any in memory; None if that is not in the table.
        """
        for lane in reversed(self._lanes):
            newest = lane.here.newest()
            if newest is not None:
                if newest.location is None:
                    return None
                lane.here.take(newest.seq)
                lane.cursor.leave_again(newest.seq)
                return newest
        return None

    def take_oldest(self, delayed: MessageReference | None) -> MessageReference | None:
        """Take out the oldest message of the lowest level that has any.

        Return ``delayed``, which is not here, if it comes before that; None if the oldest is in
        the table, or if there is none.
        """
        self.take_in()
        level = None if delayed is None else self._lane_of(delayed)
        for lane in reversed(self._lanes):
            here, back = lane.here.first_seq, lane.returned.first_seq
            first = min([one for one in (here, back) if one is not None], default=None)
            if delayed is not None and lane is level and (first is None or delayed.seq < first):
                return delayed
            if back is not None and (here is None or back < here):
                reference = lane.returned.take(back)
                if reference is not None:
                    self._budget.unclaim(reference.size)
                lane.taken.acknowledged((back,))
                return reference
            if here is not None:
                return lane.here.take(here)
            if lane.cursor.is_paged:
                return None
        return None

    def drop(self, queue_id: int, seq: int) -> bool:
        """Give a message of the table to nobody, for it is deleted; False if a consumer has it."""
        taken = self._by_id[queue_id].taken
        if seq in taken:
            return False
        taken.take(seq)
        taken.acknowledged((seq,))
        return True

    def take_in(self) -> None:
        """Take over what came into memory, and what was given back."""
        ready, given_back = self._log.ready, self._unsettled.returned
        came, returned = list(ready), [reference for _, reference in given_back]
        ready.clear()
        given_back.clear()
        for reference in came:
            self._own.here.add(reference)
        back: dict[PriorityLane, list[int]] = {}
        for reference in returned:
            lane = self._lane_of(reference)
            lane.returned.add(reference)
            back.setdefault(lane, []).append(reference.seq)
        for lane, seqs in back.items():
            seqs.sort()  # once for all views, of which there may be many
            place = self._lanes.index(lane)
            for view in self._views.values():
                view.positions[place].came_back(seqs)
        if came or returned:
            self.resume()

    def _lane_of(self, reference: MessageReference) -> PriorityLane:
        """Return where a message belongs that was delivered before."""
        if reference.seq in self._own.taken:
            return self._own  # stored there while the queue was another kind
        return self._by_priority.get(reference.record.priority, self._own)

    def takes_all(self, view: View) -> bool:
        """Return whether a view wants, and may have, every message."""
        return view.selector is None and self._groups is None

    def is_for(self, view: View, properties: MessageProperties) -> bool:
        """Return whether a view wants a message, and may have it."""
        if not view.wants(properties):
            return False
        groups = self._groups
        if groups is None:
            return True
        (subscription,) = view.subscriptions
        return groups.admits(groups.of(properties), subscription)

    # --- what is removed, whatever consumers want

    def remove(self, seq: int) -> MessageReference | None:
        """Return a message in memory that nobody has, and is no more; None if it is not there."""
        own = self._own
        reference = self.take_out(own, seq)
        if reference is not None:
            own.taken.take(seq)
        return reference

    def is_taken(self, seq: int) -> bool:
        """Return whether a message is somebody's, or was."""
        return seq in self._own.taken

    def pass_over(self, seq: int) -> bool:
        """Stop counting a message of the table; return whether it was counted there."""
        cursor, taken = self._own.cursor, self._own.taken
        if seq in taken or not cursor.read_seq < seq <= cursor.tail_seq:
            return False
        taken.take(seq)
        taken.acknowledged((seq,))
        if not cursor.is_counted(seq):
            return False
        cursor.unread -= 1
        if not cursor.unread and cursor.is_counted_whole:
            cursor.pass_to(cursor.tail_seq)  # there is nothing to read
        return True

    # --- what the queue asks

    @override
    def attach(
        self,
        consumer: Consumer,
        prefetch: int,
        max_bytes: int,
        selector: Selector | None,
    ) -> QueueSubscription:
        subscription = self._consumers.add(consumer, prefetch, max_bytes)
        self.add(subscription, selector)
        return subscription

    def add(self, subscription: QueueSubscription, selector: Selector | None) -> None:
        """Deliver to a consumer what its selector matches."""
        self._add(subscription, selector)
        if self._groups is not None and self._groups.came():
            self._look_again()

    def _add(self, subscription: QueueSubscription, selector: Selector | None) -> None:
        # Where there are groups each has messages that are for it alone.
        key = selector if self._groups is None else subscription
        view = self._views.get(key)
        if view is None:
            turns = self._consumers.make_turns()
            view = self._views[key] = View(key, selector, turns, self._lanes, self._budget)
        subscription.view = view
        view.subscriptions[subscription] = None
        self.join(subscription)

    def group(self, groups: Groups) -> None:
        """Keep groups together from here on; no consumer has a message of one yet."""
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

    def regroup(self, groups: Groups | None) -> None:
        """Keep groups together otherwise, or no more; while there is no consumer."""
        self._groups = groups

    @property
    def has_groups(self) -> bool:
        """Whether it knows of groups."""
        return self._groups is not None

    def _look_again(self) -> None:
        """Let all views begin anew: what was not for one may be now."""
        for view in self._views.values():
            view.look_again()
        self.resume()

    @override
    def detach(self, subscription: QueueSubscription) -> None:
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

    @override
    def join(self, subscription: QueueSubscription) -> None:
        view = self._view_of(subscription)
        view.turns.join(subscription)
        self._active[view] = None

    def is_looking_for(self, subscription: QueueSubscription) -> bool:
        """Return whether something may still be found for a consumer."""
        view = subscription.view
        return isinstance(view, View) and (view in self._active or view in self._reads.waiting)

    @staticmethod
    def _view_of(subscription: QueueSubscription) -> View:
        view = subscription.view
        if not isinstance(view, View):
            raise TypeError(f"a subscription without a view: {view!r}")
        return view

    def acknowledged(self, references: Sequence[MessageReference]) -> None:
        """Note that messages are deleted, or moved away."""
        seqs = [one.seq for one in references]
        for lane in self._lanes:
            lane.taken.acknowledged(seqs)
        self.answered(references)

    def answered(self, references: Sequence[MessageReference]) -> None:
        """Note that messages have left their consumers: they are deleted, or come back."""
        if self._groups is None:
            return
        self._groups.unmark(references)
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
        here = [one for lane in self._lanes for one in lane.here.take_all()]
        return here, [one for lane in self._lanes for one in lane.returned.take_all()]

    # --- delivering

    @override
    def dispatch(self) -> bool:
        pace = self._pace
        if pace.is_blocked(self._queue):
            return False
        pace.is_delivering = True
        try:
            is_done = self._deliver()
        finally:
            pace.is_delivering = False
        self.tidy()
        return is_done

    def _deliver(self) -> bool:
        """Deliver while a view finds something, and a consumer of it takes more.

        Return whether nothing is left to do but to wait.
        """
        self._work = AT_ONCE * MATCH_COST
        self.take_in()
        active = self._active
        while True:
            while active and self._gate.may_deliver(self._queue):
                if self._work <= 0:
                    if not self._pace.has_no_room(self._queue):
                        self._pace.go_on_later(self._queue.dispatch)
                    return False
                view = next(iter(active))
                del active[view]
                if self._serve(view):
                    active[view] = None
            self._reads.ask()  # after which views may look at their next levels
            if not active or not self._gate.may_deliver(self._queue):
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
        position, seq = found
        reference = self._take(view, position, seq)
        self._work -= 1
        if reference is None:
            return True
        if self._groups is not None:
            properties = MessageProperties(reference.record)
            if self._groups.delivered(properties, seq, subscription):
                self._groups.mark_first(reference)
        subscription.deliver(reference)
        return True

    def _find(self, view: View) -> tuple[ScanPosition, int] | None:
        """Return the first message that a view wants; None if it has to wait, or to go on later."""
        waiting = self._reads.waiting
        for position in view.positions:
            seq = self._find_in(view, position)
            if seq is not None:
                return position, seq
            if self._work <= 0:
                return None
            if waiting.get(view) is position:
                if position.has_unread:
                    return None
                del waiting[view]  # what it waited for others took, or there was nothing
        return None

    def _find_in(self, view: View, position: ScanPosition) -> int | None:
        lane = position.lane
        returned = self._first_again(view, position)
        if returned is None:
            returned, position.returned_to = self._first(view, lane.returned, position.returned_to)
        here, position.in_memory_to = self._first(view, lane.here, position.in_memory_to)
        if self._work <= 0:
            return None
        found = self._found(view, position)
        nearest = min([one for one in (returned, here, found) if one is not None], default=None)
        if (
            found is None
            and (nearest is None or nearest > position.horizon)
            and position.has_unread
        ):
            self._reads.waiting[view] = position
            return None
        return nearest

    def _first_again(self, view: View, position: ScanPosition) -> int | None:
        """Return the first that a view wants of what came back where it had looked already."""
        while self._work > 0 and (reference := position.first_again()) is not None:
            if self._is_wanted(view, reference):
                return reference.seq
            position.is_not_wanted()
        return None

    def _is_wanted(self, view: View, reference: MessageReference) -> bool:
        """Match a message, and count the work."""
        properties = MessageProperties(reference.record)
        is_wanted = self.is_for(view, properties)
        self._work -= cost_of_match(view, properties)
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

    def _found(self, view: View, position: ScanPosition) -> int | None:
        while position.found:
            seq, message = next(iter(position.found.items()))
            if seq not in position.lane.taken and (
                self._groups is None or self.is_for(view, MessageProperties(message.record))
            ):
                return seq
            position.let_go(seq)  # another view was first, with this message or with its group
        return None

    def _take(self, view: View, position: ScanPosition, seq: int) -> MessageReference | None:
        lane = position.lane
        reference = self.take_out(lane, seq)
        if reference is None:
            cursor = lane.cursor
            reference = self._unsettled.load(position.let_go(seq), cursor)
            if self.takes_all(view):
                cursor.pass_to(seq)  # all before it was taken by this view or another
            if not cursor.unread and cursor.is_counted_whole:
                cursor.pass_to(cursor.tail_seq)  # and so was all behind it
        lane.taken.take(seq)
        return self._queue.hand_out(reference)

    # --- what is read

    @property
    def knows_groups(self) -> bool:
        """Whether groups are kept together."""
        return self._groups is not None

    def wake(self, view: View) -> None:
        """Let a view look for something to deliver."""
        self._active[view] = None

    def answered_window(self, window: object) -> None:
        """Note that all of a window, or of another read, was looked at."""
        for lane in self._lanes:
            lane.taken.answered(window)

    def plain_window_answered(self) -> None:
        """Note that a window came that the plain delivery had asked for."""
        self.answered_window(_PLAIN_WINDOW)
        self.forget_swept()

    # --- forgetting what was taken, and going back

    @property
    def _selects(self) -> bool:
        """Whether the delivery from the head could not do it."""
        if self._is_permanent or self._queue.picking:
            return True
        if any(not one.is_idle for one in self._lanes if one is not self._own):
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
        for lane in self._lanes:
            if lane.taken.may_sweep(soon=not selects):
                begun = True
                lane.taken.begin_sweep()
                swept = Unit(partial(self._committed, lane), behind_all=True)
                try:
                    self._journal.append_unit(swept)
                except JournalClosed:
                    return  # this node is ending
        if not begun and not selects:
            self._go_back()

    def _committed(self, swept: PriorityLane) -> None:
        if swept is self._own:
            # So much was acknowledged without any message of another priority, if there is none.
            for lane in self._lanes:
                lane.is_used = False
        under_way: list[object] = [self._reads.last_asked] if self._reads.is_reading else []
        if self._refill.is_reading:
            under_way.append(_PLAIN_WINDOW)
        if self._look.is_under_way:
            look = object()
            under_way.append(look)
            self._look.after(partial(self._looked_at, look))
        swept.taken.committed(under_way)
        self.forget_swept()

    def _looked_at(self, look: object) -> None:
        self.answered_window(look)
        self.forget_swept()

    def forget_swept(self) -> None:
        """Forget taken messages that no scan can meet again."""
        for place, lane in enumerate(self._lanes):
            gone = lane.taken.swept()
            if gone:
                for view in self._views.values():
                    position = view.positions[place]
                    for seq in position.found.keys() & gone:
                        position.let_go(seq)
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
            self._queue.deliver_from_head()
