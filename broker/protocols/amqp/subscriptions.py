# mypyc compiles this module.
"""Subscriptions of topics by the names of links, as JMS clients call them.

A durable one outlives its link, and is deleted by a detach that closes it. A shared one may have
several links, whose names end in ``|`` and a number, so that they differ on one connection.
"""

from typing import Final

from orthia.broker.core.api import SubscriptionName
from orthia.broker.protocols.amqp.nodes import COPY, GLOBAL, NO_LOCAL, SELECTOR, SHARED, TOPIC
from orthia.broker.protocols.amqp.performatives import Attach, Source
from orthia.broker.protocols.amqp.values import Described, Symbol, ULong, Value

_UNSETTLED_STATE: Final = 2
_NEVER: Final = Symbol("never")


def name_of(said: Attach, source: Source) -> SubscriptionName | None:
    """Return the subscription of a topic that a link is to; None if it ends with its link."""
    is_shared = SHARED in source.capabilities
    if not (is_shared or source.durable):
        return None
    return SubscriptionName(
        _stripped(said.name) if is_shared else said.name,
        is_durable=bool(source.durable),
        is_shared=is_shared,
        is_global=is_shared and GLOBAL in source.capabilities,
    )


def name_without_source(said: Attach) -> SubscriptionName:
    """Return the durable subscription that a link without a source is to: it is to be there."""
    return SubscriptionName(
        _stripped(said.name),
        is_shared=SHARED in said.desired_capabilities,
        is_global=GLOBAL in said.desired_capabilities,
    )


def source_of(address: str, selector: str | None, *, no_local: bool) -> Source:
    """Return the source of a durable subscription that is there."""
    filters: dict[Symbol, Value] = {}
    if selector is not None:
        filters[Symbol("jms-selector")] = Described(ULong(SELECTOR[0]), selector)
    if no_local:
        filters[Symbol("no-local")] = Described(ULong(NO_LOCAL[0]), [])
    return Source(
        address,
        _UNSETTLED_STATE,
        _NEVER,
        distribution_mode=COPY,
        filter=filters,
        capabilities=(TOPIC,),
    )


def _stripped(name: str) -> str:
    return name.partition("|")[0]
