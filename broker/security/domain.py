"""Logins by a domain of Artemis' ``login.config``: users, certificates and guests together.

What each login module says is found out here; what comes of it is ``orthia.config.login_domains``'.
On the loop's thread.
"""

from orthia.broker.core.errors import AuthenticationFailed, CertificateUnknown
from orthia.broker.core.identity import Principal, Verification
from orthia.broker.security.certificates import CertificateDirectory
from orthia.broker.security.users import WRONG, UserDirectory
from orthia.config.login_domains import Answer, LoginDomain, LoginModule, who_lets_in

_OTHERS = frozenset({LoginModule.PROPERTIES, LoginModule.GUEST})


class DomainLogins:
    """Who clients are, as the login modules of a domain say together."""

    def __init__(
        self, domain: LoginDomain, users: UserDirectory, certificates: CertificateDirectory
    ) -> None:
        self._domain = domain
        self._users = users
        self._certificates = certificates

    def authenticate(self, login: str | None, passcode: str | None) -> Principal | Verification:
        """Return who this is, or what is to be run to know; raises AuthenticationFailed.

        The answer for a name that is nobody's takes as long as that for a wrong passcode.
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
        """Return whose a certificate is; None where login and passcode decide.

        Raises CertificateUnknown where nothing but a certificate could let the client in.
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
        let_in_by = who_lets_in(self._domain.modules, answers)
        return self._principal(let_in_by, found) if LoginModule.CERTIFICATE in let_in_by else None

    def decide(self, user: Principal | None, login: str | None, passcode: str | None) -> Principal:
        """Return who a client is of which ``user`` says whose its login and passcode are.

        Raises AuthenticationFailed.
        """
        let_in_by = who_lets_in(self._domain.modules, self._answers(user is not None, passcode))
        if not let_in_by:
            raise AuthenticationFailed(WRONG)
        is_other = user is None and login is not None and self._users.knows(login)
        return self._principal(let_in_by, user, login if is_other else None)

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
        let_in_by: tuple[LoginModule, ...],
        known: Principal | None,
        refused_login: str | None = None,
    ) -> Principal:
        """Return a principal with the first module's name and the roles of all."""
        guest = self._domain.guest
        names: list[str] = []
        roles: set[str] = set()
        for module in let_in_by:
            if module is LoginModule.GUEST:
                names.append(guest.user)
                roles.add(guest.role)
            elif known is not None:
                names.append(known.name)
                roles |= known.roles
        return Principal(names[0], frozenset(roles), refused_login=refused_login)


class _Check(Verification):
    """Whether a passcode is the one whose hash is stored, and what comes of it."""

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
