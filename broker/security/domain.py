"""Logins by a domain of Artemis' ``login.config``: users, certificates and guests together.

This module asks each login module; ``orthia.config.login_domains`` combines their answers. On the
loop's thread.
"""

from orthia.broker.core.errors import AuthenticationFailed, CertificateUnknown
from orthia.broker.core.identity import Principal, Verification
from orthia.broker.security.certificates import CertificateDirectory
from orthia.broker.security.users import WRONG, UserDirectory
from orthia.config.login_domains import Answer, LoginDomain, LoginModule, who_lets_in

_OTHERS = frozenset({LoginModule.PROPERTIES, LoginModule.GUEST})


class DomainLogins:
    """Authenticates clients by the login modules of a domain."""

    def __init__(
        self, domain: LoginDomain, users: UserDirectory, certificates: CertificateDirectory
    ) -> None:
        self._domain = domain
        self._users = users
        self._certificates = certificates

    def authenticate(self, login: str | None, passcode: str | None) -> Principal | Verification:
        """Return who this is, or the check to run to know; raises AuthenticationFailed.

        The answer for an unknown name takes as long as that for a wrong passcode.
        """
        if not login or not self._depends_on_users(passcode):
            return self.decide(None, None, passcode)
        try:
            found = self._users.authenticate(login, passcode or "")
        except AuthenticationFailed:
            return self.decide(None, login, passcode)
        if isinstance(found, Principal):
            return self.decide(found, login, passcode)
        return _Check(self, found, login, passcode)

    def authenticate_certificate(
        self, certificate: bytes, login: str | None, passcode: str | None
    ) -> Principal | None:
        """Return the user of a certificate; None where login and passcode decide.

        Raises CertificateUnknown where only a certificate could authenticate the client.
        """
        if self._domain.certificates_decide:
            return self._certificates.principal(certificate)
        modules = [one for one, _ in self._domain.modules]
        if LoginModule.CERTIFICATE not in modules:
            return None
        before = modules[: modules.index(LoginModule.CERTIFICATE)]
        if login and LoginModule.PROPERTIES in before:
            return None
        try:
            found = self._certificates.principal(certificate)
        except CertificateUnknown:
            if _OTHERS.isdisjoint(modules):
                raise
            return None
        answers = {
            LoginModule.CERTIFICATE: Answer.SUCCEEDED,
            LoginModule.GUEST: self._guest_answer(passcode),
        }
        accepted_by = who_lets_in(self._domain.modules, answers)
        return (
            self._principal(accepted_by, found) if LoginModule.CERTIFICATE in accepted_by else None
        )

    def decide(self, user: Principal | None, login: str | None, passcode: str | None) -> Principal:
        """Return who a client is; ``user`` is whose login and passcode it gave, if anybody's.

        Raises AuthenticationFailed.
        """
        accepted_by = who_lets_in(self._domain.modules, self._answers(user is not None, passcode))
        if not accepted_by:
            raise AuthenticationFailed(WRONG)
        is_other = user is None and login is not None and self._users.knows(login)
        return self._principal(accepted_by, user, login if is_other else None)

    def _depends_on_users(self, passcode: str | None) -> bool:
        with_user, without = (
            who_lets_in(self._domain.modules, self._answers(is_user, passcode))
            for is_user in (True, False)
        )
        return with_user != without

    def _answers(self, is_user: bool, passcode: str | None) -> dict[LoginModule, Answer]:  # noqa: FBT001 - one module's answer
        return {
            LoginModule.PROPERTIES: Answer.SUCCEEDED if is_user else Answer.FAILED,
            LoginModule.GUEST: self._guest_answer(passcode),
        }

    def _guest_answer(self, passcode: str | None) -> Answer:
        invalid = self._domain.guest.credentials_invalidate and passcode is not None
        return Answer.IGNORED if invalid else Answer.SUCCEEDED

    def _principal(
        self,
        accepted_by: tuple[LoginModule, ...],
        known: Principal | None,
        refused_login: str | None = None,
    ) -> Principal:
        """Return a principal with the name of the first module and the roles of all."""
        guest = self._domain.guest
        names: list[str] = []
        roles: set[str] = set()
        for module in accepted_by:
            if module is LoginModule.GUEST:
                names.append(guest.user)
                roles.add(guest.role)
            elif known is not None:
                names.append(known.name)
                roles |= known.roles
        return Principal(names[0], frozenset(roles), refused_login=refused_login)


class _Check(Verification):
    """Checks a passcode against a stored hash, then asks the domain."""

    def __init__(
        self, logins: DomainLogins, check: Verification, login: str, passcode: str | None
    ) -> None:
        self._logins = logins
        self._check = check
        self._login = login
        self._passcode = passcode

    def run(self) -> None:
        self._check.run()

    def principal(self) -> Principal:
        try:
            user = self._check.principal()
        except AuthenticationFailed:
            user = None
        return self._logins.decide(user, self._login, self._passcode)
