"""Passwords: kept so that they cannot be printed by accident, and masked as Artemis masks them.

``ENC(...)`` is Artemis' default two-way codec: Blowfish (ECB, PKCS#7 padding), written as the
signed hexadecimal number Java's ``BigInteger`` prints. With the built-in key, which is public, it
is obfuscation against a glance over the shoulder and no more; with a key of the operator's own
(the system property or environment variable below, the names Artemis uses) it is as secret as
that key. A password given by ``${VARIABLE}`` from a secret store needs no masking at all.
"""

import hmac
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from orthia.config.characters import outside_utf8
from orthia.config.errors import ConfigurationError

if TYPE_CHECKING:
    # Loaded where something is masked.
    from cryptography.hazmat.primitives.ciphers import Cipher, modes

KEY_PROPERTY: Final = "artemis.default.sensitive.string.codec.key"
KEY_VARIABLE: Final = "ARTEMIS_DEFAULT_SENSITIVE_STRING_CODEC_KEY"

HIDDEN: Final = "****"

EMPTY: Final = (
    "the password is empty; expected one, and where it is given as ${NAME}, NAME set to it (for a"
    " database that asks for no password, leave it out altogether)"
)

_DEFAULT_KEY: Final = "clusterpassword"
"""Artemis' built-in key: published with its source, so no secret."""

_BLOCK_BYTES: Final = 8
_KEY_BYTES: Final = range(4, 57)
_PREFIX: Final = "ENC("


_SECRET_NAME: Final = re.compile(
    r"pass(code|word|phrase|wd)?$|pwd$|secret|token|credential"
    r"|(api|access|account|auth|encryption|private|shared|signing)[._-]?key$|^auth(entication)?$",
    re.IGNORECASE,
)


def is_secret(name: str) -> bool:
    """Return whether what is given under this name is not to be shown."""
    return _SECRET_NAME.search(name) is not None


_OF_USER: Final = re.compile(r"(?<=://)([^/?#\s:]*):[^/?#\s]*(?=@)")
"""User and password in a URL, before its host."""
_PARAMETER: Final = re.compile(r"(?P<name>[\w.-]+)=(?P<value>[^&;,\s]+)")


def without_passwords(text: str) -> str:
    """Return a text without the passwords of URLs in it, of their users and parameters."""

    def hidden(found: re.Match[str]) -> str:
        name = found["name"]
        return f"{name}={HIDDEN}" if is_secret(name) else found[0]

    return _PARAMETER.sub(hidden, _OF_USER.sub(rf"\1:{HIDDEN}", text))


class Secret:
    """A password. ``str``, ``repr`` and formatting show ``****``; ``reveal`` returns it."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        """Return the password itself; for the moment of use only."""
        return self._value

    def matches(self, candidate: str) -> bool:
        """Tell whether ``candidate`` is this password, in a time that does not depend on it."""
        return hmac.compare_digest(self._value.encode(), candidate.encode())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and self.matches(other._value)

    def __hash__(self) -> int:
        return hash((Secret, self._value))

    def __str__(self) -> str:
        return HIDDEN

    def __repr__(self) -> str:
        return f"Secret({HIDDEN})"


def codec_key(properties: Mapping[str, str], environment: Mapping[str, str]) -> str | None:
    """Return the operator's own codec key: the system property, else the environment variable."""
    return properties.get(KEY_PROPERTY) or environment.get(KEY_VARIABLE) or None


def is_masked(text: str) -> bool:
    """Tell whether ``text`` is written as ``ENC(...)``."""
    return text.startswith(_PREFIX) and text.endswith(")")


def mask(password: str, key: str | None = None) -> str:
    """Return ``ENC(...)`` for ``password``, readable by ``unmask`` and by Artemis.

    ``key`` is the operator's own codec key; None takes the built-in one.
    """
    from cryptography.hazmat.primitives.padding import PKCS7

    padder = PKCS7(_BLOCK_BYTES * 8).padder()
    padded = padder.update(password.encode()) + padder.finalize()
    encryptor = _cipher(key).encryptor()
    encrypted = encryptor.update(padded) + encryptor.finalize()
    return f"{_PREFIX}{int.from_bytes(encrypted, 'big', signed=True):x})"


def unmask(text: str, key: str | None = None) -> Secret:
    """Return the password in ``text``: unmasked if it is ``ENC(...)``, else as it stands.

    Raises ConfigurationError, without the text, if it is masked with another codec or key, or has a
    byte that is no UTF-8.
    """
    unfit = outside_utf8(text)
    if unfit is not None:
        raise ConfigurationError(f"the password has {unfit}")
    if not is_masked(text):
        return Secret(text)
    from cryptography.hazmat.primitives.padding import PKCS7

    try:
        encrypted = _signed_bytes(int(text[len(_PREFIX) : -1], 16))
        decryptor = _cipher(key).decryptor()
        padded = decryptor.update(encrypted) + decryptor.finalize()
        unpadder = PKCS7(_BLOCK_BYTES * 8).unpadder()
        return Secret((unpadder.update(padded) + unpadder.finalize()).decode())
    except ValueError:
        # "from None": the causes quote the text they could not read.
        raise ConfigurationError(
            "ENC(...) cannot be unmasked with this key; expected the output of Artemis' default"
            f" two-way codec, with a key of your own in {KEY_VARIABLE} if it was masked with one"
        ) from None


def read_secret(text: str, key: str | None = None) -> Secret:
    """Return the password in ``text``, as ``unmask``; raises ConfigurationError if it is empty.

    Nobody means an empty password: it comes from a variable that is set to nothing, and a login
    with it would be one without a password.
    """
    secret = unmask(text, key)
    if not secret.reveal().strip():
        raise ConfigurationError(EMPTY)
    return secret


def _cipher(key: str | None) -> "Cipher[modes.ECB]":
    from cryptography.hazmat.decrepit.ciphers.algorithms import Blowfish
    from cryptography.hazmat.primitives.ciphers import Cipher, modes

    key_bytes = (key or _DEFAULT_KEY).encode()
    if len(key_bytes) not in _KEY_BYTES:
        raise ConfigurationError(
            f"the codec key in {KEY_VARIABLE} is {len(key_bytes)} bytes long;"
            f" expected {_KEY_BYTES.start} to {_KEY_BYTES.stop - 1}"
        )
    # ECB is what Artemis writes; the module's docstring says what this is worth.
    return Cipher(Blowfish(key_bytes), modes.ECB())  # noqa: S305


def _signed_bytes(number: int) -> bytes:
    """Return the whole cipher blocks whose signed value ``number`` is (Java drops sign bytes)."""
    magnitude_bits = (number if number >= 0 else ~number).bit_length() + 1
    blocks = max(1, -(-magnitude_bits // (_BLOCK_BYTES * 8)))
    return number.to_bytes(blocks * _BLOCK_BYTES, "big", signed=True)
