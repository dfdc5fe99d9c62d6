"""What a waiting node notices about the one that is live: a name or timers that do not fit."""

import math
from collections.abc import Iterator
from typing import Final

from nodemanager.lease import LockStatus

_TOLERANCE: Final = 0.25
"""By how much, as a part, the duration of a lease may seem to differ: it is seen a moment late."""
_RENEWALS: Final = 3
"""After so many the longest remainder seen is close to the whole lease."""


class NeighbourWatch:
    """Looks at the live lock as a waiting node reads it; each thing is told once per holder."""

    def __init__(self, holder_id: str, expiration_ms: int | None) -> None:
        """Compare with the node of ``holder_id``, whose leases last ``expiration_ms``, if any."""
        self._own = holder_id
        self._expiration_seconds = None if expiration_ms is None else expiration_ms / 1000
        self._seen: LockStatus | None = None
        self._renewals = 0
        self._longest_seconds = 0.0

    def look(self, live: LockStatus, poll_seconds: float) -> Iterator[str]:
        """Yield what is to be told, given that the lock is looked at every ``poll_seconds``."""
        before, self._seen = self._seen, live
        if live.holder_id in (None, self._own) or live.expires_in_seconds is None:
            return
        if before is None or (before.holder_id, before.token) != (live.holder_id, live.token):
            self._renewals, self._longest_seconds = 0, 0.0
            if live.expires_in_seconds == math.inf:
                yield from self._judge_name(live.holder_id)
            return
        if before.expiration_time == live.expiration_time:
            return
        self._renewals += 1
        self._longest_seconds = max(self._longest_seconds, live.expires_in_seconds)
        if self._renewals == 1:
            # Only now: before, it may be an earlier process of this very node.
            yield from self._judge_name(live.holder_id)
        if self._renewals == _RENEWALS:
            yield from self._judge_expiration(live.holder_id, poll_seconds)

    def _judge_name(self, holder_id: str | None) -> Iterator[str]:
        if holder_id is not None and _name(holder_id) == _name(self._own) is not None:
            yield (
                f"the node that has the live lock, {holder_id}, is called {_name(self._own)!r} as"
                " this one is: give each node a <name> of its own, or logs and status cannot tell"
                " them apart"
            )

    def _judge_expiration(self, holder_id: str | None, poll_seconds: float) -> Iterator[str]:
        own = self._expiration_seconds
        if own is None:
            return
        least, most = self._longest_seconds, self._longest_seconds + poll_seconds
        if least > own * (1 + _TOLERANCE) or most < own * (1 - _TOLERANCE):
            yield (
                f"the leases of {holder_id}, which is live, last about {least:.1f} s and those of"
                f" this node {own:g} s: give both nodes the same jdbc-lock-expiration and"
                " jdbc-lock-renew-period, or a takeover takes longer than either promises"
            )


def _name(holder_id: str) -> str | None:
    """Return the name of the node that has this holder id; None if it has none."""
    name, at, _ = holder_id.rpartition("@")
    return name if at else None
