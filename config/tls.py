"""TLS to MySQL and MariaDB: what a URL asks for, whichever driver's words it is written in.

PyMySQL has no modes; the parameters of a URL by its names (``ssl_ca``, ``ssl_verify_identity`` and
so on) say together which of MySQL's modes is meant, and JDBC's ``sslMode`` is put into them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from orthia.config.errors import ConfigurationError


class TlsMode(Enum):
    """MySQL's modes, from the weakest."""

    DISABLED = "DISABLED"
    PREFERRED = "PREFERRED"
    """Encrypted if the server offers it; anybody in between can say that it does not."""
    REQUIRED = "REQUIRED"
    """Encrypted, without verification of the server."""
    VERIFY_CA = "VERIFY_CA"
    VERIFY_IDENTITY = "VERIFY_IDENTITY"


@dataclass(frozen=True)
class MysqlTls:
    """What is asked of a connection; paths are those of PEM files."""

    mode: TlsMode
    ca: str | None = None
    """What the server's certificate is signed by; without it and ``capath`` the system's own."""
    capath: str | None = None
    cert: str | None = None
    key: str | None = None
    key_password: str | None = None
    cipher: str | None = None


MYSQL_TLS_PARAMETERS: Final = frozenset(
    f"ssl_{name}"
    for name in (
        *("ca", "capath", "cert", "key", "key_password", "cipher"),
        *("disabled", "check_hostname", "verify_cert", "verify_identity"),
    )
)
"""Parameters of a SQLAlchemy URL, named as PyMySQL and SQLAlchemy name them."""

_MODES: Final[Mapping[str, Mapping[str, str]]] = {
    "DISABLED": {"ssl_disabled": "true"},
    "PREFERRED": {},
    "REQUIRED": {"ssl_verify_cert": "false", "ssl_check_hostname": "false"},
    "VERIFY_CA": {"ssl_verify_cert": "true", "ssl_check_hostname": "false"},
    "VERIFY_IDENTITY": {"ssl_verify_identity": "true"},
}
_MARIADB_MODES: Final = {
    "DISABLE": "DISABLED",
    "TRUST": "REQUIRED",
    "VERIFY_FULL": "VERIFY_IDENTITY",
}


POSTGRESQL_SSL_MODES: Final = (
    "disable",
    "allow",
    "prefer",
    "require",
    "verify-ca",
    "verify-full",
)
"""libpq's, from the weakest."""


def check_postgresql_tls(query: Mapping[str, object]) -> None:
    """Raise ConfigurationError for an ``sslmode`` that libpq does not know."""
    mode = query.get("sslmode")
    if mode is not None and mode not in POSTGRESQL_SSL_MODES:
        raise ConfigurationError(
            f"sslmode of the URL is not known; expected one of {', '.join(POSTGRESQL_SSL_MODES)}"
        )


def mysql_tls(query: Mapping[str, object]) -> MysqlTls:
    """Return what the ``ssl_`` parameters of a URL ask for; raises ConfigurationError."""
    given = {name: str(query[name]) for name in MYSQL_TLS_PARAMETERS & query.keys()}
    flags = {
        name: _flag(name, given.pop(f"ssl_{name}"))
        for name in ("disabled", "check_hostname", "verify_cert", "verify_identity")
        if f"ssl_{name}" in given
    }
    if flags.pop("disabled", False):
        if given or any(flags.values()):
            raise ConfigurationError(
                "the URL turns TLS off (ssl_disabled, useSSL or sslMode) and gives a certificate or"
                " asks for one to be verified; expected one or the other"
            )
        return MysqlTls(TlsMode.DISABLED)
    files = {name.removeprefix("ssl_"): text for name, text in given.items()}
    if "key" in files and "cert" not in files:
        raise ConfigurationError("ssl_key of the URL goes with ssl_cert, which is missing")
    has_ca = "ca" in files or "capath" in files
    host = flags.get("verify_identity", flags.get("check_hostname", has_ca))
    if host and flags.get("verify_cert", True):
        mode = TlsMode.VERIFY_IDENTITY
    elif flags.get("verify_cert", has_ca):
        mode = TlsMode.VERIFY_CA
    else:
        mode = TlsMode.REQUIRED if files or flags else TlsMode.PREFERRED
    return MysqlTls(mode, **files)


def parameters_of_ssl_mode(value: str) -> Mapping[str, str]:
    """Return the parameters of a mode by MySQL's or MariaDB's name; raises ConfigurationError."""
    name = value.upper().replace("-", "_")
    parameters = _MODES.get(_MARIADB_MODES.get(name, name))
    if parameters is None:
        raise ConfigurationError(
            f"sslMode of the URL is not known; expected one of {', '.join(_MODES)}"
        )
    return parameters


def tls_warnings(tls: MysqlTls) -> list[str]:
    """Return warnings about a connection."""
    if tls.mode is not TlsMode.REQUIRED:
        return []
    return [
        "the database's URL asks for TLS and for no verification (REQUIRED): what is sent is"
        " encrypted, but to whoever answers, and with it the password; sslMode=VERIFY_IDENTITY"
        " with serverSslCert=FILE, a PEM file of the authority that signed the server's"
        " certificate, or that of the system without it, verifies who it is"
    ]


def _flag(name: str, text: str) -> bool:
    match text.lower():
        case "true" | "1" | "yes" | "on":
            return True
        case "false" | "0" | "no" | "off":
            return False
    raise ConfigurationError(f"ssl_{name} of the URL is neither true nor false")
