"""A pooler that lends sessions from one transaction to the next is noticed."""

import contextlib
import shutil
import socket
import subprocess
import tempfile
import threading
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import inspect

from orthia.broker.node import stores
from orthia.config.dialects import Dialect
from orthia.config.errors import ConfigurationError
from orthia.config.store_settings import DatabaseStoreSettings
from orthia.database import Database
from orthia.database.pooling import _why_lent, refuse_lent_sessions
from tests.conftest import Servers
from tests.support.servers import PASSWORD, USER, SqliteServer
from tests.support.waiting import wait_until

PGBOUNCER = shutil.which("pgbouncer", path="/usr/sbin:/usr/local/sbin:/usr/bin:/usr/local/bin")


class Pool:
    """Sessions that transactions get in turn, or the one that came back last."""

    def __init__(self, sessions: int, *, in_turn: bool) -> None:
        self.idle = deque(range(1, sessions + 1))
        self.in_turn = in_turn


class Pooled:
    """A connection to it."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._session = 0

    @contextlib.contextmanager
    def begin(self) -> Iterator[None]:
        """Have a session for a transaction."""
        idle = self._pool.idle
        self._session = idle.popleft() if self._pool.in_turn else idle.pop()
        yield
        idle.append(self._session)

    def execute(self, _: object) -> Any:
        """Say which it is."""
        return SimpleNamespace(scalar_one=lambda: self._session)


@pytest.mark.parametrize("in_turn", [False, True])
@pytest.mark.parametrize("sessions", [2, 3, 20])
def test_sessions_that_are_lent_are_noticed(sessions: int, *, in_turn: bool) -> None:
    """However many there are, and in which order they are lent."""
    pool = Pool(sessions, in_turn=in_turn)
    one, another = Pooled(pool), Pooled(pool)
    assert _why_lent(one, another, "") is not None  # type: ignore[arg-type]


def test_sessions_of_ones_own_are_fine(store_settings: DatabaseStoreSettings) -> None:
    """Without a pooler, on every DBMS."""
    database = Database.from_settings(store_settings)
    refuse_lent_sessions(database)
    database.dispose()


def test_a_node_behind_such_a_pooler_does_not_begin(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It makes no table there either."""

    def refuse(_: Database) -> None:
        raise ConfigurationError("sessions are lent")

    monkeypatch.setattr(stores, "refuse_lent_sessions", refuse)
    settings = SqliteServer(tmp_path).settings("orthia")
    database = Database.from_settings(settings)
    with pytest.raises(ConfigurationError, match="are lent"):
        stores._migrate(database, settings, threading.Event(), 0)
    assert inspect(database.engine).get_table_names() == []
    database.dispose()


@contextlib.contextmanager
def pgbouncer(directory: Path, settings: DatabaseStoreSettings, mode: str) -> Iterator[Database]:
    """Run a PgBouncer in front of a database, and give what connects to it."""
    assert PGBOUNCER is not None
    url = settings.jdbc_connection_url.sqlalchemy_url.set(username=USER)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    users = directory / "users.txt"
    users.write_text(f'"{USER}" "{PASSWORD}"\n')
    configuration = directory / "pgbouncer.ini"
    configuration.write_text(
        f"[databases]\n* = host={url.host} port={url.port}\n[pgbouncer]\n"
        f"listen_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\nauth_type = plain\n"
        f"auth_file = {users}\npool_mode = {mode}\n"
    )
    directory.chmod(0o755)
    command = [PGBOUNCER, "-q", "-u", "nobody", str(configuration)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def listens() -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
            return True
        return False

    try:
        wait_until(listens, what="PgBouncer listens")
        database = Database(
            Dialect.POSTGRESQL,
            url.set(port=port),
            password=settings.jdbc_password,
            network_timeout_ms=settings.jdbc_network_timeout,
            pool_properties={},
        )
        yield database
        database.dispose()
    finally:
        process.terminate()
        process.wait()


@pytest.mark.skipif(PGBOUNCER is None, reason="there is no pgbouncer: apt-get install pgbouncer")
def test_pgbouncer_is_refused_in_transaction_mode(shared_servers: Servers) -> None:
    """By the name that its configuration has for it; in session mode it is not."""
    server = shared_servers("postgresql")
    name = server.create_database()
    settings = server.settings(name)
    for mode in ("transaction", "session"):
        directory = Path(tempfile.mkdtemp(prefix="orthia-pgbouncer-"))  # which nobody may enter
        try:
            with pgbouncer(directory, settings, mode) as database:
                if mode == "session":
                    refuse_lent_sessions(database)
                    continue
                with pytest.raises(ConfigurationError, match="pool_mode = transaction") as refused:
                    refuse_lent_sessions(database)
                assert "set pool_mode = session" in str(refused.value)
        finally:
            shutil.rmtree(directory)
    server.drop_database(name)
