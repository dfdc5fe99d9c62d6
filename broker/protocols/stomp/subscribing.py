# mypyc compiles this module.
"""What a SUBSCRIBE asks for: where, how it acknowledges, and how much it wants before it does."""

from typing import Final, NamedTuple

from orthia.broker.protocols.stomp.client_frame import Frame
from orthia.broker.protocols.stomp.frames import ProtocolError, Version, is_whole_number
from orthia.broker.protocols.stomp.headers import refuse
from orthia.broker.protocols.stomp.subscriptions import AckMode
from orthia.broker.quoting import quoted

_MOST_MESSAGES: Final = 10_000
"""That a subscription may have unacknowledged, whatever it asks for; bytes are bounded beside."""


class Subscribe(NamedTuple):
    """A SUBSCRIBE, read."""

    key: str
    """What the client's frames call the subscription: its id, in 1.0 perhaps its destination."""
    id: str | None
    destination: str
    kind: str | None
    """``subscription-type``."""
    mode: AckMode
    prefetch: int
    """How many messages may be unacknowledged; 0 is any number."""
    window: int | None
    """How many bytes of them; None leaves it to the broker's own bound."""
    durable: str | None
    """The name of a durable subscription."""
    no_local: bool
    selector: str | None
    browses: bool
    """Whether it only looks through a queue."""


class Unsubscribe(NamedTuple):
    """An UNSUBSCRIBE, read."""

    key: str
    durable: str | None
    """The durable subscription that ends, and not only this use of it."""


def read_subscribe(frame: Frame, version: Version, prefetch_count: int) -> Subscribe:
    """Return what a SUBSCRIBE says; raises ProtocolError.

    ``prefetch_count`` is for those that do not say how much they want.
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
    """Return what an UNSUBSCRIBE says; raises ProtocolError."""
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
    """Return the durable subscription that a frame names; raises ProtocolError for two."""
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
    """Return whether messages are only to be shown; raises ProtocolError for what cannot be."""
    if not _says_one_of(frame, b"browser", b"activemq.browser"):
        return False
    if _durable_name(frame) is not None or _without_own(frame):
        raise ProtocolError("a browser is of a queue: it has no durable subscription, no no-local")
    return True


def _without_own(frame: Frame) -> bool:
    return _says_one_of(frame, b"no-local", b"activemq.noLocal")


def _says_one_of(frame: Frame, *names: bytes) -> bool:
    # Each is read: what is none of true and false is refused, whatever the others say.
    said = [frame.flag(name, default=False) for name in names]
    return any(said)


def _selector(frame: Frame) -> str | None:
    """Return which messages are wanted, as SUBSCRIBE or Classic's family of headers says it."""
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
    """Return how much a header asks for, negative for no bound; None if it is not there."""
    text = frame.get(name)
    if not text:
        return None
    if text != "-1" and not is_whole_number(text):
        raise ProtocolError(
            f"header {name.decode()} is {quoted(text)}; expected a whole number, or -1 for as many"
            " as the limits allow"
        )
    return int(text)
