# mypyc compiles this module.
"""When a client is ended for its silence, and when it is to hear from this node.

Each side tells the other after which silence it gives up. So a client is told half of the time that
is really waited, as the specification asks for. One that is not read from is not silent, and the
time in which this node stood still is not counted.
"""

_BEAT_FACTOR = 0.5
"""After which part of the client's time-out it gets an empty frame."""


class Timeouts:
    """The deadlines of one connection; the clock is in seconds."""

    __slots__ = (
        "_beat_seconds", "_beaten_at", "_heard_at", "_idle_seconds", "_login_by", "_looked_at",
    )  # fmt: skip

    def __init__(self, login_ms: int, idle_ms: int, now: float) -> None:
        """``login_ms`` is when a client must have logged in; ``idle_ms`` of 0 is never."""
        self._login_by: float | None = now + login_ms / 1000
        self._idle_seconds = idle_ms / 1000
        self._looked_at = self._heard_at = self._beaten_at = now
        self._beat_seconds = 0.0

    def logged_in(self, now: float) -> None:
        """Wait for no login any more, but for frames."""
        self._login_by = None
        self._heard_at = now

    def expects(self, idle_ms: int | None, now: float) -> None:
        """Note after which silence the client gives up; None is never."""
        self._beat_seconds = (idle_ms or 0) / 1000 * _BEAT_FACTOR
        self._beaten_at = now

    def heard(self, now: float) -> None:
        """Note that bytes came from the client."""
        self._heard_at = now

    def leave_out(self, now: float, *, is_read: bool, paused: float) -> None:
        """Leave out the ``paused`` seconds before ``now``; without reading, all since the last."""
        passed, self._looked_at = now - self._looked_at, now
        left_out = paused if is_read else passed
        if self._login_by is not None:
            self._login_by += left_out
        self._heard_at = min(now, self._heard_at + left_out)

    def is_late(self, now: float) -> bool:
        """Return whether the client should have logged in by now."""
        return self._login_by is not None and now > self._login_by

    def is_silent(self, now: float) -> bool:
        """Return whether the client was silent for too long."""
        if self._login_by is not None or not self._idle_seconds:
            return False
        return now - self._heard_at > self._idle_seconds

    def is_beat_due(self, now: float) -> bool:
        """Return whether the client is to get an empty frame now, and note that it does."""
        if not self._beat_seconds or now - self._beaten_at < self._beat_seconds:
            return False
        self._beaten_at = now
        return True
