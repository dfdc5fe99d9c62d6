# mypyc compiles this module.
"""The states of a STOMP connection: which frames each accepts, and which state follows.

- CONNECTING: accepts CONNECT, or STOMP, which means the same, and nothing else.
- LOGGING_IN: the login is being checked. What the client sends meanwhile waits.
- CONNECTED: accepts every other frame.
- STORING: all of a large SEND has come, and its body is not yet durable. What follows it waits, so
  that messages keep their order.
- DISCONNECTING: the RECEIPT of a DISCONNECT waits for all frames before it. What the client still
  sends is dropped.
- STOPPING: the node stops and does nothing more for the client. It still sends the receipts of all
  that was done before, and then closes.
- CLOSED: the connection is over: the client disconnected, was refused, or is gone.

The two tables are complete: a frame without an entry for the state is refused, and whatever is
refused, malformed or too late ends the connection with an ERROR, as the specification demands.
"""

from collections.abc import Callable, Mapping
from enum import Enum, auto
from typing import Final

from orthia.broker.core.slices import Steps
from orthia.broker.protocols.stomp.client_frame import Frame
from orthia.broker.protocols.stomp.frames import ProtocolError, Version
from orthia.broker.quoting import quoted

Handlers = dict[str, Callable[[Frame], Steps | None]]
"""What handles a frame, by its command; it returns what is left to do before the next frame."""


class State(Enum):
    """Where a connection is in its life."""

    CONNECTING = auto()
    LOGGING_IN = auto()
    CONNECTED = auto()
    STORING = auto()
    DISCONNECTING = auto()
    STOPPING = auto()
    CLOSED = auto()


class Event(Enum):
    """What changes the state of a connection, beside its client's frames."""

    LOGGED_IN = auto()
    BODY_CAME = auto()
    """The last piece of a large SEND has come."""
    BODY_STORED = auto()
    NODE_STOPPED = auto()
    """The core, or the journal, accepts nothing more."""
    ENDED = auto()
    """By either side, in order or not."""


FRAMES: Final[Mapping[State, Mapping[str, State]]] = {
    State.CONNECTING: {
        "CONNECT": State.LOGGING_IN,
        "STOMP": State.LOGGING_IN,
    },
    State.LOGGING_IN: {},
    State.CONNECTED: {
        "SEND": State.CONNECTED,
        "SUBSCRIBE": State.CONNECTED,
        "UNSUBSCRIBE": State.CONNECTED,
        "ACK": State.CONNECTED,
        "NACK": State.CONNECTED,
        "BEGIN": State.CONNECTED,
        "COMMIT": State.CONNECTED,
        "ABORT": State.CONNECTED,
        "DISCONNECT": State.DISCONNECTING,
    },
    State.STORING: {},
    State.DISCONNECTING: {},
    State.STOPPING: {},
    State.CLOSED: {},
}
"""The frames a state accepts, each with the state that it leads to."""

EVENTS: Final[Mapping[State, Mapping[Event, State]]] = {
    State.CONNECTING: {Event.ENDED: State.CLOSED},
    State.LOGGING_IN: {Event.LOGGED_IN: State.CONNECTED, Event.ENDED: State.CLOSED},
    State.CONNECTED: {
        Event.BODY_CAME: State.STORING,
        Event.NODE_STOPPED: State.STOPPING,
        Event.ENDED: State.CLOSED,
    },
    State.STORING: {
        Event.BODY_STORED: State.CONNECTED,
        Event.NODE_STOPPED: State.STOPPING,
        Event.ENDED: State.CLOSED,
    },
    State.DISCONNECTING: {Event.ENDED: State.CLOSED},
    State.STOPPING: {Event.ENDED: State.CLOSED},
    State.CLOSED: {},
}
"""The events that leave a state. One without an entry is a fault of the broker."""

UNKNOWN_TO: Final[Mapping[Version, frozenset[str]]] = {
    Version.V1_0: frozenset({"NACK"}),
    Version.V1_1: frozenset(),
    Version.V1_2: frozenset(),
}
"""The frames that a version of STOMP does not have."""

KEEPING: Final = frozenset({State.LOGGING_IN, State.STORING})
"""In these states the bytes of a client are kept until the state is left."""
DELIVERING: Final = frozenset({State.CONNECTED, State.STORING})
"""In these states messages are delivered."""
ENDING: Final = frozenset({State.DISCONNECTING, State.STOPPING})
"""In these states a connection ends once all its frames are answered."""


def accepted(state: State, version: Version) -> dict[str, State]:
    """Return the frames that ``state`` accepts from a client of ``version``, as in ``FRAMES``."""
    unknown = UNKNOWN_TO[version]
    return {name: after for name, after in FRAMES[state].items() if name not in unknown}


def not_accepted(state: State, version: Version, frame: Frame) -> ProtocolError:
    """Return the error for a frame that ``state`` does not accept."""
    command = frame.command
    shown = quoted(command[:40])
    if state is State.CONNECTING:
        expected = " or ".join(FRAMES[state])
        return ProtocolError(f"the first frame is {shown}; expected {expected}")
    if command in FRAMES[State.CONNECTING]:
        frame.version = Version.V1_0  # such a frame is never escaped, and may name a receipt
        return ProtocolError("this connection is connected already")
    if command in UNKNOWN_TO[version]:
        return ProtocolError(f"STOMP {version.value} has no {command}")
    known = ", ".join(FRAMES[state])
    return ProtocolError(f"unknown command {shown}; expected one of {known}")
