"""``demo``: a failover in about a minute, unattended, and the proof that nothing was lost."""

import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Final

import click

from orthia.broker.cli.children import Child, children, how_it_ended, store_arguments
from orthia.broker.cli.group import example, styled
from orthia.broker.cli.node_options import DEFAULT_HOST
from orthia.broker.cli.opening import opened
from orthia.broker.cli.settings_options import DATABASE_FILE, URL
from orthia.broker.client.connection import BrokerAddress, ServerFrame
from orthia.broker.client.failover import FailoverLink
from orthia.broker.client.traffic import Consumer, Producer
from orthia.broker.node.exit_codes import ExitCode
from orthia.config.errors import OrthiaError
from orthia.config.settings import Role
from orthia.config.store_settings import DatabaseStoreSettings
from orthia.config.urls import DatabaseUrl
from orthia.nodemanager.locks.sql_store import SqlNodeManagerStore

RENEW_PERIOD_MS: Final = 500
EXPIRATION_MS: Final = 3_000
_RATE: Final = 1_000
_OUTSTANDING: Final = 200
_BODY_BYTES: Final = 1_024
_BEFORE_KILL: Final = 3_000
_CONSUMED_BEFORE_KILL: Final = 1_000
_AFTER_TAKEOVER: Final = 2_000
_PATIENCE_SECONDS: Final = 60.0
_QUIET_SECONDS: Final = 3.0
_LOG_LINES: Final = 25


class DemoFailed(OrthiaError):  # noqa: N818 - named for what is the case
    """The story did not go as it should."""


@click.command(epilog=example("orthia demo", "orthia demo --url postgresql://localhost/orthia"))
@click.option("--url", type=URL, help="Database to play on.  [default: SQLite, thrown away]")
@click.option("--verbose", "-v", is_flag=True, help="Show the nodes' logs as they come.")
def demo(url: DatabaseUrl | None, *, verbose: bool) -> None:
    """Kill -9 a live node under load, and show that its backup lost nothing.

    Starts a pair with short timers, sends numbered persistent messages, consumes a part, kills the
    live node, goes on with the backup, fetches everything, and prints the failover log. Exit code
    0 only if every message with a receipt was delivered, in order.
    """
    with tempfile.TemporaryDirectory(prefix="orthia-demo-") as directory:
        story = _Story(Path(directory), url, verbose=verbose)
        signal.signal(signal.SIGTERM, _interrupt)
        try:
            with children(story.live, story.backup):
                story.play()
        except OrthiaError as error:
            story.show_logs()
            click.secho(f"the demo failed: {error}", fg="red", err=True)
            click.get_current_context().exit(ExitCode.INCOMPLETE)
    click.secho("Nothing acknowledged was lost.", fg="green", bold=True)


@dataclass
class _Delivered:
    """What the consumers got, by the number in each body."""

    times: Counter[int] = field(default_factory=Counter)
    first_copies: list[int] = field(default_factory=list)

    def add(self, frame: ServerFrame) -> None:
        """Note a message."""
        number = int(frame.body.split(b" ", 2)[1])
        if number not in self.times:
            self.first_copies.append(number)
        self.times[number] += 1

    @property
    def duplicates(self) -> int:
        """Deliveries beyond the first of each message."""
        return self.times.total() - len(self.times)


class _Story:
    """The pair, its clients, and what happens to them, in order."""

    def __init__(self, directory: Path, url: DatabaseUrl | None, *, verbose: bool) -> None:
        self._started = time.monotonic()
        self._verbose = verbose
        self._url = url or DatabaseUrl.parse(f"jdbc:sqlite:{directory / DATABASE_FILE}")
        self._logs: dict[str, list[str]] = {role.value: [] for role in Role}
        self._destination = f"/queue/demo.{uuid.uuid4().hex[:8]}"
        options, self._environment = store_arguments(self._url)
        self._store_options = list(options)
        options += ["--data-dir", str(directory / "data"), "--failover-on-shutdown"]
        options += ["--jdbc-lock-renew-period", str(RENEW_PERIOD_MS)]
        options += ["--jdbc-lock-expiration", str(EXPIRATION_MS)]
        self.live, self.backup = (
            Child(role, _free_port(), options, self._relay, self._environment) for role in Role
        )
        self._receipted: set[int] = set()
        self._delivered = _Delivered()

    def play(self) -> None:
        """Play the whole story; raises OrthiaError where it goes wrong."""
        self._start_pair()
        producer = self._producer()
        with _Sending(producer) as sending:
            self._say(f"sending {_RATE} persistent messages a second, each with a receipt")
            self._consume(_CONSUMED_BEFORE_KILL)
            sending.wait_for(lambda: len(self._receipted) >= _BEFORE_KILL, "messages are receipted")
            self._kill_live()
            enough = len(self._receipted) + _AFTER_TAKEOVER
            sending.wait_for(lambda: len(self._receipted) >= enough, "receipts go on")
        self._say(
            f"{len(self._receipted)} messages have a receipt; {producer.report.repeated} had none"
            " when the connection broke and were sent again"
        )
        self._consume(None)
        self._judge()
        self._show_failover_log()
        self._stop_backup()

    def _start_pair(self) -> None:
        self._say(f"starting a live and a backup node on {self._url}")
        self.live.start()
        self._wait_serving(self.live)
        self.backup.start()
        settings = DatabaseStoreSettings(self._url)
        with opened(settings) as database:
            store = SqlNodeManagerStore(database, settings, database.engine)
            self._wait(lambda: store.status().backup.is_held, self.backup, "waits as backup")
            self._say(f"live: {store.status().live.holder_id}")
            self._say(f"next: {store.status().backup.holder_id}")

    def _producer(self) -> Producer:
        return Producer(
            self._link(),
            self._destination,
            body=lambda number: (b"message %d " % number).ljust(_BODY_BYTES, b"."),
            count=None,
            outstanding=_OUTSTANDING,
            rate=_RATE,
            on_confirmed=self._receipted.add,
        )

    def _link(self) -> FailoverLink:
        addresses = [BrokerAddress(DEFAULT_HOST, node.port) for node in (self.live, self.backup)]
        return FailoverLink(addresses, patience_seconds=_PATIENCE_SECONDS)

    def _consume(self, count: int | None) -> None:
        quiet = _QUIET_SECONDS if count is None else _PATIENCE_SECONDS
        consumer = Consumer(
            self._link(),
            self._destination,
            count=count,
            idle_timeout_seconds=quiet,
            on_message=self._delivered.add,
        )
        report = consumer.run()
        self._say(f"consumed {report.confirmed} messages, acknowledged each")

    def _kill_live(self) -> None:
        receipted = len(self._receipted)
        killed = time.monotonic()
        self.live.kill()
        self._say(f"kill -9 of the live node, {receipted} messages receipted, more under way")
        self._wait_serving(self.backup)
        self._say(
            f"the backup serves clients {time.monotonic() - killed:.2f} s after the kill"
            f" (the lease lasts {EXPIRATION_MS / 1000:g} s)"
        )

    def _judge(self) -> None:
        lost = self._receipted - self._delivered.times.keys()
        self._say(
            f"receipted {len(self._receipted)}, delivered {len(self._delivered.times)},"
            f" lost {len(lost)}, delivered more than once {self._delivered.duplicates}"
        )
        if lost:
            raise DemoFailed(f"receipted and lost: {sorted(lost)[:10]}")
        if self._delivered.first_copies != sorted(self._delivered.first_copies):
            raise DemoFailed("messages came in another order than they were sent in")

    def _show_failover_log(self) -> None:
        self._say("the failover log of both nodes, from the database:")
        command = [sys.executable, "-m", "orthia.broker.cli", "failover-log", *self._store_options]
        finished = subprocess.run(  # noqa: S603 - our own program and options
            command,
            env=self.backup.full_environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=_PATIENCE_SECONDS,
        )
        click.echo(finished.stdout)
        if finished.returncode != 0:
            raise DemoFailed(f"failover-log: {finished.stderr.strip()}")

    def _stop_backup(self) -> None:
        code = self.backup.stop()
        self._say(f"the backup, asked to stop, {how_it_ended(code)}")
        if code != 0:
            raise DemoFailed("the node that took over did not stop in order")

    def _wait_serving(self, node: Child) -> None:
        self._wait(lambda: _accepts(node.port), node, "serves clients")

    def _wait(self, condition: Callable[[], bool], node: Child, what: str) -> None:
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while not condition():
            if node.exit_code is not None:
                raise DemoFailed(f"the {node.name} node {how_it_ended(node.exit_code)}")
            if time.monotonic() > deadline:
                raise DemoFailed(f"no sign that the {node.name} node {what}")
            time.sleep(0.02)

    def _say(self, text: str) -> None:
        at = styled(f"{time.monotonic() - self._started:6.2f} s ", fg="cyan")
        click.echo(f"{at} {text}")

    def _relay(self, name: str, line: str) -> None:
        self._logs[name].append(line)
        if self._verbose:
            click.echo(styled(f"         {name:<6} | {line}", dim=True))

    def show_logs(self) -> None:
        """Print the end of each node's log, for a person who asks why."""
        for name, lines in self._logs.items():
            for line in lines[-_LOG_LINES:]:
                click.echo(f"{name:<6} | {line}", err=True)


class _Sending:
    """A producer on a thread of its own, stopped with the block."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer
        self._trouble: OrthiaError | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        try:
            self._producer.run()
        except OrthiaError as error:
            self._trouble = error

    def __enter__(self) -> "_Sending":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._producer.stop()
        self._thread.join(_PATIENCE_SECONDS)
        self._raise_trouble()

    def wait_for(self, condition: Callable[[], bool], what: str) -> None:
        """Wait until ``condition`` holds; raises what became of the producer, or DemoFailed."""
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while not condition():
            self._raise_trouble()
            if time.monotonic() > deadline:
                raise DemoFailed(f"no sign that {what}")
            time.sleep(0.02)

    def _raise_trouble(self) -> None:
        if self._trouble is not None:
            raise self._trouble


def _interrupt(_signal: int, _frame: FrameType | None) -> None:
    """End as Ctrl-C does, so that no node is left behind."""
    raise KeyboardInterrupt


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((DEFAULT_HOST, 0))
        port: int = probe.getsockname()[1]
        return port


def _accepts(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex((DEFAULT_HOST, port)) == 0
