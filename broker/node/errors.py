"""What an error of a node's work means to the node."""

from orthia.broker.node.events import (
    StoreGone,
    WorkBroke,
    WorkEvent,
    WorkInterrupted,
    WorkRefused,
)
from orthia.broker.node.exit_codes import ExitCode, code_of
from orthia.config.errors import OrthiaError
from orthia.database import StoreUnavailable, TransientStoreError
from orthia.journal.errors import Fenced, JournalIOError, LeaseExpired
from orthia.nodemanager import Interrupted, LockLost

_IO_ERRORS = (
    StoreUnavailable,
    TransientStoreError,
    JournalIOError,
    LockLost,
    Fenced,
    LeaseExpired,
)
"""What says that the store or the lease is gone, not that the node is wrongly set up."""


def event_of(error: Exception) -> WorkEvent:
    """Return how work ended that raised ``error``."""
    if isinstance(error, Interrupted):
        return WorkInterrupted()
    if isinstance(error, _IO_ERRORS):
        return StoreGone(str(error))
    if isinstance(error, OrthiaError):
        return WorkRefused(code_of(error), str(error))
    if isinstance(error, OSError):
        reason = f"{error.filename} cannot be used: {error.strerror}"
        return WorkBroke(ExitCode.CONFIGURATION, reason)
    return WorkBroke(ExitCode.SOFTWARE, f"{type(error).__name__}: {error}")


def is_expected(error: Exception) -> bool:
    """Return whether its text says enough, without a traceback."""
    return isinstance(error, OrthiaError) or (
        isinstance(error, OSError) and error.filename is not None
    )
