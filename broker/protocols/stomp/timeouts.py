# mypyc compiles this module.
"""Clients of which nothing comes: before their CONNECT, within a large body, or between frames.

A client that is not read from is not silent, and the time in which this node stood still is not
counted.
"""

from typing import Final, NamedTuple

from orthia.broker.core.limits.refusals import Refusal
from orthia.broker.protocols.stomp.heartbeats import HeartBeats
from orthia.broker.protocols.stomp.login import Login
from orthia.broker.protocols.stomp.states import State
from orthia.broker.protocols.stomp.uploads import Uploads
from orthia.config.settings import StompLimits

_CONNECTING: Final = State.CONNECTING
_CONNECTED: Final = State.CONNECTED


class TooLong(NamedTuple):
    """Why a client is to be ended."""

    reason: str
    kind: Refusal
    receipt: str | None
    """That of the frame of which the rest did not come."""


class Timeouts:
    """The deadlines of one connection; the clock is in seconds."""

    __slots__ = ("_connect_by", "_limits", "_looked_at", "_reason", "_uploads", "beats")

    def __init__(self, limits: StompLimits, uploads: Uploads, now: float) -> None:
        self._limits = limits
        self._uploads = uploads
        self._connect_by = now + limits.connect_timeout / 1000
        self._looked_at = now
        self._reason = ""
        self.beats = HeartBeats(0, 0, now)
        """What the two sides agreed on, from the login on."""

    def agree(self, login: Login, now: float, *, ttl_ms: int, silence_factor: float) -> None:
        """Count from the login on as it says; see ``HeartBeats``."""
        self.beats = HeartBeats(
            login.sends_ms, login.expects_ms, now, ttl_ms=ttl_ms, silence_factor=silence_factor
        )
        self._reason = (
            "no heart-beat from the client within its time"
            if login.expects_ms
            else f"nothing came from the client for connectionTtl {ttl_ms} ms; agree on heart-beats"
        )

    def leave_out(self, now: float, *, is_read: bool, paused: float) -> None:
        """Leave out the ``paused`` seconds before ``now``; without reading, all since this was last
        called.
        """
        passed, self._looked_at = now - self._looked_at, now
        self._connect_by += paused if is_read else passed
        if paused:
            self.beats.forgive(paused, now)
            self._uploads.forgive(paused)
        if not is_read:
            self.beats.read(now)
            self._uploads.wait_from(now)

    def too_long(self, state: State, now: float) -> TooLong | None:
        """Return why to end the client; None if it has time left."""
        if state is _CONNECTED:
            idle = self._uploads.idle_too_long(now)
            if idle is not None:
                return TooLong(idle, Refusal.SILENCE, self._uploads.receipt)
            if self.beats.is_gone(now):
                return TooLong(self._reason, Refusal.SILENCE, None)
        elif state is _CONNECTING and now > self._connect_by:
            late = f"no CONNECT frame within {self._limits.connect_timeout} ms"
            return TooLong(late, Refusal.NO_CONNECT, None)
        return None
