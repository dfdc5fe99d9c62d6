"""What a node runs on, as its life uses it."""

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable

from orthia.config.errors import OrthiaError
from orthia.journal.journal import MessageJournal
from orthia.migrations import Migration
from orthia.nodemanager.abc import NodeManager

RETRY_SECONDS = 1.0
"""Between two attempts to reach a database at the start of a node."""

Post = Callable[[Callable[[], None]], None]


class NodeStore(ABC):
    """A store, as the life of a node uses it; every call blocks."""

    failback_poll_seconds: float
    """How often a live backup checks whether it is to hand back."""

    migration: Migration | None = None
    """What ``prepare`` did to the schema; None if there is none, or it was as it is to be."""

    @abstractmethod
    def prepare(self, stopped: threading.Event, retry_seconds: float = RETRY_SECONDS) -> None:
        """Make it usable; raises Interrupted once ``stopped`` is set, OrthiaError."""

    @abstractmethod
    def node_manager(self) -> NodeManager:
        """Return a node manager on it, not started yet."""

    @abstractmethod
    def open_journal(
        self, manager: NodeManager, post: Post, on_failure: Callable[[OrthiaError], None]
    ) -> MessageJournal:
        """Open the journal under the manager's token."""

    @abstractmethod
    def close(self) -> None:
        """Close what was opened."""
