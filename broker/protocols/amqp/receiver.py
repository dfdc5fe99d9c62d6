# mypyc compiles this module.
"""A link by which a client sends: its credit, and the transfers of each message put together.

What becomes of a whole message its *sink* knows: a producer's, or the coordinator of transactions.
A large message goes to the store while it comes; the sink says where to.
"""

from abc import ABC, abstractmethod
from functools import partial
from typing import Final

from typing_extensions import override

from orthia.broker.core.api import FanOut
from orthia.broker.core.errors import BrokerError, NotLive
from orthia.broker.core.slices import GO_ON, Steps, Wait
from orthia.broker.protocols.amqp.conditions import (
    INVALID_FIELD,
    MESSAGE_SIZE,
    NOT_IMPLEMENTED,
    TRANSFER_LIMIT,
    UNKNOWN_TRANSACTION,
    LinkFault,
    unreadable,
    without_frames,
)
from orthia.broker.protocols.amqp.link import Link, LinkSession
from orthia.broker.protocols.amqp.performatives import (
    Attach,
    DeliveryState,
    Flow,
    TransactionalState,
    Transfer,
)
from orthia.broker.protocols.amqp.uploads import LargeMessage
from orthia.broker.protocols.amqp.values import AmqpDecodeError
from orthia.config.errors import OrthiaError

_MASK: Final = 0xFFFFFFFF
_LONGEST_TRANSACTION_ID: Final = 32
"""Bytes of a transaction's id, by the specification."""


def transaction_of(state: TransactionalState) -> bytes:
    """Return the transaction that a delivery is of; raises LinkFault for what is no id of one."""
    if len(state.txn_id) > _LONGEST_TRANSACTION_ID:
        raise LinkFault(UNKNOWN_TRANSACTION, "no transaction of this id is open")
    return state.txn_id


class Delivery:
    """A message that a client sends, as far as its transfers say what is to be done with it."""

    __slots__ = ("id", "is_settled", "link", "state")

    def __init__(
        self, link: "Receiver", delivery_id: int, state: DeliveryState | None, *, is_settled: bool
    ) -> None:
        self.link = link
        self.id = delivery_id
        self.state = state
        """Of a message nothing but its transaction means anything."""
        self.is_settled = is_settled
        """Whether the client has forgotten it: it learns no outcome."""

    def __call__(self) -> None:
        """Accept it, of which the client waits for an outcome: it is stored."""
        session = self.link.session
        session.client.outstanding -= 1
        session.accept(self.id)


class Sink(ABC):
    """What takes the messages of a link."""

    __slots__ = ()

    @abstractmethod
    def take(self, delivery: Delivery, data: bytes, begin: int) -> Steps | None:
        """Take a whole message, which is all of ``data`` from ``begin`` on; raises LinkFault.

        Returns steps to be done before the next frame, if there are any.
        """

    @property
    @abstractmethod
    def most_named(self) -> str:
        """By what it is said how large a message may be."""

    @abstractmethod
    def begin(self, payload: bytes) -> LargeMessage | None:
        """Begin to store a large message that begins with ``payload``.

        Returns None before all of its head is there. Raises AmqpDecodeError, LinkFault and
        BrokerError.
        """

    @abstractmethod
    def finish(self, delivery: Delivery, large: LargeMessage) -> Steps:
        """Send a large message that is whole, once its body is stored."""

    @abstractmethod
    def refuse(self, delivery: Delivery, error: OrthiaError) -> None:
        """Tell the client that a message is not taken."""

    @abstractmethod
    def close(self) -> None:
        """Note that the link is over."""


class _Partial:
    """A message of which some has come."""

    __slots__ = ("begun", "delivery", "error", "large", "size")

    def __init__(self, delivery: Delivery) -> None:
        self.delivery = delivery
        # Not a list of parts: of very small ones it takes many times as much as they have.
        self.begun = bytearray()
        """What came, but for what went to the store."""
        self.size = 0
        self.large: LargeMessage | None = None
        """What the rest of it goes to, if it is large."""
        self.error: OrthiaError | None = None
        """Why it is refused; its client learns that at its end, for some do not expect it before.
        What comes until then is dropped."""


class Receiver(Link):
    """A link by which a client sends."""

    __slots__ = (
        "_credit", "_delivery_limit", "_least_large", "_low", "_max_bytes", "_most", "_partial",
        "_room", "_sink", "_whole", "is_closed",
    )  # fmt: skip

    def __init__(
        self,
        session: LinkSession,
        said: Attach,
        cost: int,
        sink: Sink,
        least_large: int,
        most: int,
    ) -> None:
        """Begin without credit; of ``least_large`` bytes a message is large, and has ``most``."""
        super().__init__(session, said, cost)
        options = session.client.options
        self._sink = sink
        self.is_closed = False
        """Whether it is over: nothing more that came by it is sent."""
        self._credit = 0
        """How many messages more the client may send."""
        self._delivery_limit = said.initial_delivery_count or 0
        """How many deliveries that are together with all that came before."""
        self._most = options.amqp.credits
        self._low = options.amqp.low_credits
        self._least_large = least_large
        self._max_bytes = most
        self._whole = min(least_large, most + 1)
        """Below how many bytes a message in one transfer is taken as it is."""
        self._partial: _Partial | None = None
        self._room: Wait | None = None
        """The wait of its client for room in an address: it gets no credit until then."""

    def give_credit(self) -> None:
        """Let the client send as many messages as it may have under way."""
        self._delivery_limit += self._most - self._credit
        self._credit = self._most
        self.say_flow()

    def withhold_credit(self, full: FanOut) -> None:
        """Give no credit until an address has room."""
        if self._room is not None:
            return
        wait = full.rest
        if isinstance(wait, Wait):
            self._room = wait
            wait.then(partial(self._has_room, full))

    def _has_room(self, full: FanOut) -> None:
        client = self.session.client
        client.core.slices.later(self._going_on(full), client.socket.usage)

    def _going_on(self, full: FanOut) -> Steps:
        if self.is_closed:
            return
        self._room = None
        if full.is_behind:
            self.withhold_credit(full)
        else:
            self.session.client.beyond = 0
            self._give_if_low()
        yield GO_ON

    def say_flow(self) -> None:
        """Say how far the link is."""
        session = self.session
        session.say(
            Flow(
                *session.windows(),
                handle=self.handle,
                delivery_count=(self._delivery_limit - self._credit) & _MASK,
                link_credit=self._credit,
            )
        )

    def flow(self, said: Flow) -> None:
        """Take note of how far the client is; it is answered if it asks for that."""
        if said.echo:
            self.say_flow()

    # --- messages

    @override
    def transfer_whole(
        self, delivery_id: int, data: bytes, begin: int, *, is_settled: bool
    ) -> Steps | None:
        if self._partial is not None or len(data) - begin >= self._whole:
            return super().transfer_whole(delivery_id, data, begin, is_settled=is_settled)
        self._count()
        delivery = Delivery(self, delivery_id, None, is_settled=is_settled)
        return self._sink.take(delivery, data, begin)

    @override
    def transfer(self, said: Transfer, payload: bytes) -> Steps | None:
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
            if not said.more and not said.aborted and len(payload) < self._whole:
                state: DeliveryState | None = None
                if isinstance(said.state, TransactionalState):
                    # Kept until the message is stored: nothing else that a client may write there.
                    state = TransactionalState(said.state.txn_id)
                delivery = Delivery(self, said.delivery_id, state, is_settled=bool(said.settled))
                return self._sink.take(delivery, payload, 0)
            delivery = Delivery(self, said.delivery_id, None, is_settled=False)
            partial = self._partial = _Partial(delivery)
        else:
            delivery = partial.delivery
            if said.delivery_id is not None and said.delivery_id != delivery.id:
                raise LinkFault(
                    INVALID_FIELD,
                    f"delivery {said.delivery_id} began before {delivery.id} was whole",
                )
        if said.settled:
            delivery.is_settled = True
        if isinstance(said.state, TransactionalState):
            delivery.state = TransactionalState(transaction_of(said.state))
        if said.aborted:
            self._drop()
            return None
        partial.size += len(payload)
        if partial.size > self._max_bytes:
            raise LinkFault(
                MESSAGE_SIZE,
                f"a message has more than {self._max_bytes} bytes: {self._sink.most_named}",
            )
        self._add(partial, payload)
        return None if said.more else self._finish(partial)

    def _add(self, partial: _Partial, payload: bytes) -> None:
        """Keep a part of a message, or hand it on if the message is large."""
        if partial.error is not None:
            return
        client = self.session.client
        if partial.large is not None:
            client.uploads.add(partial.large, payload)
            return
        partial.begun += payload
        client.buffered += len(payload)
        if partial.size < self._least_large:
            return
        try:
            partial.large = self._sink.begin(bytes(partial.begun))
        except NotLive:
            raise
        except AmqpDecodeError as error:
            partial.error = unreadable(error)
        except (BrokerError, LinkFault) as error:
            if isinstance(error, LinkFault) and error.condition == MESSAGE_SIZE:
                raise
            partial.error = without_frames(error)
        if partial.large is not None or partial.error is not None:
            self._let_go(partial)

    def _finish(self, partial: _Partial) -> Steps | None:
        """Send a message that is whole, or refuse it."""
        whole = bytes(partial.begun)
        self._let_go(partial)
        self._partial = None
        sink, delivery = self._sink, partial.delivery
        if partial.error is not None:
            sink.refuse(delivery, partial.error)
            return None
        if partial.large is not None:
            return sink.finish(delivery, partial.large)
        return sink.take(delivery, whole, 0)

    def _let_go(self, partial: _Partial) -> None:
        """Hold nothing more here of a message."""
        self.session.client.buffered -= len(partial.begun)
        partial.begun = bytearray()

    def _count(self) -> None:
        """Count a delivery against the credit; give more once little is left."""
        credit = self._credit - 1
        if credit < 0:
            raise LinkFault(TRANSFER_LIMIT, "a message came without credit")
        self._credit = credit
        self._give_if_low()

    def _give_if_low(self) -> None:
        if self._credit <= self._low and self._room is None:
            self.give_credit()

    # --- the end

    @property
    @override
    def partial_state(self) -> DeliveryState | None:
        return None if self._partial is None else self._partial.delivery.state

    def close(self) -> None:
        """Forget the message that is not whole."""
        self.is_closed = True
        if self._room is not None:
            self._room.drop()
        self._drop()
        self._sink.close()

    def _drop(self) -> None:
        partial, self._partial = self._partial, None
        if partial is not None:
            self._let_go(partial)
            if partial.large is not None:
                partial.large.abort()
