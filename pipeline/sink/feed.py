"""The rows of one task as messages with places, and a digest that proves a repeated task's rows.

A place is the number of the micro-batch (0 for a batch) times 2**32, plus the row's number in its
partition, from 1. Places of one partition only grow, and a marker of the replay protocol names the
place up to which every row is stored. A repeated task skips the stored rows. That is correct only
if it has the same rows in the same order, so a marker also has a digest of all rows of its
micro-batch up to its place: a task whose rows differ ends before it sends anything.
"""

import hashlib
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from typing_extensions import override

from orthia.broker.client.abc import Notes
from orthia.broker.client.replay import ReplayMessage
from orthia.pipeline.errors import RowsDiffer

ROWS_OF_A_BATCH: Final = 2**32


class Outgoing(NamedTuple):
    """A row as a message."""

    destination: str
    headers: Mapping[str, str]
    body: bytes


class Feed(Notes):
    """The messages of one task that ``Replay`` sends."""

    def __init__(self, rows: Iterator[Outgoing], identity: str, batch: int = 0) -> None:
        """Number ``rows`` from the micro-batch ``batch`` on.

        ``identity`` names the partition; each message carries it with its place.
        """
        self._rows = rows
        self._identity = identity
        self._base = batch * ROWS_OF_A_BATCH
        self._count = 0
        self._digest = hashlib.sha256()
        self._kept: deque[ReplayMessage] = deque()
        """Messages that were read and are not known to be stored."""
        self._notes: dict[int, str] = {}
        self._expected: tuple[int, str] | None = None

    def __call__(self, through: int) -> Iterator[ReplayMessage]:
        """Yield the messages above a place; raises RowsDiffer if the rows up to it differ."""
        self.forget(through)
        yield from tuple(self._kept)
        for row in self._rows:
            message = self._numbered(row)
            if message.place > through:
                self._notes[message.place] = self._digest.hexdigest()
                self._kept.append(message)
                yield message
        if self._expected is not None and self._base < self._expected[0] <= self._end:
            raise RowsDiffer(self._differs(f"there are {self._count} rows now"))

    @override
    def at(self, place: int) -> str:
        return self._notes.get(place, "")

    @override
    def found(self, place: int, note: str) -> None:
        """Raise RowsDiffer if this task has read other rows up to ``place``."""
        read = self._base + self._count
        if place > read or place <= self._base:
            self._expected = (place, note)
            self._notes[place] = note
        elif self._notes.get(place, note) != note:
            raise RowsDiffer(self._differs("their contents differ"))

    def forget(self, through: int) -> None:
        """Drop messages up to a place, which are stored."""
        while self._kept and self._kept[0].place <= through:
            self._kept.popleft()
        for place in [one for one in self._notes if one < through]:
            del self._notes[place]

    @property
    def _end(self) -> int:
        return self._base + ROWS_OF_A_BATCH - 1

    def _numbered(self, row: Outgoing) -> ReplayMessage:
        self._count += 1
        place = self._base + self._count
        for part in _parts(row):
            self._digest.update(len(part).to_bytes(8))
            self._digest.update(part)
        if self._expected is not None and self._expected[0] == place:
            if self._expected[1] != self._digest.hexdigest():
                raise RowsDiffer(self._differs("their contents differ"))
            self._expected = None
        headers = {**row.headers, "orthia-sink-id": f"{self._identity}:{place}"}
        return ReplayMessage(place, row.destination, headers, row.body)

    def _differs(self, how: str) -> str:
        stored = 0 if self._expected is None else self._expected[0] - self._base
        return (
            f"partition {self._identity}: the {stored or 'first'} rows that an earlier attempt has"
            f" sent are not the first rows now ({how}), so what was sent cannot be told. Write"
            " DataFrames whose partitions come again as they were: sort them, or read them from"
            " files; or begin under another name, which sends everything"
        )


def _parts(row: Outgoing) -> Iterator[bytes]:
    yield row.destination.encode()
    for name in sorted(row.headers):
        yield name.encode()
        yield row.headers[name].encode()
    yield row.body
