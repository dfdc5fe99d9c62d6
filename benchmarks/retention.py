"""What journal-retention costs: consumers of nodes with and without it, side by side in one run.

    python -m benchmarks.retention [--dbms postgresql mariadb sqlite] [--messages N] [--rounds N]

Three live nodes on three databases of one server take turns in every round: one without retention,
one with it, and one with a storage-limit so low that it prunes all the time. Each gets 1 KiB
messages, not measured; then one consumer acknowledges them, measured. Prints the median, and how
many bytes the history takes on the disk for each message beyond its record.
"""

import argparse
import statistics
import tempfile
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from sqlalchemy import text

from benchmarks.floors import EVERY_DBMS, started
from benchmarks.stomp_load import consume, fill
from orthia.config.dialects import Dialect
from orthia.config.settings import Role
from orthia.config.store_settings import DatabaseStoreSettings
from orthia.database import Database
from orthia.journal.sql.history import history_totals
from tests.process.file_nodes import FileNodeProcess, file_cluster
from tests.process.locker_stores import HANDS_OVER, store
from tests.support.servers import StoreServer
from tests.support.waiting import wait_until

OFF: Final = "without retention"
ON: Final = "with retention"
PRUNING: Final = "and pruning all the time"
RETENTION: Final[Mapping[str, str]] = {
    OFF: "",
    ON: '<journal-retention xmlns="urn:orthia" period="1"/>',
    PRUNING: '<journal-retention xmlns="urn:orthia" period="1" storage-limit="1M"/>',
}
SIZE_OF: Final[Mapping[Dialect, str]] = {
    Dialect.POSTGRESQL: "SELECT pg_total_relation_size('messages_history')",
    Dialect.MYSQL: "SELECT data_length + index_length FROM information_schema.tables"
    " WHERE table_name = 'MESSAGES_HISTORY' AND table_schema = DATABASE()",
    Dialect.SQLITE: "SELECT SUM(pgsize) FROM dbstat WHERE name LIKE '%MESSAGES_HISTORY%'",
}


def measure(
    server: StoreServer, directory: Path, messages: int, rounds: int
) -> tuple[dict[str, float], float]:
    """Measure the nodes in turn; return the rates, and bytes of a kept row beyond its record."""
    rates: dict[str, list[float]] = defaultdict(list)
    settings = {name: server.settings(server.create_database()) for name in RETENTION}
    with file_cluster(directory) as nodes:
        live: dict[str, FileNodeProcess] = {}
        for number, (name, element) in enumerate(RETENTION.items()):
            core = store(directory, settings[name], "lease", more=element)
            live[name] = nodes.node(Role.LIVE, f"live-{number}", policy=HANDS_OVER, core=core)
            live[name].start().wait_serving()
        for number in range(rounds):
            for name, node in live.items():
                queue = f"consume-{number}"
                fill(node.port, queue, messages)
                rates[name].append(consume(node.port, queue, messages, ack="client").rate)
        beside = overhead(settings[ON], messages * rounds)
    return {name: statistics.median(rate) for name, rate in rates.items()}, beside


def overhead(s: DatabaseStoreSettings, messages: int) -> float:
    """Return how many bytes the history takes for a message beyond its record."""
    database = Database.from_settings(s)
    try:
        wait_until(
            lambda: history_totals(database, s).kept.rows >= messages,
            timeout_seconds=30,
            what="all that was consumed is kept",
        )
        kept = history_totals(database, s).kept
        with database.engine.connect() as connection:
            if database.dialect is Dialect.MYSQL:
                connection.execute(text("ANALYZE TABLE MESSAGES_HISTORY"))
            taken = int(connection.execute(text(SIZE_OF[database.dialect])).scalar_one())
    finally:
        database.dispose()
    return (taken - kept.record_bytes) / kept.rows


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dbms", nargs="+", choices=EVERY_DBMS, default=list(EVERY_DBMS))
    parser.add_argument("--messages", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    print(f"{'':12}{'consumed, ack client':28}{'a second':>10}{'ratio':>8}")
    for dbms in arguments.dbms:
        with started(dbms) as server, tempfile.TemporaryDirectory() as directory:
            Path(directory).chmod(0o755)
            found = measure(server, Path(directory), arguments.messages, arguments.rounds)
        rates, beside = found
        for name, rate in rates.items():
            print(f"{dbms:12}{name:28}{rate:10,.0f}{rate / rates[OFF]:8.2f}")
        print(f"{'':12}a kept message takes {beside:,.0f} bytes beside its record", flush=True)


if __name__ == "__main__":
    main()
