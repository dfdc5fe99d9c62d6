"""What a test sees of the live node's lease, past the node."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime

from orthia.config.store_settings import DatabaseStoreSettings
from orthia.database import Database
from orthia.nodemanager.locks.sql_store import SqlNodeManagerStore
from tests.support.waiting import wait_until


@contextmanager
def looking(settings: DatabaseStoreSettings) -> Iterator[Callable[[], datetime | None]]:
    """Give what tells when the live lease ends, which each renewal puts off."""
    database = Database.from_settings(settings)
    store = SqlNodeManagerStore(database, settings, database.engine)
    try:
        yield lambda: store.status().live.expiration_time
    finally:
        database.dispose()


def wait_renewals(settings: DatabaseStoreSettings, count: int) -> None:
    """Wait until the live lease was renewed so often."""
    with looking(settings) as expires:
        expiries = {expires()}

        def are_made() -> bool:
            expiries.add(expires())
            return len(expiries) > count

        wait_until(are_made, what=lambda: f"{len(expiries) - 1} of {count} renewals")
