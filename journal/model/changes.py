# mypyc compiles this module.
"""What a unit, or a batch of them, changes in the store: its fields, and how two are one.

``orthia.journal.model.unit`` says where a stored message lives.
"""

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple, TypeVar

from orthia.journal.model.moments import MessageTime
from orthia.journal.model.records import RemovalReason


class Body(NamedTuple):
    """The body row several references share, and how many references it was written with."""

    seq: int
    references: int


class MessageLocation(NamedTuple):
    """What is deleted when a queue is done with a message."""

    seq: int
    body: Body | None = None
    large_id: int | None = None
    """The large body it refers to."""
    is_timed: bool = False
    """Whether the store keeps a time of it: see ``orthia.journal.model.moments``."""


class LargeReference(NamedTuple):
    """Something that needs a large body: a message in a queue, or a transaction in doubt."""

    large_id: int
    seq: int
    """Of the message in its queue; the id of the transaction."""


class DuplicateId(NamedTuple):
    """By what a message is known that is sent a second time."""

    cache_id: int
    """Of the binding of its address' id cache."""
    digest: bytes
    keep: int
    """How many ids of the address are kept, the newest: ``id-cache-size``."""


class Guarded(NamedTuple):
    """Messages of a unit that are stored unless their duplicate id is, and their rows.

    One that is sent becomes several where diverts copy it.
    """

    duplicate_id: DuplicateId
    messages: range
    """Which of the unit's messages they are, counted from 0."""
    first_seq: int
    last_seq: int
    """Of the row of the duplicate id."""


class Row(NamedTuple):
    """A row of MESSAGES or BINDINGS that is to be inserted."""

    seq: int
    id: int
    user_record_type: int
    queue_id: int | None
    record: bytes


NO_REASONS: Final[dict[int, RemovalReason]] = {}
"""The list of every unit that was given none yet; never modified."""
_One = TypeVar("_One")


def extended(these: Sequence[_One], more: Iterable[_One]) -> list[_One]:
    """Return what is in ``these`` and then ``more``; a list is its own."""
    if not isinstance(these, list):
        return list(more)  # nothing was added so far
    these.extend(more)
    return these


class Changes:
    """What a transaction changes, as lists the bulk statements take.

    They are made in the order of the fields: inserts come first, then deletes, then the bodies that
    lost their last reference. So what is changed may be of several units, of which one deletes
    what an earlier one inserted.
    """

    __slots__ = (
        "binding_rows",
        "bodies",
        "counted",
        "deletes",
        "id_limit",
        "linked",
        "moved",
        "outbox_rows",
        "payload_bytes",
        "reasons",
        "rows",
        "timed",
        "unbound",
        "unlinked",
        "untimed",
    )

    def __init__(self) -> None:
        # Most units are an acknowledgement, which needs one list: the others are made when needed.
        self.deletes: list[int] = []
        self.rows: Sequence[Row] = ()
        self.reasons = NO_REASONS
        """By seq, of deletes that are no acknowledgements."""
        self.bodies: Sequence[Body] = ()
        """To be deleted if nothing refers to them any more; one may be in here several times."""
        self.linked: Sequence[LargeReference] = ()
        self.unlinked: Sequence[LargeReference] = ()
        """After ``linked``: what one unit links, a later one may unlink."""
        self.moved: Sequence[int] = ()
        """Those of ``deletes`` whose messages go on elsewhere, as a copy: unless an application has
        acknowledged one of them, or nothing is changed."""
        self.outbox_rows: Sequence[int] = ()
        """Rows of the outbox that are taken: all of them, or nothing is changed."""
        self.timed: Sequence[MessageTime] = ()
        self.counted: Sequence[Row] = ()
        """Records of attempts, by which the file journal keeps what messages do not say."""
        self.untimed: Sequence[int] = ()
        """The seqs of messages of which no time is kept any more; after ``timed``."""
        self.binding_rows: Sequence[Row] = ()
        self.unbound: Sequence[int] = ()
        self.id_limit = 0
        """Reserves all ids up to this one; 0 reserves none."""
        self.payload_bytes = 0

    def merge(self, other: "Changes") -> None:
        """Append the changes of ``other``."""
        self.deletes += other.deletes  # most have nothing else
        if other.rows:
            self.rows = extended(self.rows, other.rows)
        if other.reasons:
            if self.reasons is NO_REASONS:
                self.reasons = {}
            self.reasons.update(other.reasons)
        if other.bodies:
            self.bodies = extended(self.bodies, other.bodies)
        if other.linked:
            self.linked = extended(self.linked, other.linked)
        if other.unlinked:
            self.unlinked = extended(self.unlinked, other.unlinked)
        if other.moved:
            self.moved = extended(self.moved, other.moved)
        if other.outbox_rows:
            self.outbox_rows = extended(self.outbox_rows, other.outbox_rows)
        if other.timed:
            self.timed = extended(self.timed, other.timed)
        if other.counted:
            self.counted = extended(self.counted, other.counted)
        if other.untimed:
            self.untimed = extended(self.untimed, other.untimed)
        if other.binding_rows or other.unbound or other.id_limit:
            self.binding_rows = extended(self.binding_rows, other.binding_rows)
            self.unbound = extended(self.unbound, other.unbound)
            self.id_limit = max(self.id_limit, other.id_limit)
        self.payload_bytes += other.payload_bytes

    def add_deletes(self, locations: Iterable[MessageLocation]) -> None:
        """Delete the rows at ``locations``, and each body that then has no reference."""
        for seq, body, large_id, is_timed in locations:
            self.deletes.append(seq)
            if body is not None:
                self.bodies = extended(self.bodies, (body,))
            if large_id is not None:
                self.unlinked = extended(self.unlinked, (LargeReference(large_id, seq),))
            if is_timed:
                self.forget_times((seq,))

    def add_rows(self, rows: Iterable[Row]) -> None:
        """Insert rows of MESSAGES."""
        self.rows = extended(self.rows, rows)

    def add_links(self, references: Iterable[LargeReference]) -> None:
        """Refer to large bodies."""
        self.linked = extended(self.linked, references)

    def add_times(self, times: Iterable[MessageTime]) -> None:
        """Keep the times of messages."""
        self.timed = extended(self.timed, times)

    def forget_times(self, seqs: Iterable[int]) -> None:
        """Delete the times of messages."""
        self.untimed = extended(self.untimed, seqs)

    @property
    def touches_bindings(self) -> bool:
        """True if anything of BINDINGS changes."""
        return bool(self.binding_rows or self.unbound or self.id_limit)

    @property
    def touches_large_bodies(self) -> bool:
        """True if a large body is referred to, or no more."""
        return bool(self.linked or self.unlinked)

    @property
    def touches_times(self) -> bool:
        """True if a message gets a time, or has none any more."""
        return bool(self.timed or self.untimed)

    def deletes_by_reason(self) -> dict[RemovalReason, list[int]]:
        """Return each reason there is with the rows that are deleted for it, but for ``DUE``."""
        grouped: dict[RemovalReason, list[int]] = {}
        for seq in self.deletes:
            reason = self.reasons.get(seq, RemovalReason.ACKNOWLEDGED)
            if reason is RemovalReason.DUE:
                continue  # it did not leave: it reached the queue that it was sent to
            grouped.setdefault(reason, []).append(seq)
        return grouped
