"""The timers that nodes are measured with."""

from typing import Final

from orthia.config.store_settings import DatabaseStoreSettings

TIMERS: Final = {
    "default": (
        DatabaseStoreSettings.jdbc_lock_renew_period,
        DatabaseStoreSettings.jdbc_lock_expiration,
    ),
    "500/3000": (500, 3_000),
}
"""Renew period and expiration, milliseconds; first what every installation begins with."""


def timer_options(name: str) -> dict[str, int]:
    """Return the options of a node with the timers called ``name``."""
    renew, expiration = TIMERS[name]
    return {
        "jdbc_lock_renew_period": renew,
        "jdbc_lock_expiration": expiration,
        "jdbc_network_timeout": DatabaseStoreSettings.jdbc_network_timeout,
    }
