"""What docs/databases.md grants a copier is enough for the pipeline's jobs, on real servers."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from orthia.config.settings import Role
from tests.cli.conftest import Run, run
from tests.process.documented_users import blocks, execute
from tests.process.nodes import NodeProcess
from tests.process.test_databases_document import serve
from tests.support.servers import PASSWORD, ServerProcess, url_with_password

pytestmark = pytest.mark.extended

__all__ = ["run"]


def test_a_copier_exports_and_migrates(
    spark: SparkSession, private_server: ServerProcess, tmp_path: Path, run: Run
) -> None:
    """Beside a node, and once it has stopped: the store that is copied is only read."""
    assert spark is not None
    owner, _, _, copier = blocks(private_server)
    for statement in owner:
        execute(private_server, statement)
    url = private_server.url("broker")
    node = NodeProcess(Role.LIVE, url.replace("//", "//broker:secret@", 1), tmp_path, "live")
    copies = url.replace("//", "//broker_copier@", 1)
    passwords = {"ORTHIA_JDBC_PASSWORD": "secret", "ORTHIA_JDBC_PASSWORD_TARGET": PASSWORD}
    try:
        serve(node)
        for statement in copier:
            execute(private_server, statement)
        to = tmp_path / "exported"
        result = run("pipeline", "export", "--url", copies, "--to", to, environment=passwords)
        assert result.exit_code == 0, result.output
        assert node.terminate() == 0
    finally:
        node.end()
    new = url_with_password(private_server.settings(private_server.create_database()))
    result = run("pipeline", "migrate", "--url", copies, "--to-url", new, environment=passwords)
    assert result.exit_code == 0, result.output
    assert "equal in both stores" in result.output
