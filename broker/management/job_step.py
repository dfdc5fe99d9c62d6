"""One step of an operation on many messages: one unit of the journal.

Where each message goes is found out before, in turns with all other work of the loop: see
``prepared``. What is left is done in one turn, so that no consumer gets a message meanwhile. It
takes as many messages as there is time for, and says how many.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from typing_extensions import override

from orthia.broker.core.api import MessageReference
from orthia.broker.core.destinations import is_schedule
from orthia.broker.core.limits.memory import size_in_store
from orthia.broker.core.queue.queue import Queue
from orthia.broker.core.queue.taking import take, take_unstored, taken
from orthia.broker.core.sending.context import SendContext
from orthia.broker.core.sending.plan import SendPlan
from orthia.broker.core.sending.schedule import Schedule
from orthia.broker.core.slices import GO_ON, Finding
from orthia.broker.management.job import RECORD_KIND, Job
from orthia.broker.management.placing import Placed, Placing
from orthia.broker.management.views import JobKind
from orthia.config.errors import OrthiaError
from orthia.journal.model.changes import MessageLocation
from orthia.journal.model.codec import OperatorRecord
from orthia.journal.model.message import Message
from orthia.journal.model.windows import StoredMessage

STEP_SECONDS: Final = 0.002
"""Of a processor, after which a step takes no further message: it is one turn of the loop."""


@dataclass(frozen=True, slots=True)
class Stored:
    """A message as a window showed it."""

    level: int
    message: StoredMessage

    @property
    def seq(self) -> int:
        """Its place in the journal."""
        return self.message.seq

    @property
    def record(self) -> Message:
        """The message."""
        return self.message.record

    @property
    def location(self) -> MessageLocation | None:
        """Where its row is."""
        return self.message.location

    def take(self, queue: Queue) -> MessageReference | None:
        """Take it out; None if somebody has it, or it is gone."""
        return take(queue, self.level, self.message)


@dataclass(frozen=True, slots=True)
class Unstored:
    """A message in memory only."""

    seq: int
    record: Message
    location: MessageLocation | None = None

    def take(self, queue: Queue) -> MessageReference | None:
        """Take it out; None if somebody has it, or it is gone."""
        return take_unstored(queue, self.seq)


Chosen = Stored | Unstored


@dataclass(frozen=True, slots=True)
class Prepared:
    """A message, and what becomes of it; None if it stays."""

    chosen: Chosen
    placed: Placed | None


def prepared(
    job: Job, queue: Queue, placing: Placing, chosen: Sequence[Chosen]
) -> Finding[list[Prepared]]:
    """Return what becomes of messages; raises BrokerError."""
    found: list[Prepared] = []
    for one in chosen:
        found.append(Prepared(one, placing.of(job.order, queue, one.seq, one.record)))
        yield GO_ON
    return found


class _Source(ABC):
    """Where a step takes messages out."""

    @abstractmethod
    def take(self, one: Chosen) -> MessageLocation | bool | None:
        """Take a message out, and return where its row is, if it has one; False if it stays."""

    @abstractmethod
    def stored(self) -> None:
        """Note that the rows of those that were taken are gone."""

    @abstractmethod
    def undo(self) -> None:
        """Put back those that were taken."""

    @abstractmethod
    def settled(self) -> None:
        """Go on after some were taken, or put back."""


class _Queue(_Source):
    """A queue that delivers to consumers: what they have stays with them."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._references: list[MessageReference] = []

    @override
    def take(self, one: Chosen) -> MessageLocation | bool | None:
        reference = one.take(self._queue)
        if reference is None:
            return False
        self._references.append(reference)
        return reference.location

    @override
    def stored(self) -> None:
        self._references.clear()

    @override
    def undo(self) -> None:
        references, self._references = self._references, []
        for reference in references:
            self._queue.restore_removed(reference)

    @override
    def settled(self) -> None:
        taken(self._queue)


class _Schedule(_Source):
    """A queue of messages that are delivered later: what is being delivered stays."""

    def __init__(self, schedule: Schedule, queue: Queue) -> None:
        self._schedule = schedule
        self._queue = queue
        self._claimed: dict[int, int] = {}

    @override
    def take(self, one: Chosen) -> MessageLocation | bool | None:
        if not self._schedule.claim(one.seq):
            return False
        self._claimed[one.seq] = size_in_store(one.record)
        return one.location

    @override
    def stored(self) -> None:
        claimed, self._claimed = self._claimed, {}
        for seq, size in claimed.items():
            self._schedule.claimed_is_gone(self._queue, seq, size)
        self._queue.counters.removed += len(claimed)

    @override
    def undo(self) -> None:
        claimed, self._claimed = self._claimed, {}
        self._schedule.claimed_stays(claimed)

    @override
    def settled(self) -> None:
        pass


class Step:
    """The unit of one step; on the loop's thread."""

    def __init__(
        self,
        context: SendContext,
        schedule: Schedule,
        placing: Placing,
        job: Job,
        queue: Queue,
    ) -> None:
        self._source = _Schedule(schedule, queue) if is_schedule(queue.name) else _Queue(queue)
        self._context = context
        self._plan = SendPlan(context)
        self._placing = placing
        self._job = job
        self._queue = queue
        self._record_id: int | None = None
        self.looked_at = 0
        """How many messages it came to."""
        self.number = 0
        """How many messages it is done with, once stored."""
        self.left = 0

    def begin(
        self,
        messages: Sequence[Prepared],
        processor: Callable[[], float],
        *,
        done: Callable[[], None],
        refused: Callable[[OrthiaError], None],
    ) -> None:
        """Take out what is to be taken out, in its time, and append the unit; raises BrokerError.

        ``processor`` returns the processor time of this thread, in seconds. With a ``number`` of 0
        nothing is appended. If it is refused, or raises, all is as before.
        """

        def undone(error: OrthiaError) -> None:
            # At once: with the messages nowhere the queue would seem to be empty.
            self._undo()
            refused(error)

        try:
            with self._plan as plan:
                until = processor() + STEP_SECONDS
                for one in messages:
                    self._add(one)
                    self.looked_at += 1
                    if processor() >= until:
                        break
                if self.number:
                    self._say(plan)
                    plan.apply(done, undone)
        except BaseException:
            self._undo()
            raise
        self._source.settled()

    def _undo(self) -> None:
        self._source.undo()
        self._source.settled()

    def _say(self, plan: SendPlan) -> None:
        """Record in the unit of this step how far the job is after it."""
        job = self._job
        if job.records:
            self._record_id = self._context.next_id()
            details = job.details(done=job.done + self.number, left=job.left + self.left)
            record = OperatorRecord(self._record_id, RECORD_KIND, job.order.name, details)
            plan.record(record, job.record_id)

    def _add(self, one: Prepared) -> None:
        order, queue, plan = self._job.order, self._queue, self._plan
        placed, message = one.placed, one.chosen
        if placed is not None and not self._placing.holds(placed):
            placed = self._placing.of(order, queue, message.seq, message.record)
        if placed is None:
            self.left += 1
            return
        if order.kind is not JobKind.COPY:
            location = self._source.take(message)
            if isinstance(location, bool):
                self.left += 1
                return
            plan.take_out(queue, location, placed.reason, message.record.large)
        for queues, record in placed.to:
            plan.move(queues, record, is_limited=order.kind is JobKind.COPY)
        self.number += 1

    def stored(self) -> None:
        """Count what is done, or left with nothing to do."""
        job, counters = self._job, self._queue.counters
        self._source.stored()
        job.done += self.number
        job.left += self.left
        if self._record_id is not None:
            job.record_id = self._record_id
        if job.order.kind is JobKind.EXPIRE:
            counters.removed -= self.number
            counters.expired += self.number
        elif job.order.kind is JobKind.ACKNOWLEDGE:
            counters.removed -= self.number
            counters.acknowledged += self.number
