"""What happened to the pair lately, from the failover logs in this node's directory.

That has the node's own log, and its peer's where both write into one directory. Only the end of
each file is read. The database has the events of all nodes, and may hang: a page does not ask it.
"""

import os
from pathlib import Path
from typing import Final

from orthia.nodemanager.failover_log import Entry

MOST_EVENTS: Final = 60
_MOST_FILES: Final = 8
_TAIL_BYTES: Final = 128 * 1024
_LEFT_OUT: Final = frozenset({"StateWritten", "SchemaMigrated"})
"""What says nothing of who serves."""


def latest(directory: Path) -> list[Entry]:
    """Return the latest events, the newest first; none of a file that cannot be read. Blocks."""
    try:
        files = sorted(directory.glob("failover-*.jsonl"), key=lambda one: -one.stat().st_mtime)
    except OSError:
        return []
    found = [entry for one in files[:_MOST_FILES] for entry in _tail(one)]
    found.sort(key=lambda one: (one.db_time or one.node_time, one.event_seq), reverse=True)
    return found[:MOST_EVENTS]


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
