# mypyc compiles this module.
"""Where a message goes: the queues and the topic that its destination names."""

from typing import Final

from orthia.broker.core.destinations import parse
from orthia.broker.core.identity import Principal
from orthia.broker.core.queue.queue import Queue
from orthia.broker.core.routing.addresses import AddressBook
from orthia.broker.core.routing.auto_creation import AutoCreation
from orthia.broker.core.routing.router import Router
from orthia.broker.core.topics.topic import Topic
from orthia.broker.security.permissions import Security
from orthia.config.address_settings import RoutingType

_MULTICAST: Final = RoutingType.MULTICAST
"""Asked for every message: an enumeration looks its members up each time."""
_BY_UNIT: Final = Router({}, None, (), None)
"""For a queue that is named itself, if it replaces last values or its address may drop or block: a
routed message makes a plan, which does that."""
Route = tuple[str, list[Queue], Topic | None, Router | None]
"""An address, the queues and the topic that a message for it goes to, and the router that decides
among them, where there is one. Of ANYCAST queues one gets the message."""


class Targets:
    """Finds targets, and creates them where that is allowed; on the loop's thread."""

    def __init__(self, book: AddressBook, creation: AutoCreation, security: Security) -> None:
        self._book = book
        self._known = book.known
        self._creation = creation
        self._security = security

    def route(self, principal: Principal, destination: str) -> Route:
        """Return where a message goes: no topic without subscribers, no router if all get it.

        Raises DestinationRefused, NotAuthorized, LimitExceeded.
        """
        where = parse(destination)
        name, kind, only, is_temporary = where
        if not principal.unrestricted:
            self._security.check(principal, "send", name)
        if is_temporary and not self._book.is_there(where):
            return name, [], None, None
        if only is not None:
            named = self._creation.qualified(principal, where, only)
            asks = named.last_values is not None or named.use.asks_first
            return name, [named], None, _BY_UNIT if asks else None
        if (kind or self._book.routing_type(where)) is _MULTICAST:
            address = self._book.address(name)
            if RoutingType.MULTICAST not in address.types:
                self._creation.refuse_type(name, address, RoutingType.MULTICAST)
            topic = address.topic
            heard = topic if topic is not None and topic.subscribers else None
            router = address.router_of_topic(self._book.patterns.newest)
            return name, address.multicast_queues, heard, router
        known = self._known.get(name)
        queue = None if known is None else known.anycast()
        if queue is None:
            queue = self._creation.anycast_queue(principal, name)
            known = self._known[name]
        if known is not None and known.router is not None:
            return name, list(known.anycast_queues), None, known.router
        return name, [queue], None, None
