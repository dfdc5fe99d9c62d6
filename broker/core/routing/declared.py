"""The addresses and queues that ``broker.xml`` declares: when a node opens, and when it changes."""

import logging
from dataclasses import fields

from orthia.broker.core.limits.memory import at_most
from orthia.broker.core.queue.queue import Queue
from orthia.broker.core.routing.addresses import AddressBook
from orthia.broker.core.slices import GO_ON, Steps
from orthia.broker.quoting import quoted
from orthia.config.address_settings import AddressConfiguration, QueueSettings
from orthia.config.addresses import options_of

LOGGER = logging.getLogger("orthia.broker")
_Declaration = tuple[str, QueueSettings]
"""The name of an address, and a queue of it."""


class DeclaredAddresses:
    """Creates what is declared and missing; on the loop's thread."""

    def __init__(self, book: AddressBook) -> None:
        self._book = book
        self._types: dict[str, AddressConfiguration] = {}
        self._queues: dict[str, _Declaration] = {}
        """What was declared last."""

    def creating(self) -> Steps:
        """Create what is missing, and apply changed declarations to what exists; raises NotLive.

        What is no longer declared stays, with its messages, as with Artemis'
        ``config-delete-queues`` and ``config-delete-addresses`` OFF.
        """
        book = self._book
        declared = book.rules.addresses
        for name in self._types.keys() - declared.keys():
            known = book.known.get(name)
            if known is not None:
                known.declare(frozenset())
            yield GO_ON
        self._types = declared
        queues: dict[str, _Declaration] = {}
        for address in declared.values():
            book.address(address.name).declare(address.routing_types)
            for queue in address.queues:
                queues[queue.name] = address.name, queue
                if self._queues.get(queue.name) != queues[queue.name]:
                    self._apply(address.name, queue)
                yield GO_ON
            yield GO_ON
        self._queues = queues

    def _apply(self, address: str, declared: QueueSettings) -> None:
        stored = self._book.queues.get(declared.name)
        options = options_of(self._book.address(address).settings, declared.options)
        if stored is None:
            self._book.create_queue(
                declared.name,
                address,
                declared.routing_type,
                auto_created=False,
                max_consumers=declared.max_consumers,
                user=declared.user,
                options=options,
                durable=declared.durable,
            )
            return
        self._warn_of_what_stays(stored, address, declared)
        stored.max_consumers = at_most(declared.max_consumers)
        if stored.address == address:
            self._book.refilter(stored.name, options)
        there = self._book.bindings[stored.name].options
        later = [
            one.name.replace("_", "-")
            for one in fields(there)
            if getattr(there, one.name) != getattr(options, one.name)
        ]
        if later:
            LOGGER.warning(
                "queue %s is there: what broker.xml says of its %s takes effect at the next start",
                quoted(stored.name),
                ", ".join(later),
            )

    def _warn_of_what_stays(self, stored: Queue, address: str, declared: QueueSettings) -> None:
        name = quoted(stored.name)
        if stored.is_leaving:
            LOGGER.warning("queue %s is being deleted, and is created at the next start", name)
        if (stored.address, stored.routing_type) != (address, declared.routing_type):
            LOGGER.warning(
                "queue %s is configured as %s of address %s, and stored as %s of address"
                " %s: it stays as it is stored",
                name,
                declared.routing_type.value,
                quoted(address),
                stored.routing_type.value,
                quoted(stored.address),
            )
