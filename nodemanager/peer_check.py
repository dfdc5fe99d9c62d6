"""What a waiting node notices about the one that is live: a name or timers that do not fit."""

import math
from collections.abc import Iterator

from orthia.nodemanager.events import TimersDiffer
from orthia.nodemanager.locks.holder_id import HolderId
from orthia.nodemanager.locks.lease import LockStatus


class PeerCheck:
    """Looks at the live lock as a waiting node reads it; each thing is told once per holder."""

    def __init__(self, holder_id: HolderId) -> None:
        """Compare with the node of ``holder_id``."""
        self._own = holder_id
        self._seen: LockStatus | None = None
        self._is_checked = False

    def look(self, live: LockStatus) -> Iterator[str | TimersDiffer]:
        """Yield what is to be told, as an event or as a line."""
        before, self._seen = self._seen, live
        if live.holder_id in (None, self._own) or live.expires_in_seconds is None:
            return
        if before is None or (before.holder_id, before.token) != (live.holder_id, live.token):
            self._is_checked = False
            lives = live.expires_in_seconds == math.inf
        else:
            lives = before.expiration_time != live.expiration_time
        # Only if it lives: before it may be an earlier process of this very node.
        if live.holder_id is not None and lives and not self._is_checked:
            self._is_checked = True
            yield from self._check(live.holder_id)

    def _check(self, theirs: HolderId) -> Iterator[str | TimersDiffer]:
        ours = self._own
        if theirs.name is not None and theirs.name == ours.name:
            yield (
                f"the node that has the live lock, {theirs}, is called {ours.name!r} as this"
                " one is: give each node a <name> of its own, or logs and status cannot tell them"
                " apart"
            )
        if theirs.timers and ours.timers and theirs.timers != ours.timers:
            yield TimersDiffer(
                theirs,
                theirs.timers.renew_period_ms,
                theirs.timers.expiration_ms,
                ours.timers.renew_period_ms,
                ours.timers.expiration_ms,
            )
