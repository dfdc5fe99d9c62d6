"""Whether the holders of the locks are alive: what a lease alone does not say until it ends."""

import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from orthia.config.store_settings import DatabaseStoreSettings
from orthia.migrations.rows import REPAIR_HOLDER_ID
from orthia.nodemanager.activation import grace_seconds
from orthia.nodemanager.locks.holder_id import Timers
from orthia.nodemanager.locks.lease import Lock, LockStatus, NodeManagerStatus, State
from orthia.nodemanager.locks.reports import OutboxReport, Refusal, Report

_LOOK_SECONDS: Final = 0.2
_SLACK_SECONDS: Final = 0.25
"""For the way to the database and back."""
_LONGEST_WATCH_SECONDS: Final = 5.0
"""With a renew period that is longer, what the settings suggest has to do."""


REFUSED_BY: Final = {
    Refusal.DISK: "disk",
    Refusal.DATABASE: "database",
    Refusal.MAX_STORE_BYTES: "max-store-bytes",
}
_REFUSED: Final = {
    Refusal.DISK: "a disk of the store is full beyond max-disk-usage or min-disk-free",
    Refusal.DATABASE: "the store says that it is full",
    Refusal.MAX_STORE_BYTES: "all addresses together hold max-store-bytes; consume messages, or"
    " raise the limit",
}


@dataclass(frozen=True)
class Look:
    """The status of a pair, and who of it is silent."""

    status: NodeManagerStatus
    silent_seconds: Mapping[Lock, float] = field(default_factory=dict)
    """For how long a lock that is held was not renewed; absent for one whose holder renews."""
    reports: Mapping[Lock, Report] = field(default_factory=dict)
    """What the holders of the locks say of themselves; nodes of older versions say nothing."""
    counted: OutboxReport | None = None
    """The rows of the outbox, counted while no live node says how many wait."""

    @property
    def refusal(self) -> Refusal | None:
        """Why the live node refuses SENDs for want of room; None if it does not, or is silent."""
        live = self.reports.get(Lock.LIVE)
        return live.refusal if live is not None and self.is_kept(self.status.live) else None

    @property
    def failback_put_off_until(self) -> datetime | None:
        """Until when the live node does not hand back; None if it does at once."""
        live = self.reports.get(Lock.LIVE)
        until = None if live is None else live.failback_put_off_until
        return until if until is not None and until > self.status.database_time else None

    @property
    def outbox(self) -> OutboxReport | None:
        """What waits in the outbox: the live node says it, or it was counted; None without."""
        live = self.reports.get(Lock.LIVE)
        told = live.outbox if live is not None and self.is_kept(self.status.live) else None
        return told or self.counted

    @property
    def users_differ(self) -> bool | None:
        """Whether the nodes have other users, passwords or roles; None if that is not known."""
        digests = [one.users_digest for one in self.reports.values()]
        return None if len(digests) < len(Lock) or None in digests else len(set(digests)) > 1

    @property
    def notices(self) -> Iterator[tuple[str, str]]:
        """What an operator should know of, as a name and a sentence."""
        if self.refusal is not None:
            yield "sends", f"refused for want of room: {_REFUSED[self.refusal]}"
        until = self.failback_put_off_until
        if until is not None:
            yield (
                "failback",
                f"put off until {until:%Y-%m-%d %H:%M:%S} UTC: the live node did not last before"
                " (ORT100027)",
            )
        if self.users_differ:
            yield (
                "users",
                "differ between the two nodes: after a takeover some can log in who cannot now, or"
                " cannot who can; make the users of both broker.xml files and their user files the"
                " same",
            )

    @property
    def outbox_in_words(self) -> str | None:
        """What waits in the outbox, since when and why; None if nothing is known of one."""
        seen = self.outbox
        if seen is None:
            return None
        words = "no row waits"
        if seen.waiting:
            words = "1 row waits" if seen.waiting == 1 else f"{seen.waiting} rows wait"
        if seen.oldest is not None:
            age = max(0.0, (self.status.database_time - seen.oldest).total_seconds())
            words += f", the oldest for {age:.0f} s"
        if seen is self.counted:
            return f"{words}: no live node sends them" if seen.waiting else words
        words += f"; {seen.per_second:g} a second are sent"
        return words if seen.held is None else f"{words}; held: {seen.held}"

    def is_kept(self, lock: LockStatus) -> bool:
        """Return whether somebody holds ``lock`` and renews it."""
        return lock.is_held and lock.lock not in self.silent_seconds

    @property
    def is_serving(self) -> bool:
        """Whether a node has the journal, by a lock that it keeps, and has not been stopped."""
        found = self.status
        return (
            self.is_kept(found.live)
            and found.live.holder_id != REPAIR_HOLDER_ID
            and found.live.token == found.fence_token
            and found.state in (State.LIVE, State.FAILING_BACK)
        )


class Watch:
    """Looks at leases; at one that seems to be late until it is renewed, or certainly is late.

    A holder publishes how often it renews its lease and how long that lasts. One of an older
    version does not; what the settings suggest of it is watched before it is said.
    """

    def __init__(
        self,
        settings: DatabaseStoreSettings,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Take the timers of ``settings`` for holders that publish none."""
        self._timers = Timers(settings.jdbc_lock_renew_period, settings.jdbc_lock_expiration)
        self._clock = clock
        self._sleep = sleep

    def look(self, read: Callable[[], NodeManagerStatus]) -> Look:
        """Return what ``read`` says and which locks were not renewed; raises what it raises."""
        began = self._clock()
        first = read()
        late = {lock.lock: lock for lock in (first.live, first.backup) if self._seems_late(lock)}
        grace = max(map(self._grace_seconds, late.values()), default=0.0)
        watch_seconds = min(grace + _SLACK_SECONDS, _LONGEST_WATCH_SECONDS)
        last = first
        while late and self._clock() - began < watch_seconds:
            self._sleep(_LOOK_SECONDS)
            last = read()
            now = {one.lock: one for one in (last.live, last.backup)}
            late = {lock: seen for lock, seen in late.items() if _is_same(seen, now[lock])}
        watched = self._clock() - began
        silent = {
            lock: (max(watched, self._age_seconds(seen) + watched), self._grace_seconds(seen))
            for lock, seen in late.items()
        }
        return Look(last, {lock: age for lock, (age, grace) in silent.items() if age > grace})

    def _seems_late(self, lock: LockStatus) -> bool:
        grace = self._grace_seconds(lock)
        if not lock.is_held or lock.expires_in_seconds == math.inf or not grace:
            return False
        return not -_SLACK_SECONDS <= self._age_seconds(lock) <= grace

    def _timers_of(self, lock: LockStatus) -> Timers:
        published = None if lock.holder_id is None else lock.holder_id.timers
        return published or self._timers

    def _grace_seconds(self, lock: LockStatus) -> float:
        """Return how long a holder that lives leaves between two renewals; 0 if it never renews."""
        return grace_seconds(self._timers_of(lock).renew_period_ms)

    def _age_seconds(self, lock: LockStatus) -> float:
        """Return for how long a lease was not renewed, if it lasts as long as its timers say."""
        return self._timers_of(lock).expiration_ms / 1000 - (lock.expires_in_seconds or 0.0)


def _is_same(before: LockStatus, now: LockStatus) -> bool:
    """Return whether nothing happened to a lock between two looks, and it has not ended."""
    return now.is_held and (before.holder_id, before.token, before.expiration_time) == (
        now.holder_id,
        now.token,
        now.expiration_time,
    )


def describe(look: Look) -> str:
    """Return what the state means, given who holds the locks and keeps them."""
    found = look.status
    held = found.live.is_held
    silent = look.silent_seconds.get(Lock.LIVE)
    waits = look.is_kept(found.backup)
    if held and found.live.holder_id == REPAIR_HOLDER_ID:
        return "the live lock was put back by a repair, and is nobody's until it ends; start a node"
    if silent is not None:
        after = "the waiting backup takes over" if waits else "no backup waits; start a node"
        return f"no renewal of the live lock for {silent:.1f} s: its node is gone or hangs; {after}"
    match found.state:
        case State.NOT_STARTED:
            return "a node is about to serve" if held else "no node has been live yet"
        case State.LIVE if look.is_serving:
            return "a node is live"
        case State.LIVE if held:
            return "a node has taken the live lock and is about to serve"
        case State.LIVE if waits:
            return "the live node is gone; the waiting backup takes over"
        case State.LIVE:
            return "the live node is gone and no backup waits; start a node"
        case State.FAILING_BACK if look.is_serving:
            return "a node serves, or is about to; a live node that starts has asked for its place"
        case State.FAILING_BACK:
            return "a live node is starting or returning, and has not become active yet"
        case State.PAUSED:
            return "stopped on purpose; backups stay passive until a live node is started"
