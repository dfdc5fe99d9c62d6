# mypyc compiles this module.
"""SUBSCRIBE, UNSUBSCRIBE, ACK and NACK: what a client receives, and what becomes of it."""

from collections.abc import Collection
from typing import Final, NamedTuple

from orthia.broker.core.api import Done, SubscriptionHandle, TransactionWork
from orthia.broker.core.destinations import of_type
from orthia.broker.core.errors import BrokerError, NotLive
from orthia.broker.core.selectors import SelectorRefused, parsing
from orthia.broker.core.slices import GO_ON, Repeating, Steps, Wait
from orthia.broker.protocols.attempts import attempted
from orthia.broker.protocols.stomp.client_frame import Frame
from orthia.broker.protocols.stomp.composite import CompositeHandle, Member, destinations_of
from orthia.broker.protocols.stomp.frames import ProtocolError, Version, is_whole_number
from orthia.broker.protocols.stomp.headers import refuse
from orthia.broker.protocols.stomp.session import Session
from orthia.broker.protocols.stomp.states import Handlers
from orthia.broker.protocols.stomp.subscription import (
    AckMode,
    ClientSubscription,
    ClientSubscriptions,
    Subscribe,
)
from orthia.broker.protocols.stomp.temporary import TemporaryDestinations
from orthia.broker.protocols.stomp.transactions import Transactions
from orthia.broker.quoting import quoted

_MOST_MESSAGES: Final = 10_000
"""That a subscription may have unacknowledged, whatever it asks for; bytes are bounded beside."""


class SubscribeHandler:
    """Subscribes a client, and settles what it gets; methods raise ProtocolError, BrokerError."""

    __slots__ = (
        "_ending", "_leaving", "_receipts", "_resuming", "_session", "_subscriptions",
        "_temporary", "_transactions",
    )  # fmt: skip

    def __init__(
        self,
        session: Session,
        subscriptions: ClientSubscriptions,
        transactions: Transactions,
        temporary: TemporaryDestinations,
    ) -> None:
        self._session = session
        self._receipts = session.receipts
        self._subscriptions = subscriptions
        self._transactions = transactions
        self._temporary = temporary
        self._resuming = Repeating()
        self._ending: dict[str, Wait] = {}
        """The durable subscriptions that the client has ended, as long as they are not deleted."""
        self._leaving: ClientSubscription | None = None
        """What is closed once the body of its last message is written."""

    @property
    def handlers(self) -> Handlers:
        """What it does, by the frame."""
        return {
            "SUBSCRIBE": self.subscribe,
            "UNSUBSCRIBE": self.unsubscribe,
            "ACK": self.ack,
            "NACK": self.nack,
        }

    # --- SUBSCRIBE and UNSUBSCRIBE

    def subscribe(self, frame: Frame) -> Steps:
        """Do a SUBSCRIBE, whose selector may take some time to read."""
        session = self._session
        asked = read_subscribe(frame, session.version, session.options.limits.prefetch_count)
        session.options.unknown_headers.look("SUBSCRIBE", frame.raw)
        if asked.selector is not None:
            try:
                yield from parsing(asked.selector)
            except SelectorRefused as error:
                user = quoted(session.principal.name)
                raise error.of(f"user {user} for {quoted(asked.destination)}") from None
        if asked.durable in self._ending:
            yield self._ending[asked.durable]
        if session.output.is_over:
            return  # its client left meanwhile
        named = destinations_of(asked.destination)
        if named is None:
            handle = self._subscribe(asked, frame)
        else:
            handle = self._subscribe_to_several(asked, frame, named)
        handle.resume()
        yield GO_ON

    def _subscribe(self, asked: Subscribe, frame: Frame) -> SubscriptionHandle:
        session, core = self._session, self._session.core
        destination = self._of_core(asked.destination, asked.kind)
        pattern = None if asked.browses else core.wildcard_of(destination)
        subscription = ClientSubscription(
            session,
            asked,
            self._subscriptions.new_number(asked.key),
            prefix=None if pattern is None else asked.destination.removesuffix(pattern),
        )
        if asked.browses:
            handle = core.browse(
                session.principal,
                destination,
                subscription,
                prefetch=asked.prefetch,
                window=asked.window,
                selector=asked.selector,
            )
        else:
            handle = core.subscribe(
                session.principal,
                destination,
                subscription,
                prefetch=asked.prefetch,
                window=asked.window,
                durable=asked.durable,
                no_local=asked.no_local,
                selector=asked.selector,
            )
        self._add(subscription, handle, frame)
        return handle

    def _subscribe_to_several(
        self, asked: Subscribe, frame: Frame, named: list[str]
    ) -> SubscriptionHandle:
        session, core = self._session, self._session.core
        if asked.browses or asked.durable is not None:
            raise ProtocolError(
                "a browser or a durable subscription has one destination; subscribe to each"
            )
        destinations: dict[str, str] = {}
        for one in named:  # one that is named twice counts once, as in Classic
            destinations.setdefault(self._of_core(one, asked.kind), one)
        if any(core.wildcard_of(one) is not None for one in destinations):
            raise ProtocolError("one of several destinations has wildcards; subscribe to each")
        number = self._subscriptions.new_number(asked.key)
        subscription = ClientSubscription(session, asked, number)
        owners: dict[int, SubscriptionHandle] = {}
        members: list[Member] = []
        try:
            for destination, one in destinations.items():
                member = Member(subscription, one, owners)
                member.attach(
                    core.subscribe(
                        session.principal,
                        destination,
                        member,
                        prefetch=asked.prefetch,
                        window=asked.window,
                        no_local=asked.no_local,
                        selector=asked.selector,
                    )
                )
                members.append(member)
        except (ProtocolError, BrokerError):
            for member in members:
                member.handle.close()
            raise
        handle = CompositeHandle(members, owners)
        self._add(subscription, handle, frame, consumers=len(members))
        return handle

    def _add(
        self,
        subscription: ClientSubscription,
        handle: SubscriptionHandle,
        frame: Frame,
        *,
        consumers: int = 1,
    ) -> None:
        """Keep a subscription; answer its frame once the queue that was created for it is stored.

        Whoever has the RECEIPT counts on the queue, which gets what is sent from now on.
        """
        subscription.attach(handle)
        self._subscriptions.add(subscription, consumers=consumers)
        self._session.core.when_bound(self._receipts.later(frame))

    def _of_core(self, destination: str, kind: str | None) -> str:
        options = self._session.options
        found = self._temporary.of_core(destination)
        if options.prefixes is not None:
            found = options.prefixes.of_core(found)
        found = of_type(found, kind)
        return found if options.virtual_topics is None else options.virtual_topics.of_core(found)

    def unsubscribe(self, frame: Frame) -> Steps | None:
        """Do an UNSUBSCRIBE; returns steps to be done before the next frame, if there are any.

        A durable subscription that it ends is deleted later, and answered then: that takes long
        where another session of the database has locked a row. Other frames go on meanwhile.
        """
        session = self._session
        asked = read_unsubscribe(frame, session.version)
        session.options.unknown_headers.look("UNSUBSCRIBE", frame.raw)
        if asked.durable is None:
            self._end(self._subscriptions.remove(asked.key))
            self._receipts.now(frame)
            return None
        # Its queue may be this connection's to end without a subscription to it, as in Artemis.
        subscription = self._subscriptions.using(asked.key, asked.durable)
        if subscription is not None:
            subscription.close()
        if asked.durable in self._ending:
            return self._ending_again(frame, asked.durable)
        self._end_durable(frame, asked.durable)
        return None

    def _ending_again(self, frame: Frame, name: str) -> Steps:
        """End a subscription once the one of that name is deleted which ends already."""
        yield self._ending[name]
        if not self._session.output.is_over:
            self._end_durable(frame, name)

    def _end_durable(self, frame: Frame, name: str) -> None:
        session, ending = self._session, self._ending
        done = self._receipts.later(frame)
        ending[name] = Wait(lambda _: None)
        try:
            session.core.end_durable(session.principal, name, _Ending(ending, name, done))
        except BrokerError as error:
            del ending[name]
            if isinstance(error, NotLive):
                self._receipts.take_back(done)
            raise

    def _end(self, subscription: ClientSubscription) -> None:
        subscription.end()
        if subscription.is_leaving:
            self._leaving = subscription

    # --- ACK and NACK

    def ack(self, frame: Frame) -> None:
        """Do an ACK."""
        self._acknowledge(frame, nack=False)

    def nack(self, frame: Frame) -> None:
        """Do a NACK."""
        self._session.options.unknown_headers.look("NACK", frame.raw)
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
            return
        done = self._receipts.later(frame)
        try:
            if nack:
                core.reject(references, done)
            else:
                core.acknowledge(references, done)
        except NotLive:
            self._receipts.take_back(done)
            raise

    # --- all of them

    def resume(self) -> None:
        """Resume all deliveries: the socket takes more."""
        self._resuming.ask(self._session.core.slices, self._resume_each)

    def _resume_each(self) -> Steps:
        for subscription in [*self._subscriptions.all()]:
            if subscription.core is not None:
                subscription.core.resume()
            yield GO_ON

    def leave(self) -> Steps:
        """End all subscriptions of a client that disconnects in good order."""
        for subscription in self._subscriptions.clear():
            self._end(subscription)
            yield GO_ON
        if self._leaving is not None and self._leaving.is_leaving:
            yield from self._session.output.until_whole()
        yield from self.close((), None)

    def close(self, works: Collection[TransactionWork], taken: int | None) -> Steps:
        """End all subscriptions; what was delivered and not acknowledged goes back.

        Where the client failed, its socket took ``taken`` bytes and ``works`` were open: what it
        can have been working on counts as an attempt.
        """
        ended = self._subscriptions.clear()
        if self._leaving is not None:
            if self._leaving.is_leaving:
                ended.append(self._leaving)
            self._leaving = None
        for subscription in ended:
            core = subscription.core
            if core is None:
                continue
            if taken is None:
                core.close()
            else:
                core.close(attempted=attempted(core, subscription.oldest, works, taken))
            yield GO_ON
        self._temporary.end()
        self._receipts.done()


class _Ending:
    """The end of a durable subscription: what its client asks of that name next waits for it."""

    __slots__ = ("_ending", "_name", "_then")

    def __init__(self, ending: dict[str, Wait], name: str, then: Done) -> None:
        self._ending = ending
        self._name = name
        self._then = then

    def __call__(self) -> None:
        self._then()
        self._ending.pop(self._name)()


# --- what frames say


class Unsubscribe(NamedTuple):
    """What an UNSUBSCRIBE asks for."""

    key: str
    durable: str | None
    """The durable subscription that ends, and not only this use of it."""


def read_subscribe(frame: Frame, version: Version, prefetch_count: int) -> Subscribe:
    """Return what a SUBSCRIBE asks for; raises ProtocolError.

    ``prefetch_count`` is the default of the messages that may be unacknowledged.
    """
    refuse("SUBSCRIBE", frame.raw)
    destination = frame.required(b"destination")
    subscription_id = frame.get(b"id")
    if subscription_id is None and version is not Version.V1_0:
        raise ProtocolError("SUBSCRIBE has no id header, which STOMP 1.1 and 1.2 require")
    mode = _ack_mode(frame)
    prefetch, window = _credit(frame, mode, prefetch_count)
    return Subscribe(
        destination if subscription_id is None else subscription_id,
        subscription_id,
        destination,
        frame.get(b"subscription-type"),
        mode,
        prefetch,
        window,
        _durable_name(frame),
        _without_own(frame),
        _selector(frame),
        _browses(frame),
    )


def read_unsubscribe(frame: Frame, version: Version) -> Unsubscribe:
    """Return what an UNSUBSCRIBE asks for; raises ProtocolError."""
    refuse("UNSUBSCRIBE", frame.raw)
    durable = _durable_name(frame)
    subscription_id, destination = frame.get(b"id"), frame.get(b"destination")
    if (
        subscription_id is None
        and durable is None
        and (version is not Version.V1_0 or destination is None)
    ):
        raise ProtocolError("UNSUBSCRIBE has no id header")
    return Unsubscribe((destination or "") if subscription_id is None else subscription_id, durable)


def _durable_name(frame: Frame) -> str | None:
    """Return the durable subscription that a frame names; raises ProtocolError if it names two."""
    found = {
        name: value
        for name in (
            b"durable-subscription-name",
            b"durable-subscriber-name",
            b"activemq.subscriptionName",
            b"activemq.subcriptionName",
        )
        if (value := frame.get(name))
    }
    if len(set(found.values())) > 1:
        names = " and ".join(name.decode() for name in found)
        raise ProtocolError(f"{names} name two durable subscriptions; give one of them")
    return next(iter(found.values()), None)


def _browses(frame: Frame) -> bool:
    """Return whether it browses; raises ProtocolError if it asks for more than a browser can."""
    if not _says_one_of(frame, b"browser", b"activemq.browser"):
        return False
    if _durable_name(frame) is not None or _without_own(frame):
        raise ProtocolError(
            "a browser reads a queue: it can have neither a durable subscription nor no-local"
        )
    return True


def _without_own(frame: Frame) -> bool:
    return _says_one_of(frame, b"no-local", b"activemq.noLocal")


def _says_one_of(frame: Frame, *names: bytes) -> bool:
    # All are read: a value other than true and false is refused in any case.
    said = [frame.flag(name, default=False) for name in names]
    return any(said)


def _selector(frame: Frame) -> str | None:
    """Return the selector, by STOMP's or by Classic's header."""
    return frame.get(b"selector") or frame.get(b"activemq.selector") or None


def _ack_mode(frame: Frame) -> AckMode:
    text = frame.get(b"ack") or "auto"
    try:
        return AckMode(text)
    except ValueError:
        expected = ", ".join(mode.value for mode in AckMode)
        raise ProtocolError(f"ack {quoted(text)} is unknown; expected one of {expected}") from None


def _credit(frame: Frame, mode: AckMode, prefetch_count: int) -> tuple[int, int | None]:
    """Return how many messages may be unacknowledged, and how many bytes of them."""
    window = _asked(frame, b"consumer-window-size")
    messages = frame.number(b"prefetch-count", 0) or _asked(frame, b"activemq.prefetchSize")
    if mode is AckMode.AUTO:
        return 0, None  # none ever is
    if window:
        return _MOST_MESSAGES, None if window < 0 else window
    if window is None:
        if messages is None:
            return prefetch_count, None
        if messages:
            return _MOST_MESSAGES if messages < 0 else min(messages, _MOST_MESSAGES), None
    return 1, None


def _asked(frame: Frame, name: bytes) -> int | None:
    """Return the number in a header, negative for no bound; None without the header."""
    text = frame.get(name)
    if not text:
        return None
    if text != "-1" and not is_whole_number(text):
        raise ProtocolError(
            f"header {name.decode()} is {quoted(text)}; expected a whole number, or -1 for as many"
            " as the limits allow"
        )
    return int(text)
