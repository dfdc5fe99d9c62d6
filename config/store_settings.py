"""Where messages are kept, and by which lock one node has them: the settings of stores.

Names, units and defaults are as ``orthia.config.settings`` says.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from orthia.config.secrets import Secret
from orthia.config.urls import DatabaseUrl


@dataclass(frozen=True, kw_only=True)
class LockerSettings:
    """Orthia's ``locker`` element: what ActiveMQ Classic's lockers have in common.

    Names and defaults are Classic's; in ``broker.xml`` they are attributes in camel case.
    """

    lock_acquire_sleep_interval: int = 10_000
    lock_keep_alive_period: int = 30_000
    fail_if_locked: bool = False
    use_lock: bool = True


@dataclass(frozen=True, kw_only=True)
class InDatabaseLockerSettings(LockerSettings):
    """What the lockers in a database have in common."""

    lease_holder_id: str | None = None
    """What the holder id begins with; None takes the name of the node."""
    max_allowable_diff_from_db_time: int = 0
    query_timeout: int = -1
    """Seconds, as in Classic; 0 and less leave it to the timers."""
    lock_table_name: str | None = None
    jdbc_connection_url: DatabaseUrl | None = None
    """Where the locks of a file journal are; a database-store has them itself."""
    jdbc_user: str | None = None
    jdbc_password: Secret | None = None


@dataclass(frozen=True, kw_only=True)
class LeaseDatabaseLockerSettings(InDatabaseLockerSettings):
    """``lease-database-locker``; its ``lock_acquire_sleep_interval`` is how long a lease lasts."""


@dataclass(frozen=True, kw_only=True)
class DatabaseLockerSettings(InDatabaseLockerSettings):
    """``database-locker``."""


@dataclass(frozen=True, kw_only=True)
class SharedFileLockerSettings(LockerSettings):
    """``shared-file-locker``."""

    directory: Path | None = None
    lock_keep_alive_period: int = 1_000
    """Classic's 0 never looks at the file again."""


@dataclass(frozen=True, kw_only=True)
class CustomLockerSettings(LockerSettings):
    """``custom-locker``: a third party's, by its entry point in the group ``orthia.lockers``."""

    name: str
    properties: Mapping[str, str] = field(default_factory=dict, repr=False)
    """May be passwords."""


class RetentionUnit(Enum):
    """What a retention's period counts; Artemis' names, those of Java's TimeUnit."""

    DAYS = "DAYS"
    HOURS = "HOURS"
    MINUTES = "MINUTES"
    SECONDS = "SECONDS"

    @property
    def seconds(self) -> int:
        """How long one is."""
        return {"DAYS": 86_400, "HOURS": 3_600, "MINUTES": 60, "SECONDS": 1}[self.value]


@dataclass(frozen=True)
class RetentionSettings:
    """``journal-retention``: how long a message that left its queue is kept in the history.

    At least one of the two bounds is given.
    """

    period: int | None = None
    unit: RetentionUnit = RetentionUnit.DAYS
    storage_limit: int | None = None
    """Bytes the history may take; the oldest go first. None for no limit."""

    @property
    def seconds(self) -> int | None:
        """The period in seconds; None keeps messages of any age."""
        return None if self.period is None else self.period * self.unit.seconds


@dataclass(frozen=True)
class DatabaseStoreSettings:
    """``store/database-store``: the database the pair shares, its tables and its timers."""

    jdbc_connection_url: DatabaseUrl
    jdbc_user: str | None = None
    jdbc_password: Secret | None = None
    data_source_properties: Mapping[str, str] = field(default_factory=dict)
    bindings_table_name: str = "BINDINGS"
    message_table_name: str = "MESSAGES"
    large_message_table_name: str = "LARGE_MESSAGES"
    node_manager_store_table_name: str = "NODE_MANAGER_STORE"
    failover_log_table_name: str = "FAILOVER_LOG"
    """Orthia's own: where every node's failover events can be read when its disk is gone."""
    outbox_table_name: str = "ORTHIA_OUTBOX"
    """Orthia's own: messages that applications send in their own transactions."""
    acks_table_name: str = "ORTHIA_ACKS"
    """Orthia's own: messages that applications acknowledge in their own transactions."""
    jdbc_network_timeout: int = 20_000
    jdbc_lock_renew_period: int = 2_000
    jdbc_lock_expiration: int = 20_000
    jdbc_lock_acquisition_timeout: int = 60_000
    """How long a live node waits for the live lock; -1 waits for ever. A backup always does."""
    jdbc_allowed_time_diff: int = 250
    crash_detection: bool = True
    """Orthia's own: replace a live node whose process is gone before its lease has run out."""
    locker: LockerSettings | None = None
    """Orthia's own; see ``orthia.config.lockers.with_locker``."""
    journal_retention: RetentionSettings | None = None
    """Orthia's own, after Artemis' ``journal-retention-directory``; None keeps nothing."""

    @property
    def is_embedded(self) -> bool:
        """Whether the database is a file of this host, and not a server's."""
        return self.jdbc_connection_url.sqlite_path is not None

    @property
    def message_history_table_name(self) -> str:
        """Where ``journal_retention`` keeps the messages that left their queue."""
        return f"{self.message_table_name}_HISTORY"

    @property
    def message_times_table_name(self) -> str:
        """Where it is kept when messages are due or expire, and how often their delivery failed."""
        return f"{self.message_table_name}_TIMES"


class JournalType(Enum):
    """How the file journal writes; Artemis' names."""

    ASYNCIO = "ASYNCIO"
    NIO = "NIO"
    MAPPED = "MAPPED"


@dataclass(frozen=True)
class FileStoreSettings:
    """The file journal: the ``journal-*`` elements of ``core``."""

    journal_directory: Path
    bindings_directory: Path
    large_messages_directory: Path
    create_journal_dir: bool = True
    create_bindings_dir: bool = True
    journal_type: JournalType = JournalType.ASYNCIO
    journal_sync_transactional: bool = True
    journal_sync_non_transactional: bool = True
    journal_datasync: bool = True
    journal_file_size: int = 10_485_760
    journal_min_files: int = 2
    journal_pool_files: int = -1
    """Files kept to be used again; -1 keeps all of them."""
    journal_max_io: int = 4_096
    """Writes in flight with ASYNCIO; Artemis' NIO has 1, and NIO here has nothing to count."""
    journal_buffer_size: int = 501_760
    journal_compact_min_files: int = 10
    journal_compact_percentage: int = 30
    journal_lock_acquisition_timeout: int = -1
    """How long a live node waits for the live lock; -1 waits for ever. A backup always does."""
    locker: LockerSettings | None = None
    """Orthia's own; see ``orthia.config.lockers``."""
