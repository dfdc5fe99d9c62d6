"""What an acceptor's URL says of AMQP."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from orthia.config.errors import ConfigurationError

AMQP_ACTING: Final[Mapping[str, str]] = {
    "amqpCredits": "messages that an AMQP client may send before it gets more credit; 1000 by"
    " default",
    "amqpLowCredits": "how few of them are left when it gets more; 300 by default",
    "amqpMinLargeMessageSize": "bytes of a message of an AMQP client, as it is encoded, from which"
    " on it is a large message; 102400 by default, -1 or 0 has none",
    "amqpIdleTimeout": "milliseconds of silence after which an AMQP client is ended, of which it is"
    " told half; 60000 by default, 0 or -1 never",
    "maxFrameSize": "bytes of a frame that an AMQP client may send, from 512; 1048576 by default",
    "saslMechanisms": "how an AMQP client may log in: some of PLAIN, ANONYMOUS and EXTERNAL,"
    " separated by commas; by default all, EXTERNAL only for a client with a certificate",
    "amqpFailoverServers": "HOST:PORT of each node of the pair, separated by commas, which AMQP"
    " clients are told, so that they find the other one by themselves; by default they are not",
}
"""The parameters that act, with what they do."""
MECHANISMS: Final = ("EXTERNAL", "PLAIN", "ANONYMOUS")
"""The SASL mechanisms, the safest first."""
_SERVER: Final = re.compile(
    r"(?P<host>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):(?P<port>[0-9]{1,5})", re.ASCII
)
DEFAULT_LEAST_LARGE: Final = 102_400
"""``amqpMinLargeMessageSize`` unless it is set: also where larger messages may not be whole."""
_LAST_PORT: Final = 65_535
_LEAST_FRAME: Final = 512
_LARGEST_FRAME: Final = 2**24


@dataclass(frozen=True)
class AcceptorAmqp:
    """How an acceptor speaks AMQP."""

    credits: int = 1_000
    """``amqpCredits``: messages that a client may send before it gets more credit."""
    low_credits: int = 300
    """``amqpLowCredits``: how few of them are left when it gets more."""
    min_large_message_size: int = DEFAULT_LEAST_LARGE
    """``amqpMinLargeMessageSize``: bytes of an encoded message from which on it is large; 0 has
    none."""
    idle_timeout: int = 60_000
    """``amqpIdleTimeout``: milliseconds of silence after which a client is ended; 0 is never."""
    max_frame_size: int = 1_048_576
    """``maxFrameSize``: bytes of a frame that a client may send."""
    mechanisms: tuple[str, ...] = ()
    """``saslMechanisms``: how clients may log in; empty for all that can succeed."""
    failover_servers: tuple[tuple[str, int], ...] = ()
    """``amqpFailoverServers``: where clients reach each node of the pair."""

    def parameters(self) -> dict[str, str]:
        """Return what is not the default, by the names of an acceptor's URL."""
        default = AcceptorAmqp()
        shown = {
            "amqpCredits": (self.credits, default.credits),
            "amqpLowCredits": (self.low_credits, default.low_credits),
            "amqpMinLargeMessageSize": (
                self.min_large_message_size,
                default.min_large_message_size,
            ),
            "amqpIdleTimeout": (self.idle_timeout, default.idle_timeout),
            "maxFrameSize": (self.max_frame_size, default.max_frame_size),
        }
        found = {name: str(value) for name, (value, usual) in shown.items() if value != usual}
        if self.mechanisms:
            found["saslMechanisms"] = ",".join(self.mechanisms)
        if self.failover_servers:
            found["amqpFailoverServers"] = ",".join(
                f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
                for host, port in self.failover_servers
            )
        return found


def acceptor_amqp(parameters: Mapping[str, str]) -> AcceptorAmqp:
    """Return what the parameters of an acceptor say; raises ConfigurationError."""
    default = AcceptorAmqp()
    credit = _number(parameters, "amqpCredits", default.credits, least=1)
    low = _number(parameters, "amqpLowCredits", min(default.low_credits, credit), least=0)
    if low > credit:
        raise ConfigurationError(
            f"has amqpLowCredits={low} and amqpCredits={credit}; expected the low ones to be"
            " fewer, or as many"
        )
    large = _number(parameters, "amqpMinLargeMessageSize", default.min_large_message_size, least=-1)
    idle = _number(parameters, "amqpIdleTimeout", default.idle_timeout, least=-1)
    frame = _number(parameters, "maxFrameSize", default.max_frame_size, least=_LEAST_FRAME)
    if frame > _LARGEST_FRAME:
        raise ConfigurationError(
            f"has maxFrameSize={frame}; expected {_LARGEST_FRAME} at most: each client may make the"
            " broker hold so much"
        )
    mechanisms, servers = _mechanisms(parameters), _servers(parameters)
    return AcceptorAmqp(credit, low, max(large, 0), max(idle, 0), frame, mechanisms, servers)


def _number(parameters: Mapping[str, str], name: str, default: int, *, least: int) -> int:
    text = parameters.get(name)
    if text is None:
        return default
    if re.fullmatch("-1|[0-9]{1,9}", text) is None or int(text) < least:
        raise ConfigurationError(f"has {name}={_shown(text)}; expected a number from {least}")
    return int(text)


def _mechanisms(parameters: Mapping[str, str]) -> tuple[str, ...]:
    text = parameters.get("saslMechanisms")
    if text is None:
        return ()
    named = [one.strip().upper() for one in text.split(",") if one.strip()]
    unknown = [one for one in named if one not in MECHANISMS]
    if unknown or not named:
        raise ConfigurationError(
            f"has saslMechanisms={_shown(text)}; expected some of {', '.join(MECHANISMS)}"
        )
    return tuple(one for one in MECHANISMS if one in named)


def _servers(parameters: Mapping[str, str]) -> tuple[tuple[str, int], ...]:
    text = parameters.get("amqpFailoverServers", "")
    found = []
    for one in [part.strip() for part in text.split(",") if part.strip()]:
        matched = _SERVER.fullmatch(one)
        if matched is None or not 0 < int(matched["port"]) <= _LAST_PORT:
            raise ConfigurationError(
                f"has amqpFailoverServers with {_shown(one)}; expected HOST:PORT of each node"
            )
        found.append((matched["host"].strip("[]"), int(matched["port"])))
    return tuple(found)


def _shown(text: str) -> str:
    return repr(text if len(text) <= 40 else text[:40] + "...")
