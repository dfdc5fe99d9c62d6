# mypyc compiles this module.
"""One client's connection as a state machine: frames in, calls to the core, frames out.

Which frame is taken in which state, and what follows, is data: ``states``. What a frame asks for is
done by a handler of its own module: ``connect``, ``send``, ``subscribe``, ``transactions``. This
module makes them, reads frames in their order, calls the handler of each, and ends the connection.

A node that stops, or is no longer live, closes without an ERROR: to clients an ERROR says that they
did wrong, and some exit on it.
"""

import logging
from collections.abc import Callable, Generator
from typing import Final

from typing_extensions import override

from orthia.broker.core.api import Done, OpenTransaction
from orthia.broker.core.broker import Broker
from orthia.broker.core.errors import BrokerError, NotLive, Refusal
from orthia.broker.core.limits.refusals import refusal_of
from orthia.broker.core.slices import GO_ON, Steps, Wait
from orthia.broker.protocols.abc import Socket
from orthia.broker.protocols.stomp.client_frame import Frame
from orthia.broker.protocols.stomp.connect import LoginHandler
from orthia.broker.protocols.stomp.frames import ProtocolError, error_frame
from orthia.broker.protocols.stomp.options import SUBPROTOCOLS, StompOptions
from orthia.broker.protocols.stomp.parser import FrameParser, Input
from orthia.broker.protocols.stomp.receipts import id_of
from orthia.broker.protocols.stomp.send import SendHandler
from orthia.broker.protocols.stomp.session import Session
from orthia.broker.protocols.stomp.states import (
    DELIVERING,
    ENDING,
    EVENTS,
    KEEPING,
    Event,
    Handlers,
    State,
    accepted,
    not_accepted,
)
from orthia.broker.protocols.stomp.subscribe import SubscribeHandler
from orthia.broker.protocols.stomp.subscription import ClientSubscriptions
from orthia.broker.protocols.stomp.temporary import TemporaryDestinations
from orthia.broker.protocols.stomp.timeouts import Timeouts
from orthia.broker.protocols.stomp.transactions import Transactions
from orthia.broker.protocols.stomp.uploads import Uploads
from orthia.config.errors import OrthiaError

LOGGER = logging.getLogger("orthia.broker")
_FRAMES: Final = 4
"""How many frames are handled before others may have a turn; those that take longer than half a
millisecond are steps of their own."""
_MANY_HEADERS: Final = 32
# Asked for with every piece that comes: an enumeration looks its members up each time.
_LOGGING_IN: Final = State.LOGGING_IN
_CONNECTED: Final = State.CONNECTED
_STORING: Final = State.STORING


class StompConnection(Session):
    """The protocol's side of one connection; whoever owns the socket calls it on the loop."""

    __deletable__ = ("_sender", "_subscriber", "_transactions", "_uploads")

    def __init__(
        self, core: Broker, options: StompOptions, socket: Socket, clock: Callable[[], float]
    ) -> None:
        """Begin a connection; ``clock`` is monotonic, in seconds."""
        super().__init__(core, options, socket, clock)
        self._usage = socket.usage
        self._is_late = False
        """Whether frames are left for a later turn of the loop."""
        self._steps: Steps | None = None
        self._wait: Wait | None = None
        """What the steps of the frame that is being handled wait for, if that may take long."""
        self._was_disconnected = False
        self._parser = FrameParser(options.limits)
        self._input = Input(self._parser)
        self._timeouts = Timeouts(options.limits.connect_timeout, clock())
        self.subscriptions = ClientSubscriptions(options.limits.max_subscriptions)
        temporary = TemporaryDestinations(self)
        self._transactions = Transactions(self, self.subscriptions)
        self._uploads = Uploads(self)
        self._sender = SendHandler(self, self._transactions, self._uploads, temporary)
        self._subscriber = SubscribeHandler(self, self.subscriptions, self._transactions, temporary)
        self._handlers: Handlers = {
            **LoginHandler(self, self._parser, self._timeouts).handlers,
            **self._sender.handlers,
            **self._subscriber.handlers,
            **self._transactions.handlers,
            "DISCONNECT": self._disconnect,
        }
        self._enter(State.CONNECTING)

    # --- what the socket's owner calls

    @override
    def choose_subprotocol(self, name: str) -> None:
        self.newest = SUBPROTOCOLS[name]

    @property
    @override
    def is_closed(self) -> bool:
        return self.state is State.CLOSED

    @property
    @override
    def was_disconnected(self) -> bool:
        return self._was_disconnected

    @property
    @override
    def is_waiting(self) -> bool:
        """Whether the client waits: for its login, for the store, or for its next turn."""
        waits = self._is_late or self.state is _LOGGING_IN or self.state is _STORING
        return waits or not self._uploads.wants_more

    @override
    def receive(self, data: bytes) -> None:
        if not self._transitions and self.state not in KEEPING:
            return
        self._timeouts.beats.read(self.clock())
        self._input.put(data)
        if (
            self._transitions
            and not self._is_late
            and not self.core.slices.run(self._handling(), self._usage)
        ):
            self._is_late = True
        if self.state is _LOGGING_IN and self._input.size > self.options.limits.max_header_bytes:
            self.refuse("too much was sent before CONNECTED", None, Refusal.LIMIT)

    @override
    def tick(self, now: float, *, is_read: bool = True, paused: float = 0.0) -> None:
        self._timeouts.leave_out(now, is_read=is_read, paused=paused)
        self._uploads.leave_out(now, is_read=is_read, paused=paused)
        idle = self._uploads.idle_too_long(now) if self.state is _CONNECTED else None
        if idle is not None:
            self.refuse(idle, self._uploads.receipt, Refusal.SILENCE)
            return
        silence = self._timeouts.silence(self.state, now)
        if silence is not None:
            self.refuse(silence.reason, None, silence.kind)
        elif not (self.is_closed or self.output.is_streaming) and self._timeouts.beats.is_due(now):
            self.output.write(b"\n")

    @override
    def set_writable(self, *, writable: bool) -> None:
        self.output.is_writable = writable
        if writable:
            self.output.resume()
            self._subscriber.resume()

    @property
    @override
    def held(self) -> int:
        # Read with all that comes and goes: what a large body holds only where there is one.
        output = self.output
        held = (
            self._parser.held
            + self._input.size
            + self._transactions.size
            + self.receipts.size
            + self.subscriptions.size
            + output.size
            + output.piece
            + self.unacknowledged
        )
        if self._uploads.under_way is not None:
            held += self._uploads.held
        return held

    @property
    @override
    def sent(self) -> int:
        delivered = self.unacknowledged + self._transactions.aside + self.output.piece
        return self.held - delivered

    @property
    @override
    def released(self) -> int:
        return self.acknowledged

    @override
    def open_transactions(self) -> list[OpenTransaction]:
        return self._transactions.open()

    @override
    def connection_lost(self) -> None:
        self._end(failed=True)

    @override
    def release(self) -> None:
        self._handlers = {}
        self._transitions.clear()
        self.receipts.release()
        del self._sender, self._subscriber, self._transactions, self._uploads

    @override
    def shut_down(self, reason: str) -> None:
        self.refuse(reason, None, None)

    @override
    def go_away(self) -> None:
        if not self.is_closed:
            self._end(failed=False)
            self.socket.close()

    @override
    def farewell(self, reason: str) -> bytes:
        return error_frame(reason, None, self.version, names_versions=self._is_connecting)

    # --- reading

    def _enter(self, state: State) -> None:
        self.state = state
        self._transitions = {
            name: (self._handlers[name], after)
            for name, after in accepted(state, self.version).items()
        }
        self.output.is_serving = state in DELIVERING

    @override
    def move(self, event: Event) -> None:
        self._enter(EVENTS[self.state][event])

    def _handling(self) -> Steps:
        """Handle the frames that came, as far as a slice goes; the others in later turns."""
        frame: Frame | None = None
        left = _FRAMES
        try:
            while self._transitions and (events := self._input.take()) is not None:
                for event in events:
                    if event.__class__ is Frame:
                        frame = event
                        if len(frame.raw) > _MANY_HEADERS:
                            left = 1  # it takes as long as several others
                        steps = self._handle(frame)
                    else:
                        frame = event if isinstance(event, Frame) else self._uploads.frame
                        steps = self._sender.take_large(event)
                    if steps is not None:
                        yield from self._through(steps)
                    if not self._transitions:
                        break
                    frame = None
                    left -= 1
                    if not left:
                        left = _FRAMES
                        yield GO_ON
                        if not self._transitions:
                            break  # the connection was ended while others had their turn
        except (ProtocolError, BrokerError) as error:
            self.refuse_for(error, frame)
        except MemoryError:
            self.go_away()
            raise
        except Exception:
            command = "the bytes of a client" if frame is None else f"a client's {frame.command}"
            LOGGER.exception("handling %s failed; disconnecting the client with an ERROR", command)
            self.refuse("the broker failed to handle this; its log says why", None, Refusal.FAILURE)
        if self._is_late:
            self._is_late = False
            self.socket.wait_ended()

    def _handle(self, frame: Frame) -> Steps | None:
        found = self._transitions.get(frame.command)
        if found is None:
            raise not_accepted(self.state, self.version, frame)
        handler, after = found
        if after is not self.state:
            self._enter(after)
        return handler(frame)

    def _through(self, steps: Steps) -> Steps:
        """Do the steps of a frame; ``_drop_steps`` drops those that wait for others."""
        for rest in steps:
            if isinstance(rest, Wait):
                self._steps, self._wait = steps, rest
            yield rest
            self._steps = self._wait = None

    def _drop_steps(self) -> None:
        steps, wait = self._steps, self._wait
        if wait is not None:
            self._steps = self._wait = None
            wait.drop()
            if isinstance(steps, Generator):
                steps.close()

    @override
    def resume_deliveries(self) -> None:
        if self.state in ENDING:
            self.receipts.look()
        elif not self.is_closed:
            self.set_writable(writable=self.output.is_writable)

    # --- the end

    def _disconnect(self, frame: Frame) -> None:
        self._clear()
        self.receipts.begin()
        self.receipts.end_with(frame, self._finish)
        self.core.slices.run(self._subscriber.leave())

    def _finish(self) -> None:
        """End in good order; not while a body is being written, nor if the end has come before."""
        if self.state is State.DISCONNECTING and not self.output.is_streaming:
            self.receipts.send_last()
            self.move(Event.ENDED)
            self.output.end()
            self._was_disconnected = True
            self.socket.close()

    @override
    def stop_serving(self) -> None:
        """Do nothing more of what came: this node stops, or is no longer live.

        The connection ends when all that was done is answered, or when the node closes it: ended
        at once it would get no receipts of what it has sent and the store still takes.
        """
        if Event.NODE_STOPPED not in EVENTS[self.state]:
            self.go_away()
            return
        self.move(Event.NODE_STOPPED)
        self._drop_steps()
        self._input.clear()
        self._uploads.abort()
        self.receipts.end_with(None, self._all_answered)
        self.receipts.look()

    def _all_answered(self) -> None:
        if self.state is State.STOPPING and not self.output.is_streaming:
            self.go_away()

    @override
    def refuse_for(self, error: OrthiaError, frame: Frame | None) -> None:
        if isinstance(error, NotLive):
            self.stop_serving()
        else:
            receipt = None if frame is None else frame.get(b"receipt")
            self.refuse(str(error), receipt, refusal_of(error))

    @override
    def refuse_unstored(self, error: OrthiaError, done: Done | None) -> None:
        self.refuse(str(error), id_of(done), refusal_of(error))

    @override
    def refuse(self, reason: str, receipt: str | None, kind: Refusal | None) -> None:
        if self.is_closed:
            return
        if kind is not None:
            self.socket.refused(kind, reason)
        if not self.output.is_streaming:
            self.output.write(
                error_frame(reason, receipt, self.version, names_versions=self._is_connecting)
            )
        self._end(failed=True)
        self.socket.close()

    @property
    def _is_connecting(self) -> bool:
        return self.state is State.CONNECTING or self.state is _LOGGING_IN

    def _end(self, *, failed: bool) -> None:
        if self.is_closed:
            return
        self.move(Event.ENDED)
        self.output.end()
        self._drop_steps()
        works = self._transactions.unfinished()
        self._clear()
        self.receipts.begin()
        taken_bytes = self.socket.bytes_taken() if failed else None
        self.core.slices.run_last(self._subscriber.close(works, taken_bytes))

    def _clear(self) -> None:
        self._input.clear()
        self._uploads.abort()
        self._transactions.end()
