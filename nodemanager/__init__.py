"""Who may be live: leases, the fence, keep-alive, and the log of what happened.

``jdbc_node_manager(settings.database_store, name=...)`` is the way in.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from orthia.nodemanager.errors import (
        Interrupted,
        LockAcquisitionTimeout,
        LockLost,
        NodeManagerError,
        NotHeld,
    )
    from orthia.nodemanager.events import Event
    from orthia.nodemanager.jdbc import jdbc_node_manager
    from orthia.nodemanager.locks.abc import ExclusiveLock, LockerContext
    from orthia.nodemanager.locks.lease import Lease, Lock, LockStatus, NodeManagerStatus, State
    from orthia.nodemanager.manager import JdbcNodeManager
    from orthia.nodemanager.pair import ActivateCallback
else:
    from orthia.config.lazily import names_of

    __getattr__ = names_of(
        __name__,
        {
            "errors": "Interrupted LockAcquisitionTimeout LockLost NodeManagerError NotHeld",
            "events": "Event",
            "jdbc": "jdbc_node_manager",
            "locks.abc": "ExclusiveLock LockerContext",
            "locks.lease": "Lease Lock LockStatus NodeManagerStatus State",
            "manager": "JdbcNodeManager",
            "pair": "ActivateCallback",
        },
    )

__all__ = [
    "ActivateCallback",
    "Event",
    "ExclusiveLock",
    "Interrupted",
    "JdbcNodeManager",
    "Lease",
    "Lock",
    "LockAcquisitionTimeout",
    "LockLost",
    "LockStatus",
    "LockerContext",
    "NodeManagerError",
    "NodeManagerStatus",
    "NotHeld",
    "State",
    "jdbc_node_manager",
]
