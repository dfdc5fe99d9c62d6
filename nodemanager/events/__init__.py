"""What can happen to a pair: one frozen dataclass for each event of the failover log.

Where Artemis logs the same fact its code is used (ActiveMQServerLogger), so that alerts that match
on codes go on working; codes beginning with ORT are Orthia's own. ``REGISTRY`` has them all.
"""

from orthia.nodemanager.events.event import Event
from orthia.nodemanager.events.locks import (
    BackupLockObtained,
    CrashDetected,
    LeaseExpired,
    LiveLockObtained,
    LockReleased,
    PresenceLost,
    ReleaseFailed,
    WaitingForBackupLock,
    WaitingForLiveLock,
)
from orthia.nodemanager.events.nodes import (
    AcceptorNotFreeEvent,
    BackupActive,
    BackupAnnounced,
    BackupStarted,
    ConnectorsResume,
    ConnectorsStopped,
    CriticalIOError,
    FailbackPutOff,
    FailbackRequested,
    LiveActive,
    LoopUnanswered,
    NodeStarted,
    NodeStopped,
    RestartsAsBackup,
    ServiceClosing,
    StaleFailback,
    StartFailed,
    TakeoverTimings,
)
from orthia.nodemanager.events.renewals import (
    ClockDrift,
    LeaseLost,
    RenewalBeyondExpiration,
    RenewalFailed,
    RenewalGap,
    RenewalNotTriggered,
    RenewalOverrun,
    RenewalSlow,
    TimersDiffer,
)
from orthia.nodemanager.events.store import (
    FenceAdvanced,
    FenceBlocked,
    FencedWriteRefused,
    FenceUnblocked,
    SchemaMigrated,
    StateNotWritten,
    StateWritten,
    StoreRecovered,
    StoreUnavailableEvent,
)

__all__ = [
    "REGISTRY",
    "AcceptorNotFreeEvent",
    "BackupActive",
    "BackupAnnounced",
    "BackupLockObtained",
    "BackupStarted",
    "ClockDrift",
    "ConnectorsResume",
    "ConnectorsStopped",
    "CrashDetected",
    "CriticalIOError",
    "Event",
    "FailbackPutOff",
    "FailbackRequested",
    "FenceAdvanced",
    "FenceBlocked",
    "FenceUnblocked",
    "FencedWriteRefused",
    "LeaseExpired",
    "LeaseLost",
    "LiveActive",
    "LiveLockObtained",
    "LockReleased",
    "LoopUnanswered",
    "NodeStarted",
    "NodeStopped",
    "PresenceLost",
    "ReleaseFailed",
    "RenewalBeyondExpiration",
    "RenewalFailed",
    "RenewalGap",
    "RenewalNotTriggered",
    "RenewalOverrun",
    "RenewalSlow",
    "RestartsAsBackup",
    "SchemaMigrated",
    "ServiceClosing",
    "StaleFailback",
    "StartFailed",
    "StateNotWritten",
    "StateWritten",
    "StoreRecovered",
    "StoreUnavailableEvent",
    "TakeoverTimings",
    "TimersDiffer",
    "WaitingForBackupLock",
    "WaitingForLiveLock",
]


def _all_events() -> dict[str, type[Event]]:
    registry: dict[str, type[Event]] = {}
    for kind in Event.__subclasses__():
        if kind.code in registry:
            raise ValueError(f"{kind.code} is used by {kind} and {registry[kind.code]}")
        registry[kind.code] = kind
    return registry


REGISTRY = _all_events()
"""Every code of the failover log and its event."""
