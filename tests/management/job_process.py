"""A live node's core in a process of its own, which runs one job and is killed amid it.

Its standard input has the pickled settings of its store, its token and what the job is; a line of
its standard output for each step says how many messages are done. Where it is to hold on, it does
nothing more from there on, so that it is killed with the next step on its way.
"""

import asyncio
import pickle
import sys
import threading
from collections.abc import Callable
from typing import Any

from orthia.broker.core.broker import Broker
from orthia.broker.management.facade import Management
from orthia.broker.management.views import JobState
from orthia.config.errors import OrthiaError
from orthia.config.store_settings import DatabaseStoreSettings
from orthia.database import Database
from orthia.journal.sql.journal import open_journal
from tests.core.support import ANYONE, SETTINGS, FakeConsumer, opened
from tests.management.support import OPERATOR, FakeClients


def _failed(error: OrthiaError) -> None:
    raise SystemExit(f"the journal has failed: {error}")


async def _run(
    settings: DatabaseStoreSettings,
    token: int,
    order: dict[str, Any],
    hold_at: int | None = None,
    prefetch: int = 0,
) -> None:
    loop = asyncio.get_running_loop()

    def post(callback: Callable[[], None]) -> None:
        loop.call_soon_threadsafe(callback)

    journal = open_journal(
        Database.from_settings(settings),
        settings,
        token=token,
        still_valid=lambda: True,
        post=post,
        on_failure=_failed,
    )
    broker = Broker(SETTINGS, journal, lease_valid=lambda: True, call_later=loop.call_later)
    opened(broker)
    broker.count_backlogs()
    broker.start_schedule()
    if prefetch:
        consumer = FakeConsumer()
        handle = broker.subscribe(ANYONE, "/queue/orders", consumer, prefetch=prefetch)
        handle.resume()
        while len(consumer.received) < prefetch:  # noqa: ASYNC110 - the core has no events
            await asyncio.sleep(0)
    management = Management(broker, FakeClients(), "killed")
    job = await management.start_job(OPERATOR, **order)
    told = -1
    while job.state is JobState.RUNNING:
        if job.done != told:
            told = job.done
            sys.stdout.write(f"{told}\n")
            sys.stdout.flush()
            if hold_at is not None and told >= hold_at:
                threading.Event().wait()
        await asyncio.sleep(0)
        job = await management.job(OPERATOR, job.id)
    sys.stdout.write(f"{job.state.value} {job.reason} {job.done}\n")
    sys.stdout.flush()
    await asyncio.get_running_loop().create_future()


if __name__ == "__main__":
    asyncio.run(_run(*pickle.load(sys.stdin.buffer)))
