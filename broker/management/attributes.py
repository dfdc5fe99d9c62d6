"""What is read of a node, its addresses and its queues, by the names of Artemis' management.

Each attribute is read from what the facade shows. Jolokia and ``activemq.management`` read them.
"""

import json
from collections.abc import Callable, Collection
from importlib import metadata
from typing import Any, Final, NamedTuple

from orthia.broker.core.identity import Principal
from orthia.broker.management.facade import Management
from orthia.broker.management.java_types import BOOLEAN, INT, LONG, STRING, STRINGS
from orthia.config.settings import Role, Settings

ALONE: Final = "Primary Only"
"""What Artemis calls the policy of HA of a broker that shares its store with no other."""


class Attribute(NamedTuple):
    """One attribute of a kind of objects."""

    type: str
    get: Callable[[Any], Any]
    """Takes what ``source`` is of."""
    source: str = "view"


class NodeSeen(NamedTuple):
    """What is known of a node whether it is live or not."""

    name: str
    is_live: bool
    is_backup: bool
    """Whether it waits for the live node to end."""
    ha_policy: str
    """What it is configured to be, which a takeover does not change, by Artemis' name."""
    node_id: str | None = None
    uptime_ms: int = 0


def percent(part: int, whole: int) -> int:
    """Return how much of a whole is used, 100 at most; 0 if there is no bound."""
    return min(100, 100 * part // whole) if whole > 0 else 0


def uptime(milliseconds: int) -> str:
    """Return a duration in words, as Artemis does: its two largest units."""
    seconds = milliseconds / 1_000
    if seconds < 60:
        return f"{seconds:.3f} seconds"
    minutes = int(seconds // 60)
    parts = ((minutes // 1_440, "day"), (minutes // 60 % 24, "hour"), (minutes % 60, "minute"))
    said = [f"{number} {unit}{'s' if number != 1 else ''}" for number, unit in parts if number]
    return " ".join(said[:2])


def _status(seen: NodeSeen) -> str:
    server = {
        "state": "STARTED",
        "version": version(),
        "nodeId": seen.node_id,
        "identity": seen.name,
        "uptime": uptime(seen.uptime_ms),
    }
    return json.dumps({"server": server}, separators=(",", ":"))


def ha_policy_of(settings: Settings) -> str:
    """Return what a node is configured to be, by Artemis' name."""
    if not settings.persistence_enabled:
        return ALONE
    is_backup = settings.ha_policy.role is Role.BACKUP
    return "Shared Store Backup" if is_backup else "Shared Store Primary"


def version() -> str:
    """Return the version of this node."""
    return metadata.version("orthia")


def as_text(get: Callable[[Any], Any], source: str = "view") -> Attribute:
    """Return an attribute that is a text."""
    return Attribute(STRING, get, source)


def as_long(get: Callable[[Any], Any], source: str = "view") -> Attribute:
    """Return an attribute that is a whole number."""
    return Attribute(LONG, get, source)


def as_flag(get: Callable[[Any], Any], source: str = "view") -> Attribute:
    """Return an attribute that is true or false."""
    return Attribute(BOOLEAN, get, source)


def as_names(get: Callable[[Any], Any], source: str = "view") -> Attribute:
    """Return an attribute that is a list of texts."""
    return Attribute(STRINGS, get, source)


OF_BROKER: Final = {
    "Name": as_text(lambda one: one.name, "node"),
    "Version": as_text(lambda _: version(), "node"),
    "Status": as_text(_status, "node"),
    "Active": as_flag(lambda one: one.is_live, "node"),
    "Started": as_flag(lambda _: True, "node"),
    "Backup": as_flag(lambda one: one.is_backup, "node"),
    "SharedStore": as_flag(lambda one: one.ha_policy != ALONE, "node"),
    "HAPolicy": as_text(lambda one: one.ha_policy, "node"),
    "NodeID": as_text(lambda one: one.node_id, "overview"),
    "Uptime": as_text(lambda one: uptime(one.uptime_ms), "overview"),
    "UptimeMillis": as_long(lambda one: one.uptime_ms, "overview"),
    "TotalMessageCount": as_long(lambda one: one.messages, "overview"),
    "TotalMessagesAdded": as_long(lambda one: one.added, "overview"),
    "TotalMessagesAcknowledged": as_long(lambda one: one.acknowledged, "overview"),
    "TotalConsumerCount": as_long(lambda one: one.consumers, "overview"),
    "ConnectionCount": Attribute(INT, lambda one: one.connections, "overview"),
    "QueueCount": Attribute(INT, lambda one: one.queues, "overview"),
    "AddressCount": Attribute(INT, lambda one: one.addresses, "overview"),
    "QueueNames": as_names(lambda found: sorted(one.name for one in found), "queues"),
    "AddressNames": as_names(lambda found: sorted(one.name for one in found), "addresses"),
    "AddressMemoryUsage": as_long(lambda one: one.messages_bytes, "memory"),
    "AddressMemoryUsagePercentage": Attribute(
        INT, lambda one: percent(one.messages_bytes, one.messages_limit), "memory"
    ),
    "GlobalMaxSize": as_long(lambda one: one.messages_limit, "memory"),
}
OF_ADDRESS: Final = {
    "Address": as_text(lambda one: one.name),
    "RoutingTypes": as_names(lambda one: [kind.value for kind in one.routing_types]),
    "RoutingTypesAsJSON": as_text(
        lambda one: json.dumps([kind.value for kind in one.routing_types])
    ),
    "QueueNames": as_names(lambda one: list(one.queues)),
    "BindingNames": as_names(lambda one: list(one.queues)),
    "QueueCount": as_long(lambda one: len(one.queues)),
    "MessageCount": as_long(lambda one: one.messages),
    "AddressSize": as_long(lambda one: one.bytes),
    "AddressLimitPercent": Attribute(INT, lambda one: percent(one.bytes, one.max_size_bytes)),
    "Paused": as_flag(lambda one: one.paused),
    "AutoCreated": as_flag(lambda one: not (one.configured or one.created)),
    "Temporary": as_flag(lambda one: one.temporary),
}
OF_QUEUE: Final = {
    "Name": as_text(lambda one: one.name),
    "Address": as_text(lambda one: one.address),
    "RoutingType": as_text(lambda one: one.routing_type.value),
    "MessageCount": as_long(lambda one: one.messages + one.scheduled),
    "ConsumerCount": Attribute(INT, lambda one: one.consumers),
    "DeliveringCount": Attribute(INT, lambda one: one.delivering),
    "ScheduledCount": as_long(lambda one: one.scheduled),
    "MessagesAdded": as_long(lambda one: one.added),
    "MessagesAcknowledged": as_long(lambda one: one.acknowledged),
    "MessagesExpired": as_long(lambda one: one.expired),
    "MessagesKilled": as_long(lambda one: one.killed),
    "PersistentSize": as_long(lambda one: one.bytes),
    "FirstMessageTimestamp": Attribute("java.lang.Long", lambda one: one.oldest_ms),
    "Durable": as_flag(lambda one: one.durable),
    "Temporary": as_flag(lambda one: one.temporary),
    "Paused": as_flag(lambda one: one.paused),
    "ConfigurationManaged": as_flag(lambda one: one.configured),
    "Filter": as_text(lambda one: one.filter),
    "Exclusive": as_flag(lambda one: one.exclusive),
    "LastValue": as_flag(lambda one: one.last_value_key is not None),
    "LastValueKey": as_text(lambda one: one.last_value_key),
    "RingSize": as_long(lambda one: -1 if one.ring_size is None else one.ring_size),
    "MaxConsumers": Attribute(
        INT, lambda one: -1 if one.max_consumers is None else one.max_consumers
    ),
    "User": as_text(lambda one: one.user),
}


async def sources_of_broker(
    node: Management, who: Principal, sources: Collection[str], seen: dict[str, Any]
) -> dict[str, Any]:
    """Return ``seen`` with what attributes of the broker are read from, as far as it is needed."""
    needed = {*sources} - seen.keys()
    if "overview" in needed or "node" in needed:
        seen["overview"] = overview = await node.overview(who)
        seen["node"] = NodeSeen(
            node.name,
            is_live=True,
            is_backup=False,
            ha_policy=node.ha_policy,
            node_id=overview.node_id,
            uptime_ms=overview.uptime_ms,
        )
    if "memory" in needed:
        seen["memory"] = await node.memory(who)
    if "queues" in needed:
        seen["queues"] = await node.all_queues(who)
    if "named-queues" in needed:
        seen["named-queues"] = node.name, await node.all_queues(who)
    if "named-addresses" in needed:
        seen["named-addresses"] = node.name, await node.addresses(who)
    if "addresses" in needed:
        seen["addresses"] = await node.addresses(who)
    return dict(seen)
