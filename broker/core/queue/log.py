# mypyc compiles this module.
"""The messages of one queue: what is in memory, and what is in the table only.

The order of a queue is the order of ``seq``. ``ready`` has what is in memory and was never
delivered; ``cursor`` says what is in the table only. What consumers have, or gave back, is counted
here and kept by ``unsettled``. The log knows no consumer.
"""

from collections import deque
from collections.abc import Collection, Iterable, Sequence

from orthia.broker.core.api import MessageReference
from orthia.broker.core.limits.memory import (
    MESSAGE_OVERHEAD,
    Holder,
    at_most,
    size_in_memory,
    size_in_store,
)
from orthia.broker.core.limits.quota import AddressUse
from orthia.broker.core.queue.cursor import Cursor
from orthia.broker.core.queue.levels import Level, Levels
from orthia.broker.core.queue.services import QueueServices
from orthia.config.addresses import ResolvedAddressSettings
from orthia.journal.model.message import DEFAULT_PRIORITY, RECORD_OVERHEAD
from orthia.journal.model.windows import StoredMessage


class QueueLog:
    """A bounded window in memory on messages that may all be in the table."""

    __slots__ = (
        "_budget", "_has_levels", "_holder", "_keeps_in_memory", "_max_messages",
        "bytes_in_memory", "cursor", "id", "in_memory", "is_holder", "levels", "max_bytes",
        "ready", "stored_bytes", "use", "withheld",
    )  # fmt: skip

    def __init__(
        self,
        queue_id: int,
        use: AddressUse,
        services: QueueServices,
        holder: Holder,
        unread_up_to: int,
        *,
        keeps_in_memory: bool,
        has_levels: bool,
    ) -> None:
        """Begin with messages up to the seq ``unread_up_to`` in the table only.

        Unless it ``keeps_in_memory`` all new messages are left to the table; unless it
        ``has_levels`` new messages of all priorities are kept together.
        """
        self.id = queue_id
        self.use = use
        """What its address holds, these messages among them."""
        self._budget = services.budget
        self._holder = holder
        self.is_holder = False
        """Whether the queue is asked to shed when another needs room."""
        self._keeps_in_memory = keeps_in_memory
        self._has_levels = has_levels
        self.withheld = services.withheld
        """The seqs of messages that stay in the table."""
        self.cursor = Cursor(unread_up_to, services.withheld)
        self.levels: Levels | None = None
        """What there is of each priority, once there is more than one."""
        self.ready: deque[MessageReference] = deque()
        """In memory and never delivered, in order; never another deque."""
        self.in_memory = 0
        """How many messages are in memory, those that consumers have included."""
        self.bytes_in_memory = 0
        self.stored_bytes = 0
        """What all of its messages count for against the limits, as far as they are counted."""
        self.max_bytes: int | None = None
        self._max_messages: int | None = None

    def configure(self, settings: ResolvedAddressSettings) -> None:
        """Take the limits from the settings of its address."""
        self.max_bytes = at_most(settings.max_size_bytes)
        self._max_messages = at_most(settings.max_size_messages)

    # --- counts

    @property
    def depth(self) -> int:
        """How many messages the queue has, as far as they are counted yet."""
        levels = self.levels
        of_others = 0 if levels is None else levels.unread
        return self.in_memory + self.cursor.unread + of_others

    def takes_in_memory(self, size: int) -> bool:
        """Return whether a new message of ``size`` bytes would be kept in memory."""
        cursor = self.cursor
        return cursor.read_seq >= cursor.tail_seq and self.has_room(size)

    def has_room(self, size: int) -> bool:
        """Return whether ``size`` more bytes may be in memory."""
        most, most_messages = self.max_bytes, self._max_messages
        return (
            (most is None or self.bytes_in_memory + size <= most)
            and (most_messages is None or self.in_memory < most_messages)
            and self._keeps_in_memory
            and self._budget.has_room(size)
        )

    # --- coming in

    def keep(self, reference: MessageReference) -> None:
        """Count a message that is in memory from here on."""
        self.in_memory += 1
        self.bytes_in_memory += reference.size
        self._budget.used += reference.size
        if not self.is_holder:
            self.hold()

    def let_go(self, reference: MessageReference) -> None:
        """Discount a message that has left memory."""
        self.in_memory -= 1
        self.bytes_in_memory -= reference.size
        self._budget.used -= reference.size

    def charge(self, size: int, messages: int = 1) -> None:
        """Count messages against the limits that were counted before, or by nobody."""
        self.stored_bytes += size
        self.use.add(size, messages)

    def release(self, size: int) -> None:
        """Discount a message that is gone for good."""
        self.stored_bytes -= size
        self.use.release(size)

    def hold(self) -> None:
        """Let the queue be asked to shed when another needs room."""
        if not self.is_holder:
            self.is_holder = True
            self._budget.register(self._holder)

    def load(self, message: StoredMessage, cursor: Cursor) -> MessageReference:
        """Count a message as in memory that was in the table only, where ``cursor`` is."""
        seq, record = message.seq, message.record
        if cursor.is_counted(seq):
            cursor.unread -= 1
        else:
            self.charge(size_in_store(record))
        reference = MessageReference(
            seq,
            record,
            message.location,
            size_in_memory(record),
            redelivered=cursor.is_old(seq),
        )
        self.keep(reference)
        return reference

    # --- leaving memory

    def shed(self, size: int) -> None:
        """Leave the newest messages, up to ``size`` bytes, to the table.

        Whatever was ever delivered is before them, so that reading on meets none of it again.
        """
        ready = self.ready
        while size > 0 and ready and ready[-1].location is not None:
            reference = ready.pop()
            self.let_go(reference)
            self.cursor.leave_again(reference.seq)
            size -= reference.size

    def forget(self, delivered: int) -> None:
        """Count nothing any more but what consumers have: so many messages are ``delivered``."""
        self.ready.clear()
        self._budget.used -= self.bytes_in_memory
        self.bytes_in_memory = 0
        self.in_memory = delivered
        for _, cursor in self.cursors():
            cursor.unread = 0

    # --- priorities

    @property
    def ids(self) -> Collection[int]:
        """What its messages are stored under."""
        levels = self.levels
        return (self.id,) if levels is None else [one.id for one in levels.highest_first]

    def is_known(self, priority: int) -> bool:
        """Return whether it is known what messages of a priority are stored under."""
        if priority == DEFAULT_PRIORITY or not self._has_levels:
            return True
        return self.levels is not None and self.levels.get(priority) is not None

    def known_id_for(self, priority: int) -> int:
        """Return what messages of a priority are stored under, if there are any."""
        level = None if self.levels is None else self.levels.get(priority)
        return self.id if level is None else level.id

    def add_level(self, level: Level) -> None:
        """Keep the messages of one more priority by themselves."""
        if self.levels is None:
            self.levels = Levels(self.own_level())
        self.levels.add(level, is_open=self._has_levels)

    def own_level(self) -> Level:
        """Return a level with the messages of the usual priority, and those of no other level."""
        return Level(self.id, DEFAULT_PRIORITY, self.cursor)

    def all_levels(self) -> Iterable[Level]:
        """Return all levels, the highest first."""
        return (self.own_level(),) if self.levels is None else self.levels.highest_first

    def cursors(self) -> Sequence[tuple[int, Cursor]]:
        """Return how far it was read, of each id under which messages are stored.

        The highest level first.
        """
        levels = self.levels
        if levels is None:
            return ((self.id, self.cursor),)
        return [(one.id, one.cursor) for one in levels.highest_first]

    # --- counting what earlier epochs left

    def count(
        self, cursor: Cursor, up_to: int, messages: int, payload_bytes: int, address: str
    ) -> None:
        """Count messages behind those of ``cursor`` that are counted, and up to a seq.

        ``payload_bytes`` are counted as the journal does, without the ``address``.
        """
        cursor.count(messages, up_to)
        outside = RECORD_OVERHEAD + len(address.encode())
        self.charge(payload_bytes + messages * (MESSAGE_OVERHEAD - outside), messages)

    @property
    def is_counted(self) -> bool:
        """Whether all is counted that earlier nodes left, of all priorities but the usual one."""
        levels = self.levels
        return levels is None or all(one.cursor.uncounted_after is None for one in levels)

    def release_deleted(self, queue_id: int, seq: int, size: int) -> None:
        """Discount a message of ``size`` bytes that a deletion has read.

        It was stored under ``queue_id``.
        """
        if any(one.is_counted(seq) for found, one in self.cursors() if found == queue_id):
            self.release(size)

    def left(self, seq: int, size: int) -> None:
        """Discount a message of ``size`` bytes that the table has lost."""
        if self.cursor.is_counted(seq):
            self.cursor.unread -= 1
            self.release(size)
