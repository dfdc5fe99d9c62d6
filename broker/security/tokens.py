"""A signed token (JWT) as passcode: its issuer states the user and the roles.

Keys are public keys from a file: a JWKS as identity providers publish it, or PEM. Signatures by a
shared secret are refused, since a node that can check them can forge them, and so are tokens
without a signature.
"""

import json
import math
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeGuard

import jwt
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed448, ed25519, rsa

from orthia.broker.core.errors import AuthenticationFailed
from orthia.broker.core.identity import Principal, Verification
from orthia.config.clock import monotonic_seconds
from orthia.config.errors import ConfigurationError
from orthia.config.security_settings import TokenLoginModule

LEEWAY_SECONDS: Final = 30
"""How far the clocks of issuer and node may be apart."""
MOST_KEYS: Final = 64
_MOST_BYTES: Final = 1_048_576
_RSA: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
_CURVES: Final = {"secp256r1": "ES256", "secp384r1": "ES384", "secp521r1": "ES512"}
_PEM: Final = b"-----BEGIN "
_HALF: Final = re.compile("[\ud800-\udfff]")
"""Half of a surrogate pair, which JSON may contain, as ``\\ud83d`` alone."""
_NO_KEYS: Final = (
    ValueError,
    TypeError,
    UnsupportedAlgorithm,
    jwt.PyJWTError,
    RecursionError,
)
"""What reading a file without usable keys raises; the last if it is nested too deep."""


@dataclass(frozen=True)
class TokenKey:
    """A public key, and the algorithms it verifies."""

    key: Any
    algorithms: tuple[str, ...]
    key_id: str | None = None


@dataclass(frozen=True)
class Tokens:
    """The rules and keys by which tokens are verified."""

    module: TokenLoginModule
    keys: tuple[TokenKey, ...]
    clock: Callable[[], float] = monotonic_seconds
    """The monotonic clock of connections."""
    time_seconds: Callable[[], float] = time.time
    """Seconds since 1970, as in tokens."""

    def takes(self, passcode: str) -> bool:
        """Return whether a passcode looks like a token: three parts, the first of them JSON."""
        return passcode.startswith("eyJ") and passcode.count(".") == 2

    def check(self, login: str, token: str) -> Verification:
        """Return the check to run to know whose a token is."""
        return _TokenCheck(self, login, token)

    def verified(self, token: str) -> Mapping[str, Any]:
        """Return the claims of a token; raises jwt.PyJWTError if it is not valid."""
        header = jwt.get_unverified_header(token)
        algorithm, key_id = header.get("alg"), header.get("kid")
        named = [one for one in self.keys if key_id is not None and one.key_id == key_id]
        error: jwt.PyJWTError = jwt.InvalidKeyError("no key of the file matches it")
        for one in named or [key for key in self.keys if key_id is None or key.key_id is None]:
            if algorithm not in one.algorithms:
                continue
            try:
                return jwt.decode(
                    token,
                    one.key,
                    algorithms=[str(algorithm)],
                    audience=self.module.audience,
                    issuer=self.module.issuer,
                    leeway=LEEWAY_SECONDS,
                    options={"require": ["exp", "iss", "aud", self.module.user_claim]},
                )
            except jwt.InvalidSignatureError as wrong:
                error = wrong
        raise error


class _TokenCheck(Verification):
    """Checks a token."""

    def __init__(self, tokens: Tokens, login: str, token: str) -> None:
        self._tokens = tokens
        self._login = login
        self._token = token
        self._claims: Mapping[str, Any] | None = None
        self._ends_seconds = 0.0

    def run(self) -> None:
        """Verify the signature and the claims."""
        try:
            claims = self._tokens.verified(self._token)
            self._ends_seconds = float(claims["exp"])
            if math.isfinite(self._ends_seconds):
                self._claims = claims
        except (
            jwt.PyJWTError,
            OverflowError,
            RecursionError,
            TypeError,
            UnsupportedAlgorithm,
            ValueError,
        ):
            pass  # the client is told as for a wrong passcode

    def principal(self) -> Principal:
        """Return the user of the token; raises AuthenticationFailed."""
        if self._claims is None:
            raise AuthenticationFailed("login or passcode is wrong")
        module = self._tokens.module
        user = claim(self._claims, module.user_claim)
        if not _is_text(user) or self._login not in {"", user}:
            raise AuthenticationFailed("login or passcode is wrong")
        seconds = self._ends_seconds + LEEWAY_SECONDS - self._tokens.time_seconds()
        return Principal(
            user,
            roles_in(claim(self._claims, module.roles_claim)),
            valid_until=self._tokens.clock() + seconds,
        )


def claim(claims: Mapping[str, Any], path: str) -> Any:
    """Return a claim; a nested one by a path with dots, as ``realm_access.roles``."""
    if path in claims:
        return claims[path]
    found: Any = claims
    for name in path.split("."):
        found = found.get(name) if isinstance(found, Mapping) else None
    return found


def roles_in(found: Any) -> frozenset[str]:
    """Return the roles in a claim: a list of texts, or one text with blanks, like ``scope``."""
    names = found.split() if isinstance(found, str) else found
    if not isinstance(names, list):
        return frozenset()
    return frozenset(name for name in names if _is_text(name))


def _is_text(found: Any) -> TypeGuard[str]:
    """Return whether it is a non-empty text without surrogates, which could not be sent."""
    return isinstance(found, str) and bool(found) and _HALF.search(found) is None


def read_tokens(module: TokenLoginModule) -> Tokens:
    """Return the rules for tokens with the keys of their file; never on the event loop.

    Raises ConfigurationError if the file cannot be read or has no usable key.
    """
    path = module.key
    try:
        with path.open("rb") as file:
            data = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be read: {error.strerror or error}") from None
    if len(data) > _MOST_BYTES:
        raise ConfigurationError(f"{path}: has more than {_MOST_BYTES} bytes")
    try:
        keys = _of_pem(data) if _PEM in data else _of_jwks(data)
    except _NO_KEYS as error:
        raise ConfigurationError(
            f"{path}: has no keys that can be read: {error}; expected a JWKS or public keys as PEM"
        ) from None
    if not keys:
        raise ConfigurationError(
            f"{path}: has no public key for signatures; expected RSA, EC or Ed25519 keys: a shared"
            " secret is not taken"
        )
    if len(keys) > MOST_KEYS:
        raise ConfigurationError(f"{path}: has {len(keys)} keys; expected {MOST_KEYS} at most")
    return Tokens(module, keys)


def _of_pem(data: bytes) -> tuple[TokenKey, ...]:
    found: list[TokenKey] = []
    for part in data.split(_PEM)[1:]:
        key = serialization.load_pem_public_key(_PEM + part)
        found.append(TokenKey(key, _algorithms(key)))
    return tuple(one for one in found if one.algorithms)


def _of_jwks(data: bytes) -> tuple[TokenKey, ...]:
    document = json.loads(data)
    if not isinstance(document, dict) or not isinstance(document.get("keys"), list):
        raise TypeError("it is not a JWKS")
    found: list[TokenKey] = []
    for one in document["keys"]:
        if not isinstance(one, dict) or one.get("use", "sig") != "sig":
            continue
        if one.get("kty") not in {"RSA", "EC", "OKP"}:
            continue  # "oct" is a shared secret
        if "d" in one:
            raise ValueError("it has a private key, which belongs to the issuer alone")
        if one.get("alg") == "none":
            raise ValueError("a key says that none is its algorithm, which signs nothing")
        key = jwt.PyJWK.from_dict(one, one.get("alg") or _any_algorithm(one)).key
        algorithms = _algorithms(key)
        if one.get("alg") is not None:
            algorithms = tuple(name for name in algorithms if name == one["alg"])
        if algorithms:
            found.append(TokenKey(key, algorithms, one.get("kid")))
    return tuple(found)


def _any_algorithm(key: Mapping[str, Any]) -> str:
    """Return an algorithm for reading a key that states none."""
    by_curve = {"P-256": "ES256", "P-384": "ES384", "P-521": "ES512"}
    by_type = {"RSA": "RS256", "OKP": "EdDSA"}
    return by_type.get(str(key["kty"])) or by_curve.get(str(key.get("crv")), "ES256")


def _algorithms(key: object) -> tuple[str, ...]:
    if isinstance(key, rsa.RSAPublicKey):
        return _RSA if key.key_size >= 2_048 else ()
    if isinstance(key, ec.EllipticCurvePublicKey):
        return (_CURVES[key.curve.name],) if key.curve.name in _CURVES else ()
    return ("EdDSA",) if isinstance(key, ed25519.Ed25519PublicKey | ed448.Ed448PublicKey) else ()
