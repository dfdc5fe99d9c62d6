# mypyc compiles this module.
"""The transactions of one connection that are begun and not ended, and what they make it hold."""

from collections.abc import Iterable

from orthia.broker.core.api import (
    BrokerCore,
    MessageReference,
    OutgoingMessage,
    SubscriptionHandle,
    TransactionWork,
)
from orthia.broker.protocols.stomp.client_frame import Frame
from orthia.broker.protocols.stomp.frames import ProtocolError
from orthia.broker.quoting import quoted
from orthia.config.settings import StompLimits

_MESSAGE_COST = 512
"""What a message of a transaction counts for beside its headers and body."""
_ACK_COST = 64
"""What an acknowledgement of a transaction counts for beside its message."""


class OpenTransactions:
    """By the name that frames give them; bounded in number and size."""

    def __init__(self, limits: StompLimits) -> None:
        self._limits = limits
        self._works: dict[str, TransactionWork] = {}
        self._refused: list[TransactionWork] = []
        self.size = 0
        """Bytes all of them count for."""
        self.aside = 0
        """How much of that are messages they acknowledge: the client did not send those."""

    def begin(self, frame: Frame) -> None:
        """Begin the transaction that a BEGIN names; raises ProtocolError."""
        name = frame.required(b"transaction")
        if name in self._works:
            raise ProtocolError(f"transaction {quoted(name)} has begun already")
        if len(self._works) >= self._limits.max_transactions:
            limit = self._limits.max_transactions
            raise ProtocolError(f"this connection has max-transactions {limit} open already")
        work = TransactionWork()
        self._grow(work, len(name) + _MESSAGE_COST)
        self._works[name] = work

    def named(self, frame: Frame) -> TransactionWork:
        """Return the transaction that a frame names; raises ProtocolError."""
        name = frame.required(b"transaction")
        work = self._works.get(name)
        if work is None:
            raise ProtocolError(f"transaction {quoted(name)} has not begun")
        return work

    def forget(self, frame: Frame) -> None:
        """Forget the transaction that a frame ends."""
        work = self._works.pop(frame.required(b"transaction"))
        self.size -= work.size
        self.aside -= work.aside

    def reserve(self, frame: Frame, message: OutgoingMessage) -> TransactionWork:
        """Count a message that is to be sent by the transaction a frame names, and return that.

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

        What the subscription held for the client is the transaction's from here on.
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

    def refuse(self, work: TransactionWork) -> None:
        """Note that a COMMIT is refused which was forgotten when it went to the store."""
        work.is_refused = True
        self._refused.append(work)

    def unfinished(self) -> list[TransactionWork]:
        """Return those that are open, oldest first, and those that were refused."""
        return [*self._works.values(), *self._refused]

    def clear(self) -> list[TransactionWork]:
        """Forget all that are open and return them, oldest first."""
        works = list(self._works.values())
        self._works.clear()
        self.size = self.aside = 0
        return works

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


def unpin(core: BrokerCore, messages: Iterable[OutgoingMessage]) -> None:
    """Unpin the large bodies of messages that are not sent after all."""
    for message in messages:
        if core.large is not None and message.large is not None:
            core.large.unpin(message.large.id)
