"""What the operator asked for, frozen: the settings every other room reads.

Names are the elements of ``broker.xml`` with underscores; durations are milliseconds and sizes
bytes unless a docstring says otherwise. Defaults are Artemis' unless a comment says why not.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

from orthia.config.acceptor_tls import AcceptorTls
from orthia.config.acceptor_websocket import AcceptorWebSocket
from orthia.config.errors import ConfigurationError
from orthia.config.passwords import HashedPassword
from orthia.config.secrets import Secret
from orthia.config.urls import DatabaseUrl
from orthia.config.wildcards import WildcardAddresses


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
    """``custom-locker``: somebody else's, by its entry point in the group ``orthia.lockers``."""

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
        """Where it is kept when messages are due or expire, and how often they came in vain."""
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


class IoErrorPolicy(Enum):
    """Orthia's ``io-error-policy``: what becomes of a node that lost its lock or its store."""

    SHUTDOWN = "shutdown"
    RESTART_AS_BACKUP = "restart-as-backup"
    STOP_CONNECTORS = "stop-connectors"
    """Classic's LeaseLockerIOExceptionHandler."""


class CriticalAnalyzerPolicy(Enum):
    """What becomes of a node whose event loop does not answer."""

    LOG = "LOG"
    SHUTDOWN = "SHUTDOWN"
    HALT = "HALT"


class Role(Enum):
    """What a node starts as; Artemis' ``primary``/``master`` and ``backup``/``slave``."""

    LIVE = "live"
    BACKUP = "backup"


@dataclass(frozen=True)
class HaPolicy:
    """``ha-policy/shared-store``; without an ``ha-policy`` a node is live and alone."""

    role: Role = Role.LIVE
    failover_on_shutdown: bool = False
    allow_failback: bool = True
    restart_backup: bool = True


@dataclass(frozen=True)
class AcceptorSettings:
    """One ``acceptor``: where STOMP clients connect."""

    name: str
    host: str
    port: int
    protocols: tuple[str, ...] = ("STOMP",)
    """``protocols``: what its clients may speak, in capitals; of these STOMP is served."""
    connections_allowed: int = -1
    """``connectionsAllowed``: connections to this acceptor; -1 leaves it to max-connections."""
    handshake_timeout: int | None = None
    """``handshake-timeout``: seconds for the CONNECT frame; None leaves it to connect-timeout."""
    connection_ttl: int = -1
    """``connectionTtl``: milliseconds a client that agreed on no heart-beats may be silent; -1 any.

    Artemis' default is a minute, which ends every idle client that does not beat.
    """
    heart_beat_to_connection_ttl_modifier: float = 2.0
    """``heartBeatToConnectionTtlModifier``: a client counts as gone when it was silent for so many
    of its heart-beats' intervals."""
    min_large_message_size: int | None = None
    """``stompMinLargeMessageSize``; None leaves it to min-large-message-size."""
    anycast_prefixes: tuple[str, ...] = ()
    """``anycastPrefix``: beginnings of a destination that make it ANYCAST, beside ``/queue/``."""
    multicast_prefixes: tuple[str, ...] = ()
    """``multicastPrefix``: the same for MULTICAST, beside ``/topic/``."""
    tls: AcceptorTls | None = None
    """How it speaks TLS; None without ``sslEnabled``."""
    web_socket: AcceptorWebSocket = field(default_factory=AcceptorWebSocket)
    """How it speaks WebSocket."""


class RoutingType(Enum):
    """Artemis' routing types: to one queue of the address, or to every one."""

    ANYCAST = "ANYCAST"
    MULTICAST = "MULTICAST"


@dataclass(frozen=True)
class QueueSettings:
    """A ``queue`` declared under an address."""

    name: str
    routing_type: RoutingType
    max_consumers: int = -1
    durable: bool = True
    """False: it and its messages end with the node."""
    user: str | None = None
    """Whose it counts as."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Fields of ``QueueOptions`` that it sets itself; the others its address' defaults say."""


class SlowConsumerPolicy(Enum):
    """What becomes of a slow consumer."""

    KILL = "KILL"
    NOTIFY = "NOTIFY"


class SlowConsumerUnit(Enum):
    """What ``slow-consumer-threshold`` counts."""

    MESSAGES_PER_SECOND = "MESSAGES_PER_SECOND"
    MESSAGES_PER_MINUTE = "MESSAGES_PER_MINUTE"
    MESSAGES_PER_HOUR = "MESSAGES_PER_HOUR"
    MESSAGES_PER_DAY = "MESSAGES_PER_DAY"


class DivertRoutingType(Enum):
    """What a diverted message is routed as at its new address."""

    STRIP = "STRIP"
    """As that address is, to each type that it has."""
    PASS = "PASS"  # noqa: S105 - passes the type on
    """As it was sent."""
    ANYCAST = "ANYCAST"
    MULTICAST = "MULTICAST"


@dataclass(frozen=True)
class DivertSettings:
    """A ``divert``: what is sent to one address goes to another, too or instead."""

    name: str
    address: str
    """May have wildcards."""
    forwarding_address: str
    filter: str | None = None
    """A selector; None for every message."""
    exclusive: bool = False
    """Whether it goes to the other address instead."""
    routing_type: DivertRoutingType = DivertRoutingType.STRIP


@dataclass(frozen=True)
class AddressConfiguration:
    """An ``address`` declared under ``addresses``."""

    name: str
    routing_types: frozenset[RoutingType]
    queues: tuple[QueueSettings, ...] = ()


class AddressFullPolicy(Enum):
    """What happens to a SEND when an address has ``max-size-bytes`` or ``max-size-messages``."""

    PAGE = "PAGE"
    FAIL = "FAIL"
    BLOCK = "BLOCK"
    """Artemis' own; refused by ``orthia.config.rules``, as are two more that are not done."""
    DROP = "DROP"


class PageFullPolicy(Enum):
    """What happens to a SEND beyond ``page-limit-bytes`` or ``page-limit-messages``."""

    FAIL = "FAIL"
    DROP = "DROP"


@dataclass(frozen=True)
class AddressSettings:
    """One ``address-setting``; ``match`` uses ``.`` between words, ``*`` a word, ``#`` any words.

    A value of None is not set here and is inherited from a less specific match.
    """

    match: str
    dead_letter_address: str | None = None
    expiry_address: str | None = None
    auto_create_dead_letter_resources: bool | None = None
    dead_letter_queue_prefix: str | None = None
    dead_letter_queue_suffix: str | None = None
    auto_create_expiry_resources: bool | None = None
    expiry_queue_prefix: str | None = None
    expiry_queue_suffix: str | None = None
    max_delivery_attempts: int | None = None
    redelivery_delay: int | None = None
    redelivery_delay_multiplier: float | None = None
    redelivery_collision_avoidance_factor: float | None = None
    max_redelivery_delay: int | None = None
    expiry_delay: int | None = None
    min_expiry_delay: int | None = None
    max_expiry_delay: int | None = None
    no_expiry: bool | None = None
    address_full_policy: AddressFullPolicy | None = None
    max_size_bytes: int | None = None
    max_size_messages: int | None = None
    page_limit_bytes: int | None = None
    page_limit_messages: int | None = None
    page_full_policy: PageFullPolicy | None = None
    page_size_bytes: int | None = None
    auto_create_queues: bool | None = None
    auto_create_addresses: bool | None = None
    default_address_routing_type: RoutingType | None = None
    default_max_consumers: int | None = None
    id_cache_size: int | None = None
    default_queue_routing_type: RoutingType | None = None
    slow_consumer_threshold: int | None = None
    slow_consumer_threshold_measurement_unit: SlowConsumerUnit | None = None
    slow_consumer_policy: SlowConsumerPolicy | None = None
    slow_consumer_check_period: int | None = None
    auto_delete_queues: bool | None = None
    auto_delete_queues_delay: int | None = None
    auto_delete_queues_message_count: int | None = None
    default_exclusive_queue: bool | None = None
    default_purge_on_no_consumers: bool | None = None
    default_ring_size: int | None = None
    default_group_buckets: int | None = None
    default_group_first_key: str | None = None
    default_group_rebalance: bool | None = None
    default_group_rebalance_pause_dispatch: bool | None = None
    default_consumers_before_dispatch: int | None = None
    default_delay_before_dispatch: int | None = None
    default_last_value_queue: bool | None = None
    last_value_queue: bool | None = None
    default_last_value_key: str | None = None


@dataclass(frozen=True)
class SecuritySetting:
    """One ``security-setting``: which roles hold which permission on the matching addresses."""

    match: str
    permissions: Mapping[str, frozenset[str]]
    """Artemis' permission type (``send``, ``consume``, ``createAddress`` ...) to its roles."""


@dataclass(frozen=True)
class RoleMapping:
    """A ``role-mapping``: whoever has one role has the others, too."""

    from_role: str
    to: frozenset[str]


@dataclass(frozen=True)
class User:
    """A user who may connect when security is enabled: of ``users``, or of a login module's."""

    name: str
    password: Secret | HashedPassword
    roles: frozenset[str]


@dataclass(frozen=True)
class PropertiesLoginModule:
    """``properties-login-module``: Artemis' PropertiesLoginModule, users and roles in files."""

    user: Path = Path("artemis-users.properties")
    """A path that is not absolute starts where the ``broker.xml`` is, as in Artemis."""
    role: Path = Path("artemis-roles.properties")
    reload: bool = True
    """Artemis' default is False. A user that was removed, since somebody else has its password,
    would then be let in until the node is started again."""

    @property
    def files(self) -> tuple[Path, ...]:
        """What is read."""
        return self.user, self.role


@dataclass(frozen=True)
class CertificateLoginModule(PropertiesLoginModule):
    """``certificate-login-module``: Artemis' TextFileCertificateLoginModule, in two files, too."""

    user: Path = Path("cert-users.properties")
    role: Path = Path("cert-roles.properties")


@dataclass(frozen=True, kw_only=True)
class TokenLoginModule:
    """``token-login-module``: a signed token (JWT) as passcode."""

    key: Path
    """A JWKS, or public keys as PEM. A path starts where the ``broker.xml`` is."""
    issuer: str
    audience: str
    user_claim: str = "sub"
    roles_claim: str = "roles"
    """Claims inside others are written with dots, as ``realm_access.roles``."""
    reload: bool = True

    @property
    def files(self) -> tuple[Path, ...]:
        """What is read."""
        return (self.key,)


@dataclass(frozen=True)
class ResourceLimitSetting:
    """One ``resource-limit-setting``: what one user may have."""

    match: str
    """The user's name."""
    max_sessions: int | None = None
    """Connections; a STOMP client's connection is its session. -1 for any number, None leaves it to
    max-connections-per-user."""
    max_queues: int | None = None
    """Queues it had created. -1 for any number, None leaves it to max-queues-per-user."""


@dataclass(frozen=True)
class HealthSettings:
    """Orthia's ``health`` element: the HTTP endpoint of probes and metrics, off unless present."""

    host: str = "127.0.0.1"
    port: int = 8_161
    """Artemis' console listens there; both are where an operator looks how the broker is."""
    token: Secret | None = None
    """What ``Authorization: Bearer`` must say for all but ``/live`` and ``/ready``."""
    allow_anonymous: bool = False
    """Whether others than this host may ask for all of it without a token."""


@dataclass(frozen=True)
class StompLimits:
    """Orthia's ``stomp-limits`` element: what a client may make the broker hold in memory."""

    max_header_bytes: int = 65_536
    max_headers: int = 256
    max_body_bytes: int = 16_777_216
    min_large_message_size: int = 102_400
    """Bytes of the body of a SEND from which on it is a large message; -1 has none."""
    max_large_message_size: int = 1_073_741_824
    """Bytes of the body of a large message."""
    upload_timeout: int = 60_000
    """How long nothing may come of the body of a large message that is not whole."""
    max_transaction_bytes: int = 67_108_864
    max_transactions: int = 64
    max_transaction_entries: int = 10_000
    """Messages one transaction may send, acknowledge and reject together: its COMMIT, which is done
    whole, is a bounded stretch of the loop's time."""
    max_subscriptions: int = 1_024
    max_unacknowledged_bytes: int = 67_108_864
    """Bytes of unacknowledged messages a subscription may hold, whatever its prefetch."""
    max_behind_bytes: int = 8_388_608
    """Bytes a topic's subscriber may be behind before it is ended."""
    prefetch_count: int = 100
    """Unacknowledged messages a subscription may hold, unless it asks otherwise."""
    connect_timeout: int = 10_000
    """How long a socket may stay open before its CONNECT frame is whole."""
    write_timeout: int = 300_000
    """How long a client for which something waits may take none of it."""
    max_login_delay: int = 5_000
    """The longest a login waits for its answer after others from the same place failed."""
    max_connections: int = 4_096
    max_connections_per_user: int | None = None
    """None leaves an eighth of max-connections to others."""
    max_connections_per_address: int | None = None
    """Of IPv6 addresses, per /64 network. None leaves an eighth of max-connections to others."""
    max_unauthenticated_per_address: int = 1_024
    """Of those, the ones that have not logged in; above it the oldest makes room."""
    max_client_bytes: int = 268_435_456
    """Bytes of all clients together beside what waits in queues: frames, transactions, receipts,
    subscriptions, messages not yet taken or not yet acknowledged."""
    max_queues: int = 50_000
    """Queues there may be before clients can have no more of them created."""
    max_queues_per_user: int = 10_000
    """Queues there may be that one user had created, by whatever connection and node."""
    max_queues_per_connection: int = 1_000
    """Queues that one connection may have created."""


SERVER_STORE_BYTES = 10 * 1024**3
"""``max-store-bytes`` by default for a database server: nothing says how large its disk is."""


@dataclass(frozen=True)
class Settings:
    """A whole ``broker.xml``."""

    name: str
    source: Path | None
    store: DatabaseStoreSettings | FileStoreSettings
    ha_policy: HaPolicy = field(default_factory=HaPolicy)
    acceptors: tuple[AcceptorSettings, ...] = ()
    wildcard_addresses: WildcardAddresses = field(default_factory=WildcardAddresses)
    addresses: tuple[AddressConfiguration, ...] = ()
    diverts: tuple[DivertSettings, ...] = ()
    address_queue_scan_period: int = 30_000
    message_expiry_scan_period: int = 30_000
    """How often expired messages are looked for; 0 or less never."""
    """How often queues that nobody needs are looked for; 0 or less never."""
    address_settings: tuple[AddressSettings, ...] = ()
    security_enabled: bool = True
    security_settings: tuple[SecuritySetting, ...] = ()
    role_mappings: tuple[RoleMapping, ...] = ()
    populate_validated_user: bool = False
    """Whether messages say by which user they were sent."""
    management_message_rbac: bool = False
    """Whether a management request needs ``view`` or ``edit`` on its operation beside
    ``manage``."""
    management_rbac_prefix: str = "mops"
    """What the addresses of operations begin with, in the matches of security settings."""
    view_permission_method_match_pattern: str = "^(get|is|count|list|browse|query).*$"
    """The operations for which ``view`` is enough; a regular expression."""
    users: tuple[User, ...] = ()
    properties_login_module: PropertiesLoginModule | None = None
    token_login_module: TokenLoginModule | None = None
    certificate_login_module: CertificateLoginModule | None = None
    authentication_cache_size: int = 1_000
    """Logins of which it is remembered whether the hash of their passcode was right; 0 for none."""
    security_invalidation_interval: int = 10_000
    """How long that is remembered; 0 not at all."""
    resource_limit_settings: tuple[ResourceLimitSetting, ...] = ()
    health: HealthSettings | None = None
    stomp_limits: StompLimits = field(default_factory=StompLimits)
    global_max_size: int = 67_108_864
    """Bytes of messages all queues together keep in memory before they read on from the table."""
    id_cache_size: int = 20_000
    """Duplicate ids each address keeps, unless its settings say otherwise; 0 keeps none."""
    max_store_bytes: int | None = None
    """Orthia's own: bytes of messages all addresses together may hold; -1 for no limit, None for
    the default, which ``store_limit`` returns."""
    max_disk_usage: int = 90
    """Per cent of the disks of the store that may be used; -1 for no limit."""
    min_disk_free: int = -1
    disk_scan_period: int = 5_000
    failover_log_directory: Path | None = None
    """Orthia's own: where this node's failover log file is written; None writes no file."""
    audit_log_directory: Path | None = None
    """Orthia's own: where this node's audit log is written; None writes none."""
    io_error_policy: IoErrorPolicy = IoErrorPolicy.SHUTDOWN
    resume_check_sleep_period: int = 5_000
    critical_analyzer: bool = True
    critical_analyzer_timeout: int = 20_000
    """The default of ``jdbc-lock-expiration``: a loop that hangs costs what a lost host may.
    Artemis has 120 s."""
    critical_analyzer_check_period: int = 2_000
    """The default of ``jdbc-lock-renew-period``; 0 is half of the time-out, Artemis' default."""
    critical_analyzer_policy: CriticalAnalyzerPolicy = CriticalAnalyzerPolicy.SHUTDOWN
    """Artemis' default is LOG."""
    persistence_enabled: bool = True
    """False keeps everything in memory: ``store`` is not touched."""
    warnings: tuple[str, ...] = ()
    """What an operator is to be told of; to be logged once at start."""
    not_applied: tuple[str, ...] = ()
    """What Artemis would do with this file and Orthia does not, with what happens instead, each as
    ``FILE:LINE: NAME: ...``; to be logged once at start, before the warnings."""

    @property
    def store_limit(self) -> int:
        """``max-store-bytes`` in effect; -1 for none.

        Where the disk can be looked at, ``max-disk-usage`` is limit enough.
        """
        if self.max_store_bytes is not None:
            return self.max_store_bytes
        return -1 if self.watched_directories else SERVER_STORE_BYTES

    @property
    def watched_directories(self) -> tuple[Path, ...]:
        """Where the store's files are, if they are this host's to see."""
        store = self.store
        if not self.persistence_enabled:
            return ()
        if isinstance(store, FileStoreSettings):
            return (
                store.journal_directory,
                store.bindings_directory,
                store.large_messages_directory,
            )
        path = store.jdbc_connection_url.sqlite_path
        return () if path is None else (path.parent,)

    @property
    def database_store(self) -> DatabaseStoreSettings:
        """The database, for what needs one; raises ConfigurationError if there is none."""
        if isinstance(self.store, DatabaseStoreSettings):
            return self.store
        where = f"{self.source}: " if self.source else ""
        if not self.persistence_enabled:
            raise ConfigurationError(f"{where}persistence-enabled is false: nothing is stored")
        raise ConfigurationError(
            f"{where}no database-store is configured: messages are stored in files in"
            f" {self.store.journal_directory}, and there is no database to look at"
        )
