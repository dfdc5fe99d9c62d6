"""A witness of what a renewal takes: a process that does nothing but renew something, and says so.

It is as much of a process as a node is, at the same priority. What it renews is a row of its own in
the database that the nodes have their leases in, past every fault of a network. On SQLite that is a
file of its own beside theirs, so that it takes no lock of theirs; in a world without a database it
is a file that is synced. What it cannot do in time no node can be blamed for.
"""

import json
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from sqlalchemy.exc import SQLAlchemyError

from orthia.config.dialects import Dialect
from orthia.config.errors import OrthiaError
from orthia.config.secrets import Secret
from orthia.config.store_settings import DatabaseStoreSettings
from orthia.config.urls import DatabaseUrl
from orthia.database import Database
from tests.chaos.ground import Ground
from tests.chaos.nodes import url_at
from tests.support.servers import PASSWORD, USER

_PERIOD_SECONDS = 0.1
_LEAST_SECONDS = 0.3
_TABLE = "CHAOS_RENEWALS"
_RENEW = f"UPDATE {_TABLE} SET N = N + 1 WHERE ID = 1"


class RenewalWatch(threading.Thread):
    """Starts the witness and hears what it says."""

    def __init__(self, ground: Ground) -> None:
        super().__init__(name="renewal-watch", daemon=True)
        self.stalls: list[tuple[float, float]] = []
        """When each renewal that took long was over, and its seconds with the pause before it."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.chaos.renewals", _what_to_renew(ground)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def run(self) -> None:
        """Listen until the witness ends."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            at, seconds = json.loads(line)
            self.stalls.append((at, seconds))

    def stop(self) -> None:
        """End the witness; raises AssertionError if it had ended by itself."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        code = self._process.wait(240)
        assert code == 0, f"the witness of renewals ended with {code}"
        self.join(60)
        assert self._process.stdout is not None
        self._process.stdout.close()


def _what_to_renew(ground: Ground) -> str:
    """Return the URL of a database, or the path of a file."""
    settings, directory = ground.database_settings, ground.site.directory
    if settings is None:
        return str(directory / "renewals")
    if "link" in ground.has:
        return url_at(settings, 0)
    return f"jdbc:sqlite:{directory / 'renewals.db'}"


def _row(url: str) -> Callable[[], None]:
    """Make a row, and return what renews it."""
    settings = DatabaseStoreSettings(jdbc_connection_url=DatabaseUrl.parse(url))
    if settings.jdbc_connection_url.dialect is not Dialect.SQLITE:
        settings = replace(settings, jdbc_user=USER, jdbc_password=Secret(PASSWORD))
    engine = Database.from_settings(settings).engine
    with engine.begin() as connection:
        connection.exec_driver_sql(f"CREATE TABLE {_TABLE} (ID INT PRIMARY KEY, N BIGINT)")
        connection.exec_driver_sql(f"INSERT INTO {_TABLE} VALUES (1, 0)")

    def renew() -> None:
        with engine.begin() as connection:
            connection.exec_driver_sql(_RENEW)

    return renew


def _file(path: Path) -> Callable[[], None]:
    file = path.open("wb")

    def renew() -> None:
        file.write(b".")
        file.flush()
        os.fsync(file.fileno())

    return renew


def main() -> None:
    """Renew what the argument names until standard input is closed; print what took long."""
    logging.disable()  # of connections that are lost with the database
    what = sys.argv[1]
    renew = _row(what) if ":" in what else _file(Path(what))
    is_over = threading.Event()

    def wait_for_end() -> None:
        sys.stdin.read()
        is_over.set()

    threading.Thread(target=wait_for_end, daemon=True).start()
    before = time.monotonic()
    while not is_over.wait(_PERIOD_SECONDS):
        try:
            renew()
        except (OrthiaError, OSError, SQLAlchemyError):
            continue  # the database is struck, or its disk is full
        now = time.monotonic()
        if now - before > _LEAST_SECONDS:
            sys.stdout.write(f"{json.dumps([now, now - before])}\n")
            sys.stdout.flush()
        before = now


if __name__ == "__main__":
    main()
