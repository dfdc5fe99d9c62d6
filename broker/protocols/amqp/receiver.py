# mypyc compiles this module.
"""A link by which a client sends: its credit, and the transfers of each message put together.

What becomes of a whole message its *sink* knows: a producer's, or the coordinator of transactions.
"""

from abc import ABC, abstractmethod

from orthia.broker.core.slices import Steps
from orthia.broker.protocols.amqp.conditions import (
    INVALID_FIELD,
    MESSAGE_SIZE,
    NOT_IMPLEMENTED,
    TRANSFER_LIMIT,
    LinkFault,
)
from orthia.broker.protocols.amqp.link import Link, LinkSession
from orthia.broker.protocols.amqp.performatives import Attach, DeliveryState, Flow, Transfer


class Sink(ABC):
    """What takes the messages of a link."""

    __slots__ = ()

    @abstractmethod
    def take(
        self,
        link: "Receiver",
        delivery_id: int,
        state: DeliveryState | None,
        payload: bytes,
        *,
        is_settled: bool,
    ) -> Steps | None:
        """Take a whole message; raises LinkFault.

        Returns steps to be done before the next frame, if there are any.
        """


class _Partial:
    """A message of which some has come."""

    __slots__ = ("delivery_id", "is_settled", "parts", "size", "state")

    def __init__(self, delivery_id: int) -> None:
        self.delivery_id = delivery_id
        self.state: DeliveryState | None = None
        self.is_settled = False
        self.parts: list[bytes] = []
        self.size = 0


class Receiver(Link):
    """A link by which a client sends."""

    __slots__ = (
        "_credit", "_delivery_count", "_low", "_max_bytes", "_most", "_partial", "_sink",
    )  # fmt: skip

    def __init__(self, session: LinkSession, said: Attach, cost: int, sink: Sink) -> None:
        """Begin without credit."""
        super().__init__(session, said, cost)
        options = session.client.options
        self._sink = sink
        self._delivery_count = said.initial_delivery_count or 0
        self._credit = 0
        self._most = options.amqp.credits
        self._low = options.amqp.low_credits
        self._max_bytes = options.max_message_size
        self._partial: _Partial | None = None

    def give_credit(self) -> None:
        """Let the client send as many messages as it may have under way."""
        self._credit = self._most
        self.say_flow()

    def say_flow(self) -> None:
        """Say how far the link is."""
        session = self.session
        session.say(
            Flow(
                *session.windows(),
                handle=self.handle,
                delivery_count=self._delivery_count,
                link_credit=self._credit,
            )
        )

    def flow(self, said: Flow) -> None:
        """Take note of how far the client is; it is answered if it asks for that."""
        if said.echo:
            self.say_flow()

    # --- messages

    def transfer(self, said: Transfer, payload: bytes) -> Steps | None:
        """Take a message, or a part of one; raises LinkFault.

        Returns steps to be done before the next frame, if there are any.
        """
        partial = self._partial
        if partial is None:
            if said.delivery_id is None:
                raise LinkFault(INVALID_FIELD, "the first transfer of a delivery has no id")
            if said.message_format:
                raise LinkFault(
                    NOT_IMPLEMENTED,
                    f"message format {said.message_format} is not known; expected 0",
                )
            if said.resume:
                raise LinkFault(NOT_IMPLEMENTED, "deliveries are not resumed: send it anew")
            self._count()
            if not said.more and not said.aborted:
                is_settled = bool(said.settled)
                return self._sink.take(
                    self, said.delivery_id, said.state, payload, is_settled=is_settled
                )
            partial = self._partial = _Partial(said.delivery_id)
        if said.settled:
            partial.is_settled = True
        if said.state is not None:
            partial.state = said.state
        if said.aborted:
            self._drop()
            return None
        partial.size += len(payload)
        self.session.client.buffered += len(payload)
        if partial.size > self._max_bytes:
            self._drop()
            raise LinkFault(
                MESSAGE_SIZE,
                f"a message has more than {self._max_bytes} bytes, which are max-body-bytes and"
                " max-header-bytes together",
            )
        partial.parts.append(payload)
        if said.more:
            return None
        self._drop()
        whole = b"".join(partial.parts)
        is_settled = partial.is_settled
        return self._sink.take(
            self, partial.delivery_id, partial.state, whole, is_settled=is_settled
        )

    def _count(self) -> None:
        """Count a delivery against the credit; give more once little is left."""
        if self._credit <= 0:
            raise LinkFault(TRANSFER_LIMIT, "a message came without credit")
        self._credit -= 1
        self._delivery_count = (self._delivery_count + 1) & 0xFFFFFFFF
        if self._credit <= self._low:
            self.give_credit()

    # --- the end

    def close(self) -> None:
        """Forget the message that is not whole."""
        self._drop()

    def _drop(self) -> None:
        if self._partial is not None:
            self.session.client.buffered -= self._partial.size
            self._partial = None
