"""Clients that were refused, or ended with an error: told in the log, and counted by reason.

A client that tries again and again must not fill the log: of each kind the first is told at once,
and those that follow once in a while, as a number and the last of them.
"""

import logging
from collections.abc import Callable
from enum import Enum

from orthia.broker.core.errors import (
    AcknowledgementRefused,
    AuthenticationFailed,
    CertificateUnknown,
    ConnectionLimitExceeded,
    DestinationRefused,
    LimitExceeded,
    LoginNotChecked,
    NotAuthorized,
)
from orthia.broker.core.limits.quota import NoRoomInStore, QuotaExceeded
from orthia.broker.core.upkeep.deletion import QueueInUse
from orthia.config.errors import OrthiaError
from orthia.journal.errors import HeldElsewhere, StoreFull, UnitRefused

LOGGER = logging.getLogger("orthia.broker")
QUIET_SECONDS = 60.0
"""How often refusals of one kind are told."""
_LONGEST = 300


class Refusal(Enum):
    """Why; the label ``reason`` of the metric."""

    CONNECTIONS = "connections"
    """There are too many already."""
    ADDRESS = "address-connections"
    """There are too many from its address already."""
    USER = "user-connections"
    """There are too many of its user already."""
    NO_CONNECT = "no-connect"
    """It did not connect by its protocol in time."""
    TLS = "tls"
    """Its TLS handshake failed, or it spoke no TLS where nothing else is spoken."""
    PROTOCOL = "protocol"
    """What it sent is not of the protocol, or not allowed."""
    ORIGIN = "origin"
    """It is a page in a browser, of a site that is not allowed."""
    AUTHENTICATION = "authentication"
    CERTIFICATE = "certificate"
    """Its certificate is trusted, and no user's."""
    AUTHORIZATION = "authorization"
    IN_USE = "in-use"
    """It asked to delete a queue that has messages or consumers."""
    DESTINATION = "destination"
    ACKNOWLEDGEMENT = "acknowledgement"
    LIMIT = "limit"
    """It asked the broker to hold more than it may."""
    QUOTA = "quota"
    """An address, or the whole store, has as much as it may have."""
    NO_ROOM = "no-room"
    """The disk or the database under the store is full, or nearly."""
    STORE = "store"
    """The database does not store what it sent, though it stores others."""
    SILENCE = "silence"
    """Nothing came of it for as long as it had promised, or for connectionTtl."""
    FAILURE = "failure"
    """The broker failed at what it asked for: a fault of the broker, of which the log has more."""
    SLOW = "slow"
    """It reads or acknowledges too slowly for what it subscribed to, or for all memory."""


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
    """Return what an error is that a client is told."""
    return next((kind for base, kind in _KINDS if isinstance(error, base)), Refusal.PROTOCOL)


class _Told:
    """What of one kind was told, and what was not."""

    def __init__(self) -> None:
        self.until = -float("inf")
        self.untold = 0
        self.last = ("", "")


class Refusals:
    """Tells and counts; no time of its own."""

    def __init__(self, count: Callable[[str], None] = lambda _: None) -> None:
        """``count`` is called with the reason of each refusal, for a metric."""
        self._count = count
        self._told = {kind: _Told() for kind in Refusal}

    def count(self, kind: Refusal) -> None:
        """Count a refusal that is told by whoever decided it."""
        self._count(kind.value)

    def note(self, kind: Refusal, address: str, reason: str, now: float) -> None:
        """Note a client at ``address`` that is refused for ``reason``; ``now`` is in seconds."""
        self._count(kind.value)
        if kind is Refusal.AUTHENTICATION:
            return  # failed logins are told by ``orthia.broker.security.logins``
        told, shown = self._told[kind], _one_line(reason)
        if now >= told.until and not told.untold:
            told.until = now + QUIET_SECONDS
            LOGGER.warning("a client at %s was refused: %s", address, shown)
        else:
            told.untold += 1
            told.last = (address, shown)

    def tick(self, now: float) -> None:
        """Tell what was kept back, once it is time."""
        for told in self._told.values():
            if told.untold and now >= told.until:
                LOGGER.warning(
                    "%d more clients were refused likewise within %d s, the last at %s: %s",
                    told.untold,
                    QUIET_SECONDS,
                    *told.last,
                )
                told.untold = 0
                told.until = now + QUIET_SECONDS


def _one_line(reason: str) -> str:
    """Return a text, of which a client may have written a part, as the log may have it."""
    return "".join(one if one.isprintable() else " " for one in reason)[:_LONGEST]
