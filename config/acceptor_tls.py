"""``acceptor``: what its URL asks of TLS, in Artemis' names.

Files are not opened here: ``orthia.broker.tls`` does that, for a node that listens and for
``orthia check``.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Final

from orthia.config.errors import ConfigurationError
from orthia.config.secrets import Secret

PROTOCOLS: Final = ("TLSv1.2", "TLSv1.3")
"""What ``enabledProtocols`` may name, from the older on."""


class StoreType(Enum):
    """What a file with keys or certificates is: ``keyStoreType`` and ``trustStoreType``."""

    PEM = "PEM"
    PEMCFG = "PEMCFG"
    """Names PEM files, one in each ``source.NAME``."""
    PKCS12 = "PKCS12"


@dataclass(frozen=True)
class StoreFile:
    """A file with keys or certificates, as it was named."""

    path: Path
    type: StoreType | None = None
    """None finds out by its first bytes."""
    password: Secret | None = None


class ClientCertificate(Enum):
    """Whether clients show a certificate."""

    IGNORED = "none"
    WANTED = "wantClientAuth"
    """One that is shown must be trusted; a client without one is taken, too."""
    NEEDED = "needClientAuth"


@dataclass(frozen=True)
class AcceptorTls:
    """How an acceptor with ``sslEnabled=true`` speaks TLS."""

    key_store: StoreFile
    key_store_alias: str | None = None
    trust_store: StoreFile | None = None
    """Who signs the certificates of clients; None where none are asked for."""
    crl_path: Path | None = None
    """Lists which of the certificates of clients were revoked; None takes all."""
    client_certificate: ClientCertificate = ClientCertificate.IGNORED
    enabled_protocols: tuple[str, ...] = ()
    """``TLSv1.2``, ``TLSv1.3``; both if it is empty."""
    enabled_cipher_suites: tuple[str, ...] = ()
    """By the names of Java or OpenSSL; empty leaves them to OpenSSL."""
    sni_host: str | None = None
    """A regular expression for the names by which clients ask; None takes any."""
    auto_reload: bool = False
    """``sslAutoReload``: whether files that change are read again while the node runs."""

    def relative_to(self, instance: Path, configuration: Path) -> "AcceptorTls":
        """Return it with its paths starting from the instance's directory.

        A file that is not there and is beside ``broker.xml``, in ``configuration``, is that one,
        as Artemis finds it.
        """

        def located(named: Path) -> Path:
            path, beside = instance / named, configuration / named
            return beside if beside.exists() > path.exists() else path

        def moved(store: StoreFile) -> StoreFile:
            return replace(store, path=located(store.path))

        return replace(
            self,
            key_store=moved(self.key_store),
            trust_store=None if self.trust_store is None else moved(self.trust_store),
            crl_path=None if self.crl_path is None else located(self.crl_path),
        )

    def parameters(self) -> Mapping[str, str]:
        """Return what was asked for, by the names of the parameters; passwords are hidden."""
        found = {"sslEnabled": "true", **_parameters_of("keyStore", self.key_store)}
        if self.key_store_alias:
            found["keyStoreAlias"] = self.key_store_alias
        if self.trust_store is not None:
            found |= _parameters_of("trustStore", self.trust_store)
        if self.crl_path is not None:
            found["crlPath"] = str(self.crl_path)
        if self.client_certificate is not ClientCertificate.IGNORED:
            found[self.client_certificate.value] = "true"
        found["enabledProtocols"] = ",".join(self.enabled_protocols or PROTOCOLS)
        if self.enabled_cipher_suites:
            found["enabledCipherSuites"] = ",".join(self.enabled_cipher_suites)
        if self.sni_host:
            found["sniHost"] = self.sni_host
        return found | {"sslAutoReload": str(self.auto_reload).lower()}


def _parameters_of(kind: str, store: StoreFile) -> Mapping[str, str]:
    return {
        f"{kind}Path": str(store.path),
        **({f"{kind}Type": store.type.value} if store.type else {}),
        **({f"{kind}Password": str(store.password)} if store.password else {}),
    }


TLS_ACTING: Final[Mapping[str, str]] = {
    "sslEnabled": "true has clients connect by TLS; false is the default",
    "keyStorePath": "the file with the certificate and key of the acceptor; a relative path starts"
    " at the instance's directory, or at broker.xml's",
    "keyStorePassword": "of that file, in the clear or as ENC(...); of a PEM file, that of its key",
    "keyStoreType": "PEM, PEMCFG or PKCS12; by default what the file looks like",
    "keyStoreAlias": "the name which the key must have in a PKCS12 file or PEMCFG",
    "trustStorePath": "the file with the certificates of whoever signs those of clients",
    "trustStorePassword": "of that file",
    "trustStoreType": "as keyStoreType",
    "crlPath": "a file with the lists of revoked certificates, PEM or DER, of everybody who signed"
    " one of a client: one that is on its list is refused",
    "needClientAuth": "true lets in clients with a trusted certificate only; goes over"
    " wantClientAuth",
    "wantClientAuth": "true asks clients for a certificate, and refuses one that is not trusted",
    "enabledProtocols": "TLSv1.2, TLSv1.3 or both, separated by commas; both by default",
    "enabledCipherSuites": "names of Java or OpenSSL, separated by commas; by default OpenSSL's own"
    " choice",
    "sniHost": "a regular expression; a client that asks for another name is refused",
    "sslAutoReload": "true has the files read again when they change, without a client being"
    " disconnected; false is the default",
}
"""The parameters that act where ``sslEnabled`` is true."""
_JAVA_STORES: Final = frozenset({"JKS", "JCEKS", "BKS", "UBER", "DKS", "PKCS11", "WINDOWS-ROOT"})


def acceptor_tls(
    parameters: Mapping[str, str], secret: Callable[[str], Secret]
) -> AcceptorTls | None:
    """Return what the parameters of an acceptor ask of TLS; None if it has none.

    ``secret`` unmasks a password. Raises ConfigurationError.
    """
    if not flag(parameters, "sslEnabled"):
        return None
    key_store = _store("keyStore", parameters, secret)
    if key_store is None:
        raise ConfigurationError(
            "has sslEnabled=true and no keyStorePath; expected keyStorePath=FILE, with the"
            " certificate and key that clients are shown"
        )
    trust_store = _store("trustStore", parameters, secret)
    asked = ClientCertificate.IGNORED
    if flag(parameters, "needClientAuth"):
        asked = ClientCertificate.NEEDED
    elif flag(parameters, "wantClientAuth"):
        asked = ClientCertificate.WANTED
    if asked is not ClientCertificate.IGNORED and trust_store is None:
        raise ConfigurationError(
            f"has {asked.value}=true and no trustStorePath; expected trustStorePath=FILE, with the"
            " certificates of whoever signs those of your clients"
        )
    crl_path = parameters.get("crlPath")
    if crl_path and asked is ClientCertificate.IGNORED:
        raise ConfigurationError(
            "has crlPath and asks no client for a certificate that could be revoked; expected"
            " needClientAuth=true or wantClientAuth=true beside it"
        )
    return AcceptorTls(
        key_store,
        key_store_alias=parameters.get("keyStoreAlias") or None,
        trust_store=trust_store,
        crl_path=Path(crl_path) if crl_path else None,
        client_certificate=asked,
        enabled_protocols=enabled_protocols(parameters),
        enabled_cipher_suites=names_in(parameters, "enabledCipherSuites"),
        sni_host=_sni_host(parameters),
        auto_reload=flag(parameters, "sslAutoReload"),
    )


def _store(
    kind: str, parameters: Mapping[str, str], secret: Callable[[str], Secret]
) -> StoreFile | None:
    path = parameters.get(f"{kind}Path", "")
    if not path:
        return None
    type_ = store_type(kind, path, parameters)
    password = parameters.get(f"{kind}Password", "")
    try:
        unmasked = secret(password) if password else None
    except ConfigurationError as error:
        raise ConfigurationError(f"has a {kind}Password that cannot be read: {error}") from None
    return StoreFile(Path(path), type_, unmasked)


def store_type(kind: str, path: str, parameters: Mapping[str, str]) -> StoreType | None:
    """Return what the store at ``path`` is said to be, if anything; raises ConfigurationError."""
    named = parameters.get(f"{kind}Type", "").upper()
    if named in _JAVA_STORES:
        raise ConfigurationError(f"has {kind}Type={named}: {not_readable(kind, path)}")
    if named and named not in StoreType.__members__:
        raise ConfigurationError(
            f"has {kind}Type={named!r}; expected {', '.join(StoreType.__members__)}"
        )
    return StoreType(named) if named else None


def not_readable(kind: str, path: object) -> str:
    """Return what to do with a store that only Java reads; ``kind`` is keyStore or trustStore."""
    target = f"{str(path).rpartition('.')[0] or path}.p12"
    return (
        f"{path} can be read by Java alone; convert it, with `keytool -importkeystore -srckeystore"
        f" {path} -destkeystore {target} -deststoretype PKCS12`, and expected is"
        f" {kind}Path={target};{kind}Type=PKCS12"
    )


def flag(parameters: Mapping[str, str], name: str) -> bool:
    """Return whether a parameter is true; false without it. Raises ConfigurationError."""
    text = parameters.get(name, "false")
    if text.lower() not in {"true", "false"}:
        raise ConfigurationError(f"has {name}={text!r}; expected true or false")
    return text.lower() == "true"


def names_in(parameters: Mapping[str, str], name: str) -> tuple[str, ...]:
    """Return what a parameter lists."""
    return tuple(one.strip() for one in parameters.get(name, "").split(",") if one.strip())


def enabled_protocols(parameters: Mapping[str, str]) -> tuple[str, ...]:
    """Return those that are named, the older first; raises ConfigurationError for one too old."""
    given = names_in(parameters, "enabledProtocols")
    for one in given:
        if one not in PROTOCOLS:
            raise ConfigurationError(
                f"has enabledProtocols with {one!r}; expected {' or '.join(PROTOCOLS)}, for"
                " older ones can be broken into"
            )
    return tuple(one for one in PROTOCOLS if one in given)


def _sni_host(parameters: Mapping[str, str]) -> str | None:
    text = parameters.get("sniHost") or None
    if text is not None:
        try:
            re.compile(text)
        except re.error as error:
            raise ConfigurationError(
                f"has sniHost={text!r}, which is no regular expression ({error}); expected one, as"
                " broker[12]\\.example\\.com"
            ) from None
    return text
