"""Certificates made for a test: authorities, servers and clients, in the files people have."""

import datetime
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import TypeAlias

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    KeySerializationEncryption,
    NoEncryption,
    PrivateFormat,
    pkcs12,
)
from cryptography.x509.oid import NameOID

LOOPBACK = ("127.0.0.1", "localhost")
Key: TypeAlias = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey


@dataclass(frozen=True)
class Identity:
    """A certificate with its key."""

    certificate: x509.Certificate
    key: Key
    signers: tuple[x509.Certificate, ...] = ()
    """Between it and the authority that others know."""

    @property
    def certificates_pem(self) -> bytes:
        """Its certificate and those of its signers, as a file has them."""
        return b"".join(one.public_bytes(Encoding.PEM) for one in (self.certificate, *self.signers))

    def key_pem(self, password: str | None = None) -> bytes:
        """Return its key as a file has it."""
        return self.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, _encryption(password))

    def write_pem(self, path: Path, password: str | None = None) -> Path:
        """Write key and certificates into one file."""
        return write(path, self.key_pem(password) + self.certificates_pem)

    def write_apart(self, path: Path) -> tuple[Path, Path]:
        """Write the certificates, and the key beside them."""
        key_path = write(path.with_suffix(".key"), self.key_pem())
        return write(path, self.certificates_pem), key_path

    def write_pkcs12(self, path: Path, password: str, name: str = "broker") -> Path:
        """Write a key store as Java reads them."""
        made = pkcs12.serialize_key_and_certificates(
            name.encode(), self.key, self.certificate, self.signers, _encryption(password)
        )
        return write(path, made)


_SIGNS = x509.KeyUsage(
    key_cert_sign=True,
    crl_sign=True,
    digital_signature=False,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    encipher_only=False,
    decipher_only=False,
)


class Authority:
    """Signs certificates; its own is in ``path`` if it has one."""

    def __init__(
        self, path: Path | None = None, *, name: str = "tests", by: "Authority | None" = None
    ) -> None:
        """``by`` makes it one between that authority and whom this one signs."""
        self._name = _name((("CN", name),))
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._by = by
        # All that Python demands of an authority from 3.13 on.
        constraints = x509.BasicConstraints(ca=True, path_length=None)
        self.certificate = _signed(
            self._name,
            self._key,
            (by or self)._name,
            (by or self)._key,
            [constraints, _SIGNS],
        )
        if path is not None:
            self.write(path)

    def write(self, path: Path) -> Path:
        """Write its certificate."""
        return write(path, self.certificate.public_bytes(Encoding.PEM))

    def revoke(self, *identities: Identity, days: float = 10.0) -> bytes:
        """Return a list of these, as PEM, that is to be renewed in so many days."""
        now = datetime.datetime.now(datetime.UTC)
        builder = (
            x509.CertificateRevocationListBuilder()
            .issuer_name(self._name)
            .last_update(now - datetime.timedelta(days=30))
            .next_update(now + datetime.timedelta(days=days))
        )
        for one in identities:
            revoked = (
                x509.RevokedCertificateBuilder()
                .serial_number(one.certificate.serial_number)
                .revocation_date(now - datetime.timedelta(days=1))
                .build()
            )
            builder = builder.add_revoked_certificate(revoked)
        return builder.sign(self._key, hashes.SHA256()).public_bytes(Encoding.PEM)

    def sign(
        self,
        hosts: Iterable[str] = LOOPBACK,
        *,
        subject: Sequence[tuple[str, str]] = (("CN", "server"),),
        days: float = 100.0,
        key: Key | None = None,
    ) -> Identity:
        """Return a certificate for ``hosts`` that ends in so many days."""
        key = key or ec.generate_private_key(ec.SECP256R1())
        names = [_general_name(one) for one in hosts]
        extensions = [x509.SubjectAlternativeName(names)] if names else []
        made = _signed(_name(subject), key, self._name, self._key, extensions, days)
        return Identity(made, key, () if self._by is None else (self.certificate,))


def damaged(der: bytes, name: str = "tests") -> bytes:
    """Return what an authority of this name made, as DER, so that OpenSSL alone refuses it.

    The name is a BOOLEAN, and too long for one. ``cryptography`` parses names when they are asked
    for, OpenSSL at once.
    """
    text = bytes([len(name)]) + name.encode()
    found = der.replace(b"\x0c" + text, b"\x01" + text)
    assert found != der
    return found


def self_signed(hosts: Iterable[str] = LOOPBACK) -> Identity:
    """Return a certificate that nobody else signed."""
    key, name = ec.generate_private_key(ec.SECP256R1()), _name((("CN", "alone"),))
    extension = x509.SubjectAlternativeName([_general_name(one) for one in hosts])
    return Identity(_signed(name, key, name, key, [extension]), key)


def rsa_key() -> rsa.RSAPrivateKey:
    """Return a key of the older kind, which takes a while to make."""
    return rsa.generate_private_key(65_537, 2_048)


def write(path: Path, data: bytes) -> Path:
    """Write a file that servers of other users can read."""
    path.write_bytes(data)
    path.chmod(0o644)
    return path


_OIDS = {
    "C": NameOID.COUNTRY_NAME,
    "O": NameOID.ORGANIZATION_NAME,
    "OU": NameOID.ORGANIZATIONAL_UNIT_NAME,
    "CN": NameOID.COMMON_NAME,
}


def _name(parts: Sequence[tuple[str, str]]) -> x509.Name:
    return x509.Name([x509.NameAttribute(_OIDS[kind], value) for kind, value in parts])


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _encryption(password: str | None) -> KeySerializationEncryption:
    return NoEncryption() if password is None else BestAvailableEncryption(password.encode())


def _signed(
    subject: x509.Name,
    key: Key,
    issuer: x509.Name,
    issuer_key: Key,
    extensions: Iterable[x509.ExtensionType],
    days: float = 100.0,
) -> x509.Certificate:
    ends = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=days)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(ends - datetime.timedelta(days=200))
        .not_valid_after(ends)
    )
    own_id = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    for extension in (*extensions, own_id):
        is_of_authority = isinstance(extension, x509.BasicConstraints | x509.KeyUsage)
        builder = builder.add_extension(extension, critical=is_of_authority)
    if key is not issuer_key:
        signer = x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key())
        builder = builder.add_extension(signer, critical=False)
    return builder.sign(issuer_key, hashes.SHA256())
