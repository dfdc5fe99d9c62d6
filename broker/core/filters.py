"""Selectors that the configuration names: what is wrong with one is found before a node serves."""

from collections.abc import Iterator

from orthia.broker.core.selectors import SelectorRefused, parse
from orthia.config.rules import Violation
from orthia.config.settings import Settings


def unreadable_filters(settings: Settings) -> Iterator[Violation]:
    """Yield the filters of diverts that cannot be read."""
    for divert in settings.diverts:
        if divert.filter is not None:
            try:
                parse(divert.filter)
            except SelectorRefused as error:
                yield Violation(
                    f"core/diverts/divert[{divert.name}]",
                    f"its filter {divert.filter!r} is refused: {error}",
                )
