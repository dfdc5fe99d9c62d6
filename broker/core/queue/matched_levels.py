"""What a queue has of each priority while it delivers with ``matching``, and what comes to it."""

from collections.abc import Iterable
from typing import Final

from orthia.broker.core.api import MessageReference
from orthia.broker.core.limits.memory import MemoryBudget, size_in_memory
from orthia.broker.core.queue.groups import Groups
from orthia.broker.core.queue.levels import Level
from orthia.broker.core.queue.matched import Matched
from orthia.broker.core.queue.views import Look, Stretch, View
from orthia.broker.core.selectors import Said
from orthia.journal.model.message import DEFAULT_PRIORITY
from orthia.journal.model.windows import StoredMessage

MATCH_COST: Final = 4
"""How many deliveries matching a message is worth, where work is divided."""
CHARACTERS_AT_COST: Final = 32
"""How many characters that are searched are worth one delivery more."""
OPERATIONS_AT_COST: Final = 32
"""How many operations of a selector are worth one delivery more."""
_MATCHED_AT_ONCE: Final = 32
"""How many selectors a new message is matched against at once, fewer of those that do much."""


def cost_of_match(view: View, said: Said) -> int:
    """Return how many deliveries it was worth to match a message for a view."""
    selector = view.selector
    operations = 0 if selector is None else selector.operations
    return MATCH_COST + operations // OPERATIONS_AT_COST + said.searched // CHARACTERS_AT_COST


class MatchedLevels:
    """The messages of a queue that nobody has, by level; all calls on the loop's thread."""

    def __init__(self, queue: Matched, levels: Iterable[Level], budget: MemoryBudget) -> None:
        """Begin with no view; one of the ``levels`` is the queue's own."""
        self._queue = queue
        self._budget = budget
        self._views: dict[object, View] = {}
        self._active: dict[View, None] = {}
        """Views that may have something to do, in turn."""
        self._stretches: list[Stretch] = []
        """What there is of each level, the highest first."""
        self._by_id: dict[int, Stretch] = {}
        self._by_priority: dict[int, Stretch] = {}
        for level in levels:
            self.add_level(level)
        self._own = self._by_priority[DEFAULT_PRIORITY]
        self._groups: Groups | None = None

    @property
    def in_memory(self) -> int:
        """How many messages are in memory that nobody has."""
        return sum([len(one.here) + len(one.returned) for one in self._stretches])

    def add_level(self, level: Level) -> None:
        """Have messages of one more priority."""
        stretch = Stretch(level)
        at = sum(one.priority > level.priority for one in self._stretches)
        self._stretches.insert(at, stretch)
        self._by_id[level.id] = self._by_priority[level.priority] = stretch
        for view in self._views.values():
            view.add(at, stretch)

    def came(self, reference: MessageReference) -> None:
        """Have a new message in memory, of a level that is not the queue's own."""
        stretch = self._by_priority[reference.record.priority]
        stretch.is_used = True
        stretch.here.add(reference)
        self.resume()

    def take_out(self, stretch: Stretch, seq: int) -> MessageReference | None:
        """Take a message out of memory that nobody has; None if it is not there."""
        reference = stretch.returned.take(seq)
        if reference is None:
            return stretch.here.take(seq)
        self._budget.unclaim(reference.size)
        return reference

    def expire(self, message: StoredMessage, queue_id: int) -> None:
        """Move a message away that has expired, unless somebody has it."""
        seq, stretch = message.seq, self._by_id[queue_id]
        reference = self.take_out(stretch, seq)
        if reference is None:
            cursor = stretch.cursor
            if seq in stretch.taken or not cursor.read_seq < seq <= cursor.tail_seq:
                return  # somebody has it, or it waits to be delivered again
            if cursor.is_withheld(seq) or not cursor.is_counted(seq):
                return
            reference = self._queue.loaded(message, cursor)
        stretch.taken.take(seq)
        self._queue.move_expired(reference)

    def resume(self) -> None:
        """Have every view look again."""
        self._active.update(dict.fromkeys(self._views.values()))

    def restored(self, references: Iterable[MessageReference]) -> None:
        """Note that messages are not deleted after all."""
        seqs = [one.seq for one in references]
        for stretch in self._stretches:
            stretch.taken.restored(seqs)

    def left(self, reference: MessageReference, queue_id: int, tail_before: int) -> None:
        """Look at a new message that is left to the table, whose tail was at a place before.

        Views that have read all of it need no window for this one.
        """
        location = reference.location
        if location is None:
            return
        message = StoredMessage(reference.seq, 0, reference.record, location)
        said = Said(reference.record)
        work = _MATCHED_AT_ONCE * MATCH_COST
        stretch = self._by_id[queue_id]
        stretch.is_used = True
        place = self._stretches.index(stretch)
        for view in self._views.values():
            if not view.turns.is_wanted:
                continue  # it reads the message, when it comes to that
            self._active[view] = None
            look = view.looks[place]
            if look.horizon < tail_before:
                continue
            if work <= 0:
                continue  # it reads the message, too: others have their turns meanwhile
            is_wanted = self.is_for(view, said)
            work -= cost_of_match(view, said)
            if is_wanted:
                size = look.bytes + size_in_memory(reference.record)
                if look.found and size > self._queue.window_bytes():
                    continue
                self.keep(look, message)
            look.read_to = max(look.read_to, reference.seq)

    def keep(self, look: Look, message: StoredMessage) -> None:
        """Keep a message of the table that is wanted, until it is taken."""
        look.keep(message)
        self._queue.hold()

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
            for stretch in self._stretches
            for where in (stretch.here, stretch.returned)
            for one in where.all()
        ]

    def leave_newest(self) -> MessageReference | None:
        """Leave a message that was never delivered to the table again, and return it.

        The newest of the lowest level that has any in memory; None if that is not in the table.
        """
        for stretch in reversed(self._stretches):
            newest = stretch.here.newest()
            if newest is not None:
                if newest.location is None:
                    return None
                stretch.here.take(newest.seq)
                stretch.cursor.leave_again(newest.seq)
                return newest
        return None

    def take_oldest(self, delayed: MessageReference | None) -> MessageReference | None:
        """Take out the oldest message of the lowest level that has any.

        Return ``delayed``, which is not here, if it comes before that; None if the oldest is in
        the table, or if there is none.
        """
        self.take_in()
        level = None if delayed is None else self._stretch_of(delayed)
        for stretch in reversed(self._stretches):
            here, back = stretch.here.first_seq, stretch.returned.first_seq
            first = min([one for one in (here, back) if one is not None], default=None)
            if delayed is not None and stretch is level and (first is None or delayed.seq < first):
                return delayed
            if back is not None and (here is None or back < here):
                reference = stretch.returned.take(back)
                if reference is not None:
                    self._budget.unclaim(reference.size)
                stretch.taken.acknowledged((back,))
                return reference
            if here is not None:
                return stretch.here.take(here)
            if stretch.cursor.is_paged:
                return None
        return None

    def drop(self, queue_id: int, seq: int) -> bool:
        """Have nobody get a message of the table that is to be deleted; False if somebody has."""
        taken = self._by_id[queue_id].taken
        if seq in taken:
            return False
        taken.take(seq)
        taken.acknowledged((seq,))
        return True

    def take_in(self) -> None:
        """Take what came to the queue."""
        came, returned = self._queue.take_in()
        for reference in came:
            self._own.here.add(reference)
        back: dict[Stretch, list[int]] = {}
        for reference in returned:
            stretch = self._stretch_of(reference)
            stretch.returned.add(reference)
            back.setdefault(stretch, []).append(reference.seq)
        for stretch, seqs in back.items():
            seqs.sort()  # once for all views, of which there may be many
            place = self._stretches.index(stretch)
            for view in self._views.values():
                view.looks[place].came_back(seqs)
        if came or returned:
            self.resume()

    def _stretch_of(self, reference: MessageReference) -> Stretch:
        """Return where a message belongs that was delivered before."""
        if reference.seq in self._own.taken:
            return self._own  # stored there while the queue was another kind
        return self._by_priority.get(reference.record.priority, self._own)

    def takes_all(self, view: View) -> bool:
        """Return whether a view wants, and may have, every message."""
        return view.selector is None and self._groups is None

    def is_for(self, view: View, said: Said) -> bool:
        """Return whether a view wants a message, and may have it."""
        if not view.wants(said):
            return False
        groups = self._groups
        if groups is None:
            return True
        (subscription,) = view.subscriptions
        return groups.admits(groups.of(said), subscription)
