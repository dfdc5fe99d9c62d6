"""What the engine asks of a store: where batches go, windows come from, and bodies are."""

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from orthia.database import NoRoom
from orthia.journal.engine.batch import Batch, Marker, probe
from orthia.journal.engine.locks import RowKey
from orthia.journal.model.history import Kept, KeptRow
from orthia.journal.model.moments import MomentKind, MomentPlace
from orthia.journal.model.unit import Binding
from orthia.journal.model.windows import (
    QueueCounts,
    QueuedMessage,
    QueuePlace,
    Reached,
    Window,
)

ROOM_BYTES = 262_144
"""How much a full store must take before it counts as having room: with less, the next message
would be refused again."""
CERTAIN_ROWS = 64
"""Up to how many locked rows a store reports exactly."""
PIECE_BYTES = 262_144
"""The size of each piece of a body but the last. Part of the format: files are read by it."""


@dataclass(frozen=True)
class Recovered:
    """What was found when the journal was opened."""

    bindings: list[Binding]
    horizon: int
    """The highest id that may ever have been given out."""


class BatchStore(ABC):
    """The writer's own connection to one DBMS; used by one thread at a time.

    Every method raises ``database.StoreError``; after one the connection is used again only if
    the error was a ``TransientStoreError``.
    """

    max_record_bytes: int
    """The largest record one row takes; known once connected."""

    keep_alive_seconds: float | None = None
    """How often ``keep_alive`` is due while nothing is stored; None is never. Known once connected.
    """

    @abstractmethod
    def connect(self) -> None:
        """Open the connection, or a new one in place of the present one.

        The former session is ended in the database first, so that its transaction is either
        committed or rolled back, and ``is_stored`` stays true.
        """

    def give_room(self) -> None:  # noqa: B027 - a default: most servers keep none
        """Release the reserve for a full disk, before ``connect``; never raises."""

    @abstractmethod
    def store(self, batch: Batch) -> None:
        """Store ``batch`` in one transaction that proves the fence; returns after the commit.

        Raises Fenced if the token is not the newest, and AcknowledgedBefore if applications have
        acknowledged messages that it moves; after that the connection is used again.
        """

    @abstractmethod
    def is_stored(self, marker: Marker) -> bool:
        """Return whether the row exists, written under this store's token."""

    @abstractmethod
    def confirm(self) -> None:
        """Commit a change of the journal's counter, under the fence; returns after the commit.

        A visible row is committed, but perhaps not as durably as a commit that was answered: a
        session that ends while its commit waits for a standby leaves the row visible and the
        standby without it. A later commit waits until the standby has both. A server that is read
        only confirms nothing. Raises Fenced.
        """

    @abstractmethod
    def duplicate_ids(self, cache_id: int) -> Iterable[tuple[int, bytes]]:
        """Return the seqs and records of an id cache's rows, in the order of seq."""

    rows_looked_at: int = 16
    """How many rows ``locked`` is asked about at once."""

    def locked(self, rows: Sequence[RowKey]) -> Collection[RowKey]:  # noqa: ARG002 - a default
        """Return which of these rows another session has locked; changes nothing.

        If more than ``CERTAIN_ROWS`` are locked, it may include some that are not. Raises Fenced.
        """
        return ()

    def has_room(self) -> bool:
        """Return whether there is room for messages again, after ``NoRoom``; raises Fenced."""
        self.connect()
        try:
            self.store(probe(ROOM_BYTES))
        except NoRoom:
            return False
        return True

    def keep_alive(self) -> None:  # noqa: B027 - a default: most servers end no silent session
        """Send a query, so that the server does not end an idle session."""

    @abstractmethod
    def close(self) -> None:
        """Close the connection; never raises."""


class Windows(ABC):
    """Where windows and counts are read, on the reader's thread; raises OrthiaError."""

    @abstractmethod
    def window(
        self, queue_id: int, after_seq: int, up_to_seq: int, max_messages: int, max_bytes: int
    ) -> Window:
        """Read a window, with the failed deliveries that earlier nodes counted."""

    @abstractmethod
    def count(self, after: QueuePlace, up_to_seq: int, limit: int) -> QueueCounts:
        """Count messages queue by queue, at most ``limit``."""

    @abstractmethod
    def reached(
        self, kind: MomentKind, after: MomentPlace, up_to_ms: int, limit: int, max_bytes: int
    ) -> Reached:
        """Read messages whose moment of a kind has come, also by the store's clock."""

    def acknowledged(self, seqs: Collection[int]) -> set[int]:  # noqa: ARG002 - a default
        """Return which of these messages an application has acknowledged in the database."""
        return set()

    def stored(self, seqs: Collection[int]) -> list[QueuedMessage]:  # noqa: ARG002 - a default
        """Read these messages as far as they are there, can be read, and are of a queue."""
        return []

    @abstractmethod
    def timed(
        self,
        kind: MomentKind,
        after: MomentPlace,
        queue_ids: Collection[int] | None,
        limit: int,
        max_bytes: int,
    ) -> Reached:
        """Read messages that have a moment of a kind, whether or not that has come.

        Look at ``limit`` of all queues, and return those of ``queue_ids``.
        """

    @abstractmethod
    def queue_of(self, seq: int) -> int | None:
        """Return what the message with a seq is stored under; None if there is none."""

    @abstractmethod
    def close(self) -> None:
        """Close what is read through; nothing is read afterwards."""


class Piece(NamedTuple):
    """A part of a body."""

    body_id: int
    position: int
    """From 0; it begins at ``position * PIECE_BYTES``."""
    data: bytes


class BodyStore(ABC):
    """Where bodies are; writes and removals on one thread, reads on another.

    Every method blocks, and raises OrthiaError.
    """

    @abstractmethod
    def write(self, pieces: Sequence[Piece]) -> None:
        """Store pieces; repeating it does no harm. Raises Fenced where the store can tell."""

    @abstractmethod
    def finish(self, body_id: int) -> None:
        """Return when every piece of a body is durable."""

    @abstractmethod
    def read(self, body_id: int, position: int) -> bytes:
        """Return a piece; raises LargeBodyError if it is not there."""

    @abstractmethod
    def sweep(self, after_id: int, limit: int) -> tuple[list[int], int | None]:
        """Look at the first ``limit`` bodies above ``after_id``.

        Returns the ids of those that nothing refers to, and where to go on; None at the end.
        """

    @abstractmethod
    def remove(self, body_id: int) -> bool:
        """Do one step of removing a body that nothing refers to; return whether it was the last."""

    @abstractmethod
    def close(self) -> None:
        """Close what is open; never raises."""


class LeftTimes(ABC):
    """Rows of MESSAGE_TIMES whose message may be gone; every method blocks."""

    @abstractmethod
    def sweep(self, after_seq: int) -> tuple[int, int | None]:
        """Look at some rows above ``after_seq``, and delete those whose message is gone.

        Returns how many those were, and where to go on; None at the end. Raises Fenced, StoreError.
        """

    @abstractmethod
    def close(self) -> None:
        """Close what is open; never raises."""


class ApplicationAck(NamedTuple):
    """What an application acknowledged in its own transaction, which is committed."""

    seq: int
    """Of the message: its id for clients."""
    queue_id: int | None
    """Of the message's queue; None if the message is gone."""


class ApplicationAcks(ABC):
    """The committed acknowledgements of applications; used by one thread, every method blocks."""

    @abstractmethod
    def read(self, limit: int) -> Sequence[ApplicationAck]:
        """Return ``limit`` at most that were not returned before; raises StoreError.

        Some may come again, as long as they are there. Fewer than ``limit``: there are no others.
        """

    @abstractmethod
    def prune(self, seqs: Sequence[int]) -> set[int]:
        """Delete those whose message is gone, and return them; raises StoreError.

        They are not needed any more: what is in no queue cannot be acknowledged.
        """

    @abstractmethod
    def start_over(self) -> None:
        """Return all again: what was known of them may not hold any more."""

    @abstractmethod
    def close(self) -> None:
        """Close the connection; never raises."""


class History(ABC):
    """What retention keeps; every method blocks, and raises StoreError."""

    @abstractmethod
    def now(self) -> datetime:
        """Return the time by the clock that says when messages left their queues."""

    @abstractmethod
    def oldest(self) -> datetime | None:
        """Return when the oldest message left its queue; None if none is kept."""

    @abstractmethod
    def count(self, after: datetime | None, up_to: datetime | None) -> tuple[Kept, datetime | None]:
        """Count some of what was removed later than ``after`` and not later than ``up_to``.

        Returns also up to when; None if nothing is left.
        """

    @abstractmethod
    def prune(
        self, limit: int, choose: Callable[[datetime, Sequence[KeptRow]], list[KeptRow]]
    ) -> list[KeptRow]:
        """Delete what is chosen of the ``limit`` oldest rows and return it; one transaction.

        ``choose`` gets the time and these rows. Raises Fenced.
        """

    @abstractmethod
    def close(self) -> None:
        """Close what is open; never raises."""


class OutboxRow(NamedTuple):
    """A message that an application sent in its own transaction, which is committed."""

    id: int
    destination: str
    headers: str | None
    """A JSON object; None for none."""
    body: bytes
    created_ms: int
    """When it was inserted, milliseconds since 1970 UTC."""
    unread_bytes: int = 0
    """The size of a body that is longer than ``READ_BODY_BYTES``: ``body`` has nothing of it."""


class Outbox(ABC):
    """The committed rows of the outbox, in the order in which they are sent.

    Rows of one transaction come in the order of their inserts. Of two transactions of which one
    inserted only after the other was committed, that one comes later. One that is open holds
    nobody up, and comes once it is committed. Used by one thread; every method may block.

    No row takes more memory than ``orthia.config.outbox`` says, whatever is in the table: a longer
    body is left out, and of longer headers and destinations there is the beginning, which is longer
    than any that is valid.
    """

    @abstractmethod
    def next_rows(self, limit: int, max_bytes: int) -> list[OutboxRow]:
        """Return rows that were not returned before: ``limit`` at most, of so many bytes.

        There is always the first, however large; none if no other is committed. A row may come
        again, as long as it is there, where a connection was lost or rows were looked for that
        nothing else would find. Raises StoreError.
        """

    @abstractmethod
    def waiting(self, limit: int) -> int:
        """Count rows that were not returned yet, ``limit`` at most; raises StoreError."""

    @abstractmethod
    def start_over(self) -> None:
        """Return all rows again that are there: what was known of them may not hold any more."""

    def rest(self, seconds: float, stopping: threading.Event) -> None:
        """Wait until rows may be there, for about so long; raises StoreError."""
        stopping.wait(seconds)

    @abstractmethod
    def close(self) -> None:
        """Close the connection; never raises."""
