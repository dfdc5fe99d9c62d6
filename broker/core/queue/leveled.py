# mypyc compiles this module.
"""A stored queue as far as it has messages of several priorities; see ``levels``."""

from collections.abc import Collection, Sequence
from typing import ClassVar, Protocol

from typing_extensions import override

from orthia.broker.core.api import Done, MessageReference
from orthia.broker.core.limits.memory import MESSAGE_OVERHEAD, size_in_store
from orthia.broker.core.queue.cursor import Cursor
from orthia.broker.core.queue.levels import Level, Levels, bind
from orthia.broker.core.queue.redelivery import keep_attempts
from orthia.broker.core.queue.selective import SelectiveQueue
from orthia.broker.quoting import quoted
from orthia.config.address_settings import RoutingType
from orthia.journal.model.codec import QueueBinding
from orthia.journal.model.message import DEFAULT_PRIORITY, RECORD_OVERHEAD


class _LevelCounts(Protocol):
    """Counts levels as queues."""

    def refuse_for_broker(self, user: str | None, named: str) -> None:
        """Raise LimitExceeded if there must not be one more."""

    def opened(self, user: str | None) -> None:
        """Count one."""


class LeveledQueue(SelectiveQueue):
    """A queue that has levels once a message of another priority comes; on the loop's thread."""

    __slots__ = ("_creations", "durable", "routing_type", "user")

    has_levels: ClassVar[bool] = True
    """Whether it keeps messages of each priority by themselves."""
    durable: bool
    user: str | None
    """Who had it created."""
    routing_type: RoutingType

    def count_levels(self, creations: _LevelCounts) -> None:
        """Count each level as a queue; call this before a level is created."""
        self._creations = creations

    @property
    def ids(self) -> Collection[int]:
        """What its messages are stored under."""
        levels = self._levels
        return (self.id,) if levels is None else [one.id for one in levels.highest_first]

    def id_for_client(self, priority: int) -> int:
        """Return what a client's messages of a priority are stored under.

        Raises NotLive, and LimitExceeded if the level for it would be one too many.
        """
        levels = self._levels
        is_known = priority == DEFAULT_PRIORITY or (levels and levels.get(priority)) is not None
        if self.has_levels and not is_known:
            told = f"what keeps messages of priority {priority} of queue {quoted(self.name)} apart"
            self._creations.refuse_for_broker(self.user, told)
        return self.id_for(priority)

    def id_for(self, priority: int) -> int:
        """Return what messages of a priority are stored under; raises NotLive.

        Of the first one that is made, and stored before any of them.
        """
        if priority == DEFAULT_PRIORITY or not self.has_levels:
            return self.id
        level = None if self._levels is None else self._levels.get(priority)
        if level is None:
            level_id = bind(self._journal, lambda new: self._level_binding(new, priority))
            self._creations.opened(self.user)
            level = self._add_level(Level(level_id, priority, Cursor(withheld=self._withheld)))
        return level.id

    def known_id_for(self, priority: int) -> int:
        """Return what messages of a priority are stored under, if there are any."""
        level = None if self._levels is None else self._levels.get(priority)
        return self.id if level is None else level.id

    def _level_binding(self, level_id: int, priority: int) -> QueueBinding:
        return QueueBinding(
            level_id,
            self.name,
            self.address,
            self.routing_type,
            durable=self.durable,
            priority=priority,
        )

    def open_level(self, binding: QueueBinding, unread_up_to: int) -> None:
        """Have what an earlier node left of a priority: messages up to the seq."""
        if binding.priority is not None:
            cursor = Cursor(unread_up_to, self._withheld)
            self._creations.opened(self.user)
            self._add_level(Level(binding.queue_id, binding.priority, cursor))

    def _add_level(self, level: Level) -> Level:
        if self._levels is None:
            self._levels = Levels(Level(self.id, DEFAULT_PRIORITY, self._cursor))
        self._levels.add(level, is_open=self.has_levels)
        if self._matching is not None:
            self._matching.add_level(level)
        return level

    @override
    def _place_in(self, level: Level, reference: MessageReference) -> None:
        matching, cursor = self.match(), level.cursor
        is_stored = reference.location is not None
        if is_stored and not (
            cursor.read_seq >= cursor.tail_seq and self._has_room(reference.size)
        ):
            tail_before = cursor.tail_seq
            cursor.leave(reference.seq)
            matching.left(reference, level.id, tail_before)
            return
        self._keep(reference)
        matching.came(reference)

    # --- counting what earlier epochs left

    @property
    def uncounted_after(self) -> int | None:
        """The seq behind which messages of earlier epochs are not counted; None if all are."""
        return None if self.is_leaving else self._cursor.uncounted_after

    def counted(self, after: int, up_to: int, messages: int, payload_bytes: int) -> None:
        """Take note of how many messages the store has with ``after < seq <= up_to``.

        And of how many bytes, as the journal counts them, which is not as ``use`` does.
        If a window was read since that was asked for, some of them are in memory or gone by now,
        and nobody can say how many: then nothing is noted, and ``uncounted_after`` has moved.
        """
        if self.uncounted_after == after:
            self.count_of(self._cursor, up_to, messages, payload_bytes)

    def count_of(self, cursor: Cursor, up_to: int, messages: int, payload_bytes: int) -> None:
        """Take note of how many messages there are behind those of ``cursor`` that are counted."""
        cursor.count(messages, up_to)
        outside = RECORD_OVERHEAD + len(self.address.encode())
        self.use.add(payload_bytes + messages * (MESSAGE_OVERHEAD - outside), messages)
        if self._matching is not None:
            self.resume()

    def give_up_counting(self) -> None:
        """Note that what is not counted by now is not going to be."""
        self._cursor.give_up_counting()
        if self._matching is not None:
            self.resume()

    # --- being looked through, counted, deleted

    @property
    def is_counted(self) -> bool:
        """Whether all is counted that earlier nodes left."""
        levels = self._levels
        of_others = () if levels is None else (one.cursor.uncounted_after for one in levels)
        return self.uncounted_after is None and all(one is None for one in of_others)

    @property
    def levels_to_count(self) -> Sequence["CountedLevel"]:
        """What an earlier node left of other priorities than most."""
        levels = self._levels
        return () if levels is None else [CountedLevel(self, one) for one in levels]

    def shown_in_memory(self) -> list[tuple[int, list[MessageReference]]]:
        """Return the messages that are not stored, in order, of each level.

        By what others of it are stored under, the highest level first.
        """
        unstored = self.in_memory_only()
        levels = self._levels
        return [(self.id, unstored)] if levels is None else levels.by_level(unstored)

    def cursors(self) -> Sequence[tuple[int, Cursor]]:
        """Return how far it was read, of each id under which messages are stored.

        The highest level first.
        """
        levels = self._levels
        if levels is None:
            return ((self.id, self._cursor),)
        return [(one.id, one.cursor) for one in levels.highest_first]

    def release_deleted(self, queue_id: int, seq: int, size: int) -> None:
        """Have a message of ``size`` bytes count no more that was read to be deleted.

        It was stored under ``queue_id``.
        """
        if any(one.is_counted(seq) for found, one in self.cursors() if found == queue_id):
            self.use.release(size)

    def _keep_attempts(
        self, counted: Sequence[tuple[MessageReference, int]], done: Done | None
    ) -> None:
        """Store attempts, and after how long messages come again; ``done`` follows.

        Not of those that go in a unit that is on its way: nothing would delete it again.
        """
        stored = [one for one in counted if one[0].seq not in self.being_replaced]
        keep_attempts(self._journal, self.known_id_for, stored, self._timers.time_ms(), done)

    def restore(self, references: Sequence[MessageReference]) -> None:
        """Count as delivered again what was acknowledged: the rows stay."""
        if self._levels is not None:
            self.match()
        if self._matching is not None:
            self._matching.restored(references)
        self._delivered += len(references)
        self.counters.acknowledged -= len(references)
        size = sum([reference.size for reference in references])
        self.bytes_in_memory += size
        self._budget.used += size
        self._budget.claim(size)
        stored = sum([size_in_store(reference.record) for reference in references])
        self.use.add(stored, len(references))

    @override
    def _forget_unread(self) -> None:
        for _, cursor in self.cursors():
            cursor.unread = 0


class CountedLevel:
    """One level of a queue while it is counted; see ``orthia.broker.core.upkeep.backlog``."""

    def __init__(self, queue: LeveledQueue, level: Level) -> None:
        self.id = level.id
        self._queue = queue
        self._cursor = level.cursor

    @property
    def uncounted_after(self) -> int | None:
        """The seq behind which messages of earlier epochs are not counted; None if all are."""
        return None if self._queue.is_leaving else self._cursor.uncounted_after

    def counted(self, after: int, up_to: int, messages: int, payload_bytes: int) -> None:
        """Take note of how many messages the store has with ``after < seq <= up_to``."""
        if self.uncounted_after == after:
            self._queue.count_of(self._cursor, up_to, messages, payload_bytes)

    def give_up_counting(self) -> None:
        """Note that what is not counted by now is not going to be."""
        self._cursor.give_up_counting()
        self._queue.resume()

    def hold_windows(self) -> bool:
        """Do nothing: what is not counted is not read."""
        return True

    def release_windows(self) -> None:
        """Read on."""
        self._queue.resume()
