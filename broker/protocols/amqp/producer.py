# mypyc compiles this module.
"""What a client sends by a link: its messages go to the core, their outcomes come back.

A message that is stored is accepted once the store has it. One that is refused is rejected with the
reason; if the client has settled it already, its link ends, for it would not learn otherwise.
"""

from collections.abc import Iterator

from typing_extensions import override

from orthia.broker.core.api import Done, FanOut, OutgoingMessage
from orthia.broker.core.errors import BrokerError, NotLive
from orthia.broker.core.limits.refusals import refusal_of
from orthia.broker.core.slices import Steps
from orthia.broker.protocols.amqp.conditions import (
    DECODE_ERROR,
    INVALID_FIELD,
    LinkFault,
    error_of,
)
from orthia.broker.protocols.amqp.link import LinkSession
from orthia.broker.protocols.amqp.messages import Incoming, read_head, read_message
from orthia.broker.protocols.amqp.nodes import Nodes
from orthia.broker.protocols.amqp.performatives import (
    RECEIVER,
    DeliveryState,
    Disposition,
    Rejected,
    TransactionalState,
)
from orthia.broker.protocols.amqp.receiver import Receiver, Sink
from orthia.broker.protocols.amqp.sections import find_sections
from orthia.broker.protocols.amqp.transactions import LINK_ENDED, Transactions, unpin
from orthia.broker.protocols.amqp.uploads import LargeMessage
from orthia.broker.protocols.amqp.values import AmqpDecodeError
from orthia.config.errors import OrthiaError


class _Stored:
    """What is called once a message is stored: it is accepted then."""

    __slots__ = ("_session", "delivery_id")

    def __init__(self, session: LinkSession, delivery_id: int) -> None:
        self._session = session
        self.delivery_id = delivery_id

    def __call__(self) -> None:
        """Accept the message."""
        self._session.client.outstanding -= 1
        self._session.accept(self.delivery_id)


class Producer(Sink):
    """Sends what comes by one link."""

    __slots__ = ("_destination", "_link", "_nodes", "_session", "_transactions")

    def __init__(
        self,
        session: LinkSession,
        nodes: Nodes,
        transactions: Transactions,
        destination: str | None,
    ) -> None:
        """Send to a destination of the core; None leaves it to each message."""
        self._session = session
        self._nodes = nodes
        self._transactions = transactions
        self._destination = destination
        self._link: Receiver | None = None
        """The link by which its messages come, once one has come."""

    @override
    def take(
        self,
        link: Receiver,
        delivery_id: int,
        state: DeliveryState | None,
        payload: bytes,
        *,
        is_settled: bool,
    ) -> Steps | None:
        client = self._session.client
        try:
            incoming = read_message(payload, client.principal, client.core.time_ms)
            destination = self._destination_of(incoming)
            return self._pass_on(
                link, delivery_id, state, destination, incoming.message, is_settled=is_settled
            )
        except NotLive:
            raise
        except AmqpDecodeError as error:
            fault = LinkFault(DECODE_ERROR, f"the message cannot be read: {error}")
            self.refuse(link, delivery_id, state, fault, is_settled=is_settled)
        except (BrokerError, LinkFault) as error:
            self.refuse(link, delivery_id, state, error, is_settled=is_settled)
        return None

    def _pass_on(
        self,
        link: Receiver,
        delivery_id: int,
        state: DeliveryState | None,
        destination: str,
        message: OutgoingMessage,
        *,
        is_settled: bool,
    ) -> Steps | None:
        """Send a message, or keep it for its transaction; raises LinkFault and BrokerError."""
        if isinstance(state, TransactionalState):
            self._send_in(state.txn_id, destination, message)
            if not is_settled:
                self._session.say_transacted(delivery_id, state.txn_id)
            return None
        return self._send(link, delivery_id, destination, message, is_settled=is_settled)

    # --- large messages

    @property
    @override
    def most_named(self) -> str:
        return self._session.client.uploads.most_named

    @override
    def begin(self, payload: bytes) -> LargeMessage | None:
        sections = find_sections(payload)
        if sections is None:
            return None
        client = self._session.client
        incoming = read_head(payload, sections, client.principal, client.core.time_ms)
        return client.uploads.begin(
            client.principal,
            self._destination_of(incoming),
            incoming.message,
            sections,
            payload[sections.head :],
        )

    @override
    def finish(
        self,
        link: Receiver,
        delivery_id: int,
        state: DeliveryState | None,
        large: LargeMessage,
        *,
        is_settled: bool,
    ) -> Steps:
        wait = large.finish()
        if wait is not None:
            yield wait
            if link.is_closed:
                if isinstance(state, TransactionalState):
                    self._transactions.fail(state.txn_id, LINK_ENDED)
                large.abort()
                return
        client = self._session.client
        message: OutgoingMessage | None = None
        try:
            message = large.take()
            steps = self._pass_on(
                link, delivery_id, state, large.destination, message, is_settled=is_settled
            )
        except AmqpDecodeError as error:
            fault = LinkFault(DECODE_ERROR, f"the message cannot be read: {error}")
            self.refuse(link, delivery_id, state, fault, is_settled=is_settled)
            return
        except OrthiaError as error:
            if message is not None:
                unpin(client.core, (message,))
            if isinstance(error, NotLive):
                raise
            self.refuse(link, delivery_id, state, error, is_settled=is_settled)
            return
        if steps is not None:
            yield from steps

    # --- sending

    def _destination_of(self, incoming: Incoming) -> str:
        if self._destination is not None:
            return self._destination
        if not incoming.to:
            raise LinkFault(
                INVALID_FIELD,
                "the message has no 'to', and its link no address: one of them must say where it"
                " goes",
            )
        return self._nodes.of_core(incoming.to, incoming.to_kind)

    def _send(
        self,
        link: Receiver,
        delivery_id: int,
        destination: str,
        message: OutgoingMessage,
        *,
        is_settled: bool,
    ) -> Steps | None:
        client = self._session.client
        done: Done | None = None
        if not is_settled:
            done = _Stored(self._session, delivery_id)
            client.outstanding += 1
        else:
            self._link = link
        try:
            sent = client.core.send(
                client.principal, destination, message, done, self._refused_by_store
            )
        except BrokerError:
            if done is not None:
                client.outstanding -= 1
            raise
        if sent is None:
            return None
        return self._awaiting(link, sent, delivery_id, message, is_settled=is_settled)

    def _awaiting(
        self,
        link: Receiver,
        sent: FanOut | Steps,
        delivery_id: int,
        message: OutgoingMessage,
        *,
        is_settled: bool,
    ) -> Steps:
        """Do the steps that send a message, or wait for those of a topic that were sent before."""
        if not isinstance(sent, Iterator):
            while sent.is_behind:
                yield sent.rest
            return
        try:
            yield from sent
        except BrokerError as error:
            client = self._session.client
            unpin(client.core, (message,))
            if isinstance(error, NotLive):
                raise
            if not is_settled:
                client.outstanding -= 1
            self.refuse(link, delivery_id, None, error, is_settled=is_settled)

    def _refused_by_store(self, error: OrthiaError, done: Done | None) -> None:
        """Tell the client that the store refuses a message, long after it was sent."""
        if isinstance(done, _Stored):
            self._session.client.outstanding -= 1
            self._reject(done.delivery_id, error)
        elif self._link is not None:
            self._end_link(self._link, error)

    @override
    def refuse(
        self,
        link: Receiver,
        delivery_id: int,
        state: DeliveryState | None,
        error: OrthiaError,
        *,
        is_settled: bool,
    ) -> None:
        if not is_settled:
            self._reject(delivery_id, error)
            return
        if isinstance(state, TransactionalState):
            self._transactions.fail(state.txn_id, str(error))
        self._end_link(link, error)

    @override
    def close(self) -> None:
        """Do nothing: what was sent goes on."""

    def _end_link(self, link: Receiver, error: OrthiaError) -> None:
        self._session.client.socket.refused(refusal_of(error), str(error))
        self._session.end_link(link, error_of(error))

    def _reject(self, delivery_id: int, error: OrthiaError) -> None:
        session = self._session
        session.client.socket.refused(refusal_of(error), str(error))
        session.flush_accepted()
        state = Rejected(error_of(error))
        session.say(Disposition(RECEIVER, delivery_id, settled=True, state=state))

    def _send_in(self, txn_id: bytes, destination: str, message: OutgoingMessage) -> None:
        """Keep a message that a transaction sends."""
        client = self._session.client
        work = self._transactions.reserve(txn_id, message)
        if destination not in work.checked:
            client.core.check_send(client.principal, destination)
            work.checked.add(destination)
        work.sends.append((destination, message))
