# mypyc compiles this module.
"""The loop's side of a journal: ids, bounds, and completing callers in order. No IO, no locks."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from orthia.config.errors import OrthiaError
from orthia.journal.engine.batch import BatchReport
from orthia.journal.engine.storing_rate import LEAST_ROWS, StoringRate
from orthia.journal.errors import RecordTooLarge
from orthia.journal.limits import JournalLimits
from orthia.journal.model.changes import MessageLocation
from orthia.journal.model.codec import RecordVersion
from orthia.journal.model.message import STATED_VERSION
from orthia.journal.model.unit import (
    Appended,
    AppendedMessage,
    Binding,
    Done,
    Refused,
    Sender,
    Unit,
)

_AT_ONCE: Final = 64
"""How many callers are completed in one piece; larger batches are completed in steps."""
_IN_A_STEP: Final = 8
_NO_STEPS: Final[Iterator[bool]] = iter(())


def _raise(error: Exception) -> None:
    raise error


def _at_once(steps: Iterator[bool]) -> None:
    for _ in steps:
        pass


class Intake:
    """Gives out ids and counts what waits, all on the loop's thread.

    An id reservation goes to the store ahead of the ids it covers, half a block early: no id that
    was ever given out, stored or not, is above the limit the next live node starts from.

    Before the first message of a record version that older nodes cannot read it stores a binding
    that says so: older nodes then refuse to open this journal rather than skip its messages.
    """

    def __init__(
        self,
        *,
        first_id: int,
        max_record_bytes: int,
        limits: JournalLimits,
        submit: Callable[[Appended], None],
        bindings: Iterable[Binding] = (),
    ) -> None:
        """``bindings`` are those that are stored, and say which record versions messages have."""
        self._next_id = first_id
        self._block = limits.id_block
        self._reserve_at = first_id + self._block // 2
        self._max_record_bytes = max_record_bytes
        self._limits = limits
        self._rate = StoringRate(limits.waiting_seconds, limits.max_waiting_rows, 2 * LEAST_ROWS)
        self._submit = submit
        self._rows = 0
        self._bytes = 0
        self._aside: set[Unit] = set()
        """Units that wait for locks of other sessions, which ``_rows`` does not count."""
        self._aside_rows = 0
        self._was_full = False
        said = (one.version for one in bindings if isinstance(one, RecordVersion))
        self._said_version = max(said, default=STATED_VERSION - 1)
        """The highest record version that the bindings say messages have."""
        self._under_way: deque[Iterator[bool]] = deque()
        """Completions under way in steps, and those that wait behind them."""
        self._is_going_on = False
        """Whether a run of steps is under way, its last turn included."""
        self.run: Callable[[Iterator[bool]], object] = _at_once
        """Runs steps, each of which yields False: at once, until somebody replaces it."""
        self.failed: Callable[[Exception], None] = _raise
        """Called with what a completion in steps raises."""
        self._room_listeners: list[Callable[[], None]] = []
        self._batch_listeners: list[Callable[[BatchReport], None]] = []
        self.last_committed_seq = first_id - 1

    @property
    def is_full(self) -> bool:
        """True while what waits exceeds a bound; remembered, so that room is announced."""
        if (
            self._rows >= self._rate.rows
            or self._bytes >= self._limits.max_waiting_bytes
            or self._aside_rows >= self._limits.max_put_aside_rows
        ):
            self._was_full = True
        return self._was_full

    def next_id(self) -> int:
        """Return an id never given out before."""
        return self._take_ids(1)

    def message(
        self,
        queue_id: int,
        payload: bytes,
        done: Done | None,
        refused: Refused | None = None,
        sender: Sender | None = None,
        outbox_row: int = 0,
    ) -> int:
        """Submit a message of one queue and return its seq; the hot path."""
        size = len(payload)
        if size > self._max_record_bytes:
            raise RecordTooLarge(size, self._max_record_bytes)
        if payload[0] > self._said_version:
            self._say_version(payload[0])
        seq = self._next_id
        if seq >= self._reserve_at:
            self._reserve(1)
        self._next_id = seq + 1
        self._rows += 1
        self._bytes += size
        self._submit(AppendedMessage(seq, queue_id, payload, done, refused, sender, outbox_row))
        return seq

    def unit(self, unit: Unit) -> list[MessageLocation]:
        """Submit an atomic unit and return where its messages will be."""
        for _, payload in unit.messages:
            if len(payload) > self._max_record_bytes:
                raise RecordTooLarge(len(payload), self._max_record_bytes)
        if unit.record_version > self._said_version:
            self._say_version(unit.record_version)
        first = self._take_ids(unit.size_in_seqs)
        locations = unit.place(first)
        self._account(unit)
        return locations

    def deletion(self, locations: Iterable[MessageLocation], done: Done | None) -> None:
        """Submit the deletion of messages."""
        appended = Unit(done, self._next_id - 1)
        appended.add_deletes(locations)
        appended.only_deletes = not (appended.bodies or appended.unlinked or appended.untimed)
        self._account(appended)

    def complete(
        self, items: Sequence[Appended], report: BatchReport, then: Done | None = None
    ) -> None:
        """Complete the callers of stored ``items`` in order, then announce room if there is.

        ``last_committed_seq`` moves with each caller, not with the batch: a window asked for by
        one caller must not show the message whose own caller is still to be told. ``then`` is
        called at the end.
        """
        left = iter(items)
        if self._under_way or len(items) > _AT_ONCE:
            self._do(self._completing(None, left, report, then))
            return
        for item in left:
            if isinstance(item, AppendedMessage):  # as ``_settle``: most of a batch
                self._rows -= 1
                self._bytes -= len(item.payload)
                self.last_committed_seq = item.last_seq
            else:
                self._settle(item)
                if item.completes is not None:
                    self._do(self._completing(item.completes(), left, report, then))
                    return
            done = item.done
            if done is not None:
                done()
        self._completed(report, then)

    def _complete(self, items: Iterator[Appended]) -> Iterator[bool] | None:
        """Complete some callers, up to the first that needs steps; return those steps.

        Returns None once all are completed.
        """
        most = _IN_A_STEP
        for item in items:
            self._settle(item)
            if isinstance(item, Unit) and item.completes is not None:
                return item.completes()
            done = item.done
            if done is not None:
                done()
            most -= 1
            if not most:
                return _NO_STEPS
        return None

    def _completing(
        self,
        steps: Iterator[bool] | None,
        items: Iterator[Appended],
        report: BatchReport,
        then: Done | None,
    ) -> Iterator[bool]:
        while True:
            if steps is not None:
                yield from steps
            steps = self._complete(items)
            if steps is None:
                break
            yield False
        self._completed(report, then)

    def _completed(self, report: BatchReport, then: Done | None) -> None:
        rows = report.rows + report.deletes
        if report.attempts == 1 and rows >= LEAST_ROWS:
            self._rate.stored(rows, report.commit_seconds)
        for report_to in self._batch_listeners:
            report_to(report)
        self._announce_room()
        if then is not None:
            then()

    def _do(self, steps: Iterator[bool]) -> None:
        """Run steps after those that are under way."""
        self._under_way.append(steps)
        if not self._is_going_on:
            self._is_going_on = True
            self.run(self._going_on())

    def _going_on(self) -> Iterator[bool]:
        try:
            while self._under_way:
                try:
                    yield from self._under_way[0]
                except Exception as error:  # noqa: BLE001 - whoever made this says what follows
                    self.failed(error)
                if self._under_way:
                    self._under_way.popleft()
                    yield False
        finally:
            self._is_going_on = False

    def stop(self) -> None:
        """Stop completing callers."""
        self._under_way.clear()

    def refuse(self, item: Appended, reason: OrthiaError) -> None:
        """Tell the caller of ``item`` why it is not stored, and stop counting it as waiting."""
        if self._under_way:
            self._do(self._refusing(item, reason))
        else:
            self._refuse(item, reason)

    def _refusing(self, item: Appended, reason: OrthiaError) -> Iterator[bool]:
        self._refuse(item, reason)
        yield False

    def _refuse(self, item: Appended, reason: OrthiaError) -> None:
        self._settle(item)
        if item.refused is not None:
            item.refused(reason)
        self._announce_room()

    def put_aside(self, units: Iterable[Unit]) -> None:
        """Count units that wait for a lock of another session apart from what waits.

        One that waited for room since may be put aside once more.
        """
        for unit in units:
            if unit in self._aside:
                continue
            self._aside.add(unit)
            self._rows -= unit.cost_rows
            self._aside_rows += unit.cost_rows
        self._announce_room()

    def _settle(self, item: Appended) -> None:
        """Stop counting ``item`` as waiting."""
        if isinstance(item, AppendedMessage):
            self._rows -= 1
            self._bytes -= len(item.payload)
        else:
            if item in self._aside:
                self._aside.remove(item)
                self._aside_rows -= item.cost_rows
            else:
                self._rows -= item.cost_rows
            self._bytes -= item.payload_bytes
        # A unit that was kept until there was room is older than what was stored meanwhile.
        self.last_committed_seq = max(self.last_committed_seq, item.last_seq)

    def register_room_listener(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` each time what waits falls below half of every bound."""
        self._room_listeners.append(callback)

    def register_batch_listener(self, callback: Callable[[BatchReport], None]) -> None:
        """Call ``callback`` with each batch's report."""
        self._batch_listeners.append(callback)

    def _account(self, appended: Unit) -> None:
        self._rows += appended.cost_rows
        self._bytes += appended.payload_bytes
        self._submit(appended)

    def _take_ids(self, count: int) -> int:
        first = self._next_id
        if first + count > self._reserve_at:
            self._reserve(count)
        self._next_id = first + count
        return first

    def _reserve(self, count: int) -> None:
        reservation = Unit(None, self._next_id - 1)
        reservation.id_limit = self._next_id + count + self._block
        self._reserve_at = self._next_id + count + self._block // 2
        self._account(reservation)

    def _say_version(self, version: int) -> None:
        """Store, before the first message of it, that a record version is in use."""
        self._said_version = version
        unit = Unit()
        unit.add_binding(RecordVersion(self._take_ids(1), version))
        self.unit(unit)

    def _announce_room(self) -> None:
        if (
            self._was_full
            and self._rows <= self._rate.rows // 2
            and self._bytes <= self._limits.max_waiting_bytes // 2
            and self._aside_rows < self._limits.max_put_aside_rows
        ):
            self._was_full = False
            for announce in self._room_listeners:
                announce()
