"""Who may be live: leases, the fence, keep-alive, and the log of what happened.

``JdbcNodeManager.from_settings(settings.database_store, name=...)`` is the way in.
"""

from nodemanager.errors import (
    Interrupted,
    LockAcquisitionTimeout,
    LockLost,
    NodeManagerError,
    NotHeld,
)
from nodemanager.events import Event
from nodemanager.lease import Lease, Lock, LockStatus, NodeManagerStatus, State
from nodemanager.manager import JdbcNodeManager
from nodemanager.pair import ActivateCallback

__all__ = [
    "ActivateCallback",
    "Event",
    "Interrupted",
    "JdbcNodeManager",
    "Lease",
    "Lock",
    "LockAcquisitionTimeout",
    "LockLost",
    "LockStatus",
    "NodeManagerError",
    "NodeManagerStatus",
    "NotHeld",
    "State",
]
