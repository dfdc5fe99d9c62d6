"""Temporary queues and topics: they belong to one connection and end with it.

Each has an address of a name that nobody can guess, so that only those answer to it who are told.
Its messages are in memory as long as there is room, and do not survive a takeover: what is left of
them in the store is deleted when a node opens. Only its own connection consumes from it. A message
to one that is gone is dropped, like a message to a topic without subscribers: who answers is not
disconnected because a client did not wait.
"""

import uuid
from typing import Final

from orthia.broker.core.destinations import REMOTE_PREFIXES, is_name
from orthia.broker.core.errors import DestinationRefused
from orthia.broker.core.identity import Principal
from orthia.broker.core.limits.creations import QueueCreations
from orthia.broker.core.limits.quota import StoreUse
from orthia.broker.core.routing.addresses import AddressBook
from orthia.broker.core.slices import GO_ON, Steps
from orthia.broker.core.upkeep.deletion import Deletions
from orthia.broker.quoting import quoted
from orthia.broker.security.permissions import Security
from orthia.config.address_settings import RoutingType
from orthia.config.queues import PLAIN

NAMES: Final = {RoutingType.ANYCAST: "temp-queue", RoutingType.MULTICAST: "temp-topic"}
"""Prefixes of their addresses, which settings and permissions can match."""


class TemporaryDestinations:
    """Creates and ends temporary destinations; on the loop's thread."""

    def __init__(
        self,
        addresses: AddressBook,
        deletions: Deletions,
        security: Security,
        creations: QueueCreations,
        store_use: StoreUse,
    ) -> None:
        self._addresses = addresses
        self._deletions = deletions
        self._security = security
        self._creations = creations
        self._store_use = store_use
        self._owned: dict[Principal, list[str]] = {}

    def create(self, principal: Principal, kind: RoutingType, name: str) -> str:
        """Return the destination of a new one that its connection calls ``name``.

        No wildcard and no divert matches it. Raises NotAuthorized, LimitExceeded.
        """
        address = f"{NAMES[kind]}.{uuid.uuid4()}.{name}"
        self._security.check_temporary_queue(principal, address)
        if not is_name(address):
            raise DestinationRefused(f"the name of a temporary destination is too long: {address}")
        book, creations = self._addresses, self._creations
        creations.refuse_if_too_many(principal, quoted(address))
        self._store_use.refuse_if_closed()
        book.temporary[address] = principal
        book.address(address).declare(frozenset({kind}))
        if kind is RoutingType.ANYCAST:
            user = creations.user_of(principal)
            book.create_queue(
                address,
                address,
                kind,
                auto_created=True,
                max_consumers=-1,
                user=user,
                options=PLAIN,
                durable=False,
            )
        creations.created(principal, address)
        self._owned.setdefault(principal, []).append(address)
        return REMOTE_PREFIXES[kind] + address

    def end(self, principal: Principal) -> None:
        """End those of a connection that is over: nothing is routed to them from now on."""
        for name in self._owned.pop(principal, ()):
            self._end(name)

    def end_one(self, principal: Principal, name: str) -> None:
        """End one of a connection's, by its address; do nothing if it has ended."""
        owned = self._owned.get(principal, [])
        if name in owned:
            owned.remove(name)
            self._end(name)

    def _end(self, name: str) -> None:
        del self._addresses.temporary[name]
        address = self._addresses.address(name)
        address.declare(frozenset())
        # Scheduled messages for it go, too.
        own = (*address.anycast_queues, *address.schedules)
        for queue in [queue for queue in own if not queue.is_leaving]:
            self._deletions.end_temporary(queue)
        if name not in self._addresses.queues:
            self._creations.gone(name)  # a topic; a queue counts until it is deleted

    def deleting_left(self) -> Steps:
        """Delete temporary and other non-durable queues that earlier nodes left."""
        left = [*self._addresses.left_over]
        self._addresses.left_over.clear()
        for queue in left:
            self._deletions.delete_left_over(queue)
            yield GO_ON
