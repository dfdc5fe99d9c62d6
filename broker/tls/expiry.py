"""When a certificate ends, and what is to be said of that: a pure rule.

From 30 days before, so that whoever asks another authority for one has the time.
"""

import logging
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

AHEAD: Final = timedelta(days=30)
"""How long before its end a certificate is warned of."""


@dataclass(frozen=True)
class Validity:
    """Whom a certificate speaks for, and until when."""

    acceptor: str
    subject: str
    not_valid_before: datetime
    not_valid_after: datetime
    """When the first of the certificates ends that clients are shown with it."""

    def days_left(self, now: datetime) -> float:
        """Return for how many more days clients take it; below 0 they take it no more."""
        return (self.not_valid_after - now) / timedelta(days=1)

    def warning(self, now: datetime) -> tuple[int, str] | None:
        """Return what an operator is to be told, with its level; None for a certificate in order.

        ``now`` is by the clock of this machine: that of each client decides for itself.
        """
        of = f"the certificate of acceptor {self.acceptor!r}, {self.subject},"
        what_to_do = "replace the file that keyStorePath names; with sslAutoReload=true that is all"
        ends = in_utc(self.not_valid_after)
        if now < self.not_valid_before:
            begins = in_utc(self.not_valid_before)
            return logging.ERROR, (
                f"{of} is not valid before {begins}: clients refuse it; look at the clock of this"
                " machine, or replace the certificate"
            )
        if now > self.not_valid_after:
            return logging.ERROR, f"{of} has expired on {ends}: clients refuse it; {what_to_do}"
        if now > self.not_valid_after - AHEAD:
            days = int(self.days_left(now))
            left = f"in {days} days" if days > 1 else "within two days"
            return logging.WARNING, f"{of} expires {left}, on {ends}; {what_to_do}"
        return None


def in_utc(moment: datetime) -> str:
    """Return a moment as a person reads it."""
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M} UTC"
