# mypyc compiles this module.
"""How much of messages is in memory, over all queues."""

from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from orthia.journal.model.message import Message

SMALL_CLAIM = 65_536
"""Bytes a consumer may hold however many others do not acknowledge what they have."""
_MOST_ASKED = 256
"""How many holders are asked to make room at a time: there may be very many that cannot."""
LENT_WINDOW_BYTES = 1024 * 1024
"""What is read at once of messages that hardly anybody wants, however full the memory is."""
_MOST_LENT = 2
"""How many such windows are in memory at a time, beyond the limit."""
_UNLIMITED = 1 << 62
"""More bytes than there is memory."""
MOST_GROUP_BYTES = 64 * 1024 * 1024
"""What the names of the groups of all queues may take."""
MESSAGE_OVERHEAD = 600
"""Bytes a message in memory costs beside its headers and body; measured on CPython 3.11."""


def at_most(number: int) -> int | None:
    """Return a limit as broker.xml and bindings have it, where -1 is none."""
    return None if number < 0 else number


def size_in_memory(record: Message) -> int:
    """Return the bytes a message counts for while it is in memory."""
    # Unpacked, as it is asked of every message: fields are looked up much slower by their names.
    _, head, body, _, _, _, _, _, stated = record
    return len(head) + len(stated) + len(body) + MESSAGE_OVERHEAD


def size_in_store(record: Message) -> int:
    """Return the bytes a message counts for against the limits of the store."""
    size = size_in_memory(record)
    return size if record.large is None else size + record.large.size


_Refused = TypeVar("_Refused")


class Refused(Generic[_Refused]):
    """Those who were refused for want of room, the longest waiting first.

    Whoever refuses notes it here. So nobody waits for ever because room came back before anybody
    looked whether there was any.
    """

    __slots__ = ("_has_more", "_is_relieving", "_waiting")

    def __init__(self) -> None:
        self._waiting: OrderedDict[_Refused, None] = OrderedDict()
        self._is_relieving = False
        self._has_more = False
        """Whether room came back while others were told of it."""

    def __len__(self) -> int:
        return len(self._waiting)

    def note(self, refused: _Refused) -> bool:
        """Have somebody told when there is room; return False."""
        self._waiting[refused] = None
        return False

    def forget(self, refused: _Refused) -> None:
        """Tell somebody nothing any more."""
        self._waiting.pop(refused, None)

    def pop(self) -> _Refused:
        """Return who waits longest, who is told no more."""
        return self._waiting.popitem(last=False)[0]

    def relieve(self, has_room: Callable[[], bool], go_on: Callable[[_Refused], None]) -> None:
        """Call ``go_on`` for each, once, while there is room; the others wait on.

        What goes on may give room back at once: then those are told by the call that is under way,
        for there may be very many, and a call within a call for each is more than Python has.
        """
        self._has_more = True
        if self._is_relieving:
            return
        self._is_relieving = True
        try:
            while self._has_more:
                self._has_more = False
                for _ in range(len(self._waiting)):
                    # One that goes on may make others leave.
                    if not self._waiting or not has_room():
                        break
                    go_on(self._waiting.popitem(last=False)[0])
        finally:
            self._is_relieving = False


class _Claimant(Protocol):
    """A consumer, which wants messages that its budget may refuse it."""

    def resume(self) -> None:
        """Ask again."""


class _Holder(Protocol):
    """Something whose messages count against a budget."""

    def shed(self, size: int) -> bool:
        """Drop up to ``size`` bytes, as far as nobody wants them soon and the table has them.

        Return whether to ask again; if not, it registers itself when it holds something again.
        """


class _Grouping(Protocol):
    """What knows the groups of one queue."""

    size: int
    """Bytes that all it knows counts for; ``GroupMemory`` sets it."""

    def forget_one(self) -> bool:
        """Forget the group that was quiet for longest, unless all are in use; return whether."""


class GroupMemory:
    """Counts what the names of all queues' groups take; on the loop's thread.

    Clients choose how many there are. Beyond the limit the queue with most of them forgets one for
    each that is new.
    """

    __slots__ = ("_largest", "limit", "used")

    def __init__(self, limit: int = MOST_GROUP_BYTES) -> None:
        self.limit = limit
        self.used = 0
        self._largest: _Grouping | None = None

    def add(self, owner: _Grouping, size: int) -> None:
        """Count a group that is known from now on."""
        self.used += size
        owner.size += size
        if self._largest is None or owner.size > self._largest.size:
            self._largest = owner

    def remove(self, owner: _Grouping, size: int) -> None:
        """Count groups of so many bytes no more."""
        self.used -= size
        owner.size -= size

    def make_room(self, owner: _Grouping) -> None:
        """Have a group be forgotten, if there is no room for one that ``owner`` just added."""
        if self.used > self.limit and not (self._largest and self._largest.forget_one()):
            owner.forget_one()


class CreditPool:
    """Bytes that several consumers may have together before they acknowledge.

    Those are *claimed*. While they reach the limit the pool is *exhausted*: a consumer of it has
    credit for ``small_claim`` only, and is asked again once others have acknowledged.
    """

    __slots__ = ("_refused", "claimed", "limit", "small_claim")

    def __init__(self, limit: int, small_claim: int) -> None:
        self.limit = limit
        self.small_claim = small_claim
        """Bytes each consumer may have however little is left in the pool."""
        self.claimed = 0
        self._refused: Refused[_Claimant] = Refused()

    @property
    def is_exhausted(self) -> bool:
        """Whether what consumers do not acknowledge takes all there is."""
        return self.claimed >= self.limit

    def refuse(self, claimant: _Claimant) -> bool:
        """Note that somebody gets no more because the pool is exhausted; return False."""
        return self._refused.note(claimant)

    def forget(self, claimant: _Claimant) -> None:
        """Note that somebody wants no more."""
        self._refused.forget(claimant)

    def relieve(self) -> None:
        """Have those ask again that were refused, until the pool is exhausted again."""
        self._refused.relieve(lambda: not self.is_exhausted, lambda claimant: claimant.resume())

    def claim(self, size: int) -> None:
        """Count a message that went to a consumer."""
        self.claimed += size

    def unclaim(self, size: int) -> None:
        """Count messages of so many bytes that are out of the consumers' hands for good."""
        before = self.claimed
        self.claimed = before - size
        if self.claimed < self.limit <= before and self._refused:
            self._relieved()

    def _relieved(self) -> None:
        """Have ``relieve`` called: it has something to do."""
        self.relieve()


class MemoryBudget(CreditPool):
    """Counts bytes against ``global-max-size``.

    Claimed of them are the messages that consumers have and did not acknowledge, or gave back:
    those cannot be left to the table.
    """

    __slots__ = ("_holders", "_lent", "_relief", "groups", "used")

    def __init__(self, limit: int, relieved: Callable[[], None] = lambda: None) -> None:
        """Begin empty; ``relieved`` is called when ``relieve`` has something to do.

        A ``limit`` below 0 is none, as in broker.xml.
        """
        super().__init__(limit if limit >= 0 else _UNLIMITED, SMALL_CLAIM)
        self.used = 0
        self.groups = GroupMemory()
        """What is beside it: the names of groups."""
        self._lent = 0
        self._relief = relieved
        self._holders: deque[_Holder] = deque()

    def _relieved(self) -> None:
        self._relief()

    @property
    def room(self) -> int:
        """How many bytes fit; may be below zero."""
        return self.limit - self.used

    def has_room(self, size: int) -> bool:
        """Return whether ``size`` more bytes fit."""
        return self.used + size <= self.limit

    def lend_window(self) -> bool:
        """Lend a window of which little will be kept; return False if others have all just now."""
        if self._lent >= _MOST_LENT:
            return False
        self._lent += 1
        return True

    def window_returned(self) -> None:
        """Note that what was read of a window that was lent is in memory no more."""
        self._lent -= 1

    def register(self, holder: _Holder) -> None:
        """Have ``holder`` asked to shed when another needs room.

        Once while it holds something: of very many queues few hold anything.
        """
        self._holders.append(holder)

    def make_room(self, size: int) -> None:
        """Have holders shed, each in its turn, until ``size`` bytes fit or enough were asked."""
        for _ in range(min(len(self._holders), _MOST_ASKED)):
            missing = size - self.room
            if missing <= 0:
                return
            holder = self._holders.popleft()
            if holder.shed(missing):
                self._holders.append(holder)
