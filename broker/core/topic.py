"""Topics: every subscriber that is there gets its own copy; nothing is stored.

A subscriber that falls behind is disconnected with an ERROR once more than ``max-behind-bytes``
wait for it: it then knows that it missed messages, which silent dropping would not tell it. All
subscribers together hold ``global-max-size`` at most; beyond it the one that holds most is ended.
"""

from collections import deque
from collections.abc import Callable, Sequence

from broker.api import Consumer, Done, MessageReference
from config.settings import StompLimits
from journal.large import LargeMessages


class TopicMemory:
    """Counts the bytes of messages that subscribers hold, each message once.

    And keeps the bodies of large ones for them, which no queue may need.
    """

    def __init__(self, limit: int, large: LargeMessages | None = None) -> None:
        self.limit = limit
        self._large = large
        self.used = 0
        self._holders: dict[int, int] = {}
        """By seq: how many subscribers hold the message."""

    @property
    def is_exceeded(self) -> bool:
        """Whether subscribers hold more than they may."""
        return 0 <= self.limit < self.used

    def hold(self, reference: MessageReference) -> None:
        """Count a subscriber that holds a message."""
        holders = self._holders.get(reference.seq, 0)
        self._holders[reference.seq] = holders + 1
        if not holders:
            self.used += reference.size
            body = reference.record.large
            if body is not None and self._large is not None:
                self._large.pin(body.id)

    def release(self, reference: MessageReference) -> None:
        """Count a subscriber that does so no more."""
        holders = self._holders[reference.seq] - 1
        if holders:
            self._holders[reference.seq] = holders
        else:
            del self._holders[reference.seq]
            self.used -= reference.size
            body = reference.record.large
            if body is not None and self._large is not None:
                self._large.unpin(body.id)


class TopicSubscription:
    """One non-durable subscriber of a topic."""

    def __init__(
        self,
        consumer: Consumer,
        prefetch: int,
        *,
        limits: StompLimits,
        memory: TopicMemory,
        may_deliver: Callable[[], bool],
        closed: Callable[["TopicSubscription"], None],
    ) -> None:
        self._consumer = consumer
        self._prefetch = prefetch
        self._limits = limits
        self._memory = memory
        self._may_deliver = may_deliver
        self._closed = closed
        self._waiting: deque[MessageReference] = deque()
        self._waiting_bytes = 0
        self._delivered: dict[int, MessageReference] = {}
        self._delivered_bytes = 0
        self._aside: dict[int, MessageReference] = {}
        """What the client's open transactions have."""
        self._aside_bytes = 0
        self._is_delivering = False
        self._is_closed = False

    @property
    def held_bytes(self) -> int:
        """How many bytes wait for it, or for its acknowledgement."""
        return self._waiting_bytes + self._delivered_bytes + self._aside_bytes

    def add(self, reference: MessageReference) -> None:
        """Offer a message."""
        if self._is_closed:
            return  # by what an earlier subscriber of the same message caused
        self._memory.hold(reference)
        self._waiting.append(reference)
        self._waiting_bytes += reference.size
        self.resume()
        # A single message may be larger than that, and its socket busy for a moment.
        if self._waiting_bytes > self._limits.max_behind_bytes and len(self._waiting) > 1:
            self._consumer.fail(
                f"this subscriber is more than max-behind-bytes {self._limits.max_behind_bytes}"
                " behind its topic: read faster, or use a queue"
            )

    def fail(self, reason: str) -> None:
        """End the subscriber's connection."""
        self._consumer.fail(reason)

    def acknowledge(self, references: Sequence[MessageReference], done: Done | None) -> None:
        """Free credit; there is nothing to delete."""
        for reference in references:
            if self._delivered.pop(reference.seq, None) is not None:
                self._delivered_bytes -= reference.size
            elif self._aside.pop(reference.seq, None) is not None:
                self._aside_bytes -= reference.size
            else:
                continue
            self._memory.release(reference)
        if done is not None:
            done()
        self.resume()

    def reject(self, references: Sequence[MessageReference]) -> None:
        """Forget the messages: a topic keeps none to deliver again."""
        self.acknowledge(references, None)

    def set_aside(self, references: Sequence[MessageReference]) -> None:
        """Keep messages for a transaction; that is credit."""
        for reference in references:
            if self._delivered.pop(reference.seq, None) is not None:
                self._aside[reference.seq] = reference
                self._delivered_bytes -= reference.size
                self._aside_bytes += reference.size

    def put_back(self, references: Sequence[MessageReference]) -> None:
        """Undo ``set_aside``."""
        for reference in references:
            if self._aside.pop(reference.seq, None) is not None:
                self._delivered[reference.seq] = reference
                self._delivered_bytes += reference.size
                self._aside_bytes -= reference.size

    def resume(self) -> None:
        """Deliver what waits while the consumer takes it."""
        if self._is_delivering:
            return
        self._is_delivering = True
        try:
            while self._waiting and self._has_credit() and self._may_deliver():
                reference = self._waiting.popleft()
                self._waiting_bytes -= reference.size
                self._delivered[reference.seq] = reference
                self._delivered_bytes += reference.size
                self._consumer.deliver(reference)
        finally:
            self._is_delivering = False

    def _has_credit(self) -> bool:
        within = not self._prefetch or len(self._delivered) < self._prefetch
        return (
            within
            and self._delivered_bytes < self._limits.max_unacknowledged_bytes
            and self._consumer.is_writable
        )

    def close(self, *, attempted: Sequence[MessageReference] = ()) -> None:  # noqa: ARG002 - see Subscription
        """End the subscription."""
        self._is_closed = True
        for reference in (*self._waiting, *self._delivered.values(), *self._aside.values()):
            self._memory.release(reference)
        self._waiting.clear()
        self._delivered.clear()
        self._aside.clear()
        self._waiting_bytes = self._delivered_bytes = self._aside_bytes = 0
        self._closed(self)
