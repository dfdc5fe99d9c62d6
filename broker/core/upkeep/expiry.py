# mypyc compiles this module.
"""When messages expire, and finding those that have: also where nobody consumes.

A sender says when by ``expires``; the address may say otherwise, by Artemis' settings:

| setting            | what it does                                                                |
|--------------------|-----------------------------------------------------------------------------|
| `no-expiry`        | nothing expires                                                             |
| `expiry-delay`     | a message without ``expires`` expires so long after it was sent             |
| `max-expiry-delay` | without `expiry-delay`: none expires later, nor never                       |
| `min-expiry-delay` | without `expiry-delay`: none expires earlier; without a `max-expiry-delay`, |
|                    | one without ``expires`` does then                                           |

The same is so of what a divert takes to an address, and of dead letters and what has expired there,
unless the address is its own expiry-address.

A message that is found to have expired when it is in turn is never delivered. The others are looked
for every ``message-expiry-scan-period``, by the store's index on their moments and by its clock, a
bounded number at a time; what a consumer has is left to it.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from orthia.broker.core.failures import by_itself
from orthia.broker.core.queue.queue import Queue
from orthia.broker.core.queue.removal import expire
from orthia.broker.core.queue.taken import ExpiryLook
from orthia.broker.core.slices import GO_ON, Slices, Steps
from orthia.broker.core.timers import Timers
from orthia.broker.quoting import quoted
from orthia.config.address_settings import AddressSettings
from orthia.config.addresses import ResolvedAddressSettings
from orthia.config.errors import OrthiaError
from orthia.journal.abc import MessageJournal
from orthia.journal.errors import JournalClosed
from orthia.journal.model.message import Message
from orthia.journal.model.moments import FIRST_MOMENT, MomentKind, MomentPlace
from orthia.journal.model.unit import Unit
from orthia.journal.model.windows import Reached, StoredMessage

LOGGER = logging.getLogger("orthia.broker")
LATEST_MS: Final = 10**18 - 1
"""The latest moment at which a message expires: the greatest that a sender may say."""

_AT_ONCE: Final = 500
_BYTES_AT_ONCE: Final = 4 * 1024 * 1024
_MOVED_AT_ONCE: Final = 16
"""How many messages of a queue are moved before others have a turn."""
_LOOKED_AT_ONCE: Final = 256
"""How many queues are looked at for some of theirs before others have a turn."""


def says_when(settings: AddressSettings) -> bool:
    """Return whether settings have messages expire, or say of their time, what no sender says."""
    delays = (settings.expiry_delay, settings.min_expiry_delay, settings.max_expiry_delay)
    return bool(settings.no_expiry or settings.enable_ingress_timestamp) or any(
        one is not None and one >= 0 for one in delays
    )


def expires_at(settings: ResolvedAddressSettings, expires_ms: int, now_ms: int) -> int:
    """Return when a message expires that is sent now; 0 is never."""
    if settings.no_expiry:
        return 0
    if settings.expiry_delay >= 0:
        return expires_ms or min(now_ms + settings.expiry_delay, LATEST_MS)
    latest, earliest = settings.max_expiry_delay, settings.min_expiry_delay
    if latest >= 0 and (not expires_ms or expires_ms > now_ms + latest):
        return min(now_ms + latest, LATEST_MS)
    if earliest >= 0 and expires_ms < now_ms + earliest:
        return min(now_ms + earliest, LATEST_MS)
    return expires_ms


class AddressExpiry:
    """Has messages expire as the settings of their addresses say; on the loop's thread.

    And has those that are sent say when they came, where ``enable-ingress-timestamp`` is set.
    """

    def __init__(
        self, settings_of: Callable[[str], ResolvedAddressSettings], time_ms: Callable[[], int]
    ) -> None:
        self._settings_of = settings_of
        self._time_ms = time_ms

    def sent(self, record: Message) -> Message:
        """Return a message as its address has it that was sent just now."""
        settings = self._settings_of(record.address)
        if settings.enable_ingress_timestamp:
            record = record.stamped()
        return self._at(record, settings, record.timestamp_ms)

    def forwarded(self, record: Message) -> Message:
        """Return a message as the address has it to which a divert takes it."""
        return self._at(record, self._settings_of(record.address), self._time_ms())

    def undeliverable(self, record: Message) -> Message:
        """Return a dead letter, or what has expired, as the address has it to which it is moved.

        Where that is its own expiry-address it stays: it would be moved there for ever.
        """
        settings = self._settings_of(record.address)
        if settings.expiry_address == record.address:
            return record
        return self._at(record, settings, self._time_ms())

    def _at(self, record: Message, settings: ResolvedAddressSettings, now_ms: int) -> Message:
        expires_ms = expires_at(settings, record.expires_ms, now_ms)
        return record if expires_ms == record.expires_ms else record.expiring(expires_ms)


class ExpiryScan:
    """Looks for expired messages; on the loop's thread."""

    def __init__(
        self,
        journal: MessageJournal,
        queues: Callable[[], Iterable[Queue]],
        timers: Timers,
        slices: Slices,
        period_ms: int,
        look: ExpiryLook,
    ) -> None:
        self._journal = journal
        self._slices = slices
        self._queues = queues
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
            self.start()  # what expires is work for the journal
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
            LOGGER.error("what has expired cannot be read, and is tried again: %s", reached)
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
        for number, queue in enumerate(self._queues() if by_queue else (), 1):
            for queue_id in queue.ids:
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

        unit = Unit(go_on)  # behind all that was moved
        unit.forget_times(reached.gone)
        self._journal.append_unit(unit)

    def _expire(self, queue: Queue, messages: Sequence[StoredMessage], queue_id: int) -> None:
        with by_itself("queue %s: what has expired cannot be taken out", quoted(queue.name)):
            expire(queue, messages, queue_id, self._timers.time_ms())

    @contextmanager
    def _until_it_fails(self) -> Iterator[None]:
        """Have what fails end this look and not the next, and a journal that is closed all."""
        try:
            yield
        except JournalClosed:
            pass  # this node is ending
        except MemoryError:
            raise
        except Exception:
            LOGGER.exception("the look for what has expired failed, and is tried again")
            self.start()
            self._under_way.end()
