"""TLS of Orthia's own client: verifies the broker, and shows a certificate if it asks for one.

Passwords of the files come from the environment, never from a URL: process lists and logs show
URLs.
"""

import os
import socket
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import parse_qsl

from orthia.broker.tls.errors import in_words
from orthia.config.acceptor_tls import (
    StoreFile,
    enabled_protocols,
    flag,
    names_in,
    store_type,
)
from orthia.config.errors import ConfigurationError, OrthiaError
from orthia.config.secrets import Secret

SCHEMES: Final = ("ssl", "stomp+ssl")
KEY_STORE_PASSWORD: Final = "ORTHIA_KEY_STORE_PASSWORD"  # noqa: S105 - the name of a variable
TRUST_STORE_PASSWORD: Final = "ORTHIA_TRUST_STORE_PASSWORD"  # noqa: S105 - the name of a variable
_VARIABLES: Final = {
    "keyStorePassword": KEY_STORE_PASSWORD,
    "trustStorePassword": TRUST_STORE_PASSWORD,
}
_PARAMETERS: Final = (
    *("trustStorePath", "trustStoreType", "keyStorePath", "keyStoreType", "keyStoreAlias"),
    *("sniHost", "enabledProtocols", "enabledCipherSuites", "sslEnabled"),
)
_NOT_TLS: Final = frozenset({"WRONG_VERSION_NUMBER", "PACKET_LENGTH_TOO_LONG", "HTTP_REQUEST"})
"""OpenSSL's reasons for bytes that are not TLS."""
_EXPIRED: Final = 10
_NOT_YET_VALID: Final = 9
_ALONE: Final = frozenset({18, 19})
_UNKNOWN_AUTHORITY: Final = frozenset({2, 20, 21})
_OTHER_HOST: Final = frozenset({62, 64})


class Words(NamedTuple):
    """What one says which file or name by: parameters of a URL, or options of a command."""

    trust_store: str = "trustStorePath=FILE"
    key_store: str = "keyStorePath=FILE"
    name: str = "say sniHost=NAME if you know that it is this broker's"
    plain: str = "name the port of an acceptor with sslEnabled=true, or leave ssl:// out of the URL"


_OF_A_URL: Final = Words()


class NotTrusted(OrthiaError):  # noqa: N818 - named for the state
    """TLS failed: the broker is not trusted, does not trust us, or speaks no TLS."""


@dataclass(frozen=True)
class ClientTls:
    """The TLS parameters of a broker's URL."""

    trust_store: StoreFile | None = None
    """The authorities that may sign the broker's certificate; None uses this system's."""
    key_store: StoreFile | None = None
    """The certificate and key for a broker that asks for one."""
    host: str | None = None
    """``sniHost``: the name that is sent to the broker and verified; None is the URL's host."""
    key_store_alias: str | None = None
    enabled_protocols: tuple[str, ...] = ()
    enabled_cipher_suites: tuple[str, ...] = ()

    @classmethod
    def parse(cls, query: str) -> "ClientTls":
        """Read the parameters of a URL, without its ``?``; raises ValueError."""
        given = _parameters(query)
        for name in given:
            if name in _VARIABLES:
                raise ValueError(
                    f"{name} is not for a URL, which others can read: set {_VARIABLES[name]}"
                )
            if name not in _PARAMETERS:
                raise ValueError(f"{name} is not known; expected {', '.join(_PARAMETERS)}")
        try:
            if not flag({"sslEnabled": "true", **given}, "sslEnabled"):
                raise ValueError("sslEnabled=false is not for a URL that asks for TLS")
            return cls(
                _named("trustStore", given),
                _named("keyStore", given),
                given.get("sniHost") or None,
                given.get("keyStoreAlias") or None,
                enabled_protocols(given),
                names_in(given, "enabledCipherSuites"),
            )
        except ConfigurationError as error:
            raise ValueError(f"the URL {error}") from None

    def context(self, environment: Mapping[str, str] = os.environ) -> ssl.SSLContext:
        """Return OpenSSL's context; reads the files. Raises TlsUnusable."""
        # Imported here, so that commands without TLS do not load these modules.
        from orthia.broker.tls.contexts import take, trust, use_keys
        from orthia.broker.tls.stores import read_key_store, read_trust_store

        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        take(context, self.enabled_protocols, self.enabled_cipher_suites)
        if self.trust_store is None:
            context.load_default_certs()
        else:
            store = _opened_by(self.trust_store, environment.get(TRUST_STORE_PASSWORD))
            trust(context, read_trust_store(store), store.path)
        if self.key_store is not None:
            store = _opened_by(self.key_store, environment.get(KEY_STORE_PASSWORD))
            use_keys(context, read_key_store(store, self.key_store_alias), "keyStorePath")
        return context


def asks_for_tls(query: str) -> bool:
    """Return whether the parameters of a ``tcp://`` URL have Artemis' ``sslEnabled=true``."""
    return _parameters(query).get("sslEnabled", "").lower() == "true"


def _parameters(query: str) -> dict[str, str]:
    return dict(parse_qsl(query.replace(";", "&"), keep_blank_values=True))


def _named(kind: str, given: Mapping[str, str]) -> StoreFile | None:
    path = given.get(f"{kind}Path")
    return StoreFile(Path(path), store_type(kind, path, given)) if path else None


def _opened_by(store: StoreFile, password: str | None) -> StoreFile:
    return replace(store, password=Secret(password) if password else None)


class SecureSocket:
    """A socket with TLS that never blocks, as ``Connection`` uses sockets."""

    def __init__(self, channel: ssl.SSLSocket) -> None:
        self._channel = channel

    @classmethod
    def over(cls, plain: socket.socket, tls: ClientTls, host: str) -> "SecureSocket":
        """Do the TLS handshake, within the time-out of ``plain``.

        Raises NotTrusted, TlsUnusable and OSError; then the caller closes ``plain``.
        """
        name = tls.host or host
        try:
            return cls(tls.context().wrap_socket(plain, server_hostname=name))
        except ssl.SSLError as error:
            raise NotTrusted(explained(error, name)) from error

    @property
    def has_pending(self) -> bool:
        """Whether decrypted bytes can be read, which ``select`` does not see."""
        return self._channel.pending() > 0

    def fileno(self) -> int:
        """Return the descriptor for ``select``."""
        return self._channel.fileno()

    def setblocking(self, flag: bool) -> None:  # noqa: FBT001 - as of a socket
        """As of a socket."""
        self._channel.setblocking(flag)

    def send(self, data: bytearray) -> int:
        """As of a socket; raises BlockingIOError, OSError, NotTrusted."""
        try:
            return self._channel.send(data)
        except ssl.SSLError as error:
            raise self._translated(error) from error

    def recv(self, size: int) -> bytes:
        """As of a socket; raises BlockingIOError, OSError, NotTrusted."""
        try:
            return self._channel.recv(size)
        except ssl.SSLError as error:
            raise self._translated(error) from error

    def close(self) -> None:
        """Close it without a closing alert."""
        self._channel.close()

    @staticmethod
    def _translated(error: ssl.SSLError) -> Exception:
        if isinstance(error, ssl.SSLWantReadError | ssl.SSLWantWriteError):
            return BlockingIOError()
        # With TLS 1.3 a broker verifies our certificate after our end of the handshake is done.
        if "ALERT" in (error.reason or ""):
            return NotTrusted(explained(error, ""))
        return ConnectionResetError(in_words(error))


def explained(error: ssl.SSLError, host: str, words: Words = _OF_A_URL) -> str:
    """Return why TLS failed with the broker at ``host``, and what to do."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return _not_trusted(error.verify_code, error.verify_message, host, words)
    reason = (error.reason or "").upper()
    if reason in _NOT_TLS:
        return f"what answers there speaks no TLS; {words.plain}"
    if "CERTIFICATE_REQUIRED" in reason or "HANDSHAKE_FAILURE" in reason:
        return (
            f"the broker ended the handshake ({in_words(error)}); if it has needClientAuth, name"
            f" the file with your certificate and key: {words.key_store}"
        )
    if "ALERT" in reason and ("CERT" in reason or "UNKNOWN_CA" in reason):
        return (
            f"the broker does not trust the certificate of keyStorePath: {in_words(error)}; it must"
            " be valid, and signed by whom the broker's trustStorePath names"
        )
    if "UNRECOGNIZED_NAME" in reason:
        return f"the broker does not answer to the name {host}, says its sniHost"
    return f"TLS failed: {in_words(error)}"


def _not_trusted(code: int, message: str, host: str, words: Words) -> str:
    if code == _EXPIRED:
        return "the broker's certificate, or one that it is signed by, has expired; replace it"
    if code == _NOT_YET_VALID:
        return "the broker's certificate is not valid yet; is the clock of this machine right?"
    if code in _OTHER_HOST:
        return (
            f"the broker's certificate is not for {host}; connect by a name that it has, or"
            f" {words.name}"
        )
    if code in _ALONE:
        return (
            "the broker's certificate is signed by itself or by an authority that nobody here"
            f" knows; if it is yours, name it: {words.trust_store}"
        )
    if code in _UNKNOWN_AUTHORITY:
        return (
            "the broker's certificate is signed by an authority that is not known here; name the"
            f" file with its certificate: {words.trust_store}"
        )
    return f"the broker's certificate is not trusted: {message}"
