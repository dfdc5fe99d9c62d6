"""One store that does as a test says, and a writer on it with all that it tells."""

from collections.abc import Callable, Collection, Iterable, Sequence

from typing_extensions import override

from orthia.config.address_settings import RoutingType
from orthia.config.clock import monotonic_seconds
from orthia.config.errors import OrthiaError
from orthia.database import Locked, NoRoom
from orthia.journal.engine.abc import BatchStore
from orthia.journal.engine.batch import Batch, Marker
from orthia.journal.engine.locks import RowKey
from orthia.journal.engine.writer import Writer
from orthia.journal.errors import AcknowledgedBefore, StoreFull
from orthia.journal.limits import JournalLimits
from orthia.journal.model.changes import MessageLocation
from orthia.journal.model.codec import QueueBinding, encode_duplicate_id
from orthia.journal.model.records import RemovalReason
from orthia.journal.model.unit import Appended, AppendedMessage, Sender, Unit
from tests.support.waiting import wait_until

QUEUE = 7
POISON = b"poison"

Rule = Callable[[Batch], Exception | None]
"""Says with what an attempt at a batch fails, if it does."""


class Committed(Exception):  # noqa: N818 - it is no error of a program
    """What a rule returns for an attempt that is done, and then fails with ``error``."""

    def __init__(self, error: Exception) -> None:
        super().__init__(error)
        self.error = error


def grows(batch: Batch) -> bool:
    """Return whether a batch stores anything; a probe does not count."""
    rows = [row for row in batch.rows if row.seq > 0]
    return bool(batch.messages or rows or batch.binding_rows)


def only_frees(batch: Batch) -> bool:
    """Return whether a batch stores no row, not even a probe's."""
    return not (batch.messages or batch.rows or batch.binding_rows)


def failing(*errors: Exception | None, when: Callable[[Batch], object] = lambda _: True) -> Rule:
    """Fail one attempt after the other, of those at batches ``when`` that is true; None is none."""
    left = list(errors)
    return lambda batch: left.pop(0) if left and when(batch) else None


def poison(error: Exception, data: bytes = POISON) -> Rule:
    """Take no batch with such a message."""
    return lambda batch: error if any(one.payload == data for one in batch.messages) else None


class Full:
    """A rule: there is no room for what grows, and perhaps not for deletes."""

    def __init__(
        self, *, most_deletes: int = 1_000, most_bytes: int = -1, takes_messages: bool = False
    ) -> None:
        self.is_full = True
        self.most_deletes = most_deletes
        """In one batch."""
        self.most_bytes = most_bytes
        """Of messages in one batch."""
        self.takes_messages = takes_messages
        """Whether there is room in the one table, though not in the other."""

    def __call__(self, batch: Batch) -> Exception | None:
        """Say that the disk is full."""
        size = batch.payload_bytes + sum(len(row.record) for row in batch.rows)
        is_much = bool(batch.messages or batch.rows) and not (
            self.takes_messages or size <= self.most_bytes
        )
        if self.is_full and (
            is_much or batch.binding_rows or len(batch.deletes) > self.most_deletes
        ):
            return NoRoom("disk full")
        return None


class ScriptedStore(BatchStore):
    """A store that fails as its rules say, and records what was asked of it and what it has."""

    max_record_bytes = 1_000_000

    def __init__(
        self,
        *rules: Rule,
        confirms: Sequence[Exception] = (),
        ids: dict[int, list[int]] | None = None,
        locked: Sequence[set[int]] = (),
        stays_locked: bool = False,
    ) -> None:
        """``confirms`` fail one after the other; ``ids`` are the seqs of those of each id cache.

        ``locked`` are the seqs that are locked each time that is asked, the last for ever if it
        ``stays_locked``.
        """
        self.rules = rules
        self.confirms = list(confirms)
        self.ids = ids or {}
        self.locks = list(locked)
        self.stays_locked = stays_locked
        self.calls: list[str] = []
        self.stored: list[int] = []
        self.deleted: list[int] = []
        self.forgotten: list[int] = []
        self.bound: list[int] = []
        self.unbound: list[int] = []
        self.confirmed = 0

    @override
    def connect(self) -> None:
        self.calls.append("connect")

    @override
    def store(self, batch: Batch) -> None:
        self.calls.append("store")
        assert batch.items
        if any(seqs.intersection(batch.deletes) for seqs in self.locks):
            raise Locked("somebody has locked it")
        for rule in self.rules:
            error = rule(batch)
            if isinstance(error, Committed):
                self._apply(batch)
                raise error.error
            if error is not None:
                raise error
        self._apply(batch)

    def _apply(self, batch: Batch) -> None:
        seqs = [one.last_seq for one in batch.messages]
        self.stored += sorted(seqs + [row.seq for row in batch.rows if row.seq > 0])
        self.deleted += batch.deletes
        self.forgotten += batch.forgotten
        self.bound += [row.seq for row in batch.binding_rows]
        self.bound = [one for one in self.bound if one not in batch.unbound]
        self.unbound += batch.unbound

    @override
    def is_stored(self, marker: Marker) -> bool:
        self.calls.append("is_stored")
        return marker.seq in self.stored

    @override
    def duplicate_ids(self, cache_id: int) -> Iterable[tuple[int, bytes]]:
        return [(seq, encode_duplicate_id(b"%d" % seq)) for seq in self.ids.get(cache_id, ())]

    @override
    def locked(self, rows: Sequence[RowKey]) -> Collection[RowKey]:
        seqs: set[int] = self.locks[0] if self.locks else set()
        if not self.stays_locked:
            del self.locks[:1]
        return [row for row in rows if row.seq in seqs]

    @override
    def confirm(self) -> None:
        self.calls.append("confirm")
        if self.confirms:
            raise self.confirms.pop(0)
        self.confirmed += 1

    @override
    def keep_alive(self) -> None:
        self.calls.append("keep alive")

    @override
    def close(self) -> None:
        self.calls.append("close")


class Writing:
    """A writer on a store, and what it said."""

    def __init__(
        self,
        store: BatchStore,
        limits: JournalLimits | None = None,
        still_valid: Callable[[], bool] | None = None,
        clock: Callable[[], float] = monotonic_seconds,
    ) -> None:
        self.told: list[tuple[str, int]] = []
        """What became of each unit, which is named by the highest seq of it."""
        self.sizes: list[int] = []
        """Of the batches that were told of as stored."""
        self.reasons: dict[int, OrthiaError] = {}
        self.full: list[StoreFull | None] = []
        self.aside: list[int] = []
        """Units that were put aside, by their highest seqs."""
        self.failures: list[OrthiaError] = []
        self.is_valid = True
        self.asked = 0
        """How often the lease was asked."""
        self._ask = still_valid or (lambda: self.is_valid)
        self.writer = Writer(
            store,
            limits or JournalLimits(),
            still_valid=self._still_valid,
            stored=self._stored,
            refused=self._refused,
            failed=self.failures.append,
            full=self.full.append,
            aside=lambda units: self.aside.extend(one.last_seq for one in units),
            clock=clock,
        )

    def _still_valid(self) -> bool:
        self.asked += 1
        return self._ask()

    def _stored(self, batch: Batch, _report: object) -> None:
        self.sizes.append(len(batch.items))
        self.told.extend(("stored", one.last_seq) for one in batch.items)

    def _refused(self, item: Appended, reason: OrthiaError) -> None:
        self.told.append(("refused", item.last_seq))
        self.reasons[item.last_seq] = reason

    def submit(self, *items: Appended) -> None:
        """Hand units over."""
        for item in items:
            self.writer.submit(item)

    def wait(self, condition: Callable[[], object]) -> None:
        """Wait for something the writer does."""
        wait_until(lambda: condition() or self.failures, what="the writer does it")
        assert not self.failures

    def wait_asked(self, times: int) -> None:
        """Wait until the lease was asked for so often again."""
        wanted = self.asked + times
        self.wait(lambda: self.asked >= wanted)

    def end(self) -> None:
        """Let the writer end, once it has done what there is to do."""
        self.writer.finish()
        assert self.writer.join(120)


def write(store: BatchStore, *items: Appended, limits: JournalLimits | None = None) -> Writing:
    """Let a writer store units that all wait when it begins, and then end."""
    writing = Writing(store, limits)
    writing.submit(*items)
    writing.writer.finish()
    writing.writer.start()
    assert writing.writer.join(120)
    return writing


def message(seq: int, sender: Sender | None = None, data: bytes = b"x") -> AppendedMessage:
    """Return a message on its way."""
    return AppendedMessage(seq, QUEUE, data, None, lambda _: None, sender)


def deletion(*seqs: int) -> Unit:
    """Return an acknowledgement on its way."""
    unit = Unit(None, max(seqs))
    unit.add_deletes([MessageLocation(seq) for seq in seqs])
    return unit


def move(seq: int, *, moved: int, copy: bool = True) -> Unit:
    """Return a dead letter on its way, as a copy, or to the subscribers of a topic."""
    unit = Unit(None, seq)
    unit.refused = lambda _: None
    if copy:
        unit.add_message([QUEUE], b"x")
    unit.move(MessageLocation(moved), RemovalReason.DEAD_LETTERED)
    unit.place(seq)
    unit.last_seq = seq
    return unit


def acknowledged(*seqs: int) -> Rule:
    """Say of these messages that an application has acknowledged them."""

    def rule(batch: Batch) -> Exception | None:
        found = set(seqs).intersection(batch.moved)
        return AcknowledgedBefore(found) if found else None

    return rule


def transaction(seq: int, sender: Sender, *, deletes: int | None = None) -> Unit:
    """Return a transaction on its way, of one message, and perhaps of an acknowledgement."""
    unit = Unit()
    unit.sender, unit.refused = sender, lambda _: None
    unit.add_message([QUEUE], b"x")
    if deletes is not None:
        unit.delete(MessageLocation(deletes))
    unit.place(seq)
    return unit


def binding(seq: int) -> Unit:
    """Return a queue on its way."""
    unit = Unit()
    unit.add_binding(QueueBinding(seq, "q", "q", RoutingType.ANYCAST))
    unit.place(seq + 1)
    return unit


def unbinding(seq: int) -> Unit:
    """Return the end of a queue on its way."""
    unit = Unit()
    unit.delete_binding(seq)
    unit.place(seq + 1)
    return unit


def end_of_ids(cache_id: int) -> Unit:
    """Return the end of an id cache on its way."""
    unit = Unit()
    unit.delete_id_cache(cache_id)
    unit.place(20)
    return unit
