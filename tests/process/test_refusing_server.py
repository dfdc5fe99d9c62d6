"""A pair on a server that answers and refuses: under maintenance, or one that left its group."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from orthia.config.urls import DatabaseUrl
from tests.process.clients import served_through_it
from tests.process.nodes import Cluster, cluster
from tests.support.servers import MYSQL_FAMILY, ServerProcess, url_with_password

pytestmark = pytest.mark.extended

LOGIN, PASSWORD = "plain", "plainly"


@pytest.fixture
def nodes(private_server: ServerProcess, tmp_path: Path) -> Iterator[Cluster]:
    """Give nodes whose login has the rights of an application: those of DBAs are never refused."""
    server = private_server
    name = server.create_database()
    server.execute(f"CREATE USER {LOGIN}@'127.0.0.1' IDENTIFIED BY '{PASSWORD}'")
    server.execute(f"GRANT ALL ON {name}.* TO {LOGIN}@'127.0.0.1'")
    url = DatabaseUrl.parse(url_with_password(server.settings(name))).sqlalchemy_url
    of_application = url.set(username=LOGIN, password=PASSWORD)
    with cluster(of_application.render_as_string(hide_password=False), tmp_path) as made:
        yield made


@pytest.mark.parametrize(
    ("private_server", "setting"),
    [
        *((dbms, "read_only") for dbms in MYSQL_FAMILY),
        *((dbms, "offline_mode") for dbms in MYSQL_FAMILY if dbms == "mysql"),
    ],
    indirect=["private_server"],
)
def test_a_server_that_refuses_for_now_is_waited_for(
    private_server: ServerProcess, nodes: Cluster, setting: str
) -> None:
    """The live node ends with 74; backups wait, and one serves when the server does again."""
    live, backup = nodes.pair()
    with served_through_it(live, backup):
        private_server.execute(f"SET GLOBAL {setting} = ON")
        assert live.exit_code() == 74
        nodes.backup("starting").wait_log("the database does not answer").end()
        assert backup.is_running
        private_server.execute(f"SET GLOBAL {setting} = OFF")
