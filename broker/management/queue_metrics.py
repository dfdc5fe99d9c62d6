"""The metrics of single queues and addresses: a bounded number, under two sets of names.

Clients create queues, and each costs whoever scrapes. So the fullest queues are shown, with the
addresses they belong to.
"""

from collections.abc import Collection, Iterator
from typing import Final, NamedTuple

from prometheus_client.core import GaugeMetricFamily, Metric

MAX_QUEUES_SHOWN: Final = 1_000


class QueueSeen(NamedTuple):
    """A queue at one moment."""

    name: str
    address: str
    is_multicast: bool
    messages: int
    consumers: int
    delivering: int
    added: int
    """This and the next since the node became live."""
    acknowledged: int
    expired: int
    killed: int
    oldest_ms: int | None = None
    """When its oldest message was accepted, of those in memory."""
    fill: float | None = None
    """How much of the nearest limit its address uses; None if it has none."""


class QueueNames(NamedTuple):
    """Under which names queues and addresses are shown."""

    own: bool = True
    artemis: str | None = None
    """What the broker is called in Artemis' metrics; None to show none of them."""


_OWN: Final = {
    "orthia_queue_consumers": ("Consumers of a queue", "consumers"),
    "orthia_queue_delivering": ("Messages of a queue that consumers have", "delivering"),
}


def own(queues: Collection[QueueSeen]) -> Iterator[Metric]:
    """Yield the metrics of queues and their addresses."""
    for name, (about, field) in _OWN.items():
        family = GaugeMetricFamily(name, about, labels=["queue"])
        for one in queues:
            family.add_metric([one.name], getattr(one, field))
        yield family
    events = GaugeMetricFamily(
        "orthia_queue_events",
        "What became of the messages of a queue since the node became live",
        labels=["queue", "event"],
    )
    for one in queues:
        for event in ("added", "acknowledged", "expired", "killed"):
            events.add_metric([one.name, event], getattr(one, event))
    yield events
    messages = GaugeMetricFamily(
        "orthia_address_messages", "Messages in the queues of an address", labels=["address"]
    )
    for address, some in _by_address(queues).items():
        messages.add_metric([address], sum(one.messages for one in some))
    yield messages
    oldest = GaugeMetricFamily(
        "orthia_queue_oldest_message_timestamp_seconds",
        "When the oldest message of a queue was accepted, of those in memory",
        labels=["queue"],
    )
    fill = GaugeMetricFamily(
        "orthia_address_fill_ratio",
        "How much of its nearest limit an address uses, 1 when it is full",
        labels=["address"],
    )
    for one in queues:
        if one.oldest_ms is not None:
            oldest.add_metric([one.name], one.oldest_ms / 1_000)
    for address, some in _by_address(queues).items():
        if some[0].fill is not None:
            fill.add_metric([address], some[0].fill)
    yield oldest
    yield fill


_ARTEMIS: Final = {
    "artemis_message_count": ("Messages in a queue", "messages"),
    "artemis_consumer_count": ("Consumers of a queue", "consumers"),
    "artemis_delivering_message_count": ("Messages that consumers have", "delivering"),
    "artemis_messages_added": ("Messages added to a queue", "added"),
    "artemis_messages_acknowledged": ("Messages acknowledged", "acknowledged"),
    "artemis_messages_expired": ("Messages expired", "expired"),
    "artemis_messages_killed": ("Messages that became dead letters", "killed"),
}


def artemis(queues: Collection[QueueSeen], broker: str) -> Iterator[Metric]:
    """Yield the same under the names of Artemis' metrics plugin."""
    for name, (about, field) in _ARTEMIS.items():
        family = GaugeMetricFamily(name, about, labels=["address", "broker", "queue"])
        for one in queues:
            family.add_metric([one.address, broker, one.name], getattr(one, field))
        yield family
    routed = GaugeMetricFamily(
        "artemis_routed_message_count",
        "Messages routed to queues of an address",
        labels=["address", "broker"],
    )
    for address, some in _by_address(queues).items():
        # A message goes to one anycast queue, and to every multicast one.
        anycast = sum(one.added for one in some if not one.is_multicast)
        multicast = max((one.added for one in some if one.is_multicast), default=0)
        routed.add_metric([address, broker], max(anycast, multicast))
    yield routed


def _by_address(queues: Collection[QueueSeen]) -> dict[str, list[QueueSeen]]:
    found: dict[str, list[QueueSeen]] = {}
    for one in queues:
        found.setdefault(one.address, []).append(one)
    return dict(sorted(found.items()))
