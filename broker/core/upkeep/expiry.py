# mypyc compiles this module.
"""The scan for expired messages, also in queues that nobody consumes from.

A message that has expired when its turn comes is never delivered. The others are looked for every
``message-expiry-scan-period``, by the store's index on their moments and by its clock, a bounded
number at a time. A message that a consumer has is left to the consumer.
"""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from orthia.broker.core.failures import by_itself
from orthia.broker.core.queue.queue import Queue
from orthia.broker.core.queue.removal import expire
from orthia.broker.core.queue.taken import ExpiryLook
from orthia.broker.core.routing.addresses import AddressBook
from orthia.broker.core.slices import GO_ON, Slices, Steps
from orthia.broker.core.timers import Timers
from orthia.broker.quoting import quoted
from orthia.config.errors import OrthiaError
from orthia.journal.errors import JournalClosed
from orthia.journal.journal import MessageJournal
from orthia.journal.model.moments import FIRST_MOMENT, MomentKind, MomentPlace
from orthia.journal.model.unit import Unit
from orthia.journal.model.windows import Reached, StoredMessage

LOGGER = logging.getLogger("orthia.broker")
_AT_ONCE: Final = 500
_BYTES_AT_ONCE: Final = 4 * 1024 * 1024
_MOVED_AT_ONCE: Final = 16
"""How many expired messages of a queue are moved in one step."""
_LOOKED_AT_ONCE: Final = 256
"""How many queues are asked for expired messages in one step."""


class ExpiryScan:
    """Looks for expired messages; on the loop's thread."""

    def __init__(
        self,
        journal: MessageJournal,
        book: AddressBook,
        timers: Timers,
        slices: Slices,
        period_ms: int,
        look: ExpiryLook,
    ) -> None:
        self._journal = journal
        self._slices = slices
        self._book = book
        self._timers = timers
        self._period_ms = period_ms
        self._under_way = look

    def start(self) -> None:
        """Look from now on, once in each period."""
        self._timers.call_later(self._period_ms, self._look)

    def _look(self) -> None:
        self._read(FIRST_MOMENT)

    def _read(self, after: MomentPlace) -> None:
        if self._journal.is_full:
            self.start()  # moving expired messages needs the journal
            return
        with self._until_it_fails():
            self._under_way.begin()
            self._journal.read_reached(
                MomentKind.EXPIRES,
                after,
                self._timers.time_ms(),
                _AT_ONCE,
                _BYTES_AT_ONCE,
                self._found,
            )

    def _found(self, reached: Reached | OrthiaError) -> None:
        if isinstance(reached, OrthiaError):
            LOGGER.error("reading expired messages failed: %s; retrying at the next scan", reached)
            self.start()
            self._under_way.end()
            return
        self._slices.run(self._taking_out(reached))

    def _taking_out(self, reached: Reached) -> Steps:
        with self._until_it_fails():
            yield from self._take_out(reached)

    def _take_out(self, reached: Reached) -> Steps:
        by_queue: dict[int, list[StoredMessage]] = {}
        for timed in reached.messages:
            by_queue.setdefault(timed.queue_id, []).append(timed.message)
        for number, queue in enumerate(self._book.consumable_queues() if by_queue else (), 1):
            for queue_id in queue.log.ids:
                messages = by_queue.pop(queue_id, ())
                for first in range(0, len(messages), _MOVED_AT_ONCE):
                    self._expire(queue, messages[first : first + _MOVED_AT_ONCE], queue_id)
                    yield GO_ON
            if not number % _LOOKED_AT_ONCE:
                yield GO_ON
        self._under_way.end()
        next_after = reached.next_after

        def go_on() -> None:
            if next_after is None:
                self.start()
            else:
                self._read(next_after)

        unit = Unit(go_on)  # stored behind everything that was moved
        unit.forget_times(reached.gone)
        self._journal.append_unit(unit)

    def _expire(self, queue: Queue, messages: Sequence[StoredMessage], queue_id: int) -> None:
        with by_itself("taking expired messages out of queue %s failed", quoted(queue.name)):
            expire(queue, messages, queue_id, self._timers.time_ms())

    @contextmanager
    def _until_it_fails(self) -> Iterator[None]:
        """End this scan, and not the next, if anything fails; end all if the journal is closed."""
        try:
            yield
        except JournalClosed:
            pass  # this node is ending
        except MemoryError:
            raise
        except Exception:
            LOGGER.exception("the scan for expired messages failed; retrying at the next one")
            self.start()
            self._under_way.end()
