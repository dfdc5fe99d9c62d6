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
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from orthia.broker.core.assembly import CoreParts
from orthia.broker.core.destinations import is_schedule
from orthia.broker.core.errors import BrokerError, LimitExceeded, NotLive
from orthia.broker.core.queue.queue import Queue
from orthia.broker.core.routing.addresses import refuse_if_leaving
from orthia.broker.core.upkeep.streams import refuse_other as refuse_other_stream
from orthia.broker.management.errors import NotFound, NotPossible
from orthia.broker.management.job import RECORD_KIND, Job, Order
from orthia.broker.management.job_work import RefusedError, StoppedError, Work
from orthia.broker.management.scheduled import Scheduled
from orthia.broker.management.views import JobKind, JobState
from orthia.broker.management.waiting import Waiting
from orthia.broker.quoting import quoted
from orthia.config.errors import OrthiaError
from orthia.journal.model.codec import OperatorRecord
from orthia.journal.model.unit import Unit

LOGGER = logging.getLogger("orthia.broker")
MOST_RUNNING: Final = 8
MOST_IDS: Final = 1_000
_MOST_KEPT: Final = 100
"""Jobs that are over and still shown."""


class Jobs:
    """Runs jobs, and knows those that are over; on the loop's thread."""

    def __init__(
        self,
        parts: CoreParts,
        waiting: Waiting,
        scheduled: Scheduled,
        processor: Callable[[], float],
    ) -> None:
        """``processor`` returns the processor time of this thread, in seconds."""
        self._scheduled = scheduled
        self._journal = parts.journal
        self._context = parts.context
        self._book = parts.book
        self._timers = parts.timers
        self._waiting = waiting
        self._work = Work(parts, waiting, processor)
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
                await self._work.on(job, queue)
            state, reason = JobState.DONE, None
        except StoppedError:
            state, reason = JobState.STOPPED, "an operator stopped it"
        except NotLive:
            # Its record stays, by which the next live node knows of it.
            job.state, job.reason = JobState.INTERRUPTED, "this node is ending"
            self._tell(job)
            return
        except (BrokerError, RefusedError) as error:
            if job.continues and not job.done and isinstance(error, RefusedError | LimitExceeded):
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
