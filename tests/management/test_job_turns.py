"""However long a message takes, and however long a job waits: others go on meanwhile."""

import asyncio
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from orthia.broker.core.broker import Broker
from orthia.broker.management.facade import Management
from orthia.broker.management.job_work import STEP_MESSAGES
from orthia.broker.management.views import JobKind, JobState, JobView
from orthia.config.errors import OrthiaError
from orthia.journal.sql.journal import open_journal
from tests.core.support import ANYONE, SETTINGS, message, opened
from tests.journal.support import SqlJournalStore
from tests.management.support import OPERATOR, FakeClients, Managed, started
from tests.support.servers import SqliteServer
from tests.support.turns import LIMIT_SECONDS, Turns, limit_seconds

JOB_SECONDS = 0.02
"""No operation holds the loop longer; stretched by how slow this machine is now."""
WORDY = b"".join(b"name-%d:value\n" % number for number in range(1_000))
"""What takes long to read, and to write anew."""


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqlJournalStore]:
    """Give a database in a file."""
    server = SqliteServer(tmp_path)
    made = SqlJournalStore(server.settings(server.create_database()))
    yield made
    made.close()


def _failed(error: OrthiaError) -> None:
    raise AssertionError(error)


async def _retried(store: SqlJournalStore, number: int) -> tuple[JobView, float]:
    """Return a retry of so many wordy messages at its end, and the longest turn meanwhile."""
    loop = asyncio.get_running_loop()

    def post(callback: Callable[[], None]) -> None:
        loop.call_soon_threadsafe(callback)

    store.advance_fence(2)
    journal = open_journal(
        store.database,
        store.settings,
        token=2,
        still_valid=lambda: True,
        post=post,
        on_failure=_failed,
    )
    broker = Broker(SETTINGS, journal, lease_valid=lambda: True, call_later=loop.call_later)
    opened(broker)
    broker.count_backlogs()
    broker.start_schedule()
    management = Management(broker, FakeClients(), "turns")
    stored = asyncio.Event()
    for left in range(number, 0, -1):
        sent = message(str(left), headers=WORDY)
        broker.send(ANYONE, "/queue/orders", sent, stored.set if left == 1 else lambda: None)
    broker.send(ANYONE, "/queue/other", message("first"), lambda: None)
    await stored.wait()
    await started(management, JobKind.MOVE, queue="orders", target="other")
    turns = Turns(loop)
    job = await started(management, JobKind.RETRY, queue="other")
    turns.stop()
    broker.stop()
    journal.close(drain=True)
    return job, turns.longest


def test_no_turn_of_a_job_holds_the_loop(store: SqlJournalStore) -> None:
    """Of a retry whose messages take nearly a millisecond each; a step has 57 of them."""
    job, longest = asyncio.run(_retried(store, 250))
    assert (job.state, job.done, job.left) == (JobState.DONE, 250, 1)
    assert longest < JOB_SECONDS * limit_seconds() / LIMIT_SECONDS


def slow() -> Managed:
    """Return a node on which each message takes a second: a step is of one."""
    ticks = itertools.count()
    managed = Managed()
    managed.management = Management(
        managed.core.broker, FakeClients(), "test", processor=lambda: float(next(ticks))
    )
    return managed


@pytest.mark.parametrize("kind", [JobKind.MOVE, JobKind.PURGE])
def test_a_step_takes_what_there_is_time_for(kind: JobKind) -> None:
    """The rest is in the next ones, each a transaction, and all is done once and in order."""
    managed = slow()
    core = managed.core
    texts = [str(number) for number in range(100)]
    for text in texts:
        core.send("/queue/orders", text)
    core.send("/queue/other", "first")
    before = core.journal.next_id()
    job = managed.job(kind, target="other" if kind is JobKind.MOVE else None)
    assert (job.state, job.done, job.left, job.looked_at) == (JobState.DONE, 100, 0, 100)
    moved = texts if kind is JobKind.MOVE else []
    assert managed.texts("other") == ["first", *moved]
    # Each has a record of its own.
    assert core.journal.next_id() - before >= len(moved) + 100


def test_a_job_that_waits_keeps_nothing_from_being_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of what was acknowledged in any queue; it reads again what it had read, and does the rest."""
    managed = Managed()
    core = managed.core
    for number in range(6 * STEP_MESSAGES):
        core.send("/queue/orders", str(number))
    core.send("/queue/other", "first")

    def reads() -> bool:
        return core.broker.parts.look.is_under_way

    async def work() -> JobView:
        job = await managed.management.start_job(
            OPERATOR, JobKind.MOVE, queue="orders", target="other"
        )
        while not (await managed.management.job(OPERATOR, job.id)).done:
            await managed.management.count(OPERATOR, "orders", "a = 1")
        assert reads()
        with monkeypatch.context() as patch:
            patch.setattr(type(core.journal), "is_full", property(lambda _: True))
            while reads():
                core.pass_time(0.01)
                await asyncio.sleep(0)
            left = await managed.management.job(OPERATOR, job.id)
            assert left.state is JobState.RUNNING
        return await managed.management.finished(OPERATOR, job.id)

    job = managed.run(work())
    number = 6 * STEP_MESSAGES
    assert (job.state, job.done, job.left, job.looked_at) == (JobState.DONE, number, 0, number)
    assert managed.texts("other") == ["first", *(str(one) for one in range(number))]


def test_nothing_goes_to_a_target_that_is_deleted_between_two_steps() -> None:
    """Where each message goes was found out before: it is looked at again."""
    managed = slow()
    core = managed.core
    core.send("/queue/orders", *(str(number) for number in range(20)))
    core.send("/queue/other", "first")
    target = core.broker.queues()["other"]

    async def work() -> JobView:
        job = await managed.management.start_job(
            OPERATOR, JobKind.MOVE, queue="orders", target="other"
        )
        while not job.done:
            await asyncio.sleep(0)
            job = await managed.management.job(OPERATOR, job.id)
        target.is_leaving = True
        return await managed.management.finished(OPERATOR, job.id)

    job = managed.run(work())
    target.is_leaving = False
    assert (job.state, job.reason) == (JobState.FAILED, "queue 'other' is being deleted; try again")
    assert 0 < job.done < 20
    assert managed.texts("orders") == [str(number) for number in range(job.done, 20)]


def test_nothing_is_taken_while_much_is_on_its_way_back() -> None:
    """What comes back first may not be the oldest: the job waits until all is there."""
    managed = Managed()
    managed.core.send("/queue/orders", "a", "b")
    queue = managed.core.broker.queues()["orders"]

    async def work() -> JobView:
        queue.pace.suspend()
        job = await managed.management.start_job(OPERATOR, JobKind.PURGE, queue="orders")
        for _ in range(500):
            await asyncio.sleep(0)
        assert (await managed.management.job(OPERATOR, job.id)).done == 0
        queue.pace.unsuspend()
        return await managed.management.finished(OPERATOR, job.id)

    assert managed.run(work()).done == 2


def test_what_is_in_memory_is_sorted_once_for_all_steps() -> None:
    """For each anew it would take long, and longer for much; afterwards all is as it was."""
    managed = slow()
    managed.core.broker.count_backlogs()
    for number in range(40):
        managed.core.send("/queue/orders", str(number), persistent=False)
    queue = managed.core.broker.queues()["orders"]
    sorted_by: dict[int, object] = {}

    async def work() -> JobView:
        job = await managed.management.start_job(OPERATOR, JobKind.PURGE, queue="orders")
        while (job := await managed.management.job(OPERATOR, job.id)).state is JobState.RUNNING:
            if 0 < job.done < 39:
                sorted_by[id(queue.selecting)] = queue.selecting
            await asyncio.sleep(0)
        return job

    assert managed.run(work()).done == 40
    assert len(sorted_by) == 1
    assert None not in sorted_by.values()
    managed.core.settle()
    assert queue.selecting is None
