"""Questions about the queues of a running node.

They are answered from memory: nothing is read from the store, and nothing is counted.
"""

from collections.abc import Iterator

from orthia.broker.core.errors import DestinationRefused
from orthia.broker.core.identity import Principal
from orthia.broker.core.queue.gate import DeliveryGate
from orthia.broker.core.routing.addresses import AddressBook
from orthia.broker.quoting import quoted
from orthia.broker.security.permissions import Security
from orthia.config.address_settings import RoutingType


class QueueInspection:
    """Answers from the address book; on the loop's thread."""

    def __init__(self, addresses: AddressBook, security: Security, gate: DeliveryGate) -> None:
        self._addresses = addresses
        self._security = security
        self._gate = gate

    def count_messages(self, principal: Principal, name: str) -> int:
        """Return how many messages of queue ``name`` are counted so far; raises BrokerError."""
        self._gate.refuse_if_stopped()
        self._security.check_management(principal, f"queue.{name}", "countMessages")
        queue = self._addresses.queues.get(name)
        if queue is None:
            raise DestinationRefused(f"there is no queue {quoted(name)}")
        return queue.depth

    def queue_names(self, principal: Principal, kind: RoutingType | None) -> Iterator[str]:
        """Return the names of all present queues, or of one ``kind``, in no order.

        Raises BrokerError at once, before the first name is read.
        """
        self._gate.refuse_if_stopped()
        arguments = () if kind is None else (kind.value,)
        self._security.check_management(principal, "broker", "getQueueNames", arguments)
        queues = list(self._addresses.queues.values())  # a copy: the loop may change it meanwhile
        return (queue.name for queue in queues if kind is None or queue.routing_type is kind)
