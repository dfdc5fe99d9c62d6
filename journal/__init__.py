"""What is durable: records and their codec, the fenced group-commit writer, windows, recovery."""

from orthia.journal.engine.batch import BatchReport
from orthia.journal.errors import (
    CorruptRecord,
    Fenced,
    JournalClosed,
    JournalError,
    LeaseExpired,
    RecordTooLarge,
)
from orthia.journal.journal import MessageJournal
from orthia.journal.limits import JournalLimits
from orthia.journal.memory import MemoryJournal, MemoryStore
from orthia.journal.model.changes import Body, MessageLocation
from orthia.journal.model.codec import AddressBinding, QueueBinding
from orthia.journal.model.message import Message, decode_message, encode_message
from orthia.journal.model.unit import Binding, Done, Unit
from orthia.journal.model.windows import QueueCounts, QueuePlace, StoredMessage, Window

__all__ = [
    "AddressBinding",
    "BatchReport",
    "Binding",
    "Body",
    "CorruptRecord",
    "Done",
    "Fenced",
    "JournalClosed",
    "JournalError",
    "JournalLimits",
    "LeaseExpired",
    "MemoryJournal",
    "MemoryStore",
    "Message",
    "MessageJournal",
    "MessageLocation",
    "QueueBinding",
    "QueueCounts",
    "QueuePlace",
    "RecordTooLarge",
    "StoredMessage",
    "Unit",
    "Window",
    "decode_message",
    "encode_message",
]
