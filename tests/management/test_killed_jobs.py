"""A node that is killed amid an operation on many messages loses and doubles nothing."""

import asyncio
import pickle
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from orthia.broker.management.facade import Management
from orthia.broker.management.views import JobKind, JobState
from orthia.journal.model.windows import Window
from tests.conftest import Servers
from tests.core.stored_node import StoredNode
from tests.core.support import SETTINGS
from tests.journal.conftest import sql_store as sql_store
from tests.journal.conftest import store_settings as store_settings
from tests.journal.support import SqlJournalStore
from tests.management.support import OPERATOR, FakeClients
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
def killed_amid(store: SqlJournalStore, token: int, order: dict[str, Any]) -> Iterator[int]:
    """Run a job in a process that is killed when a third is done; give how much that was."""
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
        process.stdin.write(pickle.dumps((store.settings, token, order)))
        process.stdin.close()
        for line in process.stdout:
            done = int(line)
            if done >= MESSAGES // 3:
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
