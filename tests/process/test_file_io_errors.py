"""What becomes of a node that lost its lock file, its directory or its disk, under each policy."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from orthia.config.settings import Role
from tests.process.clients import served_through_it
from tests.process.file_nodes import FileCluster, FileNodeProcess, file_cluster
from tests.process.locker_stores import HANDS_OVER
from tests.process.nodes import accepts
from tests.support.waiting import wait_until

pytestmark = pytest.mark.extended

FULL_AT_BYTES = 48 * 1024
"""Enough for lock files, fence and log, and less than any journal file."""


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[FileCluster]:
    """Give a cluster on a directory."""
    with file_cluster(tmp_path, "<journal-file-size>65536</journal-file-size>") as cluster:
        yield cluster


def start(nodes: FileCluster, role: Role, policy: str) -> FileNodeProcess:
    """Start a node with an IO-error policy."""
    core = (
        f'<io-error-policy xmlns="urn:orthia">{policy}</io-error-policy>'
        '<resume-check-sleep-period xmlns="urn:orthia">200</resume-check-sleep-period>'
    )
    node = nodes.node(role, role.value, policy=HANDS_OVER, core=core)
    node.start()
    return node


def test_connectors_resume_when_only_the_lock_file_is_lost(nodes: FileCluster) -> None:
    """Nobody took the lock meanwhile: the same node goes on, one token up."""
    live = start(nodes, Role.LIVE, "stop-connectors")
    live.wait_serving()
    with served_through_it(live):
        (nodes.store / "journal" / "serverlock.1").unlink()
        live.wait_log("ORT100024").wait_serving()
    assert "taken from token 1 to token 2" in live.log


def test_a_node_restarts_as_the_backup_of_who_took_its_lock(nodes: FileCluster) -> None:
    """Its lock file is replaced, its backup serves; it waits, and takes over in its turn."""
    live = start(nodes, Role.LIVE, "restart-as-backup")
    live.wait_serving()
    backup = start(nodes, Role.BACKUP, "restart-as-backup")
    backup.wait_log("AMQ221031")
    with served_through_it(live, backup):
        lock = nodes.store / "journal" / "serverlock.1"
        (lock.parent / "new").touch()
        (lock.parent / "new").rename(lock)
        live.wait_log("ORT100022")
        backup.wait_serving()
        live.wait_log("backup announced; live is backup@")
        backup.kill()
        live.wait_serving()


@pytest.mark.parametrize("policy", ["stop-connectors", "restart-as-backup"])
def test_a_node_waits_for_a_directory_that_is_gone(nodes: FileCluster, policy: str) -> None:
    """An unmounted directory is not made anew: what was stored is served when it is back."""
    live = start(nodes, Role.LIVE, policy)
    live.wait_serving()
    with served_through_it(live):
        away = nodes.store.with_name("away")
        nodes.store.rename(away)
        live.wait_log("is gone; waiting for it")
        assert not accepts(live.port)
        assert not nodes.store.exists()
        away.rename(nodes.store)
        live.wait_serving()


def test_connectors_resume_when_the_disk_has_room(nodes: FileCluster) -> None:
    """However often it fails to open meanwhile, the node goes on with all that was confirmed."""
    live = start(nodes, Role.LIVE, "stop-connectors")
    live.wait_serving()
    with served_through_it(live):
        live.limit_files(FULL_AT_BYTES)
        wait_until(lambda: live.log.count("critical IO error") > 1, what="it tried to resume")
        live.limit_files(None)
        live.wait_serving()


def test_a_full_disk_is_a_matter_for_the_backup(nodes: FileCluster) -> None:
    """With shutdown the node ends with 74 and says why; its backup goes on."""
    live = start(nodes, Role.LIVE, "shutdown")
    live.wait_serving()
    backup = start(nodes, Role.BACKUP, "shutdown")
    backup.wait_log("AMQ221031")
    with served_through_it(live, backup):
        live.limit_files(FULL_AT_BYTES)
        assert live.exit_code() == 74
        backup.wait_serving()
    assert "File too large" in live.log
