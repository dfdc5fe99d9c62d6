"""``acceptor``: Artemis' URL of a port clients connect to."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote

from config.errors import ConfigurationError
from config.settings import AcceptorSettings

DEFAULT_HOST: Final = "127.0.0.1"
"""Whoever wants to be reached from elsewhere says so: 0.0.0.0 is never a default."""

DEFAULT_PORT: Final = 61_613

_URL: Final = re.compile(
    r"(?P<scheme>[a-zA-Z]+)://(?P<host>\[[0-9a-fA-F:.%]+\]|[^:/?\[\]]*)(:(?P<port>-?[0-9]{1,9}))?/?"
    r"(\?(?P<parameters>.*))?",
    re.DOTALL,
)
_LONGEST_QUOTE: Final = 40
_EXPECTED: Final = "expected tcp://HOST:PORT?protocols=STOMP"


@dataclass(frozen=True)
class Acceptor:
    """An acceptor as it was written."""

    settings: AcceptorSettings
    ignored_because: str | None
    """Why it is not opened; None if it is."""


def parse_acceptor(name: str | None, text: str) -> Acceptor:
    """Read the URL of an acceptor; raises ConfigurationError.

    One whose ``protocols`` leave out STOMP is read and not opened: it is for Artemis. Without
    ``protocols`` it is for every protocol, as in Artemis.
    """
    matched = _URL.fullmatch(text.strip())
    if matched is None:
        raise ConfigurationError(f"is not an acceptor's URL; {_EXPECTED}")
    parameters = _parameters(matched["parameters"] or "")
    host = matched["host"].strip("[]") or DEFAULT_HOST
    port = int(matched["port"] or DEFAULT_PORT)
    settings = AcceptorSettings(
        name or f"{host}:{port}",
        host,
        port,
        parameters,
        connections_allowed=_number(parameters, "connectionsAllowed", -1, "any number"),
        handshake_timeout=_handshake_timeout(parameters),
        connection_ttl=_number(parameters, "connectionTtl", -1, "any time of silence"),
    )
    if matched["scheme"].lower() not in {"tcp", "stomp"}:
        return Acceptor(settings, f"{matched['scheme']}:// is no network port")
    protocols = [one.strip().upper() for one in parameters.get("protocols", "STOMP").split(",")]
    if "STOMP" not in protocols:
        return Acceptor(settings, f"its protocols, {','.join(protocols)}, leave out STOMP")
    if parameters.get("sslEnabled", "false").lower() == "true":
        # Opening it without TLS would send in the clear what was meant to be hidden.
        raise ConfigurationError(
            "asks for TLS (sslEnabled=true), which STOMP acceptors do not have; expected it"
            " without, on a trusted network or behind a proxy that ends TLS"
        )
    return Acceptor(settings, None)


def _number(parameters: Mapping[str, str], name: str, default: int, unlimited: str) -> int:
    """Return a parameter that is 1 or more, or -1 for ``unlimited``."""
    text = parameters.get(name)
    if text is None:
        return default
    if re.fullmatch("-1|[1-9][0-9]{0,9}", text) is None:
        raise ConfigurationError(
            f"has {name}={_shown(text)}; expected a number from 1, or -1 for {unlimited}"
        )
    return int(text)


def _handshake_timeout(parameters: Mapping[str, str]) -> int | None:
    text = parameters.get("handshake-timeout")
    if text is None:
        return None
    if re.fullmatch("[1-9][0-9]{0,5}", text) is None:
        # Artemis takes 0 and less for no limit, with which sockets that say nothing pile up.
        raise ConfigurationError(
            f"has handshake-timeout={_shown(text)}; expected a number of seconds from 1"
        )
    return int(text)


def _shown(text: str) -> str:
    return repr(text if len(text) <= _LONGEST_QUOTE else text[:_LONGEST_QUOTE] + "...")


def _parameters(text: str) -> dict[str, str]:
    """Return the parameters, without passwords: those are of key stores, which nobody opens."""
    pairs = (part.partition("=") for part in re.split("[;&]", text) if part.strip())
    return {
        unquote(name.strip()): unquote(value.strip())
        for name, _, value in pairs
        if "password" not in name.lower()
    }
