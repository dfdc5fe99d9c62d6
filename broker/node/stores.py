"""Where a node keeps its messages and its locks: a database, a directory, or nothing.

Node manager and journal do not know each other; what they have to know of each other passes here.
"""

import contextlib
import logging
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from typing_extensions import override

from orthia import migrations
from orthia.broker.node.abc import RETRY_SECONDS, NodeStore, Post
from orthia.broker.protocols import encodings as _encodings  # noqa: F401 - which read heads
from orthia.config.clock import monotonic_seconds
from orthia.config.errors import OrthiaError
from orthia.config.lockers import keeps_leases, lock_database, lock_directory, with_locker
from orthia.config.reminders import Reminder
from orthia.config.settings import OutboxSettings, Role, Settings
from orthia.config.store_settings import (
    DatabaseStoreSettings,
    FileStoreSettings,
    SharedFileLockerSettings,
)
from orthia.database import Database, StoreError, StoreUnavailable
from orthia.database.durability import lax_settings
from orthia.database.pooling import refuse_lent_sessions
from orthia.journal.errors import JournalError
from orthia.journal.file import open_file_journal
from orthia.journal.file.artemis import refuse_files_of_artemis
from orthia.journal.file.disk import make_directory
from orthia.journal.file.inspect import read_fence
from orthia.journal.journal import MessageJournal
from orthia.journal.memory import MemoryJournal
from orthia.journal.sql.journal import open_journal
from orthia.nodemanager import Interrupted, jdbc_node_manager
from orthia.nodemanager.abc import NodeManager
from orthia.nodemanager.failover_log import log_file_name
from orthia.nodemanager.file_lock_manager import FileLockNodeManager
from orthia.nodemanager.in_vm_manager import InVmNodeManager

LOGGER = logging.getLogger("orthia.broker")
_FILE_FAILBACK_SECONDS = 0.5


def node_store(settings: Settings, *, is_known: bool = False) -> NodeStore:
    """Return the store that ``settings`` ask for.

    One that ``is_known`` to be there already is waited for, and never made anew.
    """
    directory = settings.failover_log_directory
    log_path = directory / log_file_name(settings.name) if directory else None
    role = settings.ha_policy.role
    if not settings.persistence_enabled:
        return _NoStore(settings.name, log_path)
    if isinstance(settings.store, DatabaseStoreSettings):
        return _DatabaseStore(settings.store, settings.outbox, settings.name, role, log_path)
    return _FileStore(settings.store, settings.name, role, log_path, is_known=is_known)


def failback_poll_seconds(s: DatabaseStoreSettings) -> float:
    """Return how often a live backup asks the database whether it is to hand back."""
    if s.locker is None or keeps_leases(s):
        return s.jdbc_lock_renew_period / 1000
    return s.locker.lock_acquire_sleep_interval / 1000


def _migrate(
    database: Database,
    settings: DatabaseStoreSettings,
    stopped: threading.Event,
    retry_seconds: float,
) -> migrations.Migration | None:
    """Bring the schema up to date and return what was done, if anything."""
    reminder: Reminder | None = None
    while True:
        try:
            refuse_lent_sessions(database)
            migration = migrations.upgrade(database, settings)
        except StoreUnavailable as error:
            if reminder is None:
                LOGGER.warning("the database does not answer: %s; waiting for it", error)
            reminder = _say_again(reminder, "the database has not answered", error)
            if stopped.wait(retry_seconds):
                raise Interrupted("stopped while waiting for the database") from None
        else:
            _tell_of_lax_settings(database)
            _tell_of_altered_routines(database, settings)
            return migration


def _tell_of_lax_settings(database: Database) -> None:
    """Warn of a database that may lose commits; one that does not tell is not warned of."""
    with contextlib.suppress(StoreError):
        lax = lax_settings(database)
        if lax:
            LOGGER.warning(
                "the database may lose commits when its host crashes (%s): messages with a receipt"
                " can be lost, and a fencing token be given out twice",
                ", ".join(lax),
            )


def _tell_of_altered_routines(database: Database, settings: DatabaseStoreSettings) -> None:
    """Warn of functions and procedures that are not what this version makes."""
    with contextlib.suppress(StoreError):
        altered = migrations.altered(database, settings)
        if altered:
            LOGGER.warning(
                "the database has routines by which applications send and acknowledge that are not"
                " as Orthia made them (%s): `orthia db upgrade` makes them anew",
                "; ".join(altered),
            )


def _await_directory(directory: Path, stopped: threading.Event, retry_seconds: float) -> None:
    if directory.is_dir():
        return
    LOGGER.warning("the directory %s is gone; waiting for it", directory)
    reminder: Reminder | None = None
    while not directory.is_dir():
        reminder = _say_again(reminder, "a directory has been missing", directory)
        if stopped.wait(retry_seconds):
            raise Interrupted(f"stopped while waiting for {directory}")


def _say_again(reminder: Reminder | None, what: str, detail: object) -> Reminder:
    """Log for how long this has gone on, when it is due."""
    now = monotonic_seconds()
    if reminder is None:
        return Reminder(now)
    seconds = reminder.due(now)
    if seconds is not None:
        LOGGER.warning("%s for %.0f s: %s; still waiting", what, seconds, detail)
    return reminder


class _DatabaseStore(NodeStore):
    def __init__(
        self,
        s: DatabaseStoreSettings,
        outbox: OutboxSettings | None,
        name: str,
        role: Role,
        log_path: Path | None,
    ) -> None:
        s = with_locker(s)
        self._settings = s
        self._outbox = outbox
        self._name = name
        self._role = role
        self._log_path = log_path
        self._database: Database | None = None
        self.failback_poll_seconds = failback_poll_seconds(s)

    @override
    def prepare(self, stopped: threading.Event, retry_seconds: float = RETRY_SECONDS) -> None:
        """Bring the schema up to date; a database that is away is waited for."""
        self._database = Database.from_settings(self._settings)
        self.migration = _migrate(self._database, self._settings, stopped, retry_seconds)

    @override
    def node_manager(self) -> NodeManager:
        return jdbc_node_manager(
            self._settings,
            name=self._name,
            role=self._role,
            database=self._opened(),
            log_path=self._log_path,
        )

    @override
    def open_journal(
        self, manager: NodeManager, post: Post, on_failure: Callable[[OrthiaError], None]
    ) -> MessageJournal:
        return open_journal(
            self._opened(),
            self._settings,
            token=manager.fencing_token,
            still_valid=manager.is_lease_valid,
            post=post,
            on_failure=on_failure,
            outbox=self._outbox,
        )

    @override
    def close(self) -> None:
        if self._database is not None:
            self._database.dispose()

    def _opened(self) -> Database:
        if self._database is None:
            raise RuntimeError("the store is not prepared")
        return self._database


class _FileStore(NodeStore):
    failback_poll_seconds = _FILE_FAILBACK_SECONDS

    def __init__(
        self,
        s: FileStoreSettings,
        name: str,
        role: Role,
        log_path: Path | None,
        *,
        is_known: bool,
    ) -> None:
        if is_known:
            # An empty directory in the place of one that is not mounted would be an empty store.
            s = replace(s, create_journal_dir=False, create_bindings_dir=False)
        self._settings = s
        self._is_known = is_known
        self._name = name
        self._role = role
        self._log_path = log_path
        self._locks_in = lock_database(s)
        self._database: Database | None = None
        if self._locks_in is not None:
            self.failback_poll_seconds = failback_poll_seconds(self._locks_in)

    @override
    def prepare(self, stopped: threading.Event, retry_seconds: float = RETRY_SECONDS) -> None:
        """Make the directory the locks are in, or the tables.

        The journal makes its directories itself, when it is opened.
        """
        s = self._settings
        if self._is_known:
            for directory in (s.journal_directory, s.bindings_directory):
                _await_directory(directory, stopped, retry_seconds)
        refuse_files_of_artemis(s)
        if self._locks_in is not None:
            self._database = Database.from_settings(self._locks_in)
            self.migration = _migrate(self._database, self._locks_in, stopped, retry_seconds)
            return
        make_directory(
            s.journal_directory, create=s.create_journal_dir, element="create-journal-dir"
        )
        if lock_directory(s) != s.journal_directory:
            make_directory(lock_directory(s), create=True, element="directory")

    @override
    def node_manager(self) -> NodeManager:
        s = self._settings
        if self._locks_in is not None:
            return jdbc_node_manager(
                self._locks_in,
                name=self._name,
                role=self._role,
                database=self._database,
                log_path=self._log_path,
                newest_token=self._newest_token,
            )
        locker = s.locker if isinstance(s.locker, SharedFileLockerSettings) else None
        return FileLockNodeManager(
            lock_directory(s),
            name=self._name,
            role=self._role,
            acquisition_timeout_ms=s.journal_lock_acquisition_timeout,
            locker=locker,
            newest_token=self._newest_token,
            log_path=self._log_path,
        )

    @override
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

    @override
    def close(self) -> None:
        """Close the database of the locks; the journal is closed by now."""
        if self._database is not None:
            self._database.dispose()

    def _newest_token(self) -> int:
        try:
            return read_fence(self._settings).token
        except JournalError:
            return 0  # there is none yet, or opening it will say what is wrong


class _NoStore(NodeStore):
    failback_poll_seconds = _FILE_FAILBACK_SECONDS

    def __init__(self, name: str, log_path: Path | None) -> None:
        self._name = name
        self._log_path = log_path

    @override
    def prepare(self, stopped: threading.Event, retry_seconds: float = RETRY_SECONDS) -> None:
        """Nothing is there."""

    @override
    def node_manager(self) -> NodeManager:
        return InVmNodeManager(name=self._name, log_path=self._log_path)

    @override
    def open_journal(
        self, manager: NodeManager, post: Post, on_failure: Callable[[OrthiaError], None]
    ) -> MessageJournal:
        return MemoryJournal(still_valid=manager.is_lease_valid, post=post, on_failure=on_failure)

    @override
    def close(self) -> None:
        """Nothing is open."""
