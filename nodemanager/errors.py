"""What can go wrong between a node and its locks."""

from orthia.config.errors import OrthiaError
from orthia.database import PermanentStoreError


class NodeManagerError(OrthiaError):
    """Root of the node manager's errors."""


class LockLost(NodeManagerError):  # noqa: N818 - named for what is the case
    """The store says that the lock is no longer held under this holder and token."""


class LockAcquisitionTimeout(NodeManagerError):  # noqa: N818 - Artemis' name of the time-out
    """A live node did not get the live lock within ``jdbc-lock-acquisition-timeout``."""


class Interrupted(NodeManagerError):  # noqa: N818 - named for what is the case
    """``interrupt()`` or ``stop()`` ended a wait."""


class NotHeld(NodeManagerError):  # noqa: N818 - named for what is the case
    """What was asked for needs a lock that this node does not hold."""


class StoreInUse(NodeManagerError):  # noqa: N818 - named for what is the case
    """A node runs on a store on which none may run now."""


class RowMissing(NodeManagerError, PermanentStoreError):  # noqa: N818 - named for what is the case
    """A row that every migrated store has was removed; only a repair brings it back."""


class LockDirectoryMissing(NodeManagerError):  # noqa: N818 - named for what is the case
    """The directory in which the nodes of a store lock is not there."""


class FailoverLogUnreadable(NodeManagerError):  # noqa: N818 - named for what is the case
    """A file is no failover log, or is damaged."""
