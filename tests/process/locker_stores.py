"""The ``store`` of a broker.xml for each locker, on everything it goes with."""

from html import escape
from pathlib import Path

from orthia.config.store_settings import DatabaseStoreSettings
from tests.support.servers import NODE_LEASE_MS, NODE_NETWORK_TIMEOUT_MS

HANDS_OVER = "<failover-on-shutdown>true</failover-on-shutdown>"
KEEP_ALIVE_MS = 300
POLL_MS = 100
LOCKERS = {
    "lease": "lease-database-locker",
    "database": "database-locker",
    "file": "shared-file-locker",
}


def store(
    directory: Path,
    settings: DatabaseStoreSettings,
    locker: str,
    *,
    files: bool = False,
    keep_alive_ms: int = KEEP_ALIVE_MS,
    lease_ms: int = NODE_LEASE_MS,
    network_timeout_ms: int = NODE_NETWORK_TIMEOUT_MS,
    more: str = "",
    **properties: str,
) -> str:
    """Return the ``store`` of a broker.xml: messages in the database or in files.

    ``more`` is put into a ``database-store``.
    """
    interval_ms = lease_ms if locker == "lease" else POLL_MS
    given = {
        "lockKeepAlivePeriod": str(keep_alive_ms),
        "lockAcquireSleepInterval": str(interval_ms),
        **properties,
    }
    if locker == "file":
        given["directory"] = str(directory / "locks")
    password = settings.jdbc_password.reveal() if settings.jdbc_password else ""
    if settings.jdbc_user is not None and files:
        given |= {"jdbcUser": settings.jdbc_user, "jdbcPassword": password}
    url = escape(settings.jdbc_connection_url.display)
    if files:
        given["jdbcConnectionUrl"] = url
    attributes = " ".join(f'{name}="{escape(value)}"' for name, value in given.items())
    element = f'<locker xmlns="urn:orthia"><{LOCKERS[locker]} {attributes}/></locker>'
    if files:
        return f"<store><file-store>{element}</file-store></store>"
    login = (
        ""
        if settings.jdbc_user is None
        else f"<jdbc-user>{settings.jdbc_user}</jdbc-user>"
        f"<jdbc-password>{escape(password)}</jdbc-password>"
    )
    return (
        f"<store><database-store><jdbc-connection-url>{url}</jdbc-connection-url>{login}"
        f"<jdbc-lock-expiration>{lease_ms}</jdbc-lock-expiration>"
        f"<jdbc-network-timeout>{network_timeout_ms}</jdbc-network-timeout>{more}{element}"
        "</database-store></store>"
    )
