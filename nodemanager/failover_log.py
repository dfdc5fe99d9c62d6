"""The failover log of one node: each event to the console, to a file and to the database.

Neither disk nor database may hold the broker up: a thread writes the file and another the table,
each best effort; a full disk or a database that is away costs entries, never service.
"""

import contextlib
import itertools
import json
import logging
import queue
import re
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import NoneType
from typing import Any, Final

from sqlalchemy import Engine, MetaData, Table, insert
from typing_extensions import override

from orthia.config.errors import OrthiaError
from orthia.config.store_settings import DatabaseStoreSettings
from orthia.database import (
    Database,
    DuplicateKey,
    StoreUnavailable,
    TransientStoreError,
    write_transaction,
)
from orthia.nodemanager.events import Event
from orthia.nodemanager.locks.lease import Lock
from orthia.nodemanager.tables import failover_log

LOGGER = logging.getLogger("orthia.failover")
MAX_WAITING = 10_000
"""Events that wait for the file and the table; a failover makes about twenty."""
_RETRY_SECONDS = 1.0
_BATCH = 100


def log_file_name(node_name: str) -> str:
    """Return the name of a node's file: nodes that share a directory have one each."""
    return f"failover-{re.sub(r'[^A-Za-z0-9._-]', '_', node_name)}.jsonl"


@dataclass(frozen=True)
class Entry:
    """One line of the failover log: an event, and who logged it when."""

    db_time: datetime | None
    """By the database's clock as this node last knew it; None before its first answer."""
    node_time: datetime
    node_id: str | None
    node_name: str
    holder_id: str
    role: str
    code: str
    level: str
    event: str
    lock: str | None
    token: int | None
    event_seq: int
    """Counts the events of one holder from 1; with the holder it names an event."""
    message: str
    details: dict[str, Any]

    def to_json(self) -> str:
        """Return the entry as one line, which is UTF-8 even if a path that it quotes is not."""
        line = json.dumps(
            {
                "db_time": self.db_time and self.db_time.astimezone(UTC).isoformat(),
                "node_time": self.node_time.isoformat(),
                "node_id": self.node_id,
                "node_name": self.node_name,
                "holder_id": self.holder_id,
                "role": self.role,
                "code": self.code,
                "level": self.level,
                "event": self.event,
                "lock": self.lock,
                "token": self.token,
                "event_seq": self.event_seq,
                "message": self.message,
                "details": self.details,
            },
            ensure_ascii=False,
        )
        return line.encode(errors="backslashreplace").decode()

    @classmethod
    def from_json(cls, line: str) -> "Entry":
        """Read an entry; raises ValueError if the line is not one."""
        try:
            data = json.loads(line)
        except RecursionError:
            raise ValueError("not a failover log line: nested too deeply") from None
        if not isinstance(data, dict):
            raise ValueError("a failover log line is a JSON object")  # noqa: TRY004 - a bad value
        fields: dict[str, Any] = {}
        for name, kinds in _FIELDS.items():
            value = data.get(name)
            # Its very type: a boolean is an int to isinstance, which takes twice as long, too.
            if type(value) not in kinds:
                raise ValueError(f"not a failover log line: {name} is missing or not of its type")
            fields[name] = value
        try:
            fields["db_time"] = _time(fields["db_time"]) if fields["db_time"] else None
            fields["node_time"] = _time(fields["node_time"])
        except OverflowError:
            raise ValueError("not a failover log line: a time outside of the calendar") from None
        return cls(**fields)


_FIELDS: Final[Mapping[str, tuple[type, ...]]] = {
    "db_time": (str, NoneType),
    "node_time": (str,),
    "node_id": (str, NoneType),
    "node_name": (str,),
    "holder_id": (str,),
    "role": (str,),
    "code": (str,),
    "level": (str,),
    "event": (str,),
    "lock": (str, NoneType),
    "token": (int, NoneType),
    "event_seq": (int,),
    "message": (str,),
    "details": (dict,),
}
"""What a line has, as JSON writes it."""


def _time(text: str) -> datetime:
    time = datetime.fromisoformat(text)
    if time.tzinfo is None:
        raise ValueError("not a failover log line: a time without its offset from UTC")
    time.astimezone(UTC)  # raises OverflowError where a reader would meet it
    return time


class FailoverLog:
    """Where a node's events go; ``emit`` may be called on any thread."""

    def __init__(
        self,
        *,
        node_name: str,
        holder_id: str,
        role: str,
        path: Path | None = None,
        table: "FailoverLogTable | None" = None,
        listener: Callable[[Event], None] | None = None,
    ) -> None:
        """Open the log; ``listener`` hears every event; what it raises is logged.

        But for a MemoryError, with which the thread is to end.
        """
        self._node_name = node_name
        self._holder_id = holder_id
        self.role = role
        """What the node is now, for each entry; whoever changes the role sets it."""
        self.node_id: str | None = None
        self.database_time: Callable[[], datetime | None] = lambda: None
        """Tells the database's time as this node knows it, whatever its own clock is set to."""
        self._listener = listener
        self._numbers = itertools.count(1)
        self._mutex = threading.Lock()
        # A thread each: a database that hangs must not keep the file from telling so.
        self._sinks: list[_Sink] = []
        if path is not None:
            self._sinks.append(_FileSink(path))
        if table is not None:
            self._sinks.append(_TableSink(table))

    def emit(self, event: Event) -> None:
        """Log ``event`` now to the console, and soon to file and database."""
        self.record(event)()

    def record(self, event: Event) -> Callable[[], None]:
        """Log ``event`` soon to file and database; return what logs it to the console.

        For whoever must not wait for a console that nobody reads.
        """
        with self._mutex:
            # Together, so that events are kept in the order of their numbers: who reads on from
            # the last number of a holder misses none.
            entry = self._entry(event)
            full = [sink for sink in self._sinks if not sink.put(entry)]
        for sink in full:
            sink.warn_of(entry)
        return lambda: self._show(event, entry)

    def _show(self, event: Event, entry: Entry) -> None:
        LOGGER.log(
            event.level,
            entry.message,
            extra={"code": event.code, "node": self._node_name, "role": entry.role},
        )
        if self._listener is not None:
            try:
                self._listener(event)
            except MemoryError:
                raise  # ends this thread and with it the node
            except Exception:
                LOGGER.exception("the listener of events failed at %s", event.code)

    def _entry(self, event: Event) -> Entry:
        lock, token = getattr(event, "lock", None), getattr(event, "token", None)
        now = datetime.now(UTC)
        return Entry(
            db_time=self.database_time(),
            node_time=now.astimezone(),
            node_id=self.node_id,
            node_name=self._node_name,
            holder_id=self._holder_id,
            role=self.role,
            code=event.code,
            level=logging.getLevelName(event.level),
            event=type(event).__name__,
            lock=lock.name.lower() if isinstance(lock, Lock) else None,
            token=token,
            event_seq=next(self._numbers),
            message=event.message,
            details=event.details(),
        )

    def close(self, timeout_seconds: float) -> None:
        """Write what waits, for at most ``timeout_seconds``, and end the threads."""
        for sink in self._sinks:
            sink.finish()
        give_up_seconds = time.monotonic() + timeout_seconds
        for sink in self._sinks:
            sink.join(max(0.0, give_up_seconds - time.monotonic()))


class _Sink:
    """A bounded queue and the thread that empties it, best effort."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._waiting: queue.Queue[Entry | None] = queue.Queue(MAX_WAITING)
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"orthia-log-{name}", daemon=True)
        self._thread.start()

    def put(self, entry: Entry) -> bool:
        """Take an entry, without waiting; False if too many wait: it is dropped."""
        try:
            self._waiting.put_nowait(entry)
        except queue.Full:
            return False
        return True

    def warn_of(self, entry: Entry) -> None:
        """Log that an entry was dropped."""
        LOGGER.warning(
            "failover log: dropping %s for the %s: too many events wait", entry.code, self._name
        )

    def finish(self) -> None:
        """End the thread when all is written."""
        self._closing.set()
        with contextlib.suppress(queue.Full):
            self._waiting.put_nowait(None)

    def join(self, timeout_seconds: float) -> None:
        """Wait for the thread's end."""
        self._thread.join(timeout_seconds)

    def _run(self) -> None:
        ended = False
        while not ended:
            entries = [self._waiting.get()]
            while len(entries) < _BATCH and not self._waiting.empty():
                entries.append(self._waiting.get())
            ended = None in entries
            try:
                self._write([entry for entry in entries if entry is not None])
            except MemoryError:
                raise  # as above
            except Exception:
                # Whatever the error: later entries must still be written.
                LOGGER.exception(
                    "failover log: writing entries to the %s failed; they are lost there",
                    self._name,
                )

    def _write(self, batch: list[Entry]) -> None:
        raise NotImplementedError


class _FileSink(_Sink):
    """A file of JSON lines."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._failed = False
        super().__init__("file")

    @override
    def _write(self, batch: list[Entry]) -> None:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("a", encoding="utf-8") as file:
                file.writelines(entry.to_json() + "\n" for entry in batch)
        except OSError as error:
            if not self._failed:
                LOGGER.warning(
                    "failover log file %s cannot be written: %s; events still go to the"
                    " database and here",
                    self._path,
                    error,
                )
            self._failed = True
        else:
            self._failed = False


class _TableSink(_Sink):
    """The database's table."""

    def __init__(self, table: "FailoverLogTable") -> None:
        self._table = table
        super().__init__("table")

    @override
    def _write(self, batch: list[Entry]) -> None:
        for entry in batch:
            while not self._try_insert(entry):
                # A closing node does not wait for a database that is unavailable.
                if self._closing.wait(_RETRY_SECONDS):
                    return

    def _try_insert(self, entry: Entry) -> bool:
        try:
            self._table.insert(entry)
        except (StoreUnavailable, TransientStoreError):
            return False
        except OrthiaError as error:
            LOGGER.warning(
                "failover log: writing %s to the table failed: %s; it is lost there",
                entry.code,
                error,
            )
        return True


class FailoverLogTable:
    """FAILOVER_LOG through a connection of its own."""

    def __init__(self, database: Database, settings: DatabaseStoreSettings) -> None:
        self._engine: Engine = database.dedicated_engine(
            "failover-log", query_timeout_ms=settings.jdbc_network_timeout
        )
        name = settings.failover_log_table_name
        self._table: Table = failover_log(MetaData(), name, database.dialect)

    def insert(self, entry: Entry) -> None:
        """Insert ``entry`` unless it is there; raises StoreError."""
        row: dict[str, Any] = {
            "node_time": entry.node_time.isoformat(),
            "node_id": entry.node_id,
            "node_name": entry.node_name[:128],
            "holder_id": entry.holder_id,
            "role": entry.role,
            "code": entry.code,
            "level": entry.level,
            "event": entry.event,
            "lock_name": entry.lock,
            "token": entry.token,
            "event_seq": entry.event_seq,
            "detail": entry.to_json(),
        }
        if entry.db_time is not None:
            row["db_time"] = entry.db_time
        try:
            with write_transaction(self._engine, "write the failover log") as connection:
                connection.execute(insert(self._table).values(row))
        except DuplicateKey:
            return  # an earlier attempt of unknown outcome succeeded
