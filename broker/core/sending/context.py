# mypyc compiles this module.
"""What every send needs of its node: the journal, the clock, duplicate ids, large bodies."""

from collections.abc import Callable, Iterable

from orthia.broker.core.api import OutgoingMessage
from orthia.broker.core.errors import LimitExceeded, NotLive
from orthia.broker.core.limits.memory import size_in_memory
from orthia.broker.core.queue.newest import ValueCount
from orthia.broker.core.queue.queue import Queue
from orthia.broker.core.routing.address_expiry import as_sent
from orthia.broker.core.routing.addresses import AddressBook
from orthia.broker.core.sending.duplicates import DuplicateIds
from orthia.journal.errors import JournalClosed
from orthia.journal.journal import MessageJournal
from orthia.journal.model.message import LargeBody, Message, encode_message


class SendContext:
    """One for each node; on the loop's thread."""

    def __init__(
        self,
        journal: MessageJournal,
        time_ms: Callable[[], int],
        book: AddressBook,
        duplicates: DuplicateIds,
        *,
        persistent: bool,
    ) -> None:
        """``time_ms``, milliseconds since 1970 UTC, stamps messages.

        Unless ``persistent`` nothing is stored, whatever senders ask for.
        """
        self.journal = journal
        self.duplicates = duplicates
        self.persistent = persistent
        self.values = ValueCount()
        """How many values the last value queues of the node have."""
        self._large = journal.large
        self._time_ms = time_ms
        self._book = book

    def record(self, address: str, message: OutgoingMessage) -> Message:
        """Return a message as it is stored and delivered, stamped with this moment."""
        now_ms = self._time_ms()
        # Unpacked: looking up each field of a tuple by its name takes several times as long.
        head, body, _, expires_ms, priority, large, encoding, stated, _, _ = message
        record = Message(address, head, body, now_ms, expires_ms, priority, large, encoding, stated)
        if self._book.rules.changes_messages:
            return as_sent(record, self._book.settings_of(address))
        return record

    def encoded(self, record: Message) -> bytes:
        """Return the bytes of a record; raises LimitExceeded."""
        try:
            return encode_message(record)
        except ValueError as error:
            raise LimitExceeded(str(error)) from None

    def refuse_if_full(self, queues: Iterable[Queue], record: Message) -> None:
        """Raise LimitExceeded if nothing is ever stored and memory has no room for a message."""
        if self.persistent:
            return
        size = size_in_memory(record)
        for queue in queues:
            if not queue.log.takes_in_memory(size):
                raise LimitExceeded(
                    f"queue {queue.name} has no room for this message: nothing is stored"
                    " (persistence-enabled is false), and max-size or global-max-size is reached"
                )

    def next_id(self) -> int:
        """Return the next seq, for what is not a message of the store; raises NotLive."""
        try:
            return self.journal.next_id()
        except JournalClosed as error:
            raise NotLive(str(error)) from None

    # --- large bodies

    def taken_over(self, bodies: Iterable[LargeBody]) -> None:
        """Count bodies with their messages from now on, no longer as uploads."""
        if self._large is not None:
            for body in bodies:
                self._large.taken_over(body.id)

    def pin(self, bodies: Iterable[LargeBody]) -> None:
        """Keep bodies until they are unpinned, even if no row refers to them."""
        if self._large is not None:
            for body in bodies:
                self._large.pin(body.id)

    def unpin(self, bodies: Iterable[LargeBody]) -> None:
        """Undo ``pin``, or the pin of an upload, once a message is placed or refused."""
        if self._large is not None:
            for body in bodies:
                self._large.unpin(body.id)
