"""Clients that log in by a domain of Artemis' login.config: users, guests and certificates."""

from dataclasses import replace
from pathlib import Path

import pytest

from orthia.broker.core.errors import AuthenticationFailed, CertificateUnknown
from orthia.broker.core.identity import Verification
from orthia.broker.security.certificates import CertificateDirectory
from orthia.broker.security.domain import DomainLogins
from orthia.broker.security.logins import FREE_FAILURES
from orthia.broker.security.permissions import Security
from orthia.broker.security.users import UserDirectory
from orthia.config.clock import monotonic_seconds
from orthia.config.login_domains import (
    ControlFlag,
    GuestLoginModule,
    LoginDomain,
    LoginModule,
)
from orthia.config.passwords import hash_password, read_stored
from orthia.config.secrets import Secret
from orthia.config.security_settings import User
from tests.core.support import SETTINGS
from tests.core.test_server import serving
from tests.hostile.test_logins import answer_to

USERS = (
    User("ada", Secret("l0vel@ce"), frozenset({"staff"})),
    User("bob", read_stored(hash_password("bu1lder")), frozenset({"staff"})),
)
P, G = LoginModule.PROPERTIES, LoginModule.GUEST
SUFFICIENT, REQUIRED, OPTIONAL = (
    ControlFlag.SUFFICIENT,
    ControlFlag.REQUIRED,
    ControlFlag.OPTIONAL,
)


def of(*modules: tuple[LoginModule, ControlFlag], invalidate: bool = False) -> LoginDomain:
    """Return a domain whose guests are nemo of the crew."""
    guest = GuestLoginModule("nemo", "crew", invalidate)
    return LoginDomain(Path("login.config"), "activemq", modules, guest)


def who(domain: LoginDomain, login: str | None, passcode: str | None) -> str:
    """Return the name and roles a client gets; nothing if it is refused."""
    users = UserDirectory((), lambda: 0.0, cache_size=2, cache_seconds=10)
    users.replace(USERS)
    logins = DomainLogins(domain, users, CertificateDirectory())
    try:
        found = logins.authenticate(login, passcode)
        if isinstance(found, Verification):
            found.run()
            found = found.principal()
    except AuthenticationFailed:
        return ""
    return " ".join([found.name, *sorted(found.roles)])


@pytest.mark.parametrize(
    ("domain", "login", "passcode", "expected"),
    [
        (of((P, REQUIRED)), "ada", "l0vel@ce", "ada staff"),
        (of((P, REQUIRED)), "bob", "bu1lder", "bob staff"),
        (of((P, REQUIRED)), "bob", "wrong", ""),
        (of((P, REQUIRED)), None, None, ""),
        (of((P, SUFFICIENT), (G, SUFFICIENT)), "bob", "bu1lder", "bob staff"),
        (of((P, SUFFICIENT), (G, SUFFICIENT)), "bob", "wrong", "nemo crew"),
        (of((P, SUFFICIENT), (G, SUFFICIENT)), "stranger", "x", "nemo crew"),
        (of((P, SUFFICIENT), (G, SUFFICIENT)), None, None, "nemo crew"),
        (of((G, SUFFICIENT), (P, SUFFICIENT)), "ada", "l0vel@ce", "nemo crew"),
        (of((G, SUFFICIENT), (P, SUFFICIENT), invalidate=True), "ada", "l0vel@ce", "ada staff"),
        (of((G, SUFFICIENT), (P, SUFFICIENT), invalidate=True), "ada", "wrong", ""),
        (of((G, SUFFICIENT), (P, SUFFICIENT), invalidate=True), "ada", None, "nemo crew"),
        (of((G, SUFFICIENT), invalidate=True), None, "", ""),
        (of((G, REQUIRED), (P, SUFFICIENT), invalidate=True), "ada", "l0vel@ce", "ada staff"),
        (of((P, OPTIONAL), (G, OPTIONAL)), "ada", "l0vel@ce", "ada crew staff"),
        (of((P, REQUIRED), (G, OPTIONAL)), "ada", "wrong", ""),
        (of((G, REQUIRED)), "ada", "wrong", "nemo crew"),
        (of(), "ada", "l0vel@ce", ""),
    ],
)
def test_modules_say_together_who_a_client_is(
    domain: LoginDomain, login: str | None, passcode: str | None, expected: str
) -> None:
    """By the flags, in order; a user's name goes before the guest's."""
    assert who(domain, login, passcode) == expected


def test_a_domain_for_certificates_without_users_lets_no_certificate_in() -> None:
    """Its client does not log in by a passcode instead, as if it had shown none."""
    domain = replace(of((P, SUFFICIENT)), certificates_decide=True)
    security = Security(replace(SETTINGS, security_enabled=True, login_domain=domain))
    with pytest.raises(CertificateUnknown):
        security.authenticate_certificate(b"", "ada", "l0vel@ce")


def test_whoever_guesses_waits_though_it_comes_in_as_a_guest() -> None:
    """A wrong passcode of a user counts as a failure; the name of a stranger does not."""
    domain = of((P, SUFFICIENT), (G, SUFFICIENT))
    with serving(replace(SETTINGS, security_enabled=True, login_domain=domain)) as server:
        server.call(lambda: server.broker.security.users.replace(USERS))

        def waits_at(source: str) -> bool:
            guard = server.server.clients.logins
            return server.call(lambda: guard.begin(source, None, monotonic_seconds())) is not None

        for _ in range(FREE_FAILURES + 1):
            answers = [
                answer_to(server, "stranger", "x", "127.0.0.2"),
                answer_to(server, "bob", "gu3ss", "127.0.0.3"),
            ]
            assert all(one.startswith(b"CONNECTED") for one in answers)
        assert not waits_at("127.0.0.2")
        assert waits_at("127.0.0.3")
