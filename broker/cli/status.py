"""``status``: who is live, until when, from any machine that reaches the database."""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

from orthia.broker.cli.certificates import as_json as certificates_as_json
from orthia.broker.cli.certificates import certificates_of, in_a_line
from orthia.broker.cli.group import example
from orthia.broker.cli.numbers import FiniteRange
from orthia.broker.cli.opening import check_stored, opened, opened_locks
from orthia.broker.cli.rendering import in_words, print_json, print_table
from orthia.broker.cli.settings_options import StoreOptions, store_options
from orthia.broker.node.exit_codes import ExitCode, Unavailable
from orthia.broker.tls.expiry import Validity
from orthia.config.errors import ConfigurationError
from orthia.config.lockers import lock_database, lock_directory, with_locker
from orthia.config.parts import Part
from orthia.config.store_settings import DatabaseStoreSettings, FileStoreSettings

if TYPE_CHECKING:
    # Loaded where a store is looked at: --help looks at none.
    from orthia.broker.cli.liveness import Look, Watch
    from orthia.database import StoreUnavailable
    from orthia.nodemanager.locks.lease import LockStatus, NodeManagerStatus
    from orthia.nodemanager.locks.reports import OutboxReport
    from orthia.nodemanager.locks.status import PairLocks


@click.command(epilog=example("orthia status --config broker.xml --watch"))
@store_options
@click.option("--watch", is_flag=True, help="Look again and again, until Ctrl-C.")
@click.option(
    "--interval",
    type=FiniteRange(0.1, 3600),
    default=1.0,
    show_default=True,
    help="Seconds between two looks.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON; with --watch one line a look.")
def status(store: StoreOptions, interval: float, *, watch: bool, as_json: bool) -> None:
    """Show which node is live, until when by the database's clock, and whether a backup waits.

    Exit code 3 when nobody serves: no node has the live lock, or the one that has it does not renew
    it. Such a lease is watched for as long as a renewal may take, before that is said.
    """
    with _store(store) as (where, read, certificates):
        if not watch:
            found = read()
            _show(where, found, certificates, as_json=as_json, one_line=False)
            if not found.is_serving:
                click.get_current_context().exit(ExitCode.NOBODY_LIVE)
            return
        try:
            for look in _looks(read, interval):
                if isinstance(look, Exception):
                    click.echo(f"orthia: {look}", err=True)
                    continue
                if not as_json:
                    click.clear()  # does nothing where the output is not a terminal
                _show(where, look, certificates, as_json=as_json, one_line=True)
        except KeyboardInterrupt:
            return


@contextmanager
def _store(store: StoreOptions) -> "Iterator[tuple[str, Callable[[], Look], list[Validity]]]":
    """Give what the store is called, what reads the status, and certificates seen from here."""
    from orthia.broker.cli.liveness import Watch
    from orthia.nodemanager.locks.server_lock import STATE_FILE

    loaded = store.load(Part.STORE)
    certificates: list[Validity] = []
    with suppress(ConfigurationError):  # whoever may not open the key stores is shown the rest
        for part in (Part.ACCEPTORS, Part.HTTP):
            read = store.load(part)
            certificates += [] if read is None else certificates_of(read.tls_listeners)
    if loaded is not None and store.url is None:
        check_stored(loaded)
    chosen = store.resolve() if loaded is None else store.apply_to(loaded)
    in_database = lock_database(chosen)
    if in_database is not None:
        where = f"database  {in_database.jdbc_connection_url}"
        watch: Watch | None = Watch(with_locker(in_database))
    elif isinstance(chosen, FileStoreSettings):
        directory = lock_directory(chosen)
        if not (directory / STATE_FILE).exists():
            raise Unavailable(f"there is no {directory / STATE_FILE}; start a node first")
        where, watch = f"directory {directory}", None
    with opened_locks(chosen, "orthia-status") as locks:
        outbox = chosen if isinstance(chosen, DatabaseStoreSettings) else None
        yield where, lambda: _look(locks, watch, outbox), certificates


def _look(
    locks: "PairLocks", watch: "Watch | None", outbox: DatabaseStoreSettings | None
) -> "Look":
    """Look at leases for as long as it takes; at locks of the operating system once."""
    from orthia.broker.cli.liveness import Look

    look = Look(_read(locks)) if watch is None else watch.look(lambda: _read(locks))
    look = replace(look, reports=locks.reports())
    return look if outbox is None or look.is_serving else replace(look, counted=_counted(outbox))


def _counted(store: DatabaseStoreSettings) -> "OutboxReport | None":
    """Count what waits for a live node; None if nothing does, or whoever asks may not know."""
    from orthia.database import StoreError
    from orthia.journal.sql.inspect import outbox_rows
    from orthia.nodemanager.locks.reports import OutboxReport

    with suppress(StoreError, Unavailable), opened(store) as database:
        waiting, oldest = outbox_rows(database, store)
        return OutboxReport(waiting, oldest, 0.0, None) if waiting else None
    return None


def _read(locks: "PairLocks") -> "NodeManagerStatus":
    """Read who holds what; the rows alone where the locks behind them cannot be asked from here."""
    seen = locks.look()
    for why in seen.unknown.values():
        click.echo(f"orthia: {why}; shown is what the rows of the database say", err=True)
    return seen.status


def _looks(read: "Callable[[], Look]", interval: float) -> "Iterator[Look | StoreUnavailable]":
    """Look again and again; an outage of the store is shown and waited out."""
    from orthia.database import StoreUnavailable

    while True:
        try:
            yield read()
        except StoreUnavailable as error:
            yield error
        time.sleep(interval)


def _show(
    where: str, look: "Look", certificates: list[Validity], *, as_json: bool, one_line: bool
) -> None:
    if as_json:
        print_json(
            as_dict(look) | {"certificates": certificates_as_json(certificates)}, one_line=one_line
        )
        return
    from orthia.broker.cli.liveness import describe

    found = look.status
    click.echo(where)
    clock = "the database" if where.startswith("database") else "this machine"
    waits = "waiting to take over" if look.is_kept(found.backup) else "none waiting"
    click.echo(f"time      {found.database_time:%Y-%m-%d %H:%M:%S} UTC, by {clock}")
    click.echo(f"node id   {found.node_id or 'not created yet'}")
    click.echo(f"state     {found.state.value}: {describe(look)}")
    click.echo(f"backup    {waits}")
    click.echo(f"fence     token {found.fence_token}")
    if look.outbox_in_words is not None:
        click.echo(f"outbox    {look.outbox_in_words}")
    for name, told in look.notices:
        click.echo(f"{name:9} {told}")
    for lock, report in look.reports.items():
        if report.api_url is not None:
            click.echo(f"console   {report.api_url}/console/ ({lock.name.lower()})")
    for one in certificates:
        click.echo(f"TLS       {in_a_line(one, datetime.now(UTC))}")
    click.echo()
    print_table(
        ("lock", "holder", "token", "expires"),
        (_lock_row("live", look, found.live), _lock_row("backup", look, found.backup)),
        right=(2,),
    )


def _lock_row(name: str, look: "Look", lock: "LockStatus") -> tuple[object, ...]:
    if lock.holder_id is None:
        return name, "nobody", lock.token, ""
    if lock.expires_in_seconds == math.inf:
        return name, lock.holder_id, lock.token, "with its process"
    expires = in_words(lock.expires_in_seconds)
    silent = look.silent_seconds.get(lock.lock)
    if silent is not None:
        expires += f", no renewal for {silent:.1f} s"
    return name, lock.holder_id, lock.token, expires


def as_dict(look: "Look") -> dict[str, object]:
    """Return the status as its JSON shows it."""
    from orthia.broker.cli.liveness import REFUSED_BY, describe

    found, until = look.status, look.failback_put_off_until
    return {
        "database_time": found.database_time.isoformat(),
        "node_id": found.node_id,
        "state": found.state.value,
        "state_text": describe(look),
        "serving": look.is_serving,
        "live": _lock_dict(look, found.live),
        "backup": _lock_dict(look, found.backup),
        "backup_waiting": look.is_kept(found.backup),
        "fence_token": found.fence_token,
        "sends_refused_by": None if look.refusal is None else REFUSED_BY[look.refusal],
        "failback_put_off_until": until and until.isoformat(),
        "users_differ": look.users_differ,
        "outbox": look.outbox and _outbox_dict(look.outbox),
    }


def _outbox_dict(outbox: "OutboxReport") -> dict[str, object]:
    return asdict(outbox) | {"oldest": outbox.oldest and outbox.oldest.isoformat()}


def _lock_dict(look: "Look", lock: "LockStatus") -> dict[str, object]:
    report = look.reports.get(lock.lock)
    return {
        "holder_id": lock.holder_id,
        "held": lock.is_held,
        "token": lock.token,
        "expires_in_seconds": None
        if lock.expires_in_seconds == math.inf
        else lock.expires_in_seconds,
        "no_renewal_for_seconds": look.silent_seconds.get(lock.lock),
        "api_url": None if report is None else report.api_url,
    }
