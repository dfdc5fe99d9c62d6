"""Nodes that something of their own keeps from going on: their log, or their event loop."""

import fcntl
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from orthia.config.settings import Role
from orthia.config.store_settings import DatabaseStoreSettings
from tests.process.clients import QUEUE, Producer
from tests.process.nodes import Cluster, cluster
from tests.support.leases import wait_renewals
from tests.support.servers import ServerProcess, url_with_password

pytestmark = pytest.mark.extended

ON_POSTGRESQL = pytest.mark.parametrize("private_server", ["postgresql"], indirect=True)


@pytest.fixture
def settings(private_server: ServerProcess) -> DatabaseStoreSettings:
    """Give an empty database of a server that the test may stop."""
    return private_server.settings(private_server.create_database())


@pytest.fixture
def nodes(settings: DatabaseStoreSettings, tmp_path: Path) -> Iterator[Cluster]:
    """Give a cluster on that database."""
    with cluster(url_with_password(settings), tmp_path) as made:
        yield made


@pytest.fixture
def full_pipe() -> Iterator[tuple[int, int]]:
    """Give both ends of a pipe that takes nothing more."""
    reader, writer = os.pipe()
    flags = fcntl.fcntl(writer, fcntl.F_GETFL)
    fcntl.fcntl(writer, fcntl.F_SETFL, flags | os.O_NONBLOCK)
    try:
        while True:
            os.write(writer, b"." * 4_096)
    except BlockingIOError:
        fcntl.fcntl(writer, fcntl.F_SETFL, flags)
    yield reader, writer
    os.close(reader)
    os.close(writer)


@ON_POSTGRESQL
def test_a_node_whose_log_nobody_reads_serves_and_ends_as_any_other(
    nodes: Cluster,
    settings: DatabaseStoreSettings,
    private_server: ServerProcess,
    full_pipe: tuple[int, int],
) -> None:
    """Standard error is a full pipe: it serves, renews, and ends with 74 without its database."""
    _, writer = full_pipe
    # After its network time-out it ends, which is waited for.
    live = nodes.node(Role.LIVE, "live", jdbc_network_timeout=30_000)
    live.process = subprocess.Popen(live.command(), stdin=subprocess.DEVNULL, stderr=writer)
    live.wait_serving()
    with Producer([live.port], QUEUE) as producer:
        producer.wait_receipts(50)
        wait_renewals(settings, 40)
        producer.wait_receipts(50)
        private_server.pause()
        assert live.exit_code() == 74
        private_server.resume()


def test_a_node_whose_log_nobody_reads_stops_in_order(
    tmp_path: Path, full_pipe: tuple[int, int]
) -> None:
    """SIGTERM ends it with 0, though its last lines cannot leave."""
    _, writer = full_pipe
    with cluster(f"sqlite:///{tmp_path / 'store.db'}", tmp_path) as nodes:
        live = nodes.node(Role.LIVE, "live")
        live.process = subprocess.Popen(live.command(), stdin=subprocess.DEVNULL, stderr=writer)
        live.wait_serving()
        assert live.terminate() == 0
