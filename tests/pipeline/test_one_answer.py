"""Whoever asks whether a lock is held gets the same answer: commands, the pipeline, and a node."""

import json
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from pyspark.sql.datasource import InputPartition

from orthia import config
from orthia.broker.cli.opening import opened
from orthia.config.settings import Role
from orthia.config.store_settings import DatabaseStoreSettings
from orthia.database import Database
from orthia.nodemanager import Lock, jdbc_node_manager
from orthia.nodemanager.errors import StoreInUse
from orthia.nodemanager.locks.holder_id import HolderId
from orthia.nodemanager.locks.lock_directory import LockDirectory
from orthia.nodemanager.locks.shared_file import SharedFileLock
from orthia.nodemanager.locks.sql_store import SqlNodeManagerStore
from orthia.nodemanager.locks.status import LockUnknown
from orthia.pipeline.jobs.migrate import _prepare, _Store
from orthia.pipeline.jobs.restore import _locked
from orthia.pipeline.sources.failover_parts import NamedStore, ask_all
from orthia.pipeline.sources.node_manager import NodeManagerReader
from orthia.pipeline.sources.store import StoreReference
from tests.cli.conftest import Run, run
from tests.support.schema import make_tables
from tests.support.servers import SqliteServer

pytestmark = pytest.mark.extended

__all__ = ["run"]
FILE_LOCK = '<shared-file-locker lockKeepAlivePeriod="0" directory="{directory}"/>'
NO_LOCK = '<shared-file-locker useLock="false" directory="{directory}"/>'
FRESH_MS, EXPIRED_MS = 600_000, -5_000


@dataclass(frozen=True)
class Scene:
    """How the live lock of a store is."""

    locker: str = ""
    kind: str = ""
    expires_ms: int | None = FRESH_MS
    """Of its row, which names nobody if this is None."""
    is_locked: bool = False
    """Whether its lock file is, by a process that lives."""


SCENES = {
    "a lease": (Scene(), True),
    "a lease that has expired": (Scene(expires_ms=EXPIRED_MS), False),
    "nobody": (Scene(expires_ms=None), False),
    "a lock file": (Scene(FILE_LOCK, "shared-file-locker", is_locked=True), True),
    "a lock file whose row is never renewed": (
        Scene(FILE_LOCK, "shared-file-locker", EXPIRED_MS, is_locked=True),
        True,
    ),
    "a lock file that was let go, and its row expired": (
        Scene(FILE_LOCK, "shared-file-locker", EXPIRED_MS),
        False,
    ),
    "a lock file that was let go before its row expired": (
        Scene(FILE_LOCK, "shared-file-locker"),
        True,
    ),
    "a lease, asked by one who locks files": (Scene(FILE_LOCK), True),
    "a lease that has expired, asked by one who locks files": (
        Scene(FILE_LOCK, expires_ms=EXPIRED_MS),
        False,
    ),
    "no lock at all": (Scene(NO_LOCK, "no-lock"), True),
    "no lock at all, and expired": (Scene(NO_LOCK, "no-lock", EXPIRED_MS), False),
}


@dataclass(frozen=True)
class Place:
    """A store whose live lock is as a scene has it."""

    settings: DatabaseStoreSettings
    broker_xml: Path
    run: Run


@pytest.fixture
def stage(tmp_path: Path, run: Run) -> Iterator[Callable[[Scene], Place]]:
    """Give what makes a scene on an SQLite store."""
    server = SqliteServer(tmp_path)
    settings = server.settings(server.create_database())
    directory = tmp_path / "locks"
    directory.mkdir()
    with ExitStack() as undo:

        def make(scene: Scene) -> Place:
            locker = scene.locker.format(directory=directory)
            inner = f'<locker xmlns="urn:orthia">{locker}</locker>' if locker else ""
            broker_xml = tmp_path / "broker.xml"
            broker_xml.write_text(
                '<configuration xmlns="urn:activemq"><core xmlns="urn:activemq:core"><store>'
                "<database-store><jdbc-connection-url>"
                f"jdbc:sqlite:{settings.jdbc_connection_url.sqlite_path}"
                f"</jdbc-connection-url>{inner}</database-store></store></core></configuration>"
            )
            database = Database.from_settings(settings)
            make_tables(database, settings)
            holder = HolderId.new("node-a", crash_detection=False, kind=scene.kind)
            rows = SqlNodeManagerStore(database, settings, database.engine)
            if scene.expires_ms is not None:
                assert rows.try_acquire(Lock.LIVE, holder, scene.expires_ms) is not None
            database.dispose()
            if scene.is_locked:
                file = SharedFileLock(LockDirectory(directory), Lock.LIVE, holder)
                assert file.try_acquire()
                undo.callback(file.release)
            return Place(config.load(broker_xml).database_store, broker_xml, run)

        yield make


def says_status(place: Place) -> object:
    """Return what ``status`` says."""
    result = place.run("status", "--json", "--config", place.broker_xml)
    return json.loads(result.stdout)["live"]["held"]


def says_transactions(place: Place) -> object:
    """Return whether ``data transactions`` refuses to open the journal."""
    result = place.run("data", "transactions", "commit", "1:0a:0b", "--config", place.broker_xml)
    assert result.exit_code in (64, 75), result.output
    if result.exit_code == 75:
        assert "holds the live lock of this store" in result.stderr
    return result.exit_code == 75


def says_migrate(place: Place) -> object:
    """Return whether ``pipeline migrate`` refuses to copy the store."""
    target = place.broker_xml.with_name("new.sqlite")
    new = SqliteServer(target.parent).settings(target.name)
    with _Store(place.settings) as old, _Store(new) as empty:
        try:
            _prepare(old, empty)
        except StoreInUse as error:
            return "holds the live lock of the old store" in str(error)
    return False


def says_import(place: Place) -> object:
    """Return whether ``pipeline import`` refuses to fill the store."""
    database = Database.from_settings(place.settings)
    try:
        with _locked(database, place.settings, 0):
            return False
    except StoreInUse as error:
        return "holds the live lock of the new store" in str(error)
    finally:
        database.dispose()


def says_source(place: Place) -> object:
    """Return what the data source ``orthia.node_manager`` says."""
    reader = NodeManagerReader(StoreReference(config=str(place.broker_xml)))
    (batch,) = reader.read(InputPartition(0))
    return batch.to_pylist()[0]["held"]


def says_history(place: Place) -> object:
    """Return what ``pipeline failovers`` takes for the present."""
    store = NamedStore("a", place.settings, StoreReference(config=str(place.broker_xml)))
    (log,) = ask_all([store], opened)
    assert log.live_lock is not None, log.error
    return log.live_lock.is_held


def says_a_node(place: Place) -> object:
    """Return what another node of the pair sees."""
    manager = jdbc_node_manager(place.settings, name="node-b", role=Role.BACKUP)
    try:
        return manager.status().live.is_held
    finally:
        manager.stop()


ASKERS = (
    *(says_status, says_transactions, says_migrate, says_import, says_source, says_history),
    says_a_node,
)
FREE_FOR_A_NODE = {"a lock file that was let go before its row expired", "no lock at all"}
"""Whoever is named by the row may still write: a node that takes it fences the journal, and nobody
else does. Without a lock a node takes it from whoever serves."""


@pytest.mark.parametrize("asker", ASKERS, ids=lambda asker: asker.__name__[5:])
@pytest.mark.parametrize("scene", SCENES)
def test_everybody_gets_the_same_answer(
    scene: str, asker: Callable[[Place], object], stage: Callable[[Scene], Place]
) -> None:
    """Whatever the lock is, and whether or not its row is renewed."""
    made, is_held = SCENES[scene]
    if asker is says_a_node and scene in FREE_FOR_A_NODE:
        is_held = False
    assert asker(stage(made)) is is_held


def test_what_cannot_be_told_is_not_told(stage: Callable[[Scene], Place]) -> None:
    """Without the locker's settings nobody takes a row that has expired for a lock that is free."""
    place = stage(SCENES["a lock file whose row is never renewed"][0])
    bare = place.broker_xml.with_name("bare.xml")
    bare.write_text(re.sub("<locker.*</locker>", "", place.broker_xml.read_text()))
    by_url, _ = StoreReference.of(DatabaseStoreSettings(place.settings.jdbc_connection_url))
    shown = place.run("status", "--json", "--config", bare)
    assert "still holds the live lock cannot be told" in shown.stderr
    refused = place.run("data", "transactions", "commit", "1:0a:0b", "--config", bare)
    assert (refused.exit_code, "cannot be told" in refused.stderr) == (78, True), refused.output
    with _Store(by_url.settings()) as old, pytest.raises(LockUnknown, match="cannot be told"):
        _prepare(old, old)
    (batch,) = NodeManagerReader(by_url).read(InputPartition(0))
    assert [row["held"] for row in batch.to_pylist()] == [None, False]
    store = NamedStore("a", by_url.settings(), by_url)
    (log,) = ask_all([store], opened)
    assert (log.error, log.live_lock) == (None, None)
