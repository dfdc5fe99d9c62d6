"""Errors of TLS, worded for an operator."""

import ssl
from pathlib import Path

from orthia.config.errors import ConfigurationError


class TlsUnusable(ConfigurationError):  # noqa: N818 - named for the state
    """A file or a parameter of TLS cannot be used; the text names it and says what is expected."""


def unusable(parameter: str, path: Path, reason: str) -> TlsUnusable:
    """Return the error of a file that a parameter names."""
    return TlsUnusable(f"{parameter}={path} cannot be used: {reason}")


def in_words(error: ssl.SSLError) -> str:
    """Return OpenSSL's reason without the places in its source."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"certificate verify failed: {error.verify_message}"
    reason = getattr(error, "reason", None) or str(error)
    return str(reason).replace("_", " ").lower()
