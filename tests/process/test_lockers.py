"""Pairs of real processes under each locker, on everything it goes with."""

import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from orthia.config.settings import Role
from tests.conftest import Servers
from tests.process.clients import QUEUE, Producer, receive_all, served_through_it
from tests.process.file_nodes import FileCluster, FileNodeProcess, file_cluster
from tests.process.locker_stores import HANDS_OVER, store
from tests.process.nodes import accepts, told
from tests.process.takeover_pairs import new_database
from tests.support.servers import (
    LAPSING_NODE_LEASE_MS,
    MYSQL_FAMILY,
    ServerProcess,
)

pytestmark = pytest.mark.extended

Pairs = Callable[..., FileCluster]


@pytest.fixture
def pair_on(shared_servers: Servers, tmp_path: Path) -> Iterator[Pairs]:
    """Give a maker of the cluster of a locker on a DBMS."""
    made: list[FileCluster] = []

    def make(locker: str, place: str, **properties: str | int) -> FileCluster:
        *files, dbms = place.split(" and ")
        settings = new_database(dbms, shared_servers, tmp_path)
        core = store(tmp_path, settings, locker, files=bool(files), **properties)  # type: ignore[arg-type]
        made.append(FileCluster(tmp_path, core))
        return made[-1]

    yield make
    for one in made:
        for node in one.nodes:
            node.end()


@pytest.mark.parametrize(
    ("locker", "place"),
    [
        ("database", "postgresql"),
        ("lease", "files and postgresql"),
    ],
)
def test_a_frozen_node_is_replaced_and_writes_nothing(
    pair_on: Pairs, locker: str, place: str
) -> None:
    """Its lease, or its transaction, ends in the database; on waking it stops with 74."""
    live, backup = pair_on(locker, place, lease_ms=LAPSING_NODE_LEASE_MS).pair()
    with served_through_it(live, backup):
        live.signal(signal.SIGSTOP)
        backup.wait_serving()
        live.signal(signal.SIGCONT)
        assert live.exit_code() == 74


@pytest.mark.parametrize(
    ("private_server", "files"),
    [("postgresql", False), *((dbms, True) for dbms in MYSQL_FAMILY)],
    indirect=["private_server"],
    ids=["postgresql", *(f"files and {dbms}" for dbms in MYSQL_FAMILY)],
)
def test_a_database_restart_moves_a_held_row(
    private_server: ServerProcess, tmp_path: Path, *, files: bool
) -> None:
    """The live node notices that its transaction is gone, exits 74, and the backup serves."""
    settings = private_server.settings(private_server.create_database())
    with file_cluster(tmp_path, store(tmp_path, settings, "database", files=files)) as nodes:
        live, backup = nodes.pair()
        with served_through_it(live, backup):
            private_server.restart()
            assert live.exit_code() == 74
            backup.wait_serving()


@pytest.mark.parametrize("dbms", MYSQL_FAMILY)
def test_a_lock_that_is_never_looked_at_cannot_spoil_the_store(
    pair_on: Pairs, shared_servers: Servers, dbms: str
) -> None:
    """lockKeepAlivePeriod 0: with its lock gone the old node serves on, until it writes."""
    cluster = pair_on("database", dbms, keep_alive_ms=0)
    live, backup = cluster.pair()
    assert "never looks whether it still holds its lock" in live.log
    with Producer([live.port], QUEUE) as producer:
        producer.wait_receipts(20)
        before = producer.finish()
    server = shared_servers(dbms)
    name = re.split("[?<]", cluster.core.partition(f":{server.port}/")[2])[0]
    server.end_open_transactions(name)
    backup.wait_serving()
    assert accepts(live.port), "both are live: that is what a period of 0 gives away"
    with Producer([live.port], QUEUE, first=1_000_000) as stale:
        assert live.exit_code() == 74
        assert not stale.receipted
    assert "fenced" in live.log
    with Producer([backup.port], QUEUE, first=2_000_000) as producer:
        producer.wait_receipts(20)
        after = producer.finish()
    received = receive_all(backup.port, QUEUE, before | after)
    assert set(received.received) == before | after


@pytest.mark.parametrize(
    ("locker", "place"), [("lease", "files and postgresql"), ("file", "sqlite")]
)
def test_status_finds_the_locks_wherever_they_are(pair_on: Pairs, locker: str, place: str) -> None:
    """``orthia status`` of the node's own broker.xml names the holder."""
    node = pair_on(locker, place).node(Role.LIVE, "live", policy=HANDS_OVER).start()
    assert isinstance(node, FileNodeProcess)
    node.wait_serving()
    shown = told("status", "--config", node.config_path)
    assert shown["live"]["holder_id"].startswith("live@")


def test_a_second_node_fails_if_locked(pair_on: Pairs) -> None:
    """failIfLocked: exit code 75 at once, for a live node and for a backup."""
    cluster = pair_on("file", "sqlite", failIfLocked="true")
    cluster.node(Role.LIVE, "live", policy=HANDS_OVER).start().wait_serving()
    for role in Role:
        other = cluster.node(role, f"other-{role.value}", policy=HANDS_OVER).start()
        assert other.exit_code() == 75
        assert "failIfLocked is true, and the live lock is held by live@" in other.log


def test_nodes_that_lock_in_different_directories_do_not_both_start(
    pair_on: Pairs, tmp_path: Path
) -> None:
    """The second ends with 78 and says why; it took nothing from the first, which serves on."""
    cluster = pair_on("file", "sqlite")
    live = cluster.node(Role.LIVE, "live", policy=HANDS_OVER).start().wait_serving()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "lock.id").write_text("another")
    backup = cluster.node(Role.BACKUP, "backup", policy=HANDS_OVER)
    shared, own = f'"{tmp_path / "locks"}"', f'"{tmp_path / "elsewhere"}"'
    backup.core = backup.core.replace(shared, own)
    assert backup.start().exit_code() == 78
    assert str(tmp_path / "locks") in backup.log
    assert str(tmp_path / "elsewhere") in backup.log
    backup.core = backup.core.replace(own, f'"{tmp_path / "missing"}"')
    assert backup.start().exit_code() == 69
    with Producer([live.port], QUEUE) as producer:
        producer.wait_receipts(20)
    assert live.terminate() == 0
