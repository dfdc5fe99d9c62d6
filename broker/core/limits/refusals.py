"""Clients that are refused or disconnected with an error: logged, and counted by reason.

A client that keeps trying must not fill the log: of each kind the first few refusals for different
reasons are logged at once, all others once a minute, as a number and the last of them.
"""

import logging
from collections.abc import Callable

from orthia.broker.core.errors import (
    AcknowledgementRefused,
    AuthenticationFailed,
    CertificateUnknown,
    ConnectionLimitExceeded,
    DestinationRefused,
    LimitExceeded,
    LoginNotChecked,
    NoRoomInStore,
    NotAuthorized,
    QueueInUse,
    QuotaExceeded,
    Refusal,
)
from orthia.config.errors import OrthiaError
from orthia.journal.errors import HeldElsewhere, StoreFull, UnitRefused

LOGGER = logging.getLogger("orthia.broker")
QUIET_SECONDS = 60.0
"""How often refusals of one kind are logged."""
MOST_REASONS = 8
"""Reasons of one kind that are logged at once in that time: one client hides no other's."""
_LONGEST = 300


_KINDS: tuple[tuple[type[OrthiaError], Refusal], ...] = (
    (CertificateUnknown, Refusal.CERTIFICATE),
    (AuthenticationFailed, Refusal.AUTHENTICATION),
    (LoginNotChecked, Refusal.AUTHENTICATION),
    (NotAuthorized, Refusal.AUTHORIZATION),
    (DestinationRefused, Refusal.DESTINATION),
    (AcknowledgementRefused, Refusal.ACKNOWLEDGEMENT),
    (QuotaExceeded, Refusal.QUOTA),
    (QueueInUse, Refusal.IN_USE),
    (NoRoomInStore, Refusal.NO_ROOM),
    (StoreFull, Refusal.NO_ROOM),
    (UnitRefused, Refusal.STORE),
    (HeldElsewhere, Refusal.STORE),
    (ConnectionLimitExceeded, Refusal.USER),
    (LimitExceeded, Refusal.LIMIT),
)


def refusal_of(error: OrthiaError) -> Refusal:
    """Return which kind of refusal an error is."""
    return next((kind for base, kind in _KINDS if isinstance(error, base)), Refusal.PROTOCOL)


class _Told:
    """What of one kind is logged, and what is not yet."""

    def __init__(self) -> None:
        self.until = -float("inf")
        self.untold = 0
        self.last = ("", "")
        self.reasons: set[str] = set()
        """Those that were logged at once."""


class Refusals:
    """Logs and counts refusals; callers pass the time."""

    def __init__(self, count: Callable[[str], None] = lambda _: None) -> None:
        """``count`` is called with the reason of each refusal, for a metric."""
        self._count = count
        self._told = {kind: _Told() for kind in Refusal}

    def count(self, kind: Refusal) -> None:
        """Count a refusal that somebody else logs."""
        self._count(kind.value)

    def note(self, kind: Refusal, address: str, reason: str, now: float, who: str = "") -> None:
        """Note a client at ``address`` that is refused for ``reason``; ``now`` is in seconds.

        ``who`` is what else is known of it, for the end of the line.
        """
        self._count(kind.value)
        if kind is Refusal.AUTHENTICATION:
            return  # ``orthia.broker.security.logins`` logs failed logins
        told, shown = self._told[kind], _one_line(reason) + who
        if now >= told.until and not told.untold:
            told.until = now + QUIET_SECONDS
            told.reasons.clear()
        if shown not in told.reasons and len(told.reasons) < MOST_REASONS:
            told.reasons.add(shown)
            LOGGER.warning("a client at %s was refused: %s", address, shown)
        else:
            told.untold += 1
            told.last = (address, shown)

    def tick(self, now: float) -> None:
        """Log what was kept back, once it is time."""
        for told in self._told.values():
            if told.untold and now >= told.until:
                LOGGER.warning(
                    "%d more clients were refused likewise within %d s, the last at %s: %s",
                    told.untold,
                    QUIET_SECONDS,
                    *told.last,
                )
                told.untold = 0
                told.reasons = {told.last[1]}
                told.until = now + QUIET_SECONDS


def _one_line(reason: str) -> str:
    """Return a text on one line and shortened, as a client may have written a part of it."""
    return "".join(one if one.isprintable() else " " for one in reason)[:_LONGEST]
