"""Rates while somebody holds a snapshot for minutes, beside the same work without, in one run.

    python -m benchmarks.held_snapshot [--dbms postgresql mariadb] [--seconds 600]
        [--works relay consume]

Two servers with a node on each do the same in turns; on one of them a transaction is open that has
read something, so that its server keeps every row that is deleted. The works are

- relay: from the commit of rows in the outbox until the last of them is a message;
- consume: those messages, with cumulative acknowledgements;
- produce: eight producers by STOMP, 200 outstanding each;
- consume plain: what they sent;
- orthia_ack: messages that an application processes, 20 in a transaction, until none is left;
- bare: a table from which two workers take rows with SKIP LOCKED, as most queues in SQL do.

For each the median of the last third of the time is shown, beside the same on the other server, and
before: of the rates, and of the processor time of node and server for a message, which says more
where the machine has other work.
"""

import argparse
import os
import re
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple

import sqlalchemy as sa
from sqlalchemy.exc import OperationalError

from benchmarks.floors import started
from benchmarks.stomp_load import Client, Run, clients, consume, produce, pump
from orthia.config.settings import Role
from orthia.database import Database
from tests.process.file_nodes import FileNodeProcess
from tests.support.servers import ServerProcess, url_with_password

ROWS: Final = 10_000
OUTBOX: Final = "ORTHIA_OUTBOX"
ACKS: Final = "ORTHIA_ACKS"
ACKED: Final = 2_000
BARE_ROWS: Final = 5_000
BYTES: Final = 256
_AT_ONCE: Final = 20
_STOMP_SECONDS: Final = 1.0
_BEFORE: Final = 4
"""Rounds before the snapshot is taken."""
_PATIENCE_SECONDS: Final = 300.0
_PATIENCE_MS: Final = 3_600_000
_ID: Final = re.compile(rb"\nmessage-id:(\d+)\n")


class Side:
    """A server, a node on it, and applications."""

    def __init__(self, server: ServerProcess, directory: Path, name: str) -> None:
        """Start the node; ``server`` is a private one."""
        self._server = server
        settings = server.settings(server.create_database())
        url = url_with_password(settings)
        self.is_postgresql = url.startswith("postgresql")
        patient = replace(settings, jdbc_network_timeout=_PATIENCE_MS)
        self._database = Database.from_settings(patient)
        self.engine = self._database.engine.execution_options(isolation_level="READ COMMITTED")
        core = '<outbox xmlns="urn:orthia"/>'
        self.node = FileNodeProcess(Role.LIVE, url, directory, name, core=core)
        self.node.start().wait_serving()
        kind = "bigserial" if self.is_postgresql else "BIGINT AUTO_INCREMENT"
        blob = "bytea" if self.is_postgresql else "LONGBLOB"
        self.run(f"CREATE TABLE bare (id {kind} PRIMARY KEY, destination VARCHAR(99), body {blob})")
        self.run("CREATE TABLE business (message_id VARCHAR(99))")

    def end(self) -> None:
        """End node and connections."""
        self._database.dispose()
        self.node.terminate()

    def run(self, statement: str) -> None:
        """Execute a statement in a transaction of its own."""
        with self.engine.begin() as session:
            session.exec_driver_sql(statement)

    def fill(self, table: str, rows: int, to: str = "orders") -> int:
        """Insert rows by one statement; return the last one's id."""
        numbers = f"generate_series(1, {rows})" if self.is_postgresql else f"seq_1_to_{rows}"
        body = f"convert_to(repeat('x', {BYTES}), 'UTF8')"
        body = body if self.is_postgresql else f"REPEAT('x', {BYTES})"
        with self.engine.begin() as session:
            session.exec_driver_sql(
                f"INSERT INTO {table} (destination, body) SELECT '{to}', {body} FROM {numbers}"
            )
            return int(session.exec_driver_sql(f"SELECT MAX(id) FROM {table}").scalar_one())

    def gone(self, table: str, column: str, first: int, last: int) -> None:
        """Wait until none of these rows is there; by their key, over no dead rows.

        In the order of the key: else PostgreSQL may walk through another index, each time.
        """
        until = time.monotonic() + _PATIENCE_SECONDS
        these = f"{column} BETWEEN {first} AND {last}"
        asked = f"SELECT 1 FROM {table} WHERE {these} ORDER BY {column} LIMIT 1"
        with self.engine.connect() as session:
            while time.monotonic() < until:
                if session.exec_driver_sql(asked).first() is None:
                    return
                session.rollback()
                time.sleep(0.02)
        raise RuntimeError(f"rows of {table} are there after {_PATIENCE_SECONDS:.0f} s")

    def processor_seconds(self) -> float:
        """Return what node and server have used so far, with the server's ended processes."""
        node = self.node.process
        pids = [*self._server.pids, *([] if node is None else [node.pid])]
        return sum(map(_processor_seconds, pids))

    # --- what is measured: each returns how many messages, and in how many seconds

    def relay(self) -> Run:
        """Relay rows that are committed."""
        last = self.fill(OUTBOX, ROWS)
        began = time.perf_counter()
        self.gone(OUTBOX, "id", last, last)
        return Run(ROWS, time.perf_counter() - began)

    def consume(self) -> Run:
        """Consume what was relayed."""
        return consume(self.node.port, "orders", ROWS, ack="client")

    def produce(self) -> Run:
        """Send by STOMP; nobody consumes meanwhile."""
        run = produce(self.node.port, "plain", producers=8, outstanding=200, seconds=_STOMP_SECONDS)
        self._sent = run.messages
        return run

    def consume_plain(self) -> Run:
        """Consume what was sent by STOMP."""
        return consume(self.node.port, "plain", self._sent, ack="client")

    def acknowledge(self) -> Run:
        """Process messages in transactions of an application."""
        last = self.fill(OUTBOX, ACKED, "accounts")
        self.gone(OUTBOX, "id", last, last)
        began = time.perf_counter()
        waiting: list[str] = []
        some: list[str] = []
        processed = 0
        with clients(self.node.port, 1) as (client,), self.engine.connect() as session:

            def answered(_: Client, data: bytes) -> None:
                nonlocal processed
                waiting.extend(one.decode() for one in _ID.findall(data))
                while len(waiting) >= _AT_ONCE or processed + len(waiting) == ACKED > processed:
                    some[:], waiting[:] = waiting[:_AT_ONCE], waiting[_AT_ONCE:]
                    self._process(session, some)
                    processed += len(some)

            client.send(
                b"SUBSCRIBE\ndestination:/queue/accounts\nid:s\nack:client-individual\n"
                b"prefetch-count:200\n\n\0"
            )
            pump([client], answered, lambda: processed >= ACKED)
            processed_last = sorted(map(int, some))
            self.gone(ACKS, "message_id", processed_last[0], processed_last[-1])
        return Run(ACKED, time.perf_counter() - began)

    def _process(self, session: sa.Connection, ids: list[str]) -> None:
        if self.is_postgresql:
            session.exec_driver_sql("SELECT orthia_ack(x) FROM unnest(%s) AS x", (ids,))
        else:
            for one in ids:
                session.exec_driver_sql("CALL orthia_ack(%s)", (one,))
        session.exec_driver_sql("INSERT INTO business VALUES (%s)", (ids[0],))
        session.commit()

    def bare(self) -> Run:
        """Take rows out of a table by two workers."""
        self.fill("bare", BARE_ROWS)
        began = time.perf_counter()

        def work() -> None:
            chosen = f"SELECT id FROM bare ORDER BY id LIMIT {_AT_ONCE} FOR UPDATE SKIP LOCKED"
            with self.engine.connect() as session:
                while ids := session.exec_driver_sql(chosen).scalars().all():
                    some = ",".join(map(str, ids))
                    with suppress(OperationalError):  # a deadlock: MariaDB locks more than rows
                        session.exec_driver_sql(f"DELETE FROM bare WHERE id IN ({some})")
                        session.commit()
                    session.rollback()

        workers = [threading.Thread(target=work) for _ in range(2)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        return Run(BARE_ROWS, time.perf_counter() - began)

    def hold(self) -> sa.Connection:
        """Return a session whose transaction holds a snapshot."""
        session = self.engine.connect().execution_options(isolation_level="REPEATABLE READ")
        if not self.is_postgresql:
            session.exec_driver_sql("START TRANSACTION WITH CONSISTENT SNAPSHOT")
        session.exec_driver_sql("SELECT COUNT(*) FROM business")
        return session


_Work = tuple[str, Callable[[Side], Run]]
_WORKS: Final[tuple[_Work, ...]] = (
    ("relay", Side.relay),
    ("consume", Side.consume),
    ("produce", Side.produce),
    ("consume plain", Side.consume_plain),
    ("orthia_ack", Side.acknowledge),
    ("bare", Side.bare),
)


class _Found(NamedTuple):
    """What one work took."""

    rate: float
    """Messages a second."""
    us: float
    """Processor time of node and server for a message, in microseconds."""


_Rates = dict[str, list[_Found]]


def _round(side: Side, rates: _Rates, works: Sequence[_Work], more: str = "") -> None:
    """Do each work once."""
    said = []
    for name, work in works:
        used = side.processor_seconds()
        count, seconds = work(side)
        found = _Found(count / seconds, (side.processor_seconds() - used) / count * 1e6)
        rates.setdefault(name, []).append(found)
        said.append(f"{name} {found.rate:,.0f} ({found.us:.0f} us)")
    print(f"  {more}{', '.join(said)}", flush=True)


def measure(held: Side, free: Side, works: Sequence[_Work], seconds: float) -> None:
    """Print rates with a snapshot held, without, and before."""
    before: _Rates = {}
    beside: _Rates = {}
    for number in range(_BEFORE + 1):
        for side in (free, held):
            _round(side, before if side is held and number else {}, works, "before: ")
    holder = held.hold()
    began = time.monotonic()
    during: list[tuple[float, _Rates]] = []
    while time.monotonic() - began < seconds:
        one: _Rates = {}
        _round(free, beside, works, "free:   ")
        _round(held, one, works, f"{time.monotonic() - began:5.0f} s ")
        during.append((time.monotonic() - began, one))
    took = time.monotonic() - began
    holder.rollback()
    late = [one for at, one in during if at > took * 2 / 3]
    print(f"held {took:.0f} s, {len(during)} rounds; the last third, {len(late)} rounds:")
    for name, _ in works:
        now = _middle([one[name][0] for one in late])
        other, was = _middle(beside[name][-len(late) :]), _middle(before[name])
        print(
            f"  {name:15}{now.rate:8,.0f}/s is {now.rate / other.rate:5.2f} of that without,"
            f" {now.rate / was.rate:5.2f} of that before; {now.us:6.0f} us,"
            f" {other.us / now.us:5.2f}, {was.us / now.us:5.2f}",
            flush=True,
        )


def _middle(found: Sequence[_Found]) -> _Found:
    return _Found(
        statistics.median(one.rate for one in found), statistics.median(one.us for one in found)
    )


def _processor_seconds(pid: int) -> float:
    """Return the processor time of a process and of its children that ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def _side(ending: ExitStack, dbms: str, name: str) -> Side:
    server = ending.enter_context(started(dbms))
    if not isinstance(server, ServerProcess):
        raise TypeError(f"{dbms} has no server")
    directory = Path(ending.enter_context(tempfile.TemporaryDirectory()))
    directory.chmod(0o755)
    side = Side(server, directory, name)
    ending.callback(side.end)
    return side


def main() -> None:
    """Measure on each DBMS."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dbms", nargs="+", default=["postgresql", "mariadb"])
    parser.add_argument("--works", nargs="+", choices=dict(_WORKS), default=list(dict(_WORKS)))
    parser.add_argument("--seconds", type=float, default=600)
    arguments = parser.parse_args()
    for dbms in arguments.dbms:
        print(dbms, flush=True)
        with ExitStack() as ending:
            held, free = (_side(ending, dbms, name) for name in ("held", "free"))
            works = [one for one in _WORKS if one[0] in arguments.works]
            measure(held, free, works, arguments.seconds)


if __name__ == "__main__":
    main()
