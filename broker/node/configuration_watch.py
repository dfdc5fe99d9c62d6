"""Watches a node's ``broker.xml`` on a thread, and applies changes to the node."""

import logging
import re
import threading
from collections.abc import Callable
from typing import Final

from orthia.broker.core.upkeep.reconfiguration import NewRules
from orthia.config.changes import Change, Effect, changes, reloaded
from orthia.config.configuration_file import ConfigurationFile
from orthia.config.errors import ConfigurationError
from orthia.config.file_states import FileState
from orthia.config.rules import violations
from orthia.config.settings import Settings

LOGGER = logging.getLogger("orthia.broker")
SETTLE_SECONDS: Final = 0.25
"""How long a changed file must stay unchanged before it is read: it may be half written."""
MOST_TOLD: Final = 100
"""How many changes of a file have a line each."""
_WARNED_OF: Final = frozenset({Effect.RESTART, Effect.STORED})

Apply = Callable[[NewRules, Callable[[], None]], None]
"""Applies rules to the node, and then calls the callback."""
Show = Callable[[int | None], None]
"""Called with how many changes wait for a restart; None if the file is invalid."""


class ConfigurationWatch:
    """Checks the file each period; an invalid file changes nothing, and is logged once."""

    def __init__(
        self,
        file: ConfigurationFile,
        read: Settings,
        running: Settings,
        *,
        apply: Apply,
        show: Show = lambda _: None,
    ) -> None:
        """``read`` is what the file said when it was read last, ``running`` what came of it."""
        self._file = file
        self._name = running.source
        self._period_seconds = running.configuration_file_refresh_period / 1000
        self._first = self._read = read
        self._running = running
        self._apply = apply
        self._show = show
        self._seen: tuple[FileState | None, ...] = ()
        self._applied = threading.Event()
        self._stopped = threading.Event()

    def start(self) -> None:
        """Start to watch, unless the period is 0 or less."""
        if self._period_seconds > 0:
            threading.Thread(target=self._run, name="configuration", daemon=True).start()

    def stop(self) -> None:
        """Stop watching; any thread."""
        self._stopped.set()
        self._applied.set()

    def _run(self) -> None:
        while not self._stopped.wait(self._period_seconds):
            while self.look() and not self._stopped.wait(SETTLE_SECONDS):
                pass

    def look(self) -> bool:
        """Read the file if it changed and stands still; return whether it may be half written."""
        if not self._file.has_changed:
            return False
        found = self._file.state()
        if found != self._seen:
            self._seen = found
            return True
        self._reload()
        return False

    def _reload(self) -> None:
        try:
            read = self._file.read()
            rules = NewRules.of(self._checked(read))
        except MemoryError:
            raise  # the node is to end with this thread
        except Exception as error:
            # No file may end a node that serves.
            is_told = isinstance(error, ConfigurationError)
            LOGGER.error(  # noqa: TRY400 - the reason is said
                "%s changed, and nothing of it was applied: %s; this node keeps its settings until"
                " the file changes again",
                self._name,
                str(error) if is_told else f"{type(error).__name__}: {error}",
                exc_info=None if is_told else error,
            )
            self._show(None)
            return
        self._applied.clear()
        if self._stopped.is_set():
            return
        self._apply(rules, self._applied.set)
        self._applied.wait()
        if not self._stopped.is_set():
            self._tell(read)
        self._read, self._running = read, rules.settings

    def _checked(self, read: Settings) -> Settings:
        """Return the settings of the node with what it takes of those read.

        Raises ConfigurationError if they go together only with what needs a restart.
        """
        running = reloaded(self._running, read)
        found = [f"<{one.name}>: {one.message}" for one in violations(running)]
        if found:
            raise ConfigurationError(
                "; ".join(("its changes go together only when this node is restarted", *found))
            )
        return running

    def _tell(self, read: Settings) -> None:
        """Log what changed, a line each, and then how much."""
        still = {one.path for one in changes(self._first, read) if one.needs_restart}
        found = changes(self._read, read)
        for one in found[:MOST_TOLD]:
            if _is_back(one, still):
                LOGGER.info("%s: %s: %s (this node runs with that)", self._name, one.path, one.what)
            else:
                level = logging.WARNING if one.effect in _WARNED_OF else logging.INFO
                LOGGER.log(level, "%s: %s", self._name, one)
        if len(found) > MOST_TOLD:
            left = found[MOST_TOLD:]
            LOGGER.log(
                logging.WARNING if any(one.effect in _WARNED_OF for one in left) else logging.INFO,
                "%s: and %d more changes, of which %d wait for a restart",
                self._name,
                len(left),
                sum(one.needs_restart and one.path in still for one in left),
            )
        for what, now, before in (
            ("not applied: ", read.not_applied, self._read.not_applied),
            ("", read.warnings, self._read.warnings),
        ):
            known = set(map(_without_lines, before))
            for line in now:
                if _without_lines(line) not in known:
                    LOGGER.warning("%s%s", what, line)
        self._show(len(still))
        LOGGER.info(
            "reloaded %s: changes in effect: %d; waiting for a restart of this node: %d",
            self._name,
            sum(one.effect not in _WARNED_OF for one in found),
            len(still),
        )


def _is_back(change: Change, still: set[str]) -> bool:
    """Return whether what waits for a restart is again what the node was started with."""
    is_of_queue = change.path.startswith("addresses/")  # one that came later has what it came with
    return change.needs_restart and not is_of_queue and change.path not in still


def _without_lines(warning: str) -> str:
    """Return a warning without the lines that it names, which move with any change."""
    return re.sub(r"\d+", "", warning)
