# mypyc compiles this module.
"""Messages that consumers hold or gave back, and those that wait for redelivery."""

import heapq
import random
from collections.abc import Collection, Sequence
from functools import partial
from typing import Final, Protocol

from orthia.broker.core.api import Done, MessageReference
from orthia.broker.core.limits.memory import size_in_store
from orthia.broker.core.queue.counters import QueueCounters
from orthia.broker.core.queue.cursor import Cursor
from orthia.broker.core.queue.delayed import Delayed
from orthia.broker.core.queue.log import QueueLog
from orthia.broker.core.queue.pace import AT_ONCE, Pace
from orthia.broker.core.queue.redelivery import keep_attempts, redelivery_delay_ms
from orthia.broker.core.queue.services import Disposal, QueueServices
from orthia.broker.core.slices import GO_ON, Steps
from orthia.config.addresses import ResolvedAddressSettings
from orthia.journal.model.windows import StoredMessage

BACK_OFF_MS: Final = 10_000
"""How long a message waits that was delivered too often and has nowhere else to go."""


class _OwningQueue(Protocol):
    """The queue, as far as messages come back to it."""

    settings: ResolvedAddressSettings
    disposal: Disposal
    is_leaving: bool
    is_forgotten: bool

    def dispatch(self) -> bool:
        """Deliver."""

    def returning(self, references: Sequence[MessageReference]) -> Sequence[MessageReference]:
        """Return those of the messages given back that the queue still keeps."""

    def answered(self, references: Sequence[MessageReference]) -> None:
        """Note that messages have left their consumers."""

    def returned(self, references: Sequence[MessageReference]) -> None:
        """Note that messages were given back."""

    def take_in(self) -> None:
        """Sort what was given back to where delivery looks for it."""

    def drop(self, reference: MessageReference) -> None:
        """Discount a message that moves to another queue or is dropped."""


class _Attempted:
    """Messages whose delivery failed."""

    __slots__ = ("_references", "is_last")

    def __init__(self, references: Sequence[MessageReference], *, is_last: bool) -> None:
        self._references = set(references)
        self.is_last = is_last
        """Whether nobody is to get them again."""

    def __contains__(self, reference: MessageReference) -> bool:
        """Return whether a message is one of them."""
        return reference in self._references


_NOTHING: Final = _Attempted((), is_last=False)


class Unsettled:
    """What is out of a queue's log and not acknowledged; all calls on the loop's thread."""

    __slots__ = (
        "_behind", "_counters", "_log", "_pace", "_queue", "_services", "being_replaced", "delayed",
        "delivered", "retries", "returned", "took_back",
    )  # fmt: skip

    def __init__(
        self,
        queue: _OwningQueue,
        log: QueueLog,
        counters: QueueCounters,
        pace: Pace,
        services: QueueServices,
    ) -> None:
        self._queue = queue
        self._log = log
        self._counters = counters
        self._pace = pace
        self._services = services
        self.delivered = 0
        """How many messages consumers have."""
        self.returned: list[tuple[int, MessageReference]] = []
        """What was given back; a heap by seq, and never another list."""
        self.delayed = Delayed()
        """What waits for its redelivery."""
        self.retries: dict[int, int] = {}
        """The earliest redelivery of messages that an earlier node failed to deliver, by seq."""
        self.being_replaced: Collection[int] = frozenset()
        """The seqs of messages that a unit deletes which is on its way, with what replaces them."""
        self.took_back = False
        """Whether any message came back that could not be moved."""
        self._behind: Done | None = None
        """What follows the attempts that are stored next."""

    def load(self, message: StoredMessage, cursor: Cursor) -> MessageReference:
        """Count a message as in memory that was in the table only, and its attempts."""
        reference = self._log.load(message, cursor)
        if message.attempts:
            reference.attempts = message.attempts
            if message.retry_ms:
                self.retries[message.seq] = message.retry_ms
        return reference

    def is_put_off(self, reference: MessageReference, now_ms: int) -> bool:
        """Return whether a message waits for its redelivery; if so, it is delayed until then."""
        delay_ms = self.retries.pop(reference.seq, 0) - now_ms
        if delay_ms <= 0:
            return False
        self._services.budget.claim(reference.size)
        self._delay([reference], delay_ms)
        return True

    # --- acknowledged

    def acknowledged(self, references: Sequence[MessageReference]) -> None:
        """Forget delivered messages; their rows are deleted by the caller."""
        number = len(references)
        if not number:
            return
        size = large = 0
        for reference in references:
            size += reference.size
            body = reference.record.large
            if body is not None:
                large += body.size
        log, budget = self._log, self._services.budget
        self.delivered -= number
        log.in_memory -= number
        log.bytes_in_memory -= size
        budget.used -= size
        budget.unclaim(size)
        log.stored_bytes -= size + large
        log.use.release(size + large, number)

    def restored(self, references: Sequence[MessageReference]) -> None:
        """Count as delivered again what was acknowledged: the rows stay."""
        log, budget = self._log, self._services.budget
        number = len(references)
        size = sum([reference.size for reference in references])
        self.delivered += number
        log.in_memory += number
        log.bytes_in_memory += size
        budget.used += size
        budget.claim(size)
        stored = sum([size_in_store(reference.record) for reference in references])
        log.charge(stored, number)

    # --- coming back

    def give_back(
        self,
        references: Sequence[MessageReference],
        attempted: Sequence[MessageReference],
        done: Done | None,
        *,
        is_last: bool = False,
    ) -> None:
        """Put messages back in their place; delivery of the ``attempted`` failed.

        If the attempt ``is_last``, they are dead letters, however few there were. Of many the rest
        is done in later turns of the loop.
        """
        failed = _Attempted(attempted, is_last=is_last)
        if len(references) <= AT_ONCE:
            self._give_last_back(references, failed, done)
            self._queue.dispatch()
        else:
            self._services.slices.run(self._giving_back(references, failed, done))

    def _give_last_back(
        self,
        references: Sequence[MessageReference],
        failed: _Attempted,
        done: Done | None,
    ) -> None:
        """Give back the last of what comes back together, and call ``done`` behind it."""
        self._behind = done
        try:
            self._give_some_back(references, failed)
        finally:
            done, self._behind = self._behind, None
            if done is not None and self._services.gate.is_running:
                self._keep_attempts((), done)

    def _giving_back(
        self,
        references: Sequence[MessageReference],
        failed: _Attempted,
        done: Done | None,
    ) -> Steps:
        first = 0
        self._pace.held += 1
        try:
            while first < len(references) - AT_ONCE:
                some = references[first : first + AT_ONCE]
                first += AT_ONCE
                self._give_some_back(some, failed)
                self._queue.take_in()  # here, and not all of them in one step at the end
                yield GO_ON
            some, first = references[first:], len(references)
            self._give_last_back(some, failed, done)
        except Exception:
            # The others come back all the same.
            behind = done if first < len(references) else None
            self._services.slices.later(self._giving_back(references[first:], failed, behind))
            raise
        finally:
            self._pace.held -= 1
        self._queue.dispatch()

    def _give_some_back(self, references: Sequence[MessageReference], failed: _Attempted) -> None:
        queue = self._queue
        references = queue.returning(references)
        self.delivered -= len(references)
        queue.answered(references)
        if queue.is_forgotten:
            self._log.in_memory -= len(references)
            self._services.budget.unclaim(sum([one.size for one in references]))
            for lost in [one for one in references if one.location is None]:
                self._log.release(size_in_store(lost.record))
            return
        if queue.is_leaving:
            failed = _NOTHING  # what is moved from here on would be deleted here, too
        later: dict[int, list[MessageReference]] = {}
        counted: list[tuple[MessageReference, int]] = []
        left = iter(references)
        try:
            for reference in left:
                reference.redelivered = True
                delay_ms = 0
                if reference in failed:
                    after = self._after_attempt(reference, is_last=failed.is_last)
                    if after is None:
                        continue
                    delay_ms = after
                    counted.append((reference, delay_ms))
                self._counters.redelivered += 1
                if delay_ms:
                    later.setdefault(delay_ms, []).append(reference)
                else:
                    heapq.heappush(self.returned, (reference.seq, reference))
        except Exception:
            # None of them is lost to clients for what failed with one.
            later.setdefault(BACK_OFF_MS, []).extend((reference, *left))
            raise
        finally:
            if counted and self._services.gate.is_running:
                behind, self._behind = self._behind, None
                self._keep_attempts(counted, behind)
            for delay_ms, delayed in later.items():
                self._delay(delayed, delay_ms)
        queue.returned(references)

    def _keep_attempts(
        self, counted: Sequence[tuple[MessageReference, int]], done: Done | None
    ) -> None:
        """Store attempts, and after how long messages are delivered again; ``done`` follows.

        Not of those that go in a unit that is on its way: nothing would delete it again.
        """
        stored = [one for one in counted if one[0].seq not in self.being_replaced]
        services = self._services
        now_ms = services.timers.time_ms()
        keep_attempts(services.journal, self._log.known_id_for, stored, now_ms, done)

    def _after_attempt(self, reference: MessageReference, *, is_last: bool) -> int | None:
        """Count an attempt; return when to try again, or None if the message is a dead letter."""
        reference.attempts += 1
        settings = self._queue.settings
        delay_ms = redelivery_delay_ms(settings, reference.attempts, random.random)
        if not (is_last or 0 < settings.max_delivery_attempts <= reference.attempts):
            return delay_ms
        if not self._queue.disposal.dead_letter(self._queue, reference):
            return max(delay_ms, BACK_OFF_MS)
        self._counters.dead_lettered += 1
        self._queue.drop(reference)
        self._log.release(size_in_store(reference.record))
        self._services.budget.unclaim(reference.size)
        return None

    # --- waiting for a redelivery

    def take_back(self, reference: MessageReference, after_ms: int = BACK_OFF_MS) -> None:
        """Count a message again that could not be moved; it is delivered again after a while."""
        self.took_back = True
        self._log.keep(reference)
        self._log.charge(size_in_store(reference.record))
        self._services.budget.claim(reference.size)
        self._delay([reference], after_ms)

    def came_back(self, reference: MessageReference) -> None:
        """Deliver a message that is counted as in memory before all that were never delivered."""
        reference.redelivered = True
        self._services.budget.claim(reference.size)
        heapq.heappush(self.returned, (reference.seq, reference))

    def _delay(self, references: list[MessageReference], delay_ms: int) -> None:
        self.delayed.update(references)
        self._services.timers.call_later(delay_ms, partial(self._after_delay, references))

    def _after_delay(self, references: list[MessageReference]) -> None:
        back = [one for one in references if one in self.delayed]  # or it was forgotten
        self.delayed.difference_update(back)
        for reference in back:
            heapq.heappush(self.returned, (reference.seq, reference))
        self._queue.dispatch()

    def stop_waiting(self, reference: MessageReference) -> None:
        """Forget a message that waits for its redelivery; the caller has it go."""
        self.delayed.discard(reference)
        self._services.budget.unclaim(reference.size)

    # --- leaving

    def pop_oldest(self) -> MessageReference:
        """Take out the oldest message that was given back."""
        reference = heapq.heappop(self.returned)[1]
        self._services.budget.unclaim(reference.size)
        return reference

    def take_returned(self, seqs: set[int]) -> list[MessageReference]:
        """Take out those messages that were given back which have one of the ``seqs``."""
        found = [one for _, one in self.returned if one.seq in seqs]
        for reference in found:
            self.returned.remove((reference.seq, reference))
            self._services.budget.unclaim(reference.size)
        heapq.heapify(self.returned)
        return found

    def forget(self) -> list[MessageReference]:
        """Forget and return what no consumer has."""
        waiting = [*(one for _, one in self.returned), *self.delayed]
        self.returned.clear()
        self.delayed.clear()
        self._services.budget.unclaim(sum([one.size for one in waiting]))
        return waiting
