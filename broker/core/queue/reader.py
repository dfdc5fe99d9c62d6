# mypyc compiles this module.
"""Reading a queue's messages from the store: the only place that asks the journal for windows.

A read that fails is logged and repeated after a second. Rows that cannot be decoded are logged.
Once the journal is closed the node is ending, and the table is left to the next live node.
"""

import logging
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Final, NamedTuple

from orthia.broker.core.timers import Timers
from orthia.broker.quoting import quoted
from orthia.config.errors import OrthiaError
from orthia.journal.errors import JournalClosed
from orthia.journal.journal import MessageJournal
from orthia.journal.model.windows import Window

LOGGER = logging.getLogger("orthia.broker")
RETRY_MS: Final = 1_000
"""How long after a failed read it is repeated."""


class Span(NamedTuple):
    """Where messages are read: those of ``queue_id`` with ``after < seq <= up_to``."""

    queue_id: int
    after: int
    up_to: int


class ReadTurns:
    """Reads one window at a time for all who are shown something: others wait for one at most.

    Connections have their turns, and with each the next of its own: however many subscriptions one
    has, which may all look for what is not there, another waits for one window of it.
    """

    def __init__(self) -> None:
        self._waiting: OrderedDict[object, deque[Callable[[], bool]]] = OrderedDict()
        """The first is the connection whose window is on its way, if one is."""
        self._is_reading = False

    def ask(self, connection: object, read: Callable[[], bool]) -> None:
        """Call ``read`` in its turn; it returns whether it asked for a window."""
        self._waiting.setdefault(connection, deque()).append(read)
        self._next()

    def answered(self) -> None:
        """Note that the window came."""
        self._is_reading = False
        self._end_turn()
        self._next()

    def _next(self) -> None:
        while self._waiting and not self._is_reading:
            asked = next(iter(self._waiting.values()))
            self._is_reading = asked.popleft()()
            if not self._is_reading:
                self._end_turn()

    def _end_turn(self) -> None:
        connection, asked = self._waiting.popitem(last=False)
        if asked:
            self._waiting[connection] = asked


class WindowReader:
    """Reads windows of one queue; calls and callbacks on the loop's thread."""

    __slots__ = ("_journal", "_name", "_timers")

    def __init__(self, queue_name: str, journal: MessageJournal, timers: Timers) -> None:
        self._name = queue_name
        self._journal = journal
        self._timers = timers

    def read(
        self,
        span: Span,
        max_messages: int,
        max_bytes: int,
        answered: Callable[[Window | None], None],
        again: Callable[[], None] | None = None,
    ) -> bool:
        """Read a window; return False if the journal is closed: then nothing is called.

        ``answered`` gets the window, or None if the read failed. After a failure ``again`` is
        called in a second; without it the failure is neither logged nor repeated.
        """

        def done(window: Window | OrthiaError) -> None:
            if isinstance(window, OrthiaError):
                if again is not None:
                    LOGGER.error(
                        "queue %s: reading the store failed: %s; retrying in %d s",
                        quoted(self._name),
                        window,
                        RETRY_MS // 1_000,
                    )
                    self._timers.call_later(RETRY_MS, again)
                answered(None)
                return
            answered(window)

        try:
            self._journal.read_window(
                span.queue_id, span.after, span.up_to, max_messages, max_bytes, done
            )
        except JournalClosed:
            return False
        return True

    def report_corrupt(self, window: Window) -> None:
        """Log the rows of a window that cannot be decoded; they stay in the table."""
        for corrupt in window.corrupt:
            LOGGER.error("queue %s: %s; its row stays in the table", quoted(self._name), corrupt)
