"""The users of a database that docs/databases.md has one make, made as it says."""

import os
import re
import subprocess
import sys
from pathlib import Path

import psycopg2
import pymysql

from tests.support.servers import PASSWORD, USER, PostgresqlServer, ServerProcess

DOCUMENT = Path(__file__).parents[2] / "docs" / "databases.md"


def blocks(server: ServerProcess) -> tuple[list[str], list[str], list[str], list[str]]:
    """Return the statements that make the owner, a node's user of fewer rights, and two readers.

    The second reads the messages, too.
    """
    found = re.findall(r"```sql\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    own = slice(0, None, 2) if isinstance(server, PostgresqlServer) else slice(1, None, 2)
    owner, node, reader, copier = map(_statements, found[own])
    return owner, node, reader, copier


def _statements(block: str) -> list[str]:
    text = re.sub(r"--.*", "", block).replace("PASSWORD 'PASSWORD'", "PASSWORD 'secret'")
    # The administrator of the tests' servers is called orthia.
    text = text.replace("BY 'PASSWORD'", "BY 'secret'").replace("orthia", "broker")
    return [part.strip() for part in text.split(";") if part.strip()]


def execute(server: ServerProcess, statement: str) -> None:
    """Execute a statement as the administrator."""
    if isinstance(server, PostgresqlServer):
        # What comes before the database is there is the administrator's own.
        name = "postgres" if statement.startswith("CREATE") else "broker"
        session = psycopg2.connect(
            host="127.0.0.1", port=server.port, user=USER, password=PASSWORD, dbname=name
        )
        session.autocommit = True
        with session.cursor() as cursor:
            cursor.execute(statement)
        session.close()
        return
    connection = pymysql.connect(
        host="127.0.0.1", port=server.port, user=USER, password=PASSWORD.encode()
    )
    with connection, connection.cursor() as cursor:
        cursor.execute(statement)


def asked(*command: str, code: int = 0) -> "subprocess.CompletedProcess[str]":
    """Run a command, the last of whose words is the URL."""
    *words, url = command
    result = subprocess.run(
        [sys.executable, "-m", "orthia.broker.cli", *words, "--url", url],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, "ORTHIA_JDBC_PASSWORD": "secret"},
    )
    assert result.returncode == code, result.stderr
    return result
