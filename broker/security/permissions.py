"""Who may connect, and who may do what: ``users`` and ``security-settings``."""

from collections.abc import Callable

from orthia.broker.core.api import NotAuthorized, Principal, Verification
from orthia.broker.core.destinations import REPLAYS
from orthia.broker.quoting import quoted
from orthia.broker.security.users import UserDirectory
from orthia.config.addresses import MatchIndex
from orthia.config.clock import monotonic_seconds
from orthia.config.settings import Settings


class Security:
    """Answers from the settings; decisions about addresses are remembered."""

    MAX_REMEMBERED = 10_000

    def __init__(self, settings: Settings, clock: Callable[[], float] = monotonic_seconds) -> None:
        self._enabled = settings.security_enabled
        self.users = UserDirectory(
            settings.users,
            clock,
            cache_size=settings.authentication_cache_size,
            cache_seconds=settings.security_invalidation_interval / 1000,
        )
        self._settings = MatchIndex(settings.security_settings)
        self._remembered: dict[tuple[str, str], frozenset[str]] = {}

    def authenticate(self, login: str | None, passcode: str | None) -> Principal | Verification:
        """Return who this is, or what is to be run to know; raises AuthenticationFailed."""
        if not self._enabled:
            return Principal(login or "anonymous", frozenset(), unrestricted=True)
        return self.users.authenticate(login or "", passcode or "")

    def allows(self, principal: Principal, permission: str, address: str) -> bool:
        """Return whether ``principal`` has a permission."""
        try:
            self.check(principal, permission, address)
        except NotAuthorized:
            return False
        return True

    def check(self, principal: Principal, permission: str, address: str) -> None:
        """Raise NotAuthorized unless ``principal`` has Artemis' ``permission`` on ``address``."""
        if principal.unrestricted:
            return
        key = (permission, address)
        roles = self._remembered.get(key)
        if roles is None:
            roles = self._roles(permission, address)
            if len(self._remembered) >= self.MAX_REMEMBERED:
                self._remembered.clear()
            self._remembered[key] = roles
        if not roles & principal.roles:
            permission = _needed(permission, address)
            raise NotAuthorized(
                f"user {quoted(principal.name)} has no role with permission {quoted(permission)} on"
                f" address {quoted(address)}"
            )

    def _roles(self, permission: str, address: str) -> frozenset[str]:
        for setting in self._settings.most_specific_first(address):
            return setting.permissions.get(_needed(permission, address), frozenset())
        return frozenset()


def _needed(permission: str, address: str) -> str:
    """Return the permission that is asked for: at what tools rely on, to manage the broker."""
    return "manage" if f"{address}.".startswith(f"{REPLAYS}.") else permission
