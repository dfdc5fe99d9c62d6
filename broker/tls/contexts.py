"""OpenSSL's contexts, made of the stores that settings name; reads files: never on the loop."""

import os
import re
import ssl
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from orthia.broker.tls.ciphers import choose, take_modern
from orthia.broker.tls.errors import TlsUnusable, in_words, unusable
from orthia.broker.tls.expiry import Validity
from orthia.broker.tls.stores import (
    Certificates,
    KeyStore,
    read_key_store,
    read_revocations,
    read_trust_store,
)
from orthia.config.acceptor_tls import AcceptorTls, ClientCertificate

VERSIONS: Final = {
    "TLSv1.2": ssl.TLSVersion.TLSv1_2,
    "TLSv1.3": ssl.TLSVersion.TLSv1_3,
}
_VERIFY: Final = {
    ClientCertificate.IGNORED: ssl.CERT_NONE,
    ClientCertificate.WANTED: ssl.CERT_OPTIONAL,
    ClientCertificate.NEEDED: ssl.CERT_REQUIRED,
}


@dataclass(frozen=True)
class Loaded:
    """The context of an acceptor, until its files change."""

    context: ssl.SSLContext
    validity: Validity


def load_acceptor(name: str, tls: AcceptorTls) -> Loaded:
    """Read the files of the acceptor of this name; raises TlsUnusable."""
    keys = read_key_store(tls.key_store, tls.key_store_alias)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    # A renegotiation is cheap for a client, and costs this node a handshake.
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_CIPHER_SERVER_PREFERENCE
    take(context, tls.enabled_protocols, tls.enabled_cipher_suites)
    use_keys(context, keys, "keyStorePath")
    if tls.trust_store is not None:
        trust(context, read_trust_store(tls.trust_store), tls.trust_store.path)
    if tls.crl_path is not None:
        refuse_revoked(context, read_revocations(tls.crl_path), tls.crl_path)
    context.verify_mode = _VERIFY[tls.client_certificate]
    if tls.sni_host is not None:
        _take_names(context, re.compile(tls.sni_host))
    return Loaded(context, validity_of(name, keys))


def take(context: ssl.SSLContext, protocols: Sequence[str], suites: Sequence[str]) -> None:
    """Enable only these protocols and suites; the defaults without any. Raises TlsUnusable."""
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if protocols:
        context.minimum_version = VERSIONS[protocols[0]]
        context.maximum_version = VERSIONS[protocols[-1]]
    take_modern(context)
    if suites:
        choose(context, suites)


def validity_of(acceptor: str, keys: KeyStore) -> Validity:
    """Return the validity of the certificates of an acceptor."""
    return Validity(
        acceptor,
        keys.chain[0].subject.rfc4514_string(),
        max(one.not_valid_before_utc for one in keys.chain),
        min(one.not_valid_after_utc for one in keys.chain),
    )


def use_keys(context: ssl.SSLContext, keys: KeyStore, parameter: str) -> None:
    """Set the key and certificate of ``context``; raises TlsUnusable."""
    pem = keys.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    pem += b"".join(one.public_bytes(Encoding.PEM) for one in keys.chain)
    try:
        with _in_memory(pem) as name:
            context.load_cert_chain(name)
    except ssl.SSLError as error:
        raise TlsUnusable(
            f"the key or certificate of {parameter} is refused by OpenSSL: {in_words(error)}"
        ) from None


@contextmanager
def _in_memory(data: bytes) -> Iterator[str]:
    """Give the name of a file in memory that has ``data``, for functions that need a file."""
    descriptor = os.memfd_create("orthia-tls", os.MFD_CLOEXEC)
    try:
        with os.fdopen(os.dup(descriptor), "wb") as file:
            file.write(data)
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)


def trust(context: ssl.SSLContext, certificates: Certificates, path: Path) -> None:
    """Trust the certificates of the file at ``path``, and what they signed; raises TlsUnusable."""
    data = b"".join(one.public_bytes(Encoding.DER) for one in certificates)
    with _taking("trustStorePath", path, "certificates"):
        context.load_verify_locations(cadata=data)
    # A certificate in the trust store is trusted, whoever signed it.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    # Many company authorities lack fields that RFC 5280 demands and other software does not.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT


def refuse_revoked(context: ssl.SSLContext, lists: bytes, path: Path) -> None:
    """Refuse certificates that these lists name, or whose issuer has no list.

    The lists are those of the file at ``path``; raises TlsUnusable.
    """
    with _taking("crlPath", path, "lists of revoked certificates"), _in_memory(lists) as name:
        context.load_verify_locations(cafile=name)
    context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF


@contextmanager
def _taking(parameter: str, path: Path, expected: str) -> Iterator[None]:
    """Translate the errors of OpenSSL, which checks more strictly than the parser did."""
    try:
        yield
    except ssl.SSLError as error:
        raise unusable(
            parameter,
            path,
            f"OpenSSL refuses what is in it: {in_words(error)}; expected {expected} that"
            " `openssl` reads",
        ) from None


class ServerObject(ssl.SSLObject):
    """The server's end of one connection."""

    refused_name: str | None = None
    """The server name that the client sent, if ``sniHost`` does not match it."""


def _take_names(context: ssl.SSLContext, pattern: re.Pattern[str]) -> None:
    def look(tls: ssl.SSLObject, name: str | None, _: ssl.SSLContext) -> int | None:
        if name is None or pattern.fullmatch(name):
            return None
        if isinstance(tls, ServerObject):
            tls.refused_name = name
        return ssl.ALERT_DESCRIPTION_UNRECOGNIZED_NAME

    context.sslobject_class = ServerObject
    context.sni_callback = look
