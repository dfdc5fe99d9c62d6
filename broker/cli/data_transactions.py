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


def parse_xid(context: click.Context, parameter: click.Parameter, value: str) -> Xid:
    """Return the XID that an argument names; raises click.BadParameter."""
    try:
        return Xid.parse(value)
    except ValueError as error:
        raise click.BadParameter(str(error), context, parameter) from None


@click.group(cls=CommandGroup, epilog=example("orthia data transactions list --config broker.xml"))
def transactions() -> None:
    """Look at transactions that are in doubt, and resolve them, with all nodes stopped.

    `orthia transactions` does so on the live node, too.

    A transaction is in doubt from its prepare until its transaction manager says how it ends. Only
    if that one is gone for good, decide here.
    """


@transactions.command("list", epilog=example("orthia data transactions list --config broker.xml"))
@settings_options
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_(settings: Settings, *, as_json: bool) -> None:
    """Show the transactions in doubt; changes nothing, whatever runs."""
    check_stored(settings)
    show_stored(settings.store, as_json=as_json)


@transactions.command(
    "commit", epilog=example("orthia data transactions commit 1:0a0b:01 --config broker.xml")
)
@click.argument("xid", callback=parse_xid)
@settings_options
def commit(xid: Xid, settings: Settings) -> None:
    """Commit a transaction in doubt; with all nodes stopped."""
    check_stored(settings)
    resolve_stored(settings.store, xid, commit=True)
    click.echo(f"committed {xid}")


@transactions.command(
    "rollback", epilog=example("orthia data transactions rollback 1:0a0b:01 --config broker.xml")
)
@click.argument("xid", callback=parse_xid)
@settings_options
def rollback(xid: Xid, settings: Settings) -> None:
    """Roll a transaction in doubt back; with all nodes stopped."""
    check_stored(settings)
    resolve_stored(settings.store, xid, commit=False)
    click.echo(f"rolled back {xid}")


def show_stored(store: DatabaseStoreSettings | FileStoreSettings, *, as_json: bool) -> None:
    """Print the transactions in doubt that ``store`` has; raises StoreError, JournalError."""
    found = _in_doubt(store)
    if as_json:
        print_json([_as_dict(one) for one in found])
        return
    print_table(
        ("transaction", "prepared", "sends", "acknowledges"),
        (tuple(_as_dict(one).values()) for one in found),
        right=(2, 3),
    )


def _as_dict(one: PreparedTransaction) -> dict[str, object]:
    prepared = datetime.fromtimestamp(one.prepared_ms / 1000, UTC)
    return {
        "transaction": str(one.xid),
        "prepared": f"{prepared:%Y-%m-%d %H:%M:%S}Z",
        "sends": len(one.messages),
        "acknowledges": len(one.deletes),
    }


def _in_doubt(store: DatabaseStoreSettings | FileStoreSettings) -> list[PreparedTransaction]:
    if isinstance(store, FileStoreSettings):
        check_started(store)
        return files.list_transactions(store)
    with opened(store) as database:
        return tables.list_transactions(database, store)


def resolve_stored(
    store: DatabaseStoreSettings | FileStoreSettings, xid: Xid, *, commit: bool
) -> None:
    """Open the journal as a live node does, fence and all, commit or roll back, and close it.

    Raises click.UsageError for what is not in doubt, StoreInUse while a node is live, StoreError,
    JournalError.
    """
    calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
    failures: list[OrthiaError] = []

    def failed(error: OrthiaError) -> None:
        failures.append(error)
        calls.put(lambda: None)

    stored: list[bool] = []
    exclusive = _on_files if isinstance(store, FileStoreSettings) else _on_tables
    with exclusive(store, calls.put, failed) as journal:  # type: ignore[arg-type] # by its kind
        try:
            xa = XaTransactions(journal)
            (xa.commit if commit else xa.rollback)(xid, lambda: stored.append(True))
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
