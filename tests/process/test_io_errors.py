"""What becomes of a node that lost its store, under each io-error-policy."""

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from orthia.config.settings import Role
from tests.process.clients import served_through_it
from tests.process.file_nodes import FileCluster, FileNodeProcess
from tests.process.locker_stores import HANDS_OVER, store
from tests.process.nodes import accepts, wait_any_serving
from tests.support.servers import (
    LAPSING_NODE_LEASE_MS,
    NODE_LEASE_MS,
    NODE_NETWORK_TIMEOUT_MS,
    ServerProcess,
)
from tests.support.waiting import wait_until

pytestmark = [
    pytest.mark.extended,
    pytest.mark.parametrize("private_server", ["postgresql"], indirect=True),
]


class Ground:
    """A database of its own, and the nodes on it."""

    def __init__(self, server: ServerProcess, directory: Path) -> None:
        self.server = server
        self.directory = directory
        self.settings = server.settings(server.create_database())
        self.nodes: list[FileNodeProcess] = []

    def node(
        self,
        role: Role,
        policy: str,
        *,
        lease_ms: int = NODE_LEASE_MS,
        network_timeout_ms: int = NODE_NETWORK_TIMEOUT_MS,
        locker: str = "lease",
        period_ms: int = 500,
    ) -> FileNodeProcess:
        """Start a node."""
        of_store = store(
            self.directory,
            self.settings,
            locker,
            lease_ms=lease_ms,
            network_timeout_ms=network_timeout_ms,
        )
        core = of_store + (
            f'<io-error-policy xmlns="urn:orthia">{policy}</io-error-policy>'
            f'<resume-check-sleep-period xmlns="urn:orthia">{period_ms}</resume-check-sleep-period>'
        )
        cluster = FileCluster(self.directory, core)
        node = cluster.node(role, role.value, policy=HANDS_OVER)
        self.nodes.append(node)
        node.start()
        return node


@pytest.fixture
def ground(private_server: ServerProcess, tmp_path: Path) -> Iterator[Ground]:
    """Give a database that the test may kill."""
    made = Ground(private_server, tmp_path)
    yield made
    for node in made.nodes:
        node.end()


@pytest.mark.parametrize(
    "lease_ms", [NODE_LEASE_MS, LAPSING_NODE_LEASE_MS], ids=["within the lease", "beyond it"]
)
def test_connectors_stop_and_resume_with_the_database(ground: Ground, lease_ms: int) -> None:
    """Killed for a while, also for longer than the lease: the same process serves on, a token up.

    Within the lease nobody else could have taken it; beyond it nobody else was there.
    """
    live = ground.node(Role.LIVE, "stop-connectors", lease_ms=lease_ms).wait_serving()
    with served_through_it(live):
        killed_seconds = time.monotonic()
        ground.server.kill()
        live.wait_log("ORT100023").wait_log("the database does not answer")
        if lease_ms == LAPSING_NODE_LEASE_MS:
            wait_until(
                lambda: time.monotonic() - killed_seconds > lease_ms / 1000,
                what="the lease, which nobody could renew since, has run out",
            )
        assert not accepts(live.port)
        ground.server.start()
        live.wait_log("ORT100024").wait_serving()
    assert "taken from token 1 to token 2" in live.log
    assert live.terminate() == 0


def test_connectors_resume_under_an_exclusive_lock(ground: Ground) -> None:
    """A database-locker takes its row again."""
    live = ground.node(Role.LIVE, "stop-connectors", locker="database").wait_serving()
    with served_through_it(live):
        ground.server.restart()
        live.wait_log("ORT100024").wait_serving()


def test_connectors_stay_stopped_when_the_lock_is_somebody_elses(ground: Ground) -> None:
    """The backup took over meanwhile: the store says so, and the node ends with 74."""
    live = ground.node(Role.LIVE, "stop-connectors", period_ms=1_000).wait_serving()
    backup = ground.node(Role.BACKUP, "shutdown").wait_log("AMQ221031")
    with served_through_it(live, backup):
        ground.server.kill()
        live.wait_log("ORT100023").wait_log("the database does not answer")
        live.signal(signal.SIGSTOP)
        ground.server.start()
        backup.wait_serving()
        live.signal(signal.SIGCONT)
        assert live.exit_code() == 74
    assert "is no longer held under token 1: it is held by backup@" in live.log


@pytest.mark.parametrize("policy", ["stop-connectors", "restart-as-backup"])
def test_a_database_that_is_gone_for_good_is_waited_for(ground: Ground, policy: str) -> None:
    """No client is served, and SIGTERM ends the node at once."""
    live = ground.node(Role.LIVE, policy).wait_serving()
    ground.server.kill()
    live.wait_log("the database does not answer")
    assert live.is_running
    assert not accepts(live.port)
    assert live.terminate() == 0


def test_a_node_restarts_as_a_backup(ground: Ground) -> None:
    """In the same process; afterwards each of the pair takes over from the other."""
    live = ground.node(Role.LIVE, "restart-as-backup").wait_serving()
    backup = ground.node(Role.BACKUP, "restart-as-backup").wait_log("AMQ221031")
    with served_through_it(live, backup) as producer:
        ground.server.kill()
        live.wait_log("ORT100022")
        ground.server.start()
        live.wait_log("started as backup")
        serving = wait_any_serving([live, backup])
        waiting = backup if serving is live else live
        producer.wait_receipts(20)
        assert waiting.is_running
        serving.kill()
        waiting.wait_serving()


def test_a_node_restarts_though_its_threads_hang(ground: Ground) -> None:
    """A database that answers nothing holds nobody back; what hung is gone with the old life."""
    # The life that hangs is waited for until its queries have run out of time.
    node = ground.node(
        Role.LIVE,
        "restart-as-backup",
        lease_ms=LAPSING_NODE_LEASE_MS,
        network_timeout_ms=20_000,
    )
    live = node.wait_serving()
    with served_through_it(live):
        ground.server.pause()
        live.wait_log("ORT100022").wait_log("the database does not answer")
        ground.server.resume()
        live.wait_serving()
