"""The stores on which two versions meet."""

from pathlib import Path

import pytest

from tests.conftest import EVERY_DBMS, Servers
from tests.support.servers import SqliteServer, StoreServer
from tests.upgrade.versions import IS_OF_TWO_VERSIONS


@pytest.fixture(params=EVERY_DBMS if IS_OF_TWO_VERSIONS else ["sqlite"])
def server(request: pytest.FixtureRequest, shared_servers: Servers, tmp_path: Path) -> StoreServer:
    """Give a server of each DBMS; one is enough where the two versions are the same."""
    if request.param == "sqlite":
        return SqliteServer(tmp_path)
    return shared_servers(request.param)
