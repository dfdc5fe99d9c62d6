"""The work of a job on one queue: what it reads, what it chooses, and when it has to wait.

What is read may be taken by others meanwhile. So while a job works on what it has read, nothing is
forgotten in any queue of what is taken out, and no large body is removed. That may not take long:
a step that has to wait longer lets go of what was read, and reads it again.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from orthia.broker.core.api import MessageReference
from orthia.broker.core.assembly import CoreParts
from orthia.broker.core.destinations import is_schedule
from orthia.broker.core.errors import NotLive
from orthia.broker.core.limits.memory import size_in_memory
from orthia.broker.core.queue.queue import Queue
from orthia.broker.core.queue.reader import Span
from orthia.broker.core.queue.taking import is_known, may_take, picking, shedding
from orthia.broker.core.routing.addresses import refuse_if_leaving
from orthia.broker.core.selectors import Selector
from orthia.broker.core.selectors import parse as parse_selector
from orthia.broker.core.slices import GO_ON, Finding
from orthia.broker.core.upkeep.streams import refuse_other as refuse_other_stream
from orthia.broker.management.errors import NotFound
from orthia.broker.management.job import Job
from orthia.broker.management.job_step import Chosen, Prepared, Step, Stored, Unstored, prepared
from orthia.broker.management.placing import Placing
from orthia.broker.management.views import JobKind
from orthia.broker.management.waiting import Waiting
from orthia.config.errors import OrthiaError
from orthia.journal.errors import AcknowledgedBefore, StoreFull
from orthia.journal.model.message import Message
from orthia.journal.model.windows import Window

STEP_MESSAGES: Final = 64
"""Messages of one step at most."""
_STEP_BYTES: Final = 1024 * 1024
_WINDOW_MESSAGES: Final = 512
_WINDOW_BYTES: Final = 4 * 1024 * 1024
_AGAIN_MS: Final = 10
"""How soon to look again whether a step may begin."""
_PATIENCE: Final = 100
"""How often a step looks before what was read is let go."""
_ONLY_DELETES: Final = frozenset(
    {JobKind.PURGE, JobKind.DELETE, JobKind.CANCEL, JobKind.ACKNOWLEDGE}
)


class StoppedError(Exception):
    """An operator stops the job."""


class RefusedError(Exception):
    """The store refused a step."""

    def __init__(self, reason: OrthiaError) -> None:
        super().__init__(str(reason))
        self.reason = reason


class Work:
    """Does the work of jobs; on the loop's thread."""

    def __init__(self, parts: CoreParts, waiting: Waiting, processor: Callable[[], float]) -> None:
        """``processor`` returns the processor time of this thread, in seconds."""
        self._parts = parts
        self._journal = parts.journal
        self._waiting = waiting
        self._processor = processor
        self._placing = Placing(parts.book, parts.undeliverable_queues)

    async def on(self, job: Job, queue: Queue) -> None:
        """Do with the messages of a queue what a job says.

        Raises BrokerError, StoppedError, RefusedError: what was done stays done.
        """
        if is_schedule(queue.name):  # nothing of it is delivered to consumers
            await self._on(job, queue)
            return
        with picking(queue):
            await self._on(job, queue)

    async def _on(self, job: Job, queue: Queue) -> None:
        while not is_known(queue):
            self._check(job, queue)
            await self._pause()
        if job.order.ids is not None:
            await self._on_ids(job, queue, job.order.ids)
            return
        selector = None if job.order.selector is None else parse_selector(job.order.selector)
        await self._waiting.steps(shedding(queue))
        # The id of the job is its place among the messages: those behind it came later.
        up_to = min(job.id, self._journal.last_committed_seq)
        unstored = [one for one in _unstored(queue) if one.seq < job.id]
        if job.order.up_to is not None:
            # A stream reads what is stored, and nothing else.
            up_to, unstored = min(up_to, job.order.up_to), []
        for level in list(queue.log.ids):
            await self._on_level(job, queue, level, up_to, selector)
        for first in range(0, len(unstored), STEP_MESSAGES):
            some = unstored[first : first + STEP_MESSAGES]
            wanted = await self._waiting.steps(_matching([one.record for one in some], selector))
            job.looked_at += len(some)
            chosen = [
                Unstored(one.seq, one.record)
                for one, is_wanted in zip(some, wanted, strict=True)
                if is_wanted
            ]
            while (behind := await self._steps(job, queue, chosen)) is not None:
                chosen = [one for one in chosen if one.seq > behind]

    async def _on_level(
        self, job: Job, queue: Queue, level: int, up_to: int, selector: Selector | None
    ) -> None:
        """Do it with what the store has of one level."""
        after = 0
        while True:
            await self._until_it_may_begin(job, queue)
            with self._reading():
                window = await self._window(queue, Span(level, after, up_to))
                if window is not None:
                    behind = await self._on_window(job, queue, level, window, selector)
            if window is None:
                await self._pause()
            elif behind is not None:
                after = behind
            elif window.exhausted:
                return
            else:
                after = window.next_after_seq

    async def _on_window(
        self, job: Job, queue: Queue, level: int, window: Window, selector: Selector | None
    ) -> int | None:
        """Do it with the messages of a window; return behind which it had to wait, if it had."""
        shows: Callable[[Message, int], bool] = queue.shows
        if job.order.kind is JobKind.ACKNOWLEDGE:
            shows = _every  # a stream reads expired ones, too
        messages = [one for one in window.messages if shows(one.record, one.seq)]
        wanted = await self._waiting.steps(_matching([one.record for one in messages], selector))
        chosen: list[Chosen] = []
        size = counted = 0
        for number, (message, is_wanted) in enumerate(zip(messages, wanted, strict=True), 1):
            if is_wanted:
                chosen.append(Stored(level, message))
                size += size_in_memory(message.record)
            is_step = len(chosen) >= STEP_MESSAGES or size >= _STEP_BYTES
            if is_step or number == len(messages):
                job.looked_at += number - counted
                behind = await self._steps(job, queue, chosen)
                if behind is not None:
                    job.looked_at -= sum(one.seq > behind for one in messages[counted:number])
                    return behind
                chosen, size, counted = [], 0, number
        return None

    async def _on_ids(self, job: Job, queue: Queue, ids: Iterable[int]) -> None:
        left = sorted(set(ids))
        named = frozenset(left)
        unstored = {
            one.seq: Unstored(one.seq, one.record) for one in _unstored(queue) if one.seq in named
        }
        up_to = self._journal.last_committed_seq
        while left:
            some = left[:STEP_MESSAGES]
            await self._until_it_may_begin(job, queue)
            with self._reading():
                chosen = await self._named(queue, some, unstored, up_to)
                behind = -1 if chosen is None else await self._steps(job, queue, chosen)
            if chosen is None:
                await self._pause()
            done = [one for one in some if behind is None or one <= behind]
            job.looked_at += len(done)
            left = left[len(done) :]

    async def _named(
        self, queue: Queue, ids: Sequence[int], unstored: dict[int, Unstored], up_to: int
    ) -> list[Chosen] | None:
        """Return the messages of some ids; None if the store cannot be read at this moment."""
        found: list[Chosen] = []
        for seq in ids:
            if seq in unstored:
                found.append(unstored[seq])
            elif seq <= up_to:
                for level in list(queue.log.ids):
                    window = await self._window(queue, Span(level, seq - 1, seq))
                    if window is None:
                        return None
                    found += [Stored(level, one) for one in window.messages]
        return found

    # --- reading, and waiting

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """Keep what is read within the block from being forgotten, or removed, meanwhile.

        Large bodies, too, until copies that refer to them are stored.
        """
        look, large = object(), self._journal.large
        self._parts.look.begin(look)
        withheld = 0 if large is None else large.withhold()
        try:
            yield
        finally:
            if large is not None:
                large.let_go(withheld)
            self._parts.look.end(look)

    async def _window(self, queue: Queue, span: Span) -> Window | None:
        """Return a window; None if the store cannot be read at this moment. Raises NotLive."""
        answer = self._waiting.answer(Window)
        if not queue.reader.read(span, _WINDOW_MESSAGES, _WINDOW_BYTES, answer.set):
            raise NotLive("the journal is closed")
        return await answer

    async def _until_it_may_begin(self, job: Job, queue: Queue) -> None:
        while not await self._may_begin(job, queue):
            pass

    async def _may_begin(self, job: Job, queue: Queue) -> bool:
        """Wait for a while until a step may begin, and return whether it may."""
        for _ in range(_PATIENCE):
            self._check(job, queue)
            if not self._journal.is_full and may_take(queue):
                return True
            await self._pause()
        return False

    async def _pause(self) -> None:
        answer = self._waiting.answer(bool)
        self._parts.timers.call_later(_AGAIN_MS, lambda: answer.set(True))
        await answer

    def _check(self, job: Job, queue: Queue) -> None:
        """Raise what ends a job before its next step."""
        self._parts.gate.refuse_if_stopped()
        if job.is_stopping:
            raise StoppedError
        refuse_if_leaving(queue)
        if self._parts.book.queues.get(queue.name) is not queue:
            raise NotFound("queue", queue.name, " any more")
        refuse_other_stream(queue, job.order.stream)

    # --- steps

    async def _steps(self, job: Job, queue: Queue, chosen: Sequence[Chosen]) -> int | None:
        """Do it with all of those that nobody has, in steps, and wait until each is stored.

        Return behind which of them it had to wait too long; None if it is done with all.
        """
        self._check(job, queue)
        rest: Sequence[Prepared]
        rest = await self._waiting.steps(prepared(job, queue, self._placing, chosen))
        while rest:
            if not await self._may_begin(job, queue):
                return rest[0].chosen.seq - 1
            rest = await self._step(job, queue, rest)
        return None

    async def _step(
        self, job: Job, queue: Queue, messages: Sequence[Prepared]
    ) -> Sequence[Prepared]:
        """Do one step, of which return the messages that are left to be done."""
        answer = self._waiting.future(bool)
        step = Step(self._parts.context, self._parts.schedule, self._placing, job, queue)
        step.begin(
            messages,
            self._processor,
            done=lambda: answer.set(True),
            refused=lambda error: answer.fail(RefusedError(error)),
        )
        try:
            if step.number:
                await answer
        except RefusedError as error:
            if isinstance(error.reason, AcknowledgedBefore):
                gone = error.reason.seqs  # they are deleted by who looks after acknowledgements
                job.left += len(gone)
                return [one for one in messages if one.chosen.seq not in gone]
            is_full = isinstance(error.reason, StoreFull) and job.order.kind in _ONLY_DELETES
            if not (is_full and job.records):
                raise
            job.records = False  # a full store takes deletes alone
            return messages
        step.stored()
        return messages[step.looked_at :]


def _unstored(queue: Queue) -> list[MessageReference]:
    return [one for _, some in queue.shown_in_memory() for one in some]


def _every(*_: object) -> bool:
    return True


def _matching(records: Sequence[Message], selector: Selector | None) -> Finding[list[bool]]:
    found: list[bool] = []
    for record in records:
        found.append(selector is None or selector.matches(record))
        yield GO_ON
    return found
