"""The stores on which two versions meet, and the pairs."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from orthia.config.store_settings import DatabaseStoreSettings
from tests.conftest import EVERY_DBMS, Servers
from tests.process.nodes import LAPSING, cluster
from tests.support.servers import SqliteServer, StoreServer, url_with_password
from tests.upgrade.pair import Pair, make_pair
from tests.upgrade.versions import IS_OF_TWO_VERSIONS

# With one version they would show nothing that other tests do not.
collect_ignore = [] if IS_OF_TWO_VERSIONS else ["test_upgrading.py"]


@pytest.fixture(params=EVERY_DBMS if IS_OF_TWO_VERSIONS else ["sqlite"])
def server(request: pytest.FixtureRequest, shared_servers: Servers, tmp_path: Path) -> StoreServer:
    """Give a server of each DBMS; one is enough where the two versions are the same."""
    if request.param == "sqlite":
        return SqliteServer(tmp_path)
    return shared_servers(request.param)


@pytest.fixture
def pair(store_settings: DatabaseStoreSettings, tmp_path: Path) -> Iterator[Pair]:
    """Give a pair."""
    with cluster(url_with_password(store_settings), tmp_path) as nodes:
        yield make_pair(nodes, store_settings)


@pytest.fixture
def lapsing_pair(store_settings: DatabaseStoreSettings, tmp_path: Path) -> Iterator[Pair]:
    """Give a pair whose lease is to end by itself."""
    with cluster(url_with_password(store_settings), tmp_path) as nodes:
        yield make_pair(nodes, store_settings, **LAPSING)
