"""One client's connection as a state machine: frames in, calls to the core, frames out.

| state      | frame                         | then                                            |
|------------|-------------------------------|-------------------------------------------------|
| CONNECTING | CONNECT, STOMP                | LOGGING_IN, until the login is answered         |
| LOGGING_IN | login answered                | CONNECTED is sent: CONNECTED; or ERROR: CLOSED  |
| CONNECTING | any other, or none in time    | ERROR: CLOSED                                   |
| CONNECTED  | SEND, SUBSCRIBE, ACK ...      | CONNECTED; RECEIPT when asked for, once stored  |
| CONNECTED  | the end of a large SEND       | STORING, until its body is durable: CONNECTED   |
| CONNECTED  | anything refused or malformed | ERROR: CLOSED                                   |
| CONNECTED  | DISCONNECT                    | DISCONNECTING: its RECEIPT waits for all before |
| any        | connection lost               | CLOSED                                          |

A large SEND's body goes to the store as it comes, and what follows it waits: messages keep their
order. Inside the body of a large MESSAGE nothing else is written: receipts wait for its end, and an
ERROR is left out.

After an ERROR the connection is closed, as the specification demands. A node that stops, or is live
no more, closes without one: to clients an ERROR says that they did wrong, and some end on it.

A CONNECT without ``host`` is accepted in 1.1 and 1.2 too: ordinary clients leave it out, and there
is one virtual host.
"""

import logging
import sys
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import replace
from enum import Enum, auto
from functools import partial
from importlib import metadata
from itertools import chain
from typing import Final, NamedTuple

from orthia.broker.core.api import (
    BrokerCore,
    BrokerError,
    FanOut,
    MessageReference,
    NotLive,
    OutgoingMessage,
    Principal,
    TransactionWork,
)
from orthia.broker.core.destinations import of_type
from orthia.broker.core.refusals import Refusal, refusal_of
from orthia.broker.core.slices import GO_ON, REST, Steps
from orthia.broker.protocols.stomp.attempts import attempted
from orthia.broker.protocols.stomp.frames import (
    ProtocolError,
    Version,
    error_frame,
    is_whole_number,
    receipt_frame,
    server_frame,
)
from orthia.broker.protocols.stomp.headers import LOOKED_AT, NOT_PASSED_ON, TOOLS_OWN, refuse
from orthia.broker.protocols.stomp.heartbeats import HeartBeats, negotiate
from orthia.broker.protocols.stomp.management import DESTINATIONS, read_request
from orthia.broker.protocols.stomp.parser import BodyPiece, Frame, FrameParser, LargeFrame
from orthia.broker.protocols.stomp.prefixes import Prefixes
from orthia.broker.protocols.stomp.strangers import ENOUGH, recognise
from orthia.broker.protocols.stomp.streaming import BodyStream
from orthia.broker.protocols.stomp.subscriptions import (
    AckMode,
    ClientSubscription,
    ClientSubscriptions,
)
from orthia.broker.protocols.stomp.transactions import OpenTransactions
from orthia.broker.quoting import quoted
from orthia.config.errors import OrthiaError
from orthia.config.settings import StompLimits
from orthia.journal.engine.large import Upload
from orthia.journal.errors import JournalClosed
from orthia.journal.message import LargeBody

LOGGER = logging.getLogger("orthia.broker")
SERVER = f"orthia/{metadata.version('orthia')}"
_SUBSCRIPTION_COST = 3_072
"""What a subscription counts for beside its id and destination, which are kept four times."""
_RECEIPT_COST = 512
"""What a receipt that waits for the store counts for beside its id."""
_MOST_MESSAGES = 10_000
"""That a subscription may have unacknowledged, whatever it asks for; bytes are bounded beside."""
_PRIORITY = 4
"""Of every message: it is the only one a client may give."""
_FRAMES = 4
"""How many frames are handled before others may have a turn; a single one takes 20 ms at most."""
MAX_CONNECT_BYTES = 16_384
"""Bytes of the headers of a CONNECT frame: whoever sends it need not be anybody yet."""

Authenticate = Callable[[str | None, str | None, Callable[[Principal | BrokerError], None]], None]
"""Takes login, passcode and who is told the outcome, at once or later."""


class _State(Enum):
    CONNECTING = auto()
    LOGGING_IN = auto()
    CONNECTED = auto()
    STORING = auto()
    DISCONNECTING = auto()
    CLOSED = auto()


# What is asked for every frame: an enumeration looks its members up each time.
_CONNECTING: Final = _State.CONNECTING
_LOGGING_IN: Final = _State.LOGGING_IN
_CONNECTED: Final = _State.CONNECTED
_STORING: Final = _State.STORING
_DISCONNECTING: Final = _State.DISCONNECTING
_CLOSED: Final = _State.CLOSED


class _LargeSend(NamedTuple):
    """A large SEND of which the body is on its way to the store."""

    frame: LargeFrame
    destination: str
    message: OutgoingMessage
    upload: Upload


class StompSession:
    """The session of one connection; whoever owns the socket calls it on the loop's thread."""

    # With more than 30 attributes CPython finds each one slower, unless they are slots.
    __slots__ = (
        "_authenticate", "_beats", "_clock", "_close", "_connect_by", "_connection_ttl", "_core",
        "_deferred", "_deferred_bytes", "_disconnect_receipt", "_early_bytes", "_first", "_frames",
        "_handlers", "_incoming", "_incoming_since", "_is_late", "_is_writable", "_late_bytes",
        "_left", "_limits", "_may_take", "_outstanding", "_parser", "_prefixes", "_principal",
        "_receipt_bytes", "_refused", "_refused_work", "_silence", "_silence_factor", "_state",
        "_stream", "_subscription_bytes", "_subscriptions", "_transactions",
        "_unacknowledged_bytes", "_version", "_waited", "_write", "released_bytes",
    )  # fmt: skip

    def __init__(
        self,
        core: BrokerCore,
        limits: StompLimits,
        *,
        write: Callable[[bytes], int],
        close: Callable[[], None],
        clock: Callable[[], float],
        authenticate: Authenticate | None = None,
        may_take: Callable[[], bool] = lambda: True,
        left: Callable[[], int] = lambda: sys.maxsize,
        connection_ttl: int = -1,
        silence_factor: float = 2.0,
        prefixes: Prefixes | None = None,
        waited: Callable[[], None] = lambda: None,
        refused: Callable[[Refusal, str], None] = lambda *_: None,
    ) -> None:
        """Begin a session.

        ``write`` takes bytes for the client, returns how many it took so far and must not raise;
        ``left`` says how many of those the socket took at least; ``close`` ends the connection once
        all are sent. ``authenticate`` asks the core at once if it is not given; ``may_take`` says
        whether there is memory for deliveries. ``connection_ttl`` (milliseconds),
        ``silence_factor`` and ``prefixes`` are those of the acceptor the client came by. ``waited``
        is called when ``is_waiting`` may be over, unless a call of the socket's owner ended it;
        ``refused`` hears of what the client does wrong.
        """
        self._core = core
        self._authenticate = authenticate or self._authenticate_now
        self._may_take = may_take
        self._left = left
        self._connection_ttl = connection_ttl
        self._silence_factor = silence_factor
        self._prefixes = prefixes
        self._limits = limits
        self._write = write
        self._close = close
        self._clock = clock
        self._parser = FrameParser(limits)
        self._parser.limit_to(
            replace(
                limits,
                max_header_bytes=min(limits.max_header_bytes, MAX_CONNECT_BYTES),
                max_body_bytes=min(limits.max_body_bytes, MAX_CONNECT_BYTES),
            ),
            " before CONNECTED",
        )
        self._waited = waited
        self._refused = refused
        self._first: bytes | None = b""
        """The first bytes the client sent, until it is known that they are STOMP."""
        self._incoming: _LargeSend | None = None
        self._incoming_since = 0.0
        """When something of its body came last."""
        self._stream: BodyStream | None = None
        self._deferred: list[bytes] = []
        """What is to be written after the body that is being streamed."""
        self._deferred_bytes = 0
        self._frames: Iterator[Frame | BodyPiece] = iter(())
        self._is_late = False
        """Whether frames are left for a later turn of the loop."""
        self._late_bytes = 0
        self._early_bytes = 0
        self._state = _State.CONNECTING
        self._version = Version.V1_2
        self._principal = Principal("", frozenset())
        self._subscriptions = ClientSubscriptions()
        self._transactions = OpenTransactions(limits)
        self._refused_work: list[TransactionWork] = []
        """The transaction whose COMMIT ends the session, which is open no more."""
        self._outstanding = 0
        self._receipt_bytes = 0
        self._subscription_bytes = 0
        self._unacknowledged_bytes = 0
        self.released_bytes = 0
        """How much the client has acknowledged or given back so far."""
        self._disconnect_receipt: str | None = None
        self._connect_by = clock() + limits.connect_timeout / 1000
        self._beats = HeartBeats(0, 0, clock())
        self._silence = ""
        self._is_writable = True
        self._handlers: dict[str, Callable[[Frame], Steps | None]] = {
            "SEND": self._send,
            "SUBSCRIBE": self._subscribe,
            "UNSUBSCRIBE": self._unsubscribe,
            "ACK": self._ack,
            "NACK": self._nack,
            "BEGIN": self._begin,
            "COMMIT": self._commit,
            "ABORT": self._abort,
            "DISCONNECT": self._disconnect,
        }

    # --- what the socket's owner calls

    @property
    def is_closed(self) -> bool:
        """Whether the session is over."""
        return self._state is _State.CLOSED

    @property
    def is_waiting(self) -> bool:
        """Whether the client is not to be read from for now.

        It waits for the answer to its login, for the store to take of a large message, or for its
        next turn.
        """
        if self._is_late:
            return True
        if self._incoming is None:
            return self._state is _LOGGING_IN
        return self._state is _STORING or not self._incoming.upload.wants_more

    @property
    def sent_bytes(self) -> int:
        """What the broker holds because the client sent it: it grows by its frames only."""
        return (
            self._parser.held
            + self._early_bytes
            + self._late_bytes
            + self._transactions.size
            - self._transactions.aside
            + self._receipt_bytes
            + self._subscription_bytes
            + self._deferred_bytes
            + (self._incoming.upload.held if self._incoming is not None else 0)
        )

    @property
    def held_bytes(self) -> int:
        """The same, and the messages the client has and did not acknowledge."""
        streamed = self._stream.held if self._stream is not None else 0
        delivered = self._unacknowledged_bytes + self._transactions.aside
        return self.sent_bytes + delivered + streamed

    def receive(self, data: bytes) -> None:
        """Take bytes from the client."""
        if self._is_ending():
            return
        self._beats.read(self._clock())
        if self._first is not None and self._is_stranger(self._first + data[:ENOUGH]):
            return
        waited = self._is_late or self._state is _LOGGING_IN or self._state is _STORING
        frames = self._parser.events(data)
        self._frames = chain(self._frames, frames) if waited else frames
        if not waited:
            self._go_on()
        if self._is_late:
            self._late_bytes += len(data)
        self._wait_with(data)

    def _is_stranger(self, first: bytes) -> bool:
        """End a client that speaks another protocol."""
        stranger = recognise(first)
        self._first = first if len(first) < ENOUGH else None
        if stranger is None:
            return False
        self._refused(Refusal.PROTOCOL, stranger.reason)
        self._write(stranger.answer)
        self._end(failed=True)
        self._close()
        return True

    def _wait_with(self, data: bytes) -> None:
        """Note what comes before the login is answered; it is looked at afterwards."""
        if self._state is not _LOGGING_IN:
            return
        self._early_bytes += len(data)
        if self._early_bytes > self._limits.max_header_bytes:
            self._refuse("too much was sent before CONNECTED", None, Refusal.LIMIT)

    def _go_on(self) -> None:
        """Handle the frames that came, as far as a slice goes; the others in later turns."""
        if not self._core.slices.run(self._handling()):
            self._is_late = True

    def _handling(self) -> Steps:
        frame: Frame | None = None
        connected, connecting = _CONNECTED, _CONNECTING
        left = _FRAMES
        try:
            for event in self._frames:
                if event.__class__ is Frame:
                    frame = event
                    steps = self._handle(frame)
                    if steps is not None:
                        yield from steps
                else:
                    frame = self._streamed_frame(event)
                    self._stream_in(event)
                if self._state is not connected and self._state is not connecting:
                    break
                frame = None
                left -= 1
                if not left:
                    left = _FRAMES
                    yield GO_ON
                    if self._state is not connected and self._state is not connecting:
                        break  # the session was ended while others had their turn
        except (ProtocolError, BrokerError) as error:
            self._refuse_for(error, frame)
        except Exception:
            self.go_away()
            raise
        if self._is_late:
            self._is_late = False
            self._late_bytes = 0
            self._waited()

    def tick(self, now: float, *, is_read: bool = True, paused: float = 0.0) -> None:
        """Send a heart-beat if one is due; end a client that is silent, or never connects.

        A client that is not read from at the moment is not silent, nor is one while the node itself
        stood still: for ``paused`` seconds since the last call.
        """
        if paused:
            self._beats.forgive(paused, now)
            self._connect_by += paused
            self._incoming_since += paused
        if not is_read:
            self._beats.read(now)
            self._incoming_since = now
        if self._state is _State.CONNECTING and now > self._connect_by:
            late = f"no CONNECT frame within {self._limits.connect_timeout} ms"
            self._refuse(late, None, Refusal.NO_CONNECT)
        elif (
            self._incoming is not None
            and self._state is _State.CONNECTED
            and now > self._incoming_since + self._limits.upload_timeout / 1000
        ):
            idle = (
                f"nothing came for upload-timeout {self._limits.upload_timeout} ms of the body of a"
                f" message to {quoted(self._incoming.destination)}, of which"
                f" {self._incoming.upload.size} bytes are there"
            )
            self._refuse(idle, self._incoming.frame, Refusal.SILENCE)
        elif self._state is _State.CONNECTED and self._beats.is_gone(now):
            self._refuse(self._silence, None, Refusal.SILENCE)
        elif self._state is not _State.CLOSED and self._stream is None and self._beats.is_due(now):
            self._write(b"\n")

    def set_writable(self, *, writable: bool) -> None:
        """Say whether the socket takes more; deliveries stop while it does not."""
        self._is_writable = writable
        if writable:
            if self._stream is not None:
                self._stream.resume()
            for subscription in self._subscriptions.all():
                if subscription.core is not None:
                    subscription.core.resume()

    def connection_lost(self) -> None:
        """End the session: what was delivered and not acknowledged goes back."""
        self._end(failed=True)

    def shut_down(self, reason: str) -> None:
        """End the session from the broker's side, saying why; the caller tells the operator."""
        self._refuse(reason, None, None)

    def go_away(self) -> None:
        """End the session as a node that was killed does, but with all that was written sent."""
        if self._state is not _State.CLOSED:
            self._end(failed=False)
            self._close()

    def _is_ending(self) -> bool:
        return self._state is _CLOSED or self._state is _DISCONNECTING

    # --- connecting

    def _handle(self, frame: Frame) -> Steps | None:
        if self._state is _CONNECTING:
            if frame.command not in ("CONNECT", "STOMP"):
                shown = frame.command[:40]
                raise ProtocolError(
                    f"the first frame is {quoted(shown)}; expected CONNECT or STOMP"
                )
            self._connect(frame)
            return None
        handler = self._handlers.get(frame.command)
        if handler is None:
            if frame.command in ("CONNECT", "STOMP"):
                frame.version = Version.V1_0
                raise ProtocolError("this connection is connected already")
            known = ", ".join(self._handlers)
            raise ProtocolError(
                f"unknown command {quoted(frame.command[:40])}; expected one of {known}"
            )
        return handler(frame)

    def _connect(self, frame: Frame) -> None:
        frame.version = Version.V1_0  # CONNECT is never escaped
        accepted = (frame.get(b"accept-version") or "1.0").replace(" ", "").split(",")
        common = [version for version in Version if version.value in accepted]
        if not common:
            supported = ", ".join(version.value for version in Version)
            raise ProtocolError(
                f"accept-version {quoted(','.join(accepted))} has none of the supported {supported}"
            )
        self._version = self._parser.version = common[-1]
        sends_ms, expects_ms = negotiate(frame.get(b"heart-beat"))
        self._state = _State.LOGGING_IN
        at_once = True

        def answered(outcome: Principal | BrokerError) -> None:
            if self._state is not _State.LOGGING_IN:
                return
            if isinstance(outcome, BrokerError):
                self._refuse_for(outcome, frame)
                return
            self._connected(outcome, sends_ms, expects_ms, frame.get(b"request-id"))
            if not at_once:
                self._early_bytes = 0
                self._go_on()

        self._authenticate(frame.get(b"login"), frame.get(b"passcode"), answered)
        at_once = False

    def _authenticate_now(
        self,
        login: str | None,
        passcode: str | None,
        answered: Callable[[Principal | BrokerError], None],
    ) -> None:
        answered(self._core.authenticate(login, passcode))

    def _connected(
        self, principal: Principal, sends_ms: int, expects_ms: int, request_id: str | None
    ) -> None:
        self._principal = principal
        headers = [
            ("version", self._version.value),
            ("session", str(uuid.uuid4())),
            ("server", SERVER),
            ("heart-beat", f"{sends_ms},{expects_ms}"),
        ]
        if request_id is not None:
            headers.append(("response-id", request_id))
        ttl = self._connection_ttl
        self._beats = HeartBeats(
            sends_ms,
            expects_ms,
            self._clock(),
            ttl_ms=ttl,
            silence_factor=self._silence_factor,
        )
        self._silence = (
            "no heart-beat from the client within its time"
            if expects_ms
            else f"nothing came from the client for connectionTtl {ttl} ms; agree on heart-beats"
        )
        self._parser.limit_to(self._limits)
        if self._core.large is not None and self._limits.min_large_message_size > 0:
            self._parser.stream_from(
                self._limits.min_large_message_size, self._limits.max_large_message_size
            )
        self._state = _State.CONNECTED
        self._write(server_frame("CONNECTED", headers, b"", self._version))

    # --- sending

    def _send(self, frame: Frame) -> Steps | None:
        if frame.raw.get(b"destination") in DESTINATIONS:
            self._manage(frame)
            return None
        destination, message = self._addressed(frame)
        if b"transaction" in frame.raw:
            work = self._transactions.reserve(frame, message)
            if destination not in work.checked:
                self._core.check_send(self._principal, destination)
                work.checked.add(destination)
            work.sends.append((destination, message))
            self._receipt_now(frame)
            return None
        sent = self._core.send(
            self._principal,
            destination,
            message,
            self._receipt_later(frame),
            self._refuse_unstored,
        )
        return None if sent is None else self._awaiting(sent)

    @staticmethod
    def _awaiting(sent: FanOut) -> Steps:
        while sent.is_behind:
            yield REST

    def _manage(self, frame: Frame) -> None:
        request = read_request(frame)
        receipt = self._receipt_later(frame)

        def deleted(messages: int) -> None:
            if isinstance(receipt, partial):
                receipt(deleted_messages=messages)
            else:
                self._stored()

        self._core.delete_queue(self._principal, request.name, deleted, force=request.force)

    def _addressed(self, frame: Frame) -> tuple[str, OutgoingMessage]:
        """Return a SEND's message and where it goes."""
        raw = frame.raw
        destination = frame.required(b"destination")
        if self._prefixes is not None:
            destination = self._prefixes.of_core(destination)
        not_passed_on, expires_ms = NOT_PASSED_ON, 0
        if not LOOKED_AT.isdisjoint(raw):
            refuse("SEND", raw)
            destination = of_type(destination, frame.get(b"destination-type"))
            expires_ms = frame.number(b"expires", 0)
            if not TOOLS_OWN.isdisjoint(raw) and self._core.may_replay(self._principal):
                not_passed_on -= TOOLS_OWN
        headers = frame.user_headers(not_passed_on)
        is_persistent = raw.get(b"persistent") != b"false"
        message = OutgoingMessage(headers, frame.body, is_persistent, expires_ms, _PRIORITY)
        return destination, message

    # --- sending what is large

    def _streamed_frame(self, event: Frame | BodyPiece) -> Frame | None:
        if isinstance(event, Frame):
            return event
        return None if self._incoming is None else self._incoming.frame

    def _stream_in(self, event: Frame | BodyPiece) -> None:
        if isinstance(event, LargeFrame):
            self._begin_upload(event)
        elif isinstance(event, BodyPiece) and self._incoming is not None:
            upload = self._incoming.upload
            upload.add(event.data)
            self._incoming_since = self._clock()
            self._core.check_upload(self._incoming.destination, upload.size, 0)
            if event.is_last:
                self._state = _State.STORING
                upload.finish()

    def _begin_upload(self, frame: LargeFrame) -> None:
        """Refuse the message at its head, if it is to be refused; else take its body."""
        destination, message = self._addressed(frame)
        if b"transaction" in frame.raw:
            self._transactions.reserve(frame, message)
        upload = self._core.upload(self._principal, destination, self._waited, self._uploaded)
        self._incoming = _LargeSend(frame, destination, message, upload)
        self._incoming_since = self._clock()
        if b"content-length" in frame.raw:
            size = frame.number(b"content-length", 0)
            self._core.check_upload(destination, size, size)

    def _uploaded(self, outcome: LargeBody | OrthiaError) -> None:
        incoming, self._incoming = self._incoming, None
        if incoming is None:
            raise RuntimeError("a body was stored that is of no message")
        if isinstance(outcome, JournalClosed):
            self.go_away()
            return
        if isinstance(outcome, OrthiaError):
            text = f"the message could not be stored: {outcome}"
            self._refuse(text, incoming.frame, refusal_of(outcome))
            return
        self._state = _State.CONNECTED
        try:
            self._send_large(incoming, incoming.message._replace(large=outcome))
        except (ProtocolError, BrokerError) as error:
            self._unpin([outcome])
            self._refuse_for(error, incoming.frame)
            return
        self._go_on()
        self._waited()

    def _send_large(self, incoming: _LargeSend, message: OutgoingMessage) -> None:
        frame = incoming.frame
        if b"transaction" in frame.raw:
            self._transactions.named(frame).sends.append((incoming.destination, message))
            self._receipt_now(frame)
        else:
            receipt = self._receipt_later(frame)
            self._core.send(
                self._principal, incoming.destination, message, receipt, self._refuse_unstored
            )

    def _unpin(self, bodies: Iterable[LargeBody]) -> None:
        if self._core.large is not None:
            for body in bodies:
                self._core.large.unpin(body.id)

    # --- delivering what is large

    def _stream_out(
        self, subscription: ClientSubscription, reference: MessageReference, body: LargeBody
    ) -> None:
        if self._core.large is None:
            raise RuntimeError("a large message in a broker that stores none")
        self._stream = BodyStream(
            self._core.large,
            body,
            write=self._write,
            may_go_on=lambda: self._is_writable and self._may_take(),
            ended=partial(self._streamed, subscription, reference),
        )

    def _streamed(
        self,
        subscription: ClientSubscription,
        reference: MessageReference,
        error: OrthiaError | None,
    ) -> None:
        if error is not None:
            LOGGER.error(
                "message %d cannot be delivered whole, its client is cut off and it goes back to"
                " its queue: %s",
                reference.seq,
                error,
            )
            subscription.refuse(reference)
            self.go_away()
            return
        self._stream = None
        deferred, self._deferred, self._deferred_bytes = self._deferred, [], 0
        for frame in deferred:
            self._write(frame)
        subscription.streamed(reference)
        if self._state is _State.DISCONNECTING and not self._outstanding:
            self._finish_disconnect()
        else:
            self.set_writable(writable=self._is_writable)

    # --- subscriptions

    def _subscribe(self, frame: Frame) -> None:
        refuse("SUBSCRIBE", frame.raw)
        destination = frame.required(b"destination")
        subscription_id = frame.get(b"id")
        if subscription_id is None and self._version is not Version.V1_0:
            raise ProtocolError("SUBSCRIBE has no id header, which STOMP 1.1 and 1.2 require")
        key = destination if subscription_id is None else subscription_id
        if key in self._subscriptions:
            raise ProtocolError(f"this connection has a subscription {quoted(key)} already")
        if len(self._subscriptions) >= self._limits.max_subscriptions:
            limit = self._limits.max_subscriptions
            raise ProtocolError(f"this connection has max-subscriptions {limit} already")
        subscription = ClientSubscription(
            subscription_id,
            self._subscriptions.next_number(),
            destination,
            self._ack_mode(frame),
            version=self._version,
            write=self._write,
            is_writable=self._takes_more,
            holds=self._hold,
            fail=lambda reason: self._refuse(reason, None, Refusal.SLOW),
            stream=self._stream_out,
            connection=self,
        )
        meant = destination if self._prefixes is None else self._prefixes.of_core(destination)
        prefetch, window = self._credit(frame, subscription.mode)
        subscription.core = self._core.subscribe(
            self._principal,
            of_type(meant, frame.get(b"subscription-type")),
            subscription,
            prefetch=prefetch,
            window=window,
        )
        self._subscriptions.add(key, subscription)
        subscription.cost = _SUBSCRIPTION_COST + 4 * (len(key) + len(destination))
        self._subscription_bytes += subscription.cost
        self._receipt_now(frame)
        subscription.core.resume()

    def _takes_more(self) -> bool:
        return (
            self._is_writable
            and (self._state is _CONNECTED or self._state is _STORING)
            and self._stream is None
            and self._may_take()
        )

    def _hold(self, change: int) -> None:
        self._unacknowledged_bytes += change
        if change < 0:
            self.released_bytes -= change

    def _unsubscribe(self, frame: Frame) -> None:
        refuse("UNSUBSCRIBE", frame.raw)
        subscription_id, destination = frame.get(b"id"), frame.get(b"destination")
        if subscription_id is None and (self._version is not Version.V1_0 or destination is None):
            raise ProtocolError("UNSUBSCRIBE has no id header")
        key = (destination or "") if subscription_id is None else subscription_id
        subscription = self._subscriptions.remove(key)
        self._subscription_bytes -= subscription.cost
        if subscription.core is not None:
            subscription.core.close()
        self._receipt_now(frame)

    def _ack_mode(self, frame: Frame) -> AckMode:
        text = frame.get(b"ack") or "auto"
        try:
            return AckMode(text)
        except ValueError:
            expected = ", ".join(mode.value for mode in AckMode)
            raise ProtocolError(
                f"ack {quoted(text)} is unknown; expected one of {expected}"
            ) from None

    def _credit(self, frame: Frame, mode: AckMode) -> tuple[int, int | None]:
        """Return how many messages may be unacknowledged, and how many bytes of them."""
        if mode is AckMode.AUTO:
            return 0, None
        window = _asked(frame, b"consumer-window-size")
        if window:
            return _MOST_MESSAGES, None if window < 0 else window
        if window is None:
            asked = frame.number(b"prefetch-count", 0) or _asked(frame, b"activemq.prefetchSize")
            if asked is None:
                return self._limits.prefetch_count, None
            if asked:
                return _MOST_MESSAGES if asked < 0 else min(asked, _MOST_MESSAGES), None
        return 1, None

    # --- acknowledging

    def _ack(self, frame: Frame) -> None:
        self._acknowledge(frame, nack=False)

    def _nack(self, frame: Frame) -> None:
        if self._version is Version.V1_0:
            raise ProtocolError("STOMP 1.0 has no NACK")
        self._acknowledge(frame, nack=True)

    def _acknowledge(self, frame: Frame, *, nack: bool) -> None:
        subscription, seq = self._subscriptions.named(frame)
        transacted = b"transaction" in frame.raw
        if transacted:
            self._transactions.named(frame)
        references = subscription.take(seq)
        core = subscription.core
        if core is None:
            raise ProtocolError("the subscription is closed")
        if transacted:
            self._transactions.answer(frame, core, references, nack=nack)
            self._receipt_now(frame)
            core.resume()
        elif nack:
            core.reject(references)
            self._receipt_now(frame)
        else:
            core.acknowledge(references, self._receipt_later(frame))

    # --- transactions

    def _begin(self, frame: Frame) -> None:
        self._transactions.begin(frame)
        self._receipt_now(frame)

    def _commit(self, frame: Frame) -> Steps:
        work = self._transactions.named(frame)
        receipt = self._receipt_later(frame)
        try:
            refusal = partial(self._refuse_commit, work)
            steps = self._core.commit(self._principal, work, receipt or (lambda: None), refusal)
            for rests in steps:
                yield rests
                if self._state is _State.CLOSED:
                    return  # nothing of it is done
        except BrokerError:
            work.is_refused = True
            raise
        self._transactions.forget(frame)

    def _refuse_commit(
        self, work: TransactionWork, error: OrthiaError, stored: Callable[[], None] | None
    ) -> None:
        """Refuse a transaction that the store does not take; the core counts what was in it."""
        work.is_refused = True
        self._refused_work.append(work)
        self._refuse_unstored(error, stored)

    def _abort(self, frame: Frame) -> None:
        work = self._transactions.named(frame)
        self._transactions.forget(frame)
        self._let_go(work)
        for answered in (work.acknowledgements, work.rejections):
            for core, references in answered.items():
                subscription = self._subscriptions.of(core)
                if subscription is not None:
                    core.put_back(references)
                    subscription.put_back(references)
        self._receipt_now(frame)

    def _let_go(self, work: TransactionWork) -> None:
        self._unpin(message.large for _, message in work.sends if message.large is not None)

    # --- receipts and the end

    def _receipt_now(self, frame: Frame) -> None:
        receipt = frame.get(b"receipt")
        if receipt is not None:
            self._write_receipt(receipt)

    def _receipt_later(self, frame: Frame) -> Callable[[], None] | None:
        """Return what sends the RECEIPT of a frame once it is stored."""
        receipt = frame.get(b"receipt")
        self._outstanding += 1
        if receipt is None:
            return self._stored
        self._receipt_bytes += len(receipt) + _RECEIPT_COST

        return partial(self._receipted, receipt)

    def _receipted(self, receipt: str, *, deleted_messages: int | None = None) -> None:
        self._receipt_bytes -= len(receipt) + _RECEIPT_COST
        if self._state is not _CLOSED:
            self._write_receipt(receipt, deleted_messages)
        self._stored()

    def _refuse_unstored(self, error: OrthiaError, stored: Callable[[], None] | None) -> None:
        """Refuse what the store does not take; ``stored`` would have sent its receipt."""
        receipt = stored.args[0] if isinstance(stored, partial) else None
        self._refuse_naming(str(error), receipt, refusal_of(error))

    def _stored(self) -> None:
        self._outstanding -= 1
        if self._state is _DISCONNECTING and not self._outstanding and self._stream is None:
            self._finish_disconnect()

    def _write_receipt(self, receipt: str, deleted_messages: int | None = None) -> None:
        frame = receipt_frame(receipt, self._version, deleted_messages)
        if self._stream is None:
            self._write(frame)
        else:
            self._deferred.append(frame)
            self._deferred_bytes += len(frame) + _RECEIPT_COST

    def _disconnect(self, frame: Frame) -> None:
        self._disconnect_receipt = frame.get(b"receipt")
        self._state = _State.DISCONNECTING
        self._clear()
        self._outstanding += 1
        self._core.slices.run(self._closing((), failed=False))

    def _finish_disconnect(self) -> None:
        if self._disconnect_receipt is not None:
            self._write_receipt(self._disconnect_receipt)
        self._state = _State.CLOSED
        self._close()

    def _refuse_for(self, error: OrthiaError, frame: Frame | None) -> None:
        if isinstance(error, NotLive):
            self.go_away()
        else:
            self._refuse(str(error), frame, refusal_of(error))

    def _refuse(self, reason: str, frame: Frame | None, kind: Refusal | None) -> None:
        named = frame is not None and b"receipt" in frame.raw
        receipt = frame.get(b"receipt") if frame is not None and named else None
        self._refuse_naming(reason, receipt, kind)

    def _refuse_naming(self, reason: str, receipt: str | None, kind: Refusal | None) -> None:
        if self._state is _State.CLOSED:
            return
        if kind is not None:
            self._refused(kind, reason)
        connecting = self._state in (_State.CONNECTING, _State.LOGGING_IN)
        if self._stream is None:
            self._write(error_frame(reason, receipt, self._version, names_versions=connecting))
        self._end(failed=True)
        self._close()

    def _end(self, *, failed: bool) -> None:
        if self._state is _State.CLOSED:
            return
        self._state = _State.CLOSED
        if self._stream is not None:
            self._stream.cancel()
            self._stream = None
        self._deferred.clear()
        self._deferred_bytes = 0
        works = self._transactions.all() + self._refused_work
        self._clear()
        self._outstanding += 1
        self._core.slices.run(self._closing(works, failed=failed))

    def _clear(self) -> None:
        self._frames = iter(())
        self._early_bytes = 0
        self._parser.clear()
        if self._incoming is not None:
            self._incoming.upload.abort()
            self._incoming = None
        for work in self._transactions.clear():
            self._let_go(work)

    def _closing(self, works: Collection[TransactionWork], *, failed: bool) -> Steps:
        """Give messages back; ``works`` were open, and where that ``failed`` it was an attempt."""
        self._subscription_bytes = 0
        left = self._left() if failed else 0
        for subscription in self._subscriptions.clear():
            core = subscription.core
            if core is not None:
                oldest = subscription.oldest if failed else None
                core.close(attempted=attempted(core, oldest, works, left) if failed else ())
            yield GO_ON
        self._stored()


def _asked(frame: Frame, name: bytes) -> int | None:
    """Return how much a header asks for, negative for no bound; None if it is not there."""
    text = frame.get(name)
    if not text:
        return None
    if text != "-1" and not is_whole_number(text):
        raise ProtocolError(
            f"header {name.decode()} is {quoted(text)}; expected a whole number, or -1 for as many"
            " as the limits allow"
        )
    return int(text)
