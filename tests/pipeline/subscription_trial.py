"""A queue streamed into files while node, driver and executor are killed: once each, by SQL.

``python -m tests.pipeline.subscription_trial --dbms mariadb --rounds 20`` has as many rounds on one
pair and one checkpoint; in each one of the three is killed while messages come. ``--format delta``
and ``iceberg`` write such tables; they want the Python of a PySpark that has them.
"""

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import click
from sqlalchemy import MetaData, select

from orthia.config.settings import Role
from orthia.config.store_settings import DatabaseStoreSettings
from orthia.database import Database
from orthia.journal.sql.tables import history_table, messages_table
from orthia.pipeline.sources.store import StoreReference
from tests.pipeline import subscription_outputs as outputs
from tests.pipeline.conftest import PASSWORD_VARIABLE, QUICK_ENVIRONMENT, QUICK_START
from tests.process.clients import Producer
from tests.process.file_nodes import FileCluster, FileNodeProcess, file_cluster
from tests.process.locker_stores import HANDS_OVER, store
from tests.process.nodes import wait_any_serving
from tests.support.servers import SERVER_PROCESSES, free_port
from tests.support.waiting import wait_until

QUEUE: Final = "orders"
_RETENTION: Final = '<journal-retention xmlns="urn:orthia" period="1" unit="HOURS"/>'
_ADDRESSES: Final = (
    f'<addresses><address name="{QUEUE}"><anycast><queue name="{QUEUE}"/></anycast></address>'
    "</addresses>"
)
VICTIMS: Final = ("node", "driver", "executor")


@dataclass
class Trial:
    """A pair on one store, and a stream that reads its queue."""

    settings: DatabaseStoreSettings
    nodes: FileCluster
    directory: Path
    format: str = "parquet"
    packages: str | None = None
    apis: dict[str, int] = field(default_factory=dict)
    pair: list[FileNodeProcess] = field(default_factory=list)
    driver: subprocess.Popen[bytes] | None = None

    def start_pair(self) -> None:
        """Start both nodes, each with an API."""
        for role, name in ((Role.LIVE, "live"), (Role.BACKUP, "backup")):
            port = self.apis[name] = free_port()
            core = f'<health xmlns="urn:orthia"><port>{port}</port></health>'
            node = self.nodes.node(role, name, policy=f"{HANDS_OVER}", core=core)
            self.pair.append(node)
            node.start()
            if role is Role.LIVE:
                node.wait_serving()
            else:
                node.wait_log("AMQ221031")

    @property
    def ports(self) -> list[int]:
        """Where clients connect."""
        return [node.port for node in self.pair]

    def options(self, **more: str) -> dict[str, str]:
        """Return the options of the source."""
        reference, _ = StoreReference.of(self.settings, PASSWORD_VARIABLE)
        api = ",".join(f"http://127.0.0.1:{port}" for port in self.apis.values())
        return {**reference.to_options(), "queue": QUEUE, "api": api, **more}

    def _wanted(self, *, available_now: bool, **more: str) -> str:
        _, password = StoreReference.of(self.settings, PASSWORD_VARIABLE)
        master = "local[1]" if available_now else "local-cluster[1,1,1024]"
        return json.dumps(
            {
                "master": master,
                "settings": {
                    **QUICK_START,
                    "spark.executor.memory": "1g",
                    **outputs.settings(self.format, self.packages),
                },
                "passwords": {} if password is None else {PASSWORD_VARIABLE: password},
                "options": self.options(**more),
                "format": self.format,
                "output": str(self.output),
                "checkpoint": str(self.directory / "checkpoint"),
                "available_now": available_now,
            }
        )

    def start_driver(self, *, available_now: bool = False) -> None:
        """Start the stream, in a session of processes of its own."""
        with self.log.open("ab") as log:
            self.driver = subprocess.Popen(
                [
                    *(sys.executable, "-m", "tests.pipeline.subscription_driver"),
                    # What is left at the end is one thing; the kills want many micro-batches.
                    self._wanted(
                        available_now=available_now,
                        maxRowsPerBatch="20000" if available_now else "500",
                    ),
                ],
                env={**os.environ, **QUICK_ENVIRONMENT},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    @property
    def output(self) -> Path:
        """What is written."""
        return self.directory / "out"

    @property
    def log(self) -> Path:
        """What all drivers print."""
        return self.directory / "driver.log"

    def keep_driver(self) -> None:
        """Start the driver again if it has ended."""
        if self.driver is None or self.driver.poll() is not None:
            assert "orthia.pipeline.errors" not in self.log.read_text(), self.log.read_text()
            self.start_driver()

    def written(self) -> int:
        """Return how many micro-batches Spark has noted as written."""
        commits = self.directory / "checkpoint" / "commits"
        return len([one for one in commits.glob("*") if one.name.isdigit()])

    def goes_on(self) -> None:
        """Wait until another micro-batch is written, whatever has to be started again."""
        before = self.written()

        def has_written() -> bool:
            self.keep_driver()
            return self.written() > before

        # A busy machine: Spark gives its Python 10 s to start, and is started again until it does.
        wait_until(has_written, timeout_seconds=1_800, what="the stream goes on")

    def kill(self, victim: str) -> None:
        """Kill one of the three as ``kill -9`` does; a node is started again as a backup."""
        if victim == "node":
            live = wait_any_serving(one for one in self.pair if one.is_running)
            live.kill()
        elif victim == "driver":
            assert self.driver is not None
            os.killpg(self.driver.pid, signal.SIGKILL)
            self.driver.wait(60)
        else:
            for pid in _executors(self._group()):
                os.kill(pid, signal.SIGKILL)

    def _group(self) -> int:
        assert self.driver is not None
        return self.driver.pid

    def end_driver(self) -> None:
        """End the driver and all that it started."""
        if self.driver is not None and self.driver.poll() is None:
            os.killpg(self.driver.pid, signal.SIGKILL)
            self.driver.wait(60)

    def by_sql(self) -> tuple[Counter[str], list[int], list[int]]:
        """Return why messages left, the seqs of those acknowledged, and of those that wait."""
        database = Database.from_settings(self.settings)
        s, dialect = self.settings, database.dialect
        left = history_table(MetaData(), s.message_history_table_name, dialect).c
        waits = messages_table(MetaData(), s.message_table_name, dialect).c
        try:
            with database.engine.connect() as connection:
                gone = connection.execute(select(left.seq, left.reason)).all()
                stay = list(connection.execute(select(waits.seq)).scalars())
        finally:
            database.dispose()
        return Counter(reason for _, reason in gone), sorted(seq for seq, _ in gone), sorted(stay)

    def judge(self, receipted: set[int]) -> dict[str, Any]:
        """Fail unless each message was written once, and all were acknowledged."""
        rows = outputs.rows(self.format, self.output)
        seqs = [seq for seq, _ in rows]
        reasons, gone, stay = self.by_sql()
        twice = [seq for seq, times in Counter(seqs).items() if times > 1]
        assert twice == [], f"written more than once: {twice[:10]}"
        assert sorted(seqs) == gone, "what is written is not what was acknowledged"
        assert stay == [], f"not acknowledged: {stay[:10]}"
        assert set(reasons) <= {"acknowledged"}, reasons
        bodies = {body for _, body in rows}
        lost = {one for one in receipted if f"message {one}".encode() not in bodies}
        assert not lost, f"receipted and never written: {sorted(lost)[:10]}"
        return {"messages": len(rows), "receipted": len(receipted)}


def _executors(group: int) -> list[int]:
    """Return the Java processes of executors in a session of processes."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            command = (entry / "cmdline").read_bytes()
            session = int((entry / "stat").read_text().rpartition(")")[2].split()[3])
        except (OSError, ValueError):
            continue  # it has ended meanwhile
        if session == group and b"CoarseGrainedExecutorBackend" in command:
            found.append(int(entry.name))
    return found


@contextmanager
def trial(
    settings: DatabaseStoreSettings,
    directory: Path,
    format_: str = "parquet",
    packages: str | None = None,
) -> Iterator[Trial]:
    """Give a pair that serves; all is ended with the block."""
    core = store(directory, settings, "lease", more=_RETENTION) + _ADDRESSES
    with file_cluster(directory, core) as nodes:
        found = Trial(settings, nodes, directory, format_, packages)
        try:
            found.start_pair()
            yield found
        finally:
            found.end_driver()


def run_rounds(one: Trial, victims: list[str], say: Any = lambda _: None) -> dict[str, Any]:
    """Kill each of the victims while messages come and are written; return what was counted."""
    one.start_driver()
    with Producer(one.ports, f"/queue/{QUEUE}", pause_seconds=0.01) as producer:
        one.goes_on()
        for number, victim in enumerate(victims):
            began = time.monotonic()
            producer.wait_receipts(100)
            one.kill(victim)
            if victim == "node":
                _restart(one)
            producer.wait_receipts(100)
            one.goes_on()
            say(f"round {number + 1}: {victim}: {time.monotonic() - began:.1f} s")
        receipted = producer.finish()
    one.end_driver()
    one.start_driver(available_now=True)
    assert one.driver is not None
    assert one.driver.wait(1_200) == 0, one.log.read_text()[-3_000:]
    return one.judge(receipted)


def _is_there(node: FileNodeProcess) -> bool:
    """Return whether a node that was started again waits for its turn, or is live."""
    # One whose last terms were short waits for the lock, and fails back later.
    return any(code in node.log for code in ("AMQ221031", "AMQ221034", "AMQ221007"))


def _restart(one: Trial) -> None:
    """Start the killed node again, which waits as a backup once the other serves."""
    next(node for node in one.pair if node.is_running).wait_serving()
    for node in one.pair:
        if not node.is_running:
            node.log_path.unlink()
            node.start()
            try:
                wait_until(partial(_is_there, node), what=f"{node.name} waits, or is live again")
            except AssertionError as error:
                told = "\n".join(f"{each.name}:\n{each.log[-4_000:]}" for each in one.pair)
                raise AssertionError(f"{error}; {told}") from None
    wait_any_serving(one.pair)


@click.command()
@click.option("--dbms", type=click.Choice(["postgresql", "mariadb"]), default="postgresql")
@click.option("--rounds", type=int, default=20)
@click.option("--seed", type=int, default=1)
@click.option("--format", "format_", type=click.Choice(outputs.FORMATS), default="parquet")
@click.option("--packages", help="what the format needs of Maven, for spark.jars.packages")
def main(dbms: str, rounds: int, seed: int, format_: str, packages: str | None) -> None:
    """Run rounds of kills, and print what was counted."""
    server = SERVER_PROCESSES[dbms]()
    chance = random.Random(seed)
    try:
        server.start()
        settings = server.settings(server.create_database())
        with (
            tempfile.TemporaryDirectory() as directory,
            trial(settings, Path(directory), format_, packages) as one,
        ):
            chosen = [VICTIMS[n % 3] for n in range(rounds)]
            chance.shuffle(chosen)
            click.echo(run_rounds(one, chosen, click.echo))
    finally:
        server.discard()


if __name__ == "__main__":
    main()
