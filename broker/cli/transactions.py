"""``transactions``: of the live node, or of the store where none runs."""

from typing import TYPE_CHECKING, Any, Final

import click

from orthia.broker.cli.group import CommandGroup, example
from orthia.broker.cli.managing import (
    NodeOptions,
    json_option,
    node_options,
    or_of_store,
    question,
    yes_option,
)
from orthia.broker.cli.opening import check_stored
from orthia.broker.cli.paging import all_of
from orthia.broker.cli.views import print_many, print_outcome
from orthia.config.parts import Part

if TYPE_CHECKING:
    # Loaded where a store is looked at: --help looks at none.
    from orthia.config.store_settings import DatabaseStoreSettings, FileStoreSettings

_COLUMNS: Final = {
    "transaction": "id",
    "state": "state",
    "user": "user",
    "connection": "connection",
    "since": "since-ms",
    "sends": "sends",
    "acknowledges": "acknowledges",
    "bytes": "bytes",
}


@click.group(
    cls=CommandGroup,
    epilog=example("orthia transactions list --config broker.xml"),
    meant={
        "abort": "`orthia transactions rollback XID` ends a prepared one without its messages",
        "forget": "`orthia transactions rollback XID` ends a prepared one without its messages",
    },
)
def transactions() -> None:
    """Look at transactions, and decide those in doubt, on the live node or in its store.

    A transaction is in doubt from its prepare until its transaction manager says how it ends. Only
    if that one is gone for good, decide here.
    """


@transactions.command("list", epilog=example("orthia transactions list --config broker.xml"))
@json_option
@node_options
def list_(node: NodeOptions, *, as_json: bool) -> None:
    """Show open transactions of clients, and those in doubt.

    Where no live node answers, what the store of --config or --url has: those in doubt.
    """
    found = or_of_store(node, lambda: all_of(node, "transactions"))
    if found is not None:
        print_many(found, _COLUMNS, right=("sends", "acknowledges", "bytes"), as_json=as_json)
        return
    from orthia.broker.cli.data_transactions import show_stored

    show_stored(_store(node), as_json=as_json)


@transactions.command(
    "commit", epilog=example("orthia transactions commit 1:0a0b:01 --config broker.xml")
)
@click.argument("xid")
@yes_option
@json_option
@node_options
def commit(node: NodeOptions, xid: str, *, yes: bool, as_json: bool) -> None:
    """Commit a transaction in doubt, on the live node; in the store where all are stopped."""
    _resolve(node, xid, "commit", "committed", yes=yes, as_json=as_json)


@transactions.command(
    "rollback", epilog=example("orthia transactions rollback 1:0a0b:01 --config broker.xml")
)
@click.argument("xid")
@yes_option
@json_option
@node_options
def rollback(node: NodeOptions, xid: str, *, yes: bool, as_json: bool) -> None:
    """Roll a transaction in doubt back, on the live node; in the store where all are stopped."""
    _resolve(node, xid, "rollback", "rolled back", yes=yes, as_json=as_json)


def _resolve(
    node: NodeOptions, xid: str, step: str, done: str, *, yes: bool, as_json: bool
) -> None:
    question(f"Is the transaction manager of {xid} gone for good, and {xid} to be {done}?", yes=yes)
    found: dict[str, Any] | None = or_of_store(
        node, lambda: node.client.post("transactions", xid, step), shown="resolved is"
    )
    if found is None:
        from orthia.broker.cli.data_transactions import parse_xid, resolve_stored

        context = click.get_current_context()
        parsed = parse_xid(context, context.command.params[0], xid)
        resolve_stored(_store(node), parsed, commit=step == "commit")
        found = {"id": xid}
    print_outcome(found, f"{done} {xid}", as_json=as_json)


def _store(node: NodeOptions) -> "DatabaseStoreSettings | FileStoreSettings":
    store = node.store
    loaded = store.load(Part.STORE)
    if loaded is None:
        return store.resolve()
    if store.url is None:
        check_stored(loaded)
    return store.apply_to(loaded)
