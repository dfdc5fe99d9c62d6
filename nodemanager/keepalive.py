"""The threads that keep a lease: APScheduler renews it, a watchdog of its own counts it down."""

import threading
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from apscheduler.executors.pool import ThreadPoolExecutor
from apscheduler.jobstores.base import JobLookupError
from apscheduler.schedulers.background import BackgroundScheduler

from config.errors import OrthiaError
from nodemanager.events import Event, RenewalFailed, RenewalNotTriggered
from nodemanager.judgement import RenewalTimes, judge_renewal, not_triggered_after_seconds
from nodemanager.lease import Lease
from nodemanager.locker import Locker

Clock = Callable[[], float]
_JOIN_SECONDS = 1.0


class KeepAlive:
    """Renews one lease until it is stopped or lost; lost is said once and for ever.

    The renewal runs on a scheduler thread of its own and may hang; the watchdog does not care: at
    the local deadline the lease is lost. It also asks again for a renewal that was not triggered,
    for a scheduler that follows the wall clock waits when that is set back.
    """

    def __init__(
        self,
        locker: Locker,
        lease: Lease,
        *,
        period_ms: int,
        expiration_ms: int,
        clock: Clock,
        report: Callable[[Event], None],
        on_lost: Callable[[str], None],
        on_renewed: Callable[[float], None] = lambda _: None,
        delivery_ms: float | None = None,
    ) -> None:
        """Prepare to keep ``lease``.

        ``on_lost`` gets the reason, from a scheduler or watchdog thread; ``on_renewed`` the
        seconds each successful renewal took. ``delivery_ms`` is for how long after the beginning of
        a renewal deliveries are allowed, if not for the whole of the lease.
        """
        self._locker = locker
        self._lease = lease
        self._period_ms = period_ms
        self._expiration_ms = expiration_ms
        self._clock = clock
        self._report = report
        self._on_lost = on_lost
        self._on_renewed = on_renewed
        within_ms = expiration_ms if delivery_ms is None else min(delivery_ms, expiration_ms)
        self._withheld_seconds = (expiration_ms - within_ms) / 1000
        self._changed = threading.Condition()
        self._lost: str | None = None
        self._stopped = False
        self._renewing = False
        self._started_seconds = lease.deadline_seconds - expiration_ms / 1000
        self._scheduler = BackgroundScheduler(
            timezone=UTC,
            executors={"default": ThreadPoolExecutor(1)},
            job_defaults={"max_instances": 1, "coalesce": True, "misfire_grace_time": None},
        )
        self._watchdog = threading.Thread(
            target=self._watch, name=f"orthia-watchdog-{lease.lock.name.lower()}", daemon=True
        )

    @property
    def lease(self) -> Lease:
        """The lease as it was last renewed."""
        return self._lease

    def is_valid(self) -> bool:
        """Return whether the lease is certainly held; takes no lock, for the delivery path."""
        return self._lost is None and self._clock() < self._lease.deadline_seconds

    def may_deliver(self) -> bool:
        """Return whether no other node can be delivering; asked for every delivery."""
        until = self._lease.deadline_seconds - self._withheld_seconds
        return self._lost is None and self._clock() < until

    def start(self) -> None:
        """Begin to renew and to watch."""
        seconds = self._period_ms / 1000
        self._job = self._scheduler.add_job(self.renew, "interval", seconds=seconds)
        self._scheduler.start()
        self._watchdog.start()

    def stop(self) -> None:
        """End both threads without touching the store; a renewal that hangs is left behind."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        if self._scheduler.running:
            self._scheduler.shutdown(wait=False)
        if self._watchdog.is_alive() and threading.current_thread() is not self._watchdog:
            self._watchdog.join(_JOIN_SECONDS)

    def wait_idle(self, timeout_seconds: float) -> bool:
        """Wait until no renewal is under way; False if one still is."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._renewing, timeout_seconds)

    def renew(self) -> None:
        """Renew once; what the scheduler runs."""
        with self._changed:
            if self._stopped or self._lost is not None:
                return
            self._renewing = True
            previous, self._started_seconds = self._started_seconds, self._clock()
            started = self._started_seconds
        try:
            renewed = self._locker.renew(self._lease)
        except OrthiaError as error:
            if not self._stopped:
                duration_ms = (self._clock() - started) * 1000
                failed = RenewalFailed(self._lease.lock, self._lease.token, duration_ms, str(error))
                self._report(failed)
                self._lose(f"renewal failed: {error}")
        else:
            self._note_renewed(renewed, RenewalTimes(previous, started, self._clock()))
        finally:
            with self._changed:
                self._renewing = False
                self._changed.notify_all()

    def _note_renewed(self, renewed: Lease, times: RenewalTimes) -> None:
        with self._changed:
            if self._lost is not None or self._stopped:
                return
            self._lease = renewed
        self._on_renewed(times.ended_seconds - times.started_seconds)
        for event in judge_renewal(
            renewed, times, period_ms=self._period_ms, expiration_ms=self._expiration_ms
        ):
            self._report(event)

    def _lose(self, reason: str) -> None:
        with self._changed:
            if self._lost is not None or self._stopped:
                return
            self._lost = reason
            self._changed.notify_all()
        self._on_lost(reason)

    def _watch(self) -> None:
        noticed = self._started_seconds
        while True:
            with self._changed:
                if self._stopped or self._lost is not None:
                    return
                now, started = self._clock(), self._started_seconds
                late_at = not_triggered_after_seconds(max(started, noticed), self._period_ms)
                idle = not self._renewing
                wake_at = min(self._lease.deadline_seconds, late_at if idle else float("inf"))
                if now < wake_at:
                    self._changed.wait(wake_at - now)
                    continue
                expired = now >= self._lease.deadline_seconds
            if expired:
                self._lose(self._expiry_reason(now, hung=not idle))
                return
            noticed = now
            self._ask_again(now - started - self._period_ms / 1000, now)

    def _expiry_reason(self, now: float, *, hung: bool) -> str:
        seconds = now - self._started_seconds
        if hung:
            return f"a renewal begun {seconds:.1f} s ago has not returned by the local deadline"
        return f"no renewal was begun for {seconds:.1f} s and the local deadline has passed"

    def _ask_again(self, late_seconds: float, now: float) -> None:
        remaining_ms = (self._lease.deadline_seconds - now) * 1000
        lease = self._lease
        late = RenewalNotTriggered(lease.lock, lease.token, late_seconds * 1000, remaining_ms)
        self._report(late)
        job: Any = self._job
        try:
            job.modify(next_run_time=datetime.now(UTC))
        except JobLookupError:
            return  # stopped meanwhile
