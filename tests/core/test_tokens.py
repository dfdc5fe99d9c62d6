"""Tokens as passcodes: whose they are, and every way in which one is not to be trusted."""

import json
import math
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from orthia.broker.core.errors import AuthenticationFailed
from orthia.broker.core.identity import Principal
from orthia.broker.security.tokens import Tokens, claim, read_tokens, roles_in
from orthia.config.errors import ConfigurationError
from orthia.config.loader import load
from orthia.config.security_settings import SecuritySetting, TokenLoginModule
from tests.config.test_user_files import BROKER
from tests.core.support import SETTINGS
from tests.core.test_server import read_to_the_end, serving
from tests.hostile.test_logins import answer_to, log_in

RSA = rsa.generate_private_key(public_exponent=65_537, key_size=2_048)
OTHER = rsa.generate_private_key(public_exponent=65_537, key_size=2_048)
CURVE = ec.generate_private_key(ec.SECP256R1())
EDWARDS = ed25519.Ed25519PrivateKey.generate()
STAFF = frozenset({"staff"})


def jwk(key: Any, **more: str) -> dict[str, Any]:
    """Return a public key as a JWKS has it."""
    algorithms: dict[type, Any] = {
        rsa.RSAPublicKey: jwt.algorithms.RSAAlgorithm,
        ec.EllipticCurvePublicKey: jwt.algorithms.ECAlgorithm,
        ed25519.Ed25519PublicKey: jwt.algorithms.OKPAlgorithm,
    }
    public = key.public_key()
    kind = next(one for base, one in algorithms.items() if isinstance(public, base))
    return {**json.loads(kind.to_jwk(public)), **more}


def pem(key: Any) -> str:
    """Return a public key as PEM."""
    return str(
        key.public_key()
        .public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
        .decode()
    )


A_DAY = 24 * 60 * 60


def claims(**changed: Any) -> dict[str, Any]:
    """Return what a token has that is taken; None leaves a claim out."""
    given = {
        "iss": "https://idp.example",
        "aud": ["orthia", "others"],
        "sub": "ada",
        "exp": time.time() + A_DAY,
        "roles": ["staff"],
        **changed,
    }
    return {name: value for name, value in given.items() if value is not None}


def token(key: Any = RSA, algorithm: str = "RS256", kid: str | None = None, **changed: Any) -> str:
    """Return a signed token."""
    return jwt.encode(claims(**changed), key, algorithm, headers={"kid": kid} if kid else None)


@pytest.fixture
def module(tmp_path: Path) -> TokenLoginModule:
    """What tokens have to be; its keys are those of three kinds."""
    path = tmp_path / "jwks.json"
    keys = [
        jwk(RSA, kid="one", use="sig", alg="RS256"),
        jwk(CURVE, kid="two"),
        jwk(EDWARDS, kid="three"),
        jwk(OTHER, kid="encryption", use="enc"),
    ]
    path.write_text(json.dumps({"keys": keys}))
    return TokenLoginModule(key=path, issuer="https://idp.example", audience="orthia")


def who(tokens: Tokens, passcode: str, login: str = "") -> Principal:
    """Return whose a token is."""
    assert tokens.takes(passcode)
    found = tokens.check(login, passcode)
    found.run()
    return found.principal()


def test_a_token_says_who_a_client_is(module: TokenLoginModule) -> None:
    """With its roles, and until when; by each kind of key, with the login or without."""
    tokens = replace(read_tokens(module), clock=lambda: 100.0, time_seconds=lambda: 1_000.0)
    for one in (
        token(kid="one"),
        token(),
        token(CURVE, "ES256", "two"),
        token(EDWARDS, "EdDSA", "three"),
    ):
        ada = who(tokens, one)
        assert (ada.name, ada.roles) == ("ada", STAFF)
        assert who(tokens, one, "ada").name == "ada"
    end = time.time() + 600
    assert who(tokens, token(exp=end)).valid_until == pytest.approx(100 + end + 30 - 1_000, abs=2)


def test_keys_may_be_pem(module: TokenLoginModule) -> None:
    """One after the other in a file."""
    module.key.write_text(pem(OTHER) + pem(RSA) + pem(CURVE))
    tokens = read_tokens(module)
    for one in (token(), token(OTHER, "PS512"), token(CURVE, "ES256", "named all the same")):
        if "named" in str(jwt.get_unverified_header(one).get("kid")):
            assert who(tokens, one).name == "ada"
        else:
            assert who(tokens, one).name == "ada"


@pytest.mark.parametrize(
    ("given", "login"),
    [
        ({"exp": time.time() - 60}, ""),
        ({"exp": None}, ""),
        ({"exp": math.inf}, ""),
        ({"exp": 10**400}, ""),
        ({"exp": "9" * 400}, ""),
        ({"nbf": time.time() + A_DAY}, ""),
        ({"iss": "https://evil.example"}, ""),
        ({"iss": None}, ""),
        ({"aud": "others"}, ""),
        ({"aud": None}, ""),
        ({"sub": None}, ""),
        ({"sub": ""}, ""),
        ({"sub": "ada\ud83d"}, ""),
        ({}, "bob"),
        ({"key": OTHER}, ""),
        ({"key": OTHER, "kid": "one"}, ""),
        ({"key": OTHER, "kid": "encryption"}, ""),
        ({"kid": "unknown"}, ""),
        ({"algorithm": "RS512", "kid": "one"}, ""),
        ({"key": "x" * 64, "algorithm": "HS256"}, ""),
        ({"key": None, "algorithm": "none"}, ""),
    ],
)
def test_what_is_not_to_be_trusted_is_a_wrong_passcode(
    module: TokenLoginModule, given: Mapping[str, Any], login: str
) -> None:
    """Expired, of others, for others, unsigned, or signed by whoever had the public key."""
    with pytest.raises(AuthenticationFailed, match=r"^login or passcode is wrong$"):
        who(read_tokens(module), token(**given), login)


@pytest.mark.parametrize("passcode", ["eyJ..", "eyJhbGciOiJSUzI1NiJ9.e30.AA", "eyJ.x.y"])
def test_what_only_looks_like_a_token_is_refused(module: TokenLoginModule, passcode: str) -> None:
    """Whatever is in its parts."""
    with pytest.raises(AuthenticationFailed):
        who(read_tokens(module), passcode)


def test_a_public_key_is_no_shared_secret(module: TokenLoginModule) -> None:
    """The oldest trick: a token with HMAC, keyed by the text of the public key."""
    module.key.write_text(pem(RSA))
    header = jwt.utils.base64url_encode(b'{"alg":"HS256","typ":"JWT"}')
    body = jwt.utils.base64url_encode(json.dumps(claims()).encode())
    algorithm = jwt.algorithms.HMACAlgorithm(jwt.algorithms.HMACAlgorithm.SHA256)
    signature = algorithm.sign(header + b"." + body, pem(RSA).encode())
    forged = b".".join((header, body, jwt.utils.base64url_encode(signature))).decode()
    with pytest.raises(AuthenticationFailed):
        who(read_tokens(module), forged)


def test_roles_are_found_where_providers_have_them() -> None:
    """In a list, in a text, or inside other claims."""
    given = {"realm_access": {"roles": ["a", 1, ""]}, "scope": "x y", "with.dot": "z"}
    assert roles_in(claim(given, "realm_access.roles")) == {"a"}
    assert roles_in(claim(given, "scope")) == {"x", "y"}
    assert roles_in(claim(given, "with.dot")) == {"z"}
    assert roles_in(claim(given, "scope.none")) == frozenset()
    assert roles_in(claim(given, "realm_access")) == frozenset()
    assert roles_in(["a", "\ud83d"]) == {"a"}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "has no keys that can be read"),
        ("{}", "it is not a JWKS"),
        ('{"keys": [{"kty": "oct", "k": "c2VjcmV0"}]}', "a shared secret is not taken"),
        ('{"keys": []}', "has no public key"),
        ("-----BEGIN NONSENSE-----", "has no keys that can be read"),
        (100_000 * "[", "has no keys that can be read: .*decoding a JSON array"),
        (
            '{"keys": [{"kty": "RSA", "alg": "none"}]}',
            "a key says that none is its algorithm, which signs nothing",
        ),
    ],
    ids=["nothing", "no-jwks", "shared", "no-key", "no-pem", "deep", "unsigned"],
)
def test_a_file_without_keys_is_told(module: TokenLoginModule, text: str, told: str) -> None:
    """Before a node asks for the lock."""
    module.key.write_text(text)
    with pytest.raises(ConfigurationError, match=told):
        read_tokens(module)
    module.key.unlink()
    with pytest.raises(ConfigurationError, match="cannot be read: No such file"):
        read_tokens(module)


def test_a_private_key_is_refused(module: TokenLoginModule) -> None:
    """It would let the node make tokens, and whoever reads the file."""
    private = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(RSA))
    module.key.write_text(json.dumps({"keys": [private]}))
    with pytest.raises(ConfigurationError, match="a private key, which belongs to the issuer"):
        read_tokens(module)


def test_a_broker_xml_says_what_tokens_have_to_be(tmp_path: Path) -> None:
    """The file of keys is beside it."""
    file = tmp_path / "broker.xml"
    file.write_text(
        BROKER.format(
            inner='<login-modules xmlns="urn:orthia"><token-login-module key="k.pem" issuer="i"'
            ' audience="a" roles-claim="realm_access.roles"/></login-modules>'
        )
    )
    assert load(file).token_login_module == TokenLoginModule(
        key=tmp_path / "k.pem", issuer="i", audience="a", roles_claim="realm_access.roles"
    )


def test_a_connection_ends_with_its_token(module: TokenLoginModule) -> None:
    """On real sockets: the client logs in, works, and is told when its time is over."""
    granted = dict.fromkeys(("send", "createAddress", "createDurableQueue"), STAFF)
    secured = replace(
        SETTINGS, security_enabled=True, security_settings=(SecuritySetting("#", granted),)
    )
    tokens = read_tokens(module)
    with serving(secured) as server:
        server.call(lambda: server.broker.security.users.take_tokens(tokens))
        with log_in(server, "", token(), "127.0.0.2") as client:
            client.sendall(b"SEND\ndestination:/queue/a\nreceipt:1\n\nx\0")
            client.sendall(b"DISCONNECT\nreceipt:bye\n\n\0")
            assert b"receipt-id:bye" in read_to_the_end(client)
        assert b"wrong" in answer_to(server, "bob", token(), "127.0.0.2")
        # What is left of the leeway, whatever the machine makes of it.
        with log_in(server, "", token(exp=time.time() - 28), "127.0.0.2") as client:
            data = read_to_the_end(client)
        assert b"the token of this login has ended" in data or b"wrong" in data
        server.call(
            lambda: server.broker.security.users.take_tokens(
                replace(tokens, time_seconds=lambda: 2e9 + 9e9)
            )
        )
        with log_in(server, "ada", token(), "127.0.0.2") as client:
            assert b"the token of this login has ended" in read_to_the_end(client)
        server.call(lambda: server.broker.security.users.take_tokens())
        assert b"login or passcode is wrong" in answer_to(server, "", token(), "127.0.0.3")
