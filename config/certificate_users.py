"""Artemis' files of users known by certificates: ``cert-users`` and ``cert-roles.properties``.

The one has ``USER = SUBJECT``, as ``relay = CN=relay, OU=orders, C=DE``, or ``USER = /REGULAR
EXPRESSION/`` for the subject as Java writes it; the other ``ROLE = USER,USER``.
"""

import re
from dataclasses import dataclass
from typing import Final

from orthia.config.distinguished_names import Parts, read_name
from orthia.config.errors import ConfigurationError
from orthia.config.security_settings import PropertiesLoginModule
from orthia.config.user_files import read_properties

_MOST_SHOWN: Final = 200
"""Characters of a regular expression that is told of."""


@dataclass(frozen=True)
class CertificateUser:
    """A user, and of which subject a certificate must be to be theirs."""

    name: str
    subject: Parts | re.Pattern[str]
    roles: frozenset[str]


def read_certificate_users(module: PropertiesLoginModule) -> tuple[CertificateUser, ...]:
    """Return the users in the files of ``module``; reads them, so not on the event loop.

    Raises ConfigurationError with each problem on a line ``FILE:LINE: ...``.
    """
    users = read_properties(module.user)
    held: dict[str, set[str]] = {}
    for role, names in read_properties(module.role).values.items():
        for name in names.split(","):
            held.setdefault(name.strip(), set()).add(role)
    found: list[CertificateUser] = []
    problems: list[str] = []
    for name, text in users.values.items():
        try:
            subject = _subject(text)
        except ConfigurationError as error:
            problems.append(f"{module.user}:{users.line_of(name)}: {name}: {error}")
        else:
            found.append(CertificateUser(name, subject, frozenset(held.get(name, ()))))
    if problems:
        raise ConfigurationError("\n".join(problems))
    return tuple(found)


def _subject(text: str) -> Parts | re.Pattern[str]:
    if not (len(text) > 1 and text.startswith("/") and text.endswith("/")):
        return read_name(text)
    try:
        return re.compile(text[1:-1])
    # Python has limits of its own: to how deep, how large a number and how many digits it reads.
    except (re.error, RecursionError, OverflowError, ValueError) as error:
        shown = text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}..."
        raise ConfigurationError(f"{shown} is no regular expression: {error}") from None
