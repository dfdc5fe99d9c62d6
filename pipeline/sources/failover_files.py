"""Finds the files of failover logs: in directories, by patterns, by name."""

import glob
import logging
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from orthia.nodemanager.errors import FailoverLogUnreadable
from orthia.nodemanager.merge import check_file
from orthia.pipeline.errors import BadOption

LOGGER: Final = logging.getLogger("orthia.pipeline")
_READ: Final = re.compile(r"\.jsonl([.-]\d[\d-]*)?(\.gz)?\Z")
"""Ends of file names that are read in a directory, those of rotated logs included."""
_OF_A_NODE: Final = "failover-"
"""The beginning of a failover log's name; other files, such as the audit log, lie beside it."""
_BYTES_A_GROUP: Final = 16 * 1024 * 1024


def find_files(paths: str) -> list[Path]:
    """Return the files of a comma-separated list of directories, patterns and names.

    Raises BadOption for one that matches no file, FailoverLogUnreadable if none of its files is a
    failover log.
    """
    files: dict[Path, None] = {}
    for text in filter(None, (part.strip() for part in paths.split(","))):
        path = Path(text.removeprefix("file:"))
        if path.is_dir():
            found = _in_directory(path)
        else:
            found = [Path(name) for name in sorted(glob.glob(str(path)))]  # noqa: PTH207 - absolute
        if not found:
            raise BadOption(f"{text}: no failover log file there")
        if found == [path]:
            _check(path)
        else:
            found = _logs_among(found, text)
        files |= dict.fromkeys(found)
    return list(files)


def _in_directory(directory: Path) -> list[Path]:
    found = []
    for path in sorted(directory.rglob("*.jsonl*")):
        if _READ.search(path.name):
            found.append(path)
        elif path.name.startswith(_OF_A_NODE):
            LOGGER.warning("%s looks like a failover log, and is not read: unpack or name it", path)
    return found


def _logs_among(found: Sequence[Path], text: str) -> list[Path]:
    """Return those of the files that are failover logs; others beside them are no error."""
    logs = []
    for path in found:
        try:
            _check(path)
        except FailoverLogUnreadable as error:
            if path.name.startswith(_OF_A_NODE):
                LOGGER.warning("%s: it is left out", error)
        else:
            logs.append(path)
    if not logs:
        raise FailoverLogUnreadable(f"{text}: none of the files there is a failover log")
    return logs


def _check(path: Path) -> None:
    """Raise FailoverLogUnreadable for a file that is no failover log.

    A file that cannot be opened passes: the task that reads it reports why.
    """
    with suppress(OSError):
        check_file(path)


def in_groups(files: Iterable[Path]) -> Iterator[list[str]]:
    """Yield the files in groups, one for each task; raises OSError."""
    group: list[str] = []
    size = 0
    for path in files:
        if size >= _BYTES_A_GROUP:
            yield group
            group, size = [], 0
        group.append(str(path))
        size += path.stat().st_size
    if group:
        yield group
