"""When the node before was last known to be there: what an outage is counted from.

A pure value. A node that waits for the live lock looks at it again and again; what each look says
is added here, on the node's own stopwatch.
"""

from dataclasses import dataclass, replace

from nodemanager.holder_id import HolderId
from nodemanager.lease import LockStatus


@dataclass(frozen=True)
class LastSign:
    """The last sign of the live lock's holder."""

    seconds: float | None = None
    """When that was; None if nobody was ever seen with the lock."""
    held_seconds: float | None = None
    """When the lock was last seen held."""

    def after(self, live: LockStatus, looked_seconds: float) -> "LastSign":
        """Return what is known after a look at the lock that was begun at ``looked_seconds``.

        A lease says itself when it was last renewed, by the database's clock, if its holder
        published for how long it is: also one that ended before this node was there. Any other
        lock says only that it is held.
        """
        if live.holder_id is None:
            # It was given back, by a holder that was there when the lock was last seen held.
            return replace(self, seconds=self.held_seconds or self.seconds)
        held = looked_seconds if live.is_held else self.held_seconds
        said, left = HolderId.parse(live.holder_id), live.expires_in_seconds
        if said.timers is not None and not said.kind and left is not None:
            renewed = looked_seconds + left - said.timers.expiration_ms / 1000
            return LastSign(min(renewed, looked_seconds), held)
        if live.is_held:
            return LastSign(looked_seconds, held)
        ended = looked_seconds + (left or 0.0)
        return LastSign(ended if self.seconds is None else self.seconds, held)

    def age_ms(self, now_seconds: float) -> float | None:
        """Return for how long there has been no sign; None if there never was one."""
        return None if self.seconds is None else max(0.0, now_seconds - self.seconds) * 1000
