"""Directories outside of pytest's own, and the removal of those that a killed run left there."""

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
from pathlib import Path

_PREFIX = "orthia-test-"
_OLD_SECONDS = 3_600.0


def make_directory(place: Path | None) -> tuple[Path, int]:
    """Make a directory in ``place``, or the temporary directory, that no other run removes.

    Return it and the descriptor that keeps it until that is closed, or its process is gone.
    """
    directory = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=place))
    descriptor = os.open(directory, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_SH)
    return directory, descriptor


def remove_left(place: Path) -> None:
    """Remove what is in ``place`` of processes that are gone.

    What is young stays: it may have been made just now, and not be kept yet.
    """
    for directory in place.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):  # another run removes it, or it is another user's
            if time.time() - directory.stat().st_mtime < _OLD_SECONDS:
                continue
            descriptor = os.open(directory, os.O_RDONLY)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(directory, ignore_errors=True)
            finally:
                os.close(descriptor)
