"""The failover log of one node: each event to the console, to a file and to the database.

Nothing of it may hold the broker up: ``emit`` only queues. One thread writes the file and the
table, each best effort; a full disk or a database that is away costs entries, never service.
"""

import itertools
import json
import logging
import queue
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, MetaData, Table, insert

from config.errors import OrthiaError
from config.settings import DatabaseStoreSettings
from database import Database, DuplicateKey, StoreUnavailable, write_transaction
from nodemanager.events import Event
from nodemanager.lease import Lock
from nodemanager.tables import failover_log

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
        """Return the entry as one line."""
        return json.dumps(
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

    @classmethod
    def from_json(cls, line: str) -> "Entry":
        """Read an entry; raises ValueError if the line is not one."""
        data = json.loads(line)
        if not isinstance(data, dict):
            raise ValueError("a failover log line is a JSON object")  # noqa: TRY004 - a bad value
        try:
            db_time = data["db_time"]
            fields = {name: data[name] for name in cls.__dataclass_fields__}
            fields["db_time"] = datetime.fromisoformat(db_time) if db_time else None
            fields["node_time"] = datetime.fromisoformat(data["node_time"])
        except (KeyError, TypeError) as error:
            raise ValueError(f"not a failover log line: {error}") from None
        return cls(**fields)


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
        self._node_name = node_name
        self._holder_id = holder_id
        self.role = role
        """What the node is now, for each entry; whoever changes the role sets it."""
        self.node_id: str | None = None
        self.offset: timedelta | None = None
        """Database time minus this node's wall time, once known."""
        self._path = path
        self._table = table
        self._listener = listener
        self._numbers = itertools.count(1)
        self._mutex = threading.Lock()
        self._waiting: queue.Queue[Entry | None] = queue.Queue(MAX_WAITING)
        self._file_failed = False
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="orthia-failover-log", daemon=True)
        self._thread.start()

    def emit(self, event: Event) -> None:
        """Log ``event`` now to the console, and soon to file and database."""
        entry = self._entry(event)
        LOGGER.log(
            event.level,
            entry.message,
            extra={"code": event.code, "node": self._node_name, "role": self.role},
        )
        try:
            self._waiting.put_nowait(entry)
        except queue.Full:
            LOGGER.warning("failover log: %s not kept, too many events wait", entry.code)
        if self._listener is not None:
            self._listener(event)

    def _entry(self, event: Event) -> Entry:
        lock, token = getattr(event, "lock", None), getattr(event, "token", None)
        now = datetime.now(UTC)
        with self._mutex:
            number = next(self._numbers)
        return Entry(
            db_time=None if self.offset is None else now + self.offset,
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
            event_seq=number,
            message=event.message,
            details=event.details(),
        )

    def close(self, timeout_seconds: float) -> None:
        """Write what waits, for at most ``timeout_seconds``, and end the thread."""
        self._closing.set()
        try:
            self._waiting.put(None, timeout=timeout_seconds)
        except queue.Full:
            return
        self._thread.join(timeout_seconds)

    def _run(self) -> None:
        ended = False
        while not ended:
            entries = [self._waiting.get()]
            while len(entries) < _BATCH and not self._waiting.empty():
                entries.append(self._waiting.get())
            ended = entries[-1] is None
            batch = [entry for entry in entries if entry is not None]
            self._write_file(batch)
            self._write_table(batch)

    def _write_file(self, batch: list[Entry]) -> None:
        if self._path is None or not batch:
            return
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("a", encoding="utf-8") as file:
                file.writelines(entry.to_json() + "\n" for entry in batch)
        except OSError as error:
            if not self._file_failed:
                LOGGER.warning(
                    "failover log file %s cannot be written: %s; events go on in the database and"
                    " here",
                    self._path,
                    error,
                )
            self._file_failed = True
        else:
            self._file_failed = False

    def _write_table(self, batch: list[Entry]) -> None:
        if self._table is None:
            return
        for entry in batch:
            while not self._try_insert(self._table, entry):
                # A closing node has no time to wait for a database that is away.
                if self._closing.wait(_RETRY_SECONDS):
                    break

    def _try_insert(self, table: "FailoverLogTable", entry: Entry) -> bool:
        try:
            table.insert(entry)
        except StoreUnavailable:
            return False
        except OrthiaError as error:
            LOGGER.warning("failover log: %s not kept in the table: %s", entry.code, error)
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
            return  # an earlier attempt whose outcome was unknown did succeed
