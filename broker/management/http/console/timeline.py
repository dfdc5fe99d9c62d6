"""What happened to the pair lately, from the failover logs in this node's directory.

That has the node's own log, and its peer's where both write into one directory. Only the end of
each file is read. The database has the events of all nodes, and may hang: a page does not ask it.
"""

import os
from pathlib import Path
from typing import Final, NamedTuple

from orthia.nodemanager.failover_log import Entry

MOST_EVENTS: Final = 60
_MOST_FILES: Final = 8
_TAIL_BYTES: Final = 128 * 1024
_LEFT_OUT: Final = frozenset({"StateWritten", "SchemaMigrated"})
"""What says nothing of who serves."""


class _Seen(NamedTuple):
    """A file as it was."""

    changed_ns: int
    size: int
    path: Path


class Timeline:
    """The failover logs in one directory; read again when one of them has changed."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._read: tuple[list[_Seen], list[Entry]] = ([], [])

    def latest(self) -> list[Entry]:
        """Return the latest events, the newest first; none of a file that cannot be read. Blocks.

        Any thread.
        """
        try:
            files = [
                _Seen(one.stat().st_mtime_ns, one.stat().st_size, one)
                for one in self._directory.glob("failover-*.jsonl")
            ]
        except OSError:
            return []
        newest = sorted(files, reverse=True)[:_MOST_FILES]
        before, events = self._read
        if newest != before:
            events = [entry for one in newest for entry in _tail(one.path)]
            events.sort(key=lambda one: (one.db_time or one.node_time, one.event_seq), reverse=True)
            del events[MOST_EVENTS:]
            self._read = newest, events
        return events


def _tail(path: Path) -> list[Entry]:
    try:
        with path.open("rb") as file:
            begins = max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES)
            file.seek(begins)
            lines = file.read(_TAIL_BYTES).split(b"\n")
    except OSError:
        return []
    entries = []
    for line in lines[1 if begins else 0 :]:
        try:
            entry = Entry.from_json(line.decode())
        except ValueError:
            continue  # a torn line, or none
        if entry.event not in _LEFT_OUT:
            entries.append(entry)
    return entries
