"""OpenSSL's contexts, made of the stores that settings name; reads files, so never on the loop."""

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
    """What an acceptor speaks TLS with, until its files change."""

    context: ssl.SSLContext
    validity: Validity


def load_acceptor(name: str, tls: AcceptorTls) -> Loaded:
    """Read the files of the acceptor of this name; raises TlsUnusable."""
    keys = read_key_store(tls.key_store, tls.key_store_alias)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    # Each renegotiation would have a client that costs us nothing cost us a handshake.
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
    """Have ``context`` speak these alone; without any what is modern. Raises TlsUnusable."""
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if protocols:
        context.minimum_version = VERSIONS[protocols[0]]
        context.maximum_version = VERSIONS[protocols[-1]]
    take_modern(context)
    if suites:
        choose(context, suites)


def validity_of(acceptor: str, keys: KeyStore) -> Validity:
    """Return until when clients take what an acceptor shows them."""
    return Validity(
        acceptor,
        keys.chain[0].subject.rfc4514_string(),
        max(one.not_valid_before_utc for one in keys.chain),
        min(one.not_valid_after_utc for one in keys.chain),
    )


def use_keys(context: ssl.SSLContext, keys: KeyStore, parameter: str) -> None:
    """Have ``context`` show a certificate; raises TlsUnusable."""
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
    """Give the name of a file, as Python asks for some things, that is on no disk."""
    descriptor = os.memfd_create("orthia-tls", os.MFD_CLOEXEC)
    try:
        with os.fdopen(os.dup(descriptor), "wb") as file:
            file.write(data)
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)


def trust(context: ssl.SSLContext, certificates: Certificates, path: Path) -> None:
    """Have ``context`` trust these of a file, and what they signed; raises TlsUnusable."""
    data = b"".join(one.public_bytes(Encoding.DER) for one in certificates)
    with _taking("trustStorePath", path, "certificates"):
        context.load_verify_locations(cadata=data)
    # A certificate that was put there by name is trusted, whoever signed it.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    # Many authorities of companies lack what RFC 5280 asks for and nobody else does.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT


def refuse_revoked(context: ssl.SSLContext, lists: bytes, path: Path) -> None:
    """Have ``context`` refuse certificates that these lists name, or that no list is for.

    Raises TlsUnusable; the lists are those of the file at ``path``.
    """
    with _taking("crlPath", path, "lists of revoked certificates"), _in_memory(lists) as name:
        context.load_verify_locations(cafile=name)
    context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF


@contextmanager
def _taking(parameter: str, path: Path, expected: str) -> Iterator[None]:
    """Tell of what was read, and OpenSSL refuses: it looks closer than who parsed it."""
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
    """By which name the client asked, if ``sniHost`` does not match it."""


def _take_names(context: ssl.SSLContext, pattern: re.Pattern[str]) -> None:
    def look(tls: ssl.SSLObject, name: str | None, _: ssl.SSLContext) -> int | None:
        if name is None or pattern.fullmatch(name):
            return None
        if isinstance(tls, ServerObject):
            tls.refused_name = name
        return ssl.ALERT_DESCRIPTION_UNRECOGNIZED_NAME

    context.sslobject_class = ServerObject
    context.sni_callback = look
