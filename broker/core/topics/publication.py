"""A message of a topic: one object for all of its subscribers."""

from orthia.broker.core.api import MessageReference
from orthia.broker.core.selectors import MessageProperties
from orthia.journal.model.message import Message
from orthia.journal.model.unit import Sender


class Publication:
    """A message of a topic, shared by its subscribers and by their protocols."""

    __slots__ = ("_properties", "holders", "record", "sender", "seq", "shared", "size")

    def __init__(self, seq: int, record: Message, size: int, sender: Sender | None = None) -> None:
        self.seq = seq
        self.record = record
        self.size = size
        """Bytes it counts for in memory."""
        self.shared: dict[object, bytes] | None = {}
        """See ``MessageReference.shared``; None once all subscribers have the message."""
        self.sender = sender
        """Which connection sent it; None for the broker."""
        self.holders = 0
        """How many subscribers hold it, and its topic; see ``TopicMemory``."""
        self._properties: MessageProperties | None = None

    def properties(self) -> MessageProperties:
        """Return the message as selectors see it, one object for all of them."""
        if self._properties is None:
            self._properties = MessageProperties(self.record)
        return self._properties


class PublishedReference(MessageReference):
    """One subscriber's copy of a publication."""

    __slots__ = ("publication",)

    publication: Publication
