"""When the former live node was last known to be there, and known to be gone.

A pure value. A node that waits for the live lock looks at it again and again; what each look says
is added here, on the node's own stopwatch.
"""

from dataclasses import dataclass, replace

from orthia.nodemanager.locks.holder_id import HolderId
from orthia.nodemanager.locks.lease import LockStatus


@dataclass(frozen=True)
class LastSign:
    """The last sign of the live lock's holder."""

    seconds: float | None = None
    """When that was; None if nobody was ever seen with the lock."""
    held_seconds: float | None = None
    """When the lock was last seen held."""
    holder_id: HolderId | None = None
    """Whose sign it is."""
    gone_seconds: float | None = None
    """Since when the lock is known not to be held; None while it is."""

    def after(self, live: LockStatus, looked_seconds: float) -> "LastSign":
        """Return what is known after a look at the lock that was begun at ``looked_seconds``.

        A lease says itself when it was last renewed, by the database's clock, if its holder
        published for how long it is: also one that ended before this node was there. Any other
        lock says only that it is held.
        """
        gone = looked_seconds if self.gone_seconds is None else self.gone_seconds
        if live.holder_id is None:
            # The holder gave it back; it was there when the lock was last seen held.
            return replace(self, seconds=self.held_seconds or self.seconds, gone_seconds=gone)
        held = looked_seconds if live.is_held else self.held_seconds
        said, left = live.holder_id, live.expires_in_seconds
        ended = min(looked_seconds, looked_seconds + (left or 0.0))
        sign = LastSign(looked_seconds, held, live.holder_id, None if live.is_held else ended)
        if said.timers is not None and not said.kind and left is not None:
            renewed = looked_seconds + left - said.timers.expiration_ms / 1000
            return replace(sign, seconds=min(renewed, looked_seconds))
        if live.is_held:
            return sign
        return replace(sign, seconds=ended if self.seconds is None else self.seconds)

    def gone_since(self, seconds: float | None) -> "LastSign":
        """Return what is known if its process has certainly been gone since ``seconds``.

        But not since before its last sign.
        """
        if seconds is None or self.seconds is None:
            return self
        known = [max(seconds, self.seconds)]
        known += [] if self.gone_seconds is None else [self.gone_seconds]
        return replace(self, gone_seconds=min(known))

    def age_ms(self, now_seconds: float) -> float | None:
        """Return for how long there has been no sign; None if there never was one."""
        return _age_ms(self.seconds, now_seconds)

    def held_ms(self, now_seconds: float) -> float | None:
        """Return how long ago the lock was last seen held; None if it never was."""
        return _age_ms(self.held_seconds, now_seconds)

    def gone_ms(self, now_seconds: float) -> float | None:
        """Return for how long it has certainly been gone; None if it may have been there."""
        return _age_ms(self.gone_seconds, now_seconds)


def _age_ms(seconds: float | None, now_seconds: float) -> float | None:
    return None if seconds is None else max(0.0, now_seconds - seconds) * 1000
