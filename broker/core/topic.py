"""Topics: every subscriber that is there gets its own copy; nothing is stored.

A subscriber that falls behind is disconnected with an ERROR once more than MAX_BEHIND_BYTES wait
for it: it then knows that it missed messages, which silent dropping would not tell it.
"""

from collections import deque
from collections.abc import Callable, Sequence

from broker.api import Consumer, Done, MessageReference
from broker.core.consumers import MAX_UNACKNOWLEDGED_BYTES

MAX_BEHIND_BYTES = 8 * 1024 * 1024


class TopicSubscription:
    """One non-durable subscriber of a topic."""

    def __init__(
        self,
        consumer: Consumer,
        prefetch: int,
        *,
        may_deliver: Callable[[], bool],
        closed: Callable[["TopicSubscription"], None],
    ) -> None:
        self._consumer = consumer
        self._prefetch = prefetch
        self._may_deliver = may_deliver
        self._closed = closed
        self._waiting: deque[MessageReference] = deque()
        self._waiting_bytes = 0
        self._delivered: dict[int, MessageReference] = {}
        self._delivered_bytes = 0
        self._is_delivering = False

    def add(self, reference: MessageReference) -> None:
        """Offer a message."""
        self._waiting.append(reference)
        self._waiting_bytes += reference.size
        self.resume()
        if self._waiting_bytes > MAX_BEHIND_BYTES:
            self._consumer.fail(
                f"this subscriber is more than {MAX_BEHIND_BYTES} bytes behind its topic:"
                " read faster, or use a queue"
            )

    def acknowledge(self, references: Sequence[MessageReference], done: Done | None) -> None:
        """Free credit; there is nothing to delete."""
        for reference in references:
            if self._delivered.pop(reference.seq, None) is not None:
                self._delivered_bytes -= reference.size
        if done is not None:
            done()
        self.resume()

    def reject(self, references: Sequence[MessageReference]) -> None:
        """Forget the messages: a topic keeps none to deliver again."""
        self.acknowledge(references, None)

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
            and self._delivered_bytes < MAX_UNACKNOWLEDGED_BYTES
            and self._consumer.is_writable
        )

    def close(self, *, failed: bool) -> None:  # noqa: ARG002 - the signature is Subscription's
        """End the subscription."""
        self._waiting.clear()
        self._delivered.clear()
        self._delivered_bytes = 0
        self._closed(self)
