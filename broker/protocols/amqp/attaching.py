# mypyc compiles this module.
"""ATTACH: the link that a client asks for, of the kind that its ends name.

A client that sends names a target: an address, none (each message says where it goes), one to be
made, or the coordinator of transactions. A client that receives names a source.
"""

from collections.abc import Generator
from functools import partial
from typing import Final

from orthia.broker.core.api import FanOut, SingleSubscription, SubscriptionName
from orthia.broker.core.errors import BrokerError
from orthia.broker.core.management import DESTINATIONS
from orthia.broker.core.routing.durable import SubscriptionChanged
from orthia.broker.core.selectors import parsing
from orthia.broker.core.selectors.selector import CHARACTER_BYTES
from orthia.broker.core.slices import GO_ON, Steps, Wait
from orthia.broker.protocols.amqp.conditions import (
    INVALID_FIELD,
    NOT_IMPLEMENTED,
    RESOURCE_LIMIT,
    LinkFault,
)
from orthia.broker.protocols.amqp.link import Link, cost_of
from orthia.broker.protocols.amqp.management import MOST_BYTES, ManagementSink
from orthia.broker.protocols.amqp.nodes import (
    COPY,
    Filters,
    filters_of,
    kind_of,
)
from orthia.broker.protocols.amqp.performatives import (
    FIRST,
    MAX_PERFORMATIVE_BYTES,
    RECEIVER,
    SENDER,
    SETTLED,
    Attach,
    Coordinator,
    Target,
)
from orthia.broker.protocols.amqp.producer import Producer
from orthia.broker.protocols.amqp.receiver import Receiver, Sink
from orthia.broker.protocols.amqp.sender import Sender
from orthia.broker.protocols.amqp.session import AmqpSession
from orthia.broker.protocols.amqp.subscriptions import (
    name_of,
    name_without_source,
    source_of,
)
from orthia.broker.protocols.amqp.transactions import Coordinator as CoordinatorSink
from orthia.broker.protocols.amqp.uploads import NEVER
from orthia.broker.protocols.amqp.values import Symbol

_MOST_MESSAGES: Final = 10_000
"""That a link may have unsettled, whatever credit it gives; bytes are bounded beside."""
_DELAYED_DELIVERY: Final = Symbol("DELAYED_DELIVERY")
_OUTCOMES: Final = tuple(
    Symbol(f"amqp:{name}:list") for name in ("accepted", "rejected", "released", "modified")
)
_TRANSACTIONS: Final = (
    Symbol("amqp:local-transactions"),
    Symbol("amqp:multi-txns-per-ssn"),
)


def attach(session: AmqpSession, said: Attach) -> Steps | None:
    """Make the link that a client asks for; raises LinkFault and BrokerError.

    Returns steps to be done before the next frame, if there are any.
    """
    client = session.client
    most = client.options.limits.max_subscriptions
    if client.links >= most:
        raise LinkFault(RESOURCE_LIMIT, f"this connection has max-subscriptions {most} links")
    if said.unsettled:
        raise LinkFault(
            NOT_IMPLEMENTED,
            "deliveries of an earlier link are not resumed: what was not settled goes back to its"
            " queue when a link ends",
        )
    if said.role is RECEIVER:
        return _attach_receiving(session, said)
    if isinstance(said.target, Coordinator):
        _add(
            session,
            said,
            CoordinatorSink(session, session.transactions),
            said.target._replace(capabilities=_TRANSACTIONS),
            NEVER,
            MAX_PERFORMATIVE_BYTES,
        )
        return None
    _attach_sending(session, said)
    return None


def _attach_sending(session: AmqpSession, said: Attach) -> None:
    target = said.target
    if not isinstance(target, Target):
        raise LinkFault(INVALID_FIELD, "a link to this node has no target")
    client, nodes = session.client, session.nodes
    destination: str | None = None
    node: str | None = None
    full: FanOut | None = None
    if target.dynamic:
        if target.address is not None:
            raise LinkFault(INVALID_FIELD, "a dynamic target has no address: it is given one")
        destination = node = nodes.make(target)
        target = target._replace(address=node)
    elif target.address:
        destination = nodes.of_core(target.address, kind_of(target.capabilities))
        if destination in DESTINATIONS:
            answers = Producer(session, nodes, session.transactions, None)
            _add(session, said, ManagementSink(session, nodes, answers), target, NEVER, MOST_BYTES)
            return
        full = client.core.check_send(client.principal, destination)
    producer = Producer(session, nodes, session.transactions, destination)
    uploads = client.uploads
    link = _add(session, said, producer, target, uploads.least, uploads.most, full)
    link.node = node


def _add(
    session: AmqpSession,
    said: Attach,
    sink: Sink,
    target: Target | Coordinator,
    least_large: int,
    most: int,
    full: FanOut | None = None,
) -> Link:
    """Add a link by which a client sends ``most`` bytes a message, and give it credit.

    If its address is ``full``, it gets that once there is room.
    """
    link = Receiver(session, said, cost_of(said), sink, least_large, most)
    session.add(link)
    offered = (_DELAYED_DELIVERY,) if _DELAYED_DELIVERY in said.desired_capabilities else ()
    session.say(
        Attach(
            said.name,
            said.handle,
            RECEIVER,
            said.snd_settle_mode,
            FIRST,
            said.source,
            target,
            max_message_size=most,
            offered_capabilities=offered,
        )
    )
    if full is None:
        link.give_credit()
    else:
        link.withhold_credit(full)
    return link


def _attach_receiving(session: AmqpSession, said: Attach) -> Steps:
    source, name = said.source, None
    if source is None:
        # It is to be there, to be consumed or deleted: the client learns what it is.
        client, name = session.client, name_without_source(said)
        found = client.core.find_by_name(client.principal, name)
        source = source_of(found.address, found.selector, no_local=found.no_local)
    filters = filters_of(source)
    if filters.selector is not None:
        yield from parsing(filters.selector)
        if session.is_ended or session.client.is_over:
            return  # its client left while the selector was read
    node: str | None = None
    if source.dynamic:
        if source.address is not None:
            raise LinkFault(INVALID_FIELD, "a dynamic source has no address: it is given one")
        node = session.nodes.make(source)
        source = source._replace(address=node)
    elif not source.address:
        raise LinkFault(INVALID_FIELD, "a link from this node has no address as its source")
    destination = session.nodes.of_core(source.address or "", kind_of(source.capabilities))
    is_of_topic = session.client.core.is_of_topic(destination)
    if name is None and is_of_topic:
        name = name_of(said, source)
    browses = not is_of_topic and source.distribution_mode == COPY
    cost = cost_of(said) + CHARACTER_BYTES * len(filters.selector or "")
    sender = Sender(session, said, cost, source, browses=browses)
    asked = _Asked(
        session, sender, destination, filters, is_settled=said.snd_settle_mode == SETTLED
    )
    try:
        if name is not None:
            core = yield from _subscribe_by_name(asked, name)
        elif browses:
            core = asked.browse()
        else:
            core = asked.subscribe()
    except (LinkFault, BrokerError):
        if node is not None:
            session.nodes.delete(node)
        raise
    if core is None:
        return
    sender.node = node
    if name is not None and name.is_durable:
        sender.subscription = name
    sender.attach(core)
    session.add(sender)
    source = source._replace(filter=filters.accepted, outcomes=_OUTCOMES)
    sender.answer = Attach(
        said.name,
        said.handle,
        SENDER,
        said.snd_settle_mode,
        said.rcv_settle_mode,
        source,
        said.target,
        initial_delivery_count=0,
    )
    # Whoever is told counts on the queue, which gets what is sent from now on.
    session.client.core.when_bound(partial(session.attached, sender))
    yield GO_ON


class _Asked:
    """What a client that receives asks for."""

    __slots__ = ("destination", "filters", "prefetch", "sender", "session")

    def __init__(
        self,
        session: AmqpSession,
        sender: Sender,
        destination: str,
        filters: Filters,
        *,
        is_settled: bool,
    ) -> None:
        self.session = session
        self.sender = sender
        self.destination = destination
        self.filters = filters
        self.prefetch = 0 if is_settled else _MOST_MESSAGES

    def subscribe(self) -> SingleSubscription:
        """Consume from a queue, or from a topic while the link is there."""
        client, filters = self.session.client, self.filters
        return client.core.subscribe(
            client.principal,
            self.destination,
            self.sender,
            prefetch=self.prefetch,
            no_local=filters.no_local,
            selector=filters.selector,
        )

    def subscribe_by_name(self, name: SubscriptionName) -> SingleSubscription:
        """Consume from a subscription that has a name."""
        client, filters = self.session.client, self.filters
        return client.core.subscribe_by_name(
            client.principal,
            self.destination,
            self.sender,
            name,
            prefetch=self.prefetch,
            no_local=filters.no_local,
            selector=filters.selector,
        )

    def browse(self) -> SingleSubscription:
        """Look through a queue."""
        client, filters = self.session.client, self.filters
        if filters.no_local:
            raise LinkFault(NOT_IMPLEMENTED, "a browser reads a queue: it can have no no-local")
        return client.core.browse(
            client.principal,
            self.destination,
            self.sender,
            prefetch=self.prefetch,
            selector=filters.selector,
            creates=True,
        )


def _subscribe_by_name(
    asked: _Asked, name: SubscriptionName
) -> Generator[bool | Wait, None, SingleSubscription | None]:
    """Consume from a subscription; one that was made otherwise ends first, as JMS asks for.

    Returns None if the client left meanwhile.
    """
    session = asked.session
    if name in session.client.ending:
        yield session.client.ending[name]
        if session.is_ended or session.client.is_over:
            return None
    try:
        return asked.subscribe_by_name(name)
    except SubscriptionChanged:
        client, ended = session.client, Wait(lambda _: None)
        client.core.end_by_name(client.principal, name, ended)
        yield ended
        if session.is_ended or client.is_over:
            return None
        return asked.subscribe_by_name(name)
