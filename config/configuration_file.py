"""A ``broker.xml`` with the files that it includes, to see whether it changed since it was read."""

from collections.abc import Callable
from pathlib import Path

from orthia.config.file_states import FileState, refuse_pipe, state_of
from orthia.config.settings import Settings

Load = Callable[[Callable[[Path], None]], Settings]
"""Reads a file into settings; calls what it gets with the path of each file before it opens it."""


class ConfigurationFile:
    """Knows in which state the files were when they were read last; not thread-safe."""

    def __init__(self, load: Load) -> None:
        """``load`` may raise ConfigurationError; it reads the same path each time."""
        self._load = load
        self._as_read: dict[Path, FileState | None] = {}

    def read(self) -> Settings:
        """Return the settings; raises ConfigurationError, and then the files count as read, too.

        A pipe is read the first time only: a shell gives one for ``<(command)``.
        """
        as_read: dict[Path, FileState | None] = {}
        is_first = not self._as_read

        def opens(path: Path) -> None:
            as_read.setdefault(path, state_of(path))
            if not is_first:
                refuse_pipe(path)

        try:
            # Before it is opened: what changes while it is read has changed.
            return self._load(opens)
        finally:
            self._as_read = as_read

    def state(self) -> tuple[FileState | None, ...]:
        """Return what tells the files as they are now from what they were."""
        return tuple(map(state_of, self._as_read))

    @property
    def has_changed(self) -> bool:
        """Whether a file is not what it was when it was read last."""
        return self.state() != tuple(self._as_read.values())
