# mypyc compiles this module.
"""One client's connection as a state machine: frames in, calls to the core, frames out.

A client logs in by SASL, or without as a guest, opens the connection, and begins sessions, whose
links are of ``session``. This module reads frames in their order and ends the connection.

A node that stops, or is no longer live, closes without an error: to clients an error says that they
did wrong, and some exit on it.
"""

import logging
from collections.abc import Callable, Collection, Generator
from dataclasses import replace
from enum import Enum
from importlib import metadata
from typing import Final

from typing_extensions import override

from orthia.broker.core.api import OpenTransaction, TransactionWork
from orthia.broker.core.broker import Broker
from orthia.broker.core.errors import BrokerError, LoginNotChecked, NotLive, Refusal
from orthia.broker.core.identity import Principal
from orthia.broker.core.limits.refusals import refusal_of
from orthia.broker.core.slices import GO_ON, Repeating, Steps, Wait
from orthia.broker.protocols.abc import Socket
from orthia.broker.protocols.amqp.attaching import attach
from orthia.broker.protocols.amqp.client import Client
from orthia.broker.protocols.amqp.conditions import (
    CONNECTION_FORCED,
    DECODE_ERROR,
    FRAMING_ERROR,
    INTERNAL_ERROR,
    NOT_ALLOWED,
    RESOURCE_LIMIT,
    UNAUTHORIZED,
    ConnectionFault,
    Fault,
    SessionFault,
    error_of,
)
from orthia.broker.protocols.amqp.frames import (
    AMQP_FRAME,
    AMQP_ID,
    EMPTY_FRAME,
    MIN_MAX_FRAME_SIZE,
    SASL_FRAME,
    SASL_ID,
    Frame,
    FrameReader,
    ProtocolHeader,
    encode_frame,
)
from orthia.broker.protocols.amqp.nodes import Nodes
from orthia.broker.protocols.amqp.options import MAX_SESSIONS, AmqpOptions
from orthia.broker.protocols.amqp.performatives import (
    Attach,
    Begin,
    Close,
    Detach,
    Disposition,
    End,
    Error,
    Flow,
    Open,
    SaslChallenge,
    SaslInit,
    SaslMechanisms,
    SaslOutcome,
    SaslResponse,
    Transfer,
    decode_performative,
    decode_sasl,
    encode_performative,
)
from orthia.broker.protocols.amqp.sasl import (
    AUTH,
    OK,
    SYS_TEMP,
    Credentials,
    credentials,
    offered,
    plain,
)
from orthia.broker.protocols.amqp.session import AmqpSession
from orthia.broker.protocols.amqp.timeouts import Timeouts
from orthia.broker.protocols.amqp.transactions import Transactions
from orthia.broker.protocols.amqp.values import (
    AmqpDecodeError,
    AmqpFramingError,
    Int,
    Symbol,
    Value,
)
from orthia.broker.protocols.attempts import attempted
from orthia.journal.model.unit import Sender

LOGGER = logging.getLogger("orthia.broker")
PRODUCT: Final = "orthia"
VERSION: Final = metadata.version("orthia")
_FRAMES: Final = 4
"""How many frames are handled before others may have a turn."""
_SOLE: Final = Symbol("sole-connection-for-container")
_OFFERED: Final = (
    _SOLE,
    *(Symbol(one) for one in ("ANONYMOUS-RELAY", "DELAYED_DELIVERY", "SHARED-SUBS")),
)
_FAILED: Final = Symbol("amqp:connection-establishment-failed")
"""The property of an OPEN that is followed by a CLOSE."""
_OUTCOME_COST: Final = 256
"""Bytes that a delivery counts for until its outcome is said."""
_SESSION_COST: Final = 2_048
"""Bytes that a session counts for beside its links."""


class Stage(Enum):
    """How far a connection is."""

    STARTING = "starting"
    """Before the first protocol header."""
    CHOOSING = "choosing"
    """Before the client has chosen how it logs in."""
    RESPONDING = "responding"
    """Before its response to a challenge."""
    LOGGING_IN = "logging in"
    LET_IN = "let in"
    """Whether the client may come in without SASL is being found out."""
    LOGGED_IN = "logged in"
    """Before the protocol header of AMQP itself."""
    OPENING = "opening"
    OPEN = "open"
    STOPPING = "stopping"
    """This node stops: what was done is still answered."""
    CLOSED = "closed"


_READING: Final = frozenset(
    {
        *(Stage.STARTING, Stage.CHOOSING, Stage.RESPONDING),
        *(Stage.LOGGED_IN, Stage.OPENING, Stage.OPEN),
    }
)
"""Stages in which frames are handled."""
_SASL: Final = frozenset({Stage.CHOOSING, Stage.RESPONDING, Stage.LOGGING_IN})


class AmqpConnection(Client):
    """The protocol's side of one connection; whoever owns the socket calls it on the loop."""

    __deletable__ = ("_nodes", "_transactions")

    def __init__(
        self, core: Broker, options: AmqpOptions, socket: Socket, clock: Callable[[], float]
    ) -> None:
        """Begin a connection; ``clock`` is monotonic, in seconds."""
        super().__init__(core, options, socket, clock)
        self._usage = socket.usage
        self._stage = Stage.STARTING
        self._reads = True
        """Whether frames are handled, as ``_READING`` says of the stage."""
        self._is_late = False
        """Whether frames are left for a later turn of the loop."""
        self._steps: Steps | None = None
        self._wait: Wait | None = None
        """What the steps of the frame that is being handled wait for, if that may take long."""
        self._was_disconnected = False
        self._frames = FrameReader(options.frame_before_login)
        self._timeouts = Timeouts(
            options.limits.connect_timeout, options.amqp.idle_timeout, clock()
        )
        self._mechanisms: tuple[Symbol, ...] = ()
        self._nodes = Nodes(self)
        self._transactions = Transactions(self)
        self._sessions: dict[int, AmqpSession | None] = {}
        """By channel; None for one that this side has ended, until the client says so, too."""
        self._resuming = Repeating()
        self._sole_id: str | None = None
        """The container id that this connection has alone, which may be empty."""

    # --- what the socket's owner calls

    @override
    def choose_subprotocol(self, name: str) -> None:
        """Do nothing: there is one version."""

    @property
    @override
    def is_closed(self) -> bool:
        return self._stage is Stage.CLOSED

    @property
    @override
    def was_disconnected(self) -> bool:
        return self._was_disconnected

    @property
    @override
    def is_waiting(self) -> bool:
        """Whether the client waits: for its login, for the store, or for its next turn."""
        return self._is_late or not self.uploads.wants_more

    @override
    def receive(self, data: bytes) -> None:
        if self.is_over:
            return
        self._timeouts.heard(self.clock())
        self._frames.receive(data)
        if self._is_late:
            is_logging_in = self._stage in (Stage.LOGGING_IN, Stage.LET_IN)
            if is_logging_in and self._frames.held > self.options.frame_before_login:
                self.refuse(
                    Error(RESOURCE_LIMIT, "too much was sent before the login"), Refusal.LIMIT
                )
            return
        if not self.core.slices.run(self._handling(), self._usage):
            self._is_late = True

    @override
    def tick(self, now: float, *, is_read: bool = True, paused: float = 0.0) -> None:
        timeouts = self._timeouts
        timeouts.leave_out(now, is_read=is_read, paused=paused)
        self.uploads.leave_out(now, is_read=is_read, paused=paused)
        if self.is_over:
            return
        idle = self.uploads.idle_too_long(now)
        if idle is not None:
            self.refuse(Error(RESOURCE_LIMIT, idle), Refusal.SILENCE)
        elif timeouts.is_late(now):
            limit = self.options.limits.connect_timeout
            self.refuse(
                Error(
                    RESOURCE_LIMIT, f"the connection was not open within connect-timeout {limit} ms"
                ),
                Refusal.NO_CONNECT,
            )
        elif timeouts.is_silent(now):
            limit = self.options.amqp.idle_timeout
            self.refuse(
                Error(
                    RESOURCE_LIMIT, f"nothing came from the client for amqpIdleTimeout {limit} ms"
                ),
                Refusal.SILENCE,
            )
        elif timeouts.is_beat_due(now):
            self.write(EMPTY_FRAME)

    @override
    def set_writable(self, *, writable: bool) -> None:
        self.is_writable = writable
        if writable:
            self._resume()

    @property
    @override
    def held(self) -> int:
        return (
            self._frames.held
            + self._transactions.size
            + self.links_size
            + self.buffered
            + self.unwritten
            + self.uploads.held
            + self.unacknowledged
            + _SESSION_COST * len(self._sessions)
            + _OUTCOME_COST * self.outstanding
        )

    @property
    @override
    def sent(self) -> int:
        return self.held - self.unacknowledged - self.unwritten - self._transactions.aside

    @property
    @override
    def released(self) -> int:
        return self.acknowledged

    @override
    def open_transactions(self) -> list[OpenTransaction]:
        return self._transactions.open()

    @override
    def connection_lost(self) -> None:
        if self._stage is Stage.CHOOSING:
            # To its user it says that it cannot log in so, and to the broker nothing.
            offered = ", ".join(self._mechanisms)
            self.socket.refused(
                Refusal.PROTOCOL, f"it left without a login: it was offered {offered} (SASL)"
            )
        self._end(failed=True)

    @override
    def release(self) -> None:
        self._sessions.clear()
        del self._nodes, self._transactions

    @override
    def shut_down(self, reason: str) -> None:
        self.refuse(Error(CONNECTION_FORCED, reason), None)

    @override
    def go_away(self) -> None:
        if not self.is_closed:
            self._end(failed=False)
            self.socket.close()

    @override
    def farewell(self, reason: str) -> bytes:
        return self._last_frames(Error(RESOURCE_LIMIT, reason))

    # --- reading

    def _enter(self, stage: Stage) -> None:
        self._stage = stage
        self._reads = stage in _READING
        self.is_serving = stage is Stage.OPEN

    def _handling(self) -> Steps:
        """Handle the frames that came, as far as a slice goes; the others in later turns."""
        left = _FRAMES
        try:
            while self._reads and (frame := self._frames.next_frame()) is not None:
                steps = self._handle(frame)
                if steps is not None:
                    yield from self._through(steps)
                left -= 1
                if not left:
                    left = _FRAMES
                    yield GO_ON
        except AmqpFramingError as error:
            self.refuse(Error(FRAMING_ERROR, str(error)), Refusal.PROTOCOL)
        except AmqpDecodeError as error:
            self.refuse(Error(DECODE_ERROR, str(error)), Refusal.PROTOCOL)
        except NotLive:
            self.stop_serving()
        except (Fault, BrokerError) as error:
            self.refuse(error_of(error), refusal_of(error))
        except MemoryError:
            self.go_away()
            raise
        except Exception:
            LOGGER.exception("handling a client's frame failed; disconnecting it with an error")
            reason = "the broker failed to handle this; its log says why"
            self.refuse(Error(INTERNAL_ERROR, reason), Refusal.FAILURE)
        if self._is_late:
            self._is_late = False
            self.socket.wait_ended()

    def _handle(self, frame: ProtocolHeader | Frame) -> Steps | None:
        if isinstance(frame, ProtocolHeader):
            return self._take_header(frame)
        if self.is_serving:
            return self._take_frame(frame)
        if self._stage in _SASL:
            return self._take_sasl(frame)
        return self._take_open(frame)

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

    # --- the login

    def _take_header(self, header: ProtocolHeader) -> Steps | None:
        is_first = self._stage is Stage.STARTING
        if header == ProtocolHeader(SASL_ID) and is_first:
            self.write(header.encode())
            self._mechanisms = offered(
                self.options.amqp.mechanisms, has_certificate=self.socket.has_certificate
            )
            self._say_sasl(SaslMechanisms(self._mechanisms))
            self._enter(Stage.CHOOSING)
            return None
        if header == ProtocolHeader(AMQP_ID):
            self.write(header.encode())
            if not is_first:
                self._enter(Stage.OPENING)
                return None
            self._enter(Stage.LET_IN)
            return self._log_in(Credentials(None, None), by_sasl=False)
        expected = ProtocolHeader(SASL_ID if is_first else AMQP_ID)
        self.write(expected.encode())
        self.socket.refused(
            Refusal.PROTOCOL,
            f"the protocol header has the id {header.id} and version"
            f" {header.major}.{header.minor}.{header.revision}; expected AMQP 1.0.0",
        )
        self._end(failed=True)
        self.socket.close()
        return None

    def _take_sasl(self, frame: Frame) -> Steps | None:
        if frame.type != SASL_FRAME:
            raise AmqpFramingError(5, f"a frame of SASL, found one of type {frame.type}")
        said = decode_sasl(frame.body)
        try:
            found = self._credentials(said)
        except BrokerError as error:
            self._refuse_login(error, by_sasl=True)
            return None
        if found is None:
            self._say_sasl(SaslChallenge(b""))
            self._enter(Stage.RESPONDING)
            return None
        self._enter(Stage.LOGGING_IN)
        return self._log_in(found, by_sasl=True)

    def _credentials(self, said: object) -> Credentials | None:
        """Return what the client logs in with; None if it is to be asked for it first.

        Raises ConnectionFault and AuthenticationFailed.
        """
        if self._stage is Stage.CHOOSING and isinstance(said, SaslInit):
            return credentials(said, self._mechanisms)
        if self._stage is Stage.RESPONDING and isinstance(said, SaslResponse):
            return plain(said.response)
        raise ConnectionFault(NOT_ALLOWED, f"{type(said).__name__} was not asked for")

    def _log_in(self, found: Credentials, *, by_sasl: bool) -> Steps:
        answer = _Answer()
        try:
            principal = self.socket.authenticate(found.login, found.passcode, answer)
            if principal is None:
                yield answer.wait
                outcome = answer.outcome
                if isinstance(outcome, BrokerError):
                    raise outcome
                if not isinstance(outcome, Principal):
                    return
                principal = outcome
        except BrokerError as error:
            self._refuse_login(error, by_sasl=by_sasl)
            return
        self.principal = principal
        if by_sasl:
            self._say_sasl(SaslOutcome(OK))
            self._frames.expect_header()
            # qpid-jms opens a connection when its application uses it, however long after.
            self._timeouts.logged_in(self.clock())
            self._enter(Stage.LOGGED_IN)
        else:
            self._enter(Stage.OPENING)

    def _refuse_login(self, error: BrokerError, *, by_sasl: bool) -> None:
        """End a client whose login is refused; of why SASL can say little."""
        if isinstance(error, NotLive):
            raise error
        if not by_sasl:
            self.refuse(Error(UNAUTHORIZED, str(error)), refusal_of(error))
            return
        self.socket.refused(refusal_of(error), str(error))
        kind = refusal_of(error)
        is_wrong = kind in (Refusal.AUTHENTICATION, Refusal.CERTIFICATE)
        code = AUTH if is_wrong and not isinstance(error, LoginNotChecked) else SYS_TEMP
        self._say_sasl(SaslOutcome(code))
        self._end(failed=True)
        self.socket.close()

    def _say_sasl(self, said: object) -> None:
        self.write(encode_frame(encode_performative(said), 0, SASL_FRAME))

    def _take_open(self, frame: Frame) -> Steps | None:
        said = self._performative(frame)
        if said is None:
            return None
        performative, _ = said
        if not isinstance(performative, Open):
            raise ConnectionFault(NOT_ALLOWED, "the first frame is no open")
        if performative.max_frame_size < MIN_MAX_FRAME_SIZE:
            raise ConnectionFault(NOT_ALLOWED, "max-frame-size is below 512")
        now, amqp = self.clock(), self.options.amqp
        if _SOLE in performative.desired_capabilities:
            self.core.sole_clients.claim(performative.container_id, self)
            self._sole_id = performative.container_id
        self.max_frame_size = min(performative.max_frame_size, amqp.max_frame_size)
        self.principal = replace(
            self.principal,
            client_id=performative.container_id or None,
            validated_user=self.core.security.validated_user(self.principal),
            sender=Sender(is_answered_singly=True),
        )
        self._timeouts.logged_in(now)
        self._timeouts.expects(performative.idle_time_out, now)
        self._frames.max_frame_size = amqp.max_frame_size
        self._say_open()
        self._enter(Stage.OPEN)
        return None

    def _say_open(self) -> None:
        amqp = self.options.amqp
        properties: dict[Symbol, Value] = {
            Symbol("product"): PRODUCT,
            Symbol("version"): VERSION,
        }
        servers = _servers(self.options)
        if servers:
            properties[Symbol("failover-server-list")] = servers
        self.say(
            0,
            Open(
                self.core.name,
                max_frame_size=amqp.max_frame_size,
                channel_max=MAX_SESSIONS - 1,
                idle_time_out=amqp.idle_timeout // 2 or None,
                offered_capabilities=_OFFERED,
                properties=properties,
            ),
        )

    # --- sessions

    def _performative(self, frame: Frame) -> "tuple[object, int] | None":
        """Return what a frame says, and where the message begins in it; None for an empty one."""
        if frame.type != AMQP_FRAME:
            raise AmqpFramingError(5, f"a frame of AMQP, found one of type {frame.type}")
        return decode_performative(frame.body) if frame.body else None

    def _take_frame(self, frame: Frame) -> Steps | None:
        kind, channel, body = frame
        session = self._sessions.get(channel)
        if session is None:
            return self._take_performative(frame, None)
        try:
            if kind == AMQP_FRAME:
                delivery_id = session.form.id_of(body)
                if delivery_id >= 0:
                    return session.transfer_whole(delivery_id, body)
            return self._take_performative(frame, session)
        except SessionFault as error:
            return self._end_session(channel, session, error)

    def _take_performative(self, frame: Frame, session: AmqpSession | None) -> Steps | None:
        """Do what a frame says; without a ``session`` its channel has none, or an ended one."""
        said = self._performative(frame)
        if said is None:
            return None
        performative, end = said
        if isinstance(performative, Begin):
            self._begin(frame.channel, performative)
            return None
        if isinstance(performative, Close):
            return self._closing()
        if frame.channel not in self._sessions:
            raise ConnectionFault(NOT_ALLOWED, f"channel {frame.channel} has no session")
        if isinstance(performative, End):
            del self._sessions[frame.channel]
            return None if session is None else self._ending_session(frame.channel, session)
        if session is None:
            return None  # it is over: the client does not know yet
        if isinstance(performative, Transfer):
            return session.transfer(performative, frame.body, end)
        if isinstance(performative, Disposition):
            return session.disposition(performative)
        if isinstance(performative, Flow):
            session.flow(performative)
        elif isinstance(performative, Attach):
            return session.attach(performative)
        elif isinstance(performative, Detach):
            session.detach(performative)
        else:
            raise ConnectionFault(NOT_ALLOWED, "the connection is open already")
        return None

    def _end_session(self, channel: int, session: AmqpSession, fault: SessionFault) -> Steps:
        """End a session for what its client did wrong: it does not know yet."""
        self.socket.refused(refusal_of(fault), str(fault))
        self._sessions[channel] = None
        return self._ending_session(channel, session, fault.error)

    def _ending_session(
        self, channel: int, session: AmqpSession, error: Error | None = None
    ) -> Steps:
        yield from session.ending()
        self.say(channel, End(error))

    def _begin(self, channel: int, said: Begin) -> None:
        if channel in self._sessions:
            raise ConnectionFault(NOT_ALLOWED, f"channel {channel} has a session already")
        if channel >= MAX_SESSIONS:
            raise ConnectionFault(
                FRAMING_ERROR, f"channel {channel} is above channel-max {MAX_SESSIONS - 1}"
            )
        if said.remote_channel is not None:
            raise ConnectionFault(NOT_ALLOWED, "begin answers a session that this node never began")
        self._sessions[channel] = AmqpSession(
            self, channel, said, self._nodes, self._transactions, attach
        )

    # --- deliveries

    def _resume(self) -> None:
        """Deliver again by all links: the socket takes more."""
        self._resuming.ask(self.core.slices, self._resume_each)

    def _resume_each(self) -> Steps:
        for session in list(self._sessions.values()):
            if session is not None:
                yield from session.resume_each()

    # --- the end

    def _closing(self) -> Steps:
        """End in good order, as the client asks for."""
        self.is_serving = False  # what goes back by one link is not delivered to the next
        while self._sessions:
            session = self._sessions.pop(next(iter(self._sessions)))
            if session is not None:
                yield from session.ending()
        if self.is_closed:
            return
        self.say(0, Close())
        self._was_disconnected = True
        self._end(failed=False)
        self.socket.close()

    @override
    def stop_serving(self) -> None:
        """Do nothing more of what came: this node stops, or is no longer live.

        The connection ends when all that was done is answered, or when the node closes it.
        """
        if self._stage is not Stage.OPEN:
            self.go_away()
            return
        self._enter(Stage.STOPPING)
        self._drop_steps()
        self.uploads.abort()
        if not self.outstanding:
            self.go_away()

    @override
    def refuse(self, error: Error, kind: Refusal | None) -> None:
        if self.is_over:
            return
        if kind is not None:
            self.socket.refused(kind, error.description or error.condition)
        for session in self._sessions.values():
            if session is not None:
                session.flush_accepted()
        self.write(self._last_frames(error))
        self._end(failed=True)
        self.socket.close()

    def _last_frames(self, error: Error) -> bytes:
        """Return what tells the client why its connection ends, wherever it is."""
        stage = self._stage
        if stage in _SASL:
            return encode_frame(encode_performative(SaslOutcome(SYS_TEMP)), 0, SASL_FRAME)
        close = encode_frame(encode_performative(Close(error)))
        if stage in (Stage.OPEN, Stage.STOPPING):
            return close
        opened = Open(self.core.name, properties={_FAILED: True})
        frames = encode_frame(encode_performative(opened)) + close
        if stage in (Stage.LET_IN, Stage.OPENING):
            return frames
        return ProtocolHeader(AMQP_ID).encode() + frames

    def _end(self, *, failed: bool) -> None:
        if self.is_closed:
            return
        for session in self._sessions.values():
            if session is not None:
                session.flush_accepted()
        self._enter(Stage.CLOSED)
        self.is_over = True
        if self._sole_id is not None:
            self.core.sole_clients.release(self._sole_id, self)
        self._drop_steps()
        self.uploads.abort()
        works = self._transactions.unfinished()
        self._transactions.end()
        taken = self.socket.bytes_taken() if failed else None
        sessions = [one for one in self._sessions.values() if one is not None]
        self._sessions.clear()
        self.core.slices.run_last(_ending(sessions, self._nodes, works, taken))


def _servers(options: AmqpOptions) -> list[Value]:
    """Return the nodes of the pair as clients are told of them."""
    scheme = "amqps" if options.has_tls else "amqp"
    return [
        {
            Symbol("network-host"): host,
            Symbol("hostname"): host,
            Symbol("port"): Int(port),
            Symbol("scheme"): scheme,
        }
        for host, port in options.amqp.failover_servers
    ]


def _ending(
    sessions: Collection[AmqpSession],
    nodes: Nodes,
    works: Collection[TransactionWork],
    taken: int | None,
) -> Steps:
    """End all links; what was delivered and not settled goes back.

    Where the client failed, its socket took ``taken`` bytes and ``works`` were open: what it can
    have been working on counts as an attempt.
    """
    for session in sessions:
        for sender in session.leave():
            oldest, core = sender.oldest, sender.core
            sender.core = None
            if core is None:
                continue
            if taken is None:
                core.close()
            else:
                core.close(attempted=attempted(core, oldest, works, taken))
            yield GO_ON
    nodes.end()


class _Answer:
    """The outcome of a login that is answered later."""

    __slots__ = ("outcome", "wait")

    def __init__(self) -> None:
        self.outcome: Principal | BrokerError | None = None
        self.wait = Wait(lambda _: None)

    def __call__(self, outcome: Principal | BrokerError) -> None:
        self.outcome = outcome
        self.wait()
