"""Throw-away database servers, for tests and benchmarks: private, on loopback, ended by pid.

    with PostgresqlServer() as server:
        settings = server.settings(server.create_database())

A server keeps its durable defaults (fsync stays on), because what happens when it is killed is
what Orthia is tested for. Needed on the machine: the binaries of PostgreSQL and MariaDB, which
``make packages`` installs; nothing that runs. With MYSQLD in the environment, the path of MySQL's
``mysqld``, whatever runs on MariaDB runs on MySQL too.
"""

import atexit
import contextlib
import ctypes
import itertools
import os
import pwd
import random
import shutil
import signal
import socket
import subprocess
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Self

import psycopg2
import pymysql
from pymysql.constants import ER

from orthia.config.secrets import Secret
from orthia.config.store_settings import DatabaseStoreSettings
from orthia.config.urls import DatabaseUrl
from tests.support.leftovers import make_directory
from tests.support.processes import family, is_running, send, stop_family
from tests.support.waiting import wait_until

USER = "orthia"
PASSWORD = "correct horse:battery@staple/%£"
"""Holds what URLs, libpq and PyMySQL treat specially."""

LEASE_MS = 30_000
"""The lease where its end is not what is tested: longer than a busy machine stands still."""

LAPSING_LEASE_MS = 10_000
"""The lease where its end is: nothing else may end it on a busy machine, and it is waited for."""

NODE_LEASE_MS, LAPSING_NODE_LEASE_MS = 60_000, 20_000
"""The same for nodes that are processes: several of them, and clients, want the machine at once."""

NODE_NETWORK_TIMEOUT_MS = 45_000
"""Of such a node. A lease bears no longer stop than this: a renewal that is under way has failed
then, and one that fails is the end of the lease."""

SERVER_ZONE = {"postgresql": "Asia/Kathmandu", "mysql": "+05:45"}
"""No session is in UTC unless it asks to be; by the protocol of the server."""

_EMPTY_POSTGRESQL = """
DROP SCHEMA public CASCADE;
CREATE SCHEMA public;
DO $$ BEGIN
    IF current_setting('server_version_num')::int >= 150000 THEN
        ALTER SCHEMA public OWNER TO pg_database_owner;
        GRANT USAGE ON SCHEMA public TO PUBLIC;
    ELSE
        GRANT ALL ON SCHEMA public TO PUBLIC;
    END IF;
END $$
"""

_SHARED_MEMORY_LINE = 6
"""Of postmaster.pid, from 0: the key and the id of the segment that tells of a second server."""

_START_SECONDS = 120
_PR_SET_PDEATHSIG = 1
_database_numbers = itertools.count(1)
_libc = ctypes.CDLL(None, use_errno=True)


def url_with_password(settings: DatabaseStoreSettings) -> str:
    """Return the SQLAlchemy URL of ``settings``, user and password included."""
    url = settings.jdbc_connection_url.sqlalchemy_url
    if settings.jdbc_password is not None:
        url = url.set(username=settings.jdbc_user, password=settings.jdbc_password.reveal())
    return url.render_as_string(hide_password=False)


class StoreServer(ABC):
    """Something that databases can be created in."""

    @abstractmethod
    def url(self, database: str) -> str:
        """Return the JDBC URL of one of its databases, without user and password."""

    @abstractmethod
    def create_database(self) -> str:
        """Create an empty database of a name never used before and return the name."""

    @abstractmethod
    def drop_database(self, database: str) -> None:
        """Delete the database."""

    @abstractmethod
    def connections(self, database: str) -> list[str]:
        """Return who is connected to the database, one description each."""

    def settings(self, database: str, **changes: Any) -> DatabaseStoreSettings:
        """Return settings for the database with timers that suit tests, or ``changes``."""
        values: dict[str, Any] = {
            "jdbc_connection_url": DatabaseUrl.parse(self.url(database)),
            "jdbc_network_timeout": 20_000,
            "jdbc_lock_renew_period": 200,
            "jdbc_lock_expiration": LEASE_MS,
            "jdbc_lock_acquisition_timeout": 120_000,
        }
        if self.has_users:
            values["jdbc_user"] = USER
            values["jdbc_password"] = Secret(PASSWORD)
        return DatabaseStoreSettings(**(values | changes))

    has_users = True


class SqliteServer(StoreServer):
    """The embedded database: its server is a directory."""

    has_users = False

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def url(self, database: str) -> str:
        """Return the JDBC URL of a database's file."""
        return f"jdbc:sqlite:{self._directory / database}"

    def create_database(self) -> str:
        """Return a new file name; SQLite makes the file."""
        return f"{_new_name()}.sqlite"

    def drop_database(self, database: str) -> None:
        """Delete the database's file and those beside it."""
        for path in self._directory.glob(f"{database}*"):
            path.unlink()

    def connections(self, database: str) -> list[str]:
        """Return the descriptors of this process that are open on the database's files."""
        prefix = str(self._directory / database)
        found = []
        for descriptor in Path("/proc/self/fd").iterdir():
            try:
                target = str(descriptor.readlink())
            except FileNotFoundError:
                continue
            if target.startswith(prefix):
                found.append(target)
        return found


class ServerProcess(StoreServer):
    """A server with a data directory of its own under ``place``, or the temporary directory."""

    place: ClassVar[Path | None] = None

    def __init__(self, template: "ServerProcess | None" = None) -> None:
        """Prepare a data directory: a copy of a template's, which must not run, or a new one."""
        self.port = free_port()
        self._account = pwd.getpwnam(self._account_name) if os.geteuid() == 0 else None
        self.directory, kept = make_directory(self.place)
        self.data = self.directory / "data"
        self.log = self.directory / "log"
        self.options: list[str] = []
        """Arguments of the server, beside its own; from the next start on."""
        self._process: subprocess.Popen[bytes] | None = None
        self._paused: list[int] = []
        self._end = weakref.finalize(self, self._forget, self.directory, kept)
        if self._account is not None:
            os.chown(self.directory, self._account.pw_uid, self._account.pw_gid)
        if template is None:
            self._initialise()
        else:
            self._run(["cp", "-a", str(template.data), str(self.data)])

    _account_name: str
    _death_signal: signal.Signals
    """What ends the server with all its children when this process dies."""

    @abstractmethod
    def _initialise(self) -> None:
        """Make the data directory."""

    @abstractmethod
    def end_open_transactions(self, database: str) -> None:
        """End every session of the database that idles inside a transaction."""

    @abstractmethod
    def _command(self) -> list[str]:
        """Return the command that runs the server in the foreground."""

    @abstractmethod
    def _administrate(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        """Execute one statement as the administrator and return its rows."""

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.discard()

    @property
    def pids(self) -> list[int]:
        """The server's processes, the parent first; empty when it does not run."""
        return [] if self._process is None else family(self._process.pid)

    def start(self) -> None:
        """Start the server and wait until it answers."""
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [*self._command(), *self.options],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.directory,
                start_new_session=True,
                preexec_fn=self._die_with_parent(),
                **self._as_account(),
            )
        process = self._process

        def answers() -> bool:
            if process.poll() is not None:
                raise RuntimeError(f"the server did not start:\n{self.log.read_text()[-4000:]}")
            try:
                self._administrate("SELECT 1")
            except (psycopg2.OperationalError, pymysql.OperationalError):
                return False
            return True

        wait_until(answers, _START_SECONDS, what=f"an answer from {' '.join(self._command())}")

    def kill(self) -> None:
        """SIGKILL the server with all its children, as a power cut would; restart() works after."""
        if self._process is None:
            return
        members = stop_family(self._process.pid)
        send(members, signal.SIGKILL)
        self._process.wait()
        wait_until(lambda: not any(map(is_running, members)), what="the killed server is gone")
        self._process = None
        self._paused = []

    def stop(self) -> None:
        """End the server quickly and in order."""
        if self._process is None:
            return
        self.resume()
        self._process.send_signal(self._stop_signal)
        try:
            self._process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            self.kill()
        self._process = None

    _stop_signal: signal.Signals

    def restart(self) -> None:
        """Stop the server if it runs, and start it on the same port with the same data."""
        self.stop()
        self.start()

    def pause(self) -> None:
        """SIGSTOP every process of the server: connections stay open and nobody answers."""
        if self._process is not None:
            self._paused = stop_family(self._process.pid)

    def resume(self) -> None:
        """SIGCONT what pause() stopped."""
        send(self._paused, signal.SIGCONT)
        self._paused = []

    def discard(self) -> None:
        """End the server and delete its data."""
        self.kill()
        self._end()

    def execute(self, statement: str) -> list[tuple[Any, ...]]:
        """Execute one statement as the administrator and return its rows."""
        return self._administrate(statement)

    def create_database(self) -> str:
        """Create an empty database."""
        name = _new_name()
        self._administrate(f"CREATE DATABASE {name}")
        return name

    @classmethod
    def _forget(cls, directory: Path, kept: int) -> None:
        cls._remove(directory)
        os.close(kept)

    @staticmethod
    def _remove(directory: Path) -> None:
        shutil.rmtree(directory, ignore_errors=True)

    def give(self, path: Path) -> None:
        """Have a file be that of the user who runs the server."""
        if self._account is not None:
            os.chown(path, self._account.pw_uid, self._account.pw_gid)

    def _as_account(self) -> dict[str, Any]:
        if self._account is None:
            return {}
        return {
            "user": self._account.pw_uid,
            "group": self._account.pw_gid,
            "extra_groups": [],
        }

    def _die_with_parent(self) -> Callable[[], None]:
        number = int(self._death_signal)
        return lambda: _libc.prctl(_PR_SET_PDEATHSIG, number)

    def _run(self, command: list[str]) -> None:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=self.directory,
            check=False,
            **self._as_account(),
        )
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)} failed:\n{done.stdout.decode()}")


class PostgresqlServer(ServerProcess):
    """A PostgreSQL server."""

    _account_name = "postgres"
    _death_signal = signal.SIGQUIT
    _stop_signal = signal.SIGINT

    def url(self, database: str) -> str:
        """Return the JDBC URL of a database."""
        return f"jdbc:postgresql://127.0.0.1:{self.port}/{database}"

    def __init__(self, template: ServerProcess | None = None) -> None:
        super().__init__(template)
        self._emptied: list[str] = []

    @staticmethod
    def _remove(directory: Path) -> None:
        """Remove the shared memory too that a killed server leaves: Linux has room for 4096."""
        with contextlib.suppress(FileNotFoundError):
            lines = (directory / "data" / "postmaster.pid").read_text().splitlines()
            for line in lines[_SHARED_MEMORY_LINE:][:1]:
                segment = line.split()[1]
                subprocess.run(["ipcrm", "--shmem-id", segment], check=False, capture_output=True)
        ServerProcess._remove(directory)

    def create_database(self) -> str:
        """Return an empty database: one that was dropped, by another name, or a new one.

        To make one PostgreSQL copies three hundred files, and removes them when it is dropped: that
        takes more processor time than most tests do with it.
        """
        return self._emptied.pop() if self._emptied else super().create_database()

    def drop_database(self, database: str) -> None:
        """End the database's sessions, and keep it, empty and by another name, for another test.

        One with settings or rights of its own is dropped, and one that somebody comes back to.
        """
        is_as_made = self._administrate(
            "SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity"
            " WHERE datname = %(name)s AND backend_type = 'client backend';"
            "SELECT 1 FROM pg_database d WHERE datname = %(name)s AND datacl IS NULL"
            " AND NOT EXISTS (SELECT FROM pg_db_role_setting WHERE setdatabase = d.oid)",
            name=database,
        )
        spare = _new_name()
        try:
            if is_as_made:
                self._administrate(f"ALTER DATABASE {database} RENAME TO {spare}")
        except psycopg2.errors.ObjectInUse:
            is_as_made = []
        if is_as_made:
            self._administrate(_EMPTY_POSTGRESQL, database=spare)
            self._emptied.append(spare)
        else:
            self._administrate(f"DROP DATABASE IF EXISTS {database} WITH (FORCE)")

    def connections(self, database: str) -> list[str]:
        """Return the application names of the database's sessions."""
        rows = self._administrate(
            "SELECT application_name || ': ' || query FROM pg_stat_activity"
            " WHERE datname = %s AND backend_type = 'client backend'",
            database,
        )
        return [str(name) for (name,) in rows]

    def end_open_transactions(self, database: str) -> None:
        """End every session of the database that idles inside a transaction."""
        self._administrate(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = %s AND state = 'idle in transaction'",
            database,
        )

    def _initialise(self) -> None:
        password_file = self.directory / "password"
        password_file.write_text(PASSWORD)
        password_file.chmod(0o644)
        self._run(
            [
                _postgresql_binary("initdb"),
                *("--pgdata", str(self.data), "--username", USER, "--auth", "scram-sha-256"),
                *("--pwfile", str(password_file), "--encoding", "UTF8", "--locale", "C"),
                "--no-sync",
            ]
        )

    def _command(self) -> list[str]:
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": self.port,
            "unix_socket_directories": "",
            "shared_buffers": "64MB",
            "max_connections": 100,
            "dynamic_shared_memory_type": "mmap",  # in its data: a killed server leaves it behind
            "timezone": SERVER_ZONE["postgresql"],
        }
        options = [f"--{name.replace('_', '-')}={value}" for name, value in settings.items()]
        return [_postgresql_binary("postgres"), "-D", str(self.data), *options]

    def _administrate(
        self, statement: str, *values: object, database: str = "postgres", **named: object
    ) -> list[tuple[Any, ...]]:
        connection = psycopg2.connect(
            host="127.0.0.1",
            port=self.port,
            user=USER,
            password=PASSWORD,
            dbname=database,
            connect_timeout=60,
        )
        try:
            connection.autocommit = True
            with connection.cursor() as cursor:
                cursor.execute(statement, named or values or None)
                return list(cursor.fetchall()) if cursor.description else []
        finally:
            connection.close()


class MariadbServer(ServerProcess):
    """A MariaDB server."""

    _account_name = "mysql"
    _death_signal = signal.SIGKILL
    _stop_signal = signal.SIGTERM

    def url(self, database: str) -> str:
        """Return the JDBC URL of a database."""
        return f"jdbc:mariadb://127.0.0.1:{self.port}/{database}"

    def drop_database(self, database: str) -> None:
        """Drop the database."""
        self._administrate(f"DROP DATABASE IF EXISTS {database}")

    def connections(self, database: str) -> list[str]:
        """Return the state of each of the database's sessions."""
        rows = self._administrate(
            "SELECT CONCAT(id, ': ', command, ' ', COALESCE(info, ''))"
            " FROM information_schema.processlist WHERE db = %s",
            database,
        )
        return [str(name) for (name,) in rows]

    def end_open_transactions(self, database: str) -> None:
        """End every session of the database that idles inside a transaction."""
        idle = self._administrate(
            "SELECT p.id FROM information_schema.innodb_trx t"
            " JOIN information_schema.processlist p ON p.id = t.trx_mysql_thread_id"
            " WHERE p.db = %s AND p.command = 'Sleep'",
            database,
        )
        for (session,) in idle:
            self.end_session(session)

    def end_session(self, session: int) -> None:
        """End a session, unless it has ended by itself since it was seen."""
        try:
            self._administrate(f"KILL CONNECTION {session}")
        except pymysql.err.OperationalError as error:
            if error.args[0] != ER.NO_SUCH_THREAD:
                raise

    def _initialise(self) -> None:
        self._run(
            [
                _binary("mariadb-install-db", ["/usr/bin", "/usr/local/bin"]),
                *("--no-defaults", f"--datadir={self.data}", "--skip-test-db"),
                "--auth-root-authentication-method=normal",
                # Servers that start meanwhile remove what they find of others in a shared one.
                f"--tmpdir={self._own_tmpdir()}",
            ]
        )

    def _command(self) -> list[str]:
        return [
            _binary("mariadbd", ["/usr/sbin", "/usr/bin", "/usr/libexec"]),
            *("--no-defaults", f"--datadir={self.data}", f"--port={self.port}"),
            *("--bind-address=127.0.0.1", f"--socket={self.directory / 'socket'}"),
            *(f"--pid-file={self.directory / 'pid'}", f"--init-file={self._init_file()}"),
            *("--character-set-server=utf8mb4", "--skip-name-resolve"),
            *("--innodb-buffer-pool-size=64M", "--innodb-log-file-size=64M"),
            # In memory, io_uring works in threads of the kernel's, which signals may not stop.
            "--innodb-use-native-aio=OFF",
            *(f"--tmpdir={self._own_tmpdir()}", f"--default-time-zone={SERVER_ZONE['mysql']}"),
        ]

    def _init_file(self) -> Path:
        """Write what the server executes when it starts, and return where."""
        init = self.directory / "init.sql"
        init.write_text(
            f"CREATE USER IF NOT EXISTS {USER}@localhost IDENTIFIED BY '{PASSWORD}';\n"
            f"GRANT ALL ON *.* TO {USER}@localhost WITH GRANT OPTION;\n"
            f"CREATE USER IF NOT EXISTS {USER}@'127.0.0.1' IDENTIFIED BY '{PASSWORD}';\n"
            f"GRANT ALL ON *.* TO {USER}@'127.0.0.1' WITH GRANT OPTION;\n",
            encoding="utf-8",
        )
        return init

    def _own_tmpdir(self) -> Path:
        """Return a directory for temporary files that no other server clears when it starts."""
        path = self.directory / "tmp"
        path.mkdir(exist_ok=True)
        if self._account is not None:
            os.chown(path, self._account.pw_uid, self._account.pw_gid)
        return path

    def _administrate(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        connection = pymysql.connect(
            host="127.0.0.1",
            port=self.port,
            user=USER,
            password=PASSWORD.encode(),
            charset="utf8mb4",
            autocommit=True,
            # To read the certificates of all authorities takes longer than the statement.
            ssl_disabled=True,
            connect_timeout=60,
        )
        try:
            with connection.cursor() as cursor:
                cursor.execute(statement, values or None)
                return list(cursor.fetchall())
        finally:
            connection.close()


class MysqlServer(MariadbServer):
    """A MySQL server, of the ``mysqld`` that MYSQLD in the environment names."""

    def url(self, database: str) -> str:
        """Return the JDBC URL of a database."""
        return f"jdbc:mysql://127.0.0.1:{self.port}/{database}"

    def _initialise(self) -> None:
        self._run([_mysqld(), "--initialize-insecure", f"--datadir={self.data}"])

    def _command(self) -> list[str]:
        return [
            *(_mysqld(), f"--datadir={self.data}", f"--port={self.port}"),
            *("--bind-address=127.0.0.1", f"--socket={self.directory / 'socket'}"),
            *(f"--pid-file={self.directory / 'pid'}", f"--init-file={self._init_file()}"),
            *("--character-set-server=utf8mb4", "--skip-name-resolve", "--mysqlx=OFF"),
            *("--innodb-buffer-pool-size=64M", f"--tmpdir={self._own_tmpdir()}"),
            f"--default-time-zone={SERVER_ZONE['mysql']}",
        ]


SERVER_PROCESSES: dict[str, type[ServerProcess]] = {
    "postgresql": PostgresqlServer,
    "mariadb": MariadbServer,
}
"""The servers that tests run on, by name."""
if os.environ.get("MYSQLD"):
    SERVER_PROCESSES["mysql"] = MysqlServer

SERVER_NAMES = list(SERVER_PROCESSES)
MYSQL_FAMILY = [name for name in SERVER_NAMES if name != "postgresql"]
"""Servers of MySQL's protocol and SQL."""


def _mysqld() -> str:
    mysqld = os.environ["MYSQLD"]
    version = subprocess.run([mysqld, "--version"], capture_output=True, text=True, check=True)
    if "mariadb" in version.stdout.lower():
        raise ValueError(f"MYSQLD={mysqld} is a MariaDB server, which the tests run on anyway")
    return mysqld


def _postgresql_binary(name: str) -> str:
    versions = Path("/usr/lib/postgresql")
    newest_first = sorted(versions.glob("*/bin"), key=lambda p: float(p.parent.name), reverse=True)
    return _binary(name, [str(path) for path in newest_first])


def _binary(name: str, directories: list[str]) -> str:
    path = shutil.which(name, path=os.pathsep.join([*directories, os.environ.get("PATH", "")]))
    if path is None:
        raise FileNotFoundError(f"the tests need {name}; install it with: make packages")
    return path


def _new_name() -> str:
    return f"t{os.getpid()}_{next(_database_numbers)}"


def _own_ports() -> Iterator[int]:
    """Return ports that no other process of this or another test run looks at, round and round.

    So nobody takes the port of a node that was killed, while clients still look for it there.
    """
    ports, of_one = range(20_000, 31_000), 200
    firsts = list(ports[::of_one])
    random.shuffle(firsts)
    for first in firsts:
        claim = socket.socket()
        try:
            claim.bind(("127.0.0.1", first))
        except OSError:
            claim.close()
            continue
        atexit.register(claim.close)
        return itertools.cycle(range(first + 1, first + of_one))
    return itertools.cycle(ports)


_ports = _own_ports()


def free_port() -> int:
    """Return a port nobody listens on, outside of the range outgoing connections take theirs from.

    A server that is down must find its port free when it comes back.
    """
    for port in _ports:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise AssertionError("the ports never end")
