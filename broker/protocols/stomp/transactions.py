# mypyc compiles this module.
"""BEGIN, COMMIT and ABORT: a transaction is done whole in one unit of the journal, or not at all.

What the open transactions of a connection make the broker hold is bounded in number and size.
"""

from collections.abc import Iterable
from functools import partial

from orthia.broker.core.api import (
    Done,
    MessageReference,
    OpenTransaction,
    OutgoingMessage,
    SubscriptionHandle,
    TransactionWork,
)
from orthia.broker.core.broker import Broker
from orthia.broker.core.errors import BrokerError, NotLive
from orthia.broker.core.slices import Steps
from orthia.broker.protocols.stomp.client_frame import Frame
from orthia.broker.protocols.stomp.frames import ProtocolError
from orthia.broker.protocols.stomp.session import Session
from orthia.broker.protocols.stomp.states import Handlers
from orthia.broker.protocols.stomp.subscription import ClientSubscriptions
from orthia.broker.quoting import quoted
from orthia.config.errors import OrthiaError

_MESSAGE_COST = 512
"""Bytes that a message of a transaction counts for beside its headers and body."""
_ACK_COST = 64
"""Bytes that an acknowledgement of a transaction counts for beside its message."""


class Transactions:
    """The open transactions of one connection; methods raise ProtocolError and BrokerError."""

    __slots__ = ("_limits", "_refused", "_session", "_subscriptions", "_works", "aside", "size")

    def __init__(self, session: Session, subscriptions: ClientSubscriptions) -> None:
        self._session = session
        self._subscriptions = subscriptions
        self._limits = session.options.limits
        self._works: dict[str, TransactionWork] = {}
        """By the name that frames give them."""
        self._refused: list[TransactionWork] = []
        self.size = 0
        """Bytes that all of them count for."""
        self.aside = 0
        """The part of ``size`` that is messages they acknowledge: the client did not send those."""

    @property
    def handlers(self) -> Handlers:
        """What it does, by the frame."""
        return {"BEGIN": self.begin, "COMMIT": self.commit, "ABORT": self.abort}

    def begin(self, frame: Frame) -> None:
        """Do a BEGIN."""
        name = frame.required(b"transaction")
        if name in self._works:
            raise ProtocolError(f"transaction {quoted(name)} has begun already")
        if len(self._works) >= self._limits.max_transactions:
            limit = self._limits.max_transactions
            raise ProtocolError(f"this connection has max-transactions {limit} open already")
        work = TransactionWork(since_ms=self._session.core.time_ms())
        self._grow(work, len(name) + _MESSAGE_COST)
        self._works[name] = work
        self._session.receipts.now(frame)

    def commit(self, frame: Frame) -> Steps:
        """Do a COMMIT, in steps; nothing of it if the connection ends before the last."""
        session, work = self._session, self.named(frame)
        done = session.receipts.later(frame)
        refused = partial(self._refuse, work)
        try:
            for rests in session.core.commit(session.principal, work, done, refused):
                yield rests
                if session.output.is_over:
                    return
        except BrokerError as error:
            work.is_refused = True
            if isinstance(error, NotLive):
                session.receipts.take_back(done)
            raise
        self._forget(frame)

    def abort(self, frame: Frame) -> None:
        """Do an ABORT: what it acknowledged goes back to the subscriptions that have it."""
        work = self.named(frame)
        self._forget(frame)
        self._unpin(work)
        for answered in (work.acknowledgements, work.rejections):
            for handle, references in answered.items():
                subscription = self._subscriptions.of(handle)
                if subscription is not None:
                    handle.put_back(references)
                    subscription.put_back(references)
        self._session.receipts.now(frame)

    def named(self, frame: Frame) -> TransactionWork:
        """Return the transaction that a frame names; raises ProtocolError."""
        name = frame.required(b"transaction")
        work = self._works.get(name)
        if work is None:
            raise ProtocolError(f"transaction {quoted(name)} has not begun")
        return work

    def reserve(self, frame: Frame, message: OutgoingMessage) -> TransactionWork:
        """Count a message that the transaction of ``frame`` is to send; return the transaction.

        Raises ProtocolError if it is too much.
        """
        work = self.named(frame)
        self._enter(frame, work, 1)
        self._grow(work, len(message.head) + len(message.body) + _MESSAGE_COST)
        return work

    def answer(
        self,
        frame: Frame,
        subscription: SubscriptionHandle,
        references: list[MessageReference],
        *,
        nack: bool,
    ) -> None:
        """Keep messages that an ACK or NACK names; raises ProtocolError if that is too much.

        What the subscription held for the client, the transaction holds from here on.
        """
        work = self.named(frame)
        self._enter(frame, work, len(references))
        held = sum([one.size for one in references])
        self._grow(work, held + _ACK_COST * len(references))
        work.aside += held
        self.aside += held
        kept = work.rejections if nack else work.acknowledgements
        kept.setdefault(subscription, []).extend(references)
        subscription.set_aside(references)

    def unfinished(self) -> list[TransactionWork]:
        """Return those that are open, oldest first, and those whose COMMIT the store refused."""
        return [*self._works.values(), *self._refused]

    def open(self) -> list[OpenTransaction]:
        """Return those that are open, for operators to see."""
        return [
            OpenTransaction(name, work.since_ms, len(work.sends), _answered(work), work.size)
            for name, work in self._works.items()
        ]

    def end(self) -> None:
        """Forget all that are open: the connection ends."""
        for work in self._works.values():
            self._unpin(work)
        self._works.clear()
        self.size = self.aside = 0

    def _refuse(self, work: TransactionWork, error: OrthiaError, done: Done | None) -> None:
        """Refuse a transaction that the store does not take; the core counts what was in it."""
        work.is_refused = True
        self._refused.append(work)
        self._session.refuse_unstored(error, done)

    def _forget(self, frame: Frame) -> None:
        work = self._works.pop(frame.required(b"transaction"))
        self.size -= work.size
        self.aside -= work.aside

    def _unpin(self, work: TransactionWork) -> None:
        unpin(self._session.core, (message for _, message in work.sends))

    def _enter(self, frame: Frame, work: TransactionWork, entries: int) -> None:
        limit = self._limits.max_transaction_entries
        if work.entries + entries > limit:
            name = quoted(frame.required(b"transaction"))
            raise ProtocolError(
                f"transaction {name} has more than max-transaction-entries {limit}: messages that"
                " it sends, acknowledges and rejects"
            )
        work.entries += entries

    def _grow(self, work: TransactionWork, size: int) -> None:
        limit = self._limits.max_transaction_bytes
        if self.size + size > limit:
            raise ProtocolError(f"open transactions hold more than max-transaction-bytes {limit}")
        work.size += size
        self.size += size


def _answered(work: TransactionWork) -> int:
    answers = (*work.acknowledgements.values(), *work.rejections.values())
    return sum([len(references) for references in answers])


def unpin(core: Broker, messages: Iterable[OutgoingMessage]) -> None:
    """Unpin the large bodies of messages that are not sent after all."""
    for message in messages:
        if core.large is not None and message.large is not None:
            core.large.unpin(message.large.id)
