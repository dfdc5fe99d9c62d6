"""Finds settings that are valid but that a node could not use."""

from collections.abc import Iterator
from contextlib import suppress

from orthia.broker.core.routing.address_rules import unreadable_filters
from orthia.broker.tls.check import unusable_tls
from orthia.config.errors import ConfigurationError
from orthia.config.settings import Settings
from orthia.config.user_files import read_users
from orthia.config.violations import Violation


def unusable(settings: Settings) -> Iterator[Violation]:
    """Yield certificates, keys and selectors that cannot be used; blocks while files are read."""
    yield from unusable_tls(settings)
    yield from unreadable_filters(settings)


def unknown_users(settings: Settings) -> Iterator[Violation]:
    """Yield users that are named and do not exist, for which a node that runs waits.

    Nothing is said where the files of users cannot be read: that is told otherwise.
    """
    outbox, module = settings.outbox, settings.properties_login_module
    if outbox is None or outbox.user is None or not settings.security_enabled:
        return
    names = {user.name for user in settings.users}
    with suppress(ConfigurationError):
        names.update(user.name for user in (() if module is None else read_users(module)))
        if outbox.user not in names:
            yield Violation(
                "core/outbox/user",
                f"is {outbox.user!r}, and there is no user of this name: rows of the outbox"
                f" would wait; add it by `orthia user add {outbox.user} --role ROLE --config"
                f" {settings.source}`",
            )
