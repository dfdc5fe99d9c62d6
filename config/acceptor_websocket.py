"""What an acceptor's URL says of WebSockets."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from orthia.config.errors import ConfigurationError

ANY_ORIGIN: Final = "*"
"""Among the allowed origins: a page of any site may connect."""
WEBSOCKET_ACTING: Final[Mapping[str, str]] = {
    "webSocketMaxFramePayloadLength": "bytes of one frame of a WebSocket, from a client and to it;"
    " 65536 by default",
    "webSocketEncoderType": "binary or text, the frames that clients on a WebSocket are sent; by"
    " default a client that begins with text is sent text",
    "webSocketAllowedOrigins": "origins, separated by commas, whose pages in a browser may connect"
    " by WebSocket, * for all; by default those from the node's own machine, to clients on it",
}
"""The parameters that act, with what they do."""
_LEAST_LONGEST_FRAME: Final = 1_024
"""With less, the frames' own headers are much of what is sent."""
_ENCODERS: Final = ("binary", "text")
_OPAQUE: Final = "null"
"""What pages send that have no origin: from files, and from frames that any page may have."""
_ORIGIN: Final = re.compile(
    r"(?P<scheme>[a-z][a-z0-9+.-]*)://(?P<host>\[[0-9a-f:.]+\]|[^\s:/?#@\[\]*]+)"
    r"(:(?P<port>[0-9]{1,5}))?/?"
)
_LAST_PORT: Final = 65_535
_DEFAULT_PORTS: Final[Mapping[str, str]] = {"http": "80", "https": "443"}


@dataclass(frozen=True)
class AcceptorWebSocket:
    """How an acceptor speaks WebSocket."""

    max_frame_payload_length: int = 65_536
    """``webSocketMaxFramePayloadLength``: bytes of one frame, in both directions."""
    encoder_type: str | None = None
    """``webSocketEncoderType``: ``binary`` or ``text`` frames to clients; None as each sends."""
    allowed_origins: tuple[str, ...] = ()
    """``webSocketAllowedOrigins``: of which sites pages in a browser may connect, as they are
    written in an Origin; none are named: pages of this machine, to clients on it."""


def acceptor_websocket(parameters: Mapping[str, str]) -> AcceptorWebSocket:
    """Return what the parameters of an acceptor say; raises ConfigurationError."""
    return AcceptorWebSocket(
        _longest_frame(parameters), _encoder_type(parameters), _allowed_origins(parameters)
    )


def _longest_frame(parameters: Mapping[str, str]) -> int:
    name = "webSocketMaxFramePayloadLength"
    text = parameters.get(name, "-1")
    if text == "-1":  # as in Artemis
        return AcceptorWebSocket.max_frame_payload_length
    if re.fullmatch("[1-9][0-9]{3,8}", text) is None or int(text) < _LEAST_LONGEST_FRAME:
        raise ConfigurationError(
            f"has {name}={_shown(text)}; expected a number of bytes from {_LEAST_LONGEST_FRAME}"
        )
    return int(text)


def _encoder_type(parameters: Mapping[str, str]) -> str | None:
    name = "webSocketEncoderType"
    text = parameters.get(name)
    if text is None or text in _ENCODERS:
        return text
    raise ConfigurationError(f"has {name}={_shown(text)}; expected {' or '.join(_ENCODERS)}")


def _allowed_origins(parameters: Mapping[str, str]) -> tuple[str, ...]:
    name = "webSocketAllowedOrigins"
    found = []
    for one in parameters.get(name, "").split(","):
        text = one.strip().lower()
        if text in (ANY_ORIGIN, _OPAQUE):
            found.append(text)
        elif text:
            matched = _ORIGIN.fullmatch(text)
            if matched is None or int(matched["port"] or 0) > _LAST_PORT:
                raise ConfigurationError(
                    f"has {name} with {_shown(one.strip())}; expected origins as browsers send"
                    " them, as https://app.example.org or https://app.example.org:8443, or *"
                )
            scheme, host, port = matched["scheme"], matched["host"], matched["port"]
            if port in (None, _DEFAULT_PORTS.get(scheme)):
                found.append(f"{scheme}://{host}")
            else:
                found.append(f"{scheme}://{host}:{port}")
    return tuple(dict.fromkeys(found))


def _shown(text: str) -> str:
    return repr(text if len(text) <= 40 else text[:40] + "...")
