"""How the login modules of a JAAS domain decide together, as javax.security.auth.login has it.

| Flag | A module that succeeds | A module that fails |
|---|---|---|
| ``required`` | the next ones are asked | nobody is let in; the next ones are asked all the same |
| ``requisite`` | the next ones are asked | nobody is let in, at once |
| ``sufficient`` | the client is let in, at once | the next ones are asked |
| ``optional`` | the next ones are asked | the next ones are asked |

At the end a client is let in if a module succeeded and no ``required`` one failed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path


class ControlFlag(Enum):
    """What the answer of a login module counts."""

    REQUIRED = "required"
    REQUISITE = "requisite"
    SUFFICIENT = "sufficient"
    OPTIONAL = "optional"


class LoginModule(Enum):
    """Artemis' login modules that act here."""

    PROPERTIES = "PropertiesLoginModule"
    CERTIFICATE = "TextFileCertificateLoginModule"
    GUEST = "GuestLoginModule"


class Answer(Enum):
    """What a login module says of a client."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    IGNORED = "ignored"
    """It has nothing to say, so its flag does not count."""


Answers = Mapping[LoginModule, Answer]
Modules = Sequence[tuple[LoginModule, ControlFlag]]


@dataclass(frozen=True)
class GuestLoginModule:
    """Artemis' GuestLoginModule: every client is this user."""

    user: str = "guest"
    role: str = "guests"
    credentials_invalidate: bool = False
    """Whether it ignores clients that give a password."""


@dataclass(frozen=True)
class LoginDomain:
    """The domain of ``login.config`` that clients log in to."""

    file: Path
    """``login.config``; the file of users where there is none."""
    name: str
    modules: tuple[tuple[LoginModule, ControlFlag], ...] = ()
    guest: GuestLoginModule = GuestLoginModule()
    """Who guests are, where GUEST is among ``modules``."""
    certificates_decide: bool = False
    """Whether a client that shows a certificate is its user or nobody: ``certificate-domain``."""

    def has(self, module: LoginModule) -> bool:
        """Return whether a module is of the domain."""
        return any(one is module for one, _ in self.modules)


def who_lets_in(modules: Modules, answers: Answers) -> tuple[LoginModule, ...]:
    """Return the modules that succeeded, of a client that is let in; none if it is not."""
    succeeded: list[LoginModule] = []
    is_refused = False
    for module, flag in modules:
        answer = answers.get(module, Answer.FAILED)
        if answer is Answer.SUCCEEDED:
            succeeded.append(module)
            if flag is ControlFlag.SUFFICIENT and not is_refused:
                break
        elif answer is Answer.FAILED:
            if flag is ControlFlag.REQUISITE:
                return ()
            is_refused = is_refused or flag is ControlFlag.REQUIRED
    return () if is_refused else tuple(succeeded)
