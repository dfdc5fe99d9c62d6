# mypyc compiles this module.
"""A consumer's end in the core: its credit, and what it has of its queue.

The same for a queue that is stored and for one that ends with its consumer, which is what a topic
has for each of its subscribers: what becomes of a message that is acknowledged, rejected or left
behind, the queue knows.
"""

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from itertools import count
from typing import Final, Generic, TypeVar

from orthia.broker.core.api import Answer, Consumer, Done, MessageReference, Settlement
from orthia.broker.core.errors import Refusal
from orthia.broker.core.identity import Principal
from orthia.broker.core.limits.memory import CreditPool
from orthia.config.address_settings import RoutingType
from orthia.journal.model.changes import MessageLocation

LOGGER = logging.getLogger("orthia.broker")
Reference = TypeVar("Reference", bound=MessageReference)


class Source(ABC, Generic[Reference]):
    """The queue of a subscription, as far as the subscription knows it."""

    __slots__ = ()

    @abstractmethod
    def type_of_queue(self) -> RoutingType:
        """Return its routing type, which is that of messages that do not say theirs."""

    @abstractmethod
    def resume(self) -> None:
        """Go on delivering."""

    @abstractmethod
    def join(self, subscription: "Subscription[Reference]") -> None:
        """Ask a consumer again whether it wants more."""

    @abstractmethod
    def detach(self, subscription: "Subscription[Reference]") -> None:
        """Deliver nothing more to a consumer that was closed."""

    def keeps_nothing(self) -> bool:
        """Return whether what is given back is gone."""
        return False

    @abstractmethod
    def is_looking_for(self, subscription: "Subscription[Reference]") -> bool:
        """Return whether messages that are there may still follow without a ``resume``."""

    @abstractmethod
    def acknowledge(self, taken: Sequence[Reference], done: Done | None) -> None:
        """Delete delivered messages for good, then deliver on; ``done`` follows the commit."""

    @abstractmethod
    def give_back(
        self,
        references: Sequence[Reference],
        *,
        attempted: Sequence[MessageReference] = (),
        is_last: bool = False,
        done: Done | None = None,
    ) -> None:
        """Take delivered messages back; delivery of the ``attempted`` failed.

        If the attempt ``is_last``, they are dead letters. ``done`` follows once that is stored, and
        what becomes of a message for it.
        """

    @abstractmethod
    def settle(self, taken: Sequence[Reference], answer: Answer) -> Settlement:
        """Acknowledge delivered messages, or give them back, with a transaction that commits."""

    @abstractmethod
    def refuse_returned(self) -> None:
        """Raise AcknowledgementRefused if what a closed subscription had can be delivered again."""


class _Nobody:
    """Who consumes through a subscription that is closed."""

    connection = None
    is_writable = False

    def __init__(self) -> None:
        self.principal = Principal("", frozenset())
        """May do nothing."""

    def deliver(self, reference: MessageReference) -> None:
        """Never called: a closed subscription wants no message."""
        raise AssertionError(reference.seq)

    def settled(self, references: Sequence[MessageReference]) -> None:
        """Never called: a closed subscription has no message."""
        raise AssertionError(references)

    def holds(self, change: int) -> None:
        """Count nothing."""

    def fail(self, reason: str, kind: Refusal) -> None:
        """End nothing: the client unsubscribed, or is gone."""


_NOBODY = _Nobody()
_NUMBERS: Final = count(1)


class Subscription(Generic[Reference]):
    """A consumer of a queue, with its credit.

    A prefetch counts messages, of which each may be large, so bytes are counted beside them.
    Artemis' credit counts bytes only, and is far smaller.
    """

    __slots__ = (
        "_aside", "_consumer", "_cost", "_delivered", "_delivered_bytes", "_max_bytes", "_pool",
        "_prefetch", "_queue", "has_turn", "is_closed", "number", "taken", "view",
    )  # fmt: skip

    def __init__(
        self,
        queue: Source[Reference],
        pool: CreditPool,
        consumer: Consumer,
        prefetch: int,
        max_bytes: int,
        cost: int | None = None,
    ) -> None:
        """``prefetch`` 0 bounds the bytes only.

        Each delivered message counts for the client with so much as it ``cost``, or its own size.
        """
        self.is_closed = False
        self.number = next(_NUMBERS)
        """Which it is of all subscriptions of this process."""
        self.taken = 0
        """How many messages left it, acknowledged or rejected."""
        self.has_turn = False
        """Kept by ``Turns``."""
        self.view: object = None
        """Kept by ``SelectingDelivery``."""
        self._queue = queue
        self._pool = pool
        self._consumer = consumer
        self._prefetch = prefetch
        self._max_bytes = max_bytes
        self._cost = cost
        self._delivered: dict[int, Reference] = {}
        self._delivered_bytes = 0
        self._aside: dict[int, Reference] = {}
        """What the client's open transactions have: the client cannot wait for room that only
        their commit would make. It counts for them, against max-transaction-bytes."""

    @property
    def connection(self) -> object:
        """Whose it is: the same for all of one client; None once it is closed."""
        return self._consumer.connection

    @property
    def principal(self) -> Principal:
        """Whom its client acts for, who may consume here."""
        return self._consumer.principal

    @property
    def routing_type(self) -> RoutingType:
        """That of its queue."""
        return self._queue.type_of_queue()

    # --- what operators see

    @property
    def prefetch(self) -> int:
        """Messages it may have at a time; 0 for any number."""
        return self._prefetch

    @property
    def delivering(self) -> int:
        """How many messages its client has, those of open transactions included."""
        return len(self._delivered) + len(self._aside)

    @property
    def delivering_bytes(self) -> int:
        """What those count for that are in no transaction."""
        return self._delivered_bytes

    @property
    def is_writable(self) -> bool:
        """Whether its connection takes more at this moment."""
        return self._consumer.is_writable

    def held(self) -> Iterator[Reference]:
        """Yield the messages its client has, the oldest delivery first."""
        yield from self._delivered.values()
        yield from self._aside.values()

    # --- credit

    @property
    def is_busy(self) -> bool:
        """Whether its client has messages to acknowledge, or to read."""
        return bool(self._delivered) or not self._consumer.is_writable

    def wants_more(self) -> bool:
        """Return whether the consumer has credit and its connection takes more."""
        pool = self._pool
        return (
            (not self._prefetch or len(self._delivered) < self._prefetch)
            and not self.is_closed
            and self._delivered_bytes < self._max_bytes
            and (
                self._delivered_bytes < pool.small_claim
                # As the pool's ``is_exhausted``, which for each delivery would be a call.
                or pool.claimed < pool.limit
                or pool.refuse(self)
            )
            and self._consumer.is_writable
        )

    def _count(self, messages: int, size: int) -> None:
        """Count delivered messages of so many bytes, or fewer: that is credit.

        Not of the pool: what a queue delivered stays claimed until it is acknowledged, also after
        it was given back.
        """
        self._delivered_bytes += size
        self._consumer.holds(size if self._cost is None else self._cost * messages)

    def deliver(self, reference: Reference) -> None:
        """Hand over a message."""
        size = reference.size
        self._delivered[reference.seq] = reference
        self._delivered_bytes += size
        self._pool.claimed += size
        self._consumer.holds(size if self._cost is None else self._cost)
        try:
            self._consumer.deliver(reference)
        except MemoryError:
            raise
        except Exception:
            LOGGER.exception("delivering a message to a client failed; ending its connection")
            self._consumer.fail(
                "the broker failed to deliver a message; its log says why", Refusal.FAILURE
            )

    def take(self, references: Sequence[MessageReference]) -> list[Reference]:
        """Take those of ``references`` that are still delivered here; that is credit again."""
        delivered = self._delivered
        taken = []
        size = 0
        for one in references:
            held = delivered.pop(one.seq, None)
            if held is not None:
                taken.append(held)
                size += held.size
        self.taken += len(taken)
        self._count(-len(taken), -size)
        if not (self.has_turn or self.is_closed):
            self._queue.join(self)
        return taken

    # --- what a session says of what it has

    def acknowledge(self, references: Sequence[MessageReference], done: Done | None) -> None:
        """Delete delivered messages; ``done`` follows the commit."""
        self._queue.acknowledge(self.take(references), done)

    def settle_delivered(self, seqs: set[int]) -> None:
        """Acknowledge what the client has of these messages, and take it from ``seqs``.

        An application acknowledged them in the database. What is in a transaction of the client
        stays there until its end: it is taken from ``seqs``, too.
        """
        delivered = self._delivered
        few, many = (seqs, delivered) if len(seqs) < len(delivered) else (delivered, seqs)
        found = [delivered[seq] for seq in few if seq in many]
        seqs.difference_update(self._aside)
        if found:
            seqs.difference_update([one.seq for one in found])
            self._consumer.settled(found)
            self.acknowledge(found, None)

    def reject(self, references: Sequence[MessageReference], done: Done | None) -> None:
        """Give delivered messages back after a failed attempt; ``done`` once that is stored."""
        taken = self.take(references)
        self._queue.give_back(taken, attempted=taken, done=done)

    def release(self, references: Sequence[MessageReference], done: Done | None) -> None:
        """Give delivered messages back that nobody has tried to process."""
        self._queue.give_back(self.take(references), done=done)

    def dead_letter(self, references: Sequence[MessageReference], done: Done | None) -> None:
        """Make dead letters of delivered messages; ``done`` follows once that is stored."""
        taken = self.take(references)
        self._queue.give_back(taken, attempted=taken, is_last=True, done=done)

    @property
    def keeps_nothing(self) -> bool:
        """Whether what is given back is gone."""
        return self._queue.keeps_nothing()

    @property
    def is_looking(self) -> bool:
        """Whether messages that are there may still follow without a ``resume``."""
        return not self.is_closed and self._queue.is_looking_for(self)

    def resume(self) -> None:
        """Go on delivering: the connection takes more, or there is memory again."""
        self._queue.join(self)
        self._queue.resume()

    def fail(self, reason: str, kind: Refusal) -> None:
        """End the connection of the consumer."""
        self._consumer.fail(reason, kind)

    def close(self, *, attempted: Sequence[MessageReference] = ()) -> None:
        """End the subscription; its queue has what is not acknowledged, if it keeps anything."""
        if self.is_closed:
            return
        self.is_closed = True
        self._pool.forget(self)
        self._queue.detach(self)
        references = [*self._delivered.values(), *self._aside.values()]
        self._count(-len(self._delivered), -self._delivered_bytes)
        self._delivered.clear()
        self._aside.clear()
        self._consumer = _NOBODY  # the client's end knows this one: nothing is left in a cycle
        self._queue.give_back(references, attempted=attempted)

    # --- transactions

    def set_aside(self, references: Sequence[MessageReference]) -> None:
        """Keep delivered messages for a transaction; that is credit."""
        moved = _moved(references, self._delivered, self._aside)
        self._count(-len(moved), -sum([one.size for one in moved]))

    def put_back(self, references: Sequence[MessageReference]) -> None:
        """Undo ``set_aside``."""
        moved = _moved(references, self._aside, self._delivered)
        self._count(len(moved), sum([one.size for one in moved]))

    def deletes(self, references: Sequence[MessageReference]) -> list[MessageLocation]:
        """Return what the journal deletes of messages set aside; raises AcknowledgementRefused."""
        if not all(one.seq in self._aside for one in references):
            self._queue.refuse_returned()
        return locations(references)

    def settle(
        self, references: Sequence[MessageReference], answer: Answer = Answer.ACKNOWLEDGED
    ) -> Settlement:
        """Let messages set aside leave with their transaction; those that are still here."""
        aside = self._aside
        taken = [aside.pop(one.seq) for one in references if one.seq in aside]
        self.taken += len(taken)
        return self._queue.settle(taken, answer)


QueueSubscription = Subscription[MessageReference]
"""A consumer of a stored queue."""


def _moved(
    references: Sequence[MessageReference],
    source: dict[int, Reference],
    target: dict[int, Reference],
) -> list[Reference]:
    moved = [source.pop(one.seq) for one in references if one.seq in source]
    target.update((one.seq, one) for one in moved)
    return moved


def locations(references: Sequence[MessageReference]) -> list[MessageLocation]:
    """Return where the journal keeps messages, of those it does."""
    return [one.location for one in references if one.location is not None]
