# mypyc compiles this module.
"""What a client sends by a link: its messages go to the core, their outcomes come back.

A message that is stored is accepted once the store has it. One that is refused is rejected with the
reason; if the client has settled it already, its link ends, for it would not learn otherwise.
"""

from collections.abc import Iterator
from typing import Final

from typing_extensions import override

from orthia.broker.core.api import Done, FanOut, OutgoingMessage, waiting
from orthia.broker.core.errors import BrokerError, NotLive
from orthia.broker.core.limits.refusals import refusal_of
from orthia.broker.core.slices import Steps
from orthia.broker.protocols.amqp.conditions import (
    INVALID_FIELD,
    LinkFault,
    error_of,
    unreadable,
)
from orthia.broker.protocols.amqp.link import LinkSession
from orthia.broker.protocols.amqp.messages import MessageReader
from orthia.broker.protocols.amqp.nodes import Nodes
from orthia.broker.protocols.amqp.performatives import (
    RECEIVER,
    Disposition,
    Rejected,
    TransactionalState,
)
from orthia.broker.protocols.amqp.receiver import Delivery, Receiver, Sink
from orthia.broker.protocols.amqp.sections import find_sections
from orthia.broker.protocols.amqp.transactions import LINK_ENDED, Transactions, unpin
from orthia.broker.protocols.amqp.uploads import LargeMessage
from orthia.broker.protocols.amqp.values import AmqpDecodeError
from orthia.config.address_settings import RoutingType
from orthia.config.errors import OrthiaError

MOST_BEYOND: Final = 16 * 2**20
"""Bytes that a connection may send to full addresses by credit that it has."""


class Producer(Sink):
    """Sends what comes by one link."""

    __slots__ = ("_destination", "_link", "_nodes", "_reader", "_session", "_transactions")

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
        self._reader = MessageReader()
        self._link: Receiver | None = None
        """The link by which its messages come, once one has come."""

    @override
    def take(self, delivery: Delivery, data: bytes, begin: int) -> Steps | None:
        client = self._session.client
        try:
            message, to, kind = self._reader.read(
                data, begin, client.principal, client.core.time_ms
            )
            destination = self._destination
            if destination is None:
                destination = self._named(to, kind)
            if delivery.state is None:
                return self._send(delivery, destination, message)
            return self._pass_on(delivery, destination, message)
        except NotLive:
            raise
        except AmqpDecodeError as error:
            self.refuse(delivery, unreadable(error))
        except (BrokerError, LinkFault) as error:
            self.refuse(delivery, error)
        return None

    def _pass_on(
        self, delivery: Delivery, destination: str, message: OutgoingMessage
    ) -> Steps | None:
        """Send a message, or keep it for its transaction; raises LinkFault and BrokerError."""
        state = delivery.state
        if isinstance(state, TransactionalState):
            full = self._send_in(state.txn_id, destination, message)
            if not delivery.is_settled:
                self._session.say_transacted(delivery.id, state.txn_id)
            return None if full is None else self._slowed(delivery, full, message)
        return self._send(delivery, destination, message)

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
        message, to, kind = self._reader.read_head(
            payload, sections, client.principal, client.core.time_ms
        )
        destination = self._destination
        if destination is None:
            destination = self._named(to, kind)
        body = payload[sections.head :]
        return client.uploads.begin(client.principal, destination, message, sections, body)

    @override
    def finish(self, delivery: Delivery, large: LargeMessage) -> Steps:
        wait = large.finish()
        if wait is not None:
            yield wait
            if delivery.link.is_closed:
                self._transactions.fail(delivery.state, LINK_ENDED)
                large.abort()
                return
        client = self._session.client
        message: OutgoingMessage | None = None
        try:
            message = large.take()
            steps = self._pass_on(delivery, large.destination, message)
        except AmqpDecodeError as error:
            self.refuse(delivery, unreadable(error))
            return
        except OrthiaError as error:
            if message is not None:
                unpin(client.core, (message,))
            if isinstance(error, NotLive):
                raise
            self.refuse(delivery, error)
            return
        if steps is not None:
            yield from steps

    # --- sending

    def _named(self, to: str | None, kind: RoutingType | None) -> str:
        """Return the destination that a message itself says; raises LinkFault without one."""
        if not to:
            raise LinkFault(
                INVALID_FIELD,
                "the message has no 'to', and its link no address: one of them must say where it"
                " goes",
            )
        return self._nodes.of_core(to, kind)

    def _send(self, delivery: Delivery, destination: str, message: OutgoingMessage) -> Steps | None:
        client = self._session.client
        done: Done | None = None
        if not delivery.is_settled:
            done = delivery
            client.outstanding += 1
        else:
            self._link = delivery.link
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
        if isinstance(sent, Iterator):
            return self._awaiting(delivery, sent, message)
        return self._slowed(delivery, sent, message)

    def answer(
        self, delivery: Delivery, destination: str, message: OutgoingMessage
    ) -> Steps | None:
        """Send what answers a delivery, which is accepted once that is stored, or rejected.

        Returns steps to be done before the next frame, if there are any. Raises NotLive.
        """
        try:
            return self._send(delivery, destination, message)
        except NotLive:
            raise
        except BrokerError as error:
            self.refuse(delivery, error)
            return None

    def _slowed(self, delivery: Delivery, behind: FanOut, message: OutgoingMessage) -> Steps | None:
        """Give the link no more credit while an address is full, for which it sent a message.

        Returns steps that wait, if that is not enough: for a topic, or if too much was sent.
        """
        if behind.admits_more:
            client = self._session.client
            large = message.large
            client.beyond += len(message.body) if large is None else large.size
            delivery.link.withhold_credit(behind)
            if client.beyond <= MOST_BEYOND:
                return None
        return waiting(behind)

    def _awaiting(self, delivery: Delivery, sending: Steps, message: OutgoingMessage) -> Steps:
        """Do the steps that send a message."""
        try:
            yield from sending
        except BrokerError as error:
            client = self._session.client
            unpin(client.core, (message,))
            if isinstance(error, NotLive):
                raise
            if not delivery.is_settled:
                client.outstanding -= 1
            self.refuse(delivery, error)

    def _refused_by_store(self, error: OrthiaError, done: Done | None) -> None:
        """Tell the client that the store refuses a message, long after it was sent."""
        if isinstance(done, Delivery):
            self._session.client.outstanding -= 1
            self._reject(done.id, error)
        elif self._link is not None:
            self._end_link(self._link, error)

    @override
    def refuse(self, delivery: Delivery, error: OrthiaError) -> None:
        if not delivery.is_settled:
            self._reject(delivery.id, error)
            return
        self._transactions.fail(delivery.state, str(error))
        self._end_link(delivery.link, error)

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

    def _send_in(self, txn_id: bytes, destination: str, message: OutgoingMessage) -> FanOut | None:
        """Keep a message that a transaction sends; return its address if that is found full."""
        client, full = self._session.client, None
        work = self._transactions.reserve(txn_id, message)
        if destination not in work.checked:
            full = client.core.check_send(client.principal, destination)
            work.checked.add(destination)
        work.sends.append((destination, message))
        return full
