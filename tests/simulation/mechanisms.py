"""What keeps a pair safe; each mechanism can be switched off, to show that it is needed."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from orthia.nodemanager.activation import Holder, HolderWatch
from orthia.nodemanager.locks.abc import Acquired
from orthia.nodemanager.locks.holder_id import HolderId, Timers
from orthia.nodemanager.locks.lease import Lease, LockStatus, deadline
from orthia.nodemanager.locks.lease_locker import LeaseDatabaseLocker
from orthia.nodemanager.manager import JdbcNodeManager
from orthia.nodemanager.stores import timers_of

EXPIRATION_MS = 20_000
PERIOD_MS = 2_000
TIMERS = Timers(PERIOD_MS, EXPIRATION_MS)
OTHER_TIMERS = (
    TIMERS,
    Timers(500, EXPIRATION_MS),
    Timers(4_000, EXPIRATION_MS),
    Timers(1_000, 12_000),
)
"""What the nodes of some worlds have, each for itself."""


@dataclass(frozen=True)
class Mechanisms:
    """Each is on."""

    renewal_matches_holder_and_token: bool = True
    fence: bool = True
    fence_waits_for_batches: bool = True
    every_batch_proves_the_fence: bool = True
    acquisition_counts_from_before_the_request: bool = True
    renewal_counts_from_before_the_request: bool = True
    watchdog: bool = True
    idle_limit: bool = True
    blockers_are_ended: bool = True
    idempotent_batches: bool = True
    commits_are_looked_for: bool = True
    one_batch_after_the_other: bool = True
    completions_in_order: bool = True
    ids_are_reserved: bool = True
    receipt_after_commit: bool = True
    crash_writes_no_pause: bool = True
    watch_before_taking_over: bool = True
    delivery_ends_with_the_grace: bool = True
    grace_of_the_holder: bool = True
    critical_analyzer: bool = True
    analyzer_counts_what_it_sees: bool = True
    loop_calls_are_bounded: bool = True
    failed_process_ends: bool = True
    console_holds_nobody_up: bool = True
    pieces_prove_the_fence: bool = True
    what_is_pinned_stays: bool = True
    reads_are_repeated: bool = True


class Hasty(JdbcNodeManager):
    """Takes a holder for gone as soon as it has the presence lock."""

    def _judge_holder(self, live: LockStatus, watch: HolderWatch) -> tuple[Holder, HolderWatch]:
        keeper = self._crashes.keeper
        if keeper is not None and keeper.held_since_seconds is not None and live.is_held:
            return Holder.GONE, watch
        return Holder.UNKNOWN, watch


class OfOwnPeriod(JdbcNodeManager):
    """Watches a holder for as long as if that had its own timers."""

    def _judge_holder(self, live: LockStatus, watch: HolderWatch) -> tuple[Holder, HolderWatch]:
        if live.holder_id is not None:
            said = live.holder_id
            ours = HolderId.of(
                said.name or "",
                said.place,
                kind=said.kind,
                has_presence=said.has_presence,
                timers=timers_of(self._settings),
            )
            live = replace(live, holder_id=ours)
        return super()._judge_holder(live, watch)


class Unfenced(JdbcNodeManager):
    """Serves without having fenced the journal."""

    def _fence(self, lease: Lease) -> None:
        pass


class LateAcquisition(LeaseDatabaseLocker):
    """Counts the deadline of a lease that it takes from when the answer came."""

    def _ask(self, request: Callable[[], Acquired | None]) -> Lease | None:
        lease = super()._ask(request)
        if lease is None:
            return None
        return replace(lease, deadline_seconds=deadline(self._clock(), self._expiration_ms))


class LateRenewal(LeaseDatabaseLocker):
    """Counts the deadline of a lease that it renews from when the answer came."""

    def renew(self, lease: Lease) -> Lease:
        """Renew, and count from now."""
        super().renew(lease)
        return lease.renewed(self._clock(), self._expiration_ms)
