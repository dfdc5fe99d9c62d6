"""Passwords that are kept as hashes: Artemis' PBKDF2, and Argon2id for new ones.

A stored password is written in one of three ways:

* as it is: whoever reads the file has it;
* ``ENC(ITERATIONS:SALT:HASH)``, PBKDF2 with HMAC-SHA1, salt and hash hexadecimal: what ``artemis
  user add`` writes, with 1,024 iterations, which a stolen file does not withstand for long;
* ``ENC($argon2id$v=19$m=KIB,t=PASSES,p=LANES$SALT$HASH)``, the usual notation of Argon2 within
  Artemis' brackets: what Orthia writes. Artemis cannot read it, and lets nobody in with it.

To check a password against a hash takes time and memory on purpose: never on the event loop.
"""

import base64
import binascii
import hashlib
import hmac
import os
import re
from abc import ABC, abstractmethod
from typing import Final

from orthia.config.errors import ConfigurationError
from orthia.config.secrets import HIDDEN, Secret, is_masked

ARGON2_MEMORY_KIB: Final = 19_456
"""With two passes what OWASP asks for at least: 20 ms, where scrypt as strong takes 150."""
ARGON2_PASSES: Final = 2
_SALT_BYTES: Final = 16
_HASH_BYTES: Final = 32
_MOST_MEMORY_KIB: Final = 1_048_576
"""What is read from a file is bounded: a slip of the hand is not to take the node's memory."""
_MOST_WORK: Final = 10_000_000
"""PBKDF2's iterations, which take five seconds."""
_MOST_PASSES: Final = 100
_PBKDF2: Final = re.compile(r"([0-9]{1,8}):((?:[0-9a-fA-F]{2}){1,128}):((?:[0-9a-fA-F]{2}){8,128})")
_ARGON2: Final = re.compile(
    r"\$argon2id\$v=19\$m=([0-9]{1,8}),t=([0-9]{1,4}),p=([0-9]{1,3})"
    r"\$([A-Za-z0-9+/]{11,128})\$([A-Za-z0-9+/]{16,128})"
)


class HashedPassword(ABC):
    """A password of which only a hash is kept; ``str`` and ``repr`` show ``****``."""

    def __init__(self, stored: str) -> None:
        self._stored = stored

    def reveal(self) -> str:
        """Return what is stored, as it is in the file."""
        return self._stored

    @property
    @abstractmethod
    def kind(self) -> str:
        """How it was made, for a person to read."""

    @abstractmethod
    def matches(self, candidate: str) -> bool:
        """Tell whether ``candidate`` is the password; takes milliseconds, and releases the GIL."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, HashedPassword) and self._stored == other._stored

    def __hash__(self) -> int:
        return hash((HashedPassword, self._stored))

    def __str__(self) -> str:
        return HIDDEN

    def __repr__(self) -> str:
        return f"{type(self).__name__}({HIDDEN})"


class Pbkdf2Password(HashedPassword):
    """``ITERATIONS:SALT:HASH``, Artemis' one-way codec."""

    def __init__(self, stored: str, iterations: int, salt: bytes, expected: bytes) -> None:
        super().__init__(stored)
        self._iterations = iterations
        self._salt = salt
        self._expected = expected

    @property
    def kind(self) -> str:
        """Artemis' one-way codec."""
        return f"PBKDF2, {self._iterations} iterations"

    def matches(self, candidate: str) -> bool:
        """Tell whether ``candidate`` is the password."""
        found = hashlib.pbkdf2_hmac(
            "sha1", candidate.encode(), self._salt, self._iterations, len(self._expected)
        )
        return hmac.compare_digest(found, self._expected)


class Argon2Password(HashedPassword):
    """``$argon2id$...``."""

    def __init__(
        self, stored: str, memory_kib: int, passes: int, lanes: int, salt: bytes, expected: bytes
    ) -> None:
        super().__init__(stored)
        self._memory_kib = memory_kib
        self._passes = passes
        self._lanes = lanes
        self._salt = salt
        self._expected = expected

    @property
    def kind(self) -> str:
        """Orthia's own."""
        return f"Argon2id, {self._memory_kib} KiB"

    def matches(self, candidate: str) -> bool:
        """Tell whether ``candidate`` is the password."""
        found = _argon2(
            candidate, self._salt, len(self._expected), self._memory_kib, self._passes, self._lanes
        )
        return hmac.compare_digest(found, self._expected)


def read_stored(text: str) -> Secret | HashedPassword:
    """Return the password that a file of users has as ``text``.

    Raises ConfigurationError, without the text, if it is empty or a hash of another kind.
    """
    if not text:
        raise ConfigurationError("the password is empty; expected one")
    if not is_masked(text):
        return Secret(text)
    inner = text.removeprefix("ENC(").removesuffix(")")
    pbkdf2, argon2 = _PBKDF2.fullmatch(inner), _ARGON2.fullmatch(inner)
    try:
        if pbkdf2 and 1 <= int(pbkdf2[1]) <= _MOST_WORK:
            salt, expected = bytes.fromhex(pbkdf2[2]), bytes.fromhex(pbkdf2[3])
            return Pbkdf2Password(text, int(pbkdf2[1]), salt, expected)
        if argon2:
            memory_kib, passes, lanes = (int(argon2[number]) for number in (1, 2, 3))
            if (
                lanes >= 1
                and 8 * lanes <= memory_kib <= _MOST_MEMORY_KIB
                and 1 <= passes <= _MOST_PASSES
            ):
                salt, expected = _decoded(argon2[4]), _decoded(argon2[5])
                return Argon2Password(text, memory_kib, passes, lanes, salt, expected)
    except binascii.Error:
        pass
    raise ConfigurationError(
        "ENC(...) is no hash that can be read here; expected what `orthia user add` or `artemis"
        " user add` writes: ENC($argon2id$...) or ENC(ITERATIONS:SALT:HASH)"
    )


def hash_password(password: str) -> str:
    """Return a new Argon2id hash of ``password``, as a file of users has it.

    Raises ConfigurationError if it is empty, or this Python's OpenSSL has no Argon2.
    """
    if not password:
        raise ConfigurationError("the password is empty; expected one")
    salt = os.urandom(_SALT_BYTES)
    found = _argon2(password, salt, _HASH_BYTES, ARGON2_MEMORY_KIB, ARGON2_PASSES, 1)
    return (
        f"ENC($argon2id$v=19$m={ARGON2_MEMORY_KIB},t={ARGON2_PASSES},p=1"
        f"${_encoded(salt)}${_encoded(found)})"
    )


def _argon2(
    password: str, salt: bytes, length: int, memory_kib: int, passes: int, lanes: int
) -> bytes:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.kdf.argon2 import Argon2id

    try:
        return Argon2id(
            salt=salt, length=length, iterations=passes, lanes=lanes, memory_cost=memory_kib
        ).derive(password.encode())
    except UnsupportedAlgorithm:
        raise ConfigurationError(
            "the OpenSSL of the installed cryptography package has no Argon2; expected OpenSSL 3.2"
            " or later, as in the package's own wheels"
        ) from None


def _encoded(data: bytes) -> str:
    return base64.b64encode(data).decode().rstrip("=")


def _decoded(text: str) -> bytes:
    return base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
