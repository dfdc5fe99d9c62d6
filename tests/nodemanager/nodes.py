"""Nodes as far as their node managers go: on threads of their own, with what they said."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Generic, TypeVar

from orthia.config.settings import Role
from orthia.config.store_settings import DatabaseStoreSettings
from orthia.database import Database
from orthia.nodemanager import JdbcNodeManager, jdbc_node_manager
from orthia.nodemanager.events import Event
from orthia.nodemanager.file_lock_manager import FileLockNodeManager
from tests.support.waiting import wait_until

Manager = JdbcNodeManager | FileLockNodeManager
M = TypeVar("M", bound=Manager)


class Node(Generic[M]):
    """A node manager with a thread of its own, and what it said."""

    def __init__(self, manager: M, events: list[Event], database: Database | None = None) -> None:
        """``events`` is where the manager's listener puts what it hears; end ``database`` too."""
        self.manager = manager
        self.events = events
        self.database = database
        self.lost: list[str] = []
        manager.register_lock_listener(self.lost.append)
        self._pool = ThreadPoolExecutor(1)
        self._is_started = False

    def soon(self, call: Callable[[], Any]) -> "Future[Any]":
        """Call on the node's thread."""
        return self._pool.submit(call)

    def said(self, kind: type[Event]) -> list[Event]:
        """Return the events of a kind that were reported."""
        return [event for event in list(self.events) if isinstance(event, kind)]

    def wait_for(self, kind: type[Event]) -> None:
        """Wait until an event of this kind is reported."""
        wait_until(lambda: self.said(kind), what=f"{kind.__name__} is reported")

    def _start(self) -> None:
        if not self._is_started:
            self._is_started = True
            self.manager.start()

    def go_live(self) -> int:
        """Start as live node and return the token, when it has any presence lock it wants."""
        self._start()
        self.manager.start_live_node().activation_complete()
        wait_until(self._is_present, what="the live node has the presence lock")
        return self.manager.fencing_token

    def _is_present(self) -> bool:
        crashes = getattr(self.manager, "_crashes", None)
        keeper = crashes and crashes.keeper
        return keeper is None or keeper.held_since_seconds is not None

    def wait_as_backup(self) -> "Future[int]":
        """Start as backup, or become one again; the future has the token when it is live."""

        def wait() -> int:
            self._start()
            self.manager.start_backup()
            self.manager.await_live_node().activation_complete()
            return self.manager.fencing_token

        return self._pool.submit(wait)

    def wait_next(self) -> "Future[int]":
        """The same, when it is next in line."""
        future = self.wait_as_backup()
        wait_until(self.manager.is_backup_live, what="the backup is next in line")
        return future

    def vanish(self) -> None:
        """End without giving anything back, as a crash does."""
        self.manager.stop()

    def close(self) -> None:
        """End the node."""
        self.manager.interrupt()
        self._pool.shutdown()
        self.manager.stop()
        if self.database is not None:
            self.database.dispose()


def jdbc_node(
    settings: DatabaseStoreSettings, name: str, role: Role = Role.LIVE
) -> Node[JdbcNodeManager]:
    """Make a node of a database, which it opens for itself."""
    events: list[Event] = []
    database = Database.from_settings(settings)
    manager = jdbc_node_manager(
        settings, name=name, role=role, listener=events.append, database=database
    )
    return Node(manager, events, database)
