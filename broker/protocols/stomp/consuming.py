# mypyc compiles this module.
"""SUBSCRIBE, UNSUBSCRIBE, ACK and NACK: what a client receives, and what becomes of it."""

import logging
from collections.abc import Callable, Collection
from functools import partial
from typing import TypeVar

from orthia.broker.core.api import BrokerCore, Done, MessageReference, TransactionWork
from orthia.broker.core.destinations import of_type
from orthia.broker.core.errors import BrokerError, NotLive
from orthia.broker.core.selectors import SelectorRefused, parsing
from orthia.broker.core.slices import GO_ON, Steps, Wait
from orthia.broker.protocols.stomp.attempts import attempted
from orthia.broker.protocols.stomp.client_frame import Frame
from orthia.broker.protocols.stomp.frames import ProtocolError
from orthia.broker.protocols.stomp.login import Client
from orthia.broker.protocols.stomp.options import StompOptions
from orthia.broker.protocols.stomp.outbox import Outbox
from orthia.broker.protocols.stomp.receipts import Receipts
from orthia.broker.protocols.stomp.several import (
    ConsumerOfSeveral,
    Part,
    SeveralDestinations,
    several,
)
from orthia.broker.protocols.stomp.states import Handlers
from orthia.broker.protocols.stomp.subscribing import Subscribe, read_subscribe, read_unsubscribe
from orthia.broker.protocols.stomp.subscriptions import (
    AckMode,
    ClientBrowser,
    ClientSubscription,
    ClientSubscriptions,
    many_addresses,
)
from orthia.broker.protocols.stomp.temporary import Temporaries
from orthia.broker.protocols.stomp.transactions import OpenTransactions
from orthia.broker.quoting import quoted
from orthia.config.errors import OrthiaError
from orthia.journal.model.message import LargeBody

Made = TypeVar("Made", bound=ClientSubscription)
LOGGER = logging.getLogger("orthia.broker")


class Receiver:
    """What a client receives; methods that take frames raise ProtocolError and BrokerError."""

    __slots__ = (
        "_client",
        "_connection",
        "_core",
        "_cut_off",
        "_fail",
        "_holds",
        "_is_resuming",
        "_leaving",
        "_options",
        "_outbox",
        "_receipts",
        "_resumes",
        "_streamed_whole",
        "_streaming",
        "_subscriptions",
        "_temporaries",
        "_transactions",
    )  # fmt: skip

    def __init__(
        self,
        core: BrokerCore,
        client: Client,
        subscriptions: ClientSubscriptions,
        transactions: OpenTransactions,
        receipts: Receipts,
        outbox: Outbox,
        *,
        temporaries: Temporaries,
        options: StompOptions,
        connection: object,
        holds: Callable[[int], None],
        fail: Callable[[str], None],
        cut_off: Done,
        streamed: Done,
    ) -> None:
        """Begin with no subscription.

        ``connection`` is the same for all of one client; ``holds`` is told of messages that wait
        for an acknowledgement; ``fail`` ends the connection with a reason, ``cut_off`` without;
        ``streamed`` follows each large body that was written whole.
        """
        self._core = core
        self._client = client
        self._subscriptions = subscriptions
        self._transactions = transactions
        self._receipts = receipts
        self._outbox = outbox
        self._temporaries = temporaries
        self._options = options
        self._connection = connection
        self._holds = holds
        self._fail = fail
        self._cut_off = cut_off
        self._streamed_whole = streamed
        self._resumes = self._is_resuming = False  # whether all are to be asked again, or some are
        self._streaming: ClientSubscription | None = None
        """Whose message has a body that was the last to be written."""
        self._leaving: ClientSubscription | None = None
        """What ends when the body of its last message is written."""

    @property
    def handlers(self) -> Handlers:
        """What it does, by the frame."""
        return {
            "SUBSCRIBE": self.subscribe,
            "UNSUBSCRIBE": self.unsubscribe,
            "ACK": self.ack,
            "NACK": self.nack,
        }

    def subscribe(self, frame: Frame) -> Steps:
        """Do a SUBSCRIBE, whose selector may take some time to read."""
        limits = self._options.limits
        asked = read_subscribe(frame, self._client.version, limits.prefetch_count)
        self._options.unknown_headers.look("SUBSCRIBE", frame.raw)
        if asked.selector is not None:
            try:
                yield from parsing(asked.selector)
            except SelectorRefused as error:
                user = quoted(self._client.principal.name)
                raise error.of(f"user {user} for {quoted(asked.destination)}") from None
        self._subscribe(frame, asked)
        yield GO_ON

    def _subscribe(self, frame: Frame, asked: Subscribe) -> None:
        named = several(asked.destination)
        if named is not None:
            self._subscribe_to_several(frame, asked, named)
            return
        meant = self._of_core(asked.destination, asked.kind)
        pattern = None if asked.browses else self._core.hears_many(meant)
        make: Callable[..., ClientSubscription] = ClientSubscription
        if asked.browses:
            make = ClientBrowser
        elif pattern is not None:
            make = partial(many_addresses, pattern)
        subscription = self._made(make, asked)
        if isinstance(subscription, ClientBrowser):
            core = self._core.browse(
                self._client.principal,
                meant,
                subscription,
                prefetch=asked.prefetch,
                window=asked.window,
                selector=asked.selector,
            )
        else:
            core = self._core.subscribe(
                self._client.principal,
                meant,
                subscription,
                prefetch=asked.prefetch,
                window=asked.window,
                durable=asked.durable,
                no_local=asked.no_local,
                selector=asked.selector,
            )
        subscription.attach(core)
        subscription.durable = asked.durable
        self._subscriptions.add(asked.key, subscription, selector=asked.selector)
        self._answer(frame)
        core.resume()

    def _of_core(self, destination: str, kind: str | None) -> str:
        meant = self._temporaries.of_core(destination)
        if self._options.prefixes is not None:
            meant = self._options.prefixes.of_core(meant)
        meant = of_type(meant, kind)
        virtual_topics = self._options.virtual_topics
        return meant if virtual_topics is None else virtual_topics.of_core(meant)

    def _made(self, make: Callable[..., Made], asked: Subscribe) -> Made:
        return make(
            asked.id,
            self._subscriptions.new_number(asked.key),
            asked.destination,
            asked.mode,
            version=self._client.version,
            write=self._outbox.write_now,
            write_part=self._outbox.write_part,
            is_writable=self._outbox.takes_messages,
            holds=self._holds,
            fail=self._fail,
            stream=self._stream,
            connection=self._connection,
            principal=self._client.principal,
        )

    def _subscribe_to_several(self, frame: Frame, asked: Subscribe, named: list[str]) -> None:
        if asked.browses or asked.durable is not None:
            raise ProtocolError(
                "a browser, and a durable subscription, is of one destination; subscribe to each"
            )
        all_meant: dict[str, str] = {}
        for one in named:  # what is named twice is meant once, as in Classic
            all_meant.setdefault(self._of_core(one, asked.kind), one)
        if any(self._core.hears_many(one) is not None for one in all_meant):
            raise ProtocolError("a name with wildcards is not one of several; subscribe to each")
        subscription = self._made(SeveralDestinations, asked)
        subscription.begin()
        parts: list[Part] = []
        try:
            for meant, one in all_meant.items():
                part = Part(subscription, one)
                part.core = self._core.subscribe(
                    self._client.principal,
                    meant,
                    part,
                    prefetch=asked.prefetch,
                    window=asked.window,
                    no_local=asked.no_local,
                    selector=asked.selector,
                )
                parts.append(part)
        except (ProtocolError, BrokerError):
            for part in parts:
                part.core.close()
            raise
        core = ConsumerOfSeveral(subscription, parts)
        subscription.attach(core)
        self._subscriptions.add(asked.key, subscription, selector=asked.selector, parts=len(parts))
        self._answer(frame)
        core.resume()

    def _answer(self, frame: Frame) -> None:
        """Send the RECEIPT of a SUBSCRIBE once the queue that was created for it is stored.

        Whoever has it counts on the queue, which gets what is sent from now on.
        """
        self._core.when_bound(self._receipts.later(frame))

    def unsubscribe(self, frame: Frame) -> Steps | None:
        """Do an UNSUBSCRIBE; returns steps to be done before the next frame, if there are any."""
        asked = read_unsubscribe(frame, self._client.version)
        self._options.unknown_headers.look("UNSUBSCRIBE", frame.raw)
        if asked.durable is None:
            self._end(self._subscriptions.remove(asked.key))
            self._receipts.now(frame)
            return None
        # Its queue may be this connection's to end without a subscription to it, as in Artemis.
        subscription = self._subscriptions.using(asked.key, asked.durable)
        if subscription is not None:
            self._detach(subscription)
        ended = self._receipts.later(frame)
        ending = _Ending(ended)
        try:
            self._core.end_durable(self._client.principal, asked.durable, ending)
        except NotLive:
            self._receipts.take_back(ended)
            raise
        return ending.awaited()

    def _end(self, subscription: ClientSubscription) -> None:
        """Close a subscription, once the message that its client is getting is acknowledged.

        Given back amid its body it would come again.
        """
        if subscription is self._acknowledging():
            subscription.stop()
            self._leaving = subscription
        else:
            self._detach(subscription)

    def _acknowledging(self) -> ClientSubscription | None:
        """Return whose message is acknowledged by the end of the body that is being written."""
        streaming = self._streaming if self._outbox.is_streaming else None
        return streaming if streaming is not None and streaming.mode is AckMode.AUTO else None

    @staticmethod
    def _detach(subscription: ClientSubscription) -> None:
        if subscription.core is not None:
            subscription.core.close()

    def ack(self, frame: Frame) -> None:
        """Do an ACK."""
        self._acknowledge(frame, nack=False)

    def nack(self, frame: Frame) -> None:
        """Do a NACK."""
        self._options.unknown_headers.look("NACK", frame.raw)
        self._acknowledge(frame, nack=True)

    def _acknowledge(self, frame: Frame, *, nack: bool) -> None:
        subscription, seq = self._subscriptions.named(frame)
        transacted = b"transaction" in frame.raw
        if transacted:
            self._transactions.named(frame)
        references = subscription.take(seq)
        core = subscription.core
        if core is None:
            raise ProtocolError("the subscription is closed")
        if transacted:
            self._transactions.answer(frame, core, references, nack=nack)
            self._receipts.now(frame)
            core.resume()
        else:
            done = self._receipts.later(frame)
            try:
                if nack:
                    core.reject(references, done)
                else:
                    core.acknowledge(references, done)
            except NotLive:
                self._receipts.take_back(done)
                raise

    def resume(self) -> None:
        """Go on delivering: the socket takes more."""
        self._outbox.resume()
        self._resumes = True
        if not self._is_resuming:
            self._is_resuming = True
            self._core.slices.run(self._resuming())

    def _resuming(self) -> Steps:
        try:
            while self._resumes:
                self._resumes = False
                for subscription in [*self._subscriptions.all()]:
                    if subscription.core is not None:
                        subscription.core.resume()
                    yield GO_ON
        finally:
            self._is_resuming = False

    def leave(self) -> Steps:
        """End all subscriptions of a client that goes in good order."""
        for subscription in self._subscriptions.clear():
            self._end(subscription)
            yield GO_ON
        if self._leaving is not None:
            yield from self._outbox.whole()
        yield from self.close((), None)

    def close(self, works: Collection[TransactionWork], left: int | None) -> Steps:
        """End all subscriptions; what was delivered and not acknowledged goes back.

        Where the client failed, its socket took ``left`` bytes and ``works`` were open: what it can
        have been working on counts as an attempt.
        """
        ended = self._subscriptions.clear()
        if self._leaving is not None:
            ended.append(self._leaving)
            self._leaving = None
        for subscription in ended:
            core = subscription.core
            if core is None:
                continue
            if left is None:
                core.close()
            else:
                core.close(attempted=attempted(core, subscription.oldest, works, left))
            yield GO_ON
        self._temporaries.end()
        self._receipts.done()

    def _stream(
        self, subscription: ClientSubscription, reference: MessageReference, body: LargeBody
    ) -> None:
        if self._core.large is None:
            raise RuntimeError("a large message in a broker that stores none")
        self._streaming = subscription
        ended = partial(self._streamed, subscription, reference)
        self._outbox.stream(self._core.large, body, ended)

    def _streamed(
        self,
        subscription: ClientSubscription,
        reference: MessageReference,
        error: OrthiaError | None,
    ) -> None:
        if error is None:
            subscription.streamed(reference)
            if subscription is self._leaving:
                self._leaving = None
                self._detach(subscription)
            self._streamed_whole()
            return
        what = "message %d cannot be delivered whole: %s; its client is cut off, it goes back"
        LOGGER.error(what, reference.seq, error)
        subscription.refuse(reference)
        self._cut_off()


class _Ending:
    """The end of a durable subscription: what its client sends next waits for it."""

    def __init__(self, then: Done) -> None:
        self._then = then
        self._wait = Wait(lambda _: None)

    def __call__(self) -> None:
        self._then()
        self._wait()

    def awaited(self) -> Steps:
        """Wait until it is over."""
        yield self._wait
