"""Stores for the tests: every DBMS real, every database fresh.

A test that takes ``store_settings`` (or ``migrated_store``, ``database``) runs on PostgreSQL,
MariaDB and SQLite; ``@pytest.mark.parametrize("server", ["postgresql"], indirect=True)`` chooses.
With MYSQLD set (``make test-mysql``) MySQL is one of them.
"""

import gc
import os
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from orthia.config.store_settings import DatabaseStoreSettings
from orthia.database import Database
from tests.process.nodes import forget_ended, judge_turns
from tests.support.leftovers import remove_left
from tests.support.schema import make_tables
from tests.support.servers import (
    SERVER_NAMES,
    SERVER_PROCESSES,
    ServerProcess,
    SqliteServer,
    StoreServer,
    url_with_password,
)
from tests.support.turns import ENVIRONMENT, limit_seconds
from tests.support.waiting import wait_until

EVERY_DBMS = [*SERVER_NAMES, "sqlite"]

Servers = Callable[[str], ServerProcess]
_LONG_SECONDS = 1_200
_ROUNDS = {
    **dict.fromkeys(("process", "hostile", "nodemanager", "websocket", "upgrade", "cli"), 0),
    **dict.fromkeys(("core", "config", "stomp"), 2),
}
"""When the tests of a directory come: all others have 1."""
_MEMORY = Path("/dev/shm")  # noqa: S108 - directories of names nobody foresees are made in it
_SERVERS_BYTES = 6 << 30

# No test depends on how fast a busy machine is, or on luck: the same inputs each time, unless
# ``make fuzz`` or ``make queue-model`` asks for new ones.
settings.register_profile(
    "orthia",
    deadline=None,
    derandomize=not ({"FUZZ_EXAMPLES", "QUEUE_EXAMPLES"} & os.environ.keys()),
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("orthia")


def pytest_sessionstart(session: pytest.Session) -> None:
    """Give back the memory of runs that were killed."""
    if not hasattr(session.config, "workerinput"):
        for place in (_MEMORY, Path(tempfile.gettempdir())):
            remove_left(place)


def _mark_of_directory(item: pytest.Item) -> pytest.MarkDecorator | None:
    """Return the ``pytestmark`` of the ``__init__.py`` beside the test, which pytest ignores."""
    assert isinstance(item, pytest.Function)
    mark: pytest.MarkDecorator | None = getattr(
        sys.modules[item.module.__package__], "pytestmark", None
    )
    return mark


# Before xdist's own, which reads the groups, and pytest's, which reads the marks.
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep what needs a Spark session in two processes: to start one costs more than most tests.

    And give it time: one that is ended amid a call to Spark fails all those after it. Chaos has a
    process, too, and time: its clients take all of the machine that they get.

    What waits comes first, while Spark takes the processor, and what is quick last, so that all
    processes end at once.
    """
    items.sort(key=lambda item: _ROUNDS.get(item.path.parent.name, 1))
    for item in items:
        mark = _mark_of_directory(item)
        if mark is not None:
            item.add_marker(mark)
        if "spark" in getattr(item, "fixturenames", ()):
            group = "spark-audits" if "audit" in item.path.stem else "spark"
        elif item.path.parent.name == "chaos":
            group = "chaos"
        elif item.path.stem == "test_imports":
            group = "imports"  # each process that has one of them reads every module
        else:
            continue
        item.add_marker(pytest.mark.xdist_group(group))
        item.add_marker(pytest.mark.timeout(_LONG_SECONDS))


def pytest_collection_finish() -> None:
    """Have the collector of garbage pass over what is here to stay: modules, and all tests.

    And look for some less often: there is memory, and it finds little.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000)


@pytest.fixture(autouse=True, scope="session")
def _turns_are_measured() -> None:
    """Tell all nodes that tests start as processes how long a turn of their loop may take."""
    os.environ.setdefault(ENVIRONMENT, str(limit_seconds()))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, None, None]:
    """Fail a test amid which a turn of the loop of a node that is a process was too long.

    Before its fixtures end, and the directory of a test that passed is removed with its logs.
    """
    try:
        yield
        judge_turns()
    finally:
        forget_ended()


@pytest.fixture(autouse=True)
def _as_it_was() -> Iterator[None]:
    """Put back what a node takes for good that a test runs in this process.

    It would end, with the death of any thread of a later test, a node that is long over.
    """
    hooks = threading.excepthook, sys.excepthook, sys.unraisablehook
    interval, thresholds = sys.getswitchinterval(), gc.get_threshold()
    yield
    threading.excepthook, sys.excepthook, sys.unraisablehook = hooks
    sys.setswitchinterval(interval)
    gc.set_threshold(*thresholds)


def _has_room(place: Path) -> bool:
    """Return whether a file system in memory takes all the servers, with as much to spare."""
    memory = next(
        int(line.split()[1])
        for line in Path("/proc/meminfo").read_text().splitlines()
        if line.startswith("MemAvailable:")
    )
    room = shutil.disk_usage(place).free if os.access(place, os.W_OK | os.X_OK) else 0
    return min(room, memory * 1024) > 2 * _SERVERS_BYTES


@pytest.fixture(scope="session")
def templates() -> Iterator[Servers]:
    """Give the data directory of each DBMS, made once and copied for each server.

    In memory, where there is plenty of it: a test's server has a hundred megabytes and is soon
    gone, and to write them to a disk takes longer than most tests.
    """
    made: dict[str, ServerProcess] = {}
    if _has_room(_MEMORY):
        ServerProcess.place = _MEMORY

    def template(dbms: str) -> ServerProcess:
        if dbms not in made:
            made[dbms] = SERVER_PROCESSES[dbms]()
        return made[dbms]

    yield template
    for server in made.values():
        server.discard()


@pytest.fixture(scope="session")
def shared_servers(templates: Servers) -> Iterator[Servers]:
    """Give the session's one server of each DBMS, started when it is first wanted."""
    running: dict[str, ServerProcess] = {}

    def server(dbms: str) -> ServerProcess:
        if dbms not in running:
            running[dbms] = SERVER_PROCESSES[dbms](template=templates(dbms))
            running[dbms].start()
        return running[dbms]

    yield server
    for started in running.values():
        started.discard()


@pytest.fixture(params=EVERY_DBMS)
def server(request: pytest.FixtureRequest, shared_servers: Servers, tmp_path: Path) -> StoreServer:
    """Give a server that other tests use too: not to be killed."""
    if request.param == "sqlite":
        return SqliteServer(tmp_path)
    return shared_servers(request.param)


@pytest.fixture(params=SERVER_NAMES)
def private_server(request: pytest.FixtureRequest, templates: Servers) -> Iterator[ServerProcess]:
    """Give a running server of this test's own, to be killed and paused as it likes."""
    server = SERVER_PROCESSES[request.param](template=templates(request.param))
    try:
        server.start()
        yield server
    finally:
        server.discard()


@pytest.fixture
def store_settings(server: StoreServer) -> Iterator[DatabaseStoreSettings]:
    """Give settings of an empty database; afterwards nobody may still be connected to it."""
    name = server.create_database()
    yield server.settings(name)
    wait_until(
        lambda: _nobody_is_connected(server, name),
        what=f"the end of leaked connections {server.connections(name)}",
    )
    server.drop_database(name)


def _nobody_is_connected(server: StoreServer, name: str) -> bool:
    """Say whether all have gone; what a thread gave back to a pool that was closed goes with it.

    Nothing refers to such a pool but itself, and this process may do too little to collect it.
    """
    if not server.connections(name):
        return True
    gc.collect()
    return not server.connections(name)


@pytest.fixture
def store_url(store_settings: DatabaseStoreSettings) -> str:
    """Give the URL of an empty database, user and password included."""
    return url_with_password(store_settings)


@pytest.fixture
def database(store_settings: DatabaseStoreSettings) -> Iterator[Database]:
    """Give the empty database of ``store_settings``, opened."""
    opened = Database.from_settings(store_settings)
    yield opened
    opened.dispose()


@pytest.fixture
def migrated_store(
    store_settings: DatabaseStoreSettings, database: Database
) -> DatabaseStoreSettings:
    """Give settings of a database with Orthia's tables."""
    make_tables(database, store_settings)
    return store_settings
