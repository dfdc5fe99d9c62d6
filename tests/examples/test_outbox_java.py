"""What a Java application sends and acknowledges, by plain JDBC and by Spring's transactions."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from sqlalchemy import Engine, text

from orthia.broker.client.outbox_testing import SentMessage, sent
from orthia.config.store_settings import DatabaseStoreSettings
from tests.examples.conftest import STORED

HERE = Path(__file__).parent / "java"
JAVA, COMPILER = shutil.which("java"), shutil.which("javac")
pytestmark = [
    pytest.mark.extended,
    pytest.mark.parametrize("server", ["postgresql", "mariadb"], indirect=True),
    pytest.mark.skipif(
        JAVA is None or COMPILER is None or not list(HERE.glob("build/spring-jdbc-*.jar")),
        reason="needs Spring's JDBC: install maven and a JDK, then run make setup-test-all",
    ),
]


def test_java_sends_what_it_commits_and_processes_once(
    shop: Engine, migrated_store: DatabaseStoreSettings
) -> None:
    """What it rolls back, with a savepoint or all of it, is not sent."""
    assert JAVA is not None
    assert migrated_store.jdbc_user is not None
    assert migrated_store.jdbc_password is not None
    at = migrated_store.jdbc_connection_url.sqlalchemy_url
    dbms = "mariadb" if at.get_backend_name() == "mysql" else at.get_backend_name()
    url, user = f"jdbc:{dbms}://{at.host}:{at.port}/{at.database}", migrated_store.jdbc_user
    ran = subprocess.run(
        [JAVA, "-cp", "build/*", "Shop.java", url, user, str(STORED)],
        cwd=HERE,
        env={**os.environ, "SHOP_PASSWORD": migrated_store.jdbc_password.reveal()},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ran.returncode == 0, ran.stderr
    no_body, rolled_back, second = ran.stdout.splitlines()
    assert no_body.startswith("no body: 23")
    assert rolled_back == "rolled back: out of stock"
    assert f"orthia_ack: message {STORED} was acknowledged before" in second
    with shop.connect() as session:
        cursor = session.connection.cursor()
        assert sent(cursor) == [
            SentMessage("/queue/orders", b"jdbc", {"priority": 7}),
            SentMessage("/queue/orders", b"spring", {}),
        ]
        orders = session.execute(text("SELECT id, done FROM shop_orders ORDER BY id")).all()
    assert [tuple(one) for one in orders] == [(1, 0), (11, 1)]
