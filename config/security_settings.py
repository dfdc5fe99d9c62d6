"""Who may connect, do what, and have how much: the settings of users and their permissions.

Names, units and defaults are as ``orthia.config.settings`` says.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from orthia.config.passwords import HashedPassword
from orthia.config.secrets import Secret


@dataclass(frozen=True)
class SecuritySetting:
    """One ``security-setting``: which roles hold which permission on the matching addresses."""

    match: str
    permissions: Mapping[str, frozenset[str]]
    """Artemis' permission type (``send``, ``consume``, ``createAddress`` ...) to its roles."""


@dataclass(frozen=True)
class RoleMapping:
    """A ``role-mapping``: whoever has one role has the others, too."""

    from_role: str
    to: frozenset[str]


@dataclass(frozen=True)
class User:
    """A user who may connect when security is enabled: of ``users``, or of a login module's."""

    name: str
    password: Secret | HashedPassword
    roles: frozenset[str]


@dataclass(frozen=True)
class PropertiesLoginModule:
    """``properties-login-module``: Artemis' PropertiesLoginModule, users and roles in files."""

    user: Path = Path("artemis-users.properties")
    """A path that is not absolute starts where the ``broker.xml`` is, as in Artemis."""
    role: Path = Path("artemis-roles.properties")
    reload: bool = True
    """Artemis' default is False. A user that was removed, since somebody else has its password,
    would then be let in until the node is started again."""

    @property
    def files(self) -> tuple[Path, ...]:
        """What is read."""
        return self.user, self.role


@dataclass(frozen=True)
class CertificateLoginModule(PropertiesLoginModule):
    """``certificate-login-module``: Artemis' TextFileCertificateLoginModule, in two files, too."""

    user: Path = Path("cert-users.properties")
    role: Path = Path("cert-roles.properties")


@dataclass(frozen=True, kw_only=True)
class TokenLoginModule:
    """``token-login-module``: a signed token (JWT) as passcode."""

    key: Path
    """A JWKS, or public keys as PEM. A path starts where the ``broker.xml`` is."""
    issuer: str
    audience: str
    user_claim: str = "sub"
    roles_claim: str = "roles"
    """Claims inside others are written with dots, as ``realm_access.roles``."""
    reload: bool = True

    @property
    def files(self) -> tuple[Path, ...]:
        """What is read."""
        return (self.key,)


@dataclass(frozen=True)
class ResourceLimitSetting:
    """One ``resource-limit-setting``: what one user may have."""

    match: str
    """The user's name."""
    max_sessions: int | None = None
    """Connections; a STOMP client's connection is its session. -1 for any number, None leaves it to
    max-connections-per-user."""
    max_queues: int | None = None
    """Queues it had created. -1 for any number, None leaves it to max-queues-per-user."""
