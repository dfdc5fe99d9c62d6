"""What operators set of addresses and queues that outlives a node.

Created addresses, pauses, and options of queues that were changed.

A paused queue takes messages and delivers none; what consumers have stays with them. A paused
address is all of its queues, those to come too. Subscribers of its topic, who have no queue, get
what is published all the same: nothing is kept for them.
"""

import logging
from dataclasses import asdict, fields, replace
from typing import Final

from orthia.broker.core.api import Done
from orthia.broker.core.errors import BrokerError
from orthia.broker.core.queue.options import NEVER
from orthia.broker.core.queue.queue import Queue
from orthia.broker.core.routing.address import Address
from orthia.broker.core.routing.addresses import AddressBook
from orthia.broker.core.routing.records import OperatorRecords
from orthia.broker.core.slices import GO_ON, Steps
from orthia.broker.quoting import quoted
from orthia.config.address_settings import RoutingType
from orthia.config.queues import QueueOptions
from orthia.journal.journal import MessageJournal
from orthia.journal.model.codec import AddressBinding, OperatorRecord
from orthia.journal.model.unit import Unit

PAUSED_QUEUE: Final = "paused-queue"
PAUSED_ADDRESS: Final = "paused-address"
CHANGED_QUEUE: Final = "changed-queue"
_ID: Final = "queue-id"
_MOST: Final = "max-consumers"
_OPTIONS: Final = "options"
LOGGER = logging.getLogger("orthia.broker")


class Administered:
    """Created addresses and pauses, and their records; on the loop's thread."""

    def __init__(self, journal: MessageJournal, book: AddressBook) -> None:
        self._journal = journal
        self._stored = OperatorRecords(journal)
        self._book = book
        self._addresses: dict[str, int] = {}
        """The ids of the bindings of created addresses, by name."""
        self._paused_queues: dict[int, int] = {}
        """The ids of the records of paused queues, by the queue's id."""
        self._paused_addresses: dict[str, int] = {}
        self._changed_queues: dict[int, int] = {}
        """The ids of the records of queues whose options were changed, by the queue's id."""

    def opening(self) -> Steps:
        """Apply what earlier nodes stored, once the queues are open; raises NotLive."""
        by_id = {queue.id: queue for queue in self._book.queues.values()}
        left_over = Unit()
        for binding in self._journal.bindings:
            if isinstance(binding, AddressBinding):
                self._addresses[binding.name] = binding.address_id
                self._book.address(binding.name).create(binding.routing_types)
            elif isinstance(binding, OperatorRecord) and binding.kind == PAUSED_ADDRESS:
                self._paused_addresses[binding.name] = binding.record_id
                self._pause(self._book.address(binding.name), is_paused=True)
            elif isinstance(binding, OperatorRecord) and binding.kind == PAUSED_QUEUE:
                queue = by_id.get(binding.details.get(_ID, 0))
                if queue is None:
                    left_over.delete_binding(binding.record_id)  # it was deleted while paused
                else:
                    self._paused_queues[queue.id] = binding.record_id
                    queue.pause(is_paused=True)
            elif isinstance(binding, OperatorRecord) and binding.kind == CHANGED_QUEUE:
                queue = by_id.get(binding.details.get(_ID, 0))
                if queue is None or queue.name in self._book.rules.queues:
                    left_over.delete_binding(binding.record_id)  # broker.xml says it by now
                else:
                    self._changed_queues[queue.id] = binding.record_id
                    self._open_changed(queue, binding)
            yield GO_ON
        if left_over.unbound:
            self._stored.append(left_over)

    # --- options of queues

    def change_queue(
        self, queue: Queue, options: QueueOptions, max_consumers: int, done: Done
    ) -> None:
        """Apply changed options to a queue, on this node and on those to come; raises NotLive.

        Its binding says how it was created, the record what has changed since.
        """
        unit = Unit(done)
        before = self._changed_queues.get(queue.id)
        if before is not None:
            unit.delete_binding(before)
        if queue.durable:
            record_id = self._changed_queues[queue.id] = self._stored.next_id()
            details = {_ID: queue.id, _MOST: max_consumers, _OPTIONS: asdict(options)}
            unit.add_binding(OperatorRecord(record_id, CHANGED_QUEUE, queue.name, details))
        self._stored.append(unit)
        self._book.change_queue(queue.name, options, max_consumers)

    def _open_changed(self, queue: Queue, record: OperatorRecord) -> None:
        there = self._book.bindings[queue.name].options
        said = record.details.get(_OPTIONS, {})
        known = {one.name for one in fields(QueueOptions)} - NEVER.keys()
        try:
            options = replace(there, **{name: said[name] for name in known & said.keys()})
            self._book.change_queue(queue.name, options, int(record.details[_MOST]))
        except (BrokerError, KeyError, TypeError, ValueError) as error:
            LOGGER.error(  # noqa: TRY400 - the record is at fault, not the code
                "the options of queue %s, as an operator changed them, cannot be applied: %r; it is"
                " as it was created",
                quoted(queue.name),
                error,
            )

    # --- addresses

    def create(self, name: str, types: frozenset[RoutingType], done: Done) -> None:
        """Create an address, or give it other types; ``done`` once stored. Raises NotLive."""
        unit = Unit(done)
        before = self._addresses.get(name)
        if before is not None:
            unit.delete_binding(before)
        binding = AddressBinding(self._stored.next_id(), name, types)
        unit.add_binding(binding)
        self._stored.append(unit)
        self._addresses[name] = binding.address_id
        self._book.address(name).create(types)

    def delete(self, name: str, done: Done) -> None:
        """Delete an address; ``done`` once that is stored. Raises NotLive."""
        unit = Unit(done)
        address = self._book.address(name)
        self._unpause(unit, name)
        binding_id = self._addresses.pop(name, None)
        if binding_id is not None:
            unit.delete_binding(binding_id)
        self._stored.append(unit)
        address.create(frozenset())
        self._pause(address, is_paused=False)

    # --- pauses

    def pause_queue(self, queue: Queue, done: Done, *, is_stored: bool) -> None:
        """Pause a queue; with ``is_stored`` also on the nodes to come. Raises NotLive."""
        unit = Unit(done)
        if is_stored and queue.id not in self._paused_queues:
            record_id = self._stored.next_id()
            unit.add_binding(OperatorRecord(record_id, PAUSED_QUEUE, queue.name, {_ID: queue.id}))
            self._paused_queues[queue.id] = record_id
        self._stored.append(unit)
        queue.pause(is_paused=True)

    def resume_queue(self, queue: Queue, done: Done) -> None:
        """Deliver from a queue again; ``done`` once that is stored. Raises NotLive."""
        unit = Unit(done)
        record_id = self._paused_queues.pop(queue.id, None)
        if record_id is not None:
            unit.delete_binding(record_id)
        self._stored.append(unit)
        queue.pause(is_paused=False)

    def pause_address(self, name: str, done: Done, *, is_stored: bool) -> None:
        """Pause the queues of an address; see ``pause_queue``. Raises NotLive."""
        unit = Unit(done)
        if is_stored and name not in self._paused_addresses:
            record_id = self._stored.next_id()
            unit.add_binding(OperatorRecord(record_id, PAUSED_ADDRESS, name))
            self._paused_addresses[name] = record_id
        self._stored.append(unit)
        self._pause(self._book.address(name), is_paused=True)

    def resume_address(self, name: str, done: Done) -> None:
        """Deliver from the queues of an address again, but for those paused by themselves."""
        unit = Unit(done)
        self._unpause(unit, name)
        self._stored.append(unit)
        self._pause(self._book.address(name), is_paused=False)

    def _unpause(self, unit: Unit, name: str) -> None:
        record_id = self._paused_addresses.pop(name, None)
        if record_id is not None:
            unit.delete_binding(record_id)

    @staticmethod
    def _pause(address: Address, *, is_paused: bool) -> None:
        address.is_paused = is_paused
        for queue in (*address.anycast_queues, *address.multicast_queues):
            queue.pause_with_address(is_paused=is_paused)
