"""The node manager of a node that stores nothing: Artemis' InVMNodeManager. It takes no lock.

What is not stored cannot be served by two nodes, so there is nothing to be kept from: the node is
live at once and for as long as its process runs. It has no backup.
"""

import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from typing_extensions import override

from orthia.config.settings import Role
from orthia.nodemanager.abc import Activation, FormerLife, NodeManager
from orthia.nodemanager.errors import Interrupted, LockLost, NotHeld
from orthia.nodemanager.events import NodeStarted
from orthia.nodemanager.failover_log import FailoverLog
from orthia.nodemanager.locks.holder_id import HolderId
from orthia.nodemanager.locks.lease import Lock

_TOKEN = 1
_LOG_CLOSE_SECONDS = 2.0


@dataclass(frozen=True)
class InVmActivation(Activation):
    """Nothing was waited for, and nothing is left to do."""

    @override
    def activation_complete(self) -> None:
        """Do nothing."""


class InVmNodeManager(NodeManager):
    """Live at once and as long as its process runs, for there is no store to share."""

    def __init__(self, *, name: str, log_path: Path | None = None) -> None:
        self.holder_id = HolderId.new(name, crash_detection=True)
        self.log = FailoverLog(
            node_name=name, holder_id=self.holder_id, role=Role.LIVE.value, path=log_path
        )
        self._live = False
        self._interrupted = threading.Event()

    @property
    @override
    def fencing_token(self) -> int:
        if not self._live:
            raise NotHeld("this node is not live")
        return _TOKEN

    @override
    def is_lease_valid(self) -> bool:
        return self._live

    @override
    def message_time_ms(self) -> int:
        return time.time_ns() // 1_000_000

    @override
    def may_deliver(self) -> bool:
        return self._live

    @override
    def lease_seconds_remaining(self) -> float | None:
        """Return None: there is no lease."""
        return None

    @override
    def start(self) -> None:
        """Take a node id for this process."""
        self.log.node_id = str(uuid.uuid4())
        version = metadata.version("orthia")
        self.log.emit(NodeStarted(version, self.log.role, "memory", self.log.node_id))

    @override
    def stop(self) -> None:
        """Close the log."""
        self.interrupt()
        self._live = False
        self.log.close(_LOG_CLOSE_SECONDS)

    @override
    def interrupt(self) -> None:
        """Prevent a node that is not live yet from becoming live."""
        self._interrupted.set()

    @override
    def register_lock_listener(self, callback: Callable[[str], None]) -> None:
        """Never call ``callback``: there is no lock to lose."""

    @override
    def register_renewal_listener(self, callback: Callable[[Lock, float], None]) -> None:
        """Never call ``callback``: there is nothing to renew."""

    @override
    def start_live_node(self) -> InVmActivation:
        """Be live at once; raises Interrupted."""
        if self._interrupted.is_set():
            raise Interrupted("the node is being stopped")
        self._live = True
        return InVmActivation()

    @override
    def resume_live_node(self, former: FormerLife, period_ms: int) -> InVmActivation:
        """Raise LockLost: what the former life had is gone."""
        raise LockLost(f"nothing is left of what was served under token {former.token}")

    @override
    def start_backup(self) -> None:
        """Raise NotHeld: see ``await_live_node``."""
        raise NotHeld("a node without persistence has no backup")

    @override
    def await_live_node(self) -> InVmActivation:
        """Raise NotHeld: a backup would have nothing to take over."""
        raise NotHeld("a node without persistence has no backup")

    @override
    def release_backup(self) -> None:
        """Do nothing."""

    @override
    def stop_backup(self) -> None:
        """Do nothing."""

    @override
    def is_awaiting_failback(self) -> bool:
        """Return False: nobody else can ask."""
        return False

    @override
    def ask_who_waits(self) -> None:
        """Do nothing: nobody asks."""

    @override
    def is_live_here(self) -> bool:
        """Return False: no other process can have a lock of this one."""
        return False

    @override
    def pause_live_server(self) -> None:
        """Stop being live."""
        self._live = False

    @override
    def give_up_live_server(self) -> None:
        """Stop being live."""
        self._live = False

    @override
    def crash_live_server(self) -> None:
        """Stop being live."""
        self._live = False
