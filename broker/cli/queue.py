"""``queue``: what the live node has; ``history``, and without a node ``list``: the store."""

from typing import TYPE_CHECKING, Final

import click

from orthia.broker.cli.group import CommandGroup, example
from orthia.broker.cli.managing import NodeOptions, json_option, live_options, or_of_store
from orthia.broker.cli.opening import opened
from orthia.broker.cli.paging import all_of, limit_option, sort_option
from orthia.broker.cli.queue_delete import delete
from orthia.broker.cli.queue_live import COMMANDS
from orthia.broker.cli.rendering import print_json, print_table
from orthia.broker.cli.settings_options import StoreOptions, store_options
from orthia.broker.cli.views import print_many
from orthia.config.store_settings import RetentionSettings

if TYPE_CHECKING:
    # Loaded where a store is looked at: --help looks at none.
    from orthia.journal.sql.inspect import QueueTotals


@click.group(
    cls=CommandGroup,
    epilog=example("orthia queue list --config broker.xml"),
    meant={
        "stat": "`orthia queue list` shows them all, `orthia queue show QUEUE` one",
        "browser": "`orthia queue browse QUEUE` shows its messages",
        "destroy": "`orthia queue delete QUEUE` deletes it",
        "empty": "`orthia queue purge QUEUE` deletes its messages",
        "scheduled": "`orthia scheduled list` shows what is to be delivered later",
        "cancel": "`orthia scheduled cancel MESSAGE` deletes what is to be delivered later",
    },
)
def queue() -> None:
    """Look at queues, create, update, pause, purge, move, retry and delete them."""


queue.add_command(delete)
for _command in COMMANDS:
    queue.add_command(_command)


@queue.command("list", epilog=example("orthia queue list --config broker.xml --sort -messages"))
@store_options
@live_options
@click.option("--search", help="Only those with this in the name of the queue or its address.")
@sort_option
@limit_option
@click.option("--store", "from_store", is_flag=True, help="What the database has, in any case.")
@json_option
def list_(
    node: NodeOptions,
    store: StoreOptions,
    *,
    search: str | None,
    sort: str | None,
    limit: int | None,
    from_store: bool,
    as_json: bool,
) -> None:
    """Show every queue: as the live node has it, or else with what the database keeps for it.

    The live node of --management, or of the pair of --config or --url, is asked, on this host
    without any. If none answers, or with --store, the database is read: there messages under way to
    consumers count until they are acknowledged, and messages that are not persistent do not count.
    """
    node = node.of_store(store)
    if not from_store:
        found = or_of_store(
            node, lambda: all_of(node, "queues", search=search, sort=sort, limit=limit)
        )
        if found is not None:
            print_many(found, _COLUMNS, right=_NUMBERS, as_json=as_json)
            return
    if sort is not None:
        raise click.UsageError("--sort is for what a live node shows; the store's list is by name.")
    _list_store(store, search or "", limit, as_json=as_json)


_COLUMNS: Final = {
    "queue": "name",
    "address": "address",
    "type": "routing-type",
    "messages": "messages",
    "bytes": "bytes",
    "oldest": "oldest-ms",
    "consumers": "consumers",
    "delivering": "delivering",
    "scheduled": "scheduled",
    "paused": "paused",
}
_NUMBERS: Final = ("messages", "bytes", "consumers", "delivering", "scheduled")


def _list_store(store: StoreOptions, search: str, limit: int | None, *, as_json: bool) -> None:
    from orthia.journal.sql.inspect import list_queues

    settings = store.resolve(
        instead="see `orthia data print`, and `orthia queue list` while its node is live"
    )
    with opened(settings) as database:
        found = list_queues(database, settings)
    part = search.casefold()
    found = [one for one in found if not part or _has(one, part)][:limit]
    if as_json:
        print_json([as_dict(one) for one in found])
        return
    print_table(
        ("queue", "address", "type", "messages", "payload", "oldest"),
        (_row(one) for one in found),
        right=(3, 4),
    )


def _has(one: "QueueTotals", part: str) -> bool:
    binding = one.binding
    return binding is not None and (
        part in binding.name.casefold() or part in binding.address.casefold()
    )


@queue.command(epilog=example("orthia queue history --config broker.xml"))
@store_options
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def history(store: StoreOptions, *, as_json: bool) -> None:
    """Show how much journal-retention keeps of what left the queues, and since when.

    Bytes are counted as storage-limit counts them.
    """
    from orthia.journal.sql.history import history_totals

    settings = store.resolve(instead="a file journal has no retention")
    with opened(settings) as database:
        found = history_totals(database, settings)
    retention = settings.journal_retention
    oldest = found.oldest_removed_at
    if as_json:
        print_json(
            {
                "messages": found.kept.rows,
                "bytes": found.kept.stored_bytes,
                "oldest_removed_at": oldest and oldest.isoformat(),
                "period_seconds": retention and retention.seconds,
                "storage_limit": retention and retention.storage_limit,
            }
        )
        return
    click.echo(f"messages  {found.kept.rows:,}")
    click.echo(f"bytes     {found.kept.stored_bytes:,}{_limit(retention)}")
    click.echo(f"oldest    {f'{oldest:%Y-%m-%d %H:%M:%S} UTC' if oldest else 'none'}")
    if retention is None and store.config_file is not None:
        click.echo("journal-retention is not configured: nothing is added, and nothing deleted")


def _limit(retention: RetentionSettings | None) -> str:
    limit = None if retention is None else retention.storage_limit
    return "" if limit is None else f" of {limit:,}"


def as_dict(one: "QueueTotals") -> dict[str, object]:
    """Return a queue as its JSON shows it."""
    binding = one.binding
    return {
        "id": one.queue_id,
        "name": binding.name if binding else None,
        "address": binding.address if binding else None,
        "routing_type": binding.routing_type.value if binding else None,
        "durable": binding.durable if binding else None,
        "messages": one.messages,
        "payload_bytes": one.payload_bytes,
        "oldest_written_at": one.oldest_written_at and one.oldest_written_at.isoformat(),
    }


def _row(one: "QueueTotals") -> tuple[object, ...]:
    oldest = f"{one.oldest_written_at:%Y-%m-%d %H:%M:%S}Z" if one.oldest_written_at else ""
    sizes = (one.messages, one.payload_bytes, oldest)
    if one.binding is None:
        return f"(no queue has id {one.queue_id})", "", "", *sizes
    kind = one.binding.routing_type.value.lower()
    return one.binding.name, one.binding.address, kind, *sizes
