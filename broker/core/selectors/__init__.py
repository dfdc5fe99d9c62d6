"""Selectors: which messages a consumer, a queue or a divert takes, in the SQL-92 of JMS."""

from orthia.broker.core.selectors.properties import MessageProperties
from orthia.broker.core.selectors.refused import SelectorRefused
from orthia.broker.core.selectors.selector import Selector, parse, parsing

__all__ = ["MessageProperties", "Selector", "SelectorRefused", "parse", "parsing"]
