"""What is durable: records and their codec, the fenced group-commit writer, windows, recovery."""

from journal.api import (
    BatchReport,
    MessageJournal,
    QueueCounts,
    QueuePlace,
    StoredMessage,
    Window,
)
from journal.codec import (
    AddressBinding,
    MessageRecord,
    QueueBinding,
    decode_message,
    encode_message,
)
from journal.errors import (
    CorruptRecord,
    Fenced,
    JournalClosed,
    JournalError,
    LeaseExpired,
    RecordTooLarge,
)
from journal.headers import header_lines, headers_map
from journal.limits import JournalLimits
from journal.memory import MemoryJournal, MemoryStore
from journal.unit import Binding, Body, Done, MessageLocation, Unit

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
    "MessageJournal",
    "MessageLocation",
    "MessageRecord",
    "QueueBinding",
    "QueueCounts",
    "QueuePlace",
    "RecordTooLarge",
    "StoredMessage",
    "Unit",
    "Window",
    "decode_message",
    "encode_message",
    "header_lines",
    "headers_map",
]
