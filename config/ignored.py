"""What Artemis knows and Orthia does not have: what changes nothing, and what happens instead.

A key is the name of an element with that of the element around it: ``core/bridges``. Every one that
the XSD declares ignored is in one of the two tables.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from orthia.config.problems import Location


@dataclass(frozen=True)
class Instead:
    """What happens to messages, nodes or clients where Artemis would do something else."""

    happens: str
    """A sentence without its full stop."""
    same_at: tuple[str, ...] = ()
    """Values with which Artemis does what Orthia does, in lower case."""


@dataclass(frozen=True, order=True)
class NotApplied:
    """Something in a file that Artemis would do, with what happens instead."""

    location: Location
    name: str
    happens: str


def what_happens_instead(key: str, value: str | None) -> str | None:
    """Return what happens instead of what ``key`` asks for; None if nothing is changed.

    ``value`` is its text; None for an element that holds others.
    """
    instead = CHANGES.get(key)
    if instead is None or (value is not None and value.strip().lower() in {"", *instead.same_at}):
        return None
    return instead.happens


_FALSE: Final = ("false", "0")
_NONE: Final = ("-1",)
_ANY_CONSUMER: Final = "messages of a group go to whichever consumer is next"
_FORGOTTEN: Final = (
    "an address that was created for a client is forgotten when it has neither a queue nor a"
    " subscriber"
)
_NOT_DELETED_CREATED: Final = (
    "a queue that was not created automatically stays until it is deleted, though it is empty and"
    " unused; auto-delete-queues decides about those that were"
)
_STAYS_STORED: Final = "what is no longer in this file stays, with its messages"
_NO_PLUGIN: Final = "no code of yours sees messages, sessions or connections"
_ALONE: Final = "this node exchanges no messages with other brokers"
_NO_NETWORK_CHECK: Final = (
    "a node that is cut off from these hosts goes on serving; its lock alone decides who is live"
)
_COUNTED_IN_BYTES: Final = "what queues keep in memory is limited by bytes alone (global-max-size)"

CHANGES: Final[Mapping[str, Instead]] = {
    # Messages that Artemis would take elsewhere.
    "core/bridges": Instead("messages stay on this node; nothing sends them on to another broker"),
    "divert/transformer": Instead("the message is diverted as it came; no code changes it"),
    "divert/transformer-class-name": Instead(
        "the message is diverted as it came; no code changes it"
    ),
    "core/amqp-use-core-subscription-naming": Instead(
        "queues of AMQP clients' subscriptions are called as Artemis does by default", ("false",)
    ),
    "core/federations": Instead(_ALONE),
    "core/broker-connections": Instead(f"{_ALONE}, and mirrors none"),
    "core/cluster-connections": Instead(f"{_ALONE}; its backup shares its store and needs none"),
    "core/connector-services": Instead(_NO_PLUGIN),
    "core/grouping-handler": Instead(_ANY_CONSUMER),
    "core/connection-routers": Instead("clients stay on the node they connect to"),
    "ha-policy/live-only": Instead("this node is live alone and hands nothing over when it stops"),
    "ha-policy/primary-only": Instead(
        "this node is live alone and hands nothing over when it stops"
    ),
    "backup/scale-down": Instead("messages stay in the store; no other broker gets them"),
    # Code and messages of Artemis' own.
    "core/broker-plugins": Instead(_NO_PLUGIN),
    "core/remoting-incoming-interceptors": Instead(_NO_PLUGIN),
    "core/remoting-outgoing-interceptors": Instead(_NO_PLUGIN),
    "core/management-address": Instead(
        "a message sent there is stored like any other: the address is activemq.management",
        ("activemq.management",),
    ),
    "core/management-notification-address": Instead("no notification is sent there"),
    "core/reject-empty-validated-user": Instead(
        "messages are taken without the name of a validated user", _FALSE
    ),
    "core/persist-id-cache": Instead(
        "duplicate ids are stored with their messages all the same, and known after a restart",
        ("true", "1"),
    ),
    "core/journal-retention-directory": Instead(
        "nothing is kept of what left its queue; with a database, journal-retention of urn:orthia"
        " keeps it"
    ),
    "core/persist-delivery-count-before-delivery": Instead(
        "an attempt is counted, and stored, once it has failed, and not before the delivery", _FALSE
    ),
    # Names of addresses, and what is declared.
    "configuration/jms": Instead(
        "its queues and topics are not created; expected them in core/addresses"
    ),
    "core/queues": Instead("these queues are not created; expected them in core/addresses"),
    "core/literal-match-markers": Instead("* and # in a match always stand for other words"),
    # Clients and nodes.
    "security-settings/security-setting-plugin": Instead(
        "the permissions are those of this file alone"
    ),
    "core/connection-ttl-override": Instead(
        "a silent client without heart-beats is ended after connectionTtl of its acceptor, and"
        " without that never",
        _NONE,
    ),
    "core/network-check-list": Instead(_NO_NETWORK_CHECK),
    "core/network-check-URL-list": Instead(_NO_NETWORK_CHECK),
    "core/global-max-messages": Instead(_COUNTED_IN_BYTES, _NONE),
    # Settings of addresses.
    "address-setting/disk-full-policy": Instead(
        "while a disk is fuller than max-disk-usage, each SEND is refused with an ERROR", ("fail",)
    ),
    "address-setting/auto-create-jms-queues": Instead("auto-create-queues decides", ("true", "1")),
    "address-setting/auto-create-jms-topics": Instead(
        "auto-create-addresses decides", ("true", "1")
    ),
    "address-setting/auto-delete-addresses": Instead(_FORGOTTEN, ("true", "1")),
    "address-setting/auto-delete-created-queues": Instead(_NOT_DELETED_CREATED, _FALSE),
    "address-setting/auto-delete-jms-queues": Instead(
        "auto-delete-queues decides, which is false unless it is given", _FALSE
    ),
    "address-setting/auto-delete-jms-topics": Instead(_FORGOTTEN, ("true", "1")),
    "address-setting/config-delete-addresses": Instead(_STAYS_STORED, ("off",)),
    "address-setting/config-delete-diverts": Instead(
        "a divert that is no longer in this file is gone: none is stored", ("force",)
    ),
    "address-setting/config-delete-queues": Instead(_STAYS_STORED, ("off",)),
    "address-setting/retroactive-message-count": Instead(
        "a new subscriber gets what is sent from then on, and nothing from before", ("0",)
    ),
    "address-setting/send-to-dla-on-no-route": Instead(
        "a message for a topic without queue or subscriber is dropped", _FALSE
    ),
}
"""What would change what happens, by key."""

HARMLESS: Final[Mapping[str, tuple[str, ...]]] = {
    "how Artemis' own threads, caches and buffers are sized, and how often they look": (
        "core/async-connection-execution-enabled",
        "core/authorization-cache-size",
        "core/connection-ttl-check-interval",
        "core/global-max-size-percent-of-jvm-max-memory",
        "core/max-redelivery-records",
        "core/memory-measure-interval",
        "core/memory-warning-threshold",
        "core/message-expiry-thread-priority",
        "core/scheduled-thread-pool-max-size",
        "core/thread-pool-max-size",
        "address-setting/default-consumer-window-size",
        "address-setting/initial-queue-buffer-size",
    ),
    "what is written for a person to read: metrics, counters, JMX, management": (
        "core/internal-naming-prefix",
        "core/jmx-domain",
        "core/jmx-management-enabled",
        "core/jmx-use-broker-name",
        "core/log-delegate-factory-class-name",
        "core/log-journal-write-rate",
        "core/message-counter-enabled",
        "core/message-counter-max-day-history",
        "core/message-counter-sample-period",
        "core/metrics",
        "core/metrics-plugin",
        "core/server-dump-interval",
        "core/suppress-session-notifications",
        "address-setting/enable-metrics",
        "address-setting/management-browse-page-size",
        "address-setting/management-message-attribute-size-limit",
        "address-setting/message-counter-history-day-limit",
    ),
    "pages and files of Artemis' store, and how it reaches a database": (
        "core/journal-buffer-timeout",
        "core/journal-device-block-size",
        "core/journal-file-open-timeout",
        "core/large-message-sync",
        "core/node-manager-lock-directory",
        "core/page-max-concurrent-io",
        "core/page-sync-timeout",
        "core/paging-directory",
        "core/purge-page-folders",
        "core/read-whole-page",
        "database-store/data-source-class-name",
        "database-store/jdbc-driver-class-name",
        "database-store/jdbc-journal-sync-period",
        "database-store/jdbc-max-page-size-bytes",
        "database-store/page-store-table-name",
        "address-setting/max-read-page-bytes",
        "address-setting/max-read-page-messages",
        "address-setting/page-max-cache-size",
        "address-setting/prefetch-page-bytes",
        "address-setting/prefetch-page-messages",
    ),
    "details of what is told by itself when it is asked for: clusters, mirrors, deletion,"
    " redelivery, slow consumers": (
        "core/broadcast-groups",
        "core/cluster-password",
        "core/cluster-user",
        "core/connectors",
        "core/discovery-groups",
        "core/mirror-ack-manager-page-attempts",
        "core/mirror-ack-manager-queue-attempts",
        "core/mirror-ack-manager-retry-delay",
        "core/mirror-ack-manager-warn-unacked",
        "core/mirror-page-transaction",
        "core/network-check-NIC",
        "core/network-check-period",
        "core/network-check-ping-command",
        "core/network-check-ping6-command",
        "core/network-check-timeout",
        "address-setting/auto-delete-addresses-delay",
        "address-setting/auto-delete-addresses-skip-usage-check",
        "address-setting/auto-delete-queues-skip-usage-check",
        "address-setting/redistribution-delay",
    ),
    "protocols and clients that Orthia does not serve": (
        "core/mqtt-session-scan-interval",
        "core/mqtt-session-state-persistence-timeout",
        "core/mqtt-subscription-persistence-enabled",
        "core/resolve-protocols",
        "core/temporary-queue-namespace",
        "core/uuid-namespace",
        "address-setting/max-size-bytes-reject-threshold",
    ),
    "where Orthia does by itself what is safe": (
        "core/graceful-shutdown-enabled",
        "core/graceful-shutdown-timeout",
        "core/mask-password",
        "core/system-property-prefix",
        "core/transaction-timeout",
        "core/transaction-timeout-scan-period",
        "divert/routing-name",
        "primary/failback-delay",
        "primary/wait-for-activation",
        "backup/failback-delay",
    ),
    "refused with a problem of its own": ("ha-policy/replication", "shared-store/colocated"),
}
"""What changes nothing for messages, nodes or STOMP clients: keys by why."""


def told(not_applied: Iterable[NotApplied]) -> tuple[str, ...]:
    """Return a line for each, those of one name and consequence in one."""
    places: dict[tuple[Path, str, str], list[int]] = {}
    for one in sorted(not_applied):
        key = (one.location.file, one.name, one.happens)
        lines = places.setdefault(key, [])
        if one.location.line not in lines:
            lines.append(one.location.line)
    return tuple(
        f"{file}:{', '.join(map(str, lines))}: {name}: {happens}"
        for (file, name, happens), lines in places.items()
    )
