"""Where each live record stands: positions in memory, payloads in the files. No IO.

The index also says which files are needed. A file may go when nothing in it is live and when no
delete in it is of a record in a file that is still there: until that file is gone, the delete is
what keeps its record from coming back.
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from typing_extensions import override

from orthia.journal.file.format import RECORD_BYTES
from orthia.journal.model.moments import Moment


class Position(NamedTuple):
    """Where a live record stands."""

    seq: int
    file_id: int
    offset: int
    size: int
    """Of its payload."""


class Added(NamedTuple):
    """A record that was added or updated."""

    seq: int
    row_id: int
    user_record_type: int
    queue_id: int | None
    offset: int
    size: int
    large_id: int | None = None
    """The large body of a message."""
    moment: Moment | None = None
    """When a message, or whatever refers to its body, leaves its queue by itself."""
    attempts: tuple[int, int] | None = None
    """How often delivery of the message ``row_id`` failed, and its earliest redelivery."""


class RecordIndex(ABC):
    """What the files of one instance hold; not thread-safe, its user locks."""

    def __init__(self) -> None:
        self._live: Counter[int] = Counter()
        self._live_bytes: Counter[int] = Counter()
        self._targets: dict[int, Counter[int]] = {}
        self._moving: list[tuple[int, int]] | None = None

    @abstractmethod
    def add(self, file_id: int, added: Added) -> None:
        """Add a record; raises ValueError if it cannot be where it is."""

    @abstractmethod
    def delete(self, file_id: int, seqs: Iterable[int]) -> None:
        """Apply a delete record in ``file_id``; seqs that are not live do no harm."""

    @abstractmethod
    def find(self, seq: int) -> Position | None:
        """Return where the live record ``seq`` stands."""

    @abstractmethod
    def positions(self, file_ids: Sequence[int]) -> list[Position]:
        """Return every live record of these files, in the order of their seqs."""

    @abstractmethod
    def _move(
        self, moves: Sequence[tuple[int, Sequence[Position]]], old: Sequence[int]
    ) -> None: ...

    def settle(self) -> None:  # noqa: B027 - not every index has something to do
        """Drop what only a lost record kept alive; called once all records were taken."""

    @property
    def total(self) -> int:
        """How many records are live."""
        return sum(self._live.values())

    def live_records(self, file_id: int) -> int:
        """Return how many records of a file are live."""
        return self._live[file_id]

    def live_bytes(self, file_ids: Iterable[int]) -> int:
        """Return how many bytes the live records of these files take."""
        return sum(self._live_bytes[file_id] for file_id in file_ids)

    def is_needed(self, file_id: int) -> bool:
        """Return whether a file must stay."""
        return bool(self._live[file_id] or self._targets.get(file_id))

    def forget_file(self, file_id: int) -> None:
        """Forget a file that was removed."""
        self._live.pop(file_id, None)
        self._live_bytes.pop(file_id, None)
        self._targets.pop(file_id, None)
        for targets in self._targets.values():
            targets.pop(file_id, None)

    def begin_move(self, file_ids: Sequence[int]) -> list[Position]:
        """Return the live records of ``file_ids``, and note the deletes that come from now on."""
        self._moving = []
        return self.positions(file_ids)

    def abandon_move(self) -> None:
        """End a move that was abandoned."""
        self._moving = None

    def finish_move(
        self, moves: Sequence[tuple[int, Sequence[Position]]], old: Sequence[int]
    ) -> None:
        """Record that what ``begin_move`` returned is in new files, and forget ``old``.

        ``moves`` has the new files with the records in each, in the order of their seqs.
        """
        self._move(moves, old)
        for file_id in old:
            self.forget_file(file_id)
        home = {p.seq: file_id for file_id, positions in moves for p in positions}
        for deleting, seq in self._moving or ():
            if seq in home and deleting not in old:
                self._targets.setdefault(deleting, Counter())[home[seq]] += 1
        self._moving = None

    def _note_added(self, file_id: int, size: int) -> None:
        self._live[file_id] += 1
        self._live_bytes[file_id] += RECORD_BYTES + size

    def _note_dead(self, file_id: int, seq: int, size: int, *, deleted_in: int) -> None:
        self._live[file_id] -= 1
        self._live_bytes[file_id] -= RECORD_BYTES + size
        if deleted_in != file_id:
            self._targets.setdefault(deleted_in, Counter())[file_id] += 1
        if self._moving is not None:
            self._moving.append((deleted_in, seq))


class BindingIndex(RecordIndex):
    """The few records of the bindings; an update stands in the place of what it updates."""

    def __init__(self) -> None:
        super().__init__()
        self.records: dict[int, tuple[Position, Added]] = {}

    @override
    def add(self, file_id: int, added: Added) -> None:
        if added.seq in self.records:
            self.delete(file_id, [added.seq])
        position = Position(added.seq, file_id, added.offset, added.size)
        self.records[added.seq] = (position, added)
        self._note_added(file_id, added.size)

    @override
    def delete(self, file_id: int, seqs: Iterable[int]) -> None:
        for seq in seqs:
            found = self.records.pop(seq, None)
            if found is not None:
                self._note_dead(found[0].file_id, seq, found[0].size, deleted_in=file_id)

    @override
    def find(self, seq: int) -> Position | None:
        found = self.records.get(seq)
        return None if found is None else found[0]

    @override
    def positions(self, file_ids: Sequence[int]) -> list[Position]:
        wanted = set(file_ids)
        return sorted(p for p, _ in self.records.values() if p.file_id in wanted)

    def _move(self, moves: Sequence[tuple[int, Sequence[Position]]], old: Sequence[int]) -> None:
        for file_id, positions in moves:
            for moved in positions:
                found = self.records.get(moved.seq)
                if found is not None and found[0].file_id in old:
                    self.records[moved.seq] = (moved, found[1])
                    self._note_added(file_id, moved.size)
