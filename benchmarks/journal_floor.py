"""The journal beside its floor: the same rows into the same table by a bare driver loop.

    python -m benchmarks.journal_floor [--dbms postgresql mariadb sqlite] [--seconds 2] [--rounds 3]

Each figure is the median of rounds in which journal and floor take turns, so that a noisy machine
disturbs both; read the ratios. Servers are private, durable (fsync on) and started for the run.
The floor has no fence, no ids, no callers to complete and no second thread.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from queue import SimpleQueue

from sqlalchemy import MetaData, update

from benchmarks.floors import EVERY_DBMS, PAYLOAD, QUEUE, Floor, started
from orthia import migrations
from orthia.database import Database
from orthia.journal import BatchReport, MessageLocation
from orthia.journal.journal import MessageJournal
from orthia.journal.sql.journal import open_journal
from orthia.nodemanager.tables import node_manager_store
from tests.support.servers import StoreServer

OUTSTANDING = 1_600
"""What 8 producers with 200 unanswered receipts each keep waiting."""


class JournalUnderTest:
    """A journal and the event loop that drives it."""

    def __init__(
        self,
        opened: Callable[
            [Callable[[Callable[[], None]], None], Callable[..., None]], MessageJournal
        ],
    ) -> None:
        """Open by ``opened``, which gets what posts to the loop and what hears of a failure."""
        self.callbacks: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self.reports: list[BatchReport] = []
        self.journal = opened(self.callbacks.put, self._fail)
        self.journal.register_batch_listener(self.reports.append)
        self._completed = 0
        self.append_seconds = 0.0
        self.appended = 0

    def _fail(self, error: Exception) -> None:
        raise error

    def _done(self) -> None:
        self._completed += 1

    def one_at_a_time(self, seconds: float) -> float:
        """Return messages a second of a producer that waits for each message."""
        self._completed = 0
        start = time.perf_counter()
        count = 0
        while time.perf_counter() - start < seconds:
            self.journal.append_message(QUEUE, PAYLOAD, self._done)
            count += 1
            self._run_until_outstanding(0, count)
        return count / (time.perf_counter() - start)

    def many_outstanding(self, seconds: float) -> float:
        """Return messages a second with OUTSTANDING messages always waiting."""
        self._completed = 0
        start = time.perf_counter()
        count = 0
        while time.perf_counter() - start < seconds:
            burst = OUTSTANDING - (count - self._completed)
            before = time.thread_time()
            for _ in range(burst):
                self.journal.append_message(QUEUE, PAYLOAD, self._done)
            self.append_seconds += time.thread_time() - before
            self.appended += burst
            count += burst
            self._run_until_outstanding(OUTSTANDING - 1, count)
        self._run_until_outstanding(0, count)
        return count / (time.perf_counter() - start)

    def delete(self, seqs: list[int]) -> None:
        """Delete messages and wait until they are deleted."""
        self.journal.delete([MessageLocation(seq) for seq in seqs])
        self.settle()

    def settle(self) -> None:
        """Wait until all that was appended is stored."""
        self._completed = 0
        self.journal.delete([], self._done)
        self._run_until_outstanding(0, 1)

    def _run_until_outstanding(self, outstanding: int, sent: int) -> None:
        while sent - self._completed > outstanding:
            self.callbacks.get(timeout=60)()


@dataclass
class Figures:
    """Rates of one DBMS, one list per kind of load, one entry per round."""

    journal_sync: list[float] = field(default_factory=list)
    floor_sync: list[float] = field(default_factory=list)
    journal_bulk: list[float] = field(default_factory=list)
    floor_bulk: list[float] = field(default_factory=list)
    append_us: float = 0.0
    mean_batch: float = 0.0


def measure(server: StoreServer, seconds: float, rounds: int) -> Figures:
    """Measure the journal and its floor in turn on one database."""
    settings = server.settings(server.create_database(), jdbc_network_timeout=60_000)
    database = Database.from_settings(settings)
    migrations.upgrade(database, settings)
    fence = node_manager_store(MetaData(), settings.node_manager_store_table_name, database.dialect)
    with database.engine.begin() as connection:
        connection.execute(update(fence).where(fence.c.id == 4).values(holder_token=1))
    figures = Figures()

    def opened(
        post: Callable[[Callable[[], None]], None], fail: Callable[..., None]
    ) -> MessageJournal:
        return open_journal(
            database, settings, token=1, still_valid=lambda: True, post=post, on_failure=fail
        )

    under_test = JournalUnderTest(opened)
    floor = Floor(database)
    try:
        for _ in range(rounds):
            figures.floor_sync.append(floor.one_at_a_time(seconds))
            figures.journal_sync.append(under_test.one_at_a_time(seconds))
            figures.floor_bulk.append(floor.many_outstanding(seconds))
            first = len(under_test.reports)
            figures.journal_bulk.append(under_test.many_outstanding(seconds))
            batches = under_test.reports[first:]
            figures.mean_batch = statistics.mean(batch.rows for batch in batches)
        figures.append_us = under_test.append_seconds / under_test.appended * 1e6
    finally:
        under_test.journal.close(drain=True)
        floor.close()
        database.dispose()
    return figures


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dbms", nargs="+", choices=EVERY_DBMS, default=EVERY_DBMS)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    print(f"{'':12}{'work':28}{'journal/s':>11}{'floor/s':>11}{'ratio':>8}")
    for dbms in arguments.dbms:
        with started(dbms) as server:
            figures = measure(server, arguments.seconds, arguments.rounds)
        for work, journal, floor in (
            ("one at a time", figures.journal_sync, figures.floor_sync),
            (f"{OUTSTANDING} outstanding", figures.journal_bulk, figures.floor_bulk),
        ):
            ours, bare = statistics.median(journal), statistics.median(floor)
            print(f"{dbms:12}{work:28}{ours:11,.0f}{bare:11,.0f}{ours / bare:8.2f}")
        print(
            f"{'':12}append_message {figures.append_us:.2f} us of the loop's thread,"
            f" batches of {figures.mean_batch:,.0f} rows"
        )


if __name__ == "__main__":
    main()
