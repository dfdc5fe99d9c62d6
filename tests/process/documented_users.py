"""The users of a database that docs/databases.md has one make, made as it says."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg2
import pymysql

from orthia import migrations
from orthia.config.secrets import Secret
from orthia.config.store_settings import DatabaseStoreSettings
from orthia.config.urls import DatabaseUrl
from orthia.database import Database
from tests.process.nodes import orthia
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
    text = text.replace("BY 'PASSWORD'", "BY 'secret'")
    text = re.sub(r"orthia(?!_(?:outbox|acks)\b)", "broker", text)
    return [part.strip() for part in text.split(";") if part.strip()]


def url_of(server: ServerProcess, user: str, *, password: bool = True) -> str:
    """Return the URL of the document's database, with one of its users."""
    return server.url("broker").replace("//", f"//{user}{':secret' * password}@", 1)


def settings_of(server: ServerProcess, user: str = "broker") -> DatabaseStoreSettings:
    """Return settings of the document's database, as one of its users."""
    return DatabaseStoreSettings(DatabaseUrl.parse(server.url("broker")), user, Secret("secret"))


def make_users(server: ServerProcess, *which: int) -> None:
    """Make the owner with its tables, and of ``blocks`` those of these places."""
    made = blocks(server)
    for statement in made[0]:
        execute(server, statement)
    database = Database.from_settings(settings_of(server))
    migrations.upgrade(database, settings_of(server))
    database.dispose()
    for place in which:
        for statement in made[place]:
            execute(server, statement)


@contextmanager
def opened(settings: DatabaseStoreSettings) -> Iterator[Database]:
    """Give a database for the block."""
    database = Database.from_settings(settings)
    try:
        yield database
    finally:
        database.dispose()


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


def asked(*command: str, code: int = 0) -> str:
    """Run a command, the last of whose words is the URL; return what it says."""
    *words, url = command
    return orthia(*words, "--url", url, code=code, ORTHIA_JDBC_PASSWORD="secret")
