"""The floor for several waiting clients: one bare driver loop per client, each in its own process.

Each has a connection and commits one row at a time. The loops share the machine with the server, as
the clients of a broker do, and are written in Python, as Orthia is.
"""

import multiprocessing
from multiprocessing.connection import Connection

from benchmarks.floors import FLOOR_SEQ, Floor
from orthia.config.store_settings import DatabaseStoreSettings
from orthia.database import Database

_SEQS_OF_ONE = 2**34
_READY_SECONDS = 120.0
_LATE_SECONDS = 120.0


class FloorClients:
    """Processes that wait for rounds; their connections stay open from the first round on."""

    def __init__(self, settings: DatabaseStoreSettings, count: int) -> None:
        """Start them on a migrated database."""
        context = multiprocessing.get_context("spawn")
        self._processes = []
        self._pipes = []
        for number in range(1, count + 1):
            here, there = context.Pipe()
            first_seq = FLOOR_SEQ + number * _SEQS_OF_ONE
            process = context.Process(target=_client, args=(settings, first_seq, there))
            process.daemon = True
            process.start()
            self._processes.append(process)
            self._pipes.append(here)
        for pipe in self._pipes:
            _next(pipe, _READY_SECONDS)

    def rate(self, seconds: float) -> float:
        """Return rows a second, all processes together."""
        for pipe in self._pipes:
            pipe.send(seconds)
        return sum(_next(pipe, seconds + _LATE_SECONDS) for pipe in self._pipes)

    def close(self) -> None:
        """End the processes."""
        for pipe in self._pipes:
            pipe.send(None)
        for process in self._processes:
            process.join()


def _next(pipe: Connection, timeout_seconds: float) -> float:
    if not pipe.poll(timeout_seconds):
        raise RuntimeError("a client of the floor does not answer")
    rate: float = pipe.recv()
    return rate


def _client(settings: DatabaseStoreSettings, first_seq: int, pipe: Connection) -> None:
    database = Database.from_settings(settings)
    floor = Floor(database, first_seq)
    pipe.send(0.0)
    while (seconds := pipe.recv()) is not None:
        pipe.send(floor.one_at_a_time(seconds))
    floor.close()
    database.dispose()
