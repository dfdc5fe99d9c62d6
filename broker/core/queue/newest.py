"""Which message of a last value queue is the newest of its value, for each value."""

from hashlib import blake2b
from typing import Final

from orthia.journal.model.changes import MessageLocation

MOST_VALUES: Final = 1_000_000
"""Values of all last value queues together: about 300 MB. One more is refused."""


_DIGEST_BYTES: Final = 16


def digest_of(value: object) -> bytes | None:
    """Return by what a value is known; None for none."""
    if value is None:
        return None
    return blake2b(str(value).encode(), digest_size=_DIGEST_BYTES).digest()


class ValueCount:
    """How many values all queues of a node keep the place of."""

    __slots__ = ("is_used", "most", "now")

    def __init__(self, most: int = MOST_VALUES) -> None:
        self.is_used = False
        """Whether there is such a queue, or was."""
        self.now = 0
        self.most = most


class Value:
    """A message that may be the newest of its key."""

    __slots__ = ("before", "is_gone", "is_out", "is_stored", "location", "replaces", "size")

    def __init__(self, location: MessageLocation, size: int, before: "Value | None") -> None:
        self.location = location
        self.size = size
        """What it counts for in the store."""
        self.before = before
        """The one it replaces, until it is stored."""
        self.replaces: MessageLocation | None = None
        """What the transaction deletes that stores it."""
        self.is_stored = False
        self.is_out = False
        """Whether a consumer has it, or it is to be moved somewhere else."""
        self.is_gone = False
        """Whether it is acknowledged, moved or was refused."""

    @property
    def seq(self) -> int:
        """Its place."""
        return self.location.seq


class Held(dict[bytes, int]):
    """How many messages of a key are with consumers."""

    __slots__ = ()

    def more(self, key: bytes) -> None:
        """Note one more."""
        self[key] = self.get(key, 0) + 1

    def less(self, key: bytes) -> None:
        """Note one less."""
        left = self.get(key, 0) - 1
        if left > 0:
            self[key] = left
        else:
            self.pop(key, None)


class Latest(dict[bytes, Value]):
    """The newest of each key, and what is before those that are on their way to the store."""

    __slots__ = ("_on_their_way", "being_replaced")

    def __init__(self) -> None:
        super().__init__()
        self.being_replaced: set[int] = set()
        """See ``Unsettled.being_replaced``."""
        self._on_their_way: dict[int, Value] = {}

    def find(self, key: bytes, seq: int) -> Value | None:
        """Return the one with the ``seq``; None if it does not count any more."""
        value = self.get(key)
        if value is not None and value.seq != seq:
            value = self._on_their_way.get(seq, value)  # there may be very many of one key
        while value is not None and value.seq != seq:
            value = value.before
        return value

    def around(self, key: bytes, seq: int) -> tuple[Value | None, Value | None]:
        """Return the one that came next behind a ``seq``, and the one there was before."""
        newer, older = None, self.get(key)
        while older is not None and older.seq > seq:
            newer, older = older, older.before
        return newer, older

    def sent(self, key: bytes, value: Value) -> None:
        """Note one that is on its way to the store."""
        self[key] = self._on_their_way[value.seq] = value
        if value.replaces is not None:
            self.being_replaced.add(value.replaces.seq)

    def answered(self, seq: int) -> None:
        """Note that a message is no longer on its way."""
        value = self._on_their_way.pop(seq, None)
        if value is not None and value.replaces is not None:
            self.being_replaced.discard(value.replaces.seq)

    def again(self, key: bytes, value: Value) -> tuple[Value | None, Value | None]:
        """Reinstate a value whose removal failed, and return it; None if a newer one is stored.

        One that is only on its way may be refused. Return, too, an older one that was stored, which
        it replaces: several may come again, in any order.
        """
        newer, stored = None, self.get(key)
        while stored is not None and not stored.is_stored:
            newer, stored = stored, stored.before
        if stored is not None and stored.seq > value.seq:
            return None, None
        value.is_stored = True
        if newer is None:
            self[key] = value
        else:
            newer.before = value
        return value, stored

    def forget_all(self) -> int:
        """Forget all; return how many keys there were."""
        keys = len(self)
        self.clear()
        self._on_their_way.clear()
        self.being_replaced.clear()
        return keys
