"""Operations on many messages: what they do, what they leave, and what is left after a failure."""

import asyncio
import logging
from dataclasses import replace
from typing import Any

import pytest

from orthia.broker.core.destinations import is_schedule
from orthia.broker.core.errors import BrokerError, LimitExceeded, QueueInUse
from orthia.broker.core.selectors import SelectorRefused
from orthia.broker.management import jobs
from orthia.broker.management.errors import NotFound, NotPossible, WrongArgument
from orthia.broker.management.job_work import STEP_MESSAGES
from orthia.broker.management.views import JobKind, JobState, JobView
from orthia.config.address_settings import AddressSettings
from orthia.config.errors import OrthiaError
from orthia.journal.errors import StoreFull, UnitRefused
from orthia.journal.model.unit import Unit
from tests.core.support import SETTINGS, CoreUnderTest, settings
from tests.management.support import OPERATOR, Managed

PAGED = settings(max_size_messages=20)
FEW = replace(
    SETTINGS, address_settings=(AddressSettings("#", max_delivery_attempts=1, redelivery_delay=0),)
)


def filled(number: int = 300, options: Any = PAGED) -> Managed:
    """Return a node whose queue is partly in memory, partly in the table only."""
    managed = Managed(options)
    managed.core.broker.count_backlogs()
    for one in range(number):
        kind = b"kind:odd\n" if one % 2 else b"kind:even\n"
        managed.core.send("/queue/orders", str(one), headers=kind)
    return managed


async def some_done(managed: Managed, job: int) -> None:
    """Wait until some of a job is done."""
    while not (await managed.management.job(OPERATOR, job)).done:
        await managed.management.count(OPERATOR, "orders", "a = 1")


def use_is_right(managed: Managed) -> None:
    """Assert that what is counted is what is there, and is after a takeover."""
    core = managed.core
    later = CoreUnderTest(store=core.successor_store())
    later.broker.count_backlogs()
    later.settle()
    for name, queue in core.broker.queues().items():
        after = later.broker.queues()[name]
        assert queue.depth == after.depth, name
        assert queue.log.stored_bytes == after.log.stored_bytes, name
    assert core.broker.store_use.used == later.broker.store_use.used


def test_a_purge_deletes_what_is_there_and_what_comes_later_stays() -> None:
    """In memory and in the table; in steps, each of which says how far it is."""
    managed = filled()

    async def work() -> JobView:
        job = await managed.management.start_job(OPERATOR, JobKind.PURGE, queue="orders")
        assert (job.state, job.total, job.done) == (JobState.RUNNING, 300, 0)
        managed.core.send("/queue/orders", "later")
        return await managed.management.finished(OPERATOR, job.id)

    job = managed.run(work())
    assert (job.state, job.done, job.left) == (JobState.DONE, 300, 0)
    assert managed.texts("orders") == ["later"]
    use_is_right(managed)
    assert managed.core.consume("/queue/orders").texts == ["later"]
    view = managed.run(managed.management.queue(OPERATOR, "orders"))
    assert (view.removed, view.added, view.acknowledged) == (300, 301, 0)
    later = managed.takeover()
    assert later.run(later.management.jobs(OPERATOR)) == ()


def test_what_comes_later_and_is_not_stored_stays_too() -> None:
    """In its order, behind what the job took."""
    managed = Managed()
    for text in ("a", "b"):
        managed.core.send("/queue/orders", text, persistent=False)

    async def work() -> JobView:
        job = await managed.management.start_job(OPERATOR, JobKind.PURGE, queue="orders")
        managed.core.send("/queue/orders", "later", persistent=False)
        return await managed.management.finished(OPERATOR, job.id)

    job = managed.run(work())
    assert (job.state, job.done, job.left) == (JobState.DONE, 2, 0)
    assert managed.texts("orders") == ["later"]


@pytest.mark.parametrize("options", [PAGED, SETTINGS], ids=["paged", "in memory"])
def test_a_move_by_selector_keeps_order_and_the_others(options: Any) -> None:
    """The target has them in order, with where they were; both survive a takeover."""
    managed = filled(options=options)
    managed.core.send("/queue/other", "first")
    job = managed.job(JobKind.MOVE, selector="kind = 'odd'", target="other")
    assert (job.state, job.done, job.looked_at) == (JobState.DONE, 150, 300)
    evens, odds = [str(one) for one in range(0, 300, 2)], [str(one) for one in range(1, 300, 2)]
    assert managed.texts("orders") == evens
    assert managed.texts("other") == ["first", *odds]
    moved = managed.run(managed.management.browse(OPERATOR, "other", limit=2)).messages[1]
    assert (moved.origin_queue, moved.origin_address, moved.address) == ("orders",) * 2 + ("other",)
    use_is_right(managed)
    assert managed.core.consume("/queue/orders", auto=True).texts == evens
    later = managed.takeover()
    assert later.texts("orders") == []
    assert later.texts("other") == ["first", *odds]


def test_a_copy_leaves_the_originals() -> None:
    """And is of the same bodies."""
    managed = filled(100)
    managed.core.send("/queue/other", "first")
    assert managed.job(JobKind.COPY, target="other").done == 100
    assert managed.texts("orders") == [str(one) for one in range(100)]
    assert managed.texts("other") == ["first", *managed.texts("orders")]
    use_is_right(managed)


def test_what_consumers_have_stays_with_them() -> None:
    """It is counted as left, acknowledged as ever, and not delivered twice."""
    managed = filled(50)
    consumer = managed.core.consume("/queue/orders", prefetch=7)
    job = managed.job(JobKind.PURGE)
    assert (job.done, job.left) == (43, 7)
    assert consumer.texts == [str(one) for one in range(7)]
    consumer.acknowledge(*consumer.texts)
    managed.core.settle()
    assert managed.run(managed.management.queue(OPERATOR, "orders")).messages == 0
    managed.core.send("/queue/orders", "next")
    assert consumer.texts[-1] == "next"
    use_is_right(managed)


def test_what_waits_for_redelivery_goes_too() -> None:
    """It is with nobody, and would come back."""
    managed = filled(3, settings(redelivery_delay=5_000))
    consumer = managed.core.consume("/queue/orders")
    consumer.reject("1")
    managed.core.settle()
    consumer.acknowledge("0")
    managed.core.settle()
    assert managed.job(JobKind.PURGE).done == 1
    managed.core.pass_time(10)
    assert consumer.texts == ["0", "1", "2"]
    use_is_right(managed)


def test_a_retry_sends_dead_letters_back_and_counts_it() -> None:
    """Without a destination; each goes where it was, and the next browser sees how often."""
    managed = Managed(FEW)
    core = managed.core
    for turn in (1, 2):
        if turn == 1:
            core.send("/queue/a", "a1")
            core.send("/queue/b", "b1")
        for name in ("a", "b"):
            consumer = core.consume(f"/queue/{name}")
            consumer.reject(f"{name}1")
            core.settle()
            consumer.end.close()
        assert managed.texts("DLQ") == ["a1", "b1"]
        job = managed.job(JobKind.RETRY, "DLQ")
        assert (job.state, job.done) == (JobState.DONE, 2)
        for name in ("a", "b"):
            (one,) = managed.run(managed.management.browse(OPERATOR, name)).messages
            assert (one.returns, one.origin_queue, one.address) == (turn, None, name)


def test_a_retry_leaves_what_came_from_nowhere() -> None:
    """A message that a client sent there, and one whose queue is gone."""
    managed = Managed(FEW)
    core = managed.core
    core.send("/queue/a", "a1")
    consumer = core.consume("/queue/a")
    consumer.reject("a1")
    core.settle()
    consumer.end.close()
    managed.run(managed.management.delete_queue(OPERATOR, "a"))
    core.send("/queue/DLQ", "own")
    job = managed.job(JobKind.RETRY, "DLQ")
    assert (job.state, job.done, job.left) == (JobState.DONE, 0, 2)
    assert managed.texts("DLQ") == ["a1", "own"]


def test_a_retry_puts_nothing_among_what_is_delivered_later() -> None:
    """Anybody may state such an origin; there, without a time, it would never be delivered."""
    managed = Managed()
    core = managed.core
    due_ms = core.broker.time_ms() + 3_600_000
    managed.run(managed.management.send(OPERATOR, "/queue/orders", b"later", delivery_ms=due_ms))
    schedule = next(name for name in core.broker.queues() if is_schedule(name))
    stated = f"_AMQ_ORIG_QUEUE:{schedule}\n".encode()
    core.send("/queue/DLQ", "nowhere", headers=stated)
    core.send("/queue/DLQ", "somewhere", headers=stated + b"_AMQ_ORIG_ADDRESS:orders\n")
    job = managed.job(JobKind.RETRY, "DLQ")
    assert (job.state, job.done, job.left) == (JobState.DONE, 1, 1)
    assert managed.texts("DLQ") == ["nowhere"]
    assert managed.texts("orders") == ["somewhere"]


def test_a_moved_message_expires_when_it_would_have() -> None:
    """It is no other message because an operator put it elsewhere."""
    managed = Managed()
    expires = managed.core.broker.time_ms() + 60_000
    managed.core.send("/queue/orders", "a", expires_ms=expires)
    managed.run(managed.management.create_queue(OPERATOR, "other"))
    for kind in (JobKind.COPY, JobKind.MOVE):
        assert managed.job(kind, target="other").done == 1
    found = managed.run(managed.management.browse(OPERATOR, "other")).messages
    assert [one.expires_ms for one in found] == [expires, expires]


def test_nothing_is_moved_to_a_queue_that_is_being_deleted() -> None:
    """It would be deleted with it: the job is refused before it begins."""
    managed = filled(2)
    managed.run(managed.management.create_queue(OPERATOR, "other"))
    queue = managed.core.broker.queues()["other"]
    queue.is_leaving = True
    for kind in (JobKind.MOVE, JobKind.COPY):
        with pytest.raises(BrokerError, match="queue 'other'"):
            managed.job(kind, target="other")
    assert managed.run(managed.management.jobs(OPERATOR)) == ()
    queue.is_leaving = False
    assert managed.texts("orders") == ["0", "1"]


def test_a_retry_goes_to_no_queue_that_is_being_deleted() -> None:
    """It would be deleted with it."""
    managed = Managed(FEW)
    core = managed.core
    core.send("/queue/a", "a1")
    consumer = core.consume("/queue/a")
    consumer.reject("a1")
    core.settle()
    consumer.end.close()
    queue = core.broker.queues()["a"]
    queue.is_leaving = True
    job = managed.job(JobKind.RETRY, "DLQ")
    assert (job.done, job.left) == (0, 1)
    queue.is_leaving = False
    assert managed.job(JobKind.RETRY, "DLQ").done == 1


def test_messages_expire_and_change_priority_by_an_operator() -> None:
    """What expires goes to the expiry address; a priority changes the order."""
    managed = filled(6)
    assert managed.job(JobKind.EXPIRE, selector="kind = 'odd'").done == 3
    assert managed.texts("ExpiryQueue") == ["1", "3", "5"]
    ids = [one.id for one in managed.run(managed.management.browse(OPERATOR, "orders")).messages]
    assert managed.job(JobKind.PRIORITY, ids=[ids[2]], priority=9).done == 1
    assert managed.texts("orders") == ["4", "0", "2"]
    view = managed.run(managed.management.queue(OPERATOR, "orders"))
    assert (view.expired, view.removed) == (3, 1)
    use_is_right(managed)


def test_messages_are_deleted_by_id_and_a_stale_id_does_nothing() -> None:
    """All of those that were named, or none."""
    managed = filled(40)
    managed.core.send("/queue/orders", "memory", persistent=False)
    page = managed.run(managed.management.browse(OPERATOR, "orders", limit=100)).messages
    ids = [page[3].id, page[30].id, page[40].id]
    with pytest.raises(NotFound, match="no message '999999' in queue 'orders' any more: nothing"):
        managed.job(JobKind.DELETE, ids=[*ids, 999_999])
    assert len(managed.texts("orders")) == 41
    job = managed.job(JobKind.DELETE, ids=ids)
    assert (job.done, job.ids) == (3, 3)
    assert managed.texts("orders") == [str(one) for one in range(40) if one not in (3, 30)]
    use_is_right(managed)


def test_a_purge_of_an_address_is_of_all_its_queues() -> None:
    """A configured one, too: whose queues are not deleted."""
    managed = Managed()
    for name in ("x::one", "x::two"):
        managed.core.send(f"/queue/{name}", "a", "b")
    managed.core.send("/queue/y", "c")
    job = managed.job(JobKind.PURGE, None, address="x")
    assert (job.done, job.of_address, job.queue) == (4, True, "x")
    assert [managed.texts(one) for one in ("one", "two", "y")] == [[], [], ["c"]]


def test_wrong_orders_are_refused_and_nothing_happens() -> None:
    """Each by what is wrong with it."""
    managed = filled(3)
    managed.core.send("/queue/other", "x")
    refusals: list[tuple[dict[str, Any], type[BrokerError], str]] = [
        ({"kind": JobKind.PURGE, "queue": "nothing"}, NotFound, "no queue 'nothing'"),
        ({"kind": JobKind.PURGE, "queue": None}, WrongArgument, "name one queue"),
        ({"kind": JobKind.PURGE, "selector": "a = 1"}, WrongArgument, "purge deletes all"),
        ({"kind": JobKind.DELETE}, WrongArgument, "say which messages"),
        ({"kind": JobKind.DELETE, "selector": "a = "}, SelectorRefused, "column"),
        ({"kind": JobKind.DELETE, "selector": "a = 1", "ids": [1]}, WrongArgument, "not by both"),
        ({"kind": JobKind.DELETE, "ids": []}, WrongArgument, "1 to 1000"),
        ({"kind": JobKind.MOVE}, WrongArgument, "needs a target"),
        ({"kind": JobKind.MOVE, "target": ""}, WrongArgument, "needs a target"),
        ({"kind": JobKind.MOVE, "target": "orders"}, WrongArgument, "its own messages"),
        ({"kind": JobKind.MOVE, "target": "nothing"}, NotFound, "no queue 'nothing'"),
        ({"kind": JobKind.RETRY, "target": "other"}, WrongArgument, "has no target"),
        ({"kind": JobKind.MOVE, "queue": None, "address": "orders"}, WrongArgument, "one queue"),
        ({"kind": JobKind.PRIORITY}, WrongArgument, "needed by"),
        ({"kind": JobKind.PRIORITY, "priority": 10}, WrongArgument, "0 to 9"),
    ]
    for said, kind, text in refusals:
        with pytest.raises(kind, match=text):
            managed.job(said.pop("kind"), said.pop("queue", "orders"), **said)
    assert managed.texts("orders") == ["0", "1", "2"]
    assert managed.texts("other") == ["x"]
    assert managed.run(managed.management.jobs(OPERATOR)) == ()


def refuse_step(core: CoreUnderTest, reason: OrthiaError) -> None:
    """Refuse the step that waits, and store what is before and behind it."""
    while core.journal.waiting[0].refused is None:
        core.journal.commit(1)
    core.journal.refuse(reason)
    core.journal.auto_commit = True


def in_steps(managed: Managed, kind: JobKind, steps: int, **said: Any) -> None:
    """Begin a job, and commit so many of its steps and no more: the next one is on its way."""
    core = managed.core

    async def work() -> None:
        await managed.management.start_job(OPERATOR, kind, queue="orders", **said)
        core.journal.auto_commit = False
        for left in range(steps, -1, -1):
            while not core.journal.waiting:
                core.settle()
                await asyncio.sleep(0)
            if left:
                core.journal.commit()

    managed.run(work())


def test_the_last_jobs_that_are_over_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """Older ones are forgotten: a stream has one for each of its micro-batches."""
    monkeypatch.setattr(jobs, "_MOST_KEPT", 2)
    managed = filled(1)
    ids = [managed.job(JobKind.PURGE).id for _ in range(5)]
    shown = [one.id for one in managed.run(managed.management.jobs(OPERATOR))]
    assert shown == ids[:-4:-1]


def test_so_many_jobs_run_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each holds windows in memory; once one is over, the next may begin."""
    monkeypatch.setattr(jobs, "MOST_RUNNING", 2)
    managed = Managed()
    for name in ("a", "b", "c"):
        managed.core.send(f"/queue/{name}", "x")

    async def work() -> None:
        management = managed.management
        first = await management.start_job(OPERATOR, JobKind.PURGE, queue="a")
        await management.start_job(OPERATOR, JobKind.PURGE, queue="b")
        with pytest.raises(LimitExceeded, match="2 jobs run already"):
            await management.start_job(OPERATOR, JobKind.PURGE, queue="c")
        await management.finished(OPERATOR, first.id)
        await management.start_job(OPERATOR, JobKind.PURGE, queue="c")

    managed.run(work())


def test_a_job_of_ids_is_named_anew_after_a_takeover() -> None:
    """Which are left is not known: it must not go on with all of the queue."""
    managed = filled(100)
    page = managed.run(managed.management.browse(OPERATOR, "orders", limit=100)).messages
    in_steps(managed, JobKind.DELETE, 1, ids=[one.id for one in page[:80]])
    later = managed.takeover(PAGED)
    (job,) = later.run(later.management.jobs(OPERATOR))
    assert (job.state, job.done, job.ids) == (JobState.INTERRUPTED, STEP_MESSAGES, 80)
    with pytest.raises(NotPossible, match="name the rest of them anew"):
        later.run(later.management.continue_job(OPERATOR, job.id))
    assert len(later.texts("orders")) == 100 - STEP_MESSAGES


@pytest.mark.parametrize("steps", [0, 1, 2])
@pytest.mark.parametrize("kind", [JobKind.MOVE, JobKind.PURGE, JobKind.PRIORITY])
def test_a_node_that_ends_loses_and_doubles_nothing(kind: JobKind, steps: int) -> None:
    """The next one says how far it came, and goes on when it is told to."""
    managed = filled(200)
    managed.core.send("/queue/other", "first")
    said: dict[str, Any] = {"target": "other"} if kind is JobKind.MOVE else {}
    if kind is JobKind.PRIORITY:
        said["priority"] = 6
    in_steps(managed, kind, steps, **said)
    done = STEP_MESSAGES * steps
    later = managed.takeover(PAGED)
    later.core.broker.count_backlogs()
    later.core.settle()
    everything = sorted([*later.texts("orders"), *later.texts("other")])
    gone = done if kind is JobKind.PURGE else 0
    assert everything == sorted(["first", *(str(one) for one in range(gone, 200))])
    if not steps:
        assert later.run(later.management.jobs(OPERATOR)) == ()
        return
    (job,) = later.run(later.management.jobs(OPERATOR))
    assert (job.state, job.done, job.kind, job.total) == (JobState.INTERRUPTED, done, kind, 200)

    async def rest() -> JobView:
        again = await later.management.continue_job(OPERATOR, job.id)
        return await later.management.finished(OPERATOR, again.id)

    ended = later.run(rest())
    assert (ended.state, ended.done) == (JobState.DONE, 200 - done)
    assert later.run(later.management.jobs(OPERATOR)) == (ended,)
    orders, other = later.texts("orders"), later.texts("other")
    whole = [str(one) for one in range(200)]
    expected = {
        JobKind.MOVE: ([], ["first", *whole]),
        JobKind.PURGE: ([], ["first"]),
        JobKind.PRIORITY: (whole, ["first"]),
    }
    assert (orders, other) == expected[kind]
    last = later.takeover()
    assert last.run(last.management.jobs(OPERATOR)) == ()


@pytest.mark.parametrize("reason", [UnitRefused("for a test"), StoreFull("for a test")])
@pytest.mark.parametrize("kind", [JobKind.MOVE, JobKind.RETRY])
def test_a_step_that_the_store_refuses_ends_the_job(kind: JobKind, reason: OrthiaError) -> None:
    """Its messages are where they were, count as before, and are delivered at once."""
    managed = filled(150)
    core = managed.core
    core.send("/queue/other", "first")
    if kind is JobKind.RETRY:
        managed.job(JobKind.MOVE, target="other")
    source = "orders" if kind is JobKind.MOVE else "other"
    said: dict[str, Any] = {"target": "other"} if kind is JobKind.MOVE else {}
    before = managed.texts(source)
    core.settle()

    async def work() -> JobView:
        job = await managed.management.start_job(OPERATOR, kind, queue=source, **said)
        core.journal.auto_commit = False
        for _ in range(2_000):
            core.settle()
            await asyncio.sleep(0)
            if core.journal.waiting:
                refuse_step(core, reason)
                break
        return await managed.management.finished(OPERATOR, job.id)

    job = managed.run(work())
    assert (job.state, job.reason) == (JobState.FAILED, str(reason))
    assert job.done == 0
    assert managed.texts(source) == before
    use_is_right(managed)
    core.settle()
    assert core.consume(f"/queue/{source}").texts == before


def test_a_full_store_takes_a_purge(caplog: pytest.LogCaptureFixture) -> None:
    """Which says no more how far it is: a record would need room."""
    managed = filled(150)
    core = managed.core
    core.settle()

    async def work() -> JobView:
        job = await managed.management.start_job(OPERATOR, JobKind.PURGE, queue="orders")
        core.journal.auto_commit = False
        while (await managed.management.job(OPERATOR, job.id)).state is JobState.RUNNING:
            core.settle()
            await asyncio.sleep(0)
            while waiting := core.journal.waiting:
                if isinstance(waiting[0], Unit) and waiting[0].binding_rows:
                    core.journal.refuse(StoreFull("for a test"))
                else:
                    core.journal.commit(1)
        core.journal.auto_commit = True
        return await managed.management.job(OPERATOR, job.id)

    with caplog.at_level(logging.INFO, "orthia.broker"):
        job = managed.run(work())
    assert (job.state, job.done) == (JobState.DONE, 150)
    assert managed.texts("orders") == []
    use_is_right(managed)
    assert "of user 'op' (purge of 'orders') is done: 150 messages done" in caplog.text


def test_a_job_is_stopped_between_two_steps() -> None:
    """What is done is done; no other job begins on the queue meanwhile."""
    managed = filled(200)

    async def work() -> JobView:
        job = await managed.management.start_job(OPERATOR, JobKind.PURGE, queue="orders")
        with pytest.raises(NotPossible, match="runs on queue 'orders'"):
            await managed.management.start_job(OPERATOR, JobKind.PURGE, queue="orders")
        await some_done(managed, job.id)
        await managed.management.stop_job(OPERATOR, job.id)
        return await managed.management.finished(OPERATOR, job.id)

    job = managed.run(work())
    assert job.state is JobState.STOPPED
    assert 0 < job.done < 200
    assert len(managed.texts("orders")) == 200 - job.done
    with pytest.raises(NotPossible, match="is over"):
        managed.run(managed.management.stop_job(OPERATOR, job.id))
    with pytest.raises(NotFound, match="no job '5'"):
        managed.run(managed.management.job(OPERATOR, 5))


def test_a_queue_that_is_deleted_ends_its_job() -> None:
    """With the reason."""
    managed = filled(200)

    async def work() -> JobView:
        job = await managed.management.start_job(OPERATOR, JobKind.PURGE, queue="orders")
        await some_done(managed, job.id)
        managed.core.broker.delete_queue(OPERATOR, "orders", lambda _: None, force=True)
        return await managed.management.finished(OPERATOR, job.id)

    job = managed.run(work())
    assert job.state is JobState.FAILED
    assert job.reason is not None
    managed.core.settle()
    assert "orders" not in managed.core.broker.queues()


@pytest.mark.parametrize("kind", [JobKind.MOVE, JobKind.COPY])
def test_nothing_goes_to_a_target_that_is_being_deleted(kind: JobKind) -> None:
    """What was not on its way when the deletion began stays where it is."""
    managed = filled(200)
    core = managed.core
    core.send("/queue/other", "first")
    gone: list[int] = []

    async def work() -> JobView:
        job = await managed.management.start_job(OPERATOR, kind, queue="orders", target="other")
        core.journal.auto_commit = False
        while not core.journal.waiting:
            core.settle()
            await asyncio.sleep(0)
        core.broker.delete_queue(OPERATOR, "other", gone.append, force=True)
        while not gone:
            if core.journal.waiting:
                core.journal.commit(1)
            for _ in range(5):
                core.settle()
                await asyncio.sleep(0)
        core.journal.auto_commit = True
        core.journal.commit()
        return await managed.management.finished(OPERATOR, job.id)

    job = managed.run(work())
    assert (job.state, job.done, gone) == (JobState.FAILED, STEP_MESSAGES, [65])
    assert job.reason is not None
    assert "deleted" in job.reason
    left = range(STEP_MESSAGES if kind is JobKind.MOVE else 0, 200)
    assert managed.texts("orders") == [str(one) for one in left]
    use_is_right(managed)


def test_a_queue_of_which_a_step_was_refused_is_never_empty() -> None:
    """Whoever deletes it if it has no message finds that it has some, at once."""
    managed = filled(10)
    core = managed.core
    core.send("/queue/other", "first")

    async def work() -> None:
        await managed.management.start_job(OPERATOR, JobKind.MOVE, queue="orders", target="other")
        core.journal.auto_commit = False
        while not core.journal.waiting:
            core.settle()
            await asyncio.sleep(0)
        refuse_step(core, UnitRefused("for a test"))
        core.settle()
        with pytest.raises(QueueInUse, match="10 messages"):
            core.broker.delete_queue(OPERATOR, "orders", lambda _: None, force=False)

    managed.run(work())
    assert managed.texts("orders") == [str(one) for one in range(10)]


def test_a_job_whose_rest_cannot_be_begun_is_continued_later() -> None:
    """What is known of it stays: the store may have room again."""
    managed = filled(200)
    managed.core.send("/queue/other", "first")
    in_steps(managed, JobKind.MOVE, 1, target="other")
    later = managed.takeover(PAGED)
    later.core.broker.count_backlogs()
    later.core.settle()
    core = later.core
    (job,) = later.run(later.management.jobs(OPERATOR))

    async def rest(*, is_refused: bool) -> JobView:
        (last, *_) = await later.management.jobs(OPERATOR)
        again = await later.management.continue_job(OPERATOR, last.id)
        core.journal.auto_commit = not is_refused
        while is_refused and not core.journal.waiting:
            core.settle()
            await asyncio.sleep(0)
        if is_refused:
            refuse_step(core, StoreFull("for a test"))
        return await later.management.finished(OPERATOR, again.id)

    refused = later.run(rest(is_refused=True))
    assert (refused.state, refused.done) == (JobState.INTERRUPTED, 0)
    assert refused.reason is not None
    assert "can be continued again: the store has no room" in refused.reason
    assert later.texts("orders") == [str(one) for one in range(job.done, 200)]
    ended = later.run(rest(is_refused=False))
    assert (ended.state, ended.done) == (JobState.DONE, 200 - job.done)
    assert later.takeover().management._jobs.all() == []


def test_a_continued_job_that_fails_amid_its_rest_has_failed() -> None:
    """What it did since then is in no record any more: it is not told as interrupted."""
    managed = filled(200)
    managed.core.send("/queue/other", "first")
    in_steps(managed, JobKind.MOVE, 1, target="other")
    later = managed.takeover(PAGED)
    later.core.broker.count_backlogs()
    later.core.settle()
    core = later.core

    async def rest() -> JobView:
        (last,) = await later.management.jobs(OPERATOR)
        core.journal.auto_commit = False
        again = await later.management.continue_job(OPERATOR, last.id)
        for is_first in (True, False):
            while not core.journal.waiting or core.journal.waiting[0].refused is None:
                core.settle()
                await asyncio.sleep(0)
                if core.journal.waiting and core.journal.waiting[0].refused is None:
                    core.journal.commit(1)
            if is_first:
                core.journal.commit(1)
        refuse_step(core, UnitRefused("for a test"))
        return await later.management.finished(OPERATOR, again.id)

    job = later.run(rest())
    assert (job.state, job.done) == (JobState.FAILED, STEP_MESSAGES)
    assert job.reason is not None
    assert "for a test" in job.reason
    assert later.texts("orders") == [str(one) for one in range(2 * STEP_MESSAGES, 200)]
    assert later.takeover().management._jobs.all() == []
