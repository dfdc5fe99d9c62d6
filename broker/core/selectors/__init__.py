"""Selectors: which messages a consumer, a queue or a divert wants, as SQL-92 in JMS says it."""

from orthia.broker.core.selectors.refused import SelectorRefused
from orthia.broker.core.selectors.said import Said
from orthia.broker.core.selectors.selector import Selector, parse, parsing

__all__ = ["Said", "Selector", "SelectorRefused", "parse", "parsing"]
