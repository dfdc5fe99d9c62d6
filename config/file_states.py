"""What of a file tells that it has changed, for those that look whether one has."""

from pathlib import Path
from typing import TypeAlias

from orthia.config.errors import ConfigurationError

FileState: TypeAlias = tuple[int, int, int, int]
"""Its inode, its size, and its times of change; the last also of its rights, of which the times of
what is in it do not tell."""


def state_of(path: Path) -> FileState | None:
    """Return what the file at ``path`` is now; None if it cannot be found."""
    try:
        found = path.stat()
    except (OSError, ValueError):
        return None  # ValueError: a PEMCFG may name what no file can be called
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def refuse_pipe(path: Path) -> None:
    """Raise ConfigurationError if there is a named pipe at ``path``.

    Whoever opens one waits until somebody writes into it, so the thread that looks whether files
    have changed would never look again.
    """
    if path.is_fifo():
        raise ConfigurationError(f"{path}: is a named pipe; expected a file")
