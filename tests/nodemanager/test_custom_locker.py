"""The locker of docs/lockers.md, installed as a third party would."""

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from importlib import invalidate_caches
from pathlib import Path

import pytest

from orthia.config import ConfigurationError
from orthia.config.settings import Role
from orthia.config.store_settings import CustomLockerSettings, DatabaseStoreSettings
from orthia.database import Database
from orthia.nodemanager import jdbc_node_manager
from tests.support.schema import make_tables
from tests.support.servers import SqliteServer, free_port

DOCS = Path(__file__).parents[2] / "docs" / "lockers.md"
EXAMPLE = DOCS.parent / "port-locker"


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Build the example of the documentation, as pip does, and put it where Python looks."""
    shutil.copytree(EXAMPLE, tmp_path / "source")
    build = ["egg_info", "--egg-base", str(tmp_path), "build_py", "--build-lib", str(tmp_path)]
    subprocess.run(
        [sys.executable, "-c", "from setuptools import setup; setup()", "--quiet", *build],
        cwd=tmp_path / "source",
        check=True,
        timeout=120,
    )
    about = tmp_path / "broken_locker-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: broken-locker\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[orthia.lockers]\nbroken = nowhere:X\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    invalidate_caches()
    yield
    sys.modules.pop("port_locker", None)


def test_the_page_shows_the_package() -> None:
    """Whoever copies from it gets what is tried here."""
    text = DOCS.read_text()
    for kind, name in (("python", "port_locker.py"), ("toml", "pyproject.toml")):
        assert f"```{kind}\n{(EXAMPLE / name).read_text()}```" in text


@pytest.fixture
def settings(tmp_path: Path) -> DatabaseStoreSettings:
    """Give an SQLite store with that locker."""
    server = SqliteServer(tmp_path)
    # The locker adds the number of the lock: those are the ports that must be free.
    first, second = free_port(), free_port()
    while second != first + 1:
        first, second = second, free_port()
    locker = CustomLockerSettings(
        name="port-locker",
        properties={"port": str(first - 1)},
        lock_acquire_sleep_interval=20,
        lock_keep_alive_period=200,
    )
    store = replace(server.settings(server.create_database()), locker=locker)
    database = Database.from_settings(store)
    make_tables(database, store)
    database.dispose()
    return store


@pytest.mark.usefixtures("installed")
def test_the_documented_locker_locks(settings: DatabaseStoreSettings) -> None:
    """One node is live; when it hands over, the other takes its place under a greater token."""
    first = jdbc_node_manager(settings, name="a")
    second = jdbc_node_manager(settings, name="b", role=Role.BACKUP)
    first.start()
    first.start_live_node().activation_complete()
    token = first.fencing_token
    assert (first.status().live.holder_id or "").endswith(":port-locker:lease-only")
    second.start()
    second.start_backup()
    assert second.status().live.is_held
    first.crash_live_server()
    second.await_live_node().activation_complete()
    assert second.fencing_token > token
    assert second.is_lease_valid()
    second.crash_live_server()
    second.stop_backup()
    first.stop()
    second.stop()


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("absent", "no locker 'absent' in the entry points of orthia.lockers; expected one that"),
        ("broken", "the locker 'broken' (nowhere:X) cannot be loaded: ModuleNotFoundError"),
    ],
)
def test_a_locker_that_is_not_there_is_an_error(
    settings: DatabaseStoreSettings, name: str, expected: str
) -> None:
    """It says which are installed, or why it cannot be loaded."""
    assert settings.locker is not None
    wrong = replace(settings, locker=CustomLockerSettings(name=name))
    with pytest.raises(ConfigurationError, match=re.escape(expected)):
        jdbc_node_manager(wrong, name="a")
