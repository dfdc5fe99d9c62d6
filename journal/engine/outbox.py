"""A thread that reads the outbox for the loop, and waits where there is nothing to read.

It is asked for rows, and answers once some are committed. Between two looks it pauses: for no time
while rows come, and longer and longer while none do. A store that does not answer is asked again.
"""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple

from orthia.config.clock import monotonic_seconds
from orthia.journal.engine.abc import Outbox, OutboxRow
from orthia.journal.engine.lasting import LastingFailure
from orthia.journal.engine.retry import failure_of, pause_seconds
from orthia.journal.engine.worker import Worker

SHORTEST_PAUSE_SECONDS: Final = 0.002
COUNTED: Final = 10_000
"""Up to how many rows that wait are counted."""
COUNT_SECONDS: Final = 5.0
"""How often they are counted, while there are more than are read at once."""

Rows = Callable[[Sequence[OutboxRow]], None]


class _Request(NamedTuple):
    limit: int
    max_bytes: int
    done: Rows


@dataclass(frozen=True)
class UnreadRows:
    """How many rows were not read yet, at the last look."""

    count: int = 0
    """``COUNTED`` if there are so many or more."""


@dataclass(frozen=True)
class FirstLook:
    """What was in the outbox when this node became live."""

    waiting: int
    """Some more than ``COUNTED`` if there are so many or more."""
    oldest_ms: int | None
    """When the first row was inserted, milliseconds since 1970 UTC; None without any."""


class OutboxReader:
    """Reads the outbox on a thread of its own; ``ask`` and the answers are on the loop."""

    def __init__(
        self,
        outbox: Outbox,
        *,
        post: Callable[[Callable[[], None]], None],
        longest_pause_seconds: float,
        clock: Callable[[], float] = monotonic_seconds,
    ) -> None:
        """``post`` runs a callable on the loop, later, in order, from any thread."""
        self._outbox = outbox
        self._post = post
        self._longest_pause_seconds = longest_pause_seconds
        self._clock = clock
        self._count_again_seconds = 0.0
        self.unread = UnreadRows()
        """Any thread."""
        self.failure: str | None = None
        """Why the outbox cannot be read at present; any thread."""
        self._first_look: FirstLook | None = None
        self._has_looked = threading.Event()
        self._worker: Worker[_Request] = Worker("journal-outbox", self._run, ended=outbox.close)
        self._stopping = self._worker.stopping
        self.start = self._worker.start
        self.stop = self._worker.stop
        self.join = self._worker.join

    def first_look(self, wait_seconds: float) -> FirstLook | None:
        """Return what was in the outbox at the first look; None if that takes longer.

        On any thread but the loop's.
        """
        self._has_looked.wait(wait_seconds)
        return self._first_look

    def ask(self, limit: int, max_bytes: int, done: Rows) -> None:
        """Call ``done`` with rows that were not read before, once there are some."""
        self._worker.put(_Request(limit, max_bytes, done))

    def _run(self) -> None:
        while (request := self._worker.take()) is not None:
            rows = self._read(request)
            if rows is None:
                return
            self._worker.tell(self._post, partial(request.done, rows))

    def _read(self, request: _Request) -> Sequence[OutboxRow] | None:
        """Return the next rows, once there are some; None if it is told to stop."""
        pause, failures = SHORTEST_PAUSE_SECONDS, 0
        lasting = LastingFailure("reading the outbox has failed", self._clock)
        while not self._stopping.is_set():
            try:
                rows = self._outbox.next_rows(request.limit, request.max_bytes)
                self._count(has_more=len(rows) == request.limit)
                if not self._has_looked.is_set():
                    oldest = rows[0].created_ms if rows else None
                    self._first_look = FirstLook(len(rows) + self.unread.count, oldest)
                    self._has_looked.set()
                if not rows:
                    self._outbox.rest(pause, self._stopping)
            except Exception as error:  # noqa: BLE001 - nobody else would read the outbox
                failures += 1
                self.failure = failure_of("the outbox", error)
                lasting.failed(self.failure)
                self._outbox.start_over()
                self._stopping.wait(pause_seconds(failures))
                continue
            self.failure, failures = None, 0
            lasting.succeeded()
            if rows:
                return rows
            pause = min(2 * pause, self._longest_pause_seconds)
        return None

    def _count(self, *, has_more: bool) -> None:
        now = self._clock()
        if not has_more:
            self.unread, self._count_again_seconds = UnreadRows(), now
        elif now >= self._count_again_seconds:
            self.unread = UnreadRows(self._outbox.waiting(COUNTED))
            self._count_again_seconds = now + COUNT_SECONDS
