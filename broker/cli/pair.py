"""``pair``: a live node and a backup on one machine, to try things with."""

import secrets
import shlex
import signal
import socket
import threading
from pathlib import Path
from types import FrameType
from typing import Final

import click

from orthia.broker.cli.children import Child, children, how_it_ended, store_arguments
from orthia.broker.cli.group import example, styled
from orthia.broker.cli.node_options import DEFAULT_DATA_DIRECTORY, DEFAULT_HOST, DEFAULT_PORTS
from orthia.broker.cli.privacy import private_files
from orthia.broker.cli.rendering import program
from orthia.broker.cli.settings_options import ASK_PASSWORD, DATABASE_FILE, URL, split_password
from orthia.broker.node.exit_codes import ExitCode
from orthia.config.passwords import hash_password
from orthia.config.settings import HealthSettings, Role
from orthia.config.urls import DatabaseUrl
from orthia.config.user_files import write_operators
from orthia.nodemanager.events import LiveLockObtained, WaitingForLiveLock

_LOOK_SECONDS: Final = 0.2
_OPERATOR: Final = "admin"
_OPERATORS_FILE: Final = "console-users.properties"
_DRAWN_BYTES: Final = 15
_CONSOLE_PORTS: Final = {Role.LIVE: HealthSettings.port, Role.BACKUP: HealthSettings.port + 1}


@click.command(epilog=example("orthia pair --live-port 61613 --backup-port 61614"))
@click.option("--url", type=URL, help="Database of the pair.  [default: SQLite in the data dir]")
@click.option(
    "--data-dir",
    type=click.Path(path_type=Path, file_okay=False),
    default=DEFAULT_DATA_DIRECTORY,
    show_default=True,
)
@click.option(
    "--live-port",
    type=click.IntRange(1, 65_535),
    default=DEFAULT_PORTS[Role.LIVE],
    show_default=True,
)
@click.option(
    "--backup-port",
    type=click.IntRange(1, 65_535),
    default=DEFAULT_PORTS[Role.BACKUP],
    show_default=True,
)
@click.option(
    "--live-console-port",
    type=click.IntRange(1, 65_535),
    help=f"[default: {_CONSOLE_PORTS[Role.LIVE]}, or any that is free]",
)
@click.option(
    "--backup-console-port",
    type=click.IntRange(1, 65_535),
    help=f"[default: {_CONSOLE_PORTS[Role.BACKUP]}, or any that is free]",
)
@private_files
def pair(
    url: DatabaseUrl | None,
    data_dir: Path,
    live_port: int,
    backup_port: int,
    live_console_port: int | None,
    backup_console_port: int | None,
) -> None:
    """Run a live node and a backup until Ctrl-C, with their logs side by side.

    Kill the live one and watch the backup take over, in the console of either, whose login is made
    anew at each start. Exit code 0 when both were stopped; when both ended by themselves, the code
    of the last.
    """
    data_dir.mkdir(parents=True, exist_ok=True)
    database = url or DatabaseUrl.parse(f"jdbc:sqlite:{data_dir.absolute() / DATABASE_FILE}")
    options, environment = store_arguments(database)
    operators = data_dir.absolute() / _OPERATORS_FILE
    options += ["--data-dir", str(data_dir.absolute()), "--failover-on-shutdown"]
    options += ["--console-users", str(operators), "--outbox"]
    consoles = [
        live_console_port or console_port(_CONSOLE_PORTS[Role.LIVE], {backup_console_port}),
        backup_console_port or console_port(_CONSOLE_PORTS[Role.BACKUP], {live_console_port}),
    ]
    _tell_of_console(consoles, operators)
    turn = _LiveNodesTurn()
    at_live, at_backup = (["--health", f"{DEFAULT_HOST}:{port}"] for port in consoles)
    live = Child(Role.LIVE, live_port, [*options, *at_live], turn.relay, environment)
    backup = Child(Role.BACKUP, backup_port, [*options, *at_backup], _relay, environment)
    stopping = threading.Event()

    def stop(_signal: int, _frame: FrameType | None) -> None:
        stopping.set()

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        with children(live, backup):
            live.start()
            _tell_how_to_connect(live, backup, database)
            turn.wait(live, stopping)
            backup.start()
            last = _supervise([live, backup], stopping)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if last is not None:
        click.get_current_context().exit(last if last > 0 else ExitCode.IO_ERROR)
    click.echo("both nodes are stopped")


class _LiveNodesTurn:
    """Whether the live node has asked for the live lock, as its log says.

    A backup that starts faster on the store of an earlier run takes over, and hands back a moment
    later: clients that came meanwhile would be cut off.
    """

    _ASKED: Final = (LiveLockObtained.code, WaitingForLiveLock.code)

    def __init__(self) -> None:
        self._asked = threading.Event()

    def relay(self, name: str, line: str) -> None:
        """Print a line of the live node, and look at it."""
        _relay(name, line)
        if any(code in line for code in self._ASKED):
            self._asked.set()

    def wait(self, live: Child, stopping: threading.Event) -> None:
        """Wait until it has asked, has ended, or the pair is to stop."""
        while not self._asked.wait(_LOOK_SECONDS):
            if live.exit_code is not None or stopping.is_set():
                return


def _supervise(nodes: list[Child], stopping: threading.Event) -> int | None:
    """Wait until told to stop (None), or until no node runs (the exit code of the last)."""
    running = list(nodes)
    while not stopping.wait(_LOOK_SECONDS):
        for node in list(running):
            code = node.exit_code
            if code is None:
                continue
            running.remove(node)
            click.secho(f"{node.name} {how_it_ended(code)}", fg="red")
            if not running:
                return code
            click.echo(f"{running[0].name} goes on; to bring {node.name} back, type elsewhere:")
            click.echo(f"  {program()} {shlex.join(node.command)}")
    return None


def console_port(wanted: int, others: set[int | None]) -> int:
    """Return ``wanted``; any free port where that is taken, or among the ``others``."""
    for port in (0,) if wanted in others else (wanted, 0):
        try:
            with socket.create_server((DEFAULT_HOST, port)) as listener:
                found: int = listener.getsockname()[1]
                return found
        except OSError:
            continue
    return wanted  # the node says what is wrong with it


def _tell_of_console(ports: list[int], operators: Path) -> None:
    """Make a login, and show it this once."""
    password = secrets.token_urlsafe(_DRAWN_BYTES)
    write_operators(operators, {_OPERATOR: hash_password(password)})
    live, backup = (f"http://{DEFAULT_HOST}:{port}/console/" for port in ports)
    click.echo(f"console: {live} (live) and {backup} (backup)")
    click.echo(f"log in as {_OPERATOR} with the password {password}")
    click.echo("(it is shown this once, and is another one at the next start)")


def _tell_how_to_connect(live: Child, backup: Child, url: DatabaseUrl) -> None:
    addresses = [f"{DEFAULT_HOST}:{node.port}" for node in (live, backup)]
    brokers = " ".join(f"--broker {address}" for address in addresses)
    orthia = program()
    bare, password = split_password(url)
    if password is not None:
        click.echo(f"(Commands that take --url need the password too: {ASK_PASSWORD})")
    click.echo(
        f"Clients connect to {addresses[0]} (live) and, after a takeover, {addresses[1]}"
        " (backup), by STOMP or AMQP.\n"
        f"JMS, with qpid-jms: failover:({','.join(f'amqp://{one}' for one in addresses)})\n"
        "Try:\n"
        f"  {orthia} produce {brokers} --destination /queue/orders --count 1000\n"
        f"  {orthia} consume {brokers} --destination /queue/orders --count 1000\n"
        f"  {orthia} status --url {shlex.quote(bare)}\n"
        f"  {orthia} queue list --url {shlex.quote(bare)} --user {_OPERATOR}\n"
        f"  kill -9 {live.running.pid}      # the live node\n"
        f"  {orthia} failover-log --url {shlex.quote(bare)}\n"
        "Ctrl-C stops both."
    )


_printing = threading.Lock()


def _relay(name: str, line: str) -> None:
    prefix = styled(f"{name:<6} |", fg="green" if name == Role.LIVE.value else "blue")
    with _printing:
        click.echo(f"{prefix} {line}")
