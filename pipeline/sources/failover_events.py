"""The events of failover logs, by life: from lines of files and from rows of the table.

Nothing here needs Spark or Arrow: one process reads a pair's logs with it, and each worker of Spark
its part of many pairs'.
"""

import gc
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from sqlalchemy import MetaData, case, select

from orthia.config.store_settings import DatabaseStoreSettings
from orthia.database import Database, translate_errors
from orthia.nodemanager import events
from orthia.nodemanager.merge import lines_of_file, say_skipped
from orthia.nodemanager.tables import failover_log
from orthia.pipeline.times import FIRST, LAST, microseconds

READ_FOR_DETAILS: Final = tuple(
    kind.__name__
    for kind in (
        events.LiveLockObtained,
        events.LeaseLost,
        events.CrashDetected,
        events.LeaseExpired,
        events.TakeoverTimings,
        events.LoopUnanswered,
        events.BackupAnnounced,
        events.WaitingForLiveLock,
        events.RenewalSlow,
        events.RenewalFailed,
        events.RenewalGap,
        events.RenewalBeyondExpiration,
        events.RenewalNotTriggered,
        events.RenewalOverrun,
    )
)
"""Events whose details the history reads."""
_detailed: Final = frozenset(READ_FOR_DETAILS)

_ROWS_AT_ONCE: Final = 10_000
COLUMNS: Final = (
    *("id", "db_time", "node_time", "node_id", "node_name", "holder_id"),
    *("event", "lock_name", "token", "event_seq", "detail"),
)
"""The columns of the table that ``add_row`` takes."""


@dataclass(frozen=True)
class LogPart:
    """The part of the logs that one task reads: rows of one store's table, or some files."""

    pair: str | None = None
    """The name of the pair; None for its node id."""
    store: Mapping[str, str] | None = None
    """Options of ``StoreReference``."""
    first: int = 0
    end: int = 0
    """Rows with ``first <= id < end``."""
    files: Sequence[str] = ()


class Chapter:
    """The events of one life in one source."""

    __slots__ = ("events", "node_id")

    def __init__(self) -> None:
        self.node_id: str | None = None
        self.events: list[tuple[Any, ...]] = []


Lives = dict[tuple[str, str], Chapter]
"""Chapters by the holder and the name of its node."""


@contextmanager
def collector_at_rest() -> Iterator[None]:
    """Disable garbage collection, which would scan a hundred thousand new tuples repeatedly."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def add_table(database: Database, settings: DatabaseStoreSettings, lives: Lives) -> None:
    """Add the events of a store's table; raises StoreError."""
    name = settings.failover_log_table_name
    table = failover_log(MetaData(), name, database.dialect)
    detail = case((table.c.event.in_(READ_FOR_DETAILS), table.c.detail))
    plain = [table.c[column] for column in COLUMNS if column != "detail"]
    query = select(*plain, detail).order_by(table.c.id).limit(_ROWS_AT_ONCE)
    with translate_errors("read the failover log"), database.engine.connect() as connection:
        last, more = 0, True
        while more:
            more = False
            for number, at, *rest in connection.execute(query.where(table.c.id > last)):
                add_row((number, microseconds(at), *rest), name, lives)
                last, more = number, True


def add_row(row: Sequence[Any], table: str, lives: Lives) -> None:
    """Add a row of the table, ``id`` and the columns of ``COLUMNS``; one that is no event is named.

    ``db_time`` is in microseconds; ``detail`` is None unless the history reads it.
    """
    number, at, node_time, node_id, node, holder, event, lock, token, seq, detail = row
    try:
        node_at = microseconds(_instant(node_time))
        _check_in_calendar(at, node_at)
        details = _encodable(json.loads(detail)).get("details") if detail is not None else None
    except (ValueError, TypeError, AttributeError, RecursionError, OverflowError) as error:
        say_skipped(f"{table} row {number}", error)
        return
    found = details if isinstance(details, dict) else {}
    chapter = _chapter(lives, holder, node)
    chapter.node_id = node_id or chapter.node_id
    chapter.events.append((seq, at, node_at, event, lock, token, found, True))


_instant: Final = datetime.fromisoformat
_NONE: Final[Mapping[str, Any]] = {}
_decode: Final = json.JSONDecoder().raw_decode
"""``json.loads`` without its search for white space, which takes a third of its time."""


def add_file(path: Path, lives: Lives) -> bool:
    """Add the events of a file; a line that is none is named.

    Returns False if it has lines and none is an event: it is no failover log. Raises OSError,
    FailoverLogUnreadable if it cannot be unpacked.
    """
    skipped = found = 0
    for number, line in lines_of_file(path):
        try:
            data, end = _decode(line)
            if line[end:].strip():
                raise ValueError("more than one value in a line")  # noqa: TRY301 - as any other
            if "\\ud" in line or "\\uD" in line:
                data = _encodable(data)
            event, db_time = data["event"], data["db_time"]
            node_at = microseconds(_instant(data["node_time"]))
            at = node_at if db_time is None else microseconds(_instant(db_time))
            _check_in_calendar(at, node_at)
            details = data["details"] if event in _detailed else _NONE
            seq, lock, token = data["event_seq"], data["lock"], data["token"]
            holder, node, node_id = data["holder_id"], data["node_name"], data["node_id"]
            if not (
                # JSON types: a boolean is not a number.
                type(seq) is int
                and type(event) is str
                and (lock is None or type(lock) is str)
                and (token is None or type(token) is int)
                and type(details) is dict
                and type(holder) is str
                and type(node) is str
                and (node_id is None or type(node_id) is str)
            ):
                raise ValueError("a field is not of its type")  # noqa: TRY301 - as any other
        except (ValueError, TypeError, KeyError, RecursionError, OverflowError) as error:
            say_skipped(f"{path}:{number}", error)
            skipped += 1
            continue
        found += 1
        chapter = lives.get((holder, node)) or _chapter(lives, holder, node)
        chapter.node_id = node_id or chapter.node_id
        chapter.events.append((seq, at, node_at, event, lock, token, details, db_time is not None))
    return found > 0 or not skipped


def _check_in_calendar(at: int, node_at: int) -> None:
    """Raise ValueError for a time that its UTC offset moves out of the calendar."""
    if not (FIRST <= at <= LAST and FIRST <= node_at <= LAST):
        raise ValueError("a time beyond the calendar")


def _encodable(data: Any) -> Any:
    """Return JSON data with a question mark for each lone surrogate, which no text can hold.

    A node writes surrogates when it quotes a path that is not UTF-8.
    """
    text = json.dumps(data, ensure_ascii=False)
    return json.loads(text.encode("utf-8", "replace"))


def _chapter(lives: Lives, holder: str, node: str) -> Chapter:
    found = lives.get((holder, node))
    if found is None:
        found = lives[holder, node] = Chapter()
    return found
