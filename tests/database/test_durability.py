"""A database that may forget what it committed is told of; one that may not is not."""

import logging
import threading
from collections.abc import Iterator

import pytest

from orthia.broker.node.stores import node_store
from orthia.config.settings import Settings
from orthia.database import Database
from orthia.database.durability import lax_settings
from tests.support.servers import ServerProcess, StoreServer


def settings_of(server: StoreServer, database: str) -> Settings:
    """Return the settings of a node on a database."""
    return Settings("node", None, server.settings(database))


@pytest.fixture
def opened(private_server: ServerProcess) -> Iterator[Database]:
    """Give a database of a server whose settings the test may change."""
    settings = private_server.settings(private_server.create_database())
    database = Database.from_settings(settings)
    yield database
    database.dispose()


def test_a_database_as_it_comes_keeps_what_it_commits(database: Database) -> None:
    """The servers of the tests are durable, as their defaults are."""
    assert lax_settings(database) == []


@pytest.mark.parametrize("private_server", ["postgresql"], indirect=True)
def test_postgresql_that_does_not_sync_is_told_of(
    private_server: ServerProcess, opened: Database
) -> None:
    """Whoever set it so, for the server or for its users; a weaker replication is no such thing."""
    name = opened.engine.url.database
    for weaker in ("local", "remote_write"):
        private_server.execute(f"ALTER DATABASE {name} SET synchronous_commit = '{weaker}'")
        opened.engine.dispose()
        assert lax_settings(opened) == []
    private_server.execute(f"ALTER DATABASE {name} SET synchronous_commit = off")
    opened.engine.dispose()
    assert lax_settings(opened) == ["synchronous_commit = off (should be on)"]
    private_server.options.append("--fsync=off")
    private_server.restart()
    opened.engine.dispose()
    assert set(lax_settings(opened)) == {
        "fsync = off (should be on)",
        "synchronous_commit = off (should be on)",
    }


@pytest.mark.parametrize("private_server", ["mariadb"], indirect=True)
def test_mariadb_that_does_not_sync_is_told_of(
    private_server: ServerProcess, opened: Database
) -> None:
    """Its log; and its binary log, if it has one."""
    private_server.execute("SET GLOBAL sync_binlog = 0")
    assert lax_settings(opened) == []
    private_server.execute("SET GLOBAL innodb_flush_log_at_trx_commit = 2")
    assert lax_settings(opened) == ["innodb_flush_log_at_trx_commit = 2 (should be 1)"]
    private_server.options += ["--log-bin", "--binlog-format=ROW", "--sync-binlog=0"]
    private_server.restart()
    opened.engine.dispose()
    assert lax_settings(opened) == ["sync_binlog = 0 (should be 1)"]


@pytest.mark.parametrize("private_server", ["postgresql"], indirect=True)
def test_a_node_that_starts_says_so(
    private_server: ServerProcess, caplog: pytest.LogCaptureFixture
) -> None:
    """Once, with what may be lost, and it starts all the same."""
    name = private_server.create_database()
    private_server.execute(f"ALTER DATABASE {name} SET synchronous_commit = off")
    store = node_store(settings_of(private_server, name))
    with caplog.at_level(logging.WARNING):
        store.prepare(threading.Event())
    store.close()
    (said,) = [one for one in caplog.messages if "synchronous_commit" in one]
    assert "synchronous_commit = off (should be on)" in said
    assert "lost" in said
