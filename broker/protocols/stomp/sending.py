# mypyc compiles this module.
"""SEND: the message a frame makes, and the three ways it goes.

Straight to the core, which says later that it is stored; into a transaction, which sends it at its
COMMIT; or, if it is large, once its body is durable, and then one of the two. A SEND to the
management address is no message but a request, which may be answered by one.
"""

from collections.abc import Iterator
from typing import Final

from orthia.broker.core.api import (
    BrokerCore,
    Done,
    FanOut,
    OnRefused,
    OutgoingMessage,
    TransactionWork,
)
from orthia.broker.core.destinations import of_type
from orthia.broker.core.errors import BrokerError, NotLive
from orthia.broker.core.slices import GO_ON, Steps
from orthia.broker.management.operations import Question, answer
from orthia.broker.protocols.stomp.client_frame import BodyPiece, Frame
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
from orthia.broker.protocols.stomp.login import Client
from orthia.broker.protocols.stomp.management import (
    DESTINATIONS,
    read_request,
    reply,
    reply_to,
)
from orthia.broker.protocols.stomp.prefixes import Prefixes
from orthia.broker.protocols.stomp.receipts import Receipts
from orthia.broker.protocols.stomp.scheduling import stated
from orthia.broker.protocols.stomp.several import several
from orthia.broker.protocols.stomp.states import Handlers
from orthia.broker.protocols.stomp.temporary import Temporaries
from orthia.broker.protocols.stomp.transactions import OpenTransactions, unpin
from orthia.broker.protocols.stomp.uploads import LargeSend, Uploads
from orthia.journal.model.message import DEFAULT_PRIORITY, LargeBody

_MOST_KNOWN: Final = 16
"""Destinations whose names in the core a connection remembers; with one more it forgets all."""
_LONGEST_KNOWN: Final = 128
"""Bytes of a destination that is remembered: nobody counts them."""


class Sender:
    """What a client sends, on its way to the core; methods raise ProtocolError and BrokerError."""

    __slots__ = (
        "_client", "_core", "_known", "_prefixes", "_receipts", "_refused", "_temporaries",
        "_transactions", "_uploads",
    )  # fmt: skip

    def __init__(
        self,
        core: BrokerCore,
        client: Client,
        prefixes: Prefixes | None,
        temporaries: Temporaries,
        transactions: OpenTransactions,
        uploads: Uploads,
        receipts: Receipts,
        refused: OnRefused,
    ) -> None:
        """``refused`` hears of what the store does not take."""
        self._core = core
        self._client = client
        self._known: dict[bytes, str] = {}
        """What destinations are to the core, by the header of a SEND: most clients send to few, and
        nothing is asked of one twice."""
        self._prefixes = prefixes
        self._temporaries = temporaries
        self._transactions = transactions
        self._uploads = uploads
        self._receipts = receipts
        self._refused = refused

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
            if b",/" in to and (named := several(frame.required(b"destination"))) is not None:
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
                self._core.check_send(self._client.principal, destination)
                work.checked.add(destination)
            work.sends.append((destination, message))
            self._receipts.now(frame)
            return None
        done = self._receipts.later(frame)
        try:
            sent = self._core.send(
                self._client.principal, destination, message, done, self._refused
            )
        except NotLive:
            self._receipts.take_back(done)
            raise
        return None if sent is None else self._awaiting(sent, done)

    def _awaiting(self, sent: FanOut | Steps, done: Done) -> Steps:
        """Wait for what was sent, or have it sent, in steps."""
        if not isinstance(sent, Iterator):
            while sent.is_behind:
                yield sent.rest
            return
        try:
            yield from sent
        except NotLive:
            self._receipts.take_back(done)
            raise

    def _send_to_several(self, frame: Frame, named: list[str]) -> Steps | None:
        """Send a message to each of several destinations, to all of them or to none."""
        sends: list[tuple[str, OutgoingMessage]] = []
        for one in named:
            frame.raw[b"destination"] = escape(one.encode(), frame.version)
            destination, message = self._addressed(frame)
            self._core.check_send(self._client.principal, destination)
            sends.append((destination, message))
        if b"transaction" in frame.raw:
            for send in sends:
                self._transactions.reserve(frame, send[1]).sends.append(send)
            self._receipts.now(frame)
            return None
        return self._sending(TransactionWork(sends), self._receipts.later(frame))

    def _sending(self, work: TransactionWork, done: Done) -> Steps:
        try:
            yield from self._core.commit(self._client.principal, work, done, self._refused)
        except NotLive:
            self._receipts.take_back(done)
            raise

    def take_large(self, event: Frame | BodyPiece, now: float) -> bool:
        """Take the head of a large message or a piece of its body; return whether that was all.

        What is to be refused is refused at its head.
        """
        if isinstance(event, BodyPiece):
            self._uploads.add(event, now)
            return event.is_last
        if several(event.required(b"destination")) is not None:
            raise ProtocolError(
                "a large message goes to one destination: send it to each, or raise"
                " min-large-message-size"
            )
        destination, message = self._addressed(event)
        if b"transaction" in event.raw:
            self._transactions.reserve(event, message)
        self._uploads.begin(self._client.principal, event, destination, message, now)
        return False

    def send_large(self, sent: LargeSend, body: LargeBody) -> Steps | None:
        """Send a large message whose body is durable; it is unpinned if that is refused.

        Returns steps to be done before the next frame, if there are any.
        """
        frame, message = sent.frame, sent.message._replace(large=body)
        try:
            if b"transaction" in frame.raw:
                self._transactions.named(frame).sends.append((sent.destination, message))
                self._receipts.now(frame)
                return None
            receipt = self._receipts.later(frame)
            try:
                behind = self._core.send(
                    self._client.principal, sent.destination, message, receipt, self._refused
                )
            except NotLive:
                self._receipts.take_back(receipt)
                raise
        except (ProtocolError, BrokerError):
            unpin(self._core, (message,))
            raise
        return None if behind is None else self._awaiting_large(behind, receipt, message)

    def _awaiting_large(self, sent: FanOut | Steps, done: Done, message: OutgoingMessage) -> Steps:
        try:
            yield from self._awaiting(sent, done)
        except (ProtocolError, BrokerError):
            unpin(self._core, (message,))
            raise

    def _manage(self, frame: Frame) -> Steps | None:
        request = read_request(frame)
        if isinstance(request, Question):
            return self._answering(request, self._of_core(reply_to(frame)), frame)
        done = self._receipts.later_with_deleted(frame)
        request.perform(self._core, self._client.principal, done)
        return None

    def _answering(self, question: Question, destination: str, frame: Frame) -> Steps:
        """Answer a question: a message in its client's name, which has to be allowed to send it."""
        principal = self._client.principal
        pieces: list[bytes] = []
        for piece in answer(question, self._core, principal):
            pieces.append(piece)
            yield GO_ON
        message = reply(frame, b"".join(pieces))
        done = self._receipts.later(frame)
        try:
            sent = self._core.send(principal, destination, message, done, self._refused)
        except NotLive:
            self._receipts.take_back(done)
            raise
        if sent is not None:
            yield from self._awaiting(sent, done)

    def _addressed(self, frame: Frame) -> tuple[str, OutgoingMessage]:
        """Return a SEND's message and where it goes."""
        return self._message_to(self._destination(frame), frame)

    def _destination(self, frame: Frame) -> str:
        """Return what a SEND's destination is to the core."""
        return self._of_core(frame.required(b"destination"))

    def _of_core(self, destination: str) -> str:
        """Return what is to the core what the client calls ``destination``."""
        if destination.startswith("/temp-"):
            destination = self._temporaries.of_core(destination)
        if self._prefixes is not None:
            destination = self._prefixes.of_core(destination)
        return destination

    def _message_to(self, destination: str, frame: Frame) -> tuple[str, OutgoingMessage]:
        """Return a SEND's message and where it goes, once its type is known."""
        raw = frame.raw
        not_passed_on, expires_ms, when = NOT_PASSED_ON, 0, b""
        priority = DEFAULT_PRIORITY
        duplicate_id: str | None = None
        if not LOOKED_AT.isdisjoint(raw):
            refuse("SEND", raw)
            self._temporaries.name_for_others(frame)
            destination = of_type(destination, frame.get(b"destination-type"))
            expires_ms = frame.number(b"expires", 0)
            if b"priority" in raw:
                priority = priority_of(frame.get(b"priority") or str(DEFAULT_PRIORITY))
            check_group_sequence(frame)
            duplicate_id = frame.get(b"_AMQ_DUPL_ID")
            if duplicate_id == "":
                raise ProtocolError("SEND has the header _AMQ_DUPL_ID without a value")
            if not SCHEDULING.isdisjoint(raw):
                when = stated(frame, self._core.time_ms)
            if not TOOLS_OWN.isdisjoint(raw) and self._core.security.may_replay(
                self._client.principal
            ):
                not_passed_on -= TOOLS_OWN
        headers = frame.user_headers(not_passed_on)
        user = self._client.principal.validated_user
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
