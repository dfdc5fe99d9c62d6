"""``queue list`` and ``history``: what the store has, with or without a node that runs."""

from typing import TYPE_CHECKING

import click

from orthia.broker.cli.group import CommandGroup, example
from orthia.broker.cli.opening import opened
from orthia.broker.cli.queue_delete import delete
from orthia.broker.cli.queue_scheduled import cancel, scheduled
from orthia.broker.cli.rendering import print_json, print_table
from orthia.broker.cli.settings_options import StoreOptions, store_options
from orthia.config.store_settings import RetentionSettings

if TYPE_CHECKING:
    # Loaded where a store is looked at: --help looks at none.
    from orthia.journal.sql.inspect import QueueTotals


@click.group(cls=CommandGroup, epilog=example("orthia queue list --config broker.xml"))
def queue() -> None:
    """Look at queues, and delete them."""


queue.add_command(delete)
queue.add_command(scheduled)
queue.add_command(cancel)


@queue.command("list", epilog=example("orthia queue list --url sqlite:///instance/orthia.db"))
@store_options
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_(store: StoreOptions, *, as_json: bool) -> None:
    """Show every queue with the messages the database keeps for it.

    Messages under way to consumers count until they are acknowledged; messages that are not
    persistent are in the live node's memory only and do not count.
    """
    from orthia.journal.sql.inspect import list_queues

    settings = store.resolve(
        instead="see `orthia data print`, and the metric orthia_queue_messages of the live node"
    )
    with opened(settings) as database:
        found = list_queues(database, settings)
    if as_json:
        print_json([as_dict(one) for one in found])
        return
    print_table(
        ("queue", "address", "type", "messages", "bytes", "oldest"),
        (_row(one) for one in found),
        right=(3, 4),
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
