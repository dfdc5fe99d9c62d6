"""The threads that keep a lease: APScheduler renews it, a watchdog of its own counts it down."""

import logging
import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from orthia.config.errors import OrthiaError
from orthia.nodemanager.events import Event, RenewalFailed, RenewalNotTriggered, RenewalOverrun
from orthia.nodemanager.locks.abc import Locker
from orthia.nodemanager.locks.lease import Lease, certain_seconds
from orthia.nodemanager.renewal_checks import (
    RenewalTimes,
    check_renewal,
    not_triggered_after_seconds,
)
from orthia.nodemanager.threads import REAL_THREADS, Threads

LOGGER = logging.getLogger("orthia.failover")
Clock = Callable[[], float]
_JOIN_SECONDS = 1.0


@contextmanager
def _contained(what: str) -> Iterator[None]:
    try:
        yield
    except MemoryError:
        raise  # ends this thread and with it the node
    except Exception:
        LOGGER.exception("%s failed; the lease is kept as before", what)


class KeepAlive:
    """Renews one lease until it is stopped or lost; lost is said once and for ever.

    The renewal runs on a scheduler thread of its own and may hang; the watchdog does not care: at
    the local deadline the lease is lost. It also asks again for a renewal that was not triggered,
    for a scheduler that follows the wall clock waits when that is set back. It looks once a period
    at least, since a wait for a lock does not count the time a host was suspended.

    The watchdog is there before the renewals, and waits for nothing that these or the scheduler may
    hold. At the deadline it also says that a lease is lost where a failed renewal has not said so:
    without memory the thread of the renewals may die before.

    What ``report`` and ``on_renewed`` raise is logged and goes no further: telling of a lease must
    not decide about it. A MemoryError ends the thread, and goes to ``threading.excepthook``.
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
        threads: Threads = REAL_THREADS,
    ) -> None:
        """Prepare to keep ``lease``.

        ``on_lost`` gets the reason, from a scheduler or watchdog thread; ``on_renewed`` the
        seconds each successful renewal took. ``on_lost`` gets it twice only if the first call has
        not returned by the deadline. ``delivery_ms`` is for how long after the beginning of
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
        self._withheld_seconds = certain_seconds(expiration_ms - within_ms)
        self._delivers_until = lease.deadline_seconds - self._withheld_seconds
        self._changed = threads.condition()
        self._lost: str | None = None
        self._is_told = False
        self._stopped = False
        self._renewing = False
        self._started_seconds = lease.deadline_seconds - certain_seconds(expiration_ms)
        self._renewals = threads.every(period_ms / 1000, self.renew)
        self._watchdog = threads.thread(self._watch, f"orthia-watchdog-{lease.lock.name.lower()}")

    @property
    def lease(self) -> Lease:
        """The lease as it was last renewed."""
        return self._lease

    @property
    def renewed_seconds(self) -> float:
        """When the last renewal that succeeded began, on the stopwatch."""
        return self._lease.deadline_seconds - certain_seconds(self._expiration_ms)

    def is_valid(self) -> bool:
        """Return whether the lease is certainly held; takes no lock, for the delivery path."""
        return self._lost is None and self._clock() < self._lease.deadline_seconds

    def may_deliver(self) -> bool:
        """Return whether no other node can be delivering; asked for every delivery."""
        return self._lost is None and self._clock() < self._delivers_until

    def start(self) -> None:
        """Begin to renew and to watch; with a period of 0 there is nothing to do."""
        if self._period_ms == 0:
            return
        self._watchdog.start()
        self._renewals.start()

    def stop(self) -> None:
        """End both threads without touching the store; a renewal that hangs is left behind.

        Any thread may call it, and any number of times.
        """
        with self._changed:
            first, self._stopped = not self._stopped, True
            self._changed.notify_all()
        if first:
            self._renewals.stop()
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
            self._note_failed(str(error), started)
        except Exception as error:
            LOGGER.exception("unexpected error in the renewal of a lease")
            self._note_failed(f"{type(error).__name__}: {error}", started)
        else:
            self._note_renewed(renewed, RenewalTimes(previous, started, self._clock()))
        finally:
            with self._changed:
                self._renewing = False
                self._changed.notify_all()

    def _note_failed(self, reason: str, started: float) -> None:
        if self._stopped:
            return
        duration_ms = (self._clock() - started) * 1000
        self._tell(RenewalFailed(self._lease.lock, self._lease.token, duration_ms, reason))
        self._lose(f"renewal failed: {reason}")

    def _note_renewed(self, renewed: Lease, times: RenewalTimes) -> None:
        with self._changed:
            if self._lost is not None or self._stopped:
                return
            self._lease = renewed
            self._delivers_until = renewed.deadline_seconds - self._withheld_seconds
        with _contained("the listener of renewals"):
            self._on_renewed(times.ended_seconds - times.started_seconds)
        for event in check_renewal(
            renewed, times, period_ms=self._period_ms, expiration_ms=self._expiration_ms
        ):
            self._tell(event)

    def _lose(self, reason: str) -> None:
        with self._changed:
            if self._lost is not None or self._stopped:
                return
            self._lost = reason
            self._changed.notify_all()
        self._say_lost(reason)

    def _say_lost(self, reason: str) -> None:
        self._on_lost(reason)
        self._is_told = True

    def _watch(self) -> None:
        noticed, overrun = self._started_seconds, -math.inf
        while True:
            with self._changed:
                if self._stopped or self._is_told:
                    return
                now, started = self._clock(), self._started_seconds
                late_at = not_triggered_after_seconds(max(started, noticed), self._period_ms)
                idle = not self._renewing
                over_at = started + self._period_ms / 1000 if overrun != started else math.inf
                until = self._lease.deadline_seconds
                lost = self._lost
                wake_at = until if lost is not None else min(until, late_at if idle else over_at)
                if now < wake_at:
                    self._changed.wait(min(wake_at - now, self._period_ms / 1000))
                    continue
            if lost is not None:
                self._say_lost(lost)
            elif now >= until:
                self._lose(self._expiry_reason(now, hung=not idle))
            elif idle:
                noticed = now
                self._ask_again(now - started - self._period_ms / 1000, now)
            else:
                overrun = started
                self._tell_overrun(started, now)

    def _expiry_reason(self, now: float, *, hung: bool) -> str:
        seconds = now - self._started_seconds
        late = self._started_seconds - self._lease.deadline_seconds
        if hung and late >= 0:
            return (
                f"the local deadline had passed {late:.1f} s before a renewal was begun: this"
                " process was paused, or its machine was"
            )
        if hung:
            return f"a renewal begun {seconds:.1f} s ago has not returned by the local deadline"
        return f"no renewal was begun for {seconds:.1f} s and the local deadline has passed"

    def _tell_overrun(self, started: float, now: float) -> None:
        lease, running_ms = self._lease, (now - started) * 1000
        remaining_ms = (lease.deadline_seconds - now) * 1000
        self._tell(RenewalOverrun(lease.lock, lease.token, running_ms, remaining_ms))

    def _tell(self, event: Event) -> None:
        with _contained("the report of an event"):
            self._report(event)

    def _ask_again(self, late_seconds: float, now: float) -> None:
        remaining_ms = (self._lease.deadline_seconds - now) * 1000
        lease = self._lease
        late = RenewalNotTriggered(lease.lock, lease.token, late_seconds * 1000, remaining_ms)
        self._tell(late)
        self._renewals.run_now()
