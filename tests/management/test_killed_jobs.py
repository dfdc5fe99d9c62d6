"""A node that is killed amid an operation on many messages loses and doubles nothing."""

import asyncio
import pickle
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, cast

import pytest

from orthia.broker.core.api import OutgoingMessage
from orthia.broker.management.facade import Management
from orthia.broker.management.messages import properties_of
from orthia.broker.management.views import JobKind, JobState
from orthia.config.address_settings import RoutingType
from orthia.journal.model.windows import Window
from tests.conftest import Servers
from tests.core.stored_node import StoredNode
from tests.core.support import SETTINGS, message
from tests.journal.conftest import sql_store as sql_store
from tests.journal.conftest import store_settings as store_settings
from tests.journal.large_support import read, upload
from tests.journal.support import SqlJournalStore
from tests.management.support import OPERATOR, FakeClients, OnStore
from tests.management.test_on_every_store import facade_is_counted, later
from tests.support.servers import SqliteServer, StoreServer

MESSAGES = 20_000
TEXTS = [f"m{number:05}" for number in range(MESSAGES)]


@pytest.fixture(
    params=[
        "sqlite",
        *(pytest.param(one, marks=pytest.mark.extended) for one in ("postgresql", "mariadb")),
    ]
)
def server(request: pytest.FixtureRequest, shared_servers: Servers, tmp_path: Path) -> StoreServer:
    """Give one store for each ``make test``, the others where it may take long."""
    return SqliteServer(tmp_path) if request.param == "sqlite" else shared_servers(request.param)


@contextmanager
def killed_amid(
    store: SqlJournalStore,
    token: int,
    order: dict[str, Any],
    hold_at: int | None = None,
    prefetch: int = 0,
) -> Iterator[int]:
    """Run a job in a process that is killed amid it; give how much was done."""
    store.advance_fence(token)
    done = 0
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.management.job_process"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(pickle.dumps((store.settings, token, order, hold_at, prefetch)))
        process.stdin.close()
        for line in process.stdout:
            done = int(line)
            if done >= (MESSAGES // 3 if hold_at is None else hold_at):
                process.kill()
                break
        process.stdout.close()
        process.wait(60)
        yield done
    finally:
        process.kill()
        process.wait(60)


def texts_of(node: StoredNode, queue: str) -> list[str]:
    """Return the bodies of all that the store has of a queue, in order."""
    found: list[Window] = []
    queue_id = node.broker.queues()[queue].id
    up_to = node.journal.last_committed_seq
    node.journal.read_window(
        queue_id, 0, up_to, 2 * MESSAGES, 2**30, lambda window: found.append(cast("Window", window))
    )
    node.store.loop.run_until(lambda: bool(found), "the rows of the queue")
    assert not found[0].corrupt
    return [one.record.body.decode() for one in found[0].messages]


@pytest.mark.parametrize("kind", [JobKind.MOVE, JobKind.PURGE])
def test_a_node_killed_amid_a_job_loses_and_doubles_nothing(
    sql_store: SqlJournalStore, kind: JobKind
) -> None:
    """What there was is what is left and what was purged; the next node says how far it came."""
    node = StoredNode(sql_store, SETTINGS, token=2)
    node.send(*TEXTS)
    node.send("first", destination="/queue/other")
    node.journal.close(drain=True)
    order: dict[str, Any] = {"kind": kind, "queue": "orders"}
    if kind is JobKind.MOVE:
        order["target"] = "other"
    with killed_amid(sql_store, 3, order) as told:
        after = StoredNode(sql_store, SETTINGS, token=4)
        queues = after.broker.queues()
        sql_store.loop.run_until(
            lambda: all(one.is_counted for one in queues.values()), "all is counted"
        )
        orders, others = texts_of(after, "orders"), texts_of(after, "other")
    (job,) = asyncio.run(Management(after.broker, FakeClients(), "next").jobs(OPERATOR))
    assert job.state is JobState.INTERRUPTED
    assert told <= job.done < MESSAGES
    assert orders == TEXTS[job.done :]
    assert others == ["first", *(TEXTS[: job.done] if kind is JobKind.MOVE else [])]
    assert [queues[name].depth for name in ("orders", "other")] == [len(orders), len(others)]


class Shape(NamedTuple):
    """A queue of a kind, what is in it, and what is done with it."""

    kind: JobKind = JobKind.MOVE
    options: dict[str, Any] | None = None
    header: str | None = None
    """One whose value is the message's number."""
    priorities: int = 1
    is_durable_subscription: bool = False
    size: int = 0
    """Of a large body."""
    delay_ms: int = 0
    prefetch: int = 0
    said: Mapping[str, Any] = {}
    target: str | None = "others"


SHAPES = {
    "ring": Shape(options={"ring-size": 1_000}),
    "last value": Shape(options={"last-value": True}, header="_AMQ_LVQ_NAME"),
    "last value purged": Shape(JobKind.PURGE, {"last-value": True}, "_AMQ_LVQ_NAME", target=None),
    "non-destructive": Shape(options={"non-destructive": True}),
    "priorities": Shape(priorities=3),
    "priorities changed": Shape(
        JobKind.PRIORITY, priorities=3, said={"priority": 8}, target="orders"
    ),
    "groups": Shape(header="JMSXGroupID"),
    "durable subscription": Shape(is_durable_subscription=True),
    "large bodies": Shape(size=300_000),
    "large bodies copied": Shape(JobKind.COPY, size=300_000),
    "prefetch": Shape(prefetch=20),
    "expired": Shape(JobKind.EXPIRE, target="ExpiryQueue"),
    "retried": Shape(JobKind.RETRY, said={"queue": "others"}, target="orders"),
    "scheduled": Shape(delay_ms=3_600_000),
    "cancelled": Shape(JobKind.CANCEL, delay_ms=3_600_000, target=None),
}
FEW = 300


def body_of(shape: Shape, node: StoredNode, number: int) -> OutgoingMessage:
    """Return one message."""
    text = f"m{number:05}"
    headers = f"{shape.header}:{text}\n".encode() if shape.header else b""
    priority = 4 + number % shape.priorities
    if shape.delay_ms:
        return later(text, shape.delay_ms)
    if shape.size and number % 10 == 0:
        large = upload(node.store, node.journal, text.encode() * (shape.size // len(text)))
        return OutgoingMessage(b"name:%s\n" % text.encode(), b"", True, 0, priority, large)
    return message(text, headers=headers, priority=priority)


def all_texts_of(node: StoredNode) -> list[str]:
    """Return what the store has of all queues, each message by its name."""
    found: list[Window] = []
    for queue in node.broker.queues().values():
        for queue_id in queue.log.ids:
            before = len(found)
            node.journal.read_window(
                queue_id, 0, node.journal.last_committed_seq, 10_000, 2**30,
                lambda window: found.append(cast("Window", window)),
            )  # fmt: skip
            node.store.loop.run_until(lambda: len(found) > before, "the rows of a queue")  # noqa: B023
    records = [one.record for window in found for one in window.messages]
    for one in records[:20]:
        if one.large is not None:
            name = str(properties_of(one)["name"])
            assert read(node.store, node.journal, one.large).startswith(name.encode() * 1_000)
    return sorted(one.body.decode() or str(properties_of(one)["name"]) for one in records)


@pytest.mark.parametrize("name", list(SHAPES))
def test_no_kind_of_queue_loses_anything_to_a_killed_job(
    sql_store: SqlJournalStore, name: str
) -> None:
    """Before is after and what was purged, and what was copied; the rest is done afterwards."""
    shape = SHAPES[name]
    managed = OnStore(StoredNode(sql_store, SETTINGS, token=2))
    node = managed.node
    if shape.is_durable_subscription:
        made = managed.management.create_queue(
            OPERATOR, "orders", address="news", routing_type=RoutingType.MULTICAST
        )
        managed.run(made)
    elif shape.options:
        managed.run(managed.management.create_queue(OPERATOR, "orders", options=shape.options))
    destination = "/topic/news" if shape.is_durable_subscription else "/queue/orders"
    node.send_all([body_of(shape, node, number) for number in range(FEW)], destination)
    node.send("first", destination="/queue/others")
    source = "orthia.scheduled.anycast.orders" if shape.delay_ms else "orders"
    order: dict[str, Any] = {"kind": shape.kind, "queue": source, **shape.said}
    if shape.kind in (JobKind.MOVE, JobKind.COPY):
        order["target"] = shape.target
    if shape.kind is JobKind.RETRY:
        assert managed.job(JobKind.MOVE, target="others").done == FEW
        source = "others"
    before = all_texts_of(node)
    assert len(before) == FEW + 1
    managed.management.end()
    node.journal.close(drain=True)
    hold_at = FEW // 3
    with killed_amid(sql_store, 3, order, hold_at, shape.prefetch) as told:
        assert hold_at <= told < FEW
        managed = OnStore(StoredNode(sql_store, SETTINGS, token=4))
        managed.run(facade_is_counted(managed))
        (job,) = managed.run(managed.management.jobs(OPERATOR))
        assert job.state is JobState.INTERRUPTED
        assert told <= job.done < FEW
        after = all_texts_of(managed.node)
        purges = shape.kind in (JobKind.PURGE, JobKind.CANCEL)
        copied = job.done if shape.kind is JobKind.COPY else 0
        assert len(after) == len(before) - (job.done if purges else 0) + copied
        assert set(after) == set(before) if not purges else set(after) < set(before)
        assert purges or copied or after == before
        again = managed.run(managed.management.continue_job(OPERATOR, job.id))
        ended = managed.run(managed.management.finished(OPERATOR, again.id))
        assert (ended.state, ended.reason) == (JobState.DONE, None)
        # The target's own message has no place that it came from, and a copy is made of all.
        left = 1 if shape.kind is JobKind.RETRY else 0
        assert ended.left == left or shape.kind is JobKind.PRIORITY
        if shape.kind is not JobKind.COPY:
            assert ended.done + job.done == FEW
        last = all_texts_of(managed.node)
        assert last == (["first"] if purges else before) or shape.kind is JobKind.COPY
        queues = managed.node.broker.queues()
        counts = {one: (queues[one].depth, queues[one].log.stored_bytes) for one in queues}
        managed = managed.take_over()
        managed.run(facade_is_counted(managed))
        queues = managed.node.broker.queues()
        assert {one: queues[one].depth for one in queues} == {
            one: depth for one, (depth, _) in counts.items()
        }
