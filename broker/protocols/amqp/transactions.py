# mypyc compiles this module.
"""Transactions: what a coordinator is asked, and what is sent and settled in between.

A transaction is done whole in one unit of the journal, or not at all. What the open transactions of
a connection make the broker hold is bounded in number and size. One ends with the link to the
coordinator by which it was declared, rolled back. If anything of it was not taken and the client
may not know that, its commit is refused.
"""

from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from typing_extensions import override

from orthia.broker.core.api import (
    Answer,
    Done,
    MessageReference,
    OpenTransaction,
    OutgoingMessage,
    SingleSubscription,
    TransactionWork,
)
from orthia.broker.core.broker import Broker
from orthia.broker.core.errors import BrokerError, NotLive
from orthia.broker.core.limits.refusals import refusal_of
from orthia.broker.core.slices import Steps
from orthia.broker.protocols.amqp.client import Client
from orthia.broker.protocols.amqp.conditions import (
    NOT_ALLOWED,
    NOT_IMPLEMENTED,
    RESOURCE_LIMIT,
    ROLLED_BACK,
    UNKNOWN_TRANSACTION,
    LinkFault,
    error_of,
    unreadable,
)
from orthia.broker.protocols.amqp.link import LinkSession
from orthia.broker.protocols.amqp.messages import value_of
from orthia.broker.protocols.amqp.performatives import (
    ACCEPTED,
    RECEIVER,
    RELEASED,
    Declare,
    Declared,
    DeliveryState,
    Discharge,
    Disposition,
    Rejected,
    TransactionalState,
    bare,
    decode_transaction,
)
from orthia.broker.protocols.amqp.receiver import Delivery, Sink
from orthia.broker.protocols.amqp.sender import Sender
from orthia.broker.protocols.amqp.uploads import LargeMessage
from orthia.broker.protocols.amqp.values import AmqpDecodeError
from orthia.config.errors import OrthiaError

_MESSAGE_COST: Final = 512
"""Bytes that a message of a transaction counts for beside its head and body."""
LINK_ENDED: Final = "a link of the transaction was ended before all of its work had come"
"""Why a commit is refused of which something came too late."""
_SETTLE_COST: Final = 512
"""Bytes that a settled delivery of a transaction counts for beside its message."""


class _Taken(NamedTuple):
    """Deliveries that one disposition settles in a transaction."""

    session: LinkSession
    sender: Sender
    core: SingleSubscription
    delivered: dict[int, MessageReference]
    """By delivery id."""
    state: DeliveryState
    """The outcome."""
    answer: Answer
    """What that means to the core."""
    is_settled: bool
    """Whether the client has forgotten them: rolled back they are delivered again."""

    @property
    def stays_aside(self) -> bool:
        """Whether the link has them until the end: a topic keeps nothing to deliver again."""
        return self.core.keeps_nothing

    def committed(self) -> None:
        """Do what the outcome says with what stayed aside, if the link is still there."""
        if self.answer in (Answer.FAILED, Answer.RELEASED):
            self.give_back(is_failed=self.answer is Answer.FAILED)
        elif self.sender.core is self.core:
            references = list(self.delivered.values())
            self.core.put_back(references)
            self.core.acknowledge(references, None)

    def put_back(self) -> None:
        """Let the link have them as before."""
        self.core.put_back(list(self.delivered.values()))
        self.session.put_back(self.sender, self.delivered)

    def give_back(self, *, is_failed: bool) -> None:
        """Deliver them again, if the link is still there."""
        core, references = self.core, list(self.delivered.values())
        if self.sender.core is core:
            core.put_back(references)
            self.sender.give_back(core, references, None, is_failed=is_failed)


def _together(taken: Iterable[_Taken]) -> list[_Taken]:
    """Return deliveries as one that were settled alike: they are many, and are done in one step."""
    found: dict[tuple[int, DeliveryState, bool], _Taken] = {}
    for one in taken:
        known = found.setdefault((id(one.core), one.state, one.is_settled), one)
        if known is not one:
            known.delivered.update(one.delivered)
    return list(found.values())


class _Open:
    """A transaction that is not discharged yet."""

    __slots__ = ("failure", "owner", "taken", "work")

    def __init__(self, owner: object, since_ms: int) -> None:
        self.owner = owner
        """What declared it, with which it ends."""
        self.failure: str | None = None
        """Why it cannot be committed."""
        # Its links get no credit while their addresses are full, and its consumers go on.
        self.work = TransactionWork(since_ms=since_ms, waits_for_room=False)
        self.taken: list[_Taken] = []


class Transactions:
    """The open transactions of one client; methods raise LinkFault and BrokerError."""

    __slots__ = ("_client", "_limits", "_number", "_open", "aside", "size")

    def __init__(self, client: Client) -> None:
        self._client = client
        self._limits = client.options.limits
        self._open: dict[bytes, _Open] = {}
        """By the id that it was declared with."""
        self._number = 0
        self.size = 0
        """Bytes that all of them count for."""
        self.aside = 0
        """The part of ``size`` that is messages they settle: the client did not send those."""

    def declare(self, owner: object) -> bytes:
        """Begin a transaction, which ``end_of`` ends; return its id."""
        if len(self._open) >= self._limits.max_transactions:
            raise LinkFault(
                RESOURCE_LIMIT,
                f"this connection has max-transactions {self._limits.max_transactions} open"
                " already",
            )
        self._number += 1
        txn_id = self._number.to_bytes(8, "big")
        one = _Open(owner, self._client.core.time_ms())
        self._grow(one.work, _MESSAGE_COST)
        self._open[txn_id] = one
        return txn_id

    def reserve(self, txn_id: bytes, message: OutgoingMessage) -> TransactionWork:
        """Count a message that a transaction is to send; return what it does."""
        work = self._named(txn_id).work
        self._enter(work, 1)
        self._grow(work, len(message.head) + len(message.body) + _MESSAGE_COST)
        return work

    def settle(
        self,
        session: LinkSession,
        sender: Sender,
        ids: list[int],
        state: TransactionalState,
        *,
        is_settled: bool,
    ) -> None:
        """Keep deliveries that a transaction settles.

        What the link held for the client, the transaction holds from here on.
        """
        outcome, core = bare(state.outcome or sender.default_outcome), sender.core
        if core is None:
            raise LinkFault(NOT_ALLOWED, "the link is closed")
        answer = sender.answer_of(outcome)
        one = self._named(state.txn_id)
        work = one.work
        self._enter(work, len(ids))
        references = session.take(sender, ids)
        held = sum([reference.size for reference in references])
        try:
            self._grow(work, held + _SETTLE_COST * len(references))
        except LinkFault:
            session.put_back(sender, dict(zip(ids, references, strict=True)))
            raise
        work.aside += held
        self.aside += held
        delivered = dict(zip(ids, references, strict=True))
        taken = _Taken(session, sender, core, delivered, outcome, answer, is_settled)
        if not taken.stays_aside:
            work.answered(answer).setdefault(core, []).extend(references)
        one.taken.append(taken)
        core.set_aside(references)
        core.resume()

    def commit(self, txn_id: bytes, done: Done, refused: Callable[[OrthiaError], None]) -> Steps:
        """Do a transaction, in steps; ``done`` or ``refused`` follows.

        Raises LinkFault and BrokerError; it is rolled back then. Nothing of it is done if the
        connection ends before the last step.
        """
        client, one = self._client, self._named(txn_id)
        work = one.work
        if one.failure is not None:
            self.roll_back(txn_id)
            raise LinkFault(ROLLED_BACK, one.failure)

        def committed() -> None:
            for taken in _together(one.taken):
                if not taken.is_settled:
                    taken.session.say_settled(list(taken.delivered), taken.state)
                if taken.stays_aside:
                    taken.committed()
            done()

        def not_stored(error: OrthiaError, _: Done | None) -> None:
            work.is_refused = True
            for taken in _together(one.taken):  # which come again
                if not taken.is_settled:
                    taken.session.say_settled(list(taken.delivered), RELEASED)
                if taken.stays_aside:
                    taken.give_back(is_failed=False)
            refused(error)

        try:
            for rests in client.core.commit(client.principal, work, committed, not_stored):
                yield rests
                if client.is_over or txn_id not in self._open:
                    return
        except NotLive:
            raise
        except BrokerError:
            work.is_refused = True
            self.roll_back(txn_id)
            raise
        self._forget(txn_id)

    def roll_back(self, txn_id: bytes) -> None:
        """Roll a transaction back: what the client has settled is delivered again."""
        one = self._named(txn_id)
        self._forget(txn_id)
        unpin(self._client.core, (message for _, message in one.work.sends))
        for taken in _together(one.taken):
            if taken.sender.core is not taken.core:
                continue  # its link is closed: they went back to their queue
            if taken.is_settled:
                taken.give_back(is_failed=True)
            else:
                taken.put_back()

    def fail(self, state: DeliveryState | None, reason: str) -> None:
        """Refuse to commit the transaction of a state, if it is open: not all of it was taken."""
        one = self._open.get(state.txn_id) if isinstance(state, TransactionalState) else None
        if one is not None and one.failure is None:
            one.failure = reason

    def end_of(self, owner: object) -> None:
        """Roll back what an owner declared that is over."""
        for txn_id in [txn_id for txn_id, one in self._open.items() if one.owner is owner]:
            self.roll_back(txn_id)

    def unfinished(self) -> list[TransactionWork]:
        """Return those that are open, oldest first."""
        return [one.work for one in self._open.values()]

    def open(self) -> list[OpenTransaction]:
        """Return those that are open, for operators to see."""
        found = []
        for txn_id, one in self._open.items():
            work = one.work
            settled = sum([len(taken.delivered) for taken in one.taken])
            name = txn_id.hex()
            found.append(OpenTransaction(name, work.since_ms, len(work.sends), settled, work.size))
        return found

    def end(self) -> None:
        """Forget all that are open: the connection ends."""
        for one in self._open.values():
            unpin(self._client.core, (message for _, message in one.work.sends))
        self._open.clear()
        self.size = self.aside = 0

    def _named(self, txn_id: bytes) -> _Open:
        one = self._open.get(txn_id)
        if one is None:
            raise LinkFault(UNKNOWN_TRANSACTION, "no transaction of this id is open")
        return one

    def _forget(self, txn_id: bytes) -> None:
        work = self._open.pop(txn_id).work
        self.size -= work.size
        self.aside -= work.aside

    def _enter(self, work: TransactionWork, entries: int) -> None:
        limit = self._limits.max_transaction_entries
        if work.entries + entries > limit:
            raise LinkFault(
                RESOURCE_LIMIT,
                f"a transaction has more than max-transaction-entries {limit}: messages that it"
                " sends and settles",
            )
        work.entries += entries

    def _grow(self, work: TransactionWork, size: int) -> None:
        limit = self._limits.max_transaction_bytes
        if self.size + size > limit:
            raise LinkFault(
                RESOURCE_LIMIT, f"open transactions hold more than max-transaction-bytes {limit}"
            )
        work.size += size
        self.size += size


class Coordinator(Sink):
    """Declares and discharges the transactions of one link."""

    __slots__ = ("_session", "_transactions")

    def __init__(self, session: LinkSession, transactions: Transactions) -> None:
        self._session = session
        self._transactions = transactions

    @override
    def take(self, delivery: Delivery, data: bytes, begin: int) -> Steps | None:
        try:
            asked = decode_transaction(value_of(data[begin:]))
        except AmqpDecodeError as error:
            raise unreadable(error) from None
        if isinstance(asked, Discharge) and not asked.fail:
            return self._committing(delivery.id, asked.txn_id)
        try:
            self._answer(delivery.id, self._done(asked))
        except LinkFault as error:
            self._answer(delivery.id, Rejected(error.error))
        return None

    @property
    @override
    def most_named(self) -> str:
        return "what a coordinator is asked is short"

    @override
    def begin(self, payload: bytes) -> LargeMessage | None:
        return None  # what a coordinator is asked is short

    @override
    def finish(self, delivery: Delivery, large: LargeMessage) -> Steps:
        raise LinkFault(NOT_ALLOWED, "a coordinator takes no large messages")

    @override
    def refuse(self, delivery: Delivery, error: OrthiaError) -> None:
        self._answer(delivery.id, Rejected(error_of(error)))

    @override
    def close(self) -> None:
        """Roll back what is open of it."""
        self._transactions.end_of(self)

    def _done(self, asked: Declare | Discharge) -> DeliveryState:
        """Begin a transaction or roll one back; return the outcome."""
        transactions = self._transactions
        if isinstance(asked, Discharge):
            transactions.roll_back(asked.txn_id)
            return ACCEPTED
        if asked.global_id is not None:
            raise LinkFault(NOT_IMPLEMENTED, "a transaction has this broker's work only")
        return Declared(transactions.declare(self))

    def _committing(self, delivery_id: int, txn_id: bytes) -> Steps:
        session = self._session
        client = session.client
        client.outstanding += 1

        def done() -> None:
            client.outstanding -= 1
            self._answer(delivery_id, ACCEPTED)

        def refused(error: OrthiaError) -> None:
            client.outstanding -= 1
            client.socket.refused(refusal_of(error), str(error))
            told = error_of(error)
            if not isinstance(error, LinkFault):
                told = told._replace(condition=ROLLED_BACK)
            self._answer(delivery_id, Rejected(told))

        try:
            yield from self._transactions.commit(txn_id, done, refused)
        except NotLive:
            raise
        except (BrokerError, LinkFault) as error:
            refused(error)

    def _answer(self, delivery_id: int, state: DeliveryState) -> None:
        self._session.say(Disposition(RECEIVER, delivery_id, settled=True, state=state))


def unpin(core: Broker, messages: Iterable[OutgoingMessage]) -> None:
    """Unpin the large bodies of messages that are not sent after all."""
    for message in messages:
        if core.large is not None and message.large is not None:
            core.large.unpin(message.large.id)
