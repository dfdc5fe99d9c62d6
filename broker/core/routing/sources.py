# mypyc compiles this module.
"""What a subscription or a browser is to: the queue or the topic that its destination means."""

import logging
import re
from collections.abc import Callable
from typing import Any, Final

from orthia.broker.core.destinations import Destination
from orthia.broker.core.errors import DestinationRefused, NotAuthorized, Refusal
from orthia.broker.core.failures import by_itself
from orthia.broker.core.identity import Principal
from orthia.broker.core.queue.queue import Queue
from orthia.broker.core.queue.subscriptions import Subscription
from orthia.broker.core.routing.address import Address
from orthia.broker.core.routing.addresses import AddressBook, refuse_if_leaving
from orthia.broker.core.routing.auto_creation import AutoCreation
from orthia.broker.core.slices import GO_ON, Steps
from orthia.broker.core.topics.topic import Topic
from orthia.broker.quoting import quoted
from orthia.broker.security.permissions import Security
from orthia.config.address_settings import RoutingType

LOGGER = logging.getLogger("orthia.broker")
_MULTICAST: Final = RoutingType.MULTICAST
_VIRTUAL_TOPIC: Final = re.compile(r"Consumer\.[^.]+\.(VirtualTopic\..+)")
"""The default names of queues of a virtual topic in Classic."""
_WILDCARDS = frozenset({"*", "#", ">"})
"""Wildcards of a subscription in Artemis and Classic."""


class Sources:
    """Finds sources, and creates them where that is allowed; on the loop's thread."""

    def __init__(
        self,
        book: AddressBook,
        creation: AutoCreation,
        security: Security,
        make_topic: Callable[[], Topic],
    ) -> None:
        self._book = book
        self._creation = creation
        self._security = security
        self._make_topic = make_topic
        self._has_warned = False
        """Whether the warning about virtual topics was logged."""

    def to_consume(self, principal: Principal, where: Destination) -> Queue | Topic:
        """Return the queue or topic of a subscription, created where that is allowed.

        Raises DestinationRefused, NotAuthorized, LimitExceeded.
        """
        if where.is_temporary and not self._book.is_there(where):
            raise DestinationRefused(f"{quoted(where.address)} was temporary, and is gone")
        if where.queue is not None:
            self._check_consume(principal, where.address, where.queue)
            return self._creation.qualified(principal, where, where.queue, to_consume=True)
        if self.type_to_consume(where) is _MULTICAST:
            return self._topic_to_hear(principal, where)
        return self._queue_to_consume(principal, where)

    def to_browse(
        self, principal: Principal, where: Destination, *, creates: bool = False
    ) -> Queue:
        """Return the queue that a client wants to browse.

        If it ``creates`` what is missing, that is as for who consumes; a queue that is named with
        its address must be there. Raises DestinationRefused, NotAuthorized, LimitExceeded.
        """
        queue = self._book.queues.get(where.queue or where.address)
        if queue is None and where.queue is None:
            known = self._book.known.get(where.address)
            queue = None if known is None else known.anycast()
        address = where.address if queue is None else queue.address
        name = where.address if queue is None else queue.name
        self._security.check_browse(principal, address, name)
        if self._book.is_wildcard(address):
            self._security.check_pattern(principal, "browse", address)
        may_be_created = creates and where.queue is None and not where.is_temporary
        if queue is None and may_be_created and self._book.routing_type(where) is not _MULTICAST:
            self._refuse_wildcard(address, RoutingType.ANYCAST)
            queue = self._creation.anycast_queue(principal, address, to_consume=True)
        is_of_address = where.queue is None or address == where.address
        if (
            queue is None
            or not is_of_address
            or where.routing_type not in (None, queue.routing_type)
        ):
            raise DestinationRefused(
                f"there is no queue {quoted(where.queue or where.address)} to browse: a topic keeps"
                " no messages, and a queue is there once somebody sent to it or consumed from it"
            )
        self._refuse_if_anothers(principal, address)
        refuse_if_leaving(queue)
        return queue

    def check_subscribe(self, principal: Principal, address_name: str, name: str) -> None:
        """Raise BrokerError if a client must not have a durable subscription in a new queue."""
        self._creation.refuse_reserved(name, address_name)
        self._check_consume(principal, address_name, name)
        self._refuse_wildcard_unless_topic(address_name)

    def _topic_to_hear(self, principal: Principal, where: Destination) -> Topic:
        """Return the topic for a subscriber without a queue; raises BrokerError."""
        self._check_consume(principal, where.address)
        address = self._refuse_wildcard_unless_topic(where.address)
        self._creation.create_type(principal, where.address, address, _MULTICAST)
        # A subscription is a queue that ends with its client: Artemis' name for it.
        self._security.check(principal, "createNonDurableQueue", where.address)
        if address.topic is None:
            address.topic = self._make_topic()
        self._book.patterns.listen(where.address, address)
        return address.topic

    def topic_without_own(self, principal: Principal, where: Destination) -> Topic:
        """Return the topic for a subscriber with no-local; raises BrokerError."""
        if where.queue is not None or self._book.routing_type(where) is not _MULTICAST:
            raise DestinationRefused(
                f"no-local is of topics, and {quoted(where.address)} is not one, or its queue is"
                " named: messages go to one consumer each, whoever sent them; subscribe to /topic/,"
                " or leave it out"
            )
        return self._topic_to_hear(principal, where)

    def _queue_to_consume(self, principal: Principal, where: Destination) -> Queue:
        """Return the queue of that name, of whatever address, or a queue of that address."""
        named = self._book.queues.get(where.address)
        if named is not None:
            self.check_consume(principal, named)
            self._warn_of_virtual_topic(named)
            return named
        queue = self._book.address(where.address).anycast_to_consume()
        # The queue is the broker's choice, or has the name of its address.
        name = where.address if queue is None else queue.name
        self._security.check(principal, "consume", where.address, name)
        self._creation.virtual_topics.check(principal, "consume", where.address, name)
        self._refuse_if_anothers(principal, where.address)
        if queue is None:
            self._refuse_wildcard(where.address, RoutingType.ANYCAST)
            queue = self._creation.anycast_queue(principal, where.address, to_consume=True)
            self._warn_of_virtual_topic(queue)
        return queue

    def _warn_of_virtual_topic(self, queue: Queue) -> None:
        """Warn of a client of Classic that gets no messages of its virtual topic."""
        found = _VIRTUAL_TOPIC.fullmatch(queue.name)
        if found is None or queue.address != queue.name or self._has_warned:
            return
        self._has_warned = True
        LOGGER.warning(
            "a client consumes from %s, as clients of Classic do from virtual topics: it is a queue"
            " of its own here, and gets nothing that is sent to %s; set"
            " virtualTopicConsumerWildcards=Consumer.*.%%3E%%3B2 of its acceptor, delete the queue,"
            " and have it subscribe again (logged once)",
            quoted(queue.name),
            quoted(found[1]),
        )

    def check_consume(self, principal: Principal, queue: Queue) -> None:
        """Raise NotAuthorized or DestinationRefused if a client must not consume from a queue."""
        self._check_consume(principal, queue.address, queue.name)
        refuse_if_leaving(queue)

    def ending_unpermitted(self) -> Steps:
        """End each connection that consumes what its user may not consume any more."""
        for queue in list(self._book.queues.values()):
            for subscription in queue.subscriptions:
                self._end_unless_permitted(subscription, queue.address, queue.name)
                yield GO_ON
            yield GO_ON
        for name, address in list(self._book.known.items()):
            for heard in [] if address.topic is None else list(address.topic.subscribers):
                if heard.subscription is not None:
                    self._end_unless_permitted(heard.subscription, name, None)
                yield GO_ON
            yield GO_ON

    def _end_unless_permitted(
        self, subscription: Subscription[Any], name: str, queue: str | None
    ) -> None:
        if subscription.is_closed or subscription.principal.unrestricted:
            return
        with by_itself("checking a consumer of %s by changed permissions failed", quoted(name)):
            try:
                self._check_consume(subscription.principal, name, queue)
            except NotAuthorized as error:
                subscription.fail(f"the permissions were changed: {error}", Refusal.AUTHORIZATION)

    def _check_consume(self, principal: Principal, name: str, queue: str | None = None) -> None:
        """Raise NotAuthorized if a client must not consume from an address, or one it matches.

        ``queue`` is the queue of the address that it would consume from, if there is one.
        """
        self._security.check(principal, "consume", name, queue)
        if queue is not None:
            self._creation.virtual_topics.check(principal, "consume", name, queue)
        self._refuse_if_anothers(principal, name)
        if self._book.is_wildcard(name):
            self._security.check_pattern(principal, "consume", name)

    def type_to_consume(self, where: Destination) -> RoutingType:
        """Return the routing type of a subscription.

        For an address of both types ``default-queue-routing-type`` decides, where it is set.
        """
        known = self._book.known.get(where.address)
        if where.routing_type is None and known is not None and len(known.types) > 1:
            return known.type_of_new_queue
        return self._book.routing_type(where)

    def _refuse_if_anothers(self, principal: Principal, name: str) -> None:
        if self._book.temporary.get(name, principal) is not principal:
            raise DestinationRefused(
                f"{quoted(name)} is another connection's own: it alone consumes from it"
            )

    def _refuse_wildcard_unless_topic(self, name: str) -> Address:
        address = self._book.address(name)
        if _MULTICAST not in address.types:
            self._refuse_wildcard(name, _MULTICAST)
        return address

    def _refuse_wildcard(self, name: str, kind: RoutingType) -> None:
        """Refuse a subscription that looks like a wildcard and is none here.

        A subscriber to the one address of that name would wait for messages that never come.
        """
        found = next((word for word in re.split(r"[./]", name) if word in _WILDCARDS), None)
        if self._book.is_wildcard(name):
            if kind is _MULTICAST:
                return
            why = "only topics are heard by wildcards: a message of a queue has one receiver"
        elif found is None:
            return
        elif not self._book.wildcards.routing_enabled:
            why = "routing-enabled of wildcard-addresses is false"
        else:
            words = self._book.wildcards
            why = f"here {words.single_word} is one word, {words.any_words} any number of them"
        raise DestinationRefused(
            f"destination {quoted(name)} has a wildcard, and {why}; subscribe to each by its name"
        )
