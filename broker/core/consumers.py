"""A queue's consumers: what each has of it, and whose turn it is."""

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

from orthia.broker.core.api import Consumer, MessageReference
from orthia.broker.core.memory import SMALL_CLAIM, MemoryBudget

if TYPE_CHECKING:
    from orthia.broker.core.queue import Queue


class QueueSubscription:
    """A consumer of a queue, with its credit.

    A prefetch counts messages, of which each may be large, so bytes are counted beside them.
    Artemis' credit for a STOMP consumer counts bytes only, and is far smaller.
    """

    __slots__ = (
        "_aside",
        "_budget",
        "_consumer",
        "_delivered",
        "_delivered_bytes",
        "_max_bytes",
        "_prefetch",
        "_turns",
        "has_turn",
        "is_closed",
        "queue",
    )

    def __init__(
        self,
        queue: "Queue",
        turns: "Turns",
        budget: MemoryBudget,
        consumer: Consumer,
        prefetch: int,
        max_bytes: int,
    ) -> None:
        self.queue = queue
        self.is_closed = False
        self.has_turn = False
        """Kept by ``Turns``."""
        self._turns = turns
        self._budget = budget
        self._consumer = consumer
        self._prefetch = prefetch
        self._max_bytes = max_bytes
        self._delivered: dict[int, MessageReference] = {}
        self._delivered_bytes = 0
        self._aside: dict[int, MessageReference] = {}
        """What the client's open transactions have: the client cannot wait for room that only
        their COMMIT would make. It counts for them, against max-transaction-bytes."""

    @property
    def wants_more(self) -> bool:
        """Whether the consumer has credit and its socket takes more."""
        has_credit = not self._prefetch or len(self._delivered) < self._prefetch
        return (
            has_credit
            and not self.is_closed
            and self._delivered_bytes < self._max_bytes
            and (
                self._delivered_bytes < SMALL_CLAIM
                # As the budget's ``is_exhausted``, which for each delivery would be a call.
                or self._budget.claimed < self._budget.limit
                or self._budget.refuse(self)
            )
            and self._consumer.is_writable
        )

    def deliver(self, reference: MessageReference) -> None:
        """Hand over a message."""
        self._delivered[reference.seq] = reference
        self._delivered_bytes += reference.size
        self._consumer.holds(reference.size)
        self._consumer.deliver(reference)

    def set_aside(self, references: Sequence[MessageReference]) -> None:
        """Keep delivered messages for a transaction; that is credit."""
        moved = self._moved(references, self._delivered, self._aside)
        self._release(sum([one.size for one in moved]))

    def put_back(self, references: Sequence[MessageReference]) -> None:
        """Undo ``set_aside``."""
        moved = self._moved(references, self._aside, self._delivered)
        self._release(-sum([one.size for one in moved]))

    @staticmethod
    def _moved(
        references: Sequence[MessageReference],
        source: dict[int, MessageReference],
        target: dict[int, MessageReference],
    ) -> list[MessageReference]:
        moved = [one for one in references if source.pop(one.seq, None) is not None]
        target.update((one.seq, one) for one in moved)
        return moved

    def has_aside(self, references: Sequence[MessageReference]) -> bool:
        """Return whether all of ``references`` are set aside here still."""
        return all(one.seq in self._aside for one in references)

    def take_aside(self, references: Sequence[MessageReference]) -> list[MessageReference]:
        """Take those of ``references`` that are still set aside: their transaction ends."""
        return [one for one in references if self._aside.pop(one.seq, None) is not None]

    def take(self, references: Sequence[MessageReference]) -> list[MessageReference]:
        """Take those of ``references`` that are still delivered here; that is credit again."""
        delivered = self._delivered
        taken = []
        size = 0
        for one in references:
            if delivered.pop(one.seq, None) is not None:
                taken.append(one)
                size += one.size
        self._release(size)
        self._turns.join(self)
        return taken

    def _release(self, size: int) -> None:
        self._delivered_bytes -= size
        self._consumer.holds(-size)

    def resume(self) -> None:
        """Go on delivering: the socket takes more, or there is memory again."""
        self._turns.join(self)
        self.queue.resume()

    def fail(self, reason: str) -> None:
        """End the connection of the consumer."""
        self._consumer.fail(reason)

    def give_back_all(self, *, attempted: Sequence[MessageReference]) -> None:
        """End the subscription and return what is not acknowledged; see ``Queue.give_back``."""
        self.is_closed = True
        self._budget.forget(self)
        self.queue.detach(self)
        references = [*self._delivered.values(), *self._aside.values()]
        self._delivered.clear()
        self._aside.clear()
        self._release(self._delivered_bytes)
        self.queue.give_back(references, attempted=attempted)


class Turns:
    """The consumers that may take a message, in turn.

    One that turns out to have no credit, or a full socket, is left out until it says that this has
    changed: finding the next costs the same however many wait for their clients.
    """

    __slots__ = ("_closed", "_ring")

    def __init__(self) -> None:
        self._ring: deque[QueueSubscription] = deque()
        self._closed = 0
        """How many of the ring are closed: very many may be at once, and each costs the same."""

    def join(self, subscription: QueueSubscription) -> None:
        """Have a subscription asked again, as the last."""
        if not subscription.has_turn and not subscription.is_closed:
            subscription.has_turn = True
            self._ring.append(subscription)

    def leave(self, subscription: QueueSubscription) -> None:
        """Ask a subscription that was closed no more."""
        if subscription.has_turn:
            self._closed += 1
            if 2 * self._closed > len(self._ring):
                self._ring = deque(one for one in self._ring if not one.is_closed)
                self._closed = 0

    @property
    def is_wanted(self) -> bool:
        """Whether any subscription wants a message."""
        ring = self._ring
        while ring and not ring[0].wants_more:
            self._pass_over(ring.popleft())
        return bool(ring)

    def next(self) -> QueueSubscription | None:
        """Return the subscription that is to have the next message, if any wants one."""
        ring = self._ring
        while ring:
            candidate = ring[0]
            if candidate.wants_more:
                ring.rotate(-1)
                return candidate
            self._pass_over(ring.popleft())
        return None

    def _pass_over(self, subscription: QueueSubscription) -> None:
        subscription.has_turn = False
        if subscription.is_closed:
            self._closed -= 1
