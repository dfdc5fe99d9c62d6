"""What is watched while a run goes on: the live lock, the nodes' ends, and the machine itself."""

import os
import threading
import time
from itertools import pairwise
from pathlib import Path

from orthia.config.errors import OrthiaError
from orthia.nodemanager.locks.sql_store import SqlNodeManagerStore
from tests.chaos.exits import End
from tests.chaos.ground import Ground

_LOCK_SECONDS = 0.1
_NODES_SECONDS = 0.05
_STALL_PROBE_SECONDS = 0.1
_LEAST_STALL_SECONDS = 0.3
_LOG_BYTES = 2_000


class Watch(threading.Thread):
    """Looks at something until it is stopped."""

    def __init__(self) -> None:
        super().__init__(name=type(self).__name__, daemon=True)
        self._stopping = threading.Event()

    def stop(self) -> None:
        """End the watch."""
        self._stopping.set()
        self.join(60)


class LockWatch(Watch):
    """Reads the live lock's row again and again: who holds it by the database's word."""

    def __init__(self, ground: Ground, began: float) -> None:
        super().__init__()
        self._ground = ground
        self._began = began
        self.holders: list[tuple[float, str, int]] = []

    def run(self) -> None:
        """Watch until stopped."""
        settings = self._ground.database_settings
        if settings is None:
            return  # files have no such row
        database = self._ground.open_database()
        store = SqlNodeManagerStore(database, settings, database.engine)
        while not self._stopping.wait(_LOCK_SECONDS):
            try:
                lock = store.status().live
            except OrthiaError:
                continue  # the database is struck
            holder = lock.holder_id if lock.is_held else None
            name = "" if holder is None else holder.name or str(holder)
            if not self.holders or self.holders[-1][1:] != (name, lock.token):
                self.holders.append((time.monotonic() - self._began, name, lock.token))
        database.dispose()

    def takeovers(self, began: float, ended: float) -> int:
        """Return how many tokens began to be held between two times since the run's start."""
        tokens = [(at, token) for at, name, token in self.holders if name]
        changes = pairwise(tokens)
        return sum(before != token and began <= at <= ended for (_, before), (at, token) in changes)


class NodesWatch(Watch):
    """Notes when each incarnation of a node ends, and how."""

    def __init__(self, ground: Ground) -> None:
        super().__init__()
        self._nodes = ground.nodes
        self.ends: list[End] = []

    def run(self) -> None:
        """Watch until stopped."""
        while not self._stopping.wait(_NODES_SECONDS):
            self.look()

    def look(self) -> None:
        """Look at every node once."""
        for node in self._nodes:
            process = node.process
            if process is None or node.is_noted:
                continue
            code = process.poll()
            if code is not None:
                at = time.monotonic()
                self.ends.append(End(node.name, code, at, _end_of(node.log_path)))
                node.noted_pid = process.pid

    def stop(self) -> None:
        """End the watch, with a last look."""
        super().stop()
        self.look()


class MachineWatch(Watch):
    """Notes when the machine itself stood still: a short sleep and a small sync that took long."""

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self._path = directory / "probe"
        self.stalls: list[tuple[float, float]] = []
        """When each was over, and its seconds."""

    def run(self) -> None:
        """Watch until stopped."""
        with self._path.open("wb") as file:
            before = time.monotonic()
            while not self._stopping.wait(_STALL_PROBE_SECONDS):
                file.write(b".")
                file.flush()
                os.fsync(file.fileno())
                now = time.monotonic()
                if now - before > _LEAST_STALL_SECONDS:
                    self.stalls.append((now, now - before))
                before = now


def _end_of(path: Path) -> str:
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _LOG_BYTES))
        return file.read().decode(errors="replace")
