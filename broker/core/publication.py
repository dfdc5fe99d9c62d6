"""A message of a topic, of which there is one for all of its subscribers."""

from orthia.broker.core.api import MessageReference
from orthia.journal.message import Message
from orthia.journal.unit import Sender


class Publication:
    """A message of a topic: one for all of its subscribers, and what their frames share."""

    __slots__ = ("frames", "holders", "record", "sender", "seq", "size")

    def __init__(self, seq: int, record: Message, size: int, sender: Sender | None = None) -> None:
        self.seq = seq
        self.record = record
        self.size = size
        """Bytes it counts for in memory."""
        self.frames: dict[object, bytes] | None = {}
        """See ``MessageReference.shared``; None once nobody is given it at the same time."""
        self.sender = sender
        """Which connection sent it; None for the broker."""
        self.holders = 0
        """How many subscribers hold it, and its topic; see ``TopicMemory``."""


class PublishedReference(MessageReference):
    """What one subscriber has of a publication."""

    __slots__ = ("publication",)

    publication: Publication
