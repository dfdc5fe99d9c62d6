# mypyc compiles this module.
"""The relay: what applications send by SQL, in their own transactions, becomes messages.

An application inserts a row into the outbox; once that is committed, the live node sends it as it
sends what a client sends: for a configured user, under the same permissions and limits. The unit
that stores the message also deletes the row, so a row becomes a message exactly once, whichever
nodes die.

=======================================  =========================================================
a row                                    what happens to it
=======================================  =========================================================
that is sent                             deleted in the transaction that stores its message
that cannot be read, routed or admitted  sent to the dead-letter address, with the reason
for which there is no room now           waits, and all behind it; tried again, or, where the
                                         address blocks, sent once there is room
that another session has locked          waits; those behind it are sent
that the store takes in no form          stays in the table; tried again every minute
whose body is too long to be read        stays in the table; looked at again every minute or so
that is gone before it is sent           was deleted by somebody else: nothing is sent
=======================================  =========================================================

Rows are sent in the order in which they are read. A unit that the store refuses is sent again
together with all that was sent behind it: the journal refuses those, too.
"""

import logging
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Final, NamedTuple

from orthia.broker.core.api import Done, RowReader, TransactionWork, waiting
from orthia.broker.core.destinations import parse
from orthia.broker.core.errors import BrokerError, NoRoomInStore, NotLive, QuotaExceeded
from orthia.broker.core.identity import Principal
from orthia.broker.core.queue.gate import DeliveryGate
from orthia.broker.core.routing.addresses import AddressBook
from orthia.broker.core.sending.plan import SendPlan
from orthia.broker.core.sending.post_office import PostOffice
from orthia.broker.core.sending.transaction import commit
from orthia.broker.core.slices import GO_ON, Slices, Steps, Wait
from orthia.broker.core.timers import Timers
from orthia.broker.quoting import quoted
from orthia.config.addresses import DEFAULT_DEAD_LETTER_ADDRESS, DROP
from orthia.config.errors import OrthiaError
from orthia.config.outbox import MAX_BODY_BYTES
from orthia.journal.engine.abc import OutboxRow
from orthia.journal.engine.outbox import OutboxReader
from orthia.journal.errors import (
    HeldElsewhere,
    JournalClosed,
    OutboxRowsGone,
    SentBehindRefused,
    StoreFull,
)
from orthia.journal.journal import MessageJournal
from orthia.journal.model.unit import Sender

LOGGER = logging.getLogger("orthia.broker")
ROWS_READ: Final = 500
"""Rows that are read at once."""
BYTES_READ: Final = 4 * 1024 * 1024
MOST_ROWS: Final = 2_000
"""Rows in memory, sent and not yet stored among them, above which no more are read."""
MOST_BYTES: Final = 8 * 1024 * 1024
MOST_LOCKED: Final = 1_000
"""Rows that others have locked above which all others wait, too."""
MOST_LOCKED_BYTES: Final = 64 * 1024 * 1024
"""The same of their size."""
_FIRST_RETRY_MS: Final = 100
_LAST_RETRY_MS: Final = 5_000
_LOCKED_RETRY_MS: Final = 1_000
_STUCK_RETRY_MS: Final = 60_000
_LONG_WAIT_MS: Final = 1_000
"""After how long an operator is told what rows wait for: a moment of it is back-pressure."""
_NOT_STORED_YET: Final = "the database has not stored yet what was sent before"


class RelayStatus(NamedTuple):
    """What an operator sees of the outbox."""

    waiting: int
    """Rows that are committed and not yet sent, as far as they were read or counted."""
    oldest_ms: int | None
    """When the oldest of them was inserted, milliseconds since 1970 UTC; None without any."""
    relayed: int
    """Rows that became messages since this node is live."""
    dead_lettered: int
    """Rows that went to a dead-letter address since then."""
    held: str | None
    """Why rows wait; None if nothing holds them."""


class _Sent:
    """A row on its way to the store."""

    __slots__ = ("is_dead_letter", "number", "row")

    def __init__(self, number: int, row: OutboxRow) -> None:
        self.number = number
        """Its place in the order."""
        self.row = row
        self.is_dead_letter = False


class Relay:
    """Sends the rows of the outbox; on the loop's thread."""

    def __init__(
        self,
        reader: OutboxReader,
        rows: RowReader,
        journal: MessageJournal,
        office: PostOffice,
        book: AddressBook,
        *,
        principal: Callable[[], Principal | None],
        user: str | None,
        gate: DeliveryGate,
        slices: Slices,
        timers: Timers,
    ) -> None:
        """``principal`` makes the one for whom messages are sent; None while there is no user."""
        self._reader = reader
        self._rows = rows
        self._journal = journal
        self._office = office
        self._book = book
        self._new_principal = principal
        self._user = user
        self._gate = gate
        self._slices = slices
        self._timers = timers
        self._principal: Principal | None = None
        self._unsent: deque[_Sent] = deque()
        self._in_flight: dict[int, _Sent] = {}
        """By the id of the row."""
        self._locked: dict[int, _Sent] = {}
        """The same of rows that others have locked, or that the store takes in no form."""
        self._refused_rows: list[_Sent] = []
        """To be sent again once nothing is on its way any more."""
        self._gone: set[int] = set()
        """Rows that were stored since the read under way began, which may still show them."""
        self._bytes = 0
        """Of all but the locked rows, which would stop the reading of others."""
        self._locked_bytes = 0
        self._number = 0
        self._is_reading = False
        self._is_sending = False
        self._room: Wait | None = None
        self._retry_ms = _FIRST_RETRY_MS
        self._held: str | None = None
        self._waits_for: Wait | None = None
        """Until what has happened a row waits that is being sent."""
        self._is_watched = False
        """Whether a timer will see if that lasts."""
        self._long_wait: str | None = None
        """For what it waits, once that lasts."""
        self._is_told = False
        """Whether the log has said why rows are held."""
        self._is_waiting = False
        """Whether a timer will go on."""
        self._relayed = 0
        self._dead_lettered = 0
        journal.register_room_listener(self._has_room)

    def start(self) -> None:
        """Begin to send."""
        self._go_on()

    @property
    def status(self) -> RelayStatus:
        """What an operator sees; any thread."""
        in_memory = len(self._unsent) + len(self._in_flight) + len(self._locked)
        in_memory += len(self._refused_rows)
        oldest = min(
            (
                one.row.created_ms
                for some in (self._in_flight, self._locked)
                for one in list(some.values())
            ),
            default=None,
        )
        unsent = next(iter(self._unsent.copy()), None)
        if unsent is not None:
            oldest = min(unsent.row.created_ms, oldest or unsent.row.created_ms)
        return RelayStatus(
            in_memory + self._reader.unread.count,
            oldest,
            self._relayed,
            self._dead_lettered,
            self._held or self._long_wait or self._locked_too_many or self._reader.failure,
        )

    # --- read

    def _read_on(self) -> None:
        """Ask for more rows, if there is room for them."""
        if self._is_reading or self._held is not None or not self._gate.is_running:
            return
        count = len(self._unsent) + len(self._in_flight) + len(self._refused_rows)
        if count + ROWS_READ > MOST_ROWS or self._bytes + BYTES_READ > MOST_BYTES:
            return
        self._is_reading = True
        self._gone.clear()
        self._reader.ask(ROWS_READ, BYTES_READ, self._came)

    def _came(self, rows: Sequence[OutboxRow]) -> None:
        self._is_reading = False
        if not self._gate.is_running:
            return
        self._look_up_user()
        known = {one.row.id for one in (*self._unsent, *self._refused_rows)}
        known.update(self._in_flight, self._locked, self._gone)
        for row in rows:
            if row.id not in known:
                self._number += 1
                self._bytes += _size(row)
                self._unsent.append(_Sent(self._number, row))
        self._go_on()

    def _look_up_user(self) -> None:
        """Take over the roles that the user has now; the sender stays, by whom order is kept."""
        if self._principal is not None:
            found = self._new_principal()
            if found is None:
                self._principal = None
            elif found.roles != self._principal.roles:
                self._principal = replace(self._principal, roles=found.roles)

    # --- send

    def _go_on(self) -> None:
        """Send what is there and read more, unless that is under way or held."""
        self._read_on()
        if self._has_work and not self._is_sending and self._held is None:
            self._is_sending = True
            self._slices.run(self._sending())

    @property
    def _has_work(self) -> bool:
        return bool(self._unsent or self._refused_rows)

    def _sending(self) -> Steps:
        try:
            while self._has_work and self._held is None and self._gate.is_running:
                if self._refused_rows and not self._in_flight:
                    self._put_back()  # the last one on its way ended in no answer of the journal
                if self._refused_rows or self._locked_too_many is not None:
                    return  # what was refused comes first
                if self._journal.is_full:
                    self._room = Wait(self._no_room_needed, lambda: _NOT_STORED_YET)
                    yield from self._watched(iter((self._room,)))
                    continue
                sent = self._unsent.popleft()
                try:
                    with closing(self._send(sent)) as steps:
                        yield from self._watched(steps)
                except NotLive:
                    return
                yield GO_ON
                self._read_on()
        finally:
            self._is_sending = False
        self._read_on()

    def _watched(self, steps: Steps) -> Steps:
        """Do steps, and have an operator told for what they wait long."""
        try:
            for rest in steps:
                if isinstance(rest, Wait):
                    self._waits_for = rest
                    self._watch()
                yield rest
                self._waits_for = self._long_wait = None
        finally:
            self._waits_for = self._long_wait = None

    def _watch(self) -> None:
        if not self._is_watched:
            self._is_watched = True
            self._timers.call_later(_LONG_WAIT_MS, partial(self._still_waits, self._waits_for))

    def _still_waits(self, wait: Wait | None) -> None:
        self._is_watched = False
        if wait is None or wait is not self._waits_for or wait.reason is None:
            if self._waits_for is not None:
                self._watch()
            return
        self._long_wait = wait.reason()
        self._say_waits(self._long_wait)

    def _send(self, sent: _Sent) -> Generator[bool | Wait, None, None]:
        row = sent.row
        if row.unread_bytes:
            self._park(
                sent,
                f"its body has {row.unread_bytes} bytes; expected {MAX_BODY_BYTES} at most: delete"
                " it, and let a client send it",
            )
            return
        principal = self._principal
        if principal is None:
            principal = self._principal = self._new_principal()
            if principal is None:
                self._hold(sent, f"there is no user {quoted(self._user or '')}, whose rights count")
                return
        try:
            sends = self._rows.sends(row, principal)
        except OrthiaError as error:
            self._dead_letter(sent, error)
            return
        self._in_flight[row.id] = sent
        done, refused = partial(self._stored, sent), partial(self._refused, sent)
        try:
            if len(sends) == 1:
                destination, message = sends[0]
                waits = self._office.send(principal, destination, message, done, refused)
                if waits is None:
                    return
                if isinstance(waits, Iterator):
                    yield from waits
                else:
                    yield from waiting(waits)
            else:
                yield from commit(self._office, principal, TransactionWork(sends), done, refused)
        except NotLive:
            self._in_flight.pop(row.id, None)
            raise
        except (QuotaExceeded, NoRoomInStore) as error:
            if self._in_flight.pop(row.id, None) is not None:
                self._hold(sent, str(error))
        except BrokerError as error:
            if self._in_flight.pop(row.id, None) is not None:
                self._dead_letter(sent, error)

    def _dead_letter(self, sent: _Sent, reason: OrthiaError) -> None:
        """Send a row to the dead-letter address of its destination, or drop it if there is none."""
        row, text = sent.row, str(reason)
        self._in_flight[row.id] = sent
        sent.is_dead_letter = True
        try:
            target = self._dead_letter_address(row.destination)
            with SendPlan(self._office.context, self._sender) as plan:
                plan.take_from_outbox(row.id)
                if target != DROP:
                    message = self._rows.dead_letter(row, text)
                    record = self._office.context.record(target, message)
                    plan.move(self._book.ensure_queues(target, record), record)
                plan.apply(
                    partial(self._dead_lettered_one, sent, target, text),
                    lambda error: self._refused(sent, error, None),
                )
        except NotLive:
            self._in_flight.pop(row.id, None)
        except BrokerError as error:
            self._in_flight.pop(row.id, None)
            self._park(sent, f"{text}; nor can it be moved: {error}")

    def _park(self, sent: _Sent, reason: str) -> None:
        """Leave a row in the table, and try again later; those behind it do not wait."""
        LOGGER.error(
            "row %d of the outbox, for destination %s, cannot be sent: %s; it stays in the table,"
            " and is tried again in %d s",
            sent.row.id,
            quoted(sent.row.destination[:300]),
            reason,
            _STUCK_RETRY_MS // 1000,
        )
        self._try_later(sent, _STUCK_RETRY_MS)

    def _try_later(self, sent: _Sent, after_ms: int) -> None:
        self._locked[sent.row.id] = sent
        self._bytes -= _size(sent.row)
        self._locked_bytes += _size(sent.row)
        self._timers.call_later(after_ms, partial(self._try_locked, sent))

    @property
    def _locked_too_many(self) -> str | None:
        if len(self._locked) < MOST_LOCKED and self._locked_bytes < MOST_LOCKED_BYTES:
            return None
        return (
            f"other sessions have locked {len(self._locked)} rows, or these cannot be sent, as the"
            " log says of each"
        )

    @property
    def _sender(self) -> Sender:
        return Sender() if self._principal is None else self._principal.sender

    def _dead_letter_address(self, destination: str) -> str:
        try:
            return self._book.settings_of(parse(destination).address).dead_letter_address
        except BrokerError:
            return DEFAULT_DEAD_LETTER_ADDRESS

    # --- what the journal says

    def _stored(self, sent: _Sent) -> None:
        self._relayed += 1
        self._finish(sent)

    def _dead_lettered_one(self, sent: _Sent, target: str, reason: str) -> None:
        self._dead_lettered += 1
        LOGGER.warning(
            "row %d of the outbox, for destination %s, cannot be sent: %s; it is %s",
            sent.row.id,
            quoted(sent.row.destination[:300]),
            reason,
            "dropped, as the empty dead-letter-address says"
            if target == DROP
            else f"moved to dead-letter-address {target}",
        )
        self._finish(sent)

    def _finish(self, sent: _Sent) -> None:
        """Forget a row that is deleted."""
        row = sent.row
        self._in_flight.pop(row.id, None)
        self._bytes -= _size(row)
        if self._is_reading:
            self._gone.add(row.id)
        if self._held is None and self._long_wait is None:
            self._retry_ms = _FIRST_RETRY_MS
            if self._is_told:
                self._is_told = False
                LOGGER.warning("rows of the outbox are sent again")
        if self._refused_rows and not self._in_flight:
            self._send_again()
        else:
            self._read_on()

    def _refused(self, sent: _Sent, error: OrthiaError, _: Done | None) -> None:
        """Keep a row that the store refused, or let go of one that is gone."""
        row = sent.row
        self._in_flight.pop(row.id, None)
        self._principal = None  # the journal takes nothing more of that sender
        if isinstance(error, OutboxRowsGone):
            LOGGER.warning("row %d of the outbox was deleted before it was sent", row.id)
            self._finish(sent)
            return
        if isinstance(error, JournalClosed):
            return
        if isinstance(error, HeldElsewhere):
            self._try_later(sent, _LOCKED_RETRY_MS)
        elif isinstance(error, StoreFull | SentBehindRefused):
            self._refused_rows.append(sent)
            if isinstance(error, StoreFull):
                self._say_held(str(error))
        elif sent.is_dead_letter:
            self._park(sent, str(error))
        else:
            self._dead_letter(sent, error)
        if not self._in_flight:
            self._send_again()

    def _try_locked(self, sent: _Sent) -> None:
        """Send a row again that could not be sent."""
        if self._locked.pop(sent.row.id, None) is not None:
            if sent.row.unread_bytes:
                self._locked_bytes -= _size(sent.row)
                return  # if it is still there, it is read once more
            sent.is_dead_letter = False
            self._bytes += _size(sent.row)
            self._locked_bytes -= _size(sent.row)
            self._unsent.appendleft(sent)
            self._go_on()

    def _send_again(self) -> None:
        """Put what was refused back in its place, and go on."""
        self._put_back()
        if self._held is not None:
            self._wait()
        else:
            self._go_on()

    def _put_back(self) -> None:
        self._principal = None
        back, self._refused_rows = self._refused_rows, []
        # A row behind them may have come back by itself.
        back = sorted([*back, *self._unsent], key=lambda one: one.number)
        self._unsent = deque(back)

    # --- hold

    def _hold(self, sent: _Sent, reason: str) -> None:
        """Keep a row and all behind it, and try again later."""
        self._unsent.appendleft(sent)
        self._say_held(reason)
        self._wait()

    def _say_held(self, reason: str) -> None:
        self._held = reason
        self._say_waits(reason)

    def _say_waits(self, reason: str) -> None:
        if not self._is_told:
            self._is_told = True
            LOGGER.warning("rows of the outbox wait: %s; they are tried again", reason)

    def _wait(self) -> None:
        if not self._is_waiting:
            self._is_waiting = True
            self._timers.call_later(self._retry_ms, self._try_again)
            self._retry_ms = min(2 * self._retry_ms, _LAST_RETRY_MS)

    def _try_again(self) -> None:
        self._is_waiting = False
        self._held = None
        self._go_on()

    def _has_room(self) -> None:
        room, self._room = self._room, None
        if room is not None:
            room()

    def _no_room_needed(self, _: Wait) -> None:
        self._room = None


def _size(row: OutboxRow) -> int:
    return len(row.body) + len(row.headers or "") + len(row.destination)
