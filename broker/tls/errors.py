"""Errors of TLS, worded for an operator."""

import ssl
from pathlib import Path
from typing import Final

from orthia.config.errors import ConfigurationError


class TlsUnusable(ConfigurationError):  # noqa: N818 - named for the state
    """A file or a parameter of TLS cannot be used; the text names it and says what is expected."""


def unusable(parameter: str, path: Path, reason: str) -> TlsUnusable:
    """Return the error of a file that a parameter names."""
    return TlsUnusable(f"{parameter}={path} cannot be used: {reason}")


_ADVICE: Final = {
    "ALERT_CERTIFICATE_UNKNOWN": "the client does not trust the certificate it was shown",
    "ALERT_UNKNOWN_CA": "the client does not trust who signed the certificate it was shown",
    "ALERT_BAD_CERTIFICATE": "the client does not take the certificate it was shown",
    "ALERT_CERTIFICATE_EXPIRED": "to the client the certificate it was shown has expired",
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "the client has to show one (needClientAuth)",
}
"""What it means that a client says, or does not do; by the end of OpenSSL's reason."""


def of_handshake(error: ssl.SSLError) -> str:
    """Return why a client's handshake failed, with what that means where OpenSSL is terse."""
    reason = str(error.reason or "")
    advice = next((told for end, told in _ADVICE.items() if reason.endswith(end)), None)
    return in_words(error) if advice is None else f"{in_words(error)}; {advice}"


def in_words(error: ssl.SSLError) -> str:
    """Return OpenSSL's reason without the places in its source."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"certificate verify failed: {error.verify_message}"
    reason = getattr(error, "reason", None) or str(error)
    return str(reason).replace("_", " ").lower()
