"""The metrics of a node, for Prometheus.

Labelled children are made once and kept: ``labels()`` costs three times what counting costs. Values
that other parts of the node have (queue depths, the lease) are read when metrics are rendered.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from heapq import nlargest
from operator import itemgetter
from typing import Final

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    PlatformCollector,
    ProcessCollector,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from orthia.broker.core.limits.quota import ShownUse
from orthia.broker.core.sending.relay import RelayStatus
from orthia.broker.management import queue_metrics
from orthia.broker.management.histogram import LoopHistogram
from orthia.broker.management.queue_metrics import MAX_QUEUES_SHOWN, QueueNames, QueueSeen
from orthia.broker.tls.expiry import Validity
from orthia.journal.engine.acks import AckStatus
from orthia.journal.engine.locks import NO_LOCKS, LocksSeen
from orthia.journal.model.history import HistoryTotals

_SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_ROWS: Final = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000)


@dataclass(frozen=True, kw_only=True)
class Values:
    """What is read whenever the metrics are rendered, on the rendering thread.

    So each must be safe to call on any thread, whatever the event loop does.
    """

    lease_seconds_remaining: Callable[[], float | None]
    queue_depths: Callable[[], Mapping[str, int]]
    connections: Callable[[], int]
    history: Callable[[], HistoryTotals | None]
    store_use: Callable[[], ShownUse | None]
    messages: Callable[[], Mapping[str, int]] = dict
    """Counts the messages of all queues by event: ``added``, ``acknowledged`` and so on."""
    certificates: Callable[[], Mapping[str, Validity]] = dict
    locks: Callable[[], LocksSeen] = lambda: NO_LOCKS
    queues: Callable[[], Collection[QueueSeen]] = tuple
    """Returns the ``MAX_QUEUES_SHOWN`` fullest queues."""
    outbox: Callable[[], RelayStatus | None] = lambda: None
    acks: Callable[[], AckStatus | None] = lambda: None


class NodeMetrics:
    """The metrics of one node, in a registry of its own.

    ``roles`` are the names that ``role_is`` accepts, ``refusals`` those of ``client_refused``.
    """

    def __init__(
        self,
        roles: Iterable[str],
        refusals: Iterable[str] = (),
        queue_names: QueueNames = QueueNames(),  # noqa: B008 - immutable
    ) -> None:
        self._queue_names = queue_names
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        role = Gauge("orthia_role", "1 for the role the node has", ["role"], registry=self.registry)
        self._roles = {name: role.labels(name) for name in roles}
        self.fencing_token = Gauge(
            "orthia_fencing_token",
            "Token of the live lease this node got last; 0 before",
            registry=self.registry,
        )
        self.takeovers = Counter(
            "orthia_takeovers", "Times this node became live", registry=self.registry
        )
        self.takeover_seconds = Gauge(
            "orthia_takeover_seconds",
            "From the live lock obtained to the acceptors open, last time",
            registry=self.registry,
        )
        renewals = Histogram(
            "orthia_lease_renewal_seconds",
            "How long renewing a lease took",
            ["lock"],
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.live_renewal_seconds = renewals.labels("live")
        self.backup_renewal_seconds = renewals.labels("backup")
        self._batch_rows = LoopHistogram(
            "orthia_journal_batch_rows",
            "Rows written or deleted by one commit of the journal",
            buckets=_ROWS,
            registry=self.registry,
        )
        self._commit_seconds = LoopHistogram(
            "orthia_journal_commit_seconds",
            "How long one commit of the journal took",
            buckets=_SECONDS,
            registry=self.registry,
        )
        self._turn_seconds = LoopHistogram(
            "orthia_event_loop_turn_seconds",
            "Processor time of turns of the event loop while it is at work: a sample of them, and"
            " all that are long",
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.commit_retries = Counter(
            "orthia_journal_commit_retries",
            "Attempts beyond the first to commit a batch",
            registry=self.registry,
        )

        refused = Counter(
            "orthia_clients_refused",
            "Clients that were refused, or ended for what they did",
            ["reason"],
            registry=self.registry,
        )
        self._refused = {reason: refused.labels(reason) for reason in refusals}
        self._configuration_valid = Gauge(
            "orthia_configuration_valid",
            "1 if the node took its broker.xml as it is now, 0 if that was refused",
            registry=self.registry,
        )
        self._configuration_valid.set(1)
        self._configuration_waiting = Gauge(
            "orthia_configuration_waiting",
            "Changes of broker.xml that take effect when the node is restarted",
            registry=self.registry,
        )

    def configuration_read(self, waiting: int | None) -> None:
        """Note a changed broker.xml: how many changes wait for a restart; None if refused."""
        self._configuration_valid.set(0 if waiting is None else 1)
        if waiting is not None:
            self._configuration_waiting.set(waiting)

    def client_refused(self, reason: str) -> None:
        """Note a client that was refused."""
        self._refused[reason].inc()

    def role_is(self, name: str) -> None:
        """Note that the node has the role ``name`` now."""
        for known, gauge in self._roles.items():
            gauge.set(1 if known == name else 0)

    def became_live(self, token: int, seconds: float) -> None:
        """Note a takeover with the fencing ``token`` that took ``seconds``."""
        self.fencing_token.set(token)
        self.takeover_seconds.set(seconds)
        self.takeovers.inc()

    def batch_committed(self, rows: int, seconds: float, attempts: int) -> None:
        """Note a committed batch of the journal; on the loop's thread."""
        self._batch_rows.observe(rows)
        self._commit_seconds.observe(seconds)
        if attempts > 1:
            self.commit_retries.inc(attempts - 1)

    def loop_turned(self, seconds: float) -> None:
        """Note how long a turn of the event loop took; on the turn meter's thread only."""
        self._turn_seconds.observe(seconds)

    def watch(self, values: Values) -> None:
        """Read values whenever the metrics are rendered."""
        if self._queue_names != QueueNames(own=False):
            self.registry.register(_Queues(values.queues, self._queue_names))
        most_queues = MAX_QUEUES_SHOWN if self._queue_names.own else 0
        self.registry.register(_Watched(values, most_queues))
        self.registry.register(_BySql(values))


class _BySql(Collector):
    """What applications send and acknowledge in their own transactions."""

    def __init__(self, values: Values) -> None:
        self._values = values

    def describe(self) -> Iterable[Metric]:
        """Return no descriptions, so that registering reads no values."""
        return []

    def collect(self) -> Iterable[Metric]:
        """Return the metrics of a live node."""
        outbox, acks = self._values.outbox(), self._values.acks()
        if outbox is not None:
            yield from _outbox_metrics(outbox)
        if acks is not None:
            yield from _ack_metrics(acks)


class _Queues(Collector):
    """Single queues and addresses, as they are when the metrics are rendered."""

    def __init__(self, queues: Callable[[], Collection[QueueSeen]], names: QueueNames) -> None:
        self._queues = queues
        self._names = names

    def describe(self) -> Iterable[Metric]:
        """Return no descriptions, so that registering reads no values."""
        return []

    def collect(self) -> Iterable[Metric]:
        """Return the metrics of the fullest queues, and of their addresses."""
        shown = sorted(self._queues(), key=lambda one: one.name)
        if self._names.own:
            yield from queue_metrics.own(shown)
        if self._names.artemis is not None:
            yield from queue_metrics.artemis(shown, self._names.artemis)


class _Watched(Collector):
    """Values that are read when the metrics are rendered."""

    def __init__(self, values: Values, most_queues: int) -> None:
        self._values = values
        self._most_queues = most_queues
        self._counted = _Counted()

    def describe(self) -> Iterable[Metric]:
        """Return no descriptions, so that registering reads no values."""
        return []

    def collect(self) -> Iterable[Metric]:
        """Return the metrics; those of a lease only from a node that has one."""
        values = self._values
        lease = GaugeMetricFamily(
            "orthia_lease_seconds_remaining", "Seconds the live lease is still good for"
        )
        remaining = values.lease_seconds_remaining()
        if remaining is not None:
            lease.add_metric([], remaining)
        yield lease
        yield from _queues(values.queue_depths(), self._most_queues)
        yield GaugeMetricFamily(
            "orthia_connections", "Clients connected", value=values.connections()
        )
        counts = CounterMetricFamily(
            "orthia_messages", "What became of the messages of all queues", labels=["event"]
        )
        for event, count in self._counted.all(values.messages()).items():
            counts.add_metric([event], count)
        yield counts
        use = values.store_use()
        if use is not None:
            yield from _store(use)
        found = values.history()
        if found is not None:
            yield from _history(found)
        yield from _journal_locks(values.locks())
        validities = values.certificates()
        if validities:
            yield _expiries(validities)


def _queues(depths: Mapping[str, int], most: int) -> Iterator[Metric]:
    """Yield the depths of the fullest queues, and how many queues and messages are left out."""
    shown = nlargest(most, depths.items(), key=itemgetter(1))
    family = GaugeMetricFamily(
        "orthia_queue_messages",
        f"Messages the node knows of in a queue; the {MAX_QUEUES_SHOWN} fullest queues",
        labels=["queue"],
    )
    for name, depth in sorted(shown):
        family.add_metric([name], depth)
    yield family
    yield GaugeMetricFamily("orthia_queues", "Queues there are", value=len(depths))
    yield GaugeMetricFamily(
        "orthia_queues_left_out",
        "Queues that orthia_queue_messages does not show, being less full",
        value=len(depths) - len(shown),
    )
    yield GaugeMetricFamily(
        "orthia_queue_messages_left_out",
        "Messages in the queues it does not show",
        value=sum(depths.values()) - sum(depth for _, depth in shown),
    )


class _Counted:
    """Keeps counts of messages from decreasing, as Prometheus requires.

    The counts restart when the node becomes live again, which shows in ``added``; and while it is
    live, an acknowledgement may be undone.
    """

    def __init__(self) -> None:
        self._before: dict[str, int] = {}
        self._last: dict[str, int] = {}
        self._shown: dict[str, int] = {}

    def all(self, counts: Mapping[str, int]) -> Mapping[str, int]:
        """Return the totals for the current counts, which are empty while the node is passive."""
        if counts:
            if counts["added"] < self._last.get("added", 0):
                self._before = dict(self._shown)
            self._last = dict(counts)
        for event, count in counts.items():
            count += self._before.get(event, 0)
            self._shown[event] = max(count, self._shown.get(event, 0))
        return self._shown


def _store(use: ShownUse) -> Iterator[Metric]:
    yield GaugeMetricFamily(
        "orthia_store_bytes", "Bytes of messages, as max-store-bytes counts them", value=use.used
    )
    if use.limit is not None:
        yield GaugeMetricFamily("orthia_store_limit_bytes", "max-store-bytes", value=use.limit)
    full = GaugeMetricFamily(
        "orthia_store_full", "1 while sends are refused because it is full", labels=["what"]
    )
    for what in ("database", "disk"):
        full.add_metric([what], what in use.closed_by)
    yield full


def _journal_locks(seen: LocksSeen) -> Iterator[Metric]:
    yield GaugeMetricFamily(
        "orthia_journal_put_aside",
        "Units of the journal that wait for a lock of another session of the database",
        value=seen.put_aside,
    )
    yield GaugeMetricFamily(
        "orthia_journal_locked_seconds",
        "For how long such a lock has been in the way; 0 if none is",
        value=seen.seconds,
    )
    sessions = GaugeMetricFamily(
        "orthia_journal_locked_by",
        "1 for each session that has such a lock, as far as the database names it",
        labels=["session", "user", "application"],
    )
    for one in seen.sessions:
        sessions.add_metric([str(one.session), one.user, one.application], 1)
    yield sessions


def _outbox_metrics(seen: RelayStatus) -> Iterator[Metric]:
    yield GaugeMetricFamily(
        "orthia_outbox_rows", "Rows of the outbox that are not sent yet", value=seen.waiting
    )
    oldest = GaugeMetricFamily(
        "orthia_outbox_oldest_timestamp_seconds", "When the oldest of them was inserted"
    )
    if seen.oldest_ms is not None:
        oldest.add_metric([], seen.oldest_ms / 1000)
    yield oldest
    yield CounterMetricFamily(
        "orthia_outbox_relayed", "Rows that became messages", value=seen.relayed
    )
    yield CounterMetricFamily(
        "orthia_outbox_dead_lettered", "Rows that became dead letters", value=seen.dead_lettered
    )
    yield GaugeMetricFamily(
        "orthia_outbox_held",
        "1 while rows wait for a reason, which the log has; else 0",
        value=seen.held is not None,
    )


def _ack_metrics(seen: AckStatus) -> Iterator[Metric]:
    yield GaugeMetricFamily(
        "orthia_acks_waiting",
        "Acknowledgements by SQL that are committed, whose messages are not gone yet",
        value=seen.waiting,
    )
    yield GaugeMetricFamily(
        "orthia_acks_oldest_seconds",
        "For how long the node has known the first of them; 0 without any",
        value=seen.oldest_seconds,
    )
    yield CounterMetricFamily(
        "orthia_acks_settled", "Acknowledgements by SQL whose messages are gone", value=seen.settled
    )
    yield GaugeMetricFamily(
        "orthia_acks_failing",
        "1 while they cannot be read, the log says why; else 0",
        value=seen.failure is not None,
    )


def _expiries(validities: Mapping[str, Validity]) -> Metric:
    family = GaugeMetricFamily(
        "orthia_certificate_expiry_timestamp_seconds",
        "When the first of the certificates ends that an acceptor shows its clients",
        labels=["acceptor"],
    )
    for name, validity in sorted(validities.items()):
        family.add_metric([name], validity.not_valid_after.timestamp())
    return family


def _history(found: HistoryTotals) -> Iterator[Metric]:
    kept, oldest = found.kept, found.oldest_removed_at
    yield GaugeMetricFamily("orthia_history_messages", "Messages retention keeps", value=kept.rows)
    yield GaugeMetricFamily(
        "orthia_history_bytes", "Bytes they take, as storage-limit counts", value=kept.stored_bytes
    )
    if oldest is not None:
        yield GaugeMetricFamily(
            "orthia_history_oldest_timestamp_seconds",
            "When the oldest of them left its queue",
            value=oldest.timestamp(),
        )
