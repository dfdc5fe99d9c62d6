# mypyc compiles this module.
"""The batch: the content of one transaction of the writer."""

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from orthia.journal.model.changes import Body, Changes, Row, extended
from orthia.journal.model.records import UserRecordType
from orthia.journal.model.unit import Appended, AppendedMessage, Unit

_PROBE_SEQ = -1
"""Of no message."""


class JournalTable(Enum):
    """The journal's tables."""

    MESSAGES = "messages"
    BINDINGS = "bindings"


@dataclass(frozen=True)
class Marker:
    """A row that is in the database if, and only if, its whole batch is."""

    table: JournalTable
    seq: int


class BatchReport(NamedTuple):
    """What one commit did, for metrics; a tuple because one is made for every batch."""

    units: int
    rows: int
    deletes: int
    payload_bytes: int
    commit_seconds: float
    """From the first statement to the commit's answer, retries included."""
    attempts: int


class Batch(Changes):
    """Units that are stored by one transaction."""

    __slots__ = ("forgotten", "guarded", "items", "messages", "size")

    def __init__(self) -> None:
        Changes.__init__(self)  # as ``super()`` would, in fewer steps: one for each batch
        self.items: list[Appended] = []
        self.messages: list[AppendedMessage] = []
        """Messages of one queue, the bulk of it; the rows of all others are in ``rows``."""
        self.size = 0
        """Rows inserted and deleted."""
        self.forgotten: Sequence[int] = ()
        """Rows of duplicate ids to delete, perhaps some that it inserts; the history does not get
        them."""
        self.guarded: Sequence[Unit] = ()
        """The units that add duplicate ids, or end a cache of them."""

    def add(self, item: Appended) -> None:
        """Add a unit."""
        self.items.append(item)
        if isinstance(item, AppendedMessage):
            self.messages.append(item)
            self.size += 1
            self.payload_bytes += len(item.payload)
            if item.outbox_row:
                self.outbox_rows = extended(self.outbox_rows, (item.outbox_row,))
        elif item.only_deletes:
            self.deletes += item.deletes
            self.size += len(item.deletes) or 1
        else:
            if item.guarded or item.ended_caches:
                self.guarded = extended(self.guarded, (item,))
                self.merge(item.stored)
            else:
                self.merge(item)
            self.size += item.cost_rows

    @property
    def only_messages(self) -> bool:
        """True if it inserts messages of one queue each and does nothing else."""
        return len(self.items) == len(self.messages) and not self.outbox_rows

    @property
    def only_frees(self) -> bool:
        """True if no unit of it stores anything, so that repeating it does no harm.

        A unit is judged as it was submitted: one whose duplicate was left out may be refused.
        """
        return all(isinstance(item, Unit) and item.only_frees for item in self.items)

    def marker(self) -> Marker | None:
        """Return the first row it inserts and does not delete again.

        None if there is none: such a batch may be repeated whatever its outcome was.
        """
        gone = {*self.deletes, *self.forgotten}
        gone.update(body.seq for body in self.bodies)
        inserted = [message.last_seq for message in self.messages]
        inserted += [row.seq for row in self.rows]
        first = min((seq for seq in inserted if seq not in gone), default=None)
        if first is not None:
            return Marker(JournalTable.MESSAGES, first)
        unbound = set(self.unbound)
        bound = min((r.seq for r in self.binding_rows if r.seq not in unbound), default=None)
        return None if bound is None else Marker(JournalTable.BINDINGS, bound)

    def split(self) -> list["Batch"]:
        """Split a batch of several units into batches, in order.

        A unit that outweighs all others gets a batch of its own; otherwise return halves.
        """
        items = self.items
        sizes = [_size(item) for item in items]
        heaviest = max(range(len(items)), key=sizes.__getitem__)
        if 2 * sizes[heaviest] > sum(sizes):
            parts = [items[:heaviest], [items[heaviest]], items[heaviest + 1 :]]
        else:
            half = len(items) // 2
            parts = [items[:half], items[half:]]
        return [batch_of(part) for part in parts if part]

    def report(self, commit_seconds: float, attempts: int) -> BatchReport:
        """Return what was committed, for metrics."""
        return BatchReport(
            units=len(self.items),
            rows=len(self.messages) + len(self.rows) + len(self.binding_rows),
            deletes=len(self.deletes) + len(self.unbound) + len(self.outbox_rows),
            payload_bytes=self.payload_bytes,
            commit_seconds=commit_seconds,
            attempts=attempts,
        )

    def describe(self) -> str:
        """Describe the batch, for an error."""
        marker = self.marker()
        first = "" if marker is None else f", first row {marker.table.value} seq {marker.seq}"
        return (
            f"a batch of {len(self.items)} units ({len(self.messages) + len(self.rows)} rows,"
            f" {len(self.deletes)} deletes, {self.payload_bytes} bytes{first})"
        )


def batch_of(items: Iterable[Appended]) -> Batch:
    """Return a batch of these units."""
    batch = Batch()
    for item in items:
        batch.add(item)
    return batch


def probe(size: int = 0) -> Batch:
    """Return a batch that inserts a row of ``size`` bytes and deletes it again."""
    unit = Unit(None, 0)
    record = os.urandom(size)  # random, so that no database can compress it
    unit.add_rows((Row(_PROBE_SEQ, _PROBE_SEQ, UserRecordType.ADD_MESSAGE, None, record),))
    unit.bodies = (Body(_PROBE_SEQ, 0),)
    return batch_of([unit])


def _size(item: Appended) -> int:
    if isinstance(item, AppendedMessage):
        return len(item.payload)
    return item.payload_bytes
