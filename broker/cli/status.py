"""``status``: who is live, until when, from any machine that reaches the database."""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

import click

from broker.cli.group import example
from broker.cli.opening import check_stored, opened
from broker.cli.rendering import in_words, print_json, print_table
from broker.cli.settings_options import StoreOptions, store_options
from broker.exit_codes import Unavailable
from config.lockers import lock_database, lock_directory
from config.settings import FileStoreSettings
from database import StoreUnavailable
from nodemanager.file_lock_manager import read_status
from nodemanager.lease import LockStatus, NodeManagerStatus, State
from nodemanager.server_lock import STATE_FILE, ServerLock
from nodemanager.tool_locks import LockUnknown, ToolLocks


@click.command(epilog=example("orthia status --config broker.xml --watch"))
@store_options
@click.option("--watch", is_flag=True, help="Look again and again, until Ctrl-C.")
@click.option(
    "--interval",
    type=click.FloatRange(0.1, 3600),
    default=1.0,
    show_default=True,
    help="Seconds between two looks.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON; with --watch one line a look.")
def status(store: StoreOptions, interval: float, *, watch: bool, as_json: bool) -> None:
    """Show which node is live, until when by the database's clock, and whether a backup waits."""
    with _store(store) as (where, read):
        if not watch:
            _show(where, read(), as_json=as_json, one_line=False)
            return
        for found in _looks(read, interval):
            if isinstance(found, StoreUnavailable):
                click.echo(f"orthia: {found}", err=True)
                continue
            if not as_json:
                click.clear()  # does nothing where the output is not a terminal
            _show(where, found, as_json=as_json, one_line=True)


@contextmanager
def _store(store: StoreOptions) -> Iterator[tuple[str, Callable[[], NodeManagerStatus]]]:
    """Give what the store is called, and what reads the status."""
    loaded = store.load()
    if loaded is not None and store.url is None:
        check_stored(loaded)
    chosen = store.resolve() if loaded is None else store.apply_to(loaded)
    database_settings = lock_database(chosen)
    if database_settings is None and isinstance(chosen, FileStoreSettings):
        directory = lock_directory(chosen)
        if not (directory / STATE_FILE).exists():
            raise Unavailable(f"there is no {directory / STATE_FILE}; start a node first")
        with closing(ServerLock(directory)) as files:
            yield f"directory {directory}", lambda: read_status(files)
        return
    if database_settings is None:
        raise TypeError(f"{chosen} has its locks nowhere")
    with (
        opened(database_settings) as database,
        ToolLocks(database, database_settings, "orthia-status") as locks,
    ):
        yield f"database  {database_settings.jdbc_connection_url}", lambda: _read(locks)


def _read(locks: ToolLocks) -> NodeManagerStatus:
    """Read who holds what; the rows alone where the locks behind them cannot be asked from here."""
    try:
        return locks.status()
    except (StoreUnavailable, LockUnknown) as error:
        rows = locks.rows.status()
        click.echo(f"orthia: {error}; shown is what the rows of the database say", err=True)
        return rows


def _looks(
    read: Callable[[], NodeManagerStatus], interval: float
) -> Iterator[NodeManagerStatus | StoreUnavailable]:
    """Look until Ctrl-C; an outage of the store is shown and waited out."""
    try:
        while True:
            try:
                yield read()
            except StoreUnavailable as error:
                yield error
            time.sleep(interval)
    except KeyboardInterrupt:
        return


def _show(where: str, found: NodeManagerStatus, *, as_json: bool, one_line: bool) -> None:
    if as_json:
        print_json(as_dict(found), one_line=one_line)
        return
    click.echo(where)
    clock = "the database" if where.startswith("database") else "this machine"
    click.echo(f"time      {found.database_time:%Y-%m-%d %H:%M:%S} UTC, by {clock}")
    click.echo(f"node id   {found.node_id or 'not created yet'}")
    click.echo(f"state     {found.state.value}: {describe(found)}")
    click.echo(f"backup    {'waiting to take over' if found.backup.is_held else 'none waiting'}")
    click.echo(f"fence     token {found.fence_token}")
    click.echo()
    print_table(
        ("lock", "holder", "token", "expires"),
        (_lock_row("live", found.live), _lock_row("backup", found.backup)),
        right=(2,),
    )


def _lock_row(name: str, lock: LockStatus) -> tuple[object, ...]:
    if lock.holder_id is None:
        return name, "nobody", lock.token, ""
    if lock.expires_in_seconds == math.inf:
        return name, lock.holder_id, lock.token, "with its process"
    return name, lock.holder_id, lock.token, in_words(lock.expires_in_seconds)


def describe(found: NodeManagerStatus) -> str:
    """Return what the state means, given who holds the live lock."""
    held = found.live.is_held
    match found.state:
        case State.NOT_STARTED:
            return "no node has been live yet"
        case State.LIVE if held:
            return "a node is live"
        case State.LIVE if found.backup.is_held:
            return "the live node is gone; the waiting backup takes over"
        case State.LIVE:
            return "the live node is gone and no backup waits; start a node"
        case State.FAILING_BACK:
            return "a live node is starting or returning, and has not become active yet"
        case State.PAUSED:
            return "stopped on purpose; backups stay passive until a live node is started"


def as_dict(found: NodeManagerStatus) -> dict[str, object]:
    """Return the status as its JSON shows it."""
    return {
        "database_time": found.database_time.isoformat(),
        "node_id": found.node_id,
        "state": found.state.value,
        "state_text": describe(found),
        "live": _lock_dict(found.live),
        "backup": _lock_dict(found.backup),
        "backup_waiting": found.backup.is_held,
        "fence_token": found.fence_token,
    }


def _lock_dict(lock: LockStatus) -> dict[str, object]:
    return {
        "holder_id": lock.holder_id,
        "held": lock.is_held,
        "token": lock.token,
        "expires_in_seconds": None
        if lock.expires_in_seconds == math.inf
        else lock.expires_in_seconds,
    }
