# mypyc compiles this module.
"""What all queues of a node share."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Protocol

from orthia.broker.core.api import MessageReference
from orthia.broker.core.limits.creations import QueueCreations
from orthia.broker.core.limits.memory import MemoryBudget, Waiters
from orthia.broker.core.queue.gate import Deliverer, DeliveryGate
from orthia.broker.core.queue.reader import ReadTurns
from orthia.broker.core.queue.taken import ExpiryLook
from orthia.broker.core.slices import Slices
from orthia.broker.core.timers import Timers
from orthia.journal.journal import MessageJournal


class Disposal(Protocol):
    """What becomes of a message its queue cannot deliver."""

    look: ExpiryLook

    def expire(self, queue: Any, reference: MessageReference) -> None:
        """Move it to the expiry address, or drop it."""

    def dead_letter(self, queue: Any, reference: MessageReference) -> bool:
        """Move it to the dead-letter address, or drop it; False if it has to stay."""


@dataclass(frozen=True, slots=True)
class QueueServices:
    """The parts of a node that its queues use."""

    journal: MessageJournal
    budget: MemoryBudget
    gate: DeliveryGate
    slices: Slices
    timers: Timers
    disposal: Disposal
    creations: QueueCreations
    journal_full: Waiters[Deliverer]
    """Those that stopped reading because the journal is full."""
    read_turns: ReadTurns
    withheld: Collection[int]
    """The seqs of messages that stay where they are: a transaction in doubt acknowledged them."""
