"""Where the outbox is measured: a server, its database, nodes on it, and many clients of it.

The clients are pgbench and mariadb-slap, which cost the machine little.
"""

import contextlib
import os
import re
import shutil
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import sqlalchemy as sa
from typing_extensions import override

from orthia.config.settings import Role
from orthia.config.store_settings import DatabaseStoreSettings
from orthia.database import Database
from tests.process.file_nodes import FileNodeProcess
from tests.support.servers import (
    PASSWORD,
    USER,
    MariadbServer,
    PostgresqlServer,
    StoreServer,
    url_with_password,
)

BODY: Final = 1_024
OUTBOX: Final = "ORTHIA_OUTBOX"
_COLUMNS: Final = "destination, headers, body"
_HEADERS: Final = '{"kind": "new"}'


class Bench(ABC):
    """A server, its database, and nodes on it."""

    setup: tuple[str, ...]
    """What makes ``business``, and ``bare``, an outbox without what the outbox adds."""
    body: str
    """The SQL of a body."""
    call: str
    """The SQL that calls a routine."""
    numbers: str
    """The SQL of so many rows."""

    def __init__(self, server: StoreServer, directory: Path, compiled: str) -> None:
        """Make the tables; ``compiled`` is what nodes import from, if not from this checkout."""
        self.directory = directory
        self.settings: DatabaseStoreSettings = server.settings(server.create_database())
        self._compiled = compiled
        self._number = 0
        self._database = Database.from_settings(self.settings)
        self._engine = self._database.engine.execution_options(isolation_level="AUTOCOMMIT")
        with self.node():
            pass  # makes the tables
        for statement in self.setup:
            self.run(statement)

    @property
    def name(self) -> str:
        """The database's."""
        return str(self.settings.jdbc_connection_url.sqlalchemy_url.database)

    @property
    def port(self) -> int:
        """The server's."""
        return self.settings.jdbc_connection_url.sqlalchemy_url.port or 0

    def close(self) -> None:
        """End its connections."""
        self._database.dispose()

    @contextlib.contextmanager
    def node(self, inner: str = "") -> Iterator[FileNodeProcess]:
        """Run a node that sends the outbox, with these settings of it."""
        self._number += 1
        core = f'<outbox xmlns="urn:orthia">{inner}</outbox>'
        url = url_with_password(self.settings)
        name = f"node{self._number}"
        node = FileNodeProcess(Role.LIVE, url, self.directory, name, core=core)
        if self._compiled:
            node.environment = {"PYTHONSAFEPATH": "1", "PYTHONPATH": self._compiled}
        node.start().wait_serving()
        try:
            yield node
        finally:
            node.terminate()

    @contextlib.contextmanager
    def session(self) -> Iterator[sa.Connection]:
        """Give a session in autocommit."""
        with self._engine.connect() as session:
            yield session

    def run(self, statement: str) -> None:
        """Execute a statement."""
        with self.session() as session:
            session.exec_driver_sql(statement.replace("%", "%%"))

    def empty(self, *tables: str) -> None:
        """Empty tables."""
        for table in tables:
            self.run(f"TRUNCATE TABLE {table}")

    def insert(self, table: str) -> str:
        """Return the statement that inserts a message into a table."""
        return f"INSERT INTO {table} ({_COLUMNS}) VALUES ('orders', '{_HEADERS}', {self.body})"

    def send(self) -> str:
        """Return the statement that sends the same by the routine."""
        return f"{self.call} orthia_send('orders', {self.body}, '{_HEADERS}')"

    def fill(self, rows: int, to: str) -> None:
        """Insert rows into the outbox by one statement."""
        numbers = self.numbers.format(rows)
        self.run(
            f"INSERT INTO {OUTBOX} (destination, body) SELECT '{to}', {self.body} FROM {numbers}"
        )

    def drained(self, timeout_seconds: float = 300) -> None:
        """Wait until the outbox is empty."""
        until = time.monotonic() + timeout_seconds
        with self.session() as session:
            while time.monotonic() < until:
                if session.exec_driver_sql(f"SELECT 1 FROM {OUTBOX} LIMIT 1").first() is None:
                    return
                time.sleep(0.01)
        raise RuntimeError("the outbox is not drained")

    @abstractmethod
    def load(self, statements: list[str], clients: int, seconds: float) -> float:
        """Return how often a second so many clients execute the statements, about so long."""


class PostgresqlBench(Bench):
    """With pgbench."""

    setup = (
        """CREATE TABLE bare (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
            destination text NOT NULL, headers text, body bytea NOT NULL,
            created_at timestamptz NOT NULL DEFAULT clock_timestamp())""",
        "ALTER TABLE bare ALTER body SET STORAGE EXTERNAL",
        "CREATE TABLE business (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, what text)",
        "CREATE TABLE notified (LIKE bare INCLUDING ALL)",
        """CREATE FUNCTION tell() RETURNS trigger LANGUAGE plpgsql AS
            $$ BEGIN PERFORM pg_notify('told', ''); RETURN NULL; END $$""",
        """CREATE TRIGGER tell AFTER INSERT ON notified
            FOR EACH STATEMENT EXECUTE FUNCTION tell()""",
    )
    body = f"decode(repeat('78', {BODY}), 'hex')"
    call = "SELECT"
    numbers = "generate_series(1, {})"

    @override
    def load(self, statements: list[str], clients: int, seconds: float) -> float:
        path = self.directory / "script.sql"
        path.write_text("".join(f"{one};\n" for one in statements))
        binaries = sorted(Path("/usr/lib/postgresql").glob("*/bin/pgbench"))
        command = [str(binaries[-1]), "-n", "-M", "prepared", "-f", str(path), "-c", str(clients)]
        command += ["-j", "2" if clients > 1 else "1", "-T", f"{max(1, round(seconds))}"]
        command += ["-h", "127.0.0.1", "-p", str(self.port), "-U", USER, self.name]
        told = _output(command, PGPASSWORD=PASSWORD)
        return float(_found(r"tps = ([\d.]+) \(without", told))


class MariadbBench(Bench):
    """With mariadb-slap, which executes a number of statements: how many it finds out."""

    setup = (
        """CREATE TABLE bare (ID BIGINT AUTO_INCREMENT PRIMARY KEY,
            DESTINATION VARCHAR(1024) NOT NULL, HEADERS LONGTEXT, BODY LONGBLOB NOT NULL,
            CREATED_AT DATETIME(6) NOT NULL DEFAULT UTC_TIMESTAMP(6))""",
        "CREATE TABLE business (id BIGINT AUTO_INCREMENT PRIMARY KEY, what TEXT)",
    )
    body = f"REPEAT('x', {BODY})"
    call = "CALL"
    numbers = "seq_1_to_{}"

    @override
    def load(self, statements: list[str], clients: int, seconds: float) -> float:
        tried = 200
        return self._load(
            statements, clients, tried + round(self._load(statements, clients, tried) * seconds)
        )

    def _load(self, statements: list[str], clients: int, times: int) -> float:
        slap = shutil.which("mariadb-slap")
        if slap is None:
            raise RuntimeError("there is no mariadb-slap")
        path = self.directory / "script.sql"
        path.write_text(";".join(statements))
        login = self.directory / "login.cnf"
        login.touch(mode=0o600)
        login.write_text(f'[client]\nuser={USER}\npassword="{PASSWORD}"\n', encoding="utf-8")
        command = [slap, f"--defaults-file={login}", "--host=127.0.0.1", f"--port={self.port}"]
        command += [f"--create-schema={self.name}", f"--query={path}", "--delimiter=;"]
        times = -(-times // clients) * clients
        command += [f"--concurrency={clients}", f"--number-of-queries={times * len(statements)}"]
        command += ["--no-drop"]
        return times / float(_found(r"all queries: ([\d.]+) seconds", _output(command)))


def bench(
    dbms: str, server: StoreServer, directory: Path, compiled: str = ""
) -> PostgresqlBench | MariadbBench:
    """Return the bench of a DBMS."""
    match dbms, server:
        case "postgresql", PostgresqlServer():
            return PostgresqlBench(server, directory, compiled)
        case "mariadb", MariadbServer():
            return MariadbBench(server, directory, compiled)
        case _:
            raise ValueError(f"no bench is made for {dbms}")


def _output(command: list[str], **environment: str) -> str:
    ended = subprocess.run(
        command, env=os.environ | environment, capture_output=True, text=True, check=False
    )
    if ended.returncode:
        raise RuntimeError(ended.stdout + ended.stderr)
    return ended.stdout


def _found(pattern: str, text: str) -> str:
    found = re.search(pattern, text)
    if found is None:
        raise RuntimeError(f"{pattern!r} is not in:\n{text}")
    return found[1]
