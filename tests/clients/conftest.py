"""One node for the tests of a client, and a pair on each store."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clients.node import ClientsNode, clients_node
from tests.conftest import EVERY_DBMS, Servers
from tests.process.file_nodes import file_cluster
from tests.process.nodes import NodeProcess, cluster
from tests.support.servers import SqliteServer, url_with_password

FILES = "files"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClientsNode]:
    """Give a node, for all tests of a module: each has queues of its own."""
    with clients_node(tmp_path_factory.mktemp("node")) as running:
        yield running


@pytest.fixture
def own_node(tmp_path: Path) -> Iterator[ClientsNode]:
    """Give a node that only this test uses."""
    with clients_node(tmp_path) as running:
        yield running


@pytest.fixture(params=[*EVERY_DBMS, FILES])
def pair(
    request: pytest.FixtureRequest, shared_servers: Servers, tmp_path: Path
) -> Iterator[tuple[NodeProcess, NodeProcess]]:
    """Give a live node that serves and its backup, on each store."""
    if request.param == FILES:
        with file_cluster(tmp_path) as files:
            yield files.pair()
        return
    sqlite = request.param == "sqlite"
    server = SqliteServer(tmp_path) if sqlite else shared_servers(request.param)
    settings = server.settings(server.create_database())
    with cluster(url_with_password(settings), tmp_path) as nodes:
        yield nodes.pair()
