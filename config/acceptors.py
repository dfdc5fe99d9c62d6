"""``acceptor``: Artemis' URL of a port clients connect to."""

import re
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
    settings = AcceptorSettings(name or f"{host}:{port}", host, port, parameters)
    if matched["scheme"].lower() not in {"tcp", "stomp"}:
        return Acceptor(settings, f"{matched['scheme']}:// is no network port")
    protocols = [one.strip().upper() for one in parameters.get("protocols", "STOMP").split(",")]
    if "STOMP" not in protocols:
        return Acceptor(settings, f"protocols {','.join(protocols)} without STOMP")
    if parameters.get("sslEnabled", "false").lower() == "true":
        # Opening it without TLS would send in the clear what was meant to be hidden.
        raise ConfigurationError(
            "asks for TLS (sslEnabled=true), which STOMP acceptors do not have; expected it"
            " without, on a trusted network or behind a proxy that ends TLS"
        )
    return Acceptor(settings, None)


def _parameters(text: str) -> dict[str, str]:
    """Return the parameters, without passwords: those are of key stores, which nobody opens."""
    pairs = (part.partition("=") for part in re.split("[;&]", text) if part.strip())
    return {
        unquote(name.strip()): unquote(value.strip())
        for name, _, value in pairs
        if "password" not in name.lower()
    }
