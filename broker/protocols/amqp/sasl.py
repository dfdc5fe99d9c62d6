# mypyc compiles this module.
"""SASL: what a client says in its login, by PLAIN, ANONYMOUS or EXTERNAL.

PLAIN (RFC 4616) has a name to act for, the user and the password. A user acts for itself alone.
ANONYMOUS (RFC 4505) has nothing that counts: the client is a guest, if there are any. EXTERNAL
(RFC 4422) is a certificate that was shown before.
"""

from typing import Final, NamedTuple

from orthia.broker.core.errors import AuthenticationFailed
from orthia.broker.protocols.amqp.performatives import SaslInit
from orthia.broker.protocols.amqp.values import Symbol
from orthia.broker.quoting import quoted
from orthia.config.acceptor_amqp import MECHANISMS

PLAIN: Final = Symbol("PLAIN")
ANONYMOUS: Final = Symbol("ANONYMOUS")
EXTERNAL: Final = Symbol("EXTERNAL")
OK: Final = 0
"""The code of an outcome: the client is logged in."""
AUTH: Final = 1
"""User or password are wrong."""
SYS_TEMP: Final = 4
"""The broker cannot log the client in for now."""


class Credentials(NamedTuple):
    """What a client logs in with."""

    login: str | None
    passcode: str | None


def offered(allowed: tuple[str, ...], *, has_certificate: bool) -> tuple[Symbol, ...]:
    """Return the mechanisms that a client may choose from, of those allowed; all if none is."""
    names = allowed or MECHANISMS
    return tuple(Symbol(one) for one in names if one != EXTERNAL or has_certificate)


def credentials(init: SaslInit, mechanisms: tuple[Symbol, ...]) -> Credentials | None:
    """Return what a client logs in with; None if it is to be asked for it first.

    Raises AuthenticationFailed: a client that cannot log in so is not to try the same again.
    """
    if init.mechanism not in mechanisms:
        raise AuthenticationFailed(
            f"the mechanism {quoted(init.mechanism[:80])} was not offered; expected one of"
            f" {', '.join(mechanisms)}",
        )
    if init.mechanism != PLAIN:
        return Credentials(None, None)
    return None if init.initial_response is None else plain(init.initial_response)


def plain(response: bytes) -> Credentials:
    """Return what the response of PLAIN says.

    Raises AuthenticationFailed for what is none, and for one that acts for another.
    """
    parts = response.split(b"\0")
    if len(parts) != 3:
        raise AuthenticationFailed(
            "the response of PLAIN is not three texts with a NUL between each two: whom to act for,"
            " the user and the password",
        )
    try:
        acts_for, user, password = (one.decode() for one in parts)
    except UnicodeDecodeError:
        raise AuthenticationFailed("the response of PLAIN is not UTF-8") from None
    if acts_for not in ("", user):
        raise AuthenticationFailed(
            f"the response of PLAIN asks to act for {quoted(acts_for[:80])}; expected none to act"
            " for, or the user that logs in"
        )
    return Credentials(user, password)
