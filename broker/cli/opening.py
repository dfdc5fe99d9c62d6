"""Opens a store for a command that only reads it."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from orthia.broker.node.exit_codes import Unavailable
from orthia.config.lockers import lock_database, lock_directory
from orthia.config.settings import Settings
from orthia.config.store_settings import DatabaseStoreSettings, FileStoreSettings

if TYPE_CHECKING:
    # Loaded where a store is opened: --help opens none.
    from orthia.database import Database
    from orthia.nodemanager.locks.status import PairLocks


def check_stored(settings: Settings) -> None:
    """Raise Unavailable if the node of ``settings`` stores nothing."""
    if not settings.persistence_enabled:
        raise Unavailable(f"{settings.source} has persistence-enabled false: nothing is stored")


def check_started(store: FileStoreSettings) -> None:
    """Raise Unavailable if no node has made the directory of ``store``."""
    if not store.journal_directory.is_dir():
        raise Unavailable(f"there is no directory {store.journal_directory}; start a node first")


@contextmanager
def opened_locks(
    store: DatabaseStoreSettings | FileStoreSettings, name: str
) -> "Iterator[PairLocks]":
    """Give the locks of the nodes on ``store``, wherever they are, asked as ``name``.

    Raises Unavailable, StoreError.
    """
    from orthia.nodemanager.locks.status import DatabaseLocks, DirectoryLocks

    in_database = lock_database(store)
    if in_database is not None:
        with opened(in_database) as database, DatabaseLocks(database, in_database, name) as locks:
            yield locks
        return
    if not isinstance(store, FileStoreSettings):
        raise TypeError(f"{store} has its locks nowhere")
    with DirectoryLocks(lock_directory(store), name) as locks:
        yield locks


@contextmanager
def opened(settings: DatabaseStoreSettings, *, needs_schema: bool = True) -> "Iterator[Database]":
    """Give the database, which is disposed of with the block.

    Raises Unavailable when there is no schema in it, or not even a file; StoreError when it cannot
    be asked.
    """
    from orthia import migrations
    from orthia.database import Database, PermanentStoreError, StoreError

    url = settings.jdbc_connection_url
    if needs_schema and url.sqlite_path is not None and not url.sqlite_path.exists():
        raise Unavailable(
            f"there is no database {url.sqlite_path}; start a node, or create it with"
            " `orthia db upgrade`"
        )
    database = Database.from_settings(settings)
    try:
        if needs_schema and migrations.check(database, settings) is None:
            raise Unavailable(
                f"{url} has no tables of Orthia; start a node, or create them with"
                " `orthia db upgrade`"
            )
        yield database
    except PermanentStoreError as error:
        # A missing table or row causes various errors; this one names it.
        lost: list[str] = []
        with suppress(StoreError):
            lost = migrations.damage(database, settings)
        if lost:
            raise migrations.StoreDamaged(url.display, lost) from error
        raise
    finally:
        database.dispose()
