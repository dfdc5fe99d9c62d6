# mypyc compiles this module.
"""SEND: the message a frame makes, and the three ways it goes.

Straight to the core, which says later that it is stored; into a transaction, which sends it at its
COMMIT; or, if it is large, once its body is durable, and then one of the two. A SEND to the
management address is no message but a request, which may be answered by one.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Final

from orthia.broker.core.api import (
    Done,
    FanOut,
    ManagementRequest,
    OutgoingMessage,
    TransactionWork,
    waiting,
)
from orthia.broker.core.destinations import of_type
from orthia.broker.core.errors import BrokerError, NotLive
from orthia.broker.core.identity import Principal
from orthia.broker.core.limits.refusals import refusal_of
from orthia.broker.core.management import asking
from orthia.broker.core.slices import Slices, Steps, Wait
from orthia.broker.protocols.stomp.client_frame import BodyPiece, Frame
from orthia.broker.protocols.stomp.composite import destinations_of
from orthia.broker.protocols.stomp.encoding import header_lines
from orthia.broker.protocols.stomp.frames import ProtocolError, escape
from orthia.broker.protocols.stomp.headers import (
    LOOKED_AT,
    NOT_PASSED_ON,
    SCHEDULING,
    TOOLS_OWN,
    check_group_sequence,
    priority_of,
    refuse,
)
from orthia.broker.protocols.stomp.management import (
    DESTINATIONS,
    read_request,
    reply,
    reply_to,
)
from orthia.broker.protocols.stomp.scheduling import stated
from orthia.broker.protocols.stomp.session import Session
from orthia.broker.protocols.stomp.states import Event, Handlers
from orthia.broker.protocols.stomp.temporary import TemporaryDestinations
from orthia.broker.protocols.stomp.transactions import Transactions, unpin
from orthia.broker.protocols.stomp.uploads import Uploads
from orthia.config.errors import OrthiaError
from orthia.journal.errors import JournalClosed, LargeBodyError
from orthia.journal.model.message import DEFAULT_PRIORITY, LargeBody

_MOST_KNOWN: Final = 16
"""Destinations whose names in the core a connection remembers; with one more it forgets all."""
_LONGEST_KNOWN: Final = 128
"""Bytes of a destination that is remembered: nobody counts them."""


class SendHandler:
    """Sends a client's messages; methods raise ProtocolError and BrokerError."""

    __slots__ = (
        "_core", "_known", "_prefixes", "_receipts", "_refused", "_session", "_stored",
        "_temporary", "_transactions", "_uploads",
    )  # fmt: skip

    def __init__(
        self,
        session: Session,
        transactions: Transactions,
        uploads: Uploads,
        temporary: TemporaryDestinations,
    ) -> None:
        self._session = session
        self._core = session.core
        self._receipts = session.receipts
        self._refused = session.refuse_unstored
        self._prefixes = session.options.prefixes
        self._known: dict[bytes, str] = {}
        """Destinations in the core by the header of a SEND: most clients send to few, and each is
        resolved once."""
        self._transactions = transactions
        self._uploads = uploads
        self._temporary = temporary
        self._stored: _Stored | None = None
        """What the frames behind a large message wait for."""

    @property
    def handlers(self) -> Handlers:
        """What it does, by the frame."""
        return {"SEND": self.send}

    def send(self, frame: Frame) -> Steps | None:
        """Send a message; returns steps to be done before the next frame, if there are any."""
        raw = frame.raw
        to = raw.get(b"destination", b"")
        destination = self._known.get(to)
        if destination is None:
            if to in DESTINATIONS:
                return self._manage(frame)
            if b",/" in to and (named := destinations_of(frame.required(b"destination"))):
                return self._send_to_several(frame, named)
            destination = self._destination(frame)
            if len(to) <= _LONGEST_KNOWN and not to.startswith(b"/temp-"):
                if len(self._known) >= _MOST_KNOWN:
                    self._known.clear()
                self._known[to] = destination
        destination, message = self._message_to(destination, frame)
        if b"transaction" in raw:
            work = self._transactions.reserve(frame, message)
            if destination not in work.checked:
                self._core.check_send(self._session.principal, destination)
                work.checked.add(destination)
            work.sends.append((destination, message))
            self._receipts.now(frame)
            return None
        return self._send(destination, message, frame)

    def _send(self, destination: str, message: OutgoingMessage, frame: Frame) -> Steps | None:
        """Send a message now; ``frame`` is answered once it is stored."""
        done = self._receipts.later(frame)
        try:
            sent = self._core.send(
                self._session.principal, destination, message, done, self._refused
            )
        except NotLive:
            self._receipts.take_back(done)
            raise
        return None if sent is None else self._awaiting(sent, done)

    def _awaiting(self, sent: FanOut | Steps, done: Done) -> Steps:
        """Do the steps that send a message, or wait for those of a topic that were sent before."""
        if isinstance(sent, Iterator):
            yield from self._receipts.through(sent, done)
        else:
            yield from waiting(sent)

    def _send_to_several(self, frame: Frame, named: list[str]) -> Steps | None:
        """Send a message to each of several destinations, to all of them or to none."""
        sends: list[tuple[str, OutgoingMessage]] = []
        for one in named:
            frame.raw[b"destination"] = escape(one.encode(), frame.version)
            destination, message = self._addressed(frame)
            self._core.check_send(self._session.principal, destination)
            sends.append((destination, message))
        if b"transaction" in frame.raw:
            for send in sends:
                self._transactions.reserve(frame, send[1]).sends.append(send)
            self._receipts.now(frame)
            return None
        done = self._receipts.later(frame)
        sending = self._core.commit(
            self._session.principal, TransactionWork(sends), done, self._refused
        )
        return self._receipts.through(sending, done)

    # --- large messages

    def take_large(self, event: Frame | BodyPiece) -> Steps | None:
        """Take the head of a large message or a piece of its body.

        What is to be refused is refused at its head. With the last piece this returns steps that
        wait until the body is durable and send the message.
        """
        if isinstance(event, BodyPiece):
            self._uploads.add(event)
            return self._until_stored() if event.is_last else None
        if destinations_of(event.required(b"destination")):
            raise ProtocolError(
                "a large message goes to one destination: send it to each, or raise"
                " min-large-message-size"
            )
        destination, message = self._addressed(event)
        if b"transaction" in event.raw:
            self._transactions.reserve(event, message)
        self._uploads.begin(event, destination, message, self._body_stored)
        return None

    def _until_stored(self) -> Steps:
        self._session.move(Event.BODY_CAME)
        self._stored = stored = _Stored(self._core.slices)
        self._uploads.finish()
        yield stored.wait
        self._stored = None
        if stored.rest is not None:
            yield from stored.rest

    def _body_stored(self, outcome: LargeBody | OrthiaError) -> None:
        session, sent = self._session, self._uploads.take()
        if isinstance(outcome, JournalClosed | LargeBodyError):
            session.stop_serving()  # it stops, or its lease ended: another node takes it
            return
        if isinstance(outcome, OrthiaError):
            text = f"the message could not be stored: {outcome}"
            session.refuse(text, sent.frame.get(b"receipt"), refusal_of(outcome))
            return
        session.move(Event.BODY_STORED)
        message = sent.message._replace(large=outcome)
        try:
            rest = self._send_large(sent.frame, sent.destination, message)
        except (ProtocolError, BrokerError) as error:
            unpin(self._core, (message,))
            session.refuse_for(error, sent.frame)
            return
        if self._stored is not None:
            self._stored.rest = rest
            self._stored.wait()

    def _send_large(self, frame: Frame, destination: str, message: OutgoingMessage) -> Steps | None:
        if b"transaction" in frame.raw:
            self._transactions.named(frame).sends.append((destination, message))
            self._receipts.now(frame)
            return None
        rest = self._send(destination, message, frame)
        return None if rest is None else self._unpinned_if_refused(rest, message)

    def _unpinned_if_refused(self, rest: Steps, message: OutgoingMessage) -> Steps:
        try:
            yield from rest
        except (ProtocolError, BrokerError):
            unpin(self._core, (message,))
            raise

    # --- management

    def _manage(self, frame: Frame) -> Steps:
        """Begin a management request; one that cannot be answered is refused before that."""
        request, core, principal = read_request(frame), self._core, self._session.principal
        if core.manager is not None:
            core.manager.check(principal, request)
        named = reply_to(frame, request)
        destination = None if named is None else self._of_core(named)
        if destination is not None:
            core.check_send(principal, destination)
        return self._answering(request, destination, frame)

    def _answering(
        self, request: ManagementRequest, destination: str | None, frame: Frame
    ) -> Steps:
        """Do what is asked for, and answer it by a message in its client's name, or a RECEIPT."""
        answer = yield from asking(self._core.manager, self._session.principal, request)
        if destination is not None:
            rest = self._send(destination, reply(frame, answer), frame)
            if rest is not None:
                yield from rest
        elif answer.error is not None:
            raise answer.error
        else:
            self._receipts.now(frame, answer.deleted)

    # --- what a frame says

    def _addressed(self, frame: Frame) -> tuple[str, OutgoingMessage]:
        """Return a SEND's destination in the core, and its message."""
        return self._message_to(self._destination(frame), frame)

    def _destination(self, frame: Frame) -> str:
        """Return a SEND's destination as the core knows it, without its ``destination-type``."""
        return self._of_core(frame.required(b"destination"))

    def _of_core(self, destination: str) -> str:
        """Return as the core knows it what the client calls ``destination``."""
        if destination.startswith("/temp-"):
            destination = self._temporary.of_core(destination)
        if self._prefixes is not None:
            destination = self._prefixes.of_core(destination)
        return destination

    def _message_to(self, destination: str, frame: Frame) -> tuple[str, OutgoingMessage]:
        """Return a SEND's destination, with its ``destination-type``, and its message."""
        raw = frame.raw
        not_passed_on, principal = NOT_PASSED_ON, self._session.principal
        if not LOOKED_AT.isdisjoint(raw):
            refuse("SEND", raw)
            self._temporary.rewrite_reply_to(frame)
            if not TOOLS_OWN.isdisjoint(raw) and self._core.security.may_replay(principal):
                not_passed_on -= TOOLS_OWN
        return message_of(frame, destination, principal, self._core.time_ms, not_passed_on)


def message_of(
    frame: Frame,
    destination: str,
    principal: Principal,
    time_ms: Callable[[], int],
    not_passed_on: frozenset[bytes] = NOT_PASSED_ON,
) -> tuple[str, OutgoingMessage]:
    """Return a SEND's destination, with its ``destination-type``, and the message it makes.

    ``destination`` is as the core knows it, and ``time_ms`` the clock of due messages. Headers of
    ``not_passed_on`` do not go to receivers. Raises ProtocolError, DestinationRefused.
    """
    raw = frame.raw
    expires_ms, when, priority = 0, b"", DEFAULT_PRIORITY
    duplicate_id: str | None = None
    if not LOOKED_AT.isdisjoint(raw):
        refuse("SEND", raw)
        destination = of_type(destination, frame.get(b"destination-type"))
        expires_ms = frame.number(b"expires", 0)
        if b"priority" in raw:
            priority = priority_of(frame.get(b"priority") or str(DEFAULT_PRIORITY))
        check_group_sequence(frame)
        duplicate_id = frame.get(b"_AMQ_DUPL_ID")
        if duplicate_id == "":
            raise ProtocolError("SEND has the header _AMQ_DUPL_ID without a value")
        if not SCHEDULING.isdisjoint(raw):
            when = stated(frame, time_ms)
    headers = frame.user_headers(not_passed_on)
    user = principal.validated_user
    if user is not None:
        headers += header_lines({"JMSXUserID": user})
    said = raw.get(b"persistent")
    is_persistent = said is None or said == b"true" or frame.flag(b"persistent", default=True)
    message = OutgoingMessage(headers, frame.body, is_persistent, expires_ms, priority)
    if duplicate_id is not None:
        message = message._replace(duplicate_id=duplicate_id)
    if when:
        message = message._replace(stated=when)
    return destination, message


class _Stored:
    """What follows a large message once its body is durable."""

    __slots__ = ("_slices", "rest", "wait")

    def __init__(self, slices: Slices) -> None:
        self._slices = slices
        self.rest: Steps | None = None
        """What is left to do of its sending."""
        self.wait = Wait(self._dropped)

    def _dropped(self, _: Wait) -> None:
        """Send it all the same if the core has taken it: nothing else would free its body."""
        if self.rest is not None:
            self._slices.later(_unheard(self.rest))


def _unheard(steps: Steps) -> Steps:
    """Do the steps of a client that is gone, which is not told if they are refused."""
    with contextlib.suppress(ProtocolError, BrokerError):
        yield from steps
