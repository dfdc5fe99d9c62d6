# mypyc compiles this module.
"""When a client is ended for its silence: before its CONNECT, within a large body, between frames.

Heart-beats go both ways (STOMP 1.1 and 1.2, "Heart-beating"). A client that is not read from is not
silent, and the time in which this node stood still is not counted.
"""

from typing import Final, NamedTuple

from orthia.broker.core.errors import Refusal
from orthia.broker.protocols.stomp.frames import ProtocolError, is_whole_number
from orthia.broker.protocols.stomp.states import State
from orthia.broker.quoting import quoted

MIN_INTERVAL_MS: Final = 500
"""The shortest interval of heart-beats, of either side."""
_SEND_FACTOR: Final = 0.5
_CONNECTING: Final = State.CONNECTING
_CONNECTED: Final = State.CONNECTED


def negotiate(header: str | None) -> tuple[int, int]:
    """Return the broker's ``heart-beat`` header for the client's: how often it sends, and expects.

    Each is what the client asked for, never below MIN_INTERVAL_MS; 0 is never. Raises
    ProtocolError.
    """
    if header is None:
        return 0, 0
    parts = header.split(",")
    if len(parts) != 2 or not all(is_whole_number(part.strip()) for part in parts):
        shown = header[:80]
        raise ProtocolError(
            f"heart-beat {quoted(shown)} is not two numbers of milliseconds: 'cx,cy'"
        )
    sends, wants = (min(int(part), 2**31) for part in parts)
    return (
        max(wants, MIN_INTERVAL_MS) if wants else 0,
        max(sends, MIN_INTERVAL_MS) if sends else 0,
    )


class HeartBeats:
    """When to send a heart-beat and when the client is gone; the clock is in seconds."""

    def __init__(
        self,
        sends_ms: int,
        expects_ms: int,
        now: float,
        *,
        ttl_ms: int = -1,
        silence_factor: float = 2.0,
    ) -> None:
        """Begin; a client that promised no heart-beats may be silent for ``ttl_ms``, -1 for ever.

        One that did is gone once it was silent for ``silence_factor`` of its intervals: networks
        are late.
        """
        self._send_after = sends_ms / 1000 * _SEND_FACTOR
        self._gone_after = expects_ms / 1000 * silence_factor or max(ttl_ms, 0) / 1000
        self._last_written = now
        self._last_read = now

    def read(self, now: float) -> None:
        """Note that bytes came from the client."""
        self._last_read = now

    def forgive(self, seconds: float, now: float) -> None:
        """Leave out ``seconds`` in which this node stood still and could read nothing."""
        self._last_read = min(now, self._last_read + seconds)

    def is_due(self, now: float) -> bool:
        """Return whether to send a heart-beat now, and note that it is sent."""
        if not self._send_after or now - self._last_written < self._send_after:
            return False
        self._last_written = now
        return True

    def is_gone(self, now: float) -> bool:
        """Return whether the client was silent for too long."""
        return bool(self._gone_after) and now - self._last_read > self._gone_after


class Silence(NamedTuple):
    """Why a client is to be ended."""

    reason: str
    kind: Refusal


class Timeouts:
    """The deadlines of one connection; the clock is in seconds."""

    __slots__ = ("_connect_by", "_connect_timeout_ms", "_looked_at", "_reason", "beats")

    def __init__(self, connect_timeout_ms: int, now: float) -> None:
        self._connect_timeout_ms = connect_timeout_ms
        self._connect_by = now + connect_timeout_ms / 1000
        self._looked_at = now
        self._reason = ""
        self.beats = HeartBeats(0, 0, now)
        """What the two sides agreed on, from the login on."""

    def agree(
        self, sends_ms: int, expects_ms: int, now: float, *, ttl_ms: int, silence_factor: float
    ) -> None:
        """Begin the heart-beats that a login asked for; see ``HeartBeats``."""
        self.beats = HeartBeats(
            sends_ms, expects_ms, now, ttl_ms=ttl_ms, silence_factor=silence_factor
        )
        self._reason = (
            "no heart-beat from the client within its time"
            if expects_ms
            else f"nothing came from the client for connectionTtl {ttl_ms} ms; agree on heart-beats"
        )

    def leave_out(self, now: float, *, is_read: bool, paused: float) -> None:
        """Leave out the ``paused`` seconds before ``now``.

        Of a client that is not read from, leave out all the time since the last call.
        """
        passed, self._looked_at = now - self._looked_at, now
        self._connect_by += paused if is_read else passed
        if paused:
            self.beats.forgive(paused, now)
        if not is_read:
            self.beats.read(now)

    def silence(self, state: State, now: float) -> Silence | None:
        """Return why to end the client; None if it has time left."""
        if state is _CONNECTED and self.beats.is_gone(now):
            return Silence(self._reason, Refusal.SILENCE)
        if state is _CONNECTING and now > self._connect_by:
            late = f"no CONNECT frame within {self._connect_timeout_ms} ms"
            return Silence(late, Refusal.NO_CONNECT)
        return None
