"""What the broker asks of a journal, whatever it is kept in.

Every call and every callback happens on one thread, the event loop's, unless a docstring says
otherwise. Callbacks come through the ``post`` the journal was opened with, so never from within
the call they answer, and the ``done`` of stored units come in the order they were appended. A
callback does not raise.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator

from orthia.config.errors import OrthiaError
from orthia.journal.engine.batch import BatchReport
from orthia.journal.engine.large import LargeMessages
from orthia.journal.engine.locks import NO_LOCKS, LocksSeen
from orthia.journal.model.changes import MessageLocation
from orthia.journal.model.history import HistoryTotals
from orthia.journal.model.moments import MomentKind, MomentPlace
from orthia.journal.model.unit import Binding, Done, Refused, Sender, Unit
from orthia.journal.model.windows import QueueCounts, QueuePlace, Reached, Window


class MessageJournal(ABC):
    """A journal opened under one fencing token."""

    bindings: list[Binding]
    """Queues and addresses as they were when the journal was opened."""
    recovery_horizon: int
    """Rows up to this seq may be of earlier epochs; everything appended now is above it."""
    max_record_bytes: int
    """The largest encoded message the store takes; RecordTooLarge is raised for larger ones."""
    large: LargeMessages | None = None
    """The bodies outside the journal; None where nothing is stored."""

    @property
    @abstractmethod
    def last_committed_seq(self) -> int:
        """Everything appended up to this seq is stored and its ``done`` called or being called.

        The highest sensible ``up_to_seq`` of a window: no message is then met twice.
        """

    @property
    def history_totals(self) -> HistoryTotals | None:
        """What retention keeps, at its last look; None without retention. Any thread."""
        return None

    @property
    def locks(self) -> LocksSeen:
        """Locks of other sessions of the database that are in the way; any thread."""
        return NO_LOCKS

    def reusable_bytes(self) -> int:
        """Return how many bytes of the store's own files are free; may block, any thread.

        Raises OrthiaError.
        """
        return 0

    @property
    @abstractmethod
    def is_full(self) -> bool:
        """True while more waits for the store than the limits allow: stop reading from clients.

        Appending still works, so that what was already read need not be thrown away.
        """

    @abstractmethod
    def next_id(self) -> int:
        """Return an id never used before, as a seq is, by this journal or any before it."""

    @abstractmethod
    def append_message(
        self,
        queue_id: int,
        payload: bytes,
        done: Done | None,
        refused: Refused | None = None,
        sender: Sender | None = None,
    ) -> int:
        """Store an encoded message for one queue and return its seq; ``done`` follows the commit.

        ``refused`` is called instead if the store takes others and not this, or has no room, or if
        something that ``sender`` sent before was refused; see ``orthia.journal.engine.senders``.
        Raises JournalClosed, RecordTooLarge.
        """

    @abstractmethod
    def append_unit(self, unit: Unit) -> list[MessageLocation]:
        """Store ``unit`` atomically; ``unit.done`` follows the commit.

        Returns where each message will be, one location a queue, in the order added.
        Raises JournalClosed, RecordTooLarge.
        """

    @abstractmethod
    def delete(self, locations: Iterable[MessageLocation], done: Done | None = None) -> None:
        """Delete messages atomically; raises JournalClosed."""

    @abstractmethod
    def read_window(
        self,
        queue_id: int,
        after_seq: int,
        up_to_seq: int,
        max_messages: int,
        max_bytes: int,
        done: Callable[[Window | OrthiaError], None],
    ) -> None:
        """Read a queue's messages with ``after_seq < seq <= up_to_seq``, oldest first.

        A window ends before the message that would exceed ``max_bytes`` of payload, but always
        has the first one. ``done`` gets an error if the store cannot be read any more. Nothing is
        called once the journal is closed. Raises JournalClosed.
        """

    @abstractmethod
    def count(
        self,
        after: QueuePlace,
        up_to_seq: int,
        limit: int,
        done: Callable[[QueueCounts | OrthiaError], None],
    ) -> None:
        """Count the messages behind ``after``, queue by queue, those with ``seq <= up_to_seq``.

        What one call looks at is bounded by ``limit`` messages, however many queues they are in.
        Answered in turn with the windows. Raises JournalClosed.
        """

    @abstractmethod
    def read_reached(
        self,
        kind: MomentKind,
        after: MomentPlace,
        up_to_ms: int,
        limit: int,
        max_bytes: int,
        done: Callable[[Reached | OrthiaError], None],
    ) -> None:
        """Read messages whose moment of a kind has come by ``up_to_ms``, the first ones first.

        And by the store's own clock: whatever the caller believes, none is read too early. They
        are ``limit`` at most, and end before the one that would exceed ``max_bytes`` of payload,
        but there is always the first. Answered in turn with the windows. Raises JournalClosed.
        """

    @abstractmethod
    def complete_in_steps(self, run: Callable[[Iterator[bool]], object]) -> None:
        """Have ``run`` do, in turns with other work, what follows units that have many messages.

        Callers are completed in order all the same. Without it, all is done in one piece.
        """

    @abstractmethod
    def register_room_listener(self, callback: Callable[[], None]) -> None:
        """Have ``callback`` called each time the journal stops being full."""

    @abstractmethod
    def register_batch_listener(self, callback: Callable[[BatchReport], None]) -> None:
        """Have ``callback`` called after each commit, when the callers of it are completed."""

    def register_full_listener(  # noqa: B027 - a default: not every store can be full
        self, callback: Callable[[OrthiaError | None], None]
    ) -> None:
        """Have ``callback`` called when the store has no room for messages, and why.

        With None when it has room again. Until then what is appended is refused, but for deletes.
        """

    @abstractmethod
    def close(self, *, drain: bool) -> bool:
        """Take no more work and stop, within the limits' time-out; may be called on any thread.

        With ``drain`` what waits is stored first and its callers are completed; without, nothing
        is written or completed any more. Returns True if nothing was left unstored. A second call
        returns what is true by then.
        """

    def add_binding(self, binding: Binding, done: Done | None = None) -> None:
        """Store a queue or an address under its id, which came from ``next_id``."""
        unit = Unit(done)
        unit.add_binding(binding)
        self.append_unit(unit)

    def delete_binding(self, binding_id: int, done: Done | None = None) -> None:
        """Delete a queue's or an address' binding."""
        unit = Unit(done)
        unit.delete_binding(binding_id)
        self.append_unit(unit)
