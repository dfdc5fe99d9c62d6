# mypyc compiles this module.
"""The parts of one queue that its deliveries share."""

from dataclasses import dataclass

from orthia.broker.core.queue.consumers import Consumers
from orthia.broker.core.queue.log import QueueLog
from orthia.broker.core.queue.pace import Pace
from orthia.broker.core.queue.reader import WindowReader
from orthia.broker.core.queue.services import QueueServices
from orthia.broker.core.queue.unsettled import Unsettled


@dataclass(frozen=True, slots=True)
class QueueParts:
    """What a queue is made of, whichever way it delivers; each module says what its part has."""

    log: QueueLog
    unsettled: Unsettled
    consumers: Consumers
    pace: Pace
    reader: WindowReader
    services: QueueServices
