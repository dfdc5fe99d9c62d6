"""Files with keys and certificates: PEM, PEMCFG and PKCS12, read whole and never on the loop.

Errors name the parameter that names the file: ``keyStorePath`` and its relatives.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_pem_private_key,
    pkcs12,
)

from orthia.broker.tls.errors import TlsUnusable, unusable
from orthia.config.acceptor_tls import StoreFile, StoreType, not_readable

Certificates: TypeAlias = tuple[x509.Certificate, ...]
MAXIMUM_BYTES: Final = 4 * 1024 * 1024
"""The largest file: a bundle of all public authorities has a twentieth of it."""
_JAVA: Final = (b"\xfe\xed\xfe\xed", b"\xce\xce\xce\xce")
"""The first bytes of JKS and JCEKS."""
_DER: Final = b"\x30"
_PEM: Final = b"-----BEGIN "
_CERTIFICATE: Final = b"-----BEGIN CERTIFICATE-----"
_REVOCATIONS: Final = b"-----BEGIN X509 CRL-----"
_PRIVATE_KEY: Final = b"PRIVATE KEY-----"


@dataclass(frozen=True)
class KeyStore:
    """A key and its chain of certificates, its own first."""

    key: PrivateKeyTypes
    chain: Certificates


def read_key_store(store: StoreFile, alias: str | None, kind: str = "keyStore") -> KeyStore:
    """Read the one key of a file, with its certificates; raises TlsUnusable.

    ``kind`` is the beginning of the parameters' names, for errors.
    """
    parameter = f"{kind}Path"
    data, type_ = _read(store, parameter, kind)
    with _parsing(parameter, store.path):
        if type_ is StoreType.PKCS12:
            return _key_of_pkcs12(store, data, alias, kind)
        if type_ is StoreType.PEMCFG:
            data = _sources(store, data, alias, kind)
        elif alias is not None:
            raise TlsUnusable(
                f"{kind}Alias={alias} names nothing in {store.path}: a PEM file has one key and no"
                f" aliases; expected it without {kind}Alias"
            )
        key = _pem_key(store, data, kind)
        certificates = _pem_certificates(store, data, parameter)
        return KeyStore(key, _in_order(certificates, key, store, parameter))


def read_trust_store(store: StoreFile, kind: str = "trustStore") -> Certificates:
    """Read the certificates of a file; raises TlsUnusable."""
    parameter = f"{kind}Path"
    data, type_ = _read(store, parameter, kind)
    with _parsing(parameter, store.path):
        if type_ is not StoreType.PKCS12:
            if type_ is StoreType.PEMCFG:
                data = _sources(store, data, None, kind)
            return _pem_certificates(store, data, parameter)
        loaded = _load_pkcs12(store, data, kind)
        found = [one.certificate for one in loaded.additional_certs]
        if loaded.cert is not None:
            found.append(loaded.cert.certificate)
    if not found:
        raise unusable(parameter, store.path, "there is no certificate in it")
    return tuple(found)


def read_revocations(path: Path) -> bytes:
    """Return the lists of revoked certificates of a file, as PEM; raises TlsUnusable."""
    data = read_bytes(path, "crlPath")
    with _parsing("crlPath", path):
        if data.startswith(_DER):
            return x509.load_der_x509_crl(data).public_bytes(Encoding.PEM)
        lists = [one for one in _blocks(data) if one.startswith(_REVOCATIONS)]
        if not lists:
            raise unusable(
                "crlPath", path, "there is no list of revoked certificates in it; expected X509 CRL"
            )
        return b"".join(x509.load_pem_x509_crl(one).public_bytes(Encoding.PEM) for one in lists)


@contextmanager
def _parsing(parameter: str, path: Path) -> Iterator[None]:
    """Translate the errors of a file whose content breaks its format."""
    try:
        yield
    except (ValueError, TypeError, UnsupportedAlgorithm, x509.InvalidVersion) as error:
        raise unusable(parameter, path, f"what is in it cannot be read: {error}") from None


def files_of(store: StoreFile) -> tuple[Path, ...]:
    """Return the files that a store is read from; for a PEMCFG also those that it names."""
    try:
        data, found = _read(store, "", "")
    except TlsUnusable:
        return (store.path,)
    named = _named(store, data)[0] if found is StoreType.PEMCFG else {}
    return (store.path, *named.values())


def has_open_key(path: Path) -> bool:
    """Return whether a file has a private key without a password."""
    try:
        data = read_bytes(path, "")
    except TlsUnusable:
        return False
    return any(_is_key(block) and b"ENCRYPTED" not in block for block in _blocks(data))


def _read(store: StoreFile, parameter: str, kind: str) -> tuple[bytes, StoreType]:
    data = read_bytes(store.path, parameter)
    if data.startswith(_JAVA):
        raise TlsUnusable(not_readable(kind, store.path))
    found = StoreType.PEMCFG
    if _PEM in data:
        found = StoreType.PEM
    elif data.startswith(_DER):
        found = StoreType.PKCS12
    elif store.type is not StoreType.PEMCFG:
        named = "PEM or PKCS12" if store.type is None else store.type.value
        raise unusable(parameter, store.path, f"it is not {named}")
    if store.type not in (None, found):
        raise unusable(
            parameter, store.path, f"{kind}Type says {store.type.value}, and it is {found.value}"
        )
    return data, found


def read_bytes(path: Path, parameter: str) -> bytes:
    """Return the bytes of a file; raises TlsUnusable."""
    try:
        with path.open("rb") as file:
            data = file.read(MAXIMUM_BYTES + 1)
    except OSError as error:
        raise unusable(parameter, path, error.strerror or str(error)) from None
    if len(data) > MAXIMUM_BYTES:
        raise unusable(parameter, path, f"it is larger than {MAXIMUM_BYTES} bytes")
    return data


def _sources(store: StoreFile, data: bytes, alias: str | None, kind: str) -> bytes:
    """Return the contents of all files that a PEMCFG names."""
    named, own_alias = _named(store, data)
    if not named:
        raise unusable(f"{kind}Path", store.path, "it has no source.NAME=FILE of a PEM file")
    if alias is not None and alias != own_alias:
        raise _other_alias(store, alias, own_alias, kind)
    return b"\n".join(
        read_bytes(path, f"{name} of {kind}Path={store.path}") for name, path in named.items()
    )


def _named(store: StoreFile, data: bytes) -> tuple[dict[str, Path], str | None]:
    """Return the files that a PEMCFG names, and its alias."""
    found: dict[str, Path] = {}
    alias: str | None = None
    for line in data.decode(errors="replace").splitlines():
        name, equals, value = (part.strip() for part in line.partition("="))
        if not equals or name.startswith(("#", "!")):
            continue
        if name == "alias":
            alias = value
        elif name.startswith("source."):
            found[name] = store.path.parent / value.removeprefix("classpath:").removeprefix("file:")
    return found, alias


def _pem_key(store: StoreFile, data: bytes, kind: str) -> PrivateKeyTypes:
    parameter = f"{kind}Path"
    keys = [block for block in _blocks(data) if _is_key(block)]
    if len(keys) != 1:
        raise unusable(
            parameter,
            store.path,
            f"it has {len(keys) or 'no'} private keys; expected one, and its certificate",
        )
    password = None if store.password is None else store.password.reveal().encode()
    is_encrypted = b"ENCRYPTED" in keys[0]
    try:
        # A password for a key that is not encrypted is accepted, as in Artemis.
        return load_pem_private_key(keys[0], password if is_encrypted else None)
    except (ValueError, TypeError):
        if is_encrypted:
            raise _wrong_password(store, kind) from None
        raise


def _blocks(data: bytes) -> list[bytes]:
    """Return the parts of a PEM file, each from its BEGIN to its END."""
    begun = data.split(_PEM)[1:]
    return [_PEM + one for one in begun]


def _is_key(block: bytes) -> bool:
    return _PRIVATE_KEY in block.partition(b"\n")[0]


def _pem_certificates(store: StoreFile, data: bytes, parameter: str) -> Certificates:
    if _CERTIFICATE not in data:
        raise unusable(parameter, store.path, "there is no certificate in it")
    return tuple(x509.load_pem_x509_certificates(data))


def _load_pkcs12(store: StoreFile, data: bytes, kind: str) -> pkcs12.PKCS12KeyAndCertificates:
    password = None if store.password is None else store.password.reveal().encode()
    try:
        return pkcs12.load_pkcs12(data, password)
    except ValueError:
        raise _wrong_password(store, kind) from None


def _key_of_pkcs12(store: StoreFile, data: bytes, alias: str | None, kind: str) -> KeyStore:
    loaded = _load_pkcs12(store, data, kind)
    parameter = f"{kind}Path"
    if loaded.key is None:
        raise unusable(parameter, store.path, "there is no private key in it")
    own = loaded.cert
    certificates = [] if own is None else [own.certificate]
    certificates += [one.certificate for one in loaded.additional_certs]
    if alias is not None:
        name = None if own is None or own.friendly_name is None else own.friendly_name.decode()
        # Aliases of Java's stores ignore case.
        if name is None or name.lower() != alias.lower():
            raise _other_alias(store, alias, name, kind)
    return KeyStore(loaded.key, _in_order(tuple(certificates), loaded.key, store, parameter))


def _in_order(
    certificates: Certificates, key: PrivateKeyTypes, store: StoreFile, parameter: str
) -> Certificates:
    """Return the certificate of the key, then after each the one that signed it."""
    public = _public_bytes(key.public_key())
    own = [one for one in certificates if _public_bytes(one.public_key()) == public]
    if not own:
        raise unusable(
            parameter,
            store.path,
            "no certificate in it belongs to its private key; expected the two that were made for"
            " each other",
        )
    chain = [max(own, key=lambda one: one.not_valid_after_utc)]
    rest = [one for one in certificates if one not in own]
    while signer := next((one for one in rest if one.subject == chain[-1].issuer), None):
        chain.append(signer)
        rest.remove(signer)
    return tuple(chain)


def _public_bytes(key: object) -> bytes:
    spoken: bytes = key.public_bytes(  # type: ignore[attr-defined]
        Encoding.DER, PublicFormat.SubjectPublicKeyInfo
    )
    return spoken


def _wrong_password(store: StoreFile, kind: str) -> TlsUnusable:
    if store.password is None:
        return unusable(
            f"{kind}Path", store.path, f"it is encrypted; expected {kind}Password, its password"
        )
    return TlsUnusable(
        f"{kind}Password is not the password of {kind}Path={store.path}, or the file is damaged"
    )


def _other_alias(store: StoreFile, alias: str, found: str | None, kind: str) -> TlsUnusable:
    has = "has no name" if found is None else f"is {found!r}"
    return TlsUnusable(
        f"{kind}Alias={alias} is not in {kind}Path={store.path}, whose first key {has}; expected"
        f" that, or a file with the one key: `keytool -importkeystore -srckeystore {store.path}"
        f" -srcalias {alias} -destkeystore {alias}.p12 -deststoretype PKCS12`"
    )
