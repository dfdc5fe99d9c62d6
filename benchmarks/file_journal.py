"""The file journal beside its floor and the databases: the same messages in the same batches.

    python -m benchmarks.file_journal [--seconds 2] [--rounds 3] [--directory DIRECTORY]
        [--dbms postgresql mariadb sqlite]

The floor is a loop that writes the same bytes with pwrite and fdatasync to a preallocated file: it
has no fence, no ids, no index, no callers to complete and no second thread. The floor and the
journals take turns, so a noisy machine disturbs them all; read the ratios. With batches of one the
floor shows how many syncs a second the device does. The load of the machine is printed before and
after: a floor waits for the disk, a journal also for a processor. The servers keep their data in
the directory for temporary files.
"""

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

from sqlalchemy import MetaData, update

from benchmarks.floors import EVERY_DBMS, PAYLOAD, QUEUE, started
from benchmarks.journal_floor import OUTSTANDING, JournalUnderTest
from orthia import migrations
from orthia.config.store_settings import FileStoreSettings, JournalType
from orthia.database import Database
from orthia.journal.engine.batch import Batch
from orthia.journal.file import open_file_journal
from orthia.journal.file.format import RECORD_BYTES
from orthia.journal.file.inspect import inspect
from orthia.journal.file.journal import FileKeeper
from orthia.journal.file.opening import open_files
from orthia.journal.file.store import FileStore
from orthia.journal.file.tools import compact
from orthia.journal.journal import MessageJournal
from orthia.journal.model.unit import AppendedMessage
from orthia.journal.sql.journal import open_journal
from orthia.nodemanager.tables import node_manager_store
from tests.support.servers import StoreServer

_FILE_BYTES = 10 * 1024 * 1024
_BACKLOG = 100_000
_BATCH = 1_000
SWITCH_INTERVAL_SECONDS = 0.0005
_KEPT_EACH = 10
"""One in so many messages of the backlog is live when it is compacted."""


class Floor:
    """pwrite and fdatasync on a filled file, over and over."""

    def __init__(self, directory: Path) -> None:
        self._descriptor = os.open(directory / "floor", os.O_RDWR | os.O_CREAT)
        os.pwrite(self._descriptor, bytes(_FILE_BYTES), 0)
        os.fsync(self._descriptor)

    def messages_a_second(self, seconds: float, batch: int) -> float:
        """Return messages a second, with ``batch`` messages per sync."""
        data = (bytes(RECORD_BYTES) + PAYLOAD) * batch
        start, count, at = time.perf_counter(), 0, 0
        while time.perf_counter() - start < seconds:
            if at + len(data) > _FILE_BYTES:
                at = 0
            os.pwrite(self._descriptor, data, at)
            os.fdatasync(self._descriptor)
            at += len(data)
            count += batch
        return count / (time.perf_counter() - start)

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)


@dataclass
class Figures:
    """Rates of one store, one per round."""

    sync: list[float] = field(default_factory=list)
    bulk: list[float] = field(default_factory=list)
    floor_bulk: list[float] = field(default_factory=list)
    batch: float = 0.0


def store_alone(s: FileStoreSettings, seconds: float, batch_size: int) -> float:
    """Return messages a second of what the writer does: encode, write, sync, index."""
    opened = open_files(s, token=1, id_block=1)
    keeper = FileKeeper(opened, s)
    keeper.start()
    store = FileStore(
        opened,
        sync_transactional=True,
        sync_non_transactional=True,
        rolled=keeper.wake,
        closed=keeper.stop,
    )
    seq, start = opened.horizon, time.perf_counter()
    while time.perf_counter() - start < seconds:
        batch = Batch()
        for _ in range(batch_size):
            seq += 1
            batch.add(AppendedMessage(seq, QUEUE, PAYLOAD, None))
        store.store(batch)
    rate = (seq - opened.horizon) / (time.perf_counter() - start)
    store.close()
    return rate


def measure(
    stores: dict[str, JournalUnderTest], floor: Floor, seconds: float, rounds: int
) -> tuple[dict[str, Figures], list[float]]:
    """Measure the stores and the floor in turn."""
    figures = {name: Figures() for name in stores}
    floor_sync: list[float] = []
    for _ in range(rounds):
        floor_sync.append(floor.messages_a_second(seconds, 1))
        for name, store in stores.items():
            one = figures[name]
            one.sync.append(store.one_at_a_time(seconds))
            first = len(store.reports)
            one.bulk.append(store.many_outstanding(seconds))
            one.batch = statistics.mean(report.rows for report in store.reports[first:])
            one.floor_bulk.append(floor.messages_a_second(seconds, max(1, round(one.batch))))
    return figures, floor_sync


def file_store(directory: Path, kind: JournalType) -> tuple[FileStoreSettings, JournalUnderTest]:
    """Open a journal of files."""
    s = FileStoreSettings(
        directory / "journal", directory / "bindings", directory / "large", journal_type=kind
    )
    # Nothing is consumed: compaction would make the comparison unfair.
    s = replace(s, journal_compact_min_files=0)

    def opened(
        post: Callable[[Callable[[], None]], None], fail: Callable[..., None]
    ) -> MessageJournal:
        return open_file_journal(s, token=1, still_valid=lambda: True, post=post, on_failure=fail)

    return s, JournalUnderTest(opened)


def sql_store(server: StoreServer) -> tuple[Database, JournalUnderTest]:
    """Open a journal on a database."""
    settings = server.settings(server.create_database(), jdbc_network_timeout=60_000)
    database = Database.from_settings(settings)
    migrations.upgrade(database, settings)
    fence = node_manager_store(MetaData(), settings.node_manager_store_table_name, database.dialect)
    with database.engine.begin() as connection:
        connection.execute(update(fence).where(fence.c.id == 4).values(holder_token=1))

    def opened(
        post: Callable[[Callable[[], None]], None], fail: Callable[..., None]
    ) -> MessageJournal:
        return open_journal(
            database, settings, token=1, still_valid=lambda: True, post=post, on_failure=fail
        )

    return database, JournalUnderTest(opened)


def backlog(directory: Path) -> None:
    """Measure reading a journal back, and compacting it."""
    s, under_test = file_store(directory, JournalType.NIO)
    seqs = [under_test.journal.append_message(QUEUE, PAYLOAD, None) for _ in range(_BACKLOG)]
    under_test.settle()
    under_test.journal.close(drain=True)
    start = time.perf_counter()
    contents = inspect(s)
    seconds = time.perf_counter() - start
    size = sum(found.end for found in contents.message_files.counting)
    print(
        f"recovery: {_BACKLOG:,} messages, {size / 2**20:,.0f} MiB in {seconds:.2f} s:"
        f" {_BACKLOG / seconds:,.0f} records/s"
    )
    _, under_test = file_store(directory, JournalType.NIO)
    under_test.delete([seq for seq in seqs if seq % _KEPT_EACH])
    under_test.journal.close(drain=True)
    start = time.perf_counter()
    (messages, _) = compact(s)
    print(
        f"compaction: {messages.bytes_before / 2**20:,.0f} MiB with {messages.records:,} live"
        f" messages to {messages.bytes_after / 2**20:,.0f} MiB in"
        f" {time.perf_counter() - start:.2f} s, reading it first included"
    )


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--directory", type=Path, help="On the disk to be measured.")
    parser.add_argument("--dbms", nargs="*", choices=EVERY_DBMS, default=EVERY_DBMS)
    arguments = parser.parse_args()
    sys.setswitchinterval(SWITCH_INTERVAL_SECONDS)  # as a node does
    print_load("before")
    with tempfile.TemporaryDirectory(dir=arguments.directory) as name, ExitStack() as stack:
        directory = Path(name)
        stores = {kind.value: file_store(directory / kind.value, kind)[1] for kind in JournalType}
        for dbms in arguments.dbms:
            database, stores[dbms] = sql_store(stack.enter_context(started(dbms)))
            stack.callback(database.dispose)
        floor = Floor(directory)
        figures, floor_sync = measure(stores, floor, arguments.seconds, arguments.rounds)
        bare = statistics.median(floor_sync)
        print(f"the device: {bare:,.0f} writes of a message with fdatasync a second")
        print(f"{'':12}{'work':20}{'journal/s':>11}{'floor/s':>11}{'ratio':>7}{'batch':>8}")
        for store, one in figures.items():
            ours = statistics.median(one.sync)
            print(f"{store:12}{'one at a time':20}{ours:11,.0f}{bare:11,.0f}{ours / bare:7.2f}")
            ours, bulk = statistics.median(one.bulk), statistics.median(one.floor_bulk)
            work = f"{OUTSTANDING} outstanding"
            print(f"{'':12}{work:20}{ours:11,.0f}{bulk:11,.0f}{ours / bulk:7.2f}{one.batch:8,.0f}")
        for under_test in stores.values():
            under_test.journal.close(drain=True)
        alone, bulk_rates = [], []
        for number in range(arguments.rounds):
            place = directory / f"alone-{number}"
            s = FileStoreSettings(
                place / "j", place / "b", place / "l", journal_type=JournalType.NIO
            )
            s = replace(s, journal_compact_min_files=0)
            alone.append(store_alone(s, arguments.seconds, _BATCH))
            bulk_rates.append(floor.messages_a_second(arguments.seconds, _BATCH))
        ours, bulk = statistics.median(alone), statistics.median(bulk_rates)
        print(
            f"{'NIO':12}{'the writer alone':20}{ours:11,.0f}{bulk:11,.0f}{ours / bulk:7.2f}"
            f"{_BATCH:8,.0f}"
        )
        floor.close()
        backlog(directory / "backlog")
    print_load("after")


def print_load(when: str) -> None:
    """Print how busy the machine is."""
    load, _, _ = os.getloadavg()
    print(f"load {when}: {load:.1f} on {os.cpu_count()} processors")


if __name__ == "__main__":
    main()
