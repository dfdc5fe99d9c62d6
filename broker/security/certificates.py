"""Users identified by certificates, as in Artemis' TextFileCertificateLoginModule.

The TLS handshake has verified a certificate already; this module finds its user. On the loop's
thread.
"""

import re
from collections.abc import Iterable

from cryptography import x509

from orthia.broker.core.errors import CertificateUnknown
from orthia.broker.core.identity import Principal
from orthia.broker.quoting import quoted
from orthia.config.certificate_users import CertificateUser
from orthia.config.distinguished_names import Parts, parts_of, written


class CertificateDirectory:
    """Users by the subject of their certificate."""

    def __init__(self) -> None:
        self._users: dict[str, CertificateUser] = {}
        self._by_subject: dict[Parts, CertificateUser] = {}
        self._by_pattern: list[tuple[re.Pattern[str], CertificateUser]] = []

    def replace(self, users: Iterable[CertificateUser]) -> frozenset[str]:
        """Replace all users; return the names of those that changed, or were removed.

        Of two users with one subject the first counts; a subject counts before an expression.
        """
        before = self._users
        self._users = {user.name: user for user in users}
        self._by_subject = {}
        self._by_pattern = []
        for user in self._users.values():
            if isinstance(user.subject, re.Pattern):
                self._by_pattern.append((user.subject, user))
            else:
                self._by_subject.setdefault(user.subject, user)
        return frozenset(name for name, user in before.items() if self._users.get(name) != user)

    def principal(self, certificate: bytes) -> Principal:
        """Return the user of a certificate in DER; raises CertificateUnknown."""
        try:
            subject = parts_of(x509.load_der_x509_certificate(certificate).subject)
        except ValueError as error:
            raise CertificateUnknown(f"reading the client's certificate failed: {error}") from None
        user = self._by_subject.get(subject)
        text = written(subject)
        if user is None:
            user = next((one for pattern, one in self._by_pattern if pattern.fullmatch(text)), None)
        if user is None:
            raise CertificateUnknown(
                f"the certificate of {quoted(text)} is no user's, and no login was given"
            )
        return Principal(user.name, user.roles)
