# mypyc compiles this module.
"""Heart-beats of one connection, both ways (STOMP 1.1 and 1.2, "Heart-beating")."""

from orthia.broker.protocols.stomp.frames import ProtocolError, is_whole_number
from orthia.broker.quoting import quoted

MIN_INTERVAL_MS = 500
"""The most often the broker beats, or asks a client to."""
_SEND_FACTOR = 0.5


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
    """When to beat and when the client is gone; the clock is in seconds."""

    def __init__(
        self,
        sends_ms: int,
        expects_ms: int,
        now: float,
        *,
        ttl_ms: int = -1,
        silence_factor: float = 2.0,
    ) -> None:
        """Begin; a client that promised no beats may be silent for ``ttl_ms``, -1 for ever.

        One that did counts as gone when it was silent for ``silence_factor`` of its intervals:
        networks are late.
        """
        self._send_after = sends_ms / 1000 * _SEND_FACTOR
        self._gone_after = expects_ms / 1000 * silence_factor or max(ttl_ms, 0) / 1000
        self._last_written = now
        self._last_read = now

    def read(self, now: float) -> None:
        """Note that something came."""
        self._last_read = now

    def forgive(self, seconds: float, now: float) -> None:
        """Note that for so long nobody could be heard: whoever listens stood still."""
        self._last_read = min(now, self._last_read + seconds)

    def is_due(self, now: float) -> bool:
        """Return whether to send a beat now, and note that it is sent."""
        if not self._send_after or now - self._last_written < self._send_after:
            return False
        self._last_written = now
        return True

    def is_gone(self, now: float) -> bool:
        """Return whether the client was silent for too long."""
        return bool(self._gone_after) and now - self._last_read > self._gone_after
