"""Authentication and permissions by ``users`` and ``security-settings``."""

import re
from collections.abc import Callable, Iterable, Sequence

from orthia.broker.core.destinations import MANAGEMENT_ADDRESS, REPLAYS
from orthia.broker.core.errors import NotAuthorized
from orthia.broker.core.identity import Principal, Verification
from orthia.broker.quoting import quoted
from orthia.broker.security.audit import Audit, Write
from orthia.broker.security.certificates import CertificateDirectory
from orthia.broker.security.domain import DomainLogins
from orthia.broker.security.users import UserDirectory
from orthia.config.addresses import MatchIndex
from orthia.config.clock import monotonic_seconds
from orthia.config.security_settings import RoleMapping, SecuritySetting
from orthia.config.settings import Settings


class Security:
    """Answers from the settings; decisions about addresses are cached."""

    MAX_REMEMBERED = 10_000

    def __init__(
        self,
        settings: Settings,
        clock: Callable[[], float] = monotonic_seconds,
        audit: Write | None = None,
    ) -> None:
        """``audit`` writes the lines of the audit log, if there is one."""
        self._enabled = settings.security_enabled
        self.users = UserDirectory(
            settings.users,
            clock,
            cache_size=settings.authentication_cache_size,
            cache_seconds=settings.security_invalidation_interval / 1000,
        )
        self.audit = Audit(audit, settings.name, self.users.knows, clock)
        self.certificates = CertificateDirectory()
        domain = settings.login_domain
        self._domain = (
            None if domain is None else DomainLogins(domain, self.users, self.certificates)
        )
        self._knows_certificates = settings.certificate_login_module is not None or (
            domain is not None and domain.certificates_decide
        )
        self._populates_user = settings.populate_validated_user
        self._is_rbac_of_messages = settings.management_message_rbac
        self._rbac_prefix = settings.management_rbac_prefix
        self._views = re.compile(settings.view_permission_method_match_pattern)
        self._wildcards = settings.wildcard_addresses
        self._remembered: dict[tuple[str, str], frozenset[str]] = {}
        self._rules = PermissionRules(settings)

    @property
    def rules(self) -> "PermissionRules":
        """The permissions; setting others takes effect at once."""
        return self._rules

    @rules.setter
    def rules(self, rules: "PermissionRules") -> None:
        self._rules = rules
        self._remembered.clear()

    def knows(self, login: str) -> bool:
        """Return whether there is a user of this name."""
        return self.users.knows(login)

    def acting_for(self, user: str | None) -> Principal | None:
        """Return who sends for a configured ``user``, with its roles; None if there is none."""
        if not self._enabled:
            return Principal(
                user or "anonymous", frozenset(), unrestricted=True, is_connection=False
            )
        roles = None if user is None else self.users.roles_of(user)
        if user is None or roles is None:
            return None
        validated = user if self._populates_user else None
        return Principal(user, roles, validated_user=validated, is_connection=False)

    def authenticate(self, login: str | None, passcode: str | None) -> Principal | Verification:
        """Return who this is, or the check to run to know; raises AuthenticationFailed."""
        if not self._enabled:
            return Principal(login or "anonymous", frozenset(), unrestricted=True)
        if self._domain is not None:
            return self._domain.authenticate(login, passcode)
        return self.users.authenticate(login or "", passcode or "")

    def authenticate_certificate(
        self, certificate: bytes, login: str | None, passcode: str | None
    ) -> Principal | None:
        """Return the user of a certificate; None where login and passcode decide.

        Raises CertificateUnknown.
        """
        if not (self._enabled and self._knows_certificates):
            return None
        if self._domain is not None:
            return self._domain.authenticate_certificate(certificate, login, passcode)
        return None if login or passcode else self.certificates.principal(certificate)

    def validated_user(self, principal: Principal) -> str | None:
        """Return a user's name, if it was verified and messages are to carry it."""
        return None if principal.unrestricted or not self._populates_user else principal.name

    def may_replay(self, principal: Principal) -> bool:
        """Return whether a user may mark messages as sent by a replay."""
        return self.allows(principal, "manage", REPLAYS)

    def allows(
        self, principal: Principal, permission: str, address: str, queue: str | None = None
    ) -> bool:
        """Return whether ``principal`` has a permission; see ``check``."""
        if principal.unrestricted:
            return True
        match = address if queue is None else self._match_of(address, queue)
        key = (permission, match)
        roles = self._remembered.get(key)
        if roles is None:
            roles = self._roles(permission, match)
            if len(self._remembered) >= self.MAX_REMEMBERED:
                self._remembered.clear()
            self._remembered[key] = roles
        return not roles.isdisjoint(principal.roles)

    def check(
        self,
        principal: Principal,
        permission: str,
        address: str,
        queue: str | None = None,
        *,
        why: str = "",
    ) -> None:
        """Raise NotAuthorized unless ``principal`` has Artemis' ``permission`` on ``address``.

        With a ``queue`` of that address, a setting for exactly ``address::queue`` decides alone.
        """
        if self.allows(principal, permission, address, queue):
            return
        match = address if queue is None else self._match_of(address, queue)
        raise self._refused(principal, permission, match, why)

    def _refused(
        self, principal: Principal, permission: str, match: str, why: str = "", **facts: str
    ) -> NotAuthorized:
        """Note a refusal, with ``facts`` for the audit log, and return it."""
        permission = _needed(permission, match)
        self.audit.refused(principal, permission, match, **facts)
        return NotAuthorized(
            f"user {quoted(principal.name)} has no role with permission {quoted(permission)} on"
            f" address {quoted(match)}{why}"
        )

    # --- checks of several permissions

    def check_new_queue(
        self,
        principal: Principal,
        address: str,
        queue: str,
        permission: str,
    ) -> None:
        """Raise NotAuthorized unless ``principal`` may create a queue of an address.

        Which ``permission`` that takes depends on whether the queue is durable.

        Queue names are unique. A queue named otherwise than its address could take the name of
        another address, which could then have no queue of its own name. So without a setting for
        exactly ``address::queue`` the permission is needed on the address of that name, too.
        """
        self.check(principal, permission, address, queue)
        is_named = self._match_of(address, queue) != address
        if queue != address and not is_named and not self.allows(principal, permission, queue):
            match = f"{address}::{queue}"
            raise self._refused(
                principal,
                permission,
                queue,
                f", whose name queue {quoted(match)} would take: grant it there, or for"
                f" {quoted(match)}, or call the queue otherwise",
            )

    def check_browse(self, principal: Principal, address: str, queue: str) -> None:
        """Raise NotAuthorized unless ``principal`` may browse a queue."""
        self.check(principal, "browse", address, queue)

    def check_temporary_queue(self, principal: Principal, address: str) -> None:
        """Raise NotAuthorized unless ``principal`` may create a temporary address with a queue.

        Both are deleted with its connection, which needs no permission, as in Artemis.
        """
        self.check(principal, "createAddress", address)
        self.check(principal, "createNonDurableQueue", address, address)

    def check_management(
        self,
        principal: Principal,
        resource: str,
        operation: str,
        arguments: Sequence[object] = (),
    ) -> None:
        """Raise NotAuthorized unless ``principal`` may request a management operation.

        ``resource`` is ``broker``, ``queue.NAME`` or ``address.NAME``, as in the request. With
        ``management-message-rbac`` the operation itself must be allowed, too. An allowed one is
        written to the audit log with its ``arguments``.
        """
        self.check_manage(principal, resource, operation)
        if self._is_rbac_of_messages:
            self.check_operation(principal, resource, operation)
        self.audit.managed(principal, resource, operation, arguments)

    def check_manage(self, principal: Principal, resource: str, operation: str) -> None:
        """Raise NotAuthorized unless ``principal`` may request operations at all.

        ``resource`` and ``operation`` are what is asked for, which the audit log names.
        """
        if not self.allows(principal, "manage", MANAGEMENT_ADDRESS):
            raise self._refused(
                principal, "manage", MANAGEMENT_ADDRESS, resource=resource, operation=operation
            )

    def check_operation(self, principal: Principal, resource: str, operation: str) -> None:
        """Raise NotAuthorized unless ``principal`` may do an operation, however it is requested.

        Operations that change nothing need ``view``, the others ``edit``, on the address
        ``mops.RESOURCE.OPERATION``.
        """
        address = f"{self._rbac_prefix}.{resource}.{operation}"
        if self._views.match(operation):
            self.check(principal, "view", address)
        else:
            self.check(principal, "edit", address)

    def check_pattern(self, principal: Principal, permission: str, pattern: str) -> None:
        """Raise NotAuthorized unless a user has a permission on all addresses of ``pattern``.

        Artemis checks the name of the pattern alone, so that a user receives messages of addresses
        that are forbidden to it by name.
        """
        if principal.unrestricted:
            return
        for setting in self._rules.by_specificity:
            if not self._wildcards.overlaps(setting.match, pattern):
                continue
            if not self._rules.granted(setting, permission) & principal.roles:
                self.audit.refused(principal, permission, pattern)
                raise NotAuthorized(
                    f"user {quoted(principal.name)} has no role with permission"
                    f" {quoted(permission)} on addresses that match {quoted(setting.match)}, of"
                    f" which {quoted(pattern)} stands for some"
                )
            if self._wildcards.covers(setting.match, pattern):
                return
        self.audit.refused(principal, permission, pattern)
        raise NotAuthorized(
            f"user {quoted(principal.name)} has no role with permission {quoted(permission)} on"
            f" every address that {quoted(pattern)} stands for: no security-setting is for all"
        )

    def _match_of(self, address: str, queue: str) -> str:
        match = f"{address}::{queue}"
        return match if match in self._rules.fully_qualified else address

    def _roles(self, permission: str, match: str) -> frozenset[str]:
        for setting in self._rules.most_specific_first(match):
            return self._rules.granted(setting, _needed(permission, match))
        return frozenset()


class PermissionRules:
    """``security-settings`` and ``role-mapping``, indexed; may be made on any thread."""

    def __init__(self, settings: Settings) -> None:
        self._said = settings.security_settings, settings.role_mappings
        wildcards = settings.wildcard_addresses
        self._index = MatchIndex(settings.security_settings, wildcards)
        self.fully_qualified = {
            one.match for one in settings.security_settings if "::" in one.match
        }
        """The matches for one queue of an address."""
        self.by_specificity = sorted(
            (one for one in settings.security_settings if one.match not in self.fully_qualified),
            key=lambda one: wildcards.specificity(one.match),
        )
        """The settings for addresses, the most specific first."""
        self._mapped_to = _mapped_to(settings.role_mappings)

    def says_the_same(self, other: "PermissionRules") -> bool:
        """Return whether both were made of the same settings."""
        return self._said == other._said  # noqa: SLF001 - of the same class

    def most_specific_first(self, match: str) -> list[SecuritySetting]:
        """Return the settings for an address, or for a queue of one."""
        return self._index.most_specific_first(match)

    def granted(self, setting: SecuritySetting, permission: str) -> frozenset[str]:
        """Return the roles that have a permission by a setting, also by ``role-mapping``."""
        roles = setting.permissions.get(permission, frozenset())
        return roles.union(*(self._mapped_to.get(role, frozenset()) for role in roles))


def _needed(permission: str, address: str) -> str:
    """Return the permission to check: on addresses that the tools rely on, ``manage``."""
    return "manage" if f"{address}.".startswith(f"{REPLAYS}.") else permission


def _mapped_to(mappings: Iterable[RoleMapping]) -> dict[str, frozenset[str]]:
    """Return for each role the roles that are mapped to it."""
    found: dict[str, frozenset[str]] = {}
    for mapping in mappings:
        for role in mapping.to:
            found[role] = found.get(role, frozenset()) | {mapping.from_role}
    return found
