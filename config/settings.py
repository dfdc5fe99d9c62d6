"""What the operator asked for, frozen: the settings every other room reads.

Names are the elements of ``broker.xml`` with underscores; durations are milliseconds and sizes
bytes unless a docstring says otherwise. Defaults are Artemis' unless a comment says why not.
"""

from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from orthia.config.acceptor_amqp import AcceptorAmqp
from orthia.config.acceptor_tls import AcceptorTls, ClientCertificate
from orthia.config.acceptor_websocket import AcceptorWebSocket
from orthia.config.address_settings import AddressConfiguration, AddressSettings, DivertSettings
from orthia.config.errors import ConfigurationError
from orthia.config.login_domains import LoginDomain
from orthia.config.secrets import Secret
from orthia.config.security_settings import (
    CertificateLoginModule,
    PropertiesLoginModule,
    ResourceLimitSetting,
    RoleMapping,
    SecuritySetting,
    TokenLoginModule,
    User,
)
from orthia.config.store_settings import DatabaseStoreSettings, FileStoreSettings
from orthia.config.wildcards import WildcardAddresses


class IoErrorPolicy(Enum):
    """Orthia's ``io-error-policy``: what a node does that lost its lock or its store."""

    SHUTDOWN = "shutdown"
    RESTART_AS_BACKUP = "restart-as-backup"
    STOP_CONNECTORS = "stop-connectors"
    """Classic's LeaseLockerIOExceptionHandler."""


class CriticalAnalyzerPolicy(Enum):
    """What happens to a node whose event loop does not answer."""

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
class VirtualTopicConsumers:
    """One of ``virtualTopicConsumerWildcards``: queues that consume what is sent to a topic."""

    pattern: str
    """What they are called, in Classic's wildcards: ``*`` is a word, ``>`` the words that follow.
    """
    consumer_words: int
    """How many words are the consumer's name; those behind them are the topic's."""

    def topic_of(self, name: str) -> str | None:
        """Return the topic whose consumer a queue of this name is; None if it is none."""
        wanted, words = self.pattern.split("."), name.split(".")
        if wanted[-1] == ">":
            wanted.pop()
            is_long_enough = len(words) > len(wanted)
        else:
            is_long_enough = len(words) == len(wanted)
        # Its last word is the topic's, whatever a pattern says.
        if not is_long_enough or len(words) <= self.consumer_words:
            return None
        if any(one not in ("*", word) for one, word in zip(wanted, words, strict=False)):
            return None
        return ".".join(words[self.consumer_words :])


@dataclass(frozen=True)
class AcceptorSettings:
    """One ``acceptor``: where clients connect."""

    name: str
    host: str
    port: int
    protocols: tuple[str, ...] = ("STOMP",)
    """``protocols``: what its clients may speak, in capitals; STOMP and AMQP are served."""
    connections_allowed: int = -1
    """``connectionsAllowed``: connections to this acceptor; -1 leaves it to max-connections."""
    handshake_timeout: int | None = None
    """``handshake-timeout``: seconds for the login; None leaves it to connect-timeout."""
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
    virtual_topic_consumers: tuple[VirtualTopicConsumers, ...] = ()
    """``virtualTopicConsumerWildcards``: which queues are those of a virtual topic's consumers."""
    tls: AcceptorTls | None = None
    """How it speaks TLS; None without ``sslEnabled``."""
    web_socket: AcceptorWebSocket = field(default_factory=AcceptorWebSocket)
    """How it speaks WebSocket."""
    amqp: AcceptorAmqp = field(default_factory=AcceptorAmqp)
    """How it speaks AMQP."""


def asks_for_certificate(acceptor: AcceptorSettings) -> bool:
    """Return whether a client may show a certificate to ``acceptor``."""
    tls = acceptor.tls
    return tls is not None and tls.client_certificate is not ClientCertificate.IGNORED


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
    queue_metrics: bool = True
    """Whether queues and addresses have metrics of their own, the fullest of them."""
    artemis_metrics: bool = False
    """Whether they have them under the names of Artemis' metrics plugin, too."""
    advertised_url: str | None = None
    """Where others reach it, if that is not what it listens on."""
    tls: AcceptorTls | None = None
    """How it speaks TLS; None in the clear."""
    operators: tuple[User, ...] = ()
    """Who uses the console and the API of a node whose clients need no login: of a file that
    ``--console-users`` names, not of ``broker.xml``. Without any, whoever reaches it."""


@dataclass(frozen=True)
class OutboxSettings:
    """Orthia's ``outbox`` element: what applications send in their own transactions. Off unless
    present."""

    user: str | None = None
    """For whom messages are sent: its roles are asked for the permissions a client needs."""
    poll_period: int = 100
    """The longest pause between two looks at the outbox, while nothing is in it."""
    notify: bool = True
    """Whether on PostgreSQL a commit wakes a node that has nothing to do."""


@dataclass(frozen=True)
class ClientLimits:
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
    max_transaction_bytes: int = 16_777_216
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
    """How many queues there may be before clients can create no more."""
    max_queues_per_user: int = 10_000
    """Queues there may be that one user had created, by whatever connection and node."""
    max_queues_per_connection: int = 1_000
    """Queues that one connection may have created."""
    max_selector_bytes: int = 134_217_728
    """Bytes of the parsed selectors of durable subscriptions that clients may have made."""


HTTP_LISTENER = "<health>"
"""What is said in place of an acceptor's name where HTTP is meant."""
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
    """How often unused queues are looked for; 0 or less never."""
    message_expiry_scan_period: int = 30_000
    """How often expired messages are looked for; 0 or less never."""
    configuration_file_refresh_period: int = 5_000
    """How often a node looks whether its file changed; 0 or less never."""
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
    login_domain: LoginDomain | None = None
    """Of Artemis' ``login.config``: how its login modules decide; None if they just add up."""
    authentication_cache_size: int = 1_000
    """Logins of which it is remembered whether the hash of their passcode was right; 0 for none."""
    security_invalidation_interval: int = 10_000
    """How long that is remembered; 0 not at all."""
    resource_limit_settings: tuple[ResourceLimitSetting, ...] = ()
    health: HealthSettings | None = None
    outbox: OutboxSettings | None = None
    stomp_limits: ClientLimits = field(default_factory=ClientLimits)
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
    """Warnings for the operator; to be logged once at start."""
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
    def tls_listeners(self) -> tuple[AcceptorSettings, ...]:
        """The acceptors with TLS, and HTTP as if it was one, if it has TLS."""
        found = [one for one in self.acceptors if one.tls is not None]
        health = self.health
        if health is not None and health.tls is not None:
            found.append(AcceptorSettings(HTTP_LISTENER, health.host, health.port, tls=health.tls))
        return tuple(found)

    @property
    def asks_for_certificates(self) -> bool:
        """Whether a client may show a certificate to some acceptor."""
        return any(asks_for_certificate(one) for one in self.acceptors)

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
