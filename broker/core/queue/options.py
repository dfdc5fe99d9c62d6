# mypyc compiles this module.
"""Which options of a queue may change while it is there, and when; the rest is how it is made."""

from collections.abc import Callable
from typing import Final

from orthia.config.queues import QueueOptions

NEVER: Final[dict[str, str]] = {
    "last_value_key": "what it replaces is decided as messages come",
    "non_destructive": "its consumers have copies, or the messages themselves",
}
"""What a queue is made with, and why it stays so: another queue is needed, and a move."""


def grouping(options: QueueOptions) -> tuple[object, ...]:
    """Return all that says how groups are given out."""
    return (
        options.has_groups,
        options.ring_size >= 0,
        options.group_rebalance,
        options.group_rebalance_pause_dispatch,
        options.group_buckets,
        options.group_first_key,
    )


def needs_no_consumer(before: QueueOptions, after: QueueOptions) -> str | None:
    """Return the first option that changes whose turn it is among consumers; None if none does.

    Those that are there were attached by the option as it was.
    """
    if before.exclusive != after.exclusive:
        return "exclusive"
    if (before.ring_size >= 0) != (after.ring_size >= 0):
        return "ring_size"
    changed: list[str] = [name for name, get in _GROUPS.items() if get(before) != get(after)]
    return changed[0] if changed else None


_GROUPS: Final[dict[str, Callable[[QueueOptions], object]]] = {
    "group_rebalance": lambda one: one.group_rebalance,
    "group_rebalance_pause_dispatch": lambda one: one.group_rebalance_pause_dispatch,
    "group_buckets": lambda one: one.group_buckets,
    "group_first_key": lambda one: one.group_first_key,
}
