"""A queue that a stream reads: who is kept from it, and what becomes of its messages."""

import pytest

from orthia.broker.core.errors import BrokerError, DestinationRefused, QueueInUse
from orthia.broker.management.errors import NotFound, WrongArgument
from orthia.broker.management.views import JobKind, JobState
from tests.core.support import Clock, settings
from tests.management.support import OPERATOR, Managed

PAGED = settings(max_size_messages=20)


def attached(number: int = 100, stream: str = "mine") -> Managed:
    """Return a node with a queue of so many messages that a stream reads."""
    managed = Managed(PAGED)
    managed.core.broker.count_backlogs()
    for one in range(number):
        managed.core.send("/queue/orders", str(one))
    managed.run(managed.management.attach_stream(OPERATOR, "orders", stream))
    return managed


def stored(managed: Managed) -> list[int]:
    """Return the seqs of the queue's messages, as they are stored."""
    page = managed.run(managed.management.browse(OPERATOR, "orders", limit=500))
    return [one.id for one in page.messages]


def test_a_stream_acknowledges_up_to_a_message_and_keeps_the_rest() -> None:
    """Also in the books: these are acknowledged, and not removed by an operator."""
    managed = attached()
    seqs = stored(managed)
    job = managed.job(JobKind.ACKNOWLEDGE, stream="mine", up_to=seqs[69])
    assert (job.state, job.done, job.left) == (JobState.DONE, 70, 0)
    # Once more, as after an answer that was lost.
    assert managed.job(JobKind.ACKNOWLEDGE, stream="mine", up_to=seqs[69]).done == 0
    assert stored(managed) == seqs[70:]
    view = managed.run(managed.management.queue(OPERATOR, "orders"))
    assert (view.messages, view.acknowledged, view.removed, view.consumers) == (30, 70, 0, 1)


def test_nobody_else_gets_a_message_of_it_also_after_a_takeover() -> None:
    """The next node knows of the stream before it has a consumer."""
    last = attached(5)
    for _ in range(2):
        node = last
        with pytest.raises(DestinationRefused, match="is read by stream 'mine' alone"):
            node.core.consume("/queue/orders")
        for refused in (
            node.management.start_job(OPERATOR, JobKind.PURGE, queue="orders"),
            node.management.start_job(
                OPERATOR, JobKind.ACKNOWLEDGE, queue="orders", stream="other", up_to=9
            ),
            node.management.attach_stream(OPERATOR, "orders", "other"),
            node.management.delete_queue(OPERATOR, "orders"),
        ):
            with pytest.raises(QueueInUse):
                node.run(refused)
        found = node.run(node.management.stream(OPERATOR, "orders"))
        assert (found.id, found.user) == ("mine", "op")
        assert len(stored(node)) == 5
        # The same one may ask again.
        node.run(node.management.attach_stream(OPERATOR, "orders", "mine"))
        last = node.takeover(PAGED)
    last.run(last.management.detach_stream(OPERATOR, "orders"))
    assert last.core.consume("/queue/orders").texts == [str(one) for one in range(5)]
    with pytest.raises(NotFound):
        last.run(last.management.stream(OPERATOR, "orders"))
    after = last.takeover(PAGED)
    assert len(after.core.consume("/queue/orders").texts) == 5


def test_a_queue_that_others_use_is_refused_by_name() -> None:
    """They might acknowledge what the stream has read."""
    managed = Managed(PAGED)
    managed.core.send("/queue/orders", "one")
    managed.core.consume("/queue/orders")
    asked = managed.management.attach_stream(OPERATOR, "orders", "mine")
    with pytest.raises(QueueInUse, match="has 1 consumers and 1 messages that consumers have"):
        managed.run(asked)


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"non_destructive": True}, "keeps what is acknowledged"),
        ({"last_value_key": "key"}, "replaces its messages"),
        ({"ring_size": 5}, "is a ring"),
    ],
)
def test_a_queue_whose_messages_do_not_wait_is_refused(
    options: dict[str, object], what: str
) -> None:
    """Each kind by what it does."""
    managed = Managed(PAGED)
    managed.run(managed.management.create_queue(OPERATOR, "orders", options=options))
    with pytest.raises(BrokerError, match=what):
        managed.run(managed.management.attach_stream(OPERATOR, "orders", "mine"))


def test_what_expires_stays_until_the_stream_acknowledges_it() -> None:
    """It may have read it: an expired copy would be one too many."""
    clock = Clock(PAGED)
    managed = Managed(core=clock.core)
    core = managed.core
    core.send("/queue/orders", "short", expires_ms=clock.ms() + 1_000)
    core.send("/queue/orders", "long")
    managed.run(managed.management.attach_stream(OPERATOR, "orders", "mine"))
    clock.pass_ms(61_000)
    queue = core.broker.queues()["orders"]
    assert (queue.depth, queue.counters.expired) == (2, 0)
    job = managed.job(
        JobKind.ACKNOWLEDGE, stream="mine", up_to=queue.services.journal.last_committed_seq
    )
    assert (job.done, queue.depth) == (2, 0)


def test_a_stream_is_detached_by_its_own_id_alone() -> None:
    """One that was replaced must not take the queue from the one that reads it now."""
    managed = attached(1)
    with pytest.raises(NotFound, match="it does not read queue 'orders'"):
        managed.run(managed.management.detach_stream(OPERATOR, "orders", "another"))
    assert managed.run(managed.management.stream(OPERATOR, "orders")).id == "mine"
    managed.run(managed.management.detach_stream(OPERATOR, "orders", "mine"))
    with pytest.raises(NotFound, match="its consumers have it"):
        managed.run(managed.management.stream(OPERATOR, "orders"))


def test_what_makes_no_sense_is_refused() -> None:
    """Both arguments, and by nobody else's job."""
    managed = attached(1)
    for kind, said, what in (
        (JobKind.ACKNOWLEDGE, {"stream": "mine"}, "up-to"),
        (JobKind.ACKNOWLEDGE, {"up_to": 5}, "stream"),
        (JobKind.PURGE, {"up_to": 5}, "up-to"),
    ):
        with pytest.raises(WrongArgument) as refused:
            managed.job(kind, **said)
        assert refused.value.argument == what
