"""Third-party lockers, found by their entry points in the group ``orthia.lockers``."""

from importlib.metadata import entry_points
from typing import Final

from orthia.config.errors import ConfigurationError
from orthia.nodemanager.locks.abc import LockerFactory

ENTRY_POINT_GROUP: Final = "orthia.lockers"


def installed_lockers() -> set[str]:
    """Return the names that a ``custom-locker`` may have here."""
    return {one.name for one in entry_points(group=ENTRY_POINT_GROUP)}


def third_party_locker(name: str) -> LockerFactory:
    """Return the locker of this entry point; raises ConfigurationError."""
    found = {one.name: one for one in entry_points(group=ENTRY_POINT_GROUP)}
    if name not in found:
        known = ", ".join(sorted(found)) or "none is installed"
        raise ConfigurationError(
            f"<custom-locker>: no locker {name!r} in the entry points of {ENTRY_POINT_GROUP};"
            f" expected one that is: {known}"
        )
    try:
        factory: LockerFactory = found[name].load()
    except Exception as error:
        raise ConfigurationError(
            f"<custom-locker>: the locker {name!r} ({found[name].value}) cannot be loaded:"
            f" {type(error).__name__}: {error}"
        ) from error
    return factory
