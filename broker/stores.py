"""Where a node keeps its messages and its locks: a database, a directory, or nothing.

Node manager and journal do not know each other; what they have to know of each other passes here.
"""

import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import migrations
from config.errors import OrthiaError
from config.settings import DatabaseStoreSettings, FileStoreSettings, Role, Settings
from database import Database, StoreUnavailable
from journal.api import MessageJournal
from journal.errors import JournalError
from journal.file import open_file_journal
from journal.file.disk import make_directory
from journal.file.inspect import read_fence
from journal.journal import Journal
from journal.memory import MemoryJournal
from nodemanager import Interrupted, JdbcNodeManager
from nodemanager.failover_log import log_file_name
from nodemanager.file_lock_manager import FileLockNodeManager
from nodemanager.in_vm_manager import InVmNodeManager
from nodemanager.protocol import NodeManager

LOGGER = logging.getLogger("orthia.broker")
_RETRY_SECONDS = 1.0
_FILE_FAILBACK_SECONDS = 0.5

Post = Callable[[Callable[[], None]], None]


class NodeStore(Protocol):
    """A store, as the life of a node uses it; every call blocks."""

    failback_poll_seconds: float
    """How often a live backup looks whether it is to hand back."""

    def prepare(self, stopped: threading.Event) -> None:
        """Make it usable; raises Interrupted once ``stopped`` is set, OrthiaError."""

    def node_manager(self) -> NodeManager:
        """Return a node manager on it, not started yet."""

    def open_journal(
        self, manager: NodeManager, post: Post, on_failure: Callable[[OrthiaError], None]
    ) -> MessageJournal:
        """Open the journal under the manager's token."""

    def close(self) -> None:
        """Close what was opened."""


def node_store(settings: Settings) -> NodeStore:
    """Return the store that ``settings`` ask for."""
    directory = settings.failover_log_directory
    log_path = directory / log_file_name(settings.name) if directory else None
    role = settings.ha_policy.role
    if not settings.persistence_enabled:
        return _NoStore(settings.name, log_path)
    if isinstance(settings.store, DatabaseStoreSettings):
        return _DatabaseStore(settings.store, settings.name, role, log_path)
    return _FileStore(settings.store, settings.name, role, log_path)


class _DatabaseStore:
    def __init__(
        self, s: DatabaseStoreSettings, name: str, role: Role, log_path: Path | None
    ) -> None:
        self._settings = s
        self._name = name
        self._role = role
        self._log_path = log_path
        self._database: Database | None = None
        self.failback_poll_seconds = s.jdbc_lock_renew_period / 1000

    def prepare(self, stopped: threading.Event) -> None:
        """Bring the schema up to date; a database that is away is waited for."""
        database = self._database = Database.from_settings(self._settings)
        said = False
        while True:
            try:
                migrations.upgrade(database, self._settings)
            except StoreUnavailable as error:
                if not said:
                    LOGGER.warning("database unavailable, waiting for it: %s", error)
                    said = True
                if stopped.wait(_RETRY_SECONDS):
                    raise Interrupted("stopped while the database was away") from None
            else:
                return

    def node_manager(self) -> NodeManager:
        return JdbcNodeManager.from_settings(
            self._settings,
            name=self._name,
            role=self._role,
            database=self._opened(),
            log_path=self._log_path,
        )

    def open_journal(
        self, manager: NodeManager, post: Post, on_failure: Callable[[OrthiaError], None]
    ) -> MessageJournal:
        return Journal.open(
            self._opened(),
            self._settings,
            token=manager.fencing_token,
            still_valid=manager.is_lease_valid,
            post=post,
            on_failure=on_failure,
        )

    def close(self) -> None:
        if self._database is not None:
            self._database.dispose()

    def _opened(self) -> Database:
        if self._database is None:
            raise RuntimeError("the store is not prepared")
        return self._database


class _FileStore:
    failback_poll_seconds = _FILE_FAILBACK_SECONDS

    def __init__(self, s: FileStoreSettings, name: str, role: Role, log_path: Path | None) -> None:
        self._settings = s
        self._name = name
        self._role = role
        self._log_path = log_path

    def prepare(self, stopped: threading.Event) -> None:  # noqa: ARG002 - nothing to wait for
        """Make the directory the locks are in; the journal makes its own when it is opened."""
        s = self._settings
        make_directory(
            s.journal_directory, create=s.create_journal_dir, element="create-journal-dir"
        )

    def node_manager(self) -> NodeManager:
        return FileLockNodeManager(
            self._settings.journal_directory,
            name=self._name,
            role=self._role,
            acquisition_timeout_ms=self._settings.journal_lock_acquisition_timeout,
            newest_token=self._newest_token,
            log_path=self._log_path,
        )

    def open_journal(
        self, manager: NodeManager, post: Post, on_failure: Callable[[OrthiaError], None]
    ) -> MessageJournal:
        return open_file_journal(
            self._settings,
            token=manager.fencing_token,
            still_valid=manager.is_lease_valid,
            post=post,
            on_failure=on_failure,
        )

    def close(self) -> None:
        """Nothing is open but the journal, which is closed by now."""

    def _newest_token(self) -> int:
        try:
            return read_fence(self._settings).token
        except JournalError:
            return 0  # there is none yet, or opening it will say what is wrong


class _NoStore:
    failback_poll_seconds = _FILE_FAILBACK_SECONDS

    def __init__(self, name: str, log_path: Path | None) -> None:
        self._name = name
        self._log_path = log_path

    def prepare(self, stopped: threading.Event) -> None:
        """Nothing is there."""

    def node_manager(self) -> NodeManager:
        return InVmNodeManager(name=self._name, log_path=self._log_path)

    def open_journal(
        self, manager: NodeManager, post: Post, on_failure: Callable[[OrthiaError], None]
    ) -> MessageJournal:
        return MemoryJournal(still_valid=manager.is_lease_valid, post=post, on_failure=on_failure)

    def close(self) -> None:
        """Nothing is open."""
