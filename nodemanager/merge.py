"""The failover logs of all nodes as one timeline, from the database and from files."""

import gzip
import logging
import zlib
from collections.abc import Iterable, Iterator
from datetime import datetime
from io import TextIOWrapper
from pathlib import Path
from typing import BinaryIO, Final, TextIO, cast

from sqlalchemy import MetaData, select

from orthia.config.store_settings import DatabaseStoreSettings
from orthia.database import Database, translate_errors
from orthia.nodemanager.errors import FailoverLogUnreadable
from orthia.nodemanager.failover_log import Entry
from orthia.nodemanager.tables import failover_log

LOGGER = logging.getLogger("orthia.failover")
MAX_LINE_CHARACTERS = 1_000_000
"""Of a file; an event has some hundred. A torn file may have a hole of any size in it."""

_GZIP: Final = b"\x1f\x8b"
"""How a file begins that gzip has packed, as logrotate does, whatever it is called."""


def read_table(
    database: Database,
    settings: DatabaseStoreSettings,
    *,
    after_id: int = 0,
    since: datetime | None = None,
) -> tuple[list[Entry], int]:
    """Read FAILOVER_LOG beyond the row ``after_id``; returns the entries and the last row's id.

    An entry without a database time of its own has the time its row was inserted. Raises
    StoreError.
    """
    name = settings.failover_log_table_name
    table = failover_log(MetaData(), name, database.dialect)
    c = table.c
    query = select(c.id, c.db_time, c.detail).where(c.id > after_id).order_by(c.id)
    if since is not None:
        query = query.where(c.db_time >= since)
    entries: list[Entry] = []
    last_id = after_id
    with translate_errors("read the failover log"), database.engine.connect() as connection:
        for row in connection.execute(query):
            last_id = row.id
            entry = parse_entry(row.detail, f"{name} row {row.id}", row.db_time)
            if entry is not None:
                entries.append(entry)
    return entries, last_id


def read_files(paths: Iterable[Path]) -> list[Entry]:
    """Read failover log files; a line that is none (a torn last one, say) is named and skipped.

    Raises OSError if a file cannot be read, FailoverLogUnreadable if no line of one is an entry.
    """
    return [entry for path in paths for entry in entries_of_file(path)]


def entries_of_file(path: Path) -> Iterator[Entry]:
    """Yield the entries of one failover log file, as ``read_files`` reads it."""
    skipped = found = 0
    for number, line in lines_of_file(path):
        entry = parse_entry(line, f"{path}:{number}", None)
        if entry is None:
            skipped += 1
        else:
            found += 1
            yield entry
    if skipped and not found:
        raise _no_log(path)


def check_file(path: Path) -> None:
    """Raise FailoverLogUnreadable if a file has lines, and none is an entry; OSError."""
    is_blank = True
    for _, line in lines_of_file(path):
        is_blank = False
        try:
            Entry.from_json(line)
        except ValueError:
            continue
        return
    if not is_blank:
        raise _no_log(path)


def _no_log(path: Path) -> FailoverLogUnreadable:
    return FailoverLogUnreadable(f"{path} is no failover log: no line of it is a node's event")


def lines_of_file(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the lines of a file that are not blank, with their numbers, cut off if too long.

    A file may be packed by gzip. Raises OSError if it cannot be read, FailoverLogUnreadable if it
    cannot be unpacked.
    """
    # It is opened once, and read forwards only: what is named may be a pipe.
    with path.open("rb") as stored:
        packed = stored.peek(len(_GZIP)).startswith(_GZIP)
        plain = cast("BinaryIO", gzip.GzipFile(fileobj=stored)) if packed else stored
        with TextIOWrapper(plain, "utf-8", "replace") as file:
            try:
                for number, line in enumerate(_lines(file), 1):
                    if not line.isspace():
                        yield number, line
            except (EOFError, gzip.BadGzipFile, zlib.error) as error:
                raise FailoverLogUnreadable(f"{path} is cut off or damaged: {error}") from error


def _lines(file: TextIO) -> Iterator[str]:
    """Yield the lines of a file; of one that is too long, so much that it is seen to be none."""
    while line := file.readline(MAX_LINE_CHARACTERS):
        yield line
        while line and not line.endswith("\n"):
            line = file.readline(MAX_LINE_CHARACTERS)


def parse_entry(line: str, where: str, db_time: datetime | None) -> Entry | None:
    """Read an entry; one without a database time gets ``db_time``. None, with a warning: no entry.

    ``where`` is what the warning names.
    """
    try:
        entry = Entry.from_json(line)
    except ValueError as error:
        say_skipped(where, error)
        return None
    if entry.db_time is None and db_time is not None:
        return Entry(**{**vars(entry), "db_time": db_time})
    return entry


def say_skipped(where: str, error: Exception) -> None:
    """Warn that what is at ``where`` is no entry."""
    LOGGER.warning("%s is not a failover log line (%s): skipped", where, error)


def merge(*logs: Iterable[Entry]) -> list[Entry]:
    """Return all entries in order of time, each event once, those of a holder in their order.

    The time is the database's. An entry from before a node knew that is placed by its own clock or
    by when its row was inserted, but never after the events that followed it on that node.
    """
    unique = {(entry.holder_id, entry.event_seq): entry for log in logs for entry in log}
    placed: list[tuple[datetime, str, int, Entry]] = []
    following: dict[str, datetime] = {}
    for (holder_id, number), entry in sorted(unique.items(), reverse=True):
        time = entry.db_time or entry.node_time
        time = following[holder_id] = min(time, following.get(holder_id, time))
        placed.append((time, holder_id, number, entry))
    return [entry for *_, entry in sorted(placed, key=lambda one: one[:3])]
