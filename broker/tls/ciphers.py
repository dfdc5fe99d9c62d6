"""``enabledCipherSuites``: Java's or OpenSSL's names, as OpenSSL accepts them.

Python can choose suites of TLS 1.2 only; of TLS 1.3 all three are enabled, or that version is not.
"""

import ssl
from collections.abc import Iterable
from typing import Final

from orthia.broker.tls.errors import TlsUnusable

_TLS_1_3: Final = frozenset(
    {"TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256"}
)

_MODERN: Final = (
    "@SECLEVEL=2:ECDH+AESGCM:ECDH+CHACHA20:ECDH+AES:DHE+AES:!aNULL:!eNULL:!aDSS:!SHA1:!AESCCM"
)
"""Suites of TLS 1.2 with forward secrecy and without SHA-1: Python's default, which Debian's build
widens to all of OpenSSL's."""


def take_modern(context: ssl.SSLContext) -> None:
    """Enable the default suites in ``context``."""
    context.set_ciphers(_MODERN)


def openssl_name(name: str) -> str:
    """Return OpenSSL's name of a suite of TLS 1.2, given by its name in Java or OpenSSL."""
    if not name.startswith("TLS_"):
        return name
    exchange, _, cipher = name.removeprefix("TLS_").partition("_WITH_")
    cipher = (
        cipher.replace("AES_128_CBC", "AES128")
        .replace("AES_256_CBC", "AES256")
        .replace("AES_", "AES")
        .replace("CHACHA20_POLY1305_SHA256", "CHACHA20_POLY1305")
    )
    return f"{'' if exchange == 'RSA' else exchange + '_'}{cipher}".replace("_", "-")


def choose(context: ssl.SSLContext, names: Iterable[str]) -> None:
    """Enable only these suites in ``context``; raises TlsUnusable for an unknown one."""
    newer = {one for one in names if one in _TLS_1_3}
    older = [one for one in names if one not in _TLS_1_3]
    for one in older:
        try:
            context.set_ciphers(openssl_name(one))
        except ssl.SSLError:
            raise TlsUnusable(
                f"enabledCipherSuites names {one}, which this OpenSSL does not have or takes for"
                f" broken; expected some of {', '.join(available())}"
            ) from None
    if newer and newer != _TLS_1_3:
        raise TlsUnusable(
            f"enabledCipherSuites names {', '.join(sorted(newer))} of TLS 1.3, of which all are"
            f" taken or none; expected all three, {', '.join(sorted(_TLS_1_3))}, or none"
        )
    if not newer:
        _lower(context)
    if not older:
        _raise(context)
    if older:
        context.set_ciphers(":".join(openssl_name(one) for one in older))


def available() -> list[str]:
    """Return OpenSSL's names of the default suites."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    take_modern(context)
    return [one["name"] for one in context.get_ciphers()]


def _lower(context: ssl.SSLContext) -> None:
    if context.minimum_version is ssl.TLSVersion.TLSv1_3:
        raise TlsUnusable(
            "enabledCipherSuites names none of TLS 1.3, which is all of enabledProtocols; expected"
            f" {', '.join(sorted(_TLS_1_3))} among them"
        )
    context.maximum_version = ssl.TLSVersion.TLSv1_2


def _raise(context: ssl.SSLContext) -> None:
    if context.maximum_version is ssl.TLSVersion.TLSv1_2:
        raise TlsUnusable(
            "enabledCipherSuites names none of TLS 1.2, which is all of enabledProtocols; expected"
            " some, as ECDHE-RSA-AES256-GCM-SHA384"
        )
    context.minimum_version = ssl.TLSVersion.TLSv1_3
