# mypyc compiles this module.
"""What a queue does beyond keeping messages in order, as hooks that the queue calls.

A policy never touches where the queue keeps its messages: it asks the queue to remove some.
"""

from abc import abstractmethod
from collections.abc import Sequence

from orthia.broker.core.api import MessageReference
from orthia.journal.model.changes import MessageLocation
from orthia.journal.model.message import Message


class Policy:
    """Hooks of one queue; a policy overrides those that it needs."""

    __slots__ = ()

    def opened(self) -> None:
        """Called once all that an earlier node left is bound to the queue."""

    def attaching(self) -> None:
        """Called before a consumer is attached; raises BrokerError to refuse it."""

    def consumers_gone(self) -> None:
        """Called when the last consumer has left."""

    def placed(self, reference: MessageReference) -> None:
        """Called when a new message is in the queue."""

    def going_out(self, reference: MessageReference) -> None:
        """Called before a message goes to a consumer."""

    def put_off(self, reference: MessageReference) -> None:
        """Called when a message that was going out waits for its redelivery instead."""

    def dispatched(self) -> None:
        """Called after a delivery that left nothing to do."""

    def returning(self, references: Sequence[MessageReference]) -> Sequence[MessageReference]:
        """Return those of the messages that consumers give back which the queue still keeps."""
        return references

    def returned(self, references: Sequence[MessageReference]) -> None:
        """Called when messages were given back."""

    def expiring(self, reference: MessageReference) -> None:
        """Called before a message leaves the queue because it has expired."""

    def gone(self, references: Sequence[MessageReference]) -> None:
        """Called when messages that consumers had, or that were moved, are gone for good."""

    def restored(self, references: Sequence[MessageReference]) -> None:
        """Called when the store refused to delete messages: consumers have them again."""

    def taken_back(self, reference: MessageReference) -> None:
        """Called when a message that could not be moved waits in the queue again."""

    def counted(self) -> None:
        """Called when more is counted of what an earlier node left."""

    def forgotten(self) -> None:
        """Called when the queue is deleted, and what it has in memory with it."""


class ReplacementPolicy(Policy):
    """What a queue, and whoever sends to it, asks where newer messages replace older ones."""

    __slots__ = ()

    @property
    @abstractmethod
    def is_ready(self) -> bool:
        """Whether it is known which messages were replaced: until then none is delivered."""

    @abstractmethod
    def is_current(self, queue_id: int, reference: MessageReference) -> bool:
        """Return whether a message was not replaced since it was read."""

    @abstractmethod
    def replaced_by(self, record: Message) -> tuple[bytes | None, MessageLocation | None]:
        """Return the key of a message that is to be stored, and what is deleted for it.

        The key is None if it replaces nothing. Raises LimitExceeded.
        """

    @abstractmethod
    def sent(
        self,
        key: bytes,
        record: Message,
        location: MessageLocation,
        replaces: MessageLocation | None,
    ) -> None:
        """Note where a message will be, once it is stored."""

    @abstractmethod
    def not_sent(self, key: bytes, location: MessageLocation) -> None:
        """Note that a message was not stored."""
