"""The expiry of a certificate, and the warning about it: a pure rule.

The warning begins 30 days ahead, which is enough to get a new certificate from an authority.
"""

import logging
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

AHEAD: Final = timedelta(days=30)
"""How long before its expiry a warning begins."""


def listener(name: str) -> str:
    """Return what an acceptor of this name is called; an element stands for itself: <health>."""
    return name if name.startswith("<") else f"acceptor {name!r}"


@dataclass(frozen=True)
class Validity:
    """The subject of a certificate, and the time in which it is valid."""

    acceptor: str
    """Its name; for HTTP the name of its element, in angle brackets."""
    subject: str
    not_valid_before: datetime
    not_valid_after: datetime
    """When the first certificate of its chain expires."""

    def days_left(self, now: datetime) -> float:
        """Return the days until it expires; below 0 clients refuse it."""
        return (self.not_valid_after - now) / timedelta(days=1)

    def warning(self, now: datetime) -> tuple[int, str] | None:
        """Return the level and the text of a warning; None for a certificate in order.

        ``now`` is the clock of this machine; each client decides by its own.
        """
        of = f"the certificate of {listener(self.acceptor)}, {self.subject},"
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
    """Return a moment in UTC for a person to read."""
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M} UTC"
