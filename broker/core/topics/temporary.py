"""Temporary queues and topics: a connection's own, which end with it.

Each has an address of a name that nobody can guess, so that another connection can answer to it
and no other does by chance. What is sent to one is kept in memory as long as there is room, and is
never there for another node: what is left of them in the store is deleted when a node opens. Only
their own connection consumes from them. What is sent to one that is gone is dropped, as what is
sent to a topic that nobody hears: whoever answers is not disconnected because a client did not
wait.
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
"""What the names of their addresses begin with: what settings and permissions can match."""


class TemporaryDestinations:
    """Makes and ends them; on the loop's thread."""

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

        No wildcard and no divert finds it. Raises NotAuthorized, LimitExceeded.
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
        creations.created(principal)
        self._owned.setdefault(principal, []).append(address)
        return REMOTE_PREFIXES[kind] + address

    def end(self, principal: Principal) -> None:
        """End those of a connection that is over: nothing is routed to them any more."""
        for name in self._owned.pop(principal, ()):
            del self._addresses.temporary[name]
            address = self._addresses.address(name)
            address.declare(frozenset())
            # What is to be delivered there later goes, too.
            own = (*address.anycast_queues, *address.schedules)
            for queue in [queue for queue in own if not queue.is_leaving]:
                self._deletions.end_temporary(queue)

    def deleting_left(self) -> Steps:
        """Delete what is left of those whose node is gone, and of queues that are not durable."""
        left = [*self._addresses.left_over]
        self._addresses.left_over.clear()
        for queue in left:
            self._deletions.delete_left_over(queue)
            yield GO_ON
