"""TLS to MySQL and MariaDB: contexts for PyMySQL, whose own options for it are not all alike."""

import ssl
from typing import Any, Final

from sqlalchemy import URL

from orthia.config.errors import ConfigurationError
from orthia.config.tls import MYSQL_TLS_PARAMETERS, MysqlTls, TlsMode, mysql_tls

_LEGACY_CHECKS_ONLY: Final = ~ssl.VERIFY_X509_STRICT
"""The certificates that MySQL makes for itself lack extensions that are checked from 3.13 on."""


def without_tls(url: URL) -> URL:
    """Return the URL without what ``tls_arguments`` reads of it."""
    return url.difference_update_query(MYSQL_TLS_PARAMETERS)


def tls_arguments(url: URL) -> dict[str, Any]:
    """Return PyMySQL's keyword arguments for the TLS that ``url`` asks for.

    Raises ConfigurationError, naming a file that cannot be used.
    """
    tls = mysql_tls(url.query)
    if tls.mode is TlsMode.DISABLED:
        return {"ssl_disabled": True}
    if tls.mode is TlsMode.PREFERRED:
        return {}  # what PyMySQL does by itself
    return {"ssl": _context(tls)}


def _context(tls: MysqlTls) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=tls.ca, capath=tls.capath)
    except OSError as error:
        raise _unusable(
            "serverSslCert (ssl_ca) or ssl_capath", tls.ca or tls.capath, error
        ) from error
    context.verify_flags &= _LEGACY_CHECKS_ONLY
    context.check_hostname = tls.mode is TlsMode.VERIFY_IDENTITY
    if tls.mode is TlsMode.REQUIRED:
        context.verify_mode = ssl.CERT_NONE
    if tls.cert is not None:
        try:
            # An empty password, so that a key that needs one is an error and no prompt.
            context.load_cert_chain(tls.cert, tls.key, tls.key_password or "")
        except OSError as error:
            raise _unusable("ssl_cert or ssl_key", tls.cert, error) from error
    if tls.cipher is not None:
        try:
            context.set_ciphers(tls.cipher)
        except ssl.SSLError as error:
            raise _unusable("ssl_cipher", tls.cipher, error) from error
    return context


def _unusable(parameter: str, value: str | None, error: OSError) -> ConfigurationError:
    reason = error.strerror or error
    return ConfigurationError(f"{parameter} of the URL, {value}, cannot be used: {reason}")
