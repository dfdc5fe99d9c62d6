"""Opening the stored queues of a node.

In steps: clients create any number of queues within their limits. A step takes 0.1 ms.
"""

from orthia.broker.core.routing.addresses import AddressBook
from orthia.broker.core.slices import GO_ON, Steps
from orthia.journal.journal import MessageJournal
from orthia.journal.model.codec import QueueBinding


def open_queues(book: AddressBook, journal: MessageJournal) -> Steps:
    """Open all queues; messages of earlier nodes are in the table only."""
    levels: list[QueueBinding] = []
    unread_up_to = journal.recovery_horizon
    for binding in journal.bindings:
        if isinstance(binding, QueueBinding) and not binding.durable:
            book.leave_over(binding, unread_up_to=unread_up_to)
        elif isinstance(binding, QueueBinding) and binding.priority is not None:
            levels.append(binding)
        elif isinstance(binding, QueueBinding):
            book.open_queue(binding, unread_up_to=unread_up_to)
        yield GO_ON
    for binding in levels:
        book.open_level(binding, unread_up_to)
        yield GO_ON
