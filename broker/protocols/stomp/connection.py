# mypyc compiles this module.
"""One client's connection as a state machine: frames in, calls to the core, frames out.

Which frame is taken in which state, and what follows, is data: ``states``. What a frame asks for is
done by a module of its own: logins, SENDs and their uploads, subscriptions, transactions, receipts;
``parts`` makes them. This one reads frames in their order, has the right part do each, and ends the
connection.

A node that stops, or is live no more, closes without an ERROR: to clients that says that they did
wrong, and some end on it.
"""

import logging
import sys
from collections.abc import Callable
from functools import partial
from typing import Final

from orthia.broker.core.api import BrokerCore, Done
from orthia.broker.core.errors import BrokerError, NotLive
from orthia.broker.core.limits.refusals import Refusal, refusal_of
from orthia.broker.core.slices import GO_ON, Steps
from orthia.broker.protocols.stomp.client_frame import BodyPiece, Frame
from orthia.broker.protocols.stomp.frames import ProtocolError, Version, error_frame
from orthia.broker.protocols.stomp.login import Authenticate, asking
from orthia.broker.protocols.stomp.options import StompOptions
from orthia.broker.protocols.stomp.parts import Callbacks, Parts
from orthia.broker.protocols.stomp.receipts import id_of
from orthia.broker.protocols.stomp.resting import Resting
from orthia.broker.protocols.stomp.states import (
    DELIVERING,
    ENDING,
    EVENTS,
    KEEPING,
    Event,
    Handlers,
    State,
    not_taken,
    taken,
)
from orthia.config.errors import OrthiaError
from orthia.journal.errors import JournalClosed
from orthia.journal.model.message import LargeBody

LOGGER = logging.getLogger("orthia.broker")
_FRAMES: Final = 4
"""How many frames are handled before others may have a turn; those that take longer than half a
millisecond are steps of their own."""
_MANY_HEADERS: Final = 32
# What is asked for with every piece that comes: an enumeration looks its members up each time.
_LOGGING_IN: Final = State.LOGGING_IN
_STORING: Final = State.STORING


class StompConnection:
    """The protocol's side of one connection; whoever owns the socket calls it on the loop."""

    __slots__ = (
        "_clock", "_close", "_committer", "_core", "_handlers", "_inbox", "_is_late", "_left",
        "_outbox", "_receipts", "_receiver", "_refused", "_resting", "_row", "_sender", "_state",
        "_timeouts", "_transactions", "_uploads", "_waited", "client", "holdings", "options",
        "subscriptions", "was_disconnected",
    )  # fmt: skip

    def __init__(
        self,
        core: BrokerCore,
        options: StompOptions,
        *,
        write: Callable[[bytes], int],
        close: Callable[[], None],
        clock: Callable[[], float],
        authenticate: Authenticate | None = None,
        may_take: Callable[[], bool] = lambda: True,
        left: Callable[[], int] = lambda: sys.maxsize,
        waited: Callable[[], None] = lambda: None,
        refused: Callable[[Refusal, str], None] = lambda *_: None,
    ) -> None:
        """Begin a connection.

        ``write`` takes bytes for the client, returns how many it took so far and must not raise;
        ``left`` says how many of those the socket took at least; ``close`` ends the connection once
        all are sent. ``authenticate`` asks the core at once if it is not given; ``may_take`` says
        whether there is memory for deliveries. ``waited`` is called when ``is_waiting`` may be
        over, unless a call of the socket's owner ended it; ``refused`` hears of what the client
        does wrong.
        """
        self._core = core
        self._left = left
        self.options = options
        self._close = close
        self._clock = clock
        self._waited = waited
        self._refused = refused
        self._is_late = False
        """Whether frames are left for a later turn of the loop."""
        self._resting = Resting()
        self.was_disconnected = False
        """Whether it has ended, in good order, because the client asked for it."""
        parts = Parts(
            core,
            options,
            self,
            Callbacks(
                logged_in=partial(self._move, Event.LOGGED_IN),
                go_on=self._go_on,
                refuse_login=self._refuse_for,
                uploaded=self._uploaded,
                streamed=self._streamed,
                refuse_unstored=self._refuse_unstored,
                fail=lambda reason: self._refuse(reason, None, Refusal.SLOW),
                cut_off=self.go_away,
            ),
            write=write,
            clock=clock,
            authenticate=authenticate or asking(core),
            may_take=may_take,
            room=waited,
        )
        self.client = parts.client
        self._inbox = parts.inbox
        self._outbox = parts.outbox
        self._receipts = parts.receipts
        self.subscriptions = parts.subscriptions
        self._transactions = parts.transactions
        self._uploads = parts.uploads
        self._timeouts = parts.timeouts
        self.holdings = parts.holdings
        self._sender = parts.sender
        self._committer = parts.committer
        self._receiver = parts.receiver
        self._handlers: Handlers = {**parts.handlers, "DISCONNECT": self._disconnect}
        self._enter(State.CONNECTING)

    # --- what the socket's owner calls

    def write_through(
        self, write: Callable[[bytes], int], write_part: Callable[[bytes], int]
    ) -> None:
        """Have others take what is written, before anything is: ``write`` whole frames.

        ``write_part`` takes a part of a frame, of which more follows. Both return how many bytes
        the socket was given so far.
        """
        self._outbox.write_now = write
        self._outbox.write_part = write_part

    def limit_version(self, newest: Version) -> None:
        """Have the client speak ``newest`` or a version before."""
        self.client.newest = newest

    @property
    def is_closed(self) -> bool:
        """Whether the connection is over."""
        return self._state is State.CLOSED

    @property
    def is_waiting(self) -> bool:
        """Whether the client is not to be read from for now.

        It waits for the answer to its login, for the store to take of a large message, or for its
        next turn.
        """
        waits = self._is_late or self._state is _LOGGING_IN or self._state is _STORING
        return waits or not self._uploads.wants_more

    def receive(self, data: bytes) -> None:
        """Take bytes from the client."""
        if not self._row and self._state not in KEEPING:
            return
        self._timeouts.beats.read(self._clock())
        self._inbox.put(data)
        if self._row and not self._is_late:
            self._go_on()
        if self._state is _LOGGING_IN and self._inbox.size > self.options.limits.max_header_bytes:
            self._refuse("too much was sent before CONNECTED", None, Refusal.LIMIT)

    def tick(self, now: float, *, is_read: bool = True, paused: float = 0.0) -> None:
        """Send a heart-beat if one is due; end a client that is silent, or never connects.

        A client that is not read from at the moment is not silent, nor is one while the node itself
        stood still: for ``paused`` seconds since the last call.
        """
        self._timeouts.leave_out(now, is_read=is_read, paused=paused)
        too_long = self._timeouts.too_long(self._state, now)
        if too_long is not None:
            self._refuse(too_long.reason, too_long.receipt, too_long.kind)
        elif not (self.is_closed or self._outbox.is_streaming) and self._timeouts.beats.is_due(now):
            self._outbox.write(b"\n")

    def set_writable(self, *, writable: bool) -> None:
        """Say whether the socket takes more; deliveries stop while it does not."""
        self._outbox.is_writable = writable
        if writable:
            self._receiver.resume()

    def connection_lost(self) -> None:
        """End the connection: what was delivered and not acknowledged goes back."""
        self._end(failed=True)

    def shut_down(self, reason: str) -> None:
        """End the connection from the broker's side, saying why; the caller tells the operator."""
        self._refuse(reason, None, None)

    def go_away(self) -> None:
        """End the connection as a node that was killed does, but with all that was written sent."""
        if not self.is_closed:
            self._end(failed=False)
            self._close()

    def farewell(self, reason: str) -> bytes:
        """Return what tells a client why it is not taken, as the last that it is sent."""
        return error_frame(reason, None, self.client.version)

    # --- reading

    def _enter(self, state: State) -> None:
        self._state = state
        self._row = {
            name: (self._handlers[name], after)
            for name, after in taken(state, self.client.version).items()
        }
        self._outbox.is_serving = state in DELIVERING

    def _move(self, event: Event) -> None:
        self._enter(EVENTS[self._state][event])

    def _go_on(self, first: Steps | None = None) -> None:
        """Handle the frames that came, as far as a slice goes; the others in later turns.

        Behind steps that are to be done ``first``.
        """
        if not self._core.slices.run(self._handling(first)):
            self._is_late = True

    def _handling(self, first: Steps | None) -> Steps:
        inbox = self._inbox
        frame: Frame | None = None
        left = _FRAMES
        try:
            if first is not None:
                yield from self._resting.through(first)
            while self._row and (frames := inbox.take()) is not None:
                for event in frames:
                    if event.__class__ is Frame:
                        frame = event
                        if len(frame.raw) > _MANY_HEADERS:
                            left = 1  # it takes as long as several others
                        steps = self._handle(frame)
                        if steps is not None:
                            yield from self._resting.through(steps)
                    else:
                        frame = event if isinstance(event, Frame) else self._uploads.frame
                        self._stream_in(event)
                    if not self._row:
                        break
                    frame = None
                    left -= 1
                    if not left:
                        left = _FRAMES
                        yield GO_ON
                        if not self._row:
                            break  # the connection was ended while others had their turn
                if not self._row and self._state in KEEPING:
                    inbox.give_back(frames)
        except (ProtocolError, BrokerError) as error:
            self._refuse_for(error, frame)
        except MemoryError:
            self.go_away()
            raise
        except Exception:
            command = "what a client sent" if frame is None else f"a client's {frame.command}"
            LOGGER.exception("%s failed; the client is told, and its connection is ended", command)
            self._refuse("the broker failed at this; its log says why", None, Refusal.FAILURE)
        if self._is_late:
            self._is_late = False
            self._waited()

    def _handle(self, frame: Frame) -> Steps | None:
        found = self._row.get(frame.command)
        if found is None:
            raise not_taken(self._state, self.client.version, frame)
        handler, after = found
        if after is not self._state:
            self._enter(after)
        return handler(frame)

    def _stream_in(self, event: Frame | BodyPiece) -> None:
        if self._sender.take_large(event, self._clock()):
            self._move(Event.BODY_CAME)
            self._uploads.finish()

    def _streamed(self) -> None:
        """Go on after a large body: with what was to follow it, or to the end."""
        if self._state in ENDING:
            self._receipts.look()
        else:
            self.set_writable(writable=self._outbox.is_writable)

    def _uploaded(self, outcome: LargeBody | OrthiaError) -> None:
        sent = self._uploads.take()
        if isinstance(outcome, JournalClosed):
            self._stop_serving()
            return
        if isinstance(outcome, OrthiaError):
            text = f"the message could not be stored: {outcome}"
            self._refuse(text, sent.frame.get(b"receipt"), refusal_of(outcome))
            return
        self._move(Event.BODY_STORED)
        try:
            steps = self._sender.send_large(sent, outcome)
        except (ProtocolError, BrokerError) as error:
            self._refuse_for(error, sent.frame)
            return
        # In a turn of its own: what called this is to go on, whatever becomes of this client.
        self._is_late = True
        self._core.slices.later(self._handling(steps))
        self._waited()

    # --- the end

    def _disconnect(self, frame: Frame) -> None:
        self._clear()
        self._receipts.begin()
        self._receipts.end_with(frame, self._finish)
        self._core.slices.run(self._receiver.leave())

    def _finish(self) -> None:
        """End in good order; not while a body is being written, nor if the end has come before."""
        if self._state is State.DISCONNECTING and not self._outbox.is_streaming:
            self._receipts.send_last()
            self._move(Event.ENDED)
            self._outbox.end()
            self.was_disconnected = True
            self._close()

    def _refuse_for(self, error: OrthiaError, frame: Frame | None) -> None:
        if isinstance(error, NotLive):
            self._stop_serving()
        else:
            receipt = None if frame is None else frame.get(b"receipt")
            self._refuse(str(error), receipt, refusal_of(error))

    def _stop_serving(self) -> None:
        """Do nothing more of what came: this node stops, or is live no more.

        The connection ends when all that was done is answered, or when the node closes it: ended
        at once it would get no receipts of what it has sent and the store still takes.
        """
        if Event.NODE_STOPPED not in EVENTS[self._state]:
            self.go_away()
            return
        self._move(Event.NODE_STOPPED)
        self._resting.end()
        self._inbox.clear()
        self._uploads.abort()
        self._receipts.end_with(None, self._answered)
        self._receipts.look()

    def _answered(self) -> None:
        if self._state is State.STOPPING and not self._outbox.is_streaming:
            self.go_away()

    def _refuse_unstored(self, error: OrthiaError, done: Done | None) -> None:
        """Refuse what the store does not take; ``done`` would have sent its receipt."""
        self._refuse(str(error), id_of(done), refusal_of(error))

    def _refuse(self, reason: str, receipt: str | None, kind: Refusal | None) -> None:
        if self.is_closed:
            return
        if kind is not None:
            self._refused(kind, reason)
        if not self._outbox.is_streaming:
            connecting = self._state is State.CONNECTING or self._state is _LOGGING_IN
            version = self.client.version
            self._outbox.write(error_frame(reason, receipt, version, names_versions=connecting))
        self._end(failed=True)
        self._close()

    def _end(self, *, failed: bool) -> None:
        if self.is_closed:
            return
        self._move(Event.ENDED)
        self._outbox.end()
        self._resting.end()
        works = self._transactions.unfinished()
        self._clear()
        self._receipts.begin()
        self._core.slices.run(self._receiver.close(works, self._left() if failed else None))

    def _clear(self) -> None:
        self._inbox.clear()
        self._uploads.abort()
        self._committer.let_go_of_all()
