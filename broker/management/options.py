"""What operators say of the options of a queue: checked, by the names that ``broker.xml`` has."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final, NamedTuple

from orthia.broker.core.queue.options import NEVER, needs_no_consumer
from orthia.broker.core.selectors import SelectorRefused
from orthia.broker.core.selectors import parse as parse_selector
from orthia.broker.management.errors import NotPossible, WrongArgument
from orthia.broker.quoting import quoted
from orthia.config.queues import QueueOptions

MOST: Final = 2**31 - 1


class _Kind(NamedTuple):
    """What an option may be."""

    type: type
    expected: str
    least: int = 0


_FLAG: Final = _Kind(bool, "true or false")
_NUMBER: Final = _Kind(int, f"a number from 0 to {MOST}")
_OR_NONE: Final = _Kind(int, f"a number from -1 to {MOST}", -1)
_TEXT: Final = _Kind(str, "a text")
_KINDS: Final[Mapping[str, _Kind]] = {
    "filter": _TEXT,
    "exclusive": _FLAG,
    "last_value": _FLAG,
    "last_value_key": _TEXT,
    "non_destructive": _FLAG,
    "ring_size": _OR_NONE,
    "purge_on_no_consumers": _FLAG,
    "consumers_before_dispatch": _NUMBER,
    "delay_before_dispatch": _OR_NONE,
    "enabled": _FLAG,
    "group_rebalance": _FLAG,
    "group_rebalance_pause_dispatch": _FLAG,
    "group_buckets": _OR_NONE,
    "group_first_key": _TEXT,
}
"""The fields of QueueOptions, and ``last_value``, which stands for a key of the usual name."""


def checked(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return options by their names in Python, each of its type; raises WrongArgument.

    An empty text is none.
    """
    found: dict[str, Any] = {}
    for name, value in given.items():
        kind = _KINDS.get(name.replace("-", "_"))
        shown = name[:100].replace("_", "-")
        if kind is None:
            expected = ", ".join(one.replace("_", "-") for one in _KINDS)
            raise WrongArgument(
                "options", f"a queue has no option {quoted(shown)}; expected one of {expected}"
            )
        is_right = type(value) is kind.type and (
            not isinstance(value, int) or isinstance(value, bool) or kind.least <= value <= MOST
        )
        if not is_right:
            raise WrongArgument(
                f"options.{shown}",
                f"option {shown} is {quoted(str(value)[:100])}; expected {kind.expected}",
            )
        found[name.replace("-", "_")] = value if value != "" else None
    return found


def check_max_consumers(most: int | None) -> None:
    """Raise WrongArgument for a number of consumers that cannot be."""
    if most is not None and not -1 <= most <= MOST:
        raise WrongArgument(
            "max-consumers", f"max-consumers is {most}; expected a number from -1 to {MOST}"
        )


def refuse_conflict(queue: str, options: QueueOptions) -> None:
    """Raise WrongArgument or SelectorRefused for options that no queue can have."""
    if options.conflict is not None:
        raise WrongArgument("options", f"queue {quoted(queue)} {options.conflict}")
    if options.filter is not None:
        try:
            parse_selector(options.filter)
        except SelectorRefused as error:
            raise error.of(f"queue {quoted(queue)}") from None


def changed(queue: str, before: QueueOptions, given: Mapping[str, Any], users: int) -> QueueOptions:
    """Return the options of a queue that has so many consumers, once some are changed.

    Raises WrongArgument, SelectorRefused, and NotPossible for what cannot change, or not now.
    """
    said = checked(given)
    is_last_value = said.pop("last_value", None)
    after = replace(before, **said)
    for name, why in NEVER.items():
        is_other = getattr(after, name) != getattr(before, name)
        if name == "last_value_key" and is_last_value is not None:
            is_other = is_other or is_last_value != (before.last_value_key is not None)
        if is_other:
            shown = name.replace("_", "-")
            raise NotPossible(
                f"{shown} of queue {quoted(queue)} cannot change: {why}; create another queue, and"
                " move its messages there"
            )
    refuse_conflict(queue, after)
    in_use = needs_no_consumer(before, after)
    if in_use is not None and users:
        raise NotPossible(
            f"{in_use.replace('_', '-')} of queue {quoted(queue)} changes only while it has no"
            f" consumer, and it has {users}: close these first"
        )
    if after.exclusive != before.exclusive and before.non_destructive:
        raise NotPossible(
            f"exclusive of queue {quoted(queue)} cannot change: it is non-destructive, and its"
            " consumers have copies as exclusive was"
        )
    return after
