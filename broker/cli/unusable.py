"""Finds settings that are valid but that a node could not use."""

from collections.abc import Iterator

from orthia.broker.core.routing.address_rules import unreadable_filters
from orthia.broker.tls.check import unusable_tls
from orthia.config.settings import Settings
from orthia.config.violations import Violation


def unusable(settings: Settings) -> Iterator[Violation]:
    """Yield certificates, keys and selectors that cannot be used; blocks while files are read."""
    yield from unusable_tls(settings)
    yield from unreadable_filters(settings)
