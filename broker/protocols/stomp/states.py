# mypyc compiles this module.
"""The states of a STOMP connection: which frame is taken in which, and what follows.

- CONNECTING: nothing but CONNECT, or STOMP, which is the same.
- LOGGING_IN: the login is being looked at. What the client sends meanwhile waits.
- CONNECTED: everything else.
- STORING: a large SEND is here whole and its body is not yet durable. What follows it waits, so
  that messages keep their order.
- DISCONNECTING: the RECEIPT of a DISCONNECT waits for all that was asked for before it. What the
  client still sends is dropped.
- STOPPING: the node stops and does nothing more for the client. The receipts of all that was done
  before still come, and then the end.
- CLOSED: the connection is over, because the client wanted it, was refused, or is gone.

The two tables say it all: a frame without an entry for the state is refused, and everything
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
"""What does a frame, by its command; what is left to do before the next one is returned."""


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
    """What moves a connection on beside its client's frames."""

    LOGGED_IN = auto()
    BODY_CAME = auto()
    """The last piece of a large SEND is here."""
    BODY_STORED = auto()
    NODE_STOPPED = auto()
    """The core, or the journal, takes nothing more."""
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
"""The frames a state takes, each with the state that it leads to."""

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
"""What else leads out of a state. An event without an entry is a mistake of the broker's."""

UNKNOWN_TO: Final[Mapping[Version, frozenset[str]]] = {
    Version.V1_0: frozenset({"NACK"}),
    Version.V1_1: frozenset(),
    Version.V1_2: frozenset(),
}
"""The frames that a version of STOMP does not have."""

KEEPING: Final = frozenset({State.LOGGING_IN, State.STORING})
"""What a client sends in these states is kept until the state is left."""
DELIVERING: Final = frozenset({State.CONNECTED, State.STORING})
"""In these states a client gets messages."""
ENDING: Final = frozenset({State.DISCONNECTING, State.STOPPING})
"""In these states a connection ends once all that was asked for is answered."""


def taken(state: State, version: Version) -> dict[str, State]:
    """Return the frames that ``state`` takes of a client of ``version``, as in ``FRAMES``."""
    unknown = UNKNOWN_TO[version]
    return {name: after for name, after in FRAMES[state].items() if name not in unknown}


def not_taken(state: State, version: Version, frame: Frame) -> ProtocolError:
    """Return the error that a frame is which ``state`` does not take."""
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
