# mypyc compiles this module.
"""Delivery: messages go from a queue to its consumers while there are both, and a valid lease.

There are three: ``head`` takes messages from the front, for consumers that want every message;
``selecting`` takes them out of the middle, for consumers with selectors, priorities and groups;
``copying`` shows them to consumers that take nothing out. None of them reads the store itself.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence

from orthia.broker.core.api import Consumer, MessageReference
from orthia.broker.core.queue.consumers import Consumers
from orthia.broker.core.queue.log import QueueLog
from orthia.broker.core.queue.pace import Pace
from orthia.broker.core.queue.reader import WindowReader
from orthia.broker.core.queue.services import QueueServices
from orthia.broker.core.queue.subscriptions import QueueSubscription, Source
from orthia.broker.core.queue.unsettled import Unsettled
from orthia.broker.core.selectors import Selector


class DeliveringQueue(Source[MessageReference]):
    """The queue with its parts, as its deliveries see it."""

    __slots__ = (
        "is_leaving", "log", "pace", "picking", "reader", "services", "takers", "undecided",
        "unsettled",
    )  # fmt: skip

    is_leaving: bool
    """Whether it is being deleted: nobody may use it any more."""
    log: QueueLog
    pace: Pace
    picking: int
    """Operations under way that take messages out of its middle, a few at a time."""
    reader: WindowReader
    services: QueueServices
    takers: Consumers
    """Those that take messages out of it."""
    unsettled: Unsettled
    undecided: int
    """Units on their way that take messages out, and may be refused yet."""

    @property
    @abstractmethod
    def reads_at_head(self) -> bool:
        """Whether there are consumers that are delivered to from the head."""

    @abstractmethod
    def dispatch(self) -> bool:
        """Deliver while there is a message, a consumer that takes it, and a valid lease.

        What that leaves to do is done in later turns of the loop. Return whether nothing is left.
        """

    @abstractmethod
    def hand_out(self, reference: MessageReference) -> MessageReference | None:
        """Count a message as delivered; None if it has expired, or waits for its redelivery."""

    @abstractmethod
    def move_expired(self, reference: MessageReference) -> None:
        """Move a message that has expired to the expiry address, or drop it."""

    @abstractmethod
    def keep_groups(self) -> None:
        """Keep groups together from here on: a message of one came."""

    @abstractmethod
    def deliver_from_head(self) -> None:
        """Deliver from the head: all consumers want every message."""

    @abstractmethod
    def window_answered(self) -> None:
        """Note that a window came that was asked for to refill the log."""

    @abstractmethod
    def restore(self, references: Sequence[MessageReference]) -> None:
        """Count as delivered again what was acknowledged: the rows stay."""


class Delivery(ABC):
    """What delivers the messages of a queue; all calls on the loop's thread."""

    __slots__ = ()

    @abstractmethod
    def attach(
        self,
        consumer: Consumer,
        prefetch: int,
        max_bytes: int,
        selector: Selector | None,
    ) -> QueueSubscription:
        """Add a consumer, which gets what the selector matches; None matches every message."""

    @abstractmethod
    def detach(self, subscription: QueueSubscription) -> None:
        """Deliver nothing more to a consumer that was closed."""

    @abstractmethod
    def join(self, subscription: QueueSubscription) -> None:
        """Ask a consumer again whether it wants more."""

    @abstractmethod
    def resume(self) -> None:
        """Look again for what can be delivered by the next ``dispatch``."""

    @abstractmethod
    def dispatch(self) -> bool:
        """Deliver while there is a message, a consumer that takes it, and a valid lease.

        What that leaves to do is done in later turns of the loop. Return whether nothing is left.
        """
