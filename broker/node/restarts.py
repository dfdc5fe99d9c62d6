"""From one life of a process to the next: carries out ``io-error-policy`` at the end of a node.

An IO-error shutdown leaves threads behind that may hang for ever in a call to a store that is gone.
So nothing of a node is reused: the process executes its command line again, under the same process
id, and an environment variable says what the next life is to be.
"""

import json
import os
import sys
from collections.abc import Callable, MutableMapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, NoReturn

from orthia.config.clock import monotonic_seconds
from orthia.config.settings import IoErrorPolicy, Role, Settings
from orthia.nodemanager.abc import FormerLife

VARIABLE: Final = "ORTHIA_NEXT_LIFE"
"""Not for users: written and read by the process itself."""
SHORT_LIFE_SECONDS: Final = 60.0
"""A life that ends sooner counts as another failure of the one before."""
LONGEST_PAUSE_SECONDS: Final = 60.0


@dataclass(frozen=True)
class Life:
    """What this life of the process is to be."""

    as_backup: bool = False
    former: FormerLife | None = None
    """Whose live lock this life is to take, if it is still as it was left."""
    short_lives: int = 0
    """How many lives in a row before this one were short."""
    began_seconds: float = 0.0

    @property
    def is_later(self) -> bool:
        """Whether the process had a life before this one, on the same store."""
        return self.as_backup or self.former is not None

    @property
    def pause_seconds(self) -> float:
        """How long to wait first: a node that fails at once must not spin."""
        if self.short_lives < 2:
            return 0.0
        return min(2.0 ** (self.short_lives - 1), LONGEST_PAUSE_SECONDS)

    def settings(self, given: Settings) -> Settings:
        """Return the settings of this life; a later one finds its own lock held, or waits."""
        locker = given.store.locker
        if locker is not None and self.is_later:
            waiting = replace(locker, fail_if_locked=False)
            given = replace(given, store=replace(given.store, locker=waiting))
        if not self.as_backup:
            return given
        return replace(given, ha_policy=replace(given.ha_policy, role=Role.BACKUP))

    def next(
        self, policy: IoErrorPolicy, *, now: float, holder_id: str | None, token: int | None
    ) -> "Life | None":
        """Return the life after this one, which ended with an IO error; None: the process ends.

        ``holder_id`` and ``token`` are those of a node that served, else None.
        """
        short = self.short_lives + 1 if now - self.began_seconds < SHORT_LIFE_SECONDS else 0
        if policy is IoErrorPolicy.RESTART_AS_BACKUP:
            return Life(as_backup=True, short_lives=short)
        if policy is IoErrorPolicy.STOP_CONNECTORS and holder_id is not None and token is not None:
            former = FormerLife(holder_id, token, now)
            return Life(as_backup=self.as_backup, former=former, short_lives=short)
        return None


def this_life(
    environment: MutableMapping[str, str] = os.environ,
    clock: Callable[[], float] = monotonic_seconds,
) -> Life:
    """Return what this life is to be; removes the variable from the environment."""
    text = environment.pop(VARIABLE, None)
    if text is None:
        return Life(began_seconds=clock())
    document: dict[str, Any] = json.loads(text)
    if document["former"] is not None:
        document["former"] = FormerLife(**document["former"])
    return Life(**(document | {"began_seconds": clock()}))


def written(life: Life) -> str:
    """Return the value that says what the next life is to be."""
    return json.dumps(asdict(life))


def begin(life: Life) -> NoReturn:
    """Execute this process' command line anew; any thread may. Ends every other at once."""
    environment = {**os.environ, VARIABLE: written(life)}
    os.execve(sys.executable, sys.orig_argv, environment)  # noqa: S606 - this very command line
