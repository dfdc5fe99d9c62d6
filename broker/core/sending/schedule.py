# mypyc compiles this module.
"""Scheduled messages: finding those that are due, and sending them.

Each destination with scheduled messages has a queue of its own for them, its *schedule*, which
nobody consumes from. So they count against the limits of the address, are listed, deleted, exported
and audited like all messages, and survive what queues survive. None of them is in memory. The store
finds those that are due by an index on their moments, a few at a time and by its own clock: so none
is early, whatever the node's clock shows.

When a message is due, one unit of the journal takes it out of its schedule and puts it at the end
of the queues that its destination has *then*; topic subscribers without a queue get it then, too.
A node that dies in between leaves it in one place or the other.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final

from orthia.broker.core.destinations import is_schedule
from orthia.broker.core.limits.memory import size_in_store
from orthia.broker.core.queue.queue import Queue
from orthia.broker.core.routing.address_expiry import LATEST_MS
from orthia.broker.core.routing.router import Routed
from orthia.broker.core.sending.context import SendContext
from orthia.broker.core.sending.plan import SendPlan
from orthia.broker.core.sending.recurrence import ONCE, Recurrence, decode
from orthia.broker.core.sending.schedule_queues import ScheduleQueues
from orthia.broker.core.slices import GO_ON, Slices, Steps, Wait
from orthia.broker.core.timers import Timers
from orthia.config.errors import OrthiaError
from orthia.journal.errors import AcknowledgedBefore, HeldElsewhere, JournalClosed, StoreFull
from orthia.journal.journal import MessageJournal
from orthia.journal.model.changes import MessageLocation
from orthia.journal.model.fields import decode_fields, encode_fields
from orthia.journal.model.message import Message
from orthia.journal.model.moments import FIRST_MOMENT, MomentKind, MomentPlace
from orthia.journal.model.records import RemovalReason
from orthia.journal.model.unit import Unit
from orthia.journal.model.windows import QueueCounts, QueuePlace, Reached, TimedMessage, Window

LOGGER = logging.getLogger("orthia.broker")
_AT_ONCE: Final = 200
"""Messages of one read: they are moved before the store is asked for more."""
_COPIES_AT_ONCE: Final = 1_000
"""Copies on their way to the store; beyond it no message is moved, as others wait behind them."""
_BYTES_AT_ONCE: Final = 4 * 1024 * 1024
_COUNT_STEP: Final = 5_000
_LONGEST_MS: Final = 60_000
"""The longest timer: the clock may be set meanwhile."""
_RETRY_MS: Final = 1_000
_AFTER_REFUSAL_MS: Final = 10_000
"""How long to wait before moving a message again that could not be moved."""


class Schedule:
    """Moves messages that are due; on the loop's thread."""

    def __init__(
        self,
        journal: MessageJournal,
        context: SendContext,
        queues: ScheduleQueues,
        timers: Timers,
        slices: Slices,
    ) -> None:
        self._journal = journal
        self._slices = slices
        self._copies = 0
        """Copies of messages on their way to the store."""
        self._room: list[Wait] = []
        """Steps that wait for fewer copies, or for room in the journal."""
        journal.register_room_listener(self._has_room)
        self._context = context
        self._queues = queues
        self._timers = timers
        self._is_busy = False
        """Whether a read or a move is under way."""
        self._wake_ms: int | None = None
        """When the next timer ends, by the clock of messages; None without one."""
        self._next_ms: int | None = None
        """When the next message is due, as far as this node knows; None if there is none."""
        self._outstanding = 0
        self._after: MomentPlace | None = None
        """Where to read on; None once all that was due was read."""
        self._retry_ms: int | None = None
        """When to look again because something could not be moved."""
        self._moving: set[int] = set()
        self._left: set[int] = set()
        """Messages that are gone since the last read began, which may still show them."""
        self._cancelled: set[int] = set()
        self._told: set[int] = set()

    # --- coming in

    def placed(self, at_ms: int) -> None:
        """Note that a message is stored that is due at a moment."""
        if self._next_ms is None or at_ms < self._next_ms:
            self._next_ms = at_ms
            self._arm()

    # --- when to look

    def start(self) -> None:
        """Look for messages that earlier nodes left, and count them."""
        if any(True for _ in self._queues.schedules()):
            self._look()

    def _arm(self) -> None:
        due = [at for at in (self._next_ms, self._retry_ms) if at is not None]
        if self._is_busy or not due:
            return
        now = self._timers.time_ms()
        wake_ms = now + min(max(min(due) - now, 0), _LONGEST_MS)
        if self._wake_ms is None or wake_ms < self._wake_ms:
            self._wake_ms = wake_ms
            self._timers.call_later(wake_ms - now, partial(self._wake, wake_ms))

    def _wake(self, wake_ms: int) -> None:
        if self._wake_ms != wake_ms:
            return  # an earlier timer has replaced this one
        self._wake_ms = None
        now = self._timers.time_ms()
        if self._is_busy:
            return
        if any(at is not None and at <= now for at in (self._next_ms, self._retry_ms)):
            self._look()
        else:
            self._arm()

    def _look(self) -> None:
        self._is_busy = True
        self._next_ms = self._retry_ms = None
        self._after = FIRST_MOMENT
        self._go_on()

    def _go_on(self) -> None:
        """Count a schedule that an earlier node left, or read on, or wait for the next moment."""
        try:
            uncounted = self._uncounted()
            if uncounted is not None:
                self._count(*uncounted)
            elif self._after is None:
                self._is_busy = False
                self._arm()
            elif self._journal.is_full:
                self._timers.call_later(_RETRY_MS, self._go_on)
            else:
                self._left.clear()
                self._journal.read_reached(
                    MomentKind.DUE,
                    self._after,
                    self._timers.time_ms(),
                    _AT_ONCE,
                    _BYTES_AT_ONCE,
                    self._read,
                )
        except JournalClosed:
            return  # this node is ending: the next one goes on

    # --- counting what earlier nodes left, while nothing is moved: so the count is exact

    def _uncounted(self) -> tuple[Queue, int] | None:
        for queue in self._queues.schedules():
            after = queue.uncounted_after
            if after is not None:
                return queue, after
        return None

    def _count(self, queue: Queue, after: int) -> None:
        horizon = self._journal.recovery_horizon
        place = QueuePlace(queue.id, after)

        def counted(counts: QueueCounts | OrthiaError) -> None:
            if isinstance(counts, OrthiaError):
                LOGGER.warning(
                    "counting the scheduled messages of queue %s failed: %s; retrying in %d s",
                    queue.name,
                    counts,
                    _RETRY_MS // 1000,
                )
                self._timers.call_later(_RETRY_MS, self._go_on)
                return
            last = counts.next_after
            up_to = last.seq if last is not None and last.queue_id == queue.id else horizon
            messages = counts.messages.get(queue.id, 0)
            queue.counted(after, up_to, messages, counts.payload_bytes.get(queue.id, 0))
            self._go_on()

        self._journal.count(place, horizon, _COUNT_STEP, counted)

    # --- moving what is due

    def _read(self, reached: Reached | OrthiaError) -> None:
        if isinstance(reached, OrthiaError):
            LOGGER.error(
                "reading scheduled messages that are due failed: %s; retrying in %d s",
                reached,
                _RETRY_MS // 1000,
            )
            self._timers.call_later(_RETRY_MS, self._go_on)
            return
        self._after = reached.next_after
        if reached.next_at_ms is not None:
            # By the store's clock: if that is behind, looking at once would find nothing.
            ahead_ms = reached.next_at_ms - reached.now_ms
            self.placed(max(reached.next_at_ms, self._timers.time_ms() + ahead_ms))
        for corrupt in reached.corrupt:
            if corrupt.seq not in self._told:
                self._told.add(corrupt.seq)
                LOGGER.error("a scheduled message cannot be read: %s; its row stays", corrupt)
        self._outstanding = 1
        self._slices.run(self._moving_all(reached))

    def _moving_all(self, reached: Reached) -> Steps:
        """Move what was read, one message after the other, when the journal has room."""
        schedules = {queue.id: queue for queue in self._queues.schedules()}
        try:
            self._forget([seq for seq in reached.gone if not self._is_known(seq)])
            for timed in reached.messages:
                while self._journal.is_full or self._copies >= _COPIES_AT_ONCE:
                    wait = Wait(self._room.remove)
                    self._room.append(wait)
                    yield wait
                seq, queue = timed.message.seq, schedules.get(timed.queue_id)
                if self._is_known(seq):
                    continue
                if queue is None:
                    self._forget([seq])  # it is in a queue already
                elif not queue.is_leaving:
                    yield from self._move(queue, timed, reached.now_ms)
                yield GO_ON
            self._moved()
        except JournalClosed:
            return  # this node is ending: the next one goes on

    def _is_known(self, seq: int) -> bool:
        """Return whether a message that was read is on its way already, or gone by now."""
        return seq in self._moving or seq in self._cancelled or seq in self._left

    def _has_room(self) -> None:
        waiting, self._room = self._room, []
        for wait in waiting:
            wait()

    def _forget(self, seqs: Sequence[int]) -> None:
        if seqs:
            unit = Unit(partial(self._are_gone, seqs))
            unit.forget_times(seqs)
            self._moving.update(seqs)
            self._journal.append_unit(unit)

    def _are_gone(self, seqs: Iterable[int]) -> None:
        self._moving.difference_update(seqs)
        self._left.update(seqs)

    def _moved(self) -> None:
        self._outstanding -= 1
        if not self._outstanding:
            self._go_on()

    def _move(self, schedule: Queue, timed: TimedMessage, now_ms: int) -> Steps:
        """Send a message that is due to the queues and topics that its destination has now."""
        message = timed.message
        seq, record = message.seq, message.record
        self._moving.add(seq)
        try:
            plain, following, client_id = _following(record, timed.at_ms, now_ms)
            routed: list[Routed] = []
            if plain is not None:
                routed = yield from self._queues.route_due(schedule, plain, client_id)
                if schedule.is_leaving:
                    self._moving.discard(seq)
                    return
            with SendPlan(self._context) as plan:
                # A series without end could fill the store, so the limits apply to it: it waits for
                # room. A single message was admitted when it was sent.
                is_limited = bool(following)
                for one in following:
                    plan.move([schedule], one, is_limited=True)
                for to in routed:
                    plan.move(to.queues, to.record, to.topics, is_limited=is_limited)
                plan.take_out(schedule, message.location, RemovalReason.DUE, record.large)
                self._apply(plan, schedule, seq, size_in_store(record))
        except MemoryError:
            raise
        except Exception as error:  # noqa: BLE001 - one message must not keep all others back
            self._moving.discard(seq)
            self._not_moved(seq, schedule, error)

    def _apply(self, plan: SendPlan, schedule: Queue, seq: int, size: int) -> None:
        copies = plan.copies
        # A unit that only deletes may wait long for a lock of another session: nobody waits for it.
        is_awaited = bool(copies)

        def answered() -> None:
            self._moving.discard(seq)
            self._copies -= copies
            self._has_room()

        def moved() -> None:
            self._left.add(seq)
            answered()
            schedule.log.left(seq, size)
            if is_awaited:
                self._moved()

        def refused(error: OrthiaError) -> None:
            answered()
            self._not_moved(seq, schedule, error)
            if is_awaited:
                self._moved()
            else:
                self._arm()

        plan.apply(moved, refused)
        self._copies += copies
        self._outstanding += is_awaited

    def _not_moved(self, seq: int, schedule: Queue, error: Exception) -> None:
        """Try again later, unless somebody deletes it first; some reasons are logged elsewhere."""
        self._retry_ms = self._timers.time_ms() + _AFTER_REFUSAL_MS
        is_told = isinstance(error, StoreFull | HeldElsewhere | AcknowledgedBefore)
        if not is_told and seq not in self._told:
            self._told.add(seq)
            LOGGER.error(
                "message %d of queue %s is due and cannot be delivered: %s; it stays there,"
                " retrying every %d s",
                seq,
                schedule.name,
                error,
                _AFTER_REFUSAL_MS // 1000,
            )

    # --- being cancelled, or moved by an operator

    def claim(self, seq: int) -> bool:
        """Keep a message from being delivered; False if it just is, or is claimed already."""
        if seq in self._moving or seq in self._cancelled:
            return False
        self._cancelled.add(seq)
        return True

    def claimed_is_gone(self, queue: Queue, seq: int, size: int) -> None:
        """Note that a message that was claimed is deleted, which counted for ``size`` bytes."""
        self._left.add(seq)  # what is being read may show it
        self._cancelled.discard(seq)
        queue.log.left(seq, size)

    def claimed_stays(self, seqs: Iterable[int]) -> None:
        """Note that messages that were claimed stay after all."""
        self._cancelled.difference_update(seqs)
        # One may have become due meanwhile and been skipped.
        self.placed(self._timers.time_ms())

    def cancel(self, queue: Queue, seq: int, done: Callable[[int], None]) -> None:
        """Delete a message that is not due; ``done`` gets 1 once it is gone.

        Or 0 if there is no such message, or if it is just being delivered.
        """
        if not is_schedule(queue.name) or not self.claim(seq):
            self._timers.call_later(0, lambda: done(0))
            return

        def found(window: Window | OrthiaError) -> None:
            locations: list[MessageLocation] = []
            size = 0
            if isinstance(window, Window) and not queue.is_leaving and seq not in self._moving:
                locations += [one.location for one in window.messages]
                size = sum(size_in_store(one.record) for one in window.messages)
                locations += [MessageLocation(one.seq, is_timed=True) for one in window.corrupt]
            unit = Unit(partial(ended, len(locations), size))
            for location in locations:
                unit.delete(location, RemovalReason.DELETED)
            self._journal.append_unit(unit)

        def ended(count: int, size: int) -> None:
            if count:
                self.claimed_is_gone(queue, seq, size)
            else:
                self.claimed_stays((seq,))
            done(count)

        self._journal.read_window(queue.id, seq - 1, seq, 1, _BYTES_AT_ONCE, found)


def _following(
    record: Message, at_ms: int, now_ms: int
) -> tuple[Message | None, list[Message], str | None]:
    """Return the message to deliver now, if any, those due later, and the sender's client id."""
    fields = decode_fields(record.stated)
    recurrence: Recurrence = ONCE if fields.recurrence is None else decode(fields.recurrence)
    following = recurrence.after(at_ms, now_ms)
    rest = fields._replace(delivery_ms=None, recurrence=None, client_id=None)
    plain = record._replace(stated=encode_fields(rest))
    if fields.recurrence is not None and record.expires_ms:
        # Each delivery is a message of its own: its time to live begins when it is due.
        lasts_ms = record.expires_ms - record.timestamp_ms
        plain = plain.expiring(min(now_ms + lasts_ms, LATEST_MS))
    rest = rest._replace(client_id=fields.client_id)
    later = [
        record._replace(stated=encode_fields(one))
        for one in (
            rest._replace(delivery_ms=due, recurrence=recurrence.encode())
            for due, recurrence in following.scheduled
        )
    ]
    return plain if following.is_delivered else None, later, fields.client_id
