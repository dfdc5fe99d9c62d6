"""``data transactions``: prepared and unresolved transactions, for an operator's decision."""

import queue
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Final

import click

from orthia.broker.cli.group import CommandGroup, example
from orthia.broker.cli.opening import check_started, check_stored, opened, opened_locks
from orthia.broker.cli.rendering import print_json, print_table
from orthia.broker.cli.settings_options import settings_options
from orthia.config.errors import OrthiaError
from orthia.config.settings import Settings
from orthia.config.store_settings import DatabaseStoreSettings, FileStoreSettings
from orthia.journal.errors import JournalError, TransactionError
from orthia.journal.file import inspect as files
from orthia.journal.file import open_file_journal
from orthia.journal.journal import MessageJournal
from orthia.journal.model.codec import PreparedTransaction
from orthia.journal.model.xid import Xid
from orthia.journal.sql import inspect as tables
from orthia.journal.sql.journal import open_journal
from orthia.journal.xa import XaTransactions
from orthia.nodemanager.errors import StoreInUse
from orthia.nodemanager.locks.maintenance import maintenance
from orthia.nodemanager.locks.status import DatabaseLocks

_HOLDER: Final = "orthia-data"
_AGAIN: Final = "stop all nodes of this store, and do this again"

Post = Callable[[Callable[[], None]], None]
OnFailure = Callable[[OrthiaError], None]


def _parse_xid(context: click.Context, parameter: click.Parameter, value: str) -> Xid:
    try:
        return Xid.parse(value)
    except ValueError as error:
        raise click.BadParameter(str(error), context, parameter) from None


@click.group(cls=CommandGroup, epilog=example("orthia data transactions list --config broker.xml"))
def transactions() -> None:
    """Look at transactions that are in doubt, and resolve them.

    A transaction is in doubt from its prepare until its transaction manager says how it ends. Only
    if that one is gone for good, decide here.
    """


@transactions.command("list", epilog=example("orthia data transactions list --config broker.xml"))
@settings_options
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_(settings: Settings, *, as_json: bool) -> None:
    """Show the transactions in doubt; changes nothing, whatever runs."""
    found = _in_doubt(settings)
    if as_json:
        print_json([_as_dict(one) for one in found])
    else:
        print_table(
            ("transaction", "prepared", "sends", "acknowledges"),
            (tuple(_as_dict(one).values()) for one in found),
            right=(2, 3),
        )


@transactions.command(
    "commit", epilog=example("orthia data transactions commit 1:0a0b:01 --config broker.xml")
)
@click.argument("xid", callback=_parse_xid)
@settings_options
def commit(xid: Xid, settings: Settings) -> None:
    """Commit a transaction in doubt; with all nodes stopped."""
    _resolve(settings, lambda xa, done: xa.commit(xid, done))
    click.echo(f"committed {xid}")


@transactions.command(
    "rollback", epilog=example("orthia data transactions rollback 1:0a0b:01 --config broker.xml")
)
@click.argument("xid", callback=_parse_xid)
@settings_options
def rollback(xid: Xid, settings: Settings) -> None:
    """Roll a transaction in doubt back; with all nodes stopped."""
    _resolve(settings, lambda xa, done: xa.rollback(xid, done))
    click.echo(f"rolled back {xid}")


def _as_dict(one: PreparedTransaction) -> dict[str, object]:
    prepared = datetime.fromtimestamp(one.prepared_ms / 1000, UTC)
    return {
        "transaction": str(one.xid),
        "prepared": f"{prepared:%Y-%m-%d %H:%M:%S}Z",
        "sends": len(one.messages),
        "acknowledges": len(one.deletes),
    }


def _in_doubt(settings: Settings) -> list[PreparedTransaction]:
    check_stored(settings)
    store = settings.store
    if isinstance(store, FileStoreSettings):
        check_started(store)
        return files.list_transactions(store)
    with opened(store) as database:
        return tables.list_transactions(database, store)


def _resolve(
    settings: Settings,
    step: Callable[[XaTransactions, Callable[[], None]], object],
) -> None:
    """Open the journal as a live node does, fence and all, take one step, and close it."""
    check_stored(settings)
    store = settings.store
    calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
    failures: list[OrthiaError] = []

    def failed(error: OrthiaError) -> None:
        failures.append(error)
        calls.put(lambda: None)

    stored: list[bool] = []
    exclusive = _on_files if isinstance(store, FileStoreSettings) else _on_tables
    with exclusive(store, calls.put, failed) as journal:  # type: ignore[arg-type] # by its kind
        try:
            step(XaTransactions(journal), lambda: stored.append(True))
        except TransactionError as error:
            raise click.UsageError(f"{error}; see `orthia data transactions list`") from None
        while not stored and not failures:
            calls.get()()
    if failures:
        raise JournalError(f"not known to be done, list the transactions again: {failures[0]}")


@contextmanager
def _on_tables(
    store: DatabaseStoreSettings, post: Post, failed: OnFailure
) -> Iterator[MessageJournal]:
    with (
        opened(store) as database,
        DatabaseLocks(database, store, _HOLDER) as locks,
        maintenance(locks) as held,
    ):
        lease = held.lease
        if not locks.rows.advance_fence(lease.holder_id, lease.token):
            raise StoreInUse("the live lock was lost before the journal was fenced: " + _AGAIN)
        journal = open_journal(
            database,
            store,
            token=lease.token,
            still_valid=held.is_held,
            post=post,
            on_failure=failed,
        )
        try:
            yield journal
        finally:
            journal.close(drain=True)


@contextmanager
def _on_files(store: FileStoreSettings, post: Post, failed: OnFailure) -> Iterator[MessageJournal]:
    check_started(store)
    newest = files.read_fence(store).token
    with opened_locks(store, _HOLDER) as locks, maintenance(locks, above=newest) as held:
        journal = open_file_journal(
            store,
            token=held.lease.token,
            still_valid=held.is_held,
            post=post,
            on_failure=failed,
        )
        try:
            yield journal
        finally:
            journal.close(drain=True)
