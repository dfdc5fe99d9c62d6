"""Operations on many messages: jobs of steps, each of which is one unit of the journal.

| a step     | what is done                                                                       |
|------------|------------------------------------------------------------------------------------|
| reads      | a window of the queue, of what was there when the job began                        |
| chooses    | what the selector matches; what consumers have is left with them                   |
| applies    | takes them out and, of a move, puts them where they go; says how far the job is    |
| waits      | for the commit, and for room in the journal, before the next step                  |

All of a step is stored or nothing is, how far the job came included: so a node that dies at any
point leaves each message in one place, and the next live node says what was done. It does not go on
by itself: an operator may have begun the job by mistake. A step that the store refuses ends the job
with the reason; its messages stay where they were, and are delivered from there.

A full store takes no record, but it takes deletes: there a job that only deletes says no more how
far it came.
"""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from typing_extensions import override

from orthia.broker.core.api import MessageReference
from orthia.broker.core.assembly import CoreParts
from orthia.broker.core.destinations import is_schedule
from orthia.broker.core.errors import BrokerError, LimitExceeded, NotLive
from orthia.broker.core.limits.memory import size_in_memory, size_in_store
from orthia.broker.core.queue.queue import Queue
from orthia.broker.core.queue.reader import Span
from orthia.broker.core.queue.taking import (
    is_known,
    may_take,
    shedding,
    take,
    take_unstored,
    taken,
)
from orthia.broker.core.routing.addresses import refuse_if_leaving
from orthia.broker.core.selectors import Selector
from orthia.broker.core.selectors import parse as parse_selector
from orthia.broker.core.sending.context import SendContext
from orthia.broker.core.sending.plan import SendPlan
from orthia.broker.core.sending.schedule import Schedule
from orthia.broker.core.slices import GO_ON, Finding
from orthia.broker.core.upkeep.streams import refuse_other as refuse_other_stream
from orthia.broker.management.errors import NotFound, NotPossible
from orthia.broker.management.placing import Placing
from orthia.broker.management.scheduled import Scheduled
from orthia.broker.management.views import JobKind, JobState, JobView
from orthia.broker.management.waiting import Waiting
from orthia.broker.quoting import quoted
from orthia.config.errors import OrthiaError
from orthia.journal.errors import AcknowledgedBefore, StoreFull
from orthia.journal.model.changes import MessageLocation
from orthia.journal.model.codec import OperatorRecord
from orthia.journal.model.message import Message
from orthia.journal.model.unit import Unit
from orthia.journal.model.windows import StoredMessage, Window

LOGGER = logging.getLogger("orthia.broker")
RECORD_KIND: Final = "job"
STEP_MESSAGES: Final = 64
"""Messages of one step: taking out, encoding and placing them is what holds the loop."""
_STEP_BYTES: Final = 1024 * 1024
_WINDOW_MESSAGES: Final = 512
_WINDOW_BYTES: Final = 4 * 1024 * 1024
MOST_RUNNING: Final = 8
MOST_IDS: Final = 1_000
_MOST_KEPT: Final = 100
"""Jobs that are over and still shown."""
_AGAIN_MS: Final = 10
"""How soon to look again whether a step may begin."""
_ONLY_DELETES: Final = frozenset(
    {JobKind.PURGE, JobKind.DELETE, JobKind.CANCEL, JobKind.ACKNOWLEDGE}
)


@dataclass(frozen=True)
class Order:
    """What an operator asks for."""

    kind: JobKind
    name: str
    """The queue, or the address of which all queues are purged."""
    of_address: bool = False
    selector: str | None = None
    ids: tuple[int, ...] | None = None
    target: str | None = None
    priority: int | None = None
    stream: str | None = None
    """Which stream acknowledges, and up to which message, by its seq."""
    up_to: int | None = None


@dataclass(eq=False)
class Job:
    """One job of this node, or of one before it."""

    id: int
    order: Order
    user: str
    since_ms: int
    state: JobState = JobState.RUNNING
    reason: str | None = None
    until_ms: int | None = None
    total: int | None = None
    looked_at: int = 0
    done: int = 0
    left: int = 0
    number_of_ids: int | None = None
    record_id: int | None = None
    """The row of its record; None without one."""
    records: bool = True
    """Whether it says how far it is in the store."""
    continues: bool = False
    """Whether it does the rest of an interrupted one."""
    is_stopping: bool = False
    watchers: list[Callable[[bool], None]] = field(default_factory=list)

    def view(self) -> JobView:
        """Return what operators see of it."""
        order = self.order
        return JobView(
            id=self.id,
            kind=order.kind,
            queue=order.name,
            of_address=order.of_address,
            target=order.target,
            selector=order.selector,
            ids=self.number_of_ids,
            priority=order.priority,
            user=self.user,
            state=self.state,
            reason=self.reason,
            since_ms=self.since_ms,
            until_ms=self.until_ms,
            total=self.total,
            looked_at=self.looked_at,
            done=self.done,
            left=self.left,
        )

    def details(self, *, done: int, left: int) -> dict[str, Any]:
        """Return what its record says once so many messages are done, and left."""
        order = self.order
        said: dict[str, Any] = {
            "id": self.id,
            "job": order.kind.value,
            "of-address": order.of_address,
            "selector": order.selector,
            "ids": self.number_of_ids,
            "target": order.target,
            "priority": order.priority,
            "user": self.user,
            "since-ms": self.since_ms,
            "total": self.total,
            "done": done,
            "left": left,
            "looked-at": self.looked_at,
        }
        return {name: value for name, value in said.items() if value is not None}

    @classmethod
    def of(cls, record: OperatorRecord) -> "Job":
        """Return the job of an earlier node, which ended before it; raises KeyError, ValueError."""
        said = record.details
        order = Order(
            JobKind(said["job"]),
            record.name,
            of_address=bool(said.get("of-address")),
            selector=said.get("selector"),
            target=said.get("target"),
            priority=said.get("priority"),
        )
        return cls(
            int(said["id"]),
            order,
            str(said.get("user", "")),
            int(said["since-ms"]),
            state=JobState.INTERRUPTED,
            reason="its node ended; what it had done is done",
            total=said.get("total"),
            looked_at=int(said.get("looked-at", 0)),
            done=int(said["done"]),
            left=int(said.get("left", 0)),
            number_of_ids=said.get("ids"),
            record_id=record.record_id,
        )


class _StoppedError(Exception):
    """An operator stops the job."""


class _RefusedError(Exception):
    """The store refused a step."""

    def __init__(self, reason: OrthiaError) -> None:
        super().__init__(str(reason))
        self.reason = reason


class Jobs:
    """Runs jobs, and knows those that are over; on the loop's thread."""

    def __init__(self, parts: CoreParts, waiting: Waiting, scheduled: Scheduled) -> None:
        self._parts = parts
        self._scheduled = scheduled
        self._journal = parts.journal
        self._context = parts.context
        self._book = parts.book
        self._timers = parts.timers
        self._waiting = waiting
        self._placing = Placing(parts.book, parts.undeliverable_queues)
        self._jobs: dict[int, Job] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        for binding in parts.journal.bindings:
            if isinstance(binding, OperatorRecord) and binding.kind == RECORD_KIND:
                self._remember(binding)

    def _remember(self, record: OperatorRecord) -> None:
        try:
            job = Job.of(record)
        except (KeyError, TypeError, ValueError) as error:
            LOGGER.warning(
                "the record %d of a job of queue %s cannot be read: %r; it is left where it is",
                record.record_id,
                quoted(record.name),
                error,
            )
            return
        self._jobs[job.id] = job
        LOGGER.warning(
            "job %d (%s of %s) was interrupted when its node ended: %d messages are done; start it"
            " again for the rest",
            job.id,
            job.order.kind.value,
            quoted(job.order.name),
            job.done,
        )

    # --- what is asked of jobs

    def all(self) -> list[Job]:
        """Return all jobs, the newest first."""
        return sorted(self._jobs.values(), key=lambda one: -one.id)

    @property
    def running(self) -> int:
        """How many run."""
        return sum(one.state is JobState.RUNNING for one in self._jobs.values())

    def get(self, job_id: int) -> Job:
        """Return a job; raises NotFound."""
        job = self._jobs.get(job_id)
        if job is None:
            raise NotFound("job", str(job_id))
        return job

    def stop(self, job: Job) -> None:
        """Stop a job before its next step; forget that one was interrupted."""
        if job.state is JobState.INTERRUPTED:
            job.state = JobState.STOPPED
            self._forget_record(job)
        elif job.state is JobState.RUNNING:
            job.is_stopping = True
        else:
            raise NotPossible(f"job {job.id} is over: it is {job.state.value}")

    async def finished(self, job: Job) -> None:
        """Wait until a job is over."""
        if job.state is JobState.RUNNING:
            answer = self._waiting.future(bool)
            job.watchers.append(answer.set)
            await answer

    def refuse_if_busy(self, queues: Iterable[Queue]) -> None:
        """Raise LimitExceeded or NotPossible if no job may begin on these queues."""
        if self.running >= MOST_RUNNING:
            raise LimitExceeded(f"{MOST_RUNNING} jobs run already: wait for one, or stop one")
        names = {queue.name for queue in queues}
        for job in self._jobs.values():
            if job.state is JobState.RUNNING:
                busy = names & {queue.name for queue in self.queues_of(job.order)}
                if busy:
                    raise NotPossible(
                        f"job {job.id} ({job.order.kind.value}) runs on queue {quoted(min(busy))}:"
                        " wait for it, or stop it"
                    )

    @staticmethod
    def check_source(kind: JobKind, queue: Queue, stream: str | None) -> None:
        """Raise BrokerError for a queue of which nothing can be taken so.

        Or of which another stream, or anybody but a ``stream``, takes none.
        """
        if kind is JobKind.RETRY and is_schedule(queue.name):
            raise NotPossible(
                f"queue {quoted(queue.name)} holds messages that are delivered later: none of them"
                " came from another queue, to which it could go back"
            )
        refuse_if_leaving(queue)
        refuse_other_stream(queue, stream)

    def start(self, order: Order, user: str, again: Job | None = None) -> Job:
        """Begin a job that was checked; ``again`` is the interrupted one that it goes on with."""
        queues = self.queues_of(order)
        job = Job(
            self._context.next_id(),
            order,
            user,
            self._timers.time_ms(),
            total=sum(queue.depth for queue in queues) if order.ids is None else len(order.ids),
            number_of_ids=None if order.ids is None else len(order.ids),
            # A stream knows by itself how far it is.
            records=order.kind is not JobKind.ACKNOWLEDGE,
        )
        if again is not None:
            job.continues = True
            job.record_id = again.record_id
            again.record_id = None
            del self._jobs[again.id]
        self._jobs[job.id] = job
        over = [one for one in self._jobs.values() if one.until_ms is not None]
        for one in over[: max(0, len(over) - _MOST_KEPT)]:
            del self._jobs[one.id]
        task = asyncio.get_running_loop().create_task(self._run(job, queues))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return job

    def queues_of(self, order: Order) -> list[Queue]:
        """Return the queues that a job takes messages of; none if what it names is gone."""
        cancels = order.kind is JobKind.CANCEL
        if order.of_address:
            address = self._book.known.get(order.name)
            if address is None:
                return []
            if cancels:
                return list(address.schedules)
            return [*address.anycast_queues, *address.multicast_queues]
        queue = self._book.queues.get(order.name)
        if queue is None:
            return []
        return self._scheduled.of_queue(queue) if cancels else [queue]

    # --- the life of a job

    async def _run(self, job: Job, queues: Sequence[Queue]) -> None:
        try:
            for queue in queues:
                await self._work_on(job, queue)
            state, reason = JobState.DONE, None
        except _StoppedError:
            state, reason = JobState.STOPPED, "an operator stopped it"
        except NotLive:
            # Its record stays, by which the next live node knows of it.
            job.state, job.reason = JobState.INTERRUPTED, "this node is ending"
            self._tell(job)
            return
        except (BrokerError, _RefusedError) as error:
            if job.continues and not job.done and isinstance(error, _RefusedError | LimitExceeded):
                # As before: its record still says how far the first of them came.
                job.state, job.continues = JobState.INTERRUPTED, False
                job.reason = f"its rest could not be begun, and can be continued again: {error}"
                self._tell(job)
                return
            state, reason = JobState.FAILED, str(error)
        except MemoryError:
            raise
        except Exception as error:
            LOGGER.exception("job %d (%s) failed", job.id, job.order.kind.value)
            state, reason = JobState.FAILED, f"a mistake in this program: {error!r}; see the log"
        try:
            # Before anybody is told: no later node is to say that it was interrupted.
            await self._record_forgotten(job)
        except NotLive:
            job.state, job.reason = JobState.INTERRUPTED, "this node is ending"
            self._tell(job)
            return
        job.state, job.reason = state, reason
        job.until_ms = self._timers.time_ms()
        # A stream has one for each of its micro-batches.
        is_often = job.order.kind is JobKind.ACKNOWLEDGE and state is JobState.DONE
        LOGGER.log(
            logging.DEBUG if is_often else logging.INFO,
            "job %d of user %s (%s of %s) is %s: %d messages done, %d left as they are%s",
            job.id,
            quoted(job.user),
            job.order.kind.value,
            quoted(job.order.name),
            state.value,
            job.done,
            job.left,
            "" if reason is None else f": {reason}",
        )
        self._tell(job)

    @staticmethod
    def _tell(job: Job) -> None:
        watchers, job.watchers = job.watchers, []
        for watcher in watchers:
            watcher(True)  # noqa: FBT003 - a callback

    async def _record_forgotten(self, job: Job) -> None:
        if job.record_id is not None:
            answer = self._waiting.answer(bool)
            self._forget_record(job, lambda: answer.set(True))
            await answer

    def _forget_record(self, job: Job, done: Callable[[], None] | None = None) -> None:
        if job.record_id is not None:
            unit = Unit(done)
            unit.delete_binding(job.record_id)
            job.record_id = None
            try:
                self._journal.append_unit(unit)
            except OrthiaError:
                return  # this node is ending: the next one shows the job once more

    async def _work_on(self, job: Job, queue: Queue) -> None:
        while not is_known(queue):
            self._check(job, queue)
            await self._pause()
        if job.order.ids is not None:
            await self._work_on_ids(job, queue, job.order.ids)
            return
        selector = None if job.order.selector is None else parse_selector(job.order.selector)
        await self._waiting.steps(shedding(queue))
        # The id of the job is its place among the messages: those behind it came later.
        up_to = min(job.id, self._journal.last_committed_seq)
        unstored = [(one.seq, one.record) for one in _unstored(queue) if one.seq < job.id]
        if job.order.up_to is not None:
            # A stream reads what is stored, and nothing else.
            up_to, unstored = min(up_to, job.order.up_to), []
        for level in list(queue.log.ids):
            after = 0
            while True:
                look = object()
                self._parts.look.begin(look)
                withheld = self._withhold()
                try:
                    window = await self._window(queue, Span(level, after, up_to))
                    await self._do_window(job, queue, level, window, selector)
                finally:
                    self._let_go(withheld)
                    self._parts.look.end(look)
                if window.exhausted:
                    break
                after = window.next_after_seq
        for first in range(0, len(unstored), STEP_MESSAGES):
            some = unstored[first : first + STEP_MESSAGES]
            wanted = await self._waiting.steps(_matching([one for _, one in some], selector))
            job.looked_at += len(some)
            chosen = [one for one, is_wanted in zip(some, wanted, strict=True) if is_wanted]
            await self._step(job, queue, [_Unstored(seq, record) for seq, record in chosen])

    async def _work_on_ids(self, job: Job, queue: Queue, ids: Sequence[int]) -> None:
        unstored = {one.seq: one for one in _unstored(queue)}
        up_to = self._journal.last_committed_seq
        look = object()
        self._parts.look.begin(look)
        withheld = self._withhold()
        try:
            chosen: list[_Chosen] = []
            for seq in sorted(set(ids)):
                job.looked_at += 1
                if seq in unstored:
                    chosen.append(_Unstored(seq, unstored[seq].record))
                elif seq <= up_to:
                    for level in list(queue.log.ids):
                        window = await self._window(queue, Span(level, seq - 1, seq))
                        chosen += [_Stored(level, one) for one in window.messages]
                if len(chosen) >= STEP_MESSAGES:
                    await self._step(job, queue, chosen)
                    chosen = []
            await self._step(job, queue, chosen)
        finally:
            self._let_go(withheld)
            self._parts.look.end(look)

    def _withhold(self) -> int:
        large = self._journal.large
        return 0 if large is None else large.withhold()

    def _let_go(self, withheld: int) -> None:
        if self._journal.large is not None:
            self._journal.large.let_go(withheld)

    async def _do_window(
        self, job: Job, queue: Queue, level: int, window: Window, selector: Selector | None
    ) -> None:
        """Do what is to be done with the messages of a window."""
        shows: Callable[[Message, int], bool] = queue.shows
        if job.order.kind is JobKind.ACKNOWLEDGE:
            shows = _every  # a stream reads expired ones, too
        messages = [one for one in window.messages if shows(one.record, one.seq)]
        wanted = await self._waiting.steps(_matching([one.record for one in messages], selector))
        job.looked_at += len(messages)
        chosen: list[_Chosen] = []
        size = 0
        for message, is_wanted in zip(messages, wanted, strict=True):
            if is_wanted:
                chosen.append(_Stored(level, message))
                size += size_in_memory(message.record)
            if len(chosen) >= STEP_MESSAGES or size >= _STEP_BYTES:
                await self._step(job, queue, chosen)
                chosen, size = [], 0
        await self._step(job, queue, chosen)

    async def _window(self, queue: Queue, span: Span) -> Window:
        answer = self._waiting.answer(Window)
        while True:
            if not queue.reader.read(span, _WINDOW_MESSAGES, _WINDOW_BYTES, answer.set):
                raise NotLive("the journal is closed")
            window = await answer
            if window is not None:
                return window
            await self._pause()  # the store cannot be read at this moment
            answer = self._waiting.answer(Window)

    async def _pause(self) -> None:
        answer = self._waiting.answer(bool)
        self._timers.call_later(_AGAIN_MS, lambda: answer.set(True))
        await answer

    def _check(self, job: Job, queue: Queue) -> None:
        """Raise what ends a job before its next step."""
        self._parts.gate.refuse_if_stopped()
        if job.is_stopping:
            raise _StoppedError
        refuse_if_leaving(queue)
        if self._book.queues.get(queue.name) is not queue:
            raise NotFound("queue", queue.name, " any more")
        refuse_other_stream(queue, job.order.stream)

    # --- one step

    async def _step(self, job: Job, queue: Queue, chosen: "Sequence[_Chosen]") -> None:
        """Do it with all of those that nobody has, and wait until that is stored."""
        if not chosen:
            self._check(job, queue)
            return
        while True:
            self._check(job, queue)
            if not self._journal.is_full and may_take(queue):
                break
            await self._pause()
        answer = self._waiting.future(bool)
        source = (
            _Schedule(self._parts.schedule, queue) if is_schedule(queue.name) else _Queue(queue)
        )
        step = _Step(self._context, self._placing, job, queue, source)

        def refused(error: OrthiaError) -> None:
            # At once: with the messages nowhere the queue would seem to be empty.
            step.undo()
            source.settled()
            answer.fail(_RefusedError(error))

        try:
            record_id = step.begin(
                chosen,
                done=lambda: answer.set(True),
                refused=refused,
            )
        except BaseException:
            step.undo()
            raise
        finally:
            source.settled()
        if not step.number:
            job.left += step.left
            return
        try:
            await answer
        except _RefusedError as error:
            if isinstance(error.reason, AcknowledgedBefore):
                gone = error.reason.seqs  # they are deleted by who looks after acknowledgements
                job.left += len(gone)
                await self._step(job, queue, [one for one in chosen if one.seq not in gone])
                return
            is_full = isinstance(error.reason, StoreFull) and _only_deletes(job)
            if not (is_full and job.records):
                raise
            job.records = False  # a full store takes deletes alone
            await self._step(job, queue, chosen)
            return
        step.stored()
        if record_id is not None:
            job.record_id = record_id


def _unstored(queue: Queue) -> list[MessageReference]:
    return [one for _, some in queue.shown_in_memory() for one in some]


def _every(*_: object) -> bool:
    return True


def _only_deletes(job: Job) -> bool:
    """Return whether a job stores nothing but how far it is."""
    return job.order.kind in _ONLY_DELETES


@dataclass(frozen=True, slots=True)
class _Stored:
    """A message as a window showed it."""

    level: int
    message: StoredMessage

    @property
    def seq(self) -> int:
        return self.message.seq

    @property
    def record(self) -> Message:
        return self.message.record

    @property
    def location(self) -> MessageLocation | None:
        return self.message.location

    def take(self, queue: Queue) -> MessageReference | None:
        return take(queue, self.level, self.message)


@dataclass(frozen=True, slots=True)
class _Unstored:
    """A message in memory only."""

    seq: int
    record: Message
    location: MessageLocation | None = None

    def take(self, queue: Queue) -> MessageReference | None:
        return take_unstored(queue, self.seq)


_Chosen = _Stored | _Unstored


class _Source(ABC):
    """Where a step takes messages out."""

    @abstractmethod
    def take(self, one: _Chosen) -> MessageLocation | bool | None:
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
    def take(self, one: _Chosen) -> MessageLocation | bool | None:
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
    def take(self, one: _Chosen) -> MessageLocation | bool | None:
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


class _Step:
    """The unit of one step."""

    def __init__(
        self, context: SendContext, placing: Placing, job: Job, queue: Queue, source: _Source
    ) -> None:
        self._source = source
        self._context = context
        self._plan = SendPlan(context)
        self._placing = placing
        self._job = job
        self._queue = queue
        self.number = 0
        """How many messages it is done with, once stored."""
        self.left = 0

    def begin(
        self,
        chosen: Iterable[_Chosen],
        *,
        done: Callable[[], None],
        refused: Callable[[OrthiaError], None],
    ) -> int | None:
        """Take out what is to be taken out, and append the unit; ``undo`` if this raises.

        Return the id of the record that says how far the job is then, if there is one. With a
        ``number`` of 0 nothing is appended.
        """
        job, record_id = self._job, None
        with self._plan as plan:
            for one in chosen:
                self._add(one)
            if not self.number:
                return None
            if job.records:
                record_id = self._context.next_id()
                details = job.details(done=job.done + self.number, left=job.left + self.left)
                record = OperatorRecord(record_id, RECORD_KIND, job.order.name, details)
                plan.record(record, job.record_id)
            plan.apply(done, refused)
        return record_id

    def _add(self, one: _Chosen) -> None:
        order, queue, plan = self._job.order, self._queue, self._plan
        placed = self._placing.of(order.kind, queue, one.seq, one.record, order)
        if placed is None:
            self.left += 1
            return
        if order.kind is JobKind.COPY:
            if one.record.large is not None:
                plan.keep_body(one.record.large)
        else:
            location = self._source.take(one)
            if isinstance(location, bool):
                self.left += 1
                return
            plan.take_out(queue, location, placed.reason, one.record.large)
        for queues, record in placed.to:
            plan.move(queues, record, is_limited=order.kind is JobKind.COPY)
        self.number += 1

    def stored(self) -> None:
        """Count what is done."""
        self._source.stored()
        self._job.done += self.number
        self._job.left += self.left
        counters = self._queue.counters
        if self._job.order.kind is JobKind.EXPIRE:
            counters.removed -= self.number
            counters.expired += self.number
        elif self._job.order.kind is JobKind.ACKNOWLEDGE:
            counters.removed -= self.number
            counters.acknowledged += self.number

    def undo(self) -> None:
        """Return the messages to their queue."""
        self._source.undo()


def _matching(records: Sequence[Message], selector: Selector | None) -> Finding[list[bool]]:
    found: list[bool] = []
    for record in records:
        found.append(selector is None or selector.matches(record))
        yield GO_ON
    return found
