"""The view of a running node for probes and metrics.

The node gives its status as one immutable value; its broker and journal exist only while it is
live. Every method may be called on any thread, and none blocks. The operations that a client may
request are in ``orthia.broker.management.operations``.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from heapq import nlargest

from prometheus_client import CollectorRegistry
from typing_extensions import override

from orthia.broker.core.broker import Broker
from orthia.broker.core.destinations import is_schedule
from orthia.broker.core.limits.quota import ShownUse
from orthia.broker.core.queue.queue import Queue
from orthia.broker.core.queue.seen import oldest_ms
from orthia.broker.core.sending.relay import RelayStatus
from orthia.broker.management.abc import HealthSource, Verdict
from orthia.broker.management.metrics import NodeMetrics, Values
from orthia.broker.management.queue_metrics import MAX_QUEUES_SHOWN, QueueSeen
from orthia.broker.tls.expiry import Validity
from orthia.config.address_settings import RoutingType
from orthia.journal.engine.acks import AckStatus
from orthia.journal.engine.locks import NO_LOCKS, LocksSeen
from orthia.journal.journal import MessageJournal
from orthia.journal.model.history import HistoryTotals


@dataclass(frozen=True)
class NodeStatus:
    """The state of a node at one moment."""

    name: str
    phase: str
    """Its role, by the names of ``/role`` and ``orthia_role``."""
    is_live: bool
    is_failed: bool
    failure: str | None
    """Why it is about to exit; None if nothing has failed."""
    holder_id: str | None
    token: int | None
    """The fencing token of its live lease; None unless it is live."""
    is_lease_valid: bool
    lease_seconds_remaining: float | None


class RunningNode(HealthSource):
    """A node as operators see it, from its start to its end."""

    def __init__(
        self,
        metrics: NodeMetrics,
        *,
        status: Callable[[], NodeStatus],
        broker: Callable[[], Broker | None],
        journal: Callable[[], MessageJournal | None],
        connections: Callable[[], int],
        certificates: Callable[[], Mapping[str, Validity]] = dict,
    ) -> None:
        """Register the values of the node with ``metrics``.

        ``broker`` and ``journal`` return None while the node does not serve.
        """
        self._metrics = metrics
        self.status = status
        self._broker = broker
        self._journal = journal
        values = Values(
            lease_seconds_remaining=lambda: status().lease_seconds_remaining,
            queue_depths=self.queue_depths,
            connections=connections,
            history=self.history,
            messages=self.messages,
            store_use=self.store_use,
            certificates=certificates,
            locks=self.locks,
            queues=self.queues,
            outbox=self.outbox,
            acks=self.acks,
        )
        metrics.watch(values)

    @property
    @override
    def registry(self) -> CollectorRegistry:
        return self._metrics.registry

    @override
    def liveness(self) -> Verdict:
        """A running node is alive, whatever its role; one that failed is about to exit."""
        now = self.status()
        return Verdict(not now.is_failed, now.failure or now.phase)

    @override
    def readiness(self) -> Verdict:
        """Only a live node whose lease is valid serves clients."""
        now = self.status()
        if not now.is_live:
            return Verdict(ok=False, reason=f"{now.phase}: no clients are served here")
        return Verdict(now.is_lease_valid, "live" if now.is_lease_valid else _LEASE_INVALID)

    @override
    def describe_role(self) -> Mapping[str, object]:
        now = self.status()
        return {
            "name": now.name,
            "role": now.phase,
            "token": now.token,
            "lease_seconds_remaining": now.lease_seconds_remaining,
            "holder_id": now.holder_id,
        }

    def queue_depths(self) -> Mapping[str, int]:
        """Return the number of messages of each queue, by its name."""
        broker = self._broker()
        return {} if broker is None else broker.depths()

    def queues(self) -> list[QueueSeen]:
        """Return the fullest queues that clients can consume from."""
        broker = self._broker()
        if broker is None:
            return []
        # A list, made at once: the loop may change the dictionary meanwhile.
        book = broker.parts.book
        queues = [one for one in list(book.queues.values()) if not is_schedule(one.name)]
        found = []
        for one in nlargest(MAX_QUEUES_SHOWN, queues, key=lambda each: each.depth):
            address = book.known.get(one.address)
            found.append(
                QueueSeen(
                    one.name,
                    one.address,
                    one.routing_type is RoutingType.MULTICAST,
                    one.depth,
                    one.consumers,
                    one.unsettled.delivered,
                    one.counters.added,
                    one.counters.acknowledged,
                    one.counters.expired,
                    one.counters.dead_lettered,
                    _oldest_ms(one),
                    None if address is None else address.use.fill,
                )
            )
        return found

    def messages(self) -> Mapping[str, int]:
        """Return the counts of messages of all queues since the node became live, by event."""
        broker = self._broker()
        return {} if broker is None else asdict(broker.counters())

    def store_use(self) -> ShownUse | None:
        """Return how much of the store is used, and what blocks it; None while it is not open."""
        broker = self._broker()
        return None if broker is None else broker.store_use.shown

    def history(self) -> HistoryTotals | None:
        """Return the totals of retention; None without retention, or while this node is passive."""
        journal = self._journal()
        return None if journal is None else journal.history_totals

    def outbox(self) -> RelayStatus | None:
        """Return what there is of the outbox; None without one, or while this node is passive."""
        broker = self._broker()
        relay = None if broker is None else broker.relay
        return None if relay is None else relay.status

    def acks(self) -> AckStatus | None:
        """Return what applications acknowledged by SQL; None where they cannot."""
        journal = self._journal()
        return None if journal is None or journal.acks is None else journal.acks.status

    def locks(self) -> LocksSeen:
        """Return the locks of other sessions that the journal waits for now."""
        journal = self._journal()
        return NO_LOCKS if journal is None else journal.locks


def _oldest_ms(queue: Queue) -> int | None:
    """Return when the oldest message in memory was accepted; None if the loop moves it now."""
    try:
        return oldest_ms(queue)
    except (LookupError, RuntimeError):
        return None  # it was taken while it was looked at


_LEASE_INVALID = "the lease is not valid"
