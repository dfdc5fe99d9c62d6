"""Names the sessions that lock rows of the journal, in the log and for a metric.

The database is asked on a thread of its own: listing its sessions may take a while, and nobody
waits for it.
"""

import logging
from collections.abc import Callable, Sequence

from orthia.config.clock import monotonic_seconds
from orthia.config.errors import OrthiaError
from orthia.config.reminders import Reminder
from orthia.database.lock_holders import SessionWithLock
from orthia.journal.engine.locks import NO_LOCKS, LocksSeen, RowKey
from orthia.journal.engine.worker import Worker

LOGGER = logging.getLogger("orthia.journal")
FIRST_SECONDS = 1.0
"""How long a lock is in the way before it is logged: a short one does no harm."""
MOST_ROWS_ASKED_FOR = 50
MOST_NAMED = 5

WhoLocks = Callable[[Sequence[RowKey]], Sequence[SessionWithLock]]
"""Asks the database which sessions have locked rows, or a table if none is given; raises
OrthiaError with why they cannot be seen."""


class LockWatch:
    """Learns from the writer's thread of each lock that is in the way, and of the end of all.

    Without ``who_locks`` nobody is named.
    """

    def __init__(
        self, who_locks: WhoLocks | None = None, clock: Callable[[], float] = monotonic_seconds
    ) -> None:
        self._who_locks = who_locks
        self._clock = clock
        self._began_seconds = 0.0
        self._reminder: Reminder | None = None
        self._locks_table = False
        self._is_said = False
        self._put_aside = 0
        self._sessions: Sequence[SessionWithLock] = ()
        self._worker: Worker[Callable[[], None]] = Worker("journal-lock-watch", self._run)
        self.start = self._worker.start
        self.stop = self._worker.stop
        self.join = self._worker.join

    @property
    def seen(self) -> LocksSeen:
        """What is in the way now; any thread."""
        if self._reminder is None:
            return NO_LOCKS
        return LocksSeen(self._clock() - self._began_seconds, self._put_aside, self._sessions)

    def meets_lock(self, rows: Sequence[RowKey], put_aside: int) -> None:
        """Record that rows are locked, or a table, and how many units are put aside for that."""
        now = self._clock()
        self._put_aside = put_aside
        self._locks_table = self._locks_table or not rows
        if self._reminder is None:
            self._began_seconds = now
            self._reminder = Reminder(now, first_seconds=FIRST_SECONDS)
        seconds = self._reminder.due(now)
        if seconds is not None:
            self._is_said = True
            some = tuple(rows[:MOST_ROWS_ASKED_FOR])
            self._worker.put(lambda: self._name(some, put_aside, seconds))

    def table_is_free(self) -> None:
        """Record that something was stored: no table is locked any longer."""
        if self._locks_table and not self._put_aside:
            self.is_free()
        self._locks_table = False

    def is_free(self) -> None:
        """Record that no lock is in the way any longer."""
        if self._reminder is not None:
            seconds = self.seen.seconds
            self._reminder = None
            self._put_aside = 0
            if self._is_said:
                self._worker.put(lambda: self._say_free(seconds))
            self._is_said = False

    # --- on its own thread

    def _run(self) -> None:
        while (job := self._worker.take()) is not None:
            job()

    def _name(self, rows: Sequence[RowKey], put_aside: int, seconds: float) -> None:
        who = "another session of the database (it does not say which)"
        if self._who_locks is not None:
            try:
                self._sessions = self._who_locks(rows)
            except OrthiaError as error:
                self._sessions = ()
                who = f"another session of the database (asking which failed: {error})"
            else:
                if self._sessions:
                    who = " and ".join(one.description for one in self._sessions[:MOST_NAMED])
        if self._reminder is None:
            self._sessions = ()  # the lock is gone by now; the log still names who held it
        if rows:
            LOGGER.warning(
                "rows of the journal are locked by %s, for %.0f s now: %d units that delete them"
                " (usually acknowledgements) are put aside and retried until they are free; all"
                " others are stored",
                who,
                seconds,
                put_aside,
            )
        else:
            LOGGER.warning(
                "a table of the journal is locked by %s, for %.0f s now: nothing is stored until it"
                " is free; retrying",
                who,
                seconds,
            )

    def _say_free(self, seconds: float) -> None:
        self._sessions = ()
        LOGGER.warning(
            "no other session locks rows of the journal any longer, after %.1f s: what was put"
            " aside is stored",
            seconds,
        )
