"""Lists that the live node hands out in pages."""

from typing import Any, Final

import click

from orthia.broker.cli.managing import NodeOptions

_PAGE: Final = 1_000

search_option: Final = click.option("--search", help="Only those with this in their name.")
sort_option: Final = click.option(
    "--sort", help="A member of the JSON to sort by; with a - before it, descending."
)
limit_option: Final = click.option(
    "--limit", type=click.IntRange(1), help="How many are shown at most.  [default: all]"
)


def all_of(
    node: NodeOptions, name: str, *, limit: int | None = None, **query: object
) -> list[dict[str, Any]]:
    """Return what the list ``name`` has, up to ``limit``; raises ManagementError."""
    found: list[dict[str, Any]] = []
    while True:
        most = _PAGE if limit is None else min(_PAGE, limit - len(found))
        page = node.client.get(name, offset=len(found), limit=most, **query)
        found += page[name]
        if len(found) >= min(page["total"], page["total"] if limit is None else limit):
            return found
        if not page[name]:
            return found
