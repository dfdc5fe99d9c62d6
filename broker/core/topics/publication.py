"""A message of a topic, of which there is one for all of its subscribers."""

from orthia.broker.core.api import Done, MessageReference, OnRefused
from orthia.broker.core.errors import BrokerError, LimitExceeded, NotLive
from orthia.broker.core.selectors import Said
from orthia.journal.errors import JournalClosed, RecordTooLarge
from orthia.journal.model.message import Message
from orthia.journal.model.unit import Sender


class Publication:
    """A message of a topic: one for all of its subscribers, and what their protocols share."""

    __slots__ = ("_said", "holders", "record", "sender", "seq", "shared", "size")

    def __init__(self, seq: int, record: Message, size: int, sender: Sender | None = None) -> None:
        self.seq = seq
        self.record = record
        self.size = size
        """Bytes it counts for in memory."""
        self.shared: dict[object, bytes] | None = {}
        """See ``MessageReference.shared``; None once nobody is given it at the same time."""
        self.sender = sender
        """Which connection sent it; None for the broker."""
        self.holders = 0
        """How many subscribers hold it, and its topic; see ``TopicMemory``."""
        self._said: Said | None = None

    def said(self) -> Said:
        """Return it as selectors see it: one for all of them."""
        if self._said is None:
            self._said = Said(self.record)
        return self._said


class PublishedReference(MessageReference):
    """What one subscriber has of a publication."""

    __slots__ = ("publication",)

    publication: Publication


def naming(on_stored: Done | None, on_refused: OnRefused) -> OnRefused:
    """Return what refuses with the callback that was given, whatever was made of it."""
    return lambda error, _: on_refused(error, on_stored)


def refusal_of_journal(error: RecordTooLarge | JournalClosed) -> BrokerError:
    """Return what it means to a client that the journal does not take a message."""
    return NotLive(str(error)) if isinstance(error, JournalClosed) else LimitExceeded(str(error))
