"""What can go wrong in the journal; every error is an ``OrthiaError``."""

# ruff: noqa: N818  (the names are conditions an operator reads in a log, not classes of "Error")

from collections.abc import Collection
from pathlib import Path
from typing import Final

from orthia.config.errors import OrthiaError
from orthia.database import PermanentStoreError

_MOST_LISTED: Final = 5


class JournalError(OrthiaError):
    """Root of the journal's errors."""


class Fenced(JournalError):
    """The store refused a batch because a newer live node has advanced the fence.

    Nothing of the batch was stored. The node that meets it stops and never writes again.
    """

    def __init__(self, token: int) -> None:
        super().__init__(
            f"the journal refused a batch: fencing token {token} is no longer the newest, another"
            " node has become live; this node must stop"
        )
        self.token = token


class JournalIOError(JournalError):
    """The operating system refused to read or write a file of the journal."""


class JournalInUse(JournalError):
    """Another process has the journal open, or is opening it."""


class JournalDamaged(JournalError):
    """A file of the journal has changed after it was synced; nothing was skipped silently."""


class UnknownFormat(JournalError):
    """A file is of a version of the format that this Orthia does not know; it was left alone."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(
            f"{path} was written by another version of Orthia: {reason}. The files were left as"
            " they are; install the version that wrote them"
        )


class ForeignJournal(PermanentStoreError):
    """The files of a directory are another broker's; nothing was changed."""


class LeaseExpired(JournalError):
    """The node's lease ended by its own stopwatch before a batch was known to be stored."""


class JournalClosed(JournalError):
    """The journal was closed or has failed, and takes no more work."""


class TransactionError(JournalError):
    """A transaction cannot be prepared or resolved under this name."""


class RecordTooLarge(JournalError):
    """A record exceeds what the database takes in one row; nothing of its unit was accepted."""

    def __init__(self, size_bytes: int, max_bytes: int) -> None:
        super().__init__(
            f"a record of {size_bytes} bytes is too large for the journal, which takes"
            f" {max_bytes}; send a smaller message or raise the database's packet limit"
        )
        self.size_bytes = size_bytes
        self.max_bytes = max_bytes


class UnitRefused(JournalError):
    """The database stores others and not this unit, of which nothing is stored."""

    def __init__(self, reason: str) -> None:
        super().__init__(
            "the database does not store this, though it stores other messages; nothing of it is"
            f" stored, nor, where this ends the connection, any message sent behind it: {reason}"
        )


class OutboxRowsGone(PermanentStoreError):
    """Rows of the outbox that a batch takes are not there; nothing of the batch is stored."""

    def __init__(self, *, all_of_them: bool) -> None:
        super().__init__(
            "a row of the outbox is gone: somebody else has deleted it, and nothing of it is sent"
        )
        self.all_of_them = all_of_them
        """Whether none of the rows is there: so it is after a commit of the same batch."""


class AcknowledgedBefore(JournalError):
    """Applications acknowledged messages that a batch moves; nothing of the batch is stored."""

    def __init__(self, seqs: Collection[int]) -> None:
        listed = ", ".join(map(str, sorted(seqs)[:_MOST_LISTED]))
        more = ", ..." if len(seqs) > _MOST_LISTED else ""
        super().__init__(
            "an application has acknowledged in its own transaction what was to be moved (message"
            f" {listed}{more}): nothing is moved, and what was acknowledged is deleted"
        )
        self.seqs = frozenset(seqs)


class SentBehindRefused(JournalError):
    """Its sender was refused something before it, and is to send both again; it was not tried."""

    def __init__(self, reason: str) -> None:
        super().__init__(
            "this was sent behind a message that was refused, on the same connection; nothing of"
            f" it is stored, so that the order is kept when both are sent again: {reason}"
        )


class HeldElsewhere(JournalError):
    """Another session has locked rows that this deletes; nothing of it is stored."""

    def __init__(self) -> None:
        super().__init__(
            "another session of the database has locked a row that this deletes: nothing of it is"
            " stored, nor, where this ends the connection, any message sent behind it; send it"
            " again (which session it is, the node's log says)"
        )


class StoreFull(JournalError):
    """There is no room in the store for this, of which nothing is stored; try again later."""

    def __init__(self, reason: str) -> None:
        super().__init__(
            f"the store has no room left: messages are refused until there is room, and what is"
            f" stored is delivered and acknowledged; free disk space ({reason})"
        )


class LargeBodyError(JournalError):
    """The body of a large message could not be stored, or is not what it was when it was."""


class CorruptRecord(JournalError):
    """A stored record cannot be read. Its row stays in the table for a person to look at."""

    def __init__(self, seq: int, reason: str) -> None:
        super().__init__(
            f"the journal record with seq {seq} is corrupt: {reason}; its row was left in place"
        )
        self.seq = seq
        self.reason = reason
