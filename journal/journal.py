"""The journal as the broker uses it.

Every call and every callback happens on one thread, the event loop's, unless a docstring says
otherwise. Callbacks come through the ``post`` that the journal was made with, so never from within
the call they answer, and the ``done`` of stored units come in the order the units were appended. A
callback does not raise.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import partial
from typing import TypeVar

from orthia.config.errors import OrthiaError
from orthia.journal.engine.abc import Recovered, Windows
from orthia.journal.engine.acks import AckReader
from orthia.journal.engine.batch import BatchReport
from orthia.journal.engine.intake import Intake
from orthia.journal.engine.large import LargeMessages
from orthia.journal.engine.locks import NO_LOCKS, LocksSeen
from orthia.journal.engine.outbox import OutboxReader
from orthia.journal.errors import JournalClosed
from orthia.journal.model.changes import MessageLocation
from orthia.journal.model.history import HistoryTotals
from orthia.journal.model.moments import MomentKind, MomentPlace
from orthia.journal.model.unit import Binding, Done, Refused, Sender, Unit
from orthia.journal.model.windows import QueueCounts, QueuePlace, Reached, Window

_Answer = TypeVar("_Answer")


class MessageJournal(ABC):
    """A journal opened under one fencing token.

    A batch that fails for good (the fence refused it, the lease ended, the store refuses all)
    ends the journal: its ``on_failure`` is called once, no caller of that batch or of any
    later one is completed, and every call raises ``JournalClosed``: the node stops, and its clients
    send again to the next. A unit that the store refuses while it takes others is refused alone,
    where it says whom to tell; see ``orthia.journal.engine.retry``. What can be refused beforehand
    is: see ``RecordTooLarge``.
    """

    intake: Intake
    """What gives out ids, and completes the callers of what is stored."""
    windows: Windows
    recovered: Recovered
    large: LargeMessages | None = None
    """The bodies outside the journal; None where nothing is stored."""
    outbox: OutboxReader | None = None
    """What applications send by SQL; None where that is off."""
    acks: AckReader | None = None
    """What applications acknowledge by SQL; None where they cannot."""
    max_record_bytes: int
    """The largest encoded message; RecordTooLarge is raised for larger ones."""
    refusal: str | None = None
    """Why nothing is taken any more, once that is so."""

    @abstractmethod
    def ask(
        self, read: Callable[[], _Answer], done: Callable[[_Answer | OrthiaError], None]
    ) -> None:
        """Call ``read``, in turn with others, and ``done`` with what it returns or raises."""

    @abstractmethod
    def register_full_listener(self, callback: Callable[[OrthiaError | None], None]) -> None:
        """Call ``callback`` when the store has no room for messages, and why.

        With None when it has room again. Until then what is appended is refused, but for deletes.
        """

    @abstractmethod
    def close(self, *, drain: bool) -> bool:
        """Take no more work and stop, within the limits' time-out; may be called on any thread.

        With ``drain`` what waits is stored first and its callers are completed; without, nothing
        is written or completed any more. Returns True if nothing was left unstored. A second call
        returns what is true by then.
        """

    @property
    def bindings(self) -> list[Binding]:
        """Queues and addresses as they were when the journal was opened."""
        return self.recovered.bindings

    @property
    def recovery_horizon(self) -> int:
        """Rows up to this seq may be of earlier epochs; what is appended now is above it."""
        return self.recovered.horizon

    @property
    def last_committed_seq(self) -> int:
        """Everything appended up to this seq is stored and its ``done`` called or being called.

        The highest sensible ``up_to_seq`` of a window: no message is then met twice.
        """
        return self.intake.last_committed_seq

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
    def is_full(self) -> bool:
        """True while more waits for the store than the limits allow: stop reading from clients.

        Appending still works, so that what was already read need not be thrown away.
        """
        return self.intake.is_full

    def next_id(self) -> int:
        """Return an id never used before, as a seq is, by this journal or any before it."""
        self._refuse_if_closed()
        return self.intake.next_id()

    def append_message(
        self,
        queue_id: int,
        payload: bytes,
        done: Done | None,
        refused: Refused | None = None,
        sender: Sender | None = None,
        outbox_row: int = 0,
    ) -> int:
        """Store an encoded message for one queue and return its seq; ``done`` follows the commit.

        ``refused`` is called instead if the store takes others and not this, or has no room, or if
        something that ``sender`` sent before was refused; see ``orthia.journal.engine.senders``.
        With ``outbox_row`` that row of the outbox is deleted with it.
        Raises JournalClosed, RecordTooLarge.
        """
        if self.refusal is not None:  # as ``_refuse_if_closed``: the hot path
            raise JournalClosed(self.refusal)
        return self.intake.message(queue_id, payload, done, refused, sender, outbox_row)

    def append_unit(self, unit: Unit) -> list[MessageLocation]:
        """Store ``unit`` atomically; ``unit.done`` follows the commit.

        Returns where each message will be, one location a queue, in the order added.
        Raises JournalClosed, RecordTooLarge.
        """
        self._refuse_if_closed()
        return self.intake.unit(unit)

    def delete(self, locations: Iterable[MessageLocation], done: Done | None = None) -> None:
        """Delete messages atomically; raises JournalClosed."""
        self._refuse_if_closed()
        self.intake.deletion(locations, done)

    def add_binding(self, binding: Binding, done: Done | None = None) -> None:
        """Store a queue or an address under its id, which came from ``next_id``."""
        unit = Unit(done)
        unit.add_binding(binding)
        self.append_unit(unit)

    def delete_binding(self, binding_id: int, done: Done | None = None) -> None:
        """Delete the binding of a queue or an address."""
        unit = Unit(done)
        unit.delete_binding(binding_id)
        self.append_unit(unit)

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
        self._refuse_if_closed()
        read = self.windows.window
        self.ask(partial(read, queue_id, after_seq, up_to_seq, max_messages, max_bytes), done)

    def count(
        self,
        after: QueuePlace,
        up_to_seq: int,
        limit: int,
        done: Callable[[QueueCounts | OrthiaError], None],
    ) -> None:
        """Count the messages behind ``after``, queue by queue, those with ``seq <= up_to_seq``.

        One call looks at ``limit`` messages at most, however many queues they are in. Answered in
        turn with the windows. Raises JournalClosed.
        """
        self._refuse_if_closed()
        self.ask(partial(self.windows.count, after, up_to_seq, limit), done)

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
        self._refuse_if_closed()
        self.ask(partial(self.windows.reached, kind, after, up_to_ms, limit, max_bytes), done)

    def read_timed(
        self,
        kind: MomentKind,
        after: MomentPlace,
        queue_ids: Collection[int] | None,
        limit: int,
        max_bytes: int,
        done: Callable[[Reached | OrthiaError], None],
    ) -> None:
        """Read messages that have a moment of a kind, the first ones first, for people to see.

        Of ``limit`` behind ``after``, those of ``queue_ids``; ``next_after`` says where to go on.
        Answered in turn with the windows. Raises JournalClosed.
        """
        self._refuse_if_closed()
        self.ask(partial(self.windows.timed, kind, after, queue_ids, limit, max_bytes), done)

    def find_queue(self, seq: int, done: Callable[[int | OrthiaError | None], None]) -> None:
        """Find what a message is stored under, by its seq alone; raises JournalClosed."""
        self._refuse_if_closed()
        self.ask(partial(self.windows.queue_of, seq), done)

    def complete_in_steps(self, run: Callable[[Iterator[bool]], object]) -> None:
        """Let ``run`` do, in turns with other work, what follows units that have many messages.

        Callers are completed in order all the same. Without it, all is done in one piece.
        """
        self.intake.run = run

    def register_room_listener(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` each time the journal stops being full."""
        self.intake.register_room_listener(callback)

    def register_batch_listener(self, callback: Callable[[BatchReport], None]) -> None:
        """Call ``callback`` after each commit, when the callers of it are completed."""
        self.intake.register_batch_listener(callback)

    def _refuse_if_closed(self) -> None:
        if self.refusal is not None:
            raise JournalClosed(self.refusal)
