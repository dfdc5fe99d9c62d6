"""Selectors that the configuration names: what is wrong with one is found before a node serves."""

from collections.abc import Iterator

from orthia.broker.core.selectors import SelectorRefused, parse
from orthia.config.settings import Settings
from orthia.config.violations import Violation


def unreadable_filters(settings: Settings) -> Iterator[Violation]:
    """Yield the filters of diverts and queues that cannot be read."""
    for address in settings.addresses:
        for queue in address.queues:
            selector = queue.options.get("filter")
            if selector is not None:
                where = f"core/addresses/address[{address.name}]/queue[{queue.name}]"
                yield from _unreadable(where, selector)
    for divert in settings.diverts:
        if divert.filter is not None:
            yield from _unreadable(f"core/diverts/divert[{divert.name}]", divert.filter)


def _unreadable(where: str, selector: str) -> Iterator[Violation]:
    try:
        parse(selector)
    except SelectorRefused as error:
        yield Violation(where, f"its filter {selector!r} is refused: {error}")
