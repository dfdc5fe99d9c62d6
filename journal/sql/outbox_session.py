"""The connection by which the outbox is read."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from orthia.config.store_settings import DatabaseStoreSettings
from orthia.database import Database, translate_errors

SWEEP_SECONDS: Final = 60.0
"""How often all rows are looked at, for those that nothing else would find."""
SWEEP_SHARE: Final = 100
"""The part of the time, one in so many, that such a look may take."""


class OutboxSession:
    """The reader's connection: its cursor, for as long as the block lasts."""

    def __init__(self, database: Database, s: DatabaseStoreSettings, **settings: str) -> None:
        self._engine = database.reading_engine(
            "outbox", query_timeout_ms=s.jdbc_network_timeout, postgresql_settings=settings
        )
        self._known: object = None
        self.is_new = True
        """Whether the block's connection is another one than the last block's."""

    @contextmanager
    def cursor(self, what: str) -> Iterator[Any]:
        """Give a cursor of the driver; raises StoreError.

        After an error the next block has another connection: this one may be half prepared.
        """
        with translate_errors(what), self._engine.connect() as connection:
            driver: Any = connection.connection.driver_connection
            self.is_new = driver is not self._known
            self._known = driver
            cursor = driver.cursor()
            try:
                yield cursor
                cursor.close()
            except BaseException:
                connection.invalidate()
                raise

    def close(self) -> None:
        """Close the connection."""
        self._engine.dispose()
